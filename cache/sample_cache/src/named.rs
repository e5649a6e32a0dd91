//! Named segments, which outlive their coordinator.
//!
//! A segment `NAME` of a user is the file `/dev/shm/coprep-UID-NAME`, mode 0600. The `shared_memory` crate maps it, and
//! `fallocate` reserves it. Its first page is a header, which is written last. A segment without a valid header was
//! never completed, so it is replaced. A complete segment keeps its size even if another size is requested, because its
//! contents are worth more. A segment of another dataset is left alone and reported as an error.
//!
//! **In use.** A process that uses a segment holds an `flock` on it. The kernel releases the lock when the process ends
//! for any reason. So no death leaves a segment locked, and there is no process number that could be mistaken for
//! another process's.
//!
//! **One rule** keeps processes that use the same name apart: only the process that holds the lock of the file with
//! that name completes the file, maps it or removes the name. A process that obtains a lock compares the inodes of the
//! locked file and of the file that has the name, because the name may have been removed, and given to another file,
//! while the process waited. After that comparison nobody else can remove the name, so it stays with the locked file.
//!
//! A new file obeys the rule from its first moment: it is created without a name (`O_TMPFILE`), locked, and only then
//! given its name by `linkat`, which fails if another file has the name. For this reason the `shared_memory` crate does
//! not create it: `shm_open` gives a file its name before anybody can lock it. So an incomplete segment that can be
//! locked was left behind by a process that ended or gave up, and never belongs to a process that is about to complete
//! it.
//!
//! **Access.** Other users are kept out: owner and mode of an existing segment are checked. Other processes of the same
//! user can open the file and write it. Checksums catch such writes when the cache is taken over, but not while it is
//! in use.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind as Io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::time::Duration;

use coprep_shared_memory::memory;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use shared_memory::{Shmem, ShmemConf, ShmemError};

use crate::error::{Error, ErrorKind, Result};
use crate::index::{HEADER, SegmentHeader};
use crate::layout::{SegmentLayout, WHAT};

const FOLDER: &str = "/dev/shm";
/// Longest name of a segment, in bytes.
pub const LONGEST: usize = 128;
/// Number of tries for a lock. A process that lists segments holds their locks for a moment.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Number of tries to open a segment. A try fails if another process creates or removes a segment of this name
/// meanwhile.
const OPEN_TRIES: u32 = 8;
/// The remedy for a segment that this coordinator may not use.
const REMOVE_IT: &str = "remove it, or choose another name";

/// A mapped segment, locked for this process.
pub(crate) struct Segment {
    memory: Shmem,
    /// It is closed after the mapping is gone, because fields are dropped in order.
    _locked: LockedFile,
}

/// A file that this process has locked and that had the name of its segment under that lock.
struct LockedFile(File);

/// The result of [`open`].
pub(crate) struct OpenedSegment {
    pub(crate) segment: Segment,
    /// Layout of the segment. An existing segment keeps its own.
    pub(crate) shape: SegmentLayout,
    /// True if the segment has an index to take over.
    pub(crate) is_warm: bool,
    /// True if this call removed an incomplete segment and created `segment` in its path.
    pub(crate) replaced: bool,
}

/// A segment on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedSegment {
    /// Name of the segment.
    pub name: String,
    /// Bytes of memory that the segment takes.
    pub bytes: u64,
    /// True if a live coordinator uses the segment.
    pub in_use: bool,
}

/// Opens the segment if it is complete. Otherwise creates a new one.
pub(crate) fn open(name: &str, shape: SegmentLayout, fingerprint: u128) -> Result<OpenedSegment> {
    let path = SegmentPath::new(name)?;
    let header = shape.header(fingerprint);
    let mut removed = false;
    for _ in 0..OPEN_TRIES {
        let Some(file) = path.lock()? else {
            if let Some(segment) = path.create(&shape, &header)? {
                return Ok(OpenedSegment {
                    segment,
                    shape,
                    is_warm: false,
                    replaced: removed,
                });
            }
            continue;
        };
        let Some(found) = path.shape(&file, &header)? else {
            // The next round creates a segment, unless another process is faster.
            removed |= path.unlink(&file)?;
            continue;
        };
        if let Some(memory) = path.map(&file, &found)? {
            return Ok(OpenedSegment {
                segment: Segment {
                    memory,
                    _locked: file,
                },
                shape: found,
                is_warm: true,
                replaced: false,
            });
        }
    }
    Err(path.in_use())
}

