//! What can go wrong at the client's side.

use std::path::PathBuf;
use std::time::Duration;

use coprep_protocol::frame::FrameError;
use coprep_protocol::message::{Refusal, SampleError};

use crate::timeout::Interrupt;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong at the client's side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody listens, and none was to be started.
    #[error("no coordinator is running at {socket}: a job starts one, or run `coprep serve`")]
    Absent {
        /// Where it was looked for.
        socket: PathBuf,
    },
    /// A coordinator could not be started.
    #[error("cannot start the coordinator: {0}")]
    Start(String),
    /// The connection ended. A loader reconnects by itself.
    #[error("the coordinator is gone: {0}")]
    Disconnected(String),
    /// The other side is not this version of coprep, or belongs to another user.
    #[error("{0}")]
    UntrustedPeer(String),
    /// The coordinator said no.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// A sample could not be prepared. The rest of its batch still comes.
    #[error("{}", sample_failed(.0))]
    Sample(Box<SampleError>),
    /// A wait lasted longer than the limit.
    #[error("waited {:.1} s for {what}: {explanation}", .waited.as_secs_f64())]
    Timeout {
        /// For what.
        what: &'static str,
        /// How long.
        waited: Duration,
        /// Who is awaited, as the coordinator explains it.
        explanation: String,
    },
    /// Used in a child of the process that made it.
    #[error(
        "this loader belongs to process {owner}, which forked this one: make a new loader after the fork"
    )]
    Forked {
        /// Process that made it.
        owner: u32,
    },
    /// Used after it was closed.
    #[error("the loader is closed")]
    Closed,
    /// The owner's pulse ended the wait.
    #[error("interrupted: {0}")]
    Interrupted(Interrupt),
    /// Shared memory could not be mapped, or its contents make no sense.
    #[error(transparent)]
    Memory(#[from] coprep_cache::Error),
    /// The coordinator said what it must not.
    #[error("the coordinator makes no sense: {0}")]
    Misbehaved(String),
    /// An argument is wrong.
    #[error("{0}")]
    Invalid(String),
}

fn sample_failed(error: &SampleError) -> String {
    let SampleError {
        id,
        path,
        stage,
        message,
        worker,
        ..
    } = error;
    match worker.as_str() {
        "" => format!("sample {id} ({path}) failed in stage {stage}: {message}"),
        worker => format!("sample {id} failed in {stage}, in worker {worker}: {message}"),
    }
}

impl Error {
    /// A timeout with a better explanation, if there is one.
    pub(crate) fn explained(self, why: Option<String>) -> Self {
        match (self, why) {
            (Error::Timeout { what, waited, .. }, Some(explanation)) => Error::Timeout {
                what,
                waited,
                explanation,
            },
            (error, _) => error,
        }
    }

    /// True when reconnecting may help.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Disconnected(_))
    }
}

impl From<FrameError> for Error {
    fn from(e: FrameError) -> Self {
        match e {
            FrameError::Closed | FrameError::Io(_) => Error::Disconnected(e.to_string()),
            FrameError::TooLong(_) => Error::Invalid(e.to_string()),
            other => Error::UntrustedPeer(other.to_string()),
        }
    }
}
