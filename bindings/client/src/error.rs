//! Errors of the client.

use std::path::PathBuf;
use std::time::Duration;

use coprep_protocol::frame::FrameError;
use coprep_protocol::message::{Refusal, SampleError};

/// Reason for which the owner of a wait ends it. See [`InterruptCheck`](crate::InterruptCheck).
pub type Interrupt = Box<dyn std::error::Error + Send + Sync>;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error on the client's side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No coordinator is running, and none was to be started.
    #[error("no coordinator is running at {socket}: a job starts one, or run `coprep serve`")]
    Absent {
        /// Socket at which it was looked for.
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
    /// The coordinator refused a request.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// A sample could not be prepared. The rest of its batch still comes.
    #[error("{}", sample_failed(.0))]
    Sample(Box<SampleError>),
    /// A wait lasted longer than the limit.
    #[error("waited {:.1} s for {what}: {explanation}", .waited.as_secs_f64())]
    Timeout {
        /// Event that was awaited.
        what: &'static str,
        /// Time waited.
        waited: Duration,
        /// Explanation of the coordinator, which names the awaited party.
        explanation: String,
    },
    /// The object was used in a child of the process that made it.
    #[error(
        "this loader belongs to process {owner}, which forked this one: make a new loader after the fork"
    )]
    Forked {
        /// Process that made it.
        owner: u32,
    },
    /// The loader was used after it was closed.
    #[error("the loader is closed")]
    Closed,
    /// The owner's interrupt check ended the wait.
    #[error("interrupted: {0}")]
    Interrupted(Interrupt),
    /// Shared memory could not be mapped, or its contents are malformed.
    #[error(transparent)]
    Memory(#[from] coprep_shared_memory::Error),
    /// The coordinator sent a message that violates the protocol.
    #[error(
        "the coordinator violates the protocol: {0}. This is a defect of coprep, please report it; `coprep stop` ends the \
         coordinator, and jobs start a new one"
    )]
    ProtocolViolation(String),
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
    /// Replaces the explanation of a timeout by `explanation`, if there is one. Other errors stay as they are.
    pub(crate) fn explained(self, explanation: Option<String>) -> Self {
        match (self, explanation) {
            (Error::Timeout { what, waited, .. }, Some(explanation)) => Error::Timeout {
                what,
                waited,
                explanation,
            },
            (error, _) => error,
        }
    }

    /// Returns `true` if reconnecting may help.
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
