//! How the C library's allocator deals with the memory of files that were read.
//!
//! Each file is read into memory of its own size, which is free again once the sample is prepared: from a few tens of
//! kilobytes to many megabytes, on many threads. Left to itself glibc gives such memory back to the kernel all the
//! time, and each page of it costs a fault when the next file is read, which is a few per cent of preparing an image.
//! Buffers that are used again would each grow to the size of the largest file.
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

/// Lets this process keep the memory that its samples' files leave: for the process of a coordinator, at its start.
/// Without effect where the C library is not glibc.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: these only set parameters of the allocator, under its own lock. It says whether it takes them; what it
    // does not take stays as it was.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// Gives back what is free: nobody loads any more. Without effect where the C library is not glibc.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches only memory that is free, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
