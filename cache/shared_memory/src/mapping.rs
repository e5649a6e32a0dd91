//! Memory files and their mappings. This is the only module that turns shared memory into pointers.
//!
//! A [`Mapping`] never hands out references by itself. Each of its users (`staging`, `view`, `handover`, `task_table`,
//! and the arena of the sample cache) explains why its references do not alias.
#![expect(
    unsafe_code,
    reason = "turns descriptors into memory and memory into references"
)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::ftruncate;

use crate::error::{Result, os, protocol_violation};
use crate::memory;

/// Returns the bytes of a page.
#[must_use]
pub fn page_size() -> usize {
    static SIZE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let ask = || {
        nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
            .ok()
            .flatten()
    };
    *SIZE.get_or_init(|| {
        ask()
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(4096)
    })
}

/// `MFD_NOEXEC_SEAL`, Linux 6.3.
const NOEXEC: MFdFlags = MFdFlags::from_bits_retain(0x0008);

/// Returns the seals after which nobody can change the size of a file.
pub(crate) fn size_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// Returns the seals after which nobody can change the size of a file or get a new way to write it.
pub(crate) fn write_seals() -> SealFlag {
    size_seals() | SealFlag::F_SEAL_FUTURE_WRITE
}

/// Creates an anonymous memory file of `bytes` bytes, all of them reserved. Only this user can open it.
pub(crate) fn memory_file(what: &str, name: &str, bytes: u64) -> Result<OwnedFd> {
    memory::check(what, bytes)?;
    let file = empty_file(what, name)?;
    memory::reserve(what, &file, 0..bytes)?;
    Ok(file)
}

/// Creates an anonymous memory file and its mapping, both in huge pages if the kernel provides any. With huge pages, a
/// handful of faults fills a mapping of the file, and a scan of its page tables takes a microsecond.
///
/// File and mapping are `end` bytes long. The first `bytes` bytes are reserved; [`reserve_part`] reserves the others.
pub(crate) fn huge_memory_file(
    what: &str,
    name: &str,
    bytes: usize,
    end: usize,
) -> Result<(OwnedFd, Mapping)> {
    memory::check(what, bytes as u64)?;
    let file = empty_file(what, name)?;
    ftruncate(&file, end as i64).map_err(|e| os(format!("cannot create memory for {what}"), e))?;
    let mapping = Mapping::writable(what, &file, end)?;
    reserve_part(what, &file, &mapping, 0..bytes)?;
    Ok((file, mapping))
}

/// Reserves a part of a mapped file, in huge pages if the kernel provides any.
pub(crate) fn reserve_part(
    what: &str,
    file: impl AsFd + Copy,
    mapping: &Mapping,
    part: Range<usize>,
) -> Result<()> {
    memory::check(what, part.len() as u64)?;
    // Before the rest is reserved, because the kernel makes an empty huge page ten times as fast as a full one.
    mapping.collapse(part.clone());
    let bytes = part.start as u64..part.end as u64;
    memory::reserve(what, file, bytes.clone())
        // The caller counts nothing as reserved then, so the steps that succeeded must not keep memory either.
        .inspect_err(|_| memory::free(file, bytes))
}

fn empty_file(what: &str, name: &str) -> Result<OwnedFd> {
    let failed = |e: Errno| os(format!("cannot create memory for {what}"), e);
    let file = create(name).map_err(failed)?;
    // Owner only: if the descriptor leaks to another user, that user cannot reopen the file.
    fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR).map_err(failed)?;
    Ok(file)
}

fn create(name: &str) -> nix::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    match memfd_create(name, flags | NOEXEC) {
        Err(Errno::EINVAL) => memfd_create(name, flags),
        other => other,
    }
}

pub(crate) fn seal(what: &str, file: impl AsFd, seals: SealFlag) -> Result<()> {
    fcntl(file, FcntlArg::F_ADD_SEALS(seals))
        .map(drop)
        .map_err(|e| os(format!("cannot seal {what}"), e))
}

