//! Where the coordinator is found.
//!
//! `COPREP_SOCKET` names the socket; else it lies in a folder of the user's own:
//! `$XDG_RUNTIME_DIR/coprep`, or `/tmp/coprep-UID` where there is none. The folder has mode 0700 and must
//! belong to the user: in `/tmp` anybody could have made it first.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Paths of one coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The socket clients connect to.
    pub socket: PathBuf,
}

impl Place {
    /// As the environment says.
    #[must_use]
    pub fn from_env() -> Self {
        match std::env::var_os("COPREP_SOCKET") {
            Some(path) if !path.is_empty() => Self::at(PathBuf::from(path)),
            _ => Self::at(runtime_dir().join("coordinator.sock")),
        }
    }

    /// At an explicit path.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Place { socket }
    }

    /// Held (`flock`) by the coordinator as long as it lives.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.with_suffix("lock")
    }

    /// Held (`flock`) by a client while it starts the coordinator.
    #[must_use]
    pub fn start_lock(&self) -> PathBuf {
        self.with_suffix("starting")
    }

    /// Where a coordinator that was started by a job writes its log.
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

    /// Makes the socket's folder, private to the user, or checks that it is.
    ///
    /// # Errors
    /// When it cannot be made, or belongs to somebody else.
    pub fn prepare(&self) -> io::Result<()> {
        let folder = self
            .socket
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        if !folder.exists() {
            match DirBuilder::new().mode(0o700).recursive(true).create(folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        check_owner(folder)
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

fn check_owner(folder: &Path) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(folder)?;
    let me = nix::unistd::getuid().as_raw();
    if folder.starts_with("/tmp/coprep-")
        && (meta.uid() != me || !meta.is_dir() || meta.mode() & 0o077 != 0)
    {
        return Err(io::Error::other(format!(
            "{} is not a private folder of user {me}: remove it, or name another socket in COPREP_SOCKET",
            folder.display()
        )));
    }
    Ok(())
}
