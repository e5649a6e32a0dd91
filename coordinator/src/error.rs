//! Errors that a client can be told, and how it is told.

use std::sync::Arc;

use coprep_protocol::message::{Refusal, RefusalKind, SampleError};

/// An error of the coordinator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client asked for something that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A dataset or a pipeline is not usable.
    #[error(transparent)]
    Pipeline(#[from] coprep_pipeline::Error),
    /// Shared memory is too small or cannot be obtained.
    #[error("{0}{settings}", settings = settings(.0.is_shortage()))]
    Memory(#[from] coprep_shared_memory::Error),
    /// A cache cannot be opened, or a named segment cannot be used.
    #[error("{0}{settings}", settings = settings(.0.is_shortage()))]
    Cache(#[from] coprep_cache::Error),
    /// The job does not fit its stream.
    #[error(transparent)]
    Attach(#[from] coprep_scheduler::AttachError),
    /// The jobs' own code cannot be run.
    #[error("{0}")]
    Code(String),
    /// The jobs' own code failed on the first samples.
    #[error("sample {} failed: {}", .0.id, .0.message)]
    Sample(Box<SampleError>),
    /// A thread panicked.
    #[error("a defect of coprep, please report it with the coordinator's log: {0}")]
    Defect(&'static str),
    /// The process that runs the jobs' own code was killed.
    #[error(
        "the process that runs the dataset's code {how}{}, while it was {doing}: if it was killed for want of memory, give \
         the job or its container more; else its output in the coordinator's log says what happened",
        times(*.attempts)
    )]
    ForkServerKilled {
        /// How the process ended.
        how: String,
        /// The step that it was doing.
        doing: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// Something takes longer than its limit.
    #[error("{0}")]
    Late(String),
    /// An error that several clients are told.
    #[error("{0}")]
    Shared(Arc<Error>),
    /// The socket, a lock or a thread failed.
    #[error("{what}: {source}")]
    Io {
        /// The action that was tried.
        what: String,
        /// The reason why it failed.
        source: std::io::Error,
    },
}

/// Returns the settings that decide how much memory is asked for, if the error is a shortage of memory.
fn settings(is_shortage: bool) -> &'static str {
    if !is_shortage {
        return "";
    }
    ". The staging area depends on batch_size and COPREP_STAGING (coprep serve --staging), a cache on cache_bytes and \
     COPREP_CACHE (coprep serve --cache)"
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

fn times(attempts: u32) -> String {
    match attempts {
        0 | 1 => String::new(),
        many => format!(" in each of {many} attempts"),
    }
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Error::Io {
            what: what.into(),
            source: source.into(),
        }
    }

    /// Returns `true` if anybody who tries the same would fail in the same way, so that nobody else needs to try.
    pub(crate) fn is_everybodys(&self) -> bool {
        match self {
            Error::Pipeline(_) | Error::ForkServerKilled { .. } => true,
            Error::Shared(error) => error.is_everybodys(),
            _ => false,
        }
    }

    /// Returns the error as a refusal for the client.
    pub(crate) fn refusal(&self) -> Refusal {
        if let Error::Shared(error) = self {
            return error.refusal();
        }
        let kind = match self {
            Error::Invalid(_) | Error::Attach(_) => RefusalKind::Invalid,
            Error::Pipeline(e) if e.is_not_found() => RefusalKind::NotFound,
            Error::Pipeline(_) => RefusalKind::Invalid,
            Error::Memory(_) | Error::Cache(_) => RefusalKind::Memory,
            Error::Code(_) | Error::Sample(_) | Error::ForkServerKilled { .. } => RefusalKind::Code,
            Error::Late(_) => RefusalKind::Late,
            Error::Io { .. } | Error::Shared(_) | Error::Defect(_) => RefusalKind::Internal,
        };
        let sample = match self {
            Error::Sample(sample) => Some(sample.clone()),
            _ => None,
        };
        Refusal {
            kind,
            message: self.to_string(),
            sample,
        }
    }
}
