//! Location of the coordinator's socket, and checks of the files beside it.
//!
//! `COPREP_SOCKET` names the socket. Without it, the socket lies in a folder of the user's own:
//! `$XDG_RUNTIME_DIR/coprep`, or `/tmp/coprep-UID` if that variable names no folder. The folder has mode 0700 and must
//! belong to the user, because in `/tmp` anybody could have created it first. A folder that the user names may be
//! writable by others, so the files beside the socket are opened by [`open_private`] only.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// The reason why a file or folder beside the socket cannot be used. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else may use it, or may have put it there.
    NotPrivate,
    /// The operating system refused to make or open it.
    Os,
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

fn not_private(path: &Path, why: String) -> Error {
    Error::new(
        ErrorKind::NotPrivate,
        format!("cannot use {}", path.display()),
    )
    .because(why)
    .with_remedy("remove it, or name another socket in COPREP_SOCKET")
}

fn os(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Os, format!("cannot use {}", path.display())).because(error)
}

/// Paths of one coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorPaths {
    /// The socket that clients connect to.
    pub socket: PathBuf,
}

impl CoordinatorPaths {
    /// Returns the paths that the environment selects.
    #[must_use]
    pub fn from_env() -> Self {
        match std::env::var_os("COPREP_SOCKET") {
            Some(path) if !path.is_empty() => Self::at(PathBuf::from(path)),
            _ => Self::at(runtime_dir().join("coordinator.sock")),
        }
    }

    /// Returns the paths for a socket at an explicit path.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        CoordinatorPaths { socket }
    }

    /// Returns the path of the lock (`flock`) that the coordinator holds as long as it lives.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.with_suffix("lock")
    }

    /// Returns the path of the lock (`flock`) that a client holds while it starts the coordinator.
    #[must_use]
    pub fn start_lock(&self) -> PathBuf {
        self.with_suffix("starting")
    }

    /// Returns the path of the log of a coordinator that a job started.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.with_suffix("log")
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut path = self.socket.clone().into_os_string();
        path.push(".");
        path.push(suffix);
        path.into()
    }

    /// Creates the socket's folder, private to the user, or checks that it is private and can be entered.
    ///
    /// # Errors
    /// When the folder cannot be created or entered, or belongs to somebody else.
    pub fn prepare(&self) -> Result<()> {
        let folder = self
            .socket
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        if !folder.exists() {
            match DirBuilder::new().mode(0o700).recursive(true).create(folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(os(folder, e)),
                _ => {}
            }
        }
        check_private(folder)?;
        // Only in a folder that this user may enter can this be looked at.
        match std::fs::metadata(folder.join(".")) {
            // One that was removed meanwhile is made anew by the next attempt.
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(os(folder, e).with_remedy("name another socket in COPREP_SOCKET"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a socket of another user, which this user may not connect to.
    ///
    /// # Errors
    /// When it belongs to somebody else.
    pub fn check_socket(&self) -> Result<()> {
        match std::fs::symlink_metadata(&self.socket) {
            Ok(meta) if meta.uid() != user() => {
                let why = format!("it belongs to user {}, not to user {}", meta.uid(), user());
                Err(not_private(&self.socket, why))
            }
            _ => Ok(()),
        }
    }
}

fn runtime_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() && Path::new(&dir).is_dir() => {
            PathBuf::from(dir).join("coprep")
        }
        _ => PathBuf::from(format!("/tmp/coprep-{}", nix::unistd::getuid())),
    }
}

/// Refuses a folder that others could have created or may use. A folder that the user named is the user's choice.
fn check_private(folder: &Path) -> Result<()> {
    let in_tmp = folder.parent() == Some(Path::new("/tmp"))
        && (folder.file_name()).is_some_and(|name| name.as_encoded_bytes().starts_with(b"coprep-"));
    if !in_tmp && folder != runtime_dir() {
        return Ok(());
    }
    let meta = std::fs::symlink_metadata(folder).map_err(|e| os(folder, e))?;
    let me = user();
    if !meta.is_dir() || meta.uid() != me || meta.mode() & OTHERS != 0 {
        let why = format!("it is not a private folder of user {me} (mode 0700, no link)");
        return Err(not_private(folder, why));
    }
    Ok(())
}

/// Opens a file beside the socket for reading and writing, and creates it if it does not exist.
///
/// # Errors
/// When it cannot be opened, or is anything but a file that only this user may use. In a folder that others may write,
/// somebody could have put a link there, or a file that only looks like ours.
pub fn open_private(path: &Path) -> Result<File> {
    // O_NONBLOCK keeps the opening of a pipe from blocking.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags.bits());
    let not_private = || {
        let me = user();
        let why = format!(
            "it is not a file that only user {me} may use, and somebody may have put it there"
        );
        not_private(path, why)
    };
    let file = match options.open(path) {
        Err(e) if is_of_another_kind(&e, path) => return Err(not_private()),
        opened => opened.map_err(|e| os(path, e))?,
    };
    let meta = file.metadata().map_err(|e| os(path, e))?;
    // A file with a second name could be any file of this user, reached by a hard link.
    let is_private =
        meta.is_file() && meta.uid() == user() && meta.mode() & OTHERS == 0 && meta.nlink() <= 1;
    is_private.then_some(file).ok_or_else(not_private)
}

/// Permission bits of the group and of everybody else.
const OTHERS: u32 = 0o077;

fn user() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Returns `true` if an open failed because a link, a folder, a socket or another user's file is there.
fn is_of_another_kind(e: &io::Error, path: &Path) -> bool {
    use nix::errno::Errno;
    match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ELOOP | Errno::EISDIR | Errno::ENXIO) => true,
        // Without such an entry, EACCES means that no file can be created in this folder.
        Some(Errno::EACCES) => path.symlink_metadata().is_ok(),
        _ => false,
    }
}
