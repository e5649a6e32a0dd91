//! Memory files and their mappings: the one place where shared memory becomes pointers.
//!
//! A [`Mapping`] never hands out references by itself. Its users (`staging`, `view`, `handover`, the
//! arena) each say why their references do not alias.
#![expect(
    unsafe_code,
    reason = "turns descriptors into memory and memory into references"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod, fstat};

use crate::error::{Error, Result};
use crate::memory;

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
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

/// Nobody changes its size any more.
pub(crate) fn size_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// Nobody changes its size, and nobody gets a new way to write it.
pub(crate) fn write_seals() -> SealFlag {
    size_seals() | SealFlag::F_SEAL_FUTURE_WRITE
}

/// An anonymous memory file of `bytes` bytes, all of them reserved, for this user only.
pub(crate) fn memory_file(what: &str, name: &str, bytes: u64) -> Result<OwnedFd> {
    memory::check(what, bytes)?;
    let failed = |e: Errno| Error::os(format!("cannot create memory for {what}"), e);
    let file = create(name).map_err(failed)?;
    // Owner only: a descriptor that strays to another user cannot be reopened there.
    fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR).map_err(failed)?;
    memory::reserve(what, &file, bytes)?;
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
        .map_err(|e| Error::os(format!("cannot seal {what}"), e))
}

/// Fails unless the file is a memory file of at least `bytes` bytes that nobody can shrink: only then can
/// its mapping be read without ever a SIGBUS.
pub(crate) fn check_file(what: &str, file: impl AsFd, bytes: usize) -> Result<()> {
    let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
    if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
        return Err(Error::misbehaved(
            what,
            "the descriptor is not a sealed memory file",
        ));
    }
    let size = size_of_file(what, file)?;
    match size >= bytes as u64 {
        true => Ok(()),
        false => Err(Error::misbehaved(
            what,
            format!("{bytes} bytes announced, {size} bytes found"),
        )),
    }
}

pub(crate) fn size_of_file(what: &str, file: impl AsFd) -> Result<u64> {
    let stat = fstat(file).map_err(|e| Error::os(what, e))?;
    Ok(stat.st_size.max(0) as u64)
}

/// The same file by another descriptor that cannot write.
pub(crate) fn reopen_read_only(what: &str, file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    open(path.as_str(), flags, Mode::empty())
        .map_err(|e| Error::os(format!("cannot reopen {what}"), e))
}

/// A part of the address space that lies over a file.
#[derive(Debug)]
pub(crate) struct Mapping {
    raw: MmapRaw,
}

impl Mapping {
    /// Shared, for reading and writing.
    pub(crate) fn writable(what: &str, file: impl AsFd, bytes: usize) -> Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        Self::of(what, MmapOptions::new().len(bytes).map_raw(fd))
    }

    /// Shared, for reading.
    pub(crate) fn readable(what: &str, file: impl AsFd, bytes: usize) -> Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        Self::of(what, MmapOptions::new().len(bytes).map_raw_read_only(fd))
    }

    /// Private, for reading and writing: a page that is written becomes this process's own.
    ///
    /// No swap is set aside for the pages that may become private: they are few.
    pub(crate) fn copy_on_write(what: &str, file: impl AsFd, bytes: usize) -> Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: `map_copy` asks that nobody changes the file under the references which the returned map
        // gives out. The map is turned into `MmapRaw` at once, which gives out none.
        let map = unsafe { MmapOptions::new().len(bytes).no_reserve_swap().map_copy(fd) };
        Self::of(what, map.map(MmapRaw::from))
    }

    fn of(what: &str, raw: std::io::Result<MmapRaw>) -> Result<Self> {
        raw.map(|raw| Mapping { raw })
            .map_err(|e| Error::os(format!("cannot map {what}"), e))
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        // A mapping never starts at zero.
        NonNull::new(self.raw.as_mut_ptr()).unwrap_or(NonNull::dangling())
    }

    pub(crate) fn len(&self) -> usize {
        self.raw.len()
    }

    /// Where byte `offset` lies.
    ///
    /// # Panics
    /// If `offset` is not inside, the end included.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.len(), "offset {offset} of {}", self.len());
        // SAFETY: the offset was checked: inside the mapping or one past its end, which is one allocation.
        unsafe { self.start().add(offset) }
    }

    /// Fills the page tables for reading. Without effect where the kernel cannot (before 5.14).
    pub(crate) fn populate_for_reading(&self) {
        let _ = self.raw.advise(Advice::PopulateRead);
    }

    /// Fills the page tables for writing. Without effect where the kernel cannot (before 5.14).
    pub(crate) fn populate_for_writing(&self) {
        let _ = self.raw.advise(Advice::PopulateWrite);
    }

    /// Drops this process's pages of a [`copy_on_write`](Self::copy_on_write) mapping: what is read next is
    /// the file again.
    ///
    /// # Errors
    /// Only if the range is not whole pages inside the mapping.
    ///
    /// # Safety
    /// The mapping is copy-on-write, and no reference into the range is live.
    pub(crate) unsafe fn drop_private(&self, offset: usize, len: usize) -> std::io::Result<()> {
        // SAFETY: `DontNeed` asks that no one relies on the contents of the pages; the caller promises.
        unsafe {
            self.raw
                .unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len)
        }
    }
}

/// Types that may lie in memory which another process writes at any moment.
///
/// # Safety
/// Every bit pattern is a value, and every field is an atomic or is padding.
pub(crate) unsafe trait Shared {}

/// A mapping seen as a head `H` and a row of `E`.
pub(crate) struct Region<H, E> {
    mapping: Mapping,
    count: usize,
    types: std::marker::PhantomData<fn() -> (H, E)>,
}

impl<H: Shared, E: Shared> Region<H, E> {
    /// Bytes that a head and `count` elements take, or None if that is too much.
    pub(crate) fn bytes(count: usize) -> Option<usize> {
        let row = size_of::<E>().checked_mul(count)?;
        row.checked_add(Self::ROW)?
            .checked_next_multiple_of(page_size())
    }

    /// Where the row begins.
    const ROW: usize = size_of::<H>().next_multiple_of(align_of::<E>());

    /// # Errors
    /// If the mapping is too small.
    pub(crate) fn new(what: &str, mapping: Mapping, count: usize) -> Result<Self> {
        match Self::bytes(count) {
            Some(bytes) if bytes <= mapping.len() => Ok(Region {
                mapping,
                count,
                types: std::marker::PhantomData,
            }),
            _ => Err(Error::misbehaved(
                what,
                format!("too small for {count} items"),
            )),
        }
    }

    pub(crate) fn head(&self) -> &H {
        // SAFETY: in bounds, since `new` compared the sizes; aligned, since mappings start on a page and
        // no type here wants more; a value, since `H: Shared` and the memory of a file is initialised;
        // not aliased by `&mut`, since none is ever made of this mapping; changes by others go through
        // atomics, since `H: Shared`.
        unsafe { self.mapping.start().cast().as_ref() }
    }

    pub(crate) fn row(&self) -> &[E] {
        // SAFETY: as above; `ROW` is a multiple of the alignment, and `new` made room for `count`.
        unsafe {
            std::slice::from_raw_parts(self.mapping.at(Self::ROW).cast().as_ptr(), self.count)
        }
    }
}