/// Lists the segments of this user.
///
/// # Errors
/// If `/dev/shm` cannot be read.
pub fn list_named() -> Result<Vec<NamedSegment>> {
    let failed =
        |e: std::io::Error| Error::new(ErrorKind::Os, format!("cannot list {FOLDER}")).because(e);
    let mut segments = Vec::new();
    for file in fs::read_dir(FOLDER).map_err(failed)? {
        let file = file.map_err(failed)?.file_name();
        let name = file.to_str().and_then(|file| file.strip_prefix(&prefix()));
        segments.extend(name.and_then(describe));
    }
    segments.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(segments)
}

fn describe(name: &str) -> Option<NamedSegment> {
    let file = SegmentPath::new(name).ok()?.open_file().ok()??;
    let bytes = file.metadata().ok()?.blocks() * 512;
    // A lock that this call obtains ends with `file`. A coordinator that meets it meanwhile tries again (`LOCK_TRIES`).
    let in_use = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    Some(NamedSegment {
        name: name.to_owned(),
        bytes,
        in_use,
    })
}

/// Removes a segment. Returns false if there is none.
///
/// # Errors
/// If a live coordinator uses the segment, or it belongs to another user.
pub fn remove_named(name: &str) -> Result<bool> {
    let path = SegmentPath::new(name)?;
    match path.lock()? {
        Some(file) => path.unlink(&file),
        None => Ok(false),
    }
}

/// Returns `true` if a segment can have this name, or a name that begins with it. `longest` bounds the length in bytes.
#[must_use]
pub fn is_name(name: &str, longest: usize) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.len() <= longest && name.chars().all(good)
}

fn prefix() -> String {
    format!("coprep-{}-", nix::unistd::geteuid())
}

/// The name and the file of a segment.
struct SegmentPath {
    name: String,
    file: String,
}

impl SegmentPath {
    fn new(name: &str) -> Result<Self> {
        if !is_name(name, LONGEST) {
            let why = format!("1 to {LONGEST} letters, digits, '.', '_' and '-' make a name");
            return Err(
                Error::new(ErrorKind::Invalid, format!("cache name {name:?}")).because(why),
            );
        }
        Ok(SegmentPath {
            name: name.to_owned(),
            file: format!("{}{name}", prefix()),
        })
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(FOLDER).join(&self.file)
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(
            kind,
            format!("cache segment {:?} ({})", self.name, self.path().display()),
        )
    }

    fn os(&self, error: std::io::Error) -> Error {
        self.error(ErrorKind::Os).because(error)
    }

    fn in_use(&self) -> Error {
        self.error(ErrorKind::InUse)
            .because("in use by another coordinator")
            .with_remedy("stop that one, or choose another name")
    }

    fn other_data(&self) -> Error {
        self.error(ErrorKind::OtherData)
            .because("it holds samples of another dataset")
            .with_remedy(REMOVE_IT)
    }

    fn not_ours(&self, why: impl Into<String>) -> Error {
        self.error(ErrorKind::NotOurs)
            .because(why.into())
            .with_remedy(REMOVE_IT)
    }

    /// Opens the file, if it exists and belongs to this user.
    fn open_file(&self) -> Result<Option<File>> {
        // No symbolic link, because every user may write `/dev/shm` and could have put one there.
        // Non-blocking, so that the call does not hang if the file is a pipe.
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        match OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(self.path())
        {
            Ok(file) => self.check_owner(file).map(Some),
            Err(e) if e.kind() == Io::NotFound => Ok(None),
            Err(e) if e.kind() == Io::PermissionDenied => {
                Err(self.not_ours("this user may not open it"))
            }
            Err(e) => Err(self.os(e)),
        }
    }

