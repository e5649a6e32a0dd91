//! The failure of one sample.

use coprep_protocol::message::{STORAGE_STAGE, SampleError};

/// The stage in which a preparation failed, and the reason.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) stage: &'static str,
    pub(crate) message: String,
    /// For user code: the worker, in words for people. Empty otherwise.
    pub(crate) worker: String,
    /// For user code: the exception, packed for the job. Empty otherwise.
    pub(crate) exception: Vec<u8>,
    /// `true` if the storage failed and not the sample, which must then not be left out.
    pub(crate) is_unavailable: bool,
}

impl Failure {
    pub(crate) fn new(stage: &'static str, message: String) -> Self {
        Failure {
            stage,
            message,
            worker: String::new(),
            exception: Vec::new(),
            is_unavailable: false,
        }
    }

    /// Returns the failure of a sample over which a thread panicked.
    pub(crate) fn defect() -> Self {
        let message = "a thread of the coordinator panicked over it: a defect of coprep, please report it with the \
                       coordinator's log";
        Failure::new("prepare", message.into())
    }

    /// Returns the failure of a sample over whose fetch a thread panicked.
    pub(super) fn defect_of_fetch() -> Self {
        Failure {
            stage: STORAGE_STAGE,
            is_unavailable: true,
            ..Failure::defect()
        }
    }

    /// Converts it into the error that jobs are sent.
    pub(crate) fn of_sample(self, tag: u64, id: u32, path: String) -> SampleError {
        SampleError {
            tag,
            id,
            path,
            stage: self.stage.into(),
            message: self.message,
            worker: self.worker,
            exception: self.exception,
        }
    }

    pub(super) fn fetch(error: coprep_pipeline::Error) -> Self {
        let is_unavailable = error.kind().is_unavailable();
        let stage = if is_unavailable {
            STORAGE_STAGE
        } else {
            "fetch"
        };
        Failure {
            is_unavailable,
            ..Failure::new(stage, error.to_string())
        }
    }

    pub(super) fn decode(error: coprep_pipeline::Error) -> Self {
        Failure::new("decode", error.to_string())
    }
}
