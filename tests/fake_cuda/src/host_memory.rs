//! Pinned host memory.
//!
//! Pins behave as those of the kernel and of NVIDIA's module (`os-mlock.c` pins with `FOLL_WRITE` unless the flag for
//! reading only is given; `gup_must_unshare` in the kernel's `mm/internal.h`):
//!
//! | mapping | without the flag | with the flag |
//! |---|---|---|
//! | shared, writable | pinned | pinned |
//! | shared, read-only | refused | pinned |
//! | private, writable | pinned, and frozen: each page becomes a copy of its own | the same |
//! | private, read-only | refused | refused |
#![expect(
    unsafe_code,
    reason = "exports functions, and looks at the memory of callers"
)]

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::Mutex;

use crate::call::{
    ALREADY_REGISTERED, Answer, INVALID_VALUE, NOT_REGISTERED, NOT_SUPPORTED, OUT_OF_MEMORY, give,
    lock,
};
use crate::contexts::check_context;
use crate::settings::settings;

const PAGE: usize = 4096;
const READ_ONLY: c_uint = 8;

/// Pinned ranges: the bytes of each, by its start.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Returns true if a range is pinned, so that a GPU can copy from it by itself.
pub(crate) fn is_pinned(start: usize, bytes: usize) -> bool {
    let pinned = lock(&PINNED);
    let before = pinned.range(..=start).next_back();
    before.is_some_and(|(&from, &length)| start + bytes <= from + length)
}

/// Copies a byte of this process to itself, by the same way as the kernel pins a page, so that a page that cannot be
/// accessed is an error and no signal. A write makes a page of a private mapping this process's own.
fn access(page: usize, is_write: bool) -> bool {
    let mut byte = 0u8;
    let own = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let other = libc::iovec {
        iov_base: page as *mut c_void,
        iov_len: 1,
    };
    // SAFETY: getpid has no conditions. The kernel checks both addresses; a byte is read to a variable that lives here,
    // and then the same byte is written back.
    unsafe {
        let process = libc::getpid();
        libc::process_vm_readv(process, &own, 1, &other, 1, 0) == 1
            && (!is_write || libc::process_vm_writev(process, &own, 1, &other, 1, 0) == 1)
    }
}

/// Returns true if the mapping at an address is private.
fn is_private(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let of_address = |line: &&str| {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let bound = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        range.is_some_and(|(from, to)| (bound(from)..bound(to)).contains(&address))
    };
    let line = maps.lines().find(of_address);
    let access = line.and_then(|line| line.split(' ').nth(1));
    access.is_none_or(|access| access.ends_with('p'))
}

fn register(start: usize, bytes: usize, flags: c_uint) -> Answer {
    let is_read_only = flags & READ_ONLY != 0;
    if bytes == 0 || !start.is_multiple_of(PAGE) {
        return Err(INVALID_VALUE);
    }
    if is_read_only && !settings().pins_read_only {
        return Err(NOT_SUPPORTED);
    }
    if is_pinned(start, 1) {
        return Err(ALREADY_REGISTERED);
    }
    let is_write = !is_read_only || is_private(start);
    if !(start..start + bytes)
        .step_by(PAGE)
        .all(|page| access(page, is_write))
    {
        return Err(INVALID_VALUE);
    }
    lock(&PINNED).insert(start, bytes);
    Ok(())
}

/// Reserves memory of this process. It is filled, so that somebody who relies on zeros is noticed.
pub(crate) fn map(bytes: usize) -> Answer<usize> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, wherever the kernel likes.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: the mapping above, which nobody else knows yet.
    unsafe { start.cast::<u8>().write_bytes(0xa5, bytes) };
    Ok(start as usize)
}

pub(crate) fn unmap(start: usize, bytes: usize) {
    // SAFETY: a mapping of `map`. If a user is left, a signal tells the test so.
    unsafe { libc::munmap(start as *mut c_void, bytes) };
}

functions! {
    fn cuMemHostRegister_v2(start: usize, bytes: usize, flags: c_uint) {
        check_context()?;
        register(start, bytes, flags)
    }

    fn cuMemHostUnregister(start: usize) {
        check_context()?;
        lock(&PINNED).remove(&start).map(drop).ok_or(NOT_REGISTERED)
    }

    fn cuMemHostAlloc(start: *mut usize, bytes: usize, _flags: c_uint) {
        check_context()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let memory = map(bytes)?;
        lock(&PINNED).insert(memory, bytes);
        give(start, memory)
    }

    fn cuMemFreeHost(start: usize) {
        check_context()?;
        let bytes = lock(&PINNED).remove(&start).ok_or(INVALID_VALUE)?;
        unmap(start, bytes);
        Ok(())
    }
}
