//! Settings of the C library's allocator for the memory that files are read into.
//!
//! Each file is read into memory of its own size, from a few tens of kilobytes to many megabytes, on many threads. That
//! memory is free again once the sample is prepared. By default, glibc keeps returning such memory to the kernel. Each
//! returned page costs a fault when the next file is read, which adds up to a few per cent of the time to prepare an
//! image. Reusable buffers are no alternative, because each would grow to the size of the largest file. A process of
//! user code that decodes images has the same problem: its arrays are as large and as short-lived.
//!
//! Source: `mallopt(3)`, `malloc_trim(3)`.

#![cfg_attr(
    target_env = "gnu",
    expect(
        unsafe_code,
        reason = "the C library is told, and there is no safe wrapper"
    )
)]

/// The kernel serves allocations larger than this directly, and they return to it when they are freed.
#[cfg(target_env = "gnu")]
const LARGEST: libc::c_int = 16 << 20;
/// Bytes of free memory that an arena keeps at its end instead of returning them to the kernel.
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 64 << 20;

/// Lets this process keep up to 64 MiB of the memory that its samples free. A coordinator or a worker of user code
/// calls this at its start.
///
/// It has no effect if the environment already configures glibc (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`,
/// `GLIBC_TUNABLES`), or if the C library is not glibc.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    if !is_told(|name| std::env::var(name).ok()) {
        // SAFETY: these only set parameters of the allocator, under its own lock. The return value says whether it
        // accepts them; a parameter that it does not accept stays as it was.
        unsafe {
            // Both are set, because setting either of them ends glibc's own adjustment of the other.
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}

/// Returns `true` if the environment sets one of the two thresholds. A user's setting takes precedence over ours.
#[cfg(target_env = "gnu")]
fn is_told(variable: impl Fn(&str) -> Option<String>) -> bool {
    let names = ["mmap_threshold", "trim_threshold"];
    let tunables = variable("GLIBC_TUNABLES").unwrap_or_default();
    names.iter().any(|name| {
        variable(&format!("MALLOC_{}_", name.to_uppercase())).is_some()
            || tunables.contains(&format!("glibc.malloc.{name}="))
    })
}

/// Returns free memory to the kernel, for when nobody loads samples any more. It has no effect if the C library is not
/// glibc.
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
