//! The coordinator: fetches each sample once, prepares each minibatch once, hands it to every job.
//!
//! Layers, each of which uses only the layers below it:
//!
//! * [`server`]: the socket, signals, idle exit, and the session of each connection.
//! * [`registry`]: the datasets, caches and streams that are open; warming a cache before jobs come; the status.
//! * [`stream`]: jobs that share a pipeline, their scheduler and their staging area.
//! * [`produce`]: the threads and processes that make samples.
//! * [`caches`]: the caches of datasets.
//! * [`observe`]: the costs of samples and the causes of stalls.
//! * [`device`]: shared uploads to GPUs.
//! * [`connection`]: the process at the other end of a connection, and replies to it.
//! * [`settings`], [`error`], [`failpoints`].
//!
//! **Invariants.** No user code runs in this process. No thread waits for a job: a job that stops reading is not given
//! more. Everything that a job holds is released by dropping what its session owns, so leaving, dying and misbehaving
//! share one way out.
//!
//! **A thread that panics ends only the things it owned**, as if the owner had died. A session ends its connection, a worker
//! its sample, the thread of a worker process that process, and a driver its stream. A stream whose lock was held is
//! broken off, because its state may be half changed. A panic of the main thread, or of the pool outside of a sample,
//! ends the coordinator in good order.
#![forbid(unsafe_code)]

mod caches;
mod connection;
mod device;
mod error;
mod failpoints;
mod observe;
mod produce;
mod registry;
mod server;
mod settings;
mod stream;

pub use caches::{check_cache_name, check_disk_folder, drop_left_segments};
pub use coprep_pipeline::{Dataset, Pipeline};
pub use coprep_storage::{ReadThrottle, Slowness, open_regular};
pub use error::{Error, ErrorKind, Result};
/// For `overhead` in `tests/benchmarks/measure`.
#[cfg(feature = "measure")]
#[doc(hidden)]
pub use produce::threads::pool_overhead;
pub use registry::describe;
pub use registry::status::Monitor;
pub use server::{OwnFile, Server, StopReason};
pub use settings::{DiskSettings, Settings};
