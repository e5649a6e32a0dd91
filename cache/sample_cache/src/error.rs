//! Errors of the sample cache.

use coprep_shared_memory::ErrorKind as MemoryErrorKind;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the sample cache. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The memory of the cache could not be obtained.
    Memory(MemoryErrorKind),
    /// A size or a name is not valid.
    Invalid,
    /// Another live coordinator uses the named segment.
    InUse,
    /// The named segment holds another dataset, or the same dataset prepared in another way.
    OtherData,
    /// The named segment belongs to another user, or other users may write it.
    NotOurs,
    /// The operating system refused a call.
    Os,
}

impl ErrorKind {
    /// Returns true if the error is a shortage of memory.
    #[must_use]
    pub fn is_shortage(self) -> bool {
        matches!(self, ErrorKind::Memory(kind) if kind.is_shortage())
    }
}

impl From<MemoryErrorKind> for ErrorKind {
    fn from(kind: MemoryErrorKind) -> Self {
        ErrorKind::Memory(kind)
    }
}
