//! The folder of a disk cache: who may use it, which files it has, and the reservation of their room.
//!
//! **Access.** Folder and files belong to this user and to nobody else (modes 0700 and 0600), and no symbolic link is
//! followed. All files are opened below the folder that was checked, by its descriptor, so that renaming the folder
//! changes nothing.
//!
//! **In use.** A process that uses the folder holds an `flock` on it. The kernel releases the lock when the process ends
//! for any reason, so no death leaves a folder locked.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::ErrorKind as Io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use coprep_shared_memory::memory::sizes;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::fstatvfs;

use crate::error::{Error, ErrorKind, Result, os};

/// Longest wait for the lock. A coordinator that was stopped may still write its last samples.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Ending of the names of files. The rest of a name is the fingerprint.
const ENDING: &str = ".samples";
/// Name of the file with which room is tried out.
const TRIAL: &str = "trial.tmp";

/// A folder of a disk cache, locked for this process.
#[derive(Debug)]
pub struct DiskFolder {
    folder: File,
    path: PathBuf,
}

/// A file of a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredFile {
    /// Fingerprint of the inputs that determine the payloads.
    pub fingerprint: u128,
    /// Bytes of the file.
    pub bytes: u64,
    /// Time at which the file was last opened or written.
    pub used: SystemTime,
}

