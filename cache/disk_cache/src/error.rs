//! Errors of the disk cache.

use std::io;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the disk cache. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file system has too little room, or does not give it to this user.
    Shortage,
    /// Another live coordinator uses the folder.
    InUse,
    /// The folder or a file belongs to another user, or other users may reach it.
    NotOurs,
    /// A size is not valid.
    Invalid,
    /// The operating system refused a call.
    Os,
}

impl From<coprep_cache::ErrorKind> for ErrorKind {
    fn from(_: coprep_cache::ErrorKind) -> Self {
        // The layout is all that is used of that crate, and it fails only on a size.
        ErrorKind::Invalid
    }
}

pub(crate) fn os(context: impl Into<String>, error: impl Into<io::Error>) -> Error {
    Error::new(ErrorKind::Os, context).because(error.into())
}