    fn check_owner(&self, file: File) -> Result<File> {
        let found = file.metadata().map_err(|e| self.os(e))?;
        if found.uid() != nix::unistd::geteuid().as_raw() {
            return Err(self.not_ours(format!("it belongs to user {}", found.uid())));
        }
        if !found.is_file() || found.mode() & 0o077 != 0 {
            return Err(self.not_ours("it is not a file that only its owner may use"));
        }
        Ok(file)
    }

    /// Opens and locks the file, if it exists.
    fn lock(&self) -> Result<Option<LockedFile>> {
        let Some(file) = self.open_file()? else {
            return Ok(None);
        };
        self.lock_file(&file)?;
        // Another process may have removed it between opening and locking. Then it does not exist.
        let is_named = self.names(&file);
        Ok(is_named.then_some(LockedFile(file)))
    }

    fn lock_file(&self, file: &File) -> Result<()> {
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(e)) => return Err(self.os(e)),
            }
        }
        Err(self.in_use())
    }

    /// Returns true if the name of the segment is the name of this file.
    fn names(&self, file: &File) -> bool {
        let there = fs::symlink_metadata(self.path()).map(|m| (m.dev(), m.ino()));
        let ours = file.metadata().map(|m| (m.dev(), m.ino()));
        matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
    }

    /// Removes the name. Returns false if it is not the name of the locked file, which happens only if something other
    /// than this module, such as `rm`, removed the name.
    fn unlink(&self, locked: &LockedFile) -> Result<bool> {
        if !self.names(&locked.0) {
            return Ok(false);
        }
        fs::remove_file(self.path())
            .map(|()| true)
            .map_err(|e| self.os(e))
    }

    /// Reads the layout of a segment, or `None` if the segment is not complete.
    fn shape(&self, locked: &LockedFile, wanted: &SegmentHeader) -> Result<Option<SegmentLayout>> {
        let file = &locked.0;
        let mut bytes = [0; HEADER];
        match file.read_exact_at(&mut bytes, 0) {
            // The creator was killed before it set the size of the file.
            Err(e) if e.kind() == Io::UnexpectedEof => return Ok(None),
            read => read.map_err(|e| self.os(e))?,
        }
        let Some(found) = SegmentHeader::from_bytes(&bytes) else {
            return Ok(None);
        };
        if (found.fingerprint, found.samples) != (wanted.fingerprint, wanted.samples) {
            return Err(self.other_data());
        }
        let size = file.metadata().map_err(|e| self.os(e))?.len();
        Ok(SegmentLayout::of(&found, size))
    }

    /// Creates a segment, or returns `None` if another process was faster.
    fn create(&self, shape: &SegmentLayout, header: &SegmentHeader) -> Result<Option<Segment>> {
        self.check_room(shape.bytes as u64)?;
        let Some(file) = self.create_locked()? else {
            return Ok(None);
        };
        let memory = self.complete(&file, shape, header).inspect_err(|_| {
            // The segment goes while it is still locked. Otherwise it would keep memory that nobody uses. If the
            // removal fails too, the first error says more.
            let _ = self.unlink(&file);
        })?;
        Ok(memory.map(|memory| Segment {
            memory,
            _locked: file,
        }))
    }

    /// Creates an empty file that is locked before it has the name. Returns `None` if another file has the name.
    fn create_locked(&self) -> Result<Option<LockedFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC)
            .open(FOLDER)
            .map_err(|e| self.os(e))?;
        self.lock_file(&file)?;
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        let follow = AtFlags::AT_SYMLINK_FOLLOW;
        match nix::unistd::linkat(AT_FDCWD, &*unnamed, AT_FDCWD, &self.path(), follow) {
            Ok(()) => Ok(Some(LockedFile(file))),
            Err(Errno::EEXIST) => Ok(None),
            Err(e) => Err(self.os(e.into())),
        }
    }

    /// Makes a segment of an empty file. The header is written last, so a segment that has one is complete.
    fn complete(
        &self,
        locked: &LockedFile,
        shape: &SegmentLayout,
        header: &SegmentHeader,
    ) -> Result<Option<Shmem>> {
        let file = &locked.0;
        file.set_len(shape.bytes as u64).map_err(|e| self.os(e))?;
        let memory = self.map(locked, shape)?;
        if let Some(bytes) = header.to_bytes() {
            // Without a header the segment serves this process, and the next one replaces it.
            file.write_all_at(&bytes, 0).map_err(|e| self.os(e))?;
        }
        Ok(memory)
    }

    /// Maps the file and reserves all of it. Returns `None` if something other than this module, such as `rm`, removed
    /// or changed the file meanwhile.
    fn map(&self, locked: &LockedFile, shape: &SegmentLayout) -> Result<Option<Shmem>> {
        let memory = ShmemConf::new().os_id(format!("/{}", self.file)).open();
        let memory = memory.map_err(|e| self.crate_error(&e))?;
        // The crate opens a file by its name. A file that has lost its name never gets it back. So if the name is still
        // that of the locked file, the crate has mapped the locked file.
        if !self.names(&locked.0) || memory.len() != shape.bytes {
            return Ok(None);
        }
        self.reserve(&locked.0, shape)?;
        Ok(Some(memory))
    }

    /// Reserves the part of the segment that is not reserved yet.
    fn reserve(&self, file: &File, shape: &SegmentLayout) -> Result<()> {
        // The memory of a complete segment is taken already, so a check of the free memory could refuse it wrongly.
        let reserved = file.metadata().map_err(|e| self.os(e))?.blocks() * 512;
        if reserved >= shape.bytes as u64 {
            Ok(())
        } else {
            memory::reserve(WHAT, file, 0..shape.bytes as u64).map_err(Error::from_lower)
        }
    }

    fn check_room(&self, wanted: u64) -> Result<()> {
        let found = nix::sys::statvfs::statvfs(FOLDER).map_err(|e| self.os(e.into()))?;
        let had = found.blocks_available() * found.fragment_size();
        if wanted <= had {
            return memory::check(WHAT, wanted).map_err(Error::from_lower);
        }
        let short = memory::shortage(
            &format!("cache segment {:?}", self.name),
            wanted,
            had,
            &format!("free space in {FOLDER}"),
        );
        Err(Error::from_lower(short).with_remedy(
            "enlarge /dev/shm (containers: --shm-size), or leave the cache without a name: then its size does not \
             matter",
        ))
    }

    fn crate_error(&self, error: &ShmemError) -> Error {
        self.os(std::io::Error::other(error.to_string()))
    }
}