/// Fails unless the file is a memory file of at least `bytes` bytes that nobody can shrink. Otherwise a read of its
/// mapping could end in a SIGBUS.
pub(crate) fn check_file(what: &str, file: impl AsFd, bytes: usize) -> Result<()> {
    // The call fails for a file that cannot be sealed, which therefore counts as unsealed.
    let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
    if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
        return Err(protocol_violation(
            what,
            "the descriptor is not a sealed memory file",
        ));
    }
    let size = size_of_file(what, file)?;
    if size >= bytes as u64 {
        Ok(())
    } else {
        Err(protocol_violation(
            what,
            format!("{bytes} bytes announced, {size} bytes found"),
        ))
    }
}

pub(crate) fn size_of_file(what: &str, file: impl AsFd) -> Result<u64> {
    let stat = fstat(file).map_err(|e| os(what, e))?;
    Ok(stat.st_size.max(0) as u64)
}

/// Returns the bytes of memory that the file occupies, which may be fewer than its size.
pub(crate) fn reserved_of_file(what: &str, file: impl AsFd) -> Result<u64> {
    let stat = fstat(file).map_err(|e| os(what, e))?;
    Ok(stat.st_blocks.max(0) as u64 * 512)
}

/// Opens the same file again, with a descriptor that cannot write.
pub(crate) fn reopen_read_only(what: &str, file: BorrowedFd<'_>) -> Result<OwnedFd> {
    // `dup` would keep the right to write. Only a new opening of the file can give it up.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    open(path.as_str(), flags, Mode::empty()).map_err(|e| os(format!("cannot reopen {what}"), e))
}

/// Bytes of a huge page of the smaller kind, on x86-64 and on Arm with pages of 4 KiB. It is only a hint: if it is
/// wrong, memory is not in huge pages.
pub(crate) const HUGE: usize = 2 << 20;
/// `MADV_COLLAPSE`, Linux 6.1.
const COLLAPSE: libc::c_int = 25;
/// Limit for the time to put a part into huge pages. A page takes 0.2 to 0.4 ms on a quiet machine, so a staging area of
/// 256 MiB is done in time. It takes 5 ms and more where memory is fragmented, or where all processors are busy: the kernel
/// waits for each of them. There, small pages for the rest are better than a wait for the first batch or a large sample.
const COLLAPSE_TIMEOUT: Duration = Duration::from_millis(50);

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// A part of the address space over a file.
///
/// A mapping of at least [`HUGE`] bytes over the start of a file starts at a multiple of `HUGE`. A mapping of another
/// part has the same distance from a multiple of `HUGE` in memory as in the file. Huge pages need this alignment.
#[derive(Debug)]
pub struct Mapping {
    raw: Raw,
}

#[derive(Debug)]
enum Raw {
    Anywhere(MmapRaw),
    HugeAligned(HugeAligned),
}

#[expect(
    clippy::len_without_is_empty,
    reason = "the kernel makes no empty mapping"
)]
impl Mapping {
    /// Creates a memory file of `bytes` bytes, reserves and maps all of them, and seals the file. No other process has
    /// it. `what` names the memory in errors, and `name` names the file in `/proc`.
    ///
    /// # Errors
    /// If memory is short. The error states the bytes wanted, the bytes available and a remedy.
    pub fn sealed(what: &str, name: &str, bytes: usize) -> Result<Self> {
        let file = memory_file(what, name, bytes as u64)?;
        let mapping = Self::writable(what, &file, bytes)?;
        seal(what, &file, write_seals())?;
        Ok(mapping)
    }

