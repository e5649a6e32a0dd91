//! The coordinator: fetches each sample once, prepares each minibatch once, hands it to every job.
//!
//! Rooms, each of which uses only those below it:
//!
//! * [`server`]: the socket, signals, idle exit, and the session of each connection.
//! * [`registry`]: the datasets, caches and streams that are open; warming a cache before jobs come; the status.
//! * [`stream`]: jobs that share a pipeline, their scheduler and their staging area.
//! * [`produce`]: the threads and processes that make samples.
//! * [`caches`]: the caches of datasets.
//! * [`observe`]: the costs of samples and the causes of stalls.
//! * [`connection`]: the process at the other end of a connection, and replies to it.
//! * [`settings`], [`error`], [`failpoints`].
//!
//! **Invariants.** No user code runs in this process. No thread waits for a job: a job that stops reading is
//! simply not given more. Whatever a job holds is released by dropping what its session owns, so there
//! is one way out for leaving, dying and misbehaving.
//!
//! **A thread that panics ends what it owned**, as if its owner had died, and nothing else: a session its connection, a
//! worker its sample, the thread of a worker process that process, a driver its stream. A stream whose lock was held is
//! broken off, because its state may be half changed. A panic of the main thread, or of the pool outside of a
//! sample, ends the coordinator in good order.
#![forbid(unsafe_code)]

mod caches;
mod connection;
mod error;
mod failpoints;
mod observe;
mod produce;
mod registry;
mod server;
mod settings;
mod stream;

pub use caches::{check_cache_name, drop_left_segments};
pub use coprep_pipeline::{Dataset, Pipeline, ReadThrottle, Slowness, open_regular};
pub use error::{Error, Result};
/// For `examples/overhead` alone.
#[doc(hidden)]
pub use produce::threads::pass;
pub use registry::describe;
pub use registry::status::Monitor;
pub use server::{OwnFile, Server, StopReason};
pub use settings::Settings;
