//! Memory of a GPU that other processes map: a memory file, whose descriptor is what processes pass on.
#![expect(
    unsafe_code,
    reason = "exports functions, and maps files at the addresses of callers"
)]

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use crate::call::{Answer, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, give, lock};
use crate::contexts::check_context;
use crate::device_memory::Share;
use crate::settings::settings;

/// Bytes of a page of a GPU.
const PAGE: usize = 2 << 20;
const PINNED: c_int = 1;
const DESCRIPTOR: c_int = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_kind: c_int,
    location_kind: c_int,
    location: c_int,
    windows: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location_kind: c_int,
    location: c_int,
    flags: c_int,
}

struct Memory {
    file: File,
    /// `None` in a process that has imported the memory.
    _share: Option<Share>,
}

/// References of the process, by handle.
static HANDLES: Mutex<Option<HashMap<u64, Arc<Memory>>>> = Mutex::new(None);
/// Reserved ranges, by their start.
static RANGES: Mutex<Option<HashMap<usize, Reserved>>> = Mutex::new(None);

struct Reserved {
    bytes: usize,
    mapped: Option<Arc<Memory>>,
}

fn add_handle(memory: Memory) -> u64 {
    static LAST: Mutex<u64> = Mutex::new(0x5000);
    let mut last = lock(&LAST);
    *last += 1;
    lock(&HANDLES)
        .get_or_insert_default()
        .insert(*last, Arc::new(memory));
    *last
}

fn memory(handle: u64) -> Answer<Arc<Memory>> {
    let handles = lock(&HANDLES);
    let found = handles.as_ref().and_then(|handles| handles.get(&handle));
    found.cloned().ok_or(INVALID_VALUE)
}

fn create_file(bytes: usize) -> Answer<File> {
    // SAFETY: the name ends with a zero.
    let number = unsafe { libc::memfd_create(c"fake-gpu-memory".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: it was just opened, and nobody else has it.
    let file = unsafe { File::from_raw_fd(number) };
    file.set_len(bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file)
}

/// Maps something at reserved addresses.
fn map_at(start: usize, bytes: usize, file: Option<&File>) -> Answer {
    // The addresses are reserved by a mapping already, which this one replaces.
    let flags = libc::MAP_FIXED
        | match file {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        };
    let number = file.map_or(-1, AsRawFd::as_raw_fd);
    let to = start as *mut c_void;
    // SAFETY: the range was reserved by `cuMemAddressReserve`, and is whole, as the callers check.
    let mapped = unsafe { libc::mmap(to, bytes, libc::PROT_NONE, flags, number, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

/// Returns a reserved range, which must have as many bytes.
fn with_range<T>(
    start: usize,
    bytes: usize,
    change: impl FnOnce(&mut Option<Arc<Memory>>) -> Answer<T>,
) -> Answer<T> {
    let mut ranges = lock(&RANGES);
    match ranges.get_or_insert_default().get_mut(&start) {
        Some(range) if range.bytes == bytes => change(&mut range.mapped),
        _ => Err(INVALID_VALUE),
    }
}

fn check_properties(properties: *const Properties) -> Answer {
    if properties.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a caller of CUDA passes a pointer to the struct in CUDA's header.
    let Properties {
        kind,
        handle_kind,
        location_kind,
        location,
        windows,
        flags,
    } = unsafe { properties.read() };
    crate::driver::check_device(location)?;
    let is_right = kind == PINNED
        && handle_kind == DESCRIPTOR
        && location_kind == 1
        && windows.is_null()
        && flags == [0; 8];
    if is_right { Ok(()) } else { Err(INVALID_VALUE) }
}

functions! {
    fn cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const Properties, _which: c_uint) {
        check_properties(properties)?;
        give(bytes, PAGE)
    }

    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, _flags: c_ulonglong) {
        check_context()?;
        check_properties(properties)?;
        if bytes == 0 || !bytes.is_multiple_of(PAGE) {
            return Err(INVALID_VALUE);
        }
        if !settings().shares_memory {
            return Err(NOT_SUPPORTED);
        }
        let share = Share::take(bytes)?;
        let memory = Memory { file: create_file(bytes)?, _share: Some(share) };
        give(handle, add_handle(memory))
    }

    fn cuMemRelease(handle: u64) {
        lock(&HANDLES).get_or_insert_default().remove(&handle).map(drop).ok_or(INVALID_VALUE)
    }

    fn cuMemExportToShareableHandle(out: *mut c_int, handle: u64, kind: c_int, _flags: c_ulonglong) {
        if kind != DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        let copy = memory(handle)?.file.try_clone().map_err(|_| OUT_OF_MEMORY)?;
        give(out, OwnedFd::from(copy).into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: *mut u64, descriptor: usize, kind: c_int) {
        check_context()?;
        if kind != DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        let number = c_int::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{number}"));
        if !path.is_ok_and(|path| path.to_string_lossy().contains("fake-gpu-memory")) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the descriptor is open, as was just seen.
        let copy = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
        let file = File::from(copy.map_err(|_| OUT_OF_MEMORY)?);
        give(handle, add_handle(Memory { file, _share: None }))
    }

    fn cuMemAddressReserve(start: *mut usize, bytes: usize, _alignment: usize, _at: usize, _flags: c_ulonglong) {
        if bytes == 0 || !bytes.is_multiple_of(PAGE) {
            return Err(INVALID_VALUE);
        }
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let reserved = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, kind, -1, 0) };
        if reserved == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        lock(&RANGES).get_or_insert_default().insert(reserved as usize, Reserved { bytes, mapped: None });
        give(start, reserved as usize)
    }

    fn cuMemAddressFree(start: usize, bytes: usize) {
        with_range(start, bytes, |mapped| if mapped.is_some() { Err(INVALID_VALUE) } else { Ok(()) })?;
        lock(&RANGES).get_or_insert_default().remove(&start);
        crate::host_memory::unmap(start, bytes);
        Ok(())
    }

    fn cuMemMap(start: usize, bytes: usize, offset: usize, handle: u64, _flags: c_ulonglong) {
        let memory = memory(handle)?;
        let length = memory.file.metadata().map_err(|_| INVALID_VALUE)?.len();
        if offset != 0 || bytes as u64 > length {
            return Err(INVALID_VALUE);
        }
        with_range(start, bytes, |mapped| {
            if mapped.is_some() {
                return Err(INVALID_VALUE);
            }
            map_at(start, bytes, Some(&memory.file))?;
            *mapped = Some(memory);
            Ok(())
        })
    }

    fn cuMemUnmap(start: usize, bytes: usize) {
        with_range(start, bytes, |mapped| {
            mapped.take().ok_or(INVALID_VALUE)?;
            map_at(start, bytes, None)
        })
    }

    fn cuMemSetAccess(start: usize, bytes: usize, access: *const Access, count: usize) {
        if access.is_null() || count != 1 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a caller of CUDA passes a pointer to the struct in CUDA's header.
        let Access { location_kind, location, flags } = unsafe { access.read() };
        crate::driver::check_device(location)?;
        let protection = match (location_kind, flags) {
            (1, 1) => libc::PROT_READ,
            (1, 3) => libc::PROT_READ | libc::PROT_WRITE,
            _ => return Err(INVALID_VALUE),
        };
        with_range(start, bytes, |mapped| {
            if mapped.is_none() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: all of a reserved range, in which a file is mapped.
            match unsafe { libc::mprotect(start as *mut c_void, bytes, protection) } {
                0 => Ok(()),
                _ => Err(INVALID_VALUE),
            }
        })
    }
}
