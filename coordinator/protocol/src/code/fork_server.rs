//! The messages that start and end processes: between the coordinator and a zygote, and between it and a fork server.

use serde::{Deserialize, Serialize};

/// A request to a zygote.
#[derive(Serialize, Debug)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ZygoteRequest<'a> {
    /// Import the modules that fork servers will need. There is no answer: a fork server that cannot import them
    /// reports why.
    Import {
        /// See [`UserCode::prelude`](crate::message::UserCode::prelude).
        prelude: &'a str,
    },
    /// Start a fork server. Its end of its socket comes with the message. Answered by [`ZygoteEvent::Exited`] or
    /// [`ZygoteEvent::Failed`].
    ForkServer {
        /// Number of the fork server, never used before.
        number: u32,
        /// Modules that the fork server will need, imported before it is forked.
        prelude: &'a str,
        /// `true` if the fork server begins as a new process that imports its modules by itself.
        anew: bool,
    },
    /// End a fork server. Answered by [`ZygoteEvent::Exited`].
    Kill {
        /// Number of the fork server.
        number: u32,
    },
}

/// An event reported by a zygote.
#[derive(Deserialize, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum ZygoteEvent {
    /// A fork server has ended and was reaped.
    Exited {
        /// Number of the fork server.
        number: u32,
        /// Exit status in the form of `wait(2)`.
        status: i32,
    },
    /// A fork server could not be started.
    Failed {
        /// Number of the fork server.
        number: u32,
        /// Reason, for people.
        message: String,
    },
}

/// A request to a fork server.
#[derive(Serialize, Debug)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum ForkServerRequest {
    /// Load the dataset from the descriptor. Answered by [`ForkServerEvent::Loaded`].
    Load,
    /// Start a worker. Answered by [`ForkServerEvent::Forked`].
    Fork {
        /// Number of the worker, never used before.
        worker: u32,
        /// Id that user code sees in the worker, 0 to `workers` - 1.
        id: u32,
        /// Number of workers that there will be.
        workers: u32,
        /// Number of descriptors of scratch files that come with the message. If the worker makes samples, the
        /// descriptor of its task table of [`ENTRIES`](crate::code::ENTRIES) entries comes before them.
        scratch: u32,
        /// `true` if the task table's descriptor comes.
        task_table: bool,
    },
    /// Map the staging area, whose descriptor comes with the message, for workers that are started later. Answered by
    /// [`ForkServerEvent::Mapped`].
    Map {
        /// Number of staging buffers.
        buffers: u32,
        /// Samples of one buffer.
        slots: u32,
        /// Bytes from one buffer to the next.
        stride: u64,
        /// Bytes from the start of a buffer to each field.
        offsets: Vec<u64>,
        /// Bytes of the field for values of no fixed size; 0 if there is no such field.
        blob: u64,
        /// Structure that a worker reported for its sample, in hexadecimal digits.
        structure: String,
        /// Seed from which all random numbers are derived.
        seed: u64,
    },
    /// Unmap the staging area: no worker needs it any more.
    Unmap,
    /// End a worker. Answered by [`ForkServerEvent::Exited`].
    Kill {
        /// Number of the worker.
        worker: u32,
    },
}

/// An event reported by a fork server.
#[derive(Deserialize, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum ForkServerEvent {
    /// The dataset has been loaded.
    Loaded {
        /// Length of the dataset.
        samples: u64,
    },
    /// A worker runs. Its socket came with the message.
    Forked {
        /// Number of the worker.
        worker: u32,
        /// Process id of the worker.
        pid: u32,
    },
    /// The staging area is mapped.
    Mapped,
    /// A worker has ended and was reaped.
    Exited {
        /// Number of the worker.
        worker: u32,
        /// Way in which it ended, for people: "was killed by signal 9", "exited with status 3".
        how: String,
    },
    /// A request could not be carried out.
    Failed {
        /// Number of the worker that the request was about, if it was about one.
        worker: Option<u32>,
        /// Message for users: the operation that failed, the reason and the remedy.
        message: String,
    },
}
