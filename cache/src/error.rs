//! What can go wrong with shared memory.

use std::io;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A [`kind`](Error::kind), and what was being done.
#[derive(Debug, thiserror::Error)]
#[error("{context}: {kind}")]
pub struct Error {
    context: String,
    #[source]
    kind: ErrorKind,
}

/// Why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// More was wanted than there is. Nothing was taken.
    #[error(
        "{wanted_size} wanted, {had_size} to be had ({source_of_limit}): {remedy}",
        wanted_size = sizes(*.wanted),
        had_size = sizes(*.had)
    )]
    Memory {
        /// Bytes wanted.
        wanted: u64,
        /// Bytes that could be had.
        had: u64,
        /// What sets the limit.
        source_of_limit: String,
        /// What helps.
        remedy: String,
    },
    /// A size or count that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The other side of a region wrote what its protocol forbids, or passed a region of another kind.
    #[error("{0}")]
    Misbehaved(String),
    /// A named segment is used by another coordinator that lives.
    #[error("in use by another coordinator: stop that one, or choose another name")]
    InUse,
    /// A named segment holds another dataset, or the same prepared in another way.
    #[error("it holds samples of another dataset: remove it, or choose another name")]
    OtherData,
    /// A named segment belongs to somebody else, or others may write it.
    #[error("{0}")]
    NotOurs(String),
    /// The operating system refused.
    #[error("{0}")]
    Os(#[from] io::Error),
}

/// Returns a size for a person: `2.9 GiB`.
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

    /// Why.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// True when memory was short.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self.kind, ErrorKind::Memory { .. })
    }
}
