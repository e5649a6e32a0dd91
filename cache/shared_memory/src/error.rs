//! Errors of shared memory.

use std::io;

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
    /// More memory was requested than is available. Nothing was reserved.
    #[error(
        "{wanted_size} wanted, {had_size} to be had ({source_of_limit}): {remedy}",
        wanted_size = sizes(*.wanted),
        had_size = sizes(*.had)
    )]
    Shortage {
        /// Bytes requested.
        wanted: u64,
        /// Bytes available.
        had: u64,
        /// The limit that was reached, in words.
        source_of_limit: String,
        /// Advice for the user.
        remedy: String,
    },
    /// A size or count is out of range.
    #[error("{0}")]
    Invalid(String),
    /// The other side of a region broke its protocol, or passed a region of another kind.
    #[error("{0}")]
    Misbehaved(String),
    /// The operating system refused a call.
    #[error("{0}")]
    Os(#[from] io::Error),
}

/// Formats a size for a person, such as `2.9 GiB`.
fn sizes(bytes: u64) -> String {
    let unit = (bytes.max(1).ilog2() / 10).min(4) as usize;
    match unit {
        0 => format!("{bytes} bytes"),
        _ => {
            let name = ["", "KiB", "MiB", "GiB", "TiB"][unit];
            format!("{:.1} {name}", bytes as f64 / (1u64 << (10 * unit)) as f64)
        }
    }
}

impl ErrorKind {
    /// Returns true if the error is a shortage of memory.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self, ErrorKind::Shortage { .. })
    }
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

    pub(crate) fn misbehaved(context: impl Into<String>, why: impl Into<String>) -> Self {
        Error::new(context, ErrorKind::Misbehaved(why.into()))
    }

    pub(crate) fn os(context: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Error::new(context, ErrorKind::Os(error.into()))
    }

    /// Returns the reason for the error.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Splits the error into the operation that failed and the reason, for an error of another crate that has both.
    #[must_use]
    pub fn into_parts(self) -> (String, ErrorKind) {
        (self.context, self.kind)
    }

    /// Returns true if the error is a shortage of memory.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        self.kind.is_shortage()
    }
}