impl Segment {
    pub(crate) fn start(&self) -> NonNull<u8> {
        // A mapping never starts at zero.
        NonNull::new(self.memory.as_ptr()).unwrap_or(NonNull::dangling())
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestPath(SegmentPath);

    impl TestPath {
        fn new(test: &str) -> Self {
            let name = format!("test-{}-{test}", std::process::id());
            TestPath(SegmentPath::new(&name).unwrap())
        }
    }

    impl Drop for TestPath {
        fn drop(&mut self) {
            let _ = fs::remove_file(self.0.path());
        }
    }

    #[test]
    fn a_new_file_is_locked_as_soon_as_it_has_its_name() {
        let TestPath(path) = &TestPath::new("new");
        let file = path.create_locked().unwrap().unwrap();
        assert!(path.names(&file.0));
        let refused = path.lock().map(drop);
        assert!(matches!(refused.unwrap_err().kind(), ErrorKind::InUse));
        assert!(path.create_locked().unwrap().is_none());
        assert!(path.names(&file.0));
    }

    #[test]
    fn a_name_that_another_file_has_by_now_is_not_removed() {
        let TestPath(path) = &TestPath::new("other");
        let old = path.create_locked().unwrap().unwrap();
        fs::remove_file(path.path()).unwrap();
        let new = path.create_locked().unwrap().unwrap();
        assert!(!path.unlink(&old).unwrap());
        assert!(path.names(&new.0));
        assert!(path.unlink(&new).unwrap());
        assert!(!path.path().exists());
    }
}
