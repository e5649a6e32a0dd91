//! Errors of storage, of three kinds; see the crate.

use std::fmt::Display;

/// A failure to list or to read. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file, folder or object does not exist.
    NotFound,
    /// A file or object exists but cannot be read.
    Read,
    /// An object is not the one that was listed.
    Changed,
    /// The store does not answer, or refuses every request.
    Unavailable,
    /// A URL or a key cannot be used.
    Invalid,
}

/// Returns the error of a file or folder that cannot be read.
pub(crate) fn unreadable(what: impl Display, source: std::io::Error) -> Error {
    let kind = match source.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Read,
    };
    Error::new(kind, format!("{what} cannot be read")).because(source)
}

/// Returns the error of an object that is not the one that was listed. `how` completes a sentence about it.
pub(crate) fn changed(what: impl Display, how: &str) -> Error {
    Error::new(ErrorKind::Changed, format!("{what} {how}"))
        .with_remedy("a dataset in use must not change")
}

/// Returns the error of an object that is longer than an object may be.
pub(crate) fn too_long(what: impl Display, most: u64) -> Error {
    let why = format!("it has more than {most} bytes, the most that a sample may have");
    Error::new(ErrorKind::Read, format!("{what} cannot be read")).because(why)
}
