//! Errors that a client can be told, and how it is told.

use coprep_protocol::message::{Refusal, RefusalKind, SampleError};

/// An error of the coordinator. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The class of an [`Error`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The client asked for something that makes no sense, or that does not fit its stream.
    Invalid,
    /// A dataset or a pipeline is not usable.
    Pipeline(coprep_pipeline::ErrorKind),
    /// There is too little shared memory.
    Shortage,
    /// Shared memory cannot be obtained, or a cache cannot be opened, for another reason.
    Memory,
    /// The jobs' own code cannot be run.
    Code,
    /// The jobs' own code failed on the first samples.
    Sample(Box<SampleError>),
    /// A thread panicked.
    Defect,
    /// The process that runs the jobs' own code was killed.
    ForkServerKilled,
    /// Something takes longer than its limit.
    Late,
    /// The socket, a lock or a thread failed.
    Os,
}

impl From<coprep_scheduler::ErrorKind> for ErrorKind {
    fn from(_: coprep_scheduler::ErrorKind) -> Self {
        ErrorKind::Invalid
    }
}

impl From<coprep_pipeline::ErrorKind> for ErrorKind {
    fn from(kind: coprep_pipeline::ErrorKind) -> Self {
        ErrorKind::Pipeline(kind)
    }
}

impl From<coprep_storage::ErrorKind> for ErrorKind {
    fn from(kind: coprep_storage::ErrorKind) -> Self {
        ErrorKind::Pipeline(kind.into())
    }
}

impl From<coprep_shared_memory::ErrorKind> for ErrorKind {
    fn from(kind: coprep_shared_memory::ErrorKind) -> Self {
        ErrorKind::of_memory(kind.is_shortage())
    }
}

impl From<coprep_cache::ErrorKind> for ErrorKind {
    fn from(kind: coprep_cache::ErrorKind) -> Self {
        ErrorKind::of_memory(kind.is_shortage())
    }
}

impl From<coprep_disk_cache::ErrorKind> for ErrorKind {
    fn from(_: coprep_disk_cache::ErrorKind) -> Self {
        // Its remedies name the settings of the disk, and those of memory would not help.
        ErrorKind::Os
    }
}

impl From<coprep_protocol::paths::ErrorKind> for ErrorKind {
    fn from(_: coprep_protocol::paths::ErrorKind) -> Self {
        ErrorKind::Os
    }
}

/// The settings that decide how much memory is asked for.
const SETTINGS: &str = "the staging area depends on batch_size and COPREP_STAGING (coprep serve --staging), a cache on \
                        cache_bytes and COPREP_CACHE (coprep serve --cache)";

/// Converts an error of a lower crate, whose remedies know nothing of the coordinator's settings.
pub(crate) fn from_lower<L>(lower: coprep_error::Error<L>) -> Error
where
    ErrorKind: From<L>,
{
    with_settings(Error::from_lower(lower))
}

/// Adds the settings that help, if the error is a shortage of memory.
fn with_settings(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Shortage => error.with_remedy(SETTINGS),
        _ => error,
    }
}

pub(crate) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

pub(crate) fn code_failed(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Code, what)
}

/// Returns the error that the jobs' own code failed on a sample.
pub(crate) fn sample_failed(sample: SampleError) -> Error {
    let what = format!("sample {} failed", sample.id);
    let why = sample.message.clone();
    Error::new(ErrorKind::Sample(Box::new(sample)), what).because(why)
}

/// Returns the error that a thread panicked.
pub(crate) fn defect(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Defect, what)
        .with_remedy("this is a defect of coprep: please report it with the coordinator's log")
}

/// Returns the error that each of several processes that ran the jobs' own code was killed.
pub(crate) fn fork_server_killed(how: &str, doing: &str) -> Error {
    Error::new(
        ErrorKind::ForkServerKilled,
        format!("the process that runs the dataset's code {how} before it was able {doing}"),
    )
    .with_remedy(
        "if it was killed for want of memory, give the job or its container more; else its output says what happened",
    )
}

/// Returns the error of a refused call of the operating system. It takes a `nix` error as well, whose own text has no
/// words.
pub(crate) fn os(context: impl Into<String>, error: impl Into<std::io::Error>) -> Error {
    Error::new(ErrorKind::Os, context).because(error.into())
}

impl ErrorKind {
    fn of_memory(is_shortage: bool) -> Self {
        if is_shortage {
            ErrorKind::Shortage
        } else {
            ErrorKind::Memory
        }
    }

    /// Returns `true` if anybody who tries the same would fail in the same way, so that nobody else needs to try.
    pub(crate) fn is_everybodys(&self) -> bool {
        matches!(self, ErrorKind::Pipeline(_) | ErrorKind::ForkServerKilled)
    }

    /// Returns `true` if a store does not answer, or refuses.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, ErrorKind::Pipeline(kind) if kind.is_unavailable())
    }

    fn of_refusal(&self) -> RefusalKind {
        match self {
            ErrorKind::Pipeline(kind) if kind.is_not_found() => RefusalKind::NotFound,
            ErrorKind::Pipeline(kind) if kind.is_unavailable() => RefusalKind::Storage,
            ErrorKind::Invalid | ErrorKind::Pipeline(_) => RefusalKind::Invalid,
            ErrorKind::Shortage | ErrorKind::Memory => RefusalKind::Memory,
            ErrorKind::Code | ErrorKind::Sample(_) | ErrorKind::ForkServerKilled => {
                RefusalKind::Code
            }
            ErrorKind::Late => RefusalKind::Late,
            ErrorKind::Os | ErrorKind::Defect => RefusalKind::Internal,
        }
    }
}

/// Returns the error as a refusal for the client.
pub(crate) fn refusal(error: &Error) -> Refusal {
    let sample = match error.kind() {
        ErrorKind::Sample(sample) => Some(sample.clone()),
        _ => None,
    };
    Refusal {
        kind: error.kind().of_refusal(),
        message: error.to_string(),
        sample,
    }
}
