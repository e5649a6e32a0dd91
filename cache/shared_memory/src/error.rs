//! Errors of shared memory.

use std::error::Error as StdError;
use std::io;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of shared memory. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// More memory was requested than is available. Nothing was reserved.
    Shortage,
    /// A size or count is out of range.
    Invalid,
    /// The other side of a region broke its protocol, or passed a region of another kind.
    ProtocolViolation,
    /// The operating system refused a call.
    Os,
}

impl ErrorKind {
    /// Returns true if the error is a shortage of memory.
    #[must_use]
    pub fn is_shortage(self) -> bool {
        self == ErrorKind::Shortage
    }
}

pub(crate) fn invalid(
    context: impl Into<String>,
    why: impl Into<Box<dyn StdError + Send + Sync>>,
) -> Error {
    Error::new(ErrorKind::Invalid, context).because(why)
}

pub(crate) fn protocol_violation(
    context: impl Into<String>,
    why: impl Into<Box<dyn StdError + Send + Sync>>,
) -> Error {
    Error::new(ErrorKind::ProtocolViolation, context).because(why)
}

/// Returns the error of a refused call. It takes a `nix` error as well, whose own text has no words.
pub(crate) fn os(context: impl Into<String>, error: impl Into<io::Error>) -> Error {
    Error::new(ErrorKind::Os, context).because(error.into())
}