impl DiskFolder {
    /// Opens and locks a folder. A folder that is missing is created, for this user alone.
    ///
    /// # Errors
    /// If it cannot be created, if it is a symbolic link or no folder, if other users may reach it, or if another live
    /// coordinator uses it.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |e| os(format!("disk cache {}", path.display()), e);
        match DirBuilder::new().recursive(true).mode(0o700).create(path) {
            // A link to a folder, or a file, is refused below in better words.
            Err(e) if e.kind() != Io::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let folder = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(e) if e.kind() == Io::NotADirectory || e.raw_os_error() == Some(libc::ELOOP) => {
                return Err(not_ours(path, "it is a symbolic link, or no folder")
                    .with_remedy("give the folder itself"));
            }
            opened => opened.map_err(failed)?,
        };
        let opened = DiskFolder {
            folder,
            path: path.to_owned(),
        };
        let found = opened.folder.metadata().map_err(failed)?;
        check_owner(path, &found)?;
        opened.lock()?;
        Ok(opened)
    }

    /// Returns the path by which the folder was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.folder.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    let what = format!("disk cache {}", self.path.display());
                    return Err(Error::new(ErrorKind::InUse, what)
                        .because("another coordinator uses this folder")
                        .with_remedy(
                            "stop that one, or give each coordinator a folder of its own",
                        ));
                }
                Err(TryLockError::Error(e)) => return Err(self.os(e)),
            }
        }
    }

    /// Lists the files of datasets. Anything else in the folder is left out.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn files(&self) -> Result<Vec<StoredFile>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.below("")).map_err(|e| self.os(e))? {
            let entry = entry.map_err(|e| self.os(e))?;
            let name = entry.file_name();
            let Some(fingerprint) = name.to_str().and_then(fingerprint_of) else {
                continue;
            };
            // The metadata of an entry is that of a symbolic link itself.
            let found = entry.metadata().map_err(|e| self.os(e))?;
            if found.is_file() {
                files.push(StoredFile {
                    fingerprint,
                    bytes: found.len(),
                    used: found.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                });
            }
        }
        Ok(files)
    }

    /// Removes the file of a dataset. Returns its bytes, or 0 if there is none.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(&self, fingerprint: u128) -> Result<u64> {
        let path = self.below(&name_of(fingerprint));
        let bytes = match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == Io::NotFound => return Ok(0),
            found => found.map_err(|e| self.os(e))?.len(),
        };
        fs::remove_file(path).map_err(|e| self.os(e))?;
        Ok(bytes)
    }

    /// Reserves `bytes` bytes, and frees them again, to see whether the file system gives them to this user.
    ///
    /// # Errors
    /// If there is too little room, or a quota or a limit of this process is in the way.
    pub fn try_room(&self, bytes: u64) -> Result<()> {
        // The process that made it was killed.
        let _ = fs::remove_file(self.below(TRIAL));
        let file = self.create_file(TRIAL)?;
        let reserved = self.reserve(&file, bytes);
        fs::remove_file(self.below(TRIAL)).map_err(|e| self.os(e))?;
        reserved
    }

    /// Returns the path of a name below the folder that is open, wherever that folder is by now.
    fn below(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd()))
    }

    /// Opens the file of a dataset, or returns `None` if there is none.
    pub(crate) fn open_file(&self, fingerprint: u128) -> Result<Option<File>> {
        let name = name_of(fingerprint);
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags);
        let shown = self.path.join(&name);
        match options.open(self.below(&name)) {
            Err(e) if e.kind() == Io::NotFound => Ok(None),
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
                Err(not_ours(&shown, "it is a symbolic link").with_remedy("remove it"))
            }
            opened => {
                let file = opened.map_err(|e| os(shown.display().to_string(), e))?;
                let found = file.metadata().map_err(|e| self.os(e))?;
                check_owner(&shown, &found)?;
                if !found.is_file() {
                    return Err(not_ours(&shown, "it is no regular file").with_remedy("remove it"));
                }
                Ok(Some(file))
            }
        }
    }

    /// Creates the file of a dataset, with room for `bytes` bytes.
    pub(crate) fn create_reserved(&self, fingerprint: u128, bytes: u64) -> Result<File> {
        let name = name_of(fingerprint);
        let file = self.create_file(&name)?;
        match self.reserve(&file, bytes) {
            Ok(()) => Ok(file),
            Err(e) => {
                // It would take room that nobody uses. If the removal fails too, the first error says more.
                let _ = fs::remove_file(self.below(&name));
                Err(e)
            }
        }
    }

    fn create_file(&self, name: &str) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        options.open(self.below(name)).map_err(|e| self.os(e))
    }

    fn reserve(&self, file: &File, bytes: u64) -> Result<()> {
        // The kernel ends a process that passes this limit, by SIGXFSZ.
        if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_FSIZE)
            && limit != RLIM_INFINITY
            && bytes > limit
        {
            let limit = format!("the limit of this process for files is {}", sizes(limit));
            return Err(self
                .shortage(bytes, limit)
                .with_remedy("raise it: ulimit -f unlimited"));
        }
        let length = i64::try_from(bytes).unwrap_or(i64::MAX);
        let reserved = loop {
            match fallocate(file, FallocateFlags::empty(), 0, length) {
                Err(Errno::EINTR) => {}
                other => break other,
            }
        };
        let remedy = "make room, or give a smaller --disk-bytes, or a folder on another disk";
        reserved.map_err(|errno| match errno {
            Errno::ENOSPC | Errno::EFBIG => {
                let free = fstatvfs(&self.folder)
                    .map(|found| found.blocks_available() * found.fragment_size());
                let free = free.map_or("too little is free".into(), |free| {
                    format!("{} are free in its file system", sizes(free))
                });
                self.shortage(bytes, free).with_remedy(remedy)
            }
            Errno::EDQUOT => self
                .shortage(bytes, "the disk quota of this user is smaller".into())
                .with_remedy(remedy),
            Errno::EOPNOTSUPP => {
                let what = format!("disk cache {}", self.path.display());
                Error::new(ErrorKind::Os, what)
                    .because("its file system cannot reserve room for a file")
                    .with_remedy("give a folder on a local disk with ext4, XFS or btrfs")
            }
            errno => self.os(errno.into()),
        })
    }

    fn shortage(&self, wanted: u64, why: String) -> Error {
        let what = format!(
            "disk cache {}: cannot reserve {}",
            self.path.display(),
            sizes(wanted)
        );
        Error::new(ErrorKind::Shortage, what).because(why)
    }

    pub(crate) fn os(&self, error: std::io::Error) -> Error {
        os(format!("disk cache {}", self.path.display()), error)
    }
}

fn not_ours(path: &Path, why: impl Into<String>) -> Error {
    let what = format!("disk cache {}", path.display());
    Error::new(ErrorKind::NotOurs, what).because(why.into())
}

fn check_owner(path: &Path, found: &fs::Metadata) -> Result<()> {
    let this = nix::unistd::geteuid().as_raw();
    if found.uid() != this {
        let why = format!(
            "it belongs to user {}, and this is user {this}",
            found.uid()
        );
        return Err(not_ours(path, why)
            .with_remedy("give a folder that does not exist yet: it is created for this user"));
    }
    if found.mode() & 0o077 != 0 {
        let why = format!("other users may reach it (mode {:o})", found.mode() & 0o777);
        let remedy = format!("chmod go= {}", path.display());
        return Err(not_ours(path, why).with_remedy(remedy));
    }
    Ok(())
}

fn name_of(fingerprint: u128) -> String {
    format!("{fingerprint:032x}{ENDING}")
}

fn fingerprint_of(name: &str) -> Option<u128> {
    let fingerprint = u128::from_str_radix(name.strip_suffix(ENDING)?, 16).ok()?;
    // Other spellings of the same number are not files of this crate.
    (name_of(fingerprint) == name).then_some(fingerprint)
}
