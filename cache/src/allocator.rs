//! How the C library's allocator deals with the memory of files that were read.
//!
//! Each file is read into memory of its own size, which is free again once the sample is prepared: from a few tens of
//! kilobytes to many megabytes, on many threads. Left to itself glibc gives such memory back to the kernel all the
//! time, and each page of it costs a fault when the next file is read, which is a few per cent of preparing an image.
//! Buffers that are used again would each grow to the size of the largest file. A process of user code that decodes
//! images is no different: what it makes of each is as large, and as short-lived.
//!
//! Source: `mallopt(3)`, `malloc_trim(3)`.

#![cfg_attr(
    target_env = "gnu",
    expect(
        unsafe_code,
        reason = "the C library is told, and there is no safe wrapper"
    )
)]

/// Larger pieces come from the kernel, and go back when they are free.
#[cfg(target_env = "gnu")]
const LARGEST: libc::c_int = 16 << 20;
/// Free bytes at the end of an arena that are not given back.
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 64 << 20;

/// Lets this process keep the memory that its samples leave, 64 MiB of it: for a coordinator, or a worker of user code,
/// at its start. Without effect where the environment says how glibc is to do it (`MALLOC_TRIM_THRESHOLD_`,
/// `MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`), and where the C library is not glibc.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    if !is_told(|name| std::env::var(name).ok()) {
        // SAFETY: these only set parameters of the allocator, under its own lock. It says whether it takes them; what
        // it does not take stays as it was.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}

/// Whether somebody has said what to keep.
#[cfg(target_env = "gnu")]
fn is_told(variable: impl Fn(&str) -> Option<String>) -> bool {
    let names = ["mmap_threshold", "trim_threshold"];
    let tunables = variable("GLIBC_TUNABLES").unwrap_or_default();
    names.iter().any(|name| {
        variable(&format!("MALLOC_{}_", name.to_uppercase())).is_some()
            || tunables.contains(&format!("glibc.malloc.{name}="))
    })
}

/// Gives back what is free: nobody loads any more. Without effect where the C library is not glibc.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches only memory that is free, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_says_stays() {
        let told = |name: &'static str, value: &'static str| {
            is_told(move |asked| (asked == name).then(|| value.to_string()))
        };
        assert!(told("MALLOC_TRIM_THRESHOLD_", "131072"));
        assert!(told("MALLOC_MMAP_THRESHOLD_", "131072"));
        assert!(told(
            "GLIBC_TUNABLES",
            "glibc.malloc.check=1:glibc.malloc.trim_threshold=1"
        ));
        assert!(!told("GLIBC_TUNABLES", "glibc.malloc.check=1"));
        assert!(!told("MALLOC_ARENA_MAX", "1"));
    }
}
