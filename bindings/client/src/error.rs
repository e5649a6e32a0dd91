//! Errors of the client.

use std::path::Path;
use std::time::Duration;

use coprep_protocol::frame;
use coprep_protocol::message::{Refusal, RefusalKind, SampleError};
use coprep_protocol::paths;

/// Reason for which the owner of a wait ends it. See [`InterruptCheck`](crate::InterruptCheck).
pub type Interrupt = Box<dyn std::error::Error + Send + Sync>;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error on the client's side. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No coordinator is running, and none was to be started.
    Absent,
    /// A coordinator could not be started.
    Start,
    /// The connection ended. A loader reconnects by itself.
    Disconnected,
    /// The other side is not this version of coprep, or belongs to another user.
    UntrustedPeer,
    /// The coordinator refused a request. The context is its message, with the remedy.
    Refused(RefusalKind),
    /// A sample could not be prepared. The rest of its batch still comes.
    Sample(Box<SampleError>),
    /// The user's code that makes credentials of a store has failed. The source is its failure.
    Credentials,
    /// A wait lasted longer than the limit. The source is an explanation that names the awaited party.
    Timeout,
    /// The object was used in a child of the process that made it.
    Forked,
    /// The loader was used after it was closed.
    Closed,
    /// The owner's interrupt check ended the wait. The source is its reason.
    Interrupted,
    /// The job's GPU cannot be used, or failed.
    Device(coprep_device::ErrorKind),
    /// Shared memory could not be mapped, or its contents are malformed.
    Memory(coprep_shared_memory::ErrorKind),
    /// The coordinator sent a message that violates the protocol.
    ProtocolViolation,
    /// The job's own code has to be started, which only a thread of the job itself may do.
    WrongThread,
    /// An argument is wrong.
    Invalid,
}

impl ErrorKind {
    /// Returns `true` if reconnecting may help.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self == ErrorKind::Disconnected
    }
}

impl From<coprep_shared_memory::ErrorKind> for ErrorKind {
    fn from(kind: coprep_shared_memory::ErrorKind) -> Self {
        ErrorKind::Memory(kind)
    }
}

impl From<coprep_device::ErrorKind> for ErrorKind {
    fn from(kind: coprep_device::ErrorKind) -> Self {
        ErrorKind::Device(kind)
    }
}

impl From<frame::ErrorKind> for ErrorKind {
    fn from(kind: frame::ErrorKind) -> Self {
        match kind {
            frame::ErrorKind::Closed | frame::ErrorKind::Io(_) => ErrorKind::Disconnected,
            frame::ErrorKind::TooLong => ErrorKind::Invalid,
            _ => ErrorKind::UntrustedPeer,
        }
    }
}

impl From<paths::ErrorKind> for ErrorKind {
    fn from(_: paths::ErrorKind) -> Self {
        ErrorKind::Start
    }
}

/// The message for users about a coordinator that could not be started.
const NOT_STARTED: &str = "cannot start the coordinator";
/// The message for users about a lost connection.
const GONE: &str = "the coordinator is gone";

pub(crate) fn absent(socket: &Path) -> Error {
    Error::new(
        ErrorKind::Absent,
        format!("no coordinator is running at {}", socket.display()),
    )
    .with_remedy("a job starts one, or run `coprep serve`")
}

pub(crate) fn not_started(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Start, NOT_STARTED).because(why.into())
}

/// Returns the error of a coordinator that is not started because a file or folder of it cannot be used.
pub(crate) fn no_place(error: paths::Error) -> Error {
    Error::from_lower(error).within(NOT_STARTED)
}

pub(crate) fn disconnected(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Disconnected, GONE).because(why.into())
}

/// Converts the error of a message that could not be sent or received.
pub(crate) fn from_frame(error: frame::Error) -> Error {
    let error = Error::from_lower(error);
    if error.kind().is_lost() {
        error.within(GONE)
    } else {
        error
    }
}

/// Returns the error of a request that the coordinator refused.
pub(crate) fn refused(refusal: Refusal) -> Error {
    match refusal.sample {
        Some(sample) => sample_failed(*sample),
        None => Error::new(ErrorKind::Refused(refusal.kind), refusal.message),
    }
}

pub(crate) fn sample_failed(error: SampleError) -> Error {
    let SampleError {
        id,
        path,
        stage,
        worker,
        ..
    } = &error;
    let what = match worker.as_str() {
        "" => format!("sample {id} ({path}) failed in stage {stage}"),
        worker => format!("sample {id} failed in {stage}, in worker {worker}"),
    };
    let why = error.message.clone();
    Error::new(ErrorKind::Sample(Box::new(error)), what).because(why)
}

/// Returns the error of user code that makes no credentials.
pub fn not_given(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(
        ErrorKind::Credentials,
        "the credential_provider gives no credentials",
    )
    .because(why)
    .with_remedy("call it by itself in the job's process, and see what it returns")
}

/// Returns the error of a wait that was too long. `explanation` names the awaited party.
pub(crate) fn timed_out(what: &str, waited: Duration, explanation: String) -> Error {
    let seconds = waited.as_secs_f64();
    Error::new(
        ErrorKind::Timeout,
        format!("waited {seconds:.1} s for {what}"),
    )
    .because(explanation)
}

/// Replaces the explanation of a timeout by `explanation`, if there is one. Other errors stay as they are.
pub(crate) fn explained(error: Error, explanation: Option<String>) -> Error {
    match explanation {
        Some(explanation) if *error.kind() == ErrorKind::Timeout => error.because(explanation),
        _ => error,
    }
}

/// Returns the error of an object of process `owner` that a child of it uses.
pub(crate) fn forked(owner: u32) -> Error {
    Error::new(
        ErrorKind::Forked,
        format!("this loader belongs to process {owner}, which forked this one"),
    )
    .with_remedy("make a new loader after the fork")
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the loader is closed")
}

/// Returns the error of a GPU, or a call of its driver, that does not answer.
pub(crate) fn gpu_hangs(gpu: u32, waited: Duration) -> Error {
    let kind = ErrorKind::Device(coprep_device::ErrorKind::Timeout);
    let seconds = waited.as_secs_f64();
    Error::new(kind, format!("GPU {gpu} does not get on with a batch"))
        .because(format!("not done after {seconds:.1} s"))
        .with_remedy("look for Xid messages of the driver in dmesg, and start the process again")
}

pub(crate) fn gpu_thread_ended() -> Error {
    let kind = ErrorKind::Device(coprep_device::ErrorKind::Fault);
    Error::new(kind, "the thread that copies batches to the GPU has ended")
        .with_remedy("make a new loader")
}

pub(crate) fn interrupted(why: Interrupt) -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted").because(why)
}

pub(crate) fn violation(what: impl Into<String>) -> Error {
    Error::new(
        ErrorKind::ProtocolViolation,
        "the coordinator violates the protocol",
    )
    .because(what.into())
    .with_remedy(
        "this is a defect of coprep, please report it; `coprep stop` ends the coordinator, and jobs start a new one",
    )
}

pub(crate) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