    /// Maps a file shared, for reading and writing.
    pub(crate) fn writable(what: &str, file: impl AsFd, bytes: usize) -> Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        if bytes >= HUGE {
            return Self::aligned(what, file, 0..bytes, READ_WRITE, MapFlags::MAP_SHARED);
        }
        Self::of(what, MmapOptions::new().len(bytes).map_raw(fd))
    }

    /// Maps a file shared, for reading only.
    pub(crate) fn readable(what: &str, file: impl AsFd, bytes: usize) -> Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        if bytes >= HUGE {
            return Self::aligned(
                what,
                file,
                0..bytes,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
            );
        }
        Self::of(what, MmapOptions::new().len(bytes).map_raw_read_only(fd))
    }

    /// Maps a file private, for reading and writing. A page that is written becomes this process's own.
    ///
    /// No swap is set aside for pages that may become private, because they are few.
    pub(crate) fn copy_on_write(what: &str, file: impl AsFd, bytes: usize) -> Result<Self> {
        Self::part_copy_on_write(what, file, 0..bytes)
    }

    /// Maps a part of a file like [`copy_on_write`](Self::copy_on_write). The part begins on a page boundary.
    pub(crate) fn part_copy_on_write(
        what: &str,
        file: impl AsFd,
        part: Range<usize>,
    ) -> Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        if part.len() >= HUGE {
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
            return Self::aligned(what, file, part, READ_WRITE, flags);
        }
        let mut options = MmapOptions::new();
        let options = options.len(part.len()).offset(part.start as u64);
        // SAFETY: `map_copy` asks that nobody changes the file under the references which the returned map
        // gives out. The map is turned into `MmapRaw` at once, which gives out none.
        let map = unsafe { options.no_reserve_swap().map_copy(fd) };
        Self::of(what, map.map(MmapRaw::from))
    }

    fn of(what: &str, raw: std::io::Result<MmapRaw>) -> Result<Self> {
        raw.map(|raw| Mapping {
            raw: Raw::Anywhere(raw),
        })
        .map_err(|e| os(format!("cannot map {what}"), e))
    }

    fn aligned(
        what: &str,
        file: impl AsFd,
        part: Range<usize>,
        access: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self> {
        HugeAligned::new(file, part, access, flags)
            .map(|raw| Mapping {
                raw: Raw::HugeAligned(raw),
            })
            .map_err(|e| os(format!("cannot map {what}"), e))
    }

    /// Returns the address of the first byte. It is valid while the mapping lives.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        match &self.raw {
            // A mapping never starts at zero.
            Raw::Anywhere(raw) => NonNull::new(raw.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            Raw::HugeAligned(raw) => raw.start.cast(),
        }
    }

    /// Returns the bytes of the mapping.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.raw {
            Raw::Anywhere(raw) => raw.len(),
            Raw::HugeAligned(raw) => raw.bytes,
        }
    }

    /// Returns the address of byte `offset`.
    ///
    /// # Panics
    /// If `offset` is past the end of the mapping.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.len(), "offset {offset} of {}", self.len());
        // SAFETY: the offset was checked: inside the mapping or one past its end, which is one allocation.
        unsafe { self.start().add(offset) }
    }

    /// Fills the page tables for reading. It has no effect if the kernel cannot do so (before 5.14).
    pub(crate) fn populate_for_reading(&self) {
        let _ = self.advise(0, self.len(), libc::MADV_POPULATE_READ);
    }

    /// Fills the page tables of a part for writing. It has no effect if the kernel cannot do so (before 5.14).
    pub(crate) fn populate_for_writing(&self, part: Range<usize>) {
        let _ = self.advise(part.start, part.len(), libc::MADV_POPULATE_WRITE);
    }

    /// Replaces the file's pages with pages of this process's own, with the same contents.
    ///
    /// The range is whole pages of a [`copy_on_write`](Self::copy_on_write) mapping. Others may read and write them
    /// meanwhile.
    pub(crate) fn make_private(&self, offset: usize, len: usize) {
        if self.advise(offset, len, libc::MADV_POPULATE_WRITE).is_err() {
            // Before Linux 5.14, a write makes a page private, even a write of the byte that is already there.
            (offset..offset + len)
                .step_by(page_size())
                .for_each(|page| self.rewrite_byte(page));
        }
    }

    /// Writes the byte that is already there. It uses compare-and-swap so that a concurrent write of another thread is
    /// not lost.
    fn rewrite_byte(&self, offset: usize) {
        // SAFETY: inside the mapping, which may be read and written as long as `self` is borrowed; a byte is always
        // aligned; all accesses through this reference are atomic.
        let byte = unsafe { AtomicU8::from_ptr(self.at(offset).as_ptr()) };
        let seen = byte.load(Ordering::Relaxed);
        // A failure means that another thread wrote the byte, which made the page private too.
        let _ = byte.compare_exchange(seen, seen, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Puts an empty part into huge pages, as far as it covers whole ones and as far as [`COLLAPSE_TIMEOUT`] goes. It has
    /// no effect if the kernel cannot do so or has no huge pages left.
    fn collapse(&self, part: Range<usize>) {
        let whole = part.start.next_multiple_of(HUGE)..part.end / HUGE * HUGE;
        let began = Instant::now();
        for offset in whole.step_by(HUGE) {
            // The kernel only collapses a range in which it finds at least one page.
            let first = self.advise(offset, page_size(), libc::MADV_POPULATE_WRITE);
            let done = first.and_then(|()| self.advise(offset, HUGE, COLLAPSE));
            if done.is_err() || began.elapsed() > COLLAPSE_TIMEOUT {
                return;
            }
        }
    }

    fn advise(&self, offset: usize, len: usize, advice: libc::c_int) -> std::io::Result<()> {
        assert!(
            offset <= self.len() && len <= self.len() - offset,
            "{len} bytes at {offset}"
        );
        // SAFETY: inside the mapping, as was just checked. Only `drop_private` changes contents, and its caller
        // promises that nobody relies on them.
        match unsafe { libc::madvise(self.at(offset).as_ptr().cast(), len, advice) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Drops this process's pages of a [`copy_on_write`](Self::copy_on_write) mapping. The next read sees the file
    /// again.
    ///
    /// # Errors
    /// If the range is not whole pages inside the mapping.
    ///
    /// # Safety
    /// The mapping is copy-on-write, and no reference into the range is live.
    pub(crate) unsafe fn drop_private(&self, offset: usize, len: usize) -> std::io::Result<()> {
        self.advise(offset, len, libc::MADV_DONTNEED)
    }
}

/// A mapping with the same distance from a multiple of [`HUGE`] in memory as in its file.
#[derive(Debug)]
struct HugeAligned {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: it owns its part of the address space; its methods hand out no references.
unsafe impl Send for HugeAligned {}
// SAFETY: as above.
unsafe impl Sync for HugeAligned {}

impl HugeAligned {
    fn new(
        file: impl AsFd,
        part: Range<usize>,
        access: ProtFlags,
        flags: MapFlags,
    ) -> nix::Result<Self> {
        let bytes = part.len();
        let size = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?;
        // One huge page to round the address up, and one for the distance of `part` from a huge page.
        let margin = 2 * HUGE;
        let with_margin = size.checked_add(margin).ok_or(Errno::ENOMEM)?;
        let nothing = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new part of the address space, wherever the kernel likes.
        let room = unsafe { mmap_anonymous(None, with_margin, ProtFlags::PROT_NONE, nothing) }?;
        let address = room.addr().get().next_multiple_of(HUGE) + part.start % HUGE;
        let (before, from) = (address - room.addr().get(), NonZeroUsize::new(address));
        let flags = flags | MapFlags::MAP_FIXED;
        // SAFETY: it takes the place of a part of `room`, which nobody else knows.
        let start = unsafe { mmap(from, size, access, flags, file, part.start as i64) };
        let (head, tail) = match start {
            Ok(_) => (before, margin - before),
            Err(_) => (with_margin.get(), 0),
        };
        for (at, len) in [
            (0, head),
            (before + bytes.next_multiple_of(page_size()), tail),
        ] {
            unmap(room, at, len);
        }
        Ok(HugeAligned {
            start: start?,
            bytes,
        })
    }
}

/// Unmaps a part of the mapping at `start`, up to the end of its last page. Nobody uses it any more.
fn unmap(start: NonNull<c_void>, at: usize, len: usize) {
    let len = len.next_multiple_of(page_size());
    if len > 0 {
        // SAFETY: inside the caller's mapping, which is whole pages, and nobody uses it.
        let _ = unsafe { munmap(start.byte_add(at), len) };
    }
}

impl Drop for HugeAligned {
    fn drop(&mut self) {
        unmap(self.start, 0, self.bytes);
    }
}

/// Types that may lie in memory that another process writes at any moment.
///
/// # Safety
/// Every bit pattern is a value, and every field is an atomic or is padding.
pub(crate) unsafe trait SharedPlain {}

/// A mapping interpreted as a head `H` followed by a row of `E`.
pub(crate) struct Region<H, E> {
    mapping: Mapping,
    count: usize,
    types: std::marker::PhantomData<fn() -> (H, E)>,
}

impl<H: SharedPlain, E: SharedPlain> Region<H, E> {
    /// Returns the bytes that a head and `count` elements take, or `None` if the number overflows.
    pub(crate) fn bytes(count: usize) -> Option<usize> {
        let row = size_of::<E>().checked_mul(count)?;
        row.checked_add(Self::ROW)?
            .checked_next_multiple_of(page_size())
    }

    /// Offset of the row from the start of the mapping.
    const ROW: usize = size_of::<H>().next_multiple_of(align_of::<E>());

    /// Interprets a mapping as a head and `count` elements.
    ///
    /// # Errors
    /// If the mapping is too small.
    pub(crate) fn new(what: &str, mapping: Mapping, count: usize) -> Result<Self> {
        match Self::bytes(count) {
            Some(bytes) if bytes <= mapping.len() => Ok(Region {
                mapping,
                count,
                types: std::marker::PhantomData,
            }),
            _ => Err(protocol_violation(
                what,
                format!("too small for {count} items"),
            )),
        }
    }

    pub(crate) fn head(&self) -> &H {
        // SAFETY: in bounds, since `new` compared the sizes; aligned, since mappings start on a page and
        // no type here wants more; a value, since `H: SharedPlain` and the memory of a file is initialised;
        // not aliased by `&mut`, since none is ever made of this mapping; changes by others go through
        // atomics, since `H: SharedPlain`.
        unsafe { self.mapping.start().cast().as_ref() }
    }

    pub(crate) fn row(&self) -> &[E] {
        // SAFETY: as above; `ROW` is a multiple of the alignment, and `new` made room for `count`.
        unsafe {
            std::slice::from_raw_parts(self.mapping.at(Self::ROW).cast().as_ptr(), self.count)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first byte of a page, as an atomic, because two mappings of it are alive.
    fn byte(mapping: &Mapping, page: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, for as long as it is borrowed; all accesses are atomic.
        unsafe { AtomicU8::from_ptr(mapping.at(page * page_size()).as_ptr()) }
    }

    #[test]
    fn a_mapping_that_fails_leaves_no_page_behind() -> Result<()> {
        const ROUNDS: usize = 10_000;
        let pages = || {
            let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
            sizes.split(' ').next().unwrap().parse::<usize>().unwrap()
        };
        let bytes = HUGE + 1;
        let file = memory_file("a test", "coprep-test", bytes as u64)?;
        let file = reopen_read_only("a test", file.as_fd())?;
        let before = pages();
        for _ in 0..ROUNDS {
            assert!(Mapping::writable("a test", &file, bytes).is_err());
        }
        let left = pages().saturating_sub(before);
        assert!(left < ROUNDS / 2, "{left} pages");
        Ok(())
    }

    #[test]
    fn either_way_of_making_pages_private_keeps_what_they_hold() -> Result<()> {
        let bytes = 4 * page_size();
        let file = memory_file("a test", "coprep-test", bytes as u64)?;
        let writer = Mapping::writable("a test", &file, bytes)?;
        let view = Mapping::copy_on_write("a test", &file, bytes)?;
        (0..4).for_each(|page| byte(&writer, page).store(7, Ordering::Relaxed));
        view.make_private(0, 2 * page_size());
        view.rewrite_byte(2 * page_size());
        (0..4).for_each(|page| byte(&writer, page).store(8, Ordering::Relaxed));
        let seen: Vec<u8> = (0..4)
            .map(|page| byte(&view, page).load(Ordering::Relaxed))
            .collect();
        assert_eq!(seen, [7, 7, 7, 8]);
        Ok(())
    }
}
