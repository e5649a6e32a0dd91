//! Errors of the sample cache.

use std::io;

use coprep_shared_memory::ErrorKind as MemoryErrorKind;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error: its [`kind`](Error::kind), and the operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("{context}: {kind}")]
pub struct Error {
    context: String,
    #[source]
    kind: ErrorKind,
}

/// The reason for an [`Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The memory of the cache could not be obtained.
    #[error(transparent)]
    Memory(MemoryErrorKind),
    /// A size or a name is not valid.
    #[error("{0}")]
    Invalid(String),
    /// Another live coordinator uses the named segment.
    #[error("in use by another coordinator: stop that one, or choose another name")]
    InUse,
    /// The named segment holds another dataset, or the same dataset prepared in another way.
    #[error("it holds samples of another dataset: remove it, or choose another name")]
    OtherData,
    /// The named segment belongs to another user, or other users may write it.
    #[error("{0}")]
    NotOurs(String),
    /// The operating system refused a call.
    #[error("{0}")]
    Os(#[from] io::Error),
}

impl Error {
    pub(crate) fn new(context: impl Into<String>, kind: ErrorKind) -> Self {
        Error {
            context: context.into(),
            kind,
        }
    }

    pub(crate) fn invalid(context: impl Into<String>, why: impl Into<String>) -> Self {
        Error::new(context, ErrorKind::Invalid(why.into()))
    }

    pub(crate) fn os(context: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Error::new(context, ErrorKind::Os(error.into()))
    }

    /// Returns the reason for the error.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns true if the error is a shortage of memory.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(&self.kind, ErrorKind::Memory(kind) if kind.is_shortage())
    }
}

impl From<coprep_shared_memory::Error> for Error {
    fn from(error: coprep_shared_memory::Error) -> Self {
        let (context, kind) = error.into_parts();
        Error::new(context, ErrorKind::Memory(kind))
    }
}
