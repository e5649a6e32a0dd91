//! The messages between the coordinator and a fork server, which start and end workers.

use serde::{Deserialize, Serialize};

/// A request to a fork server.
#[derive(Serialize, Debug)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum ForkServerRequest {
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
        /// Seed of the stream, for a worker that makes samples only to be compared
        /// ([`remake`](crate::code::remake)).
        #[serde(skip_serializing_if = "Option::is_none")]
        seed: Option<u64>,
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
    /// The fork server runs and has the dataset. The first event, and it comes without a request. A descriptor of the
    /// process (pidfd) comes with it.
    Ready {
        /// Process id of the fork server.
        pid: u32,
        /// Length of the dataset.
        samples: u64,
    },
    /// A worker runs. Its socket and a descriptor of the process (pidfd) came with the message.
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
