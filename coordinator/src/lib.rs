//! The coordinator: fetches each sample once, prepares each minibatch once, hands it to every job.
//!
//! * [`server`]: the socket, signals, idle exit.
//! * [`session`]: one connection, one consumer at most; [`peer`]: the process at its other end.
//! * [`status`]: what is seen of it from outside.
//! * [`registry`]: what is open: datasets, caches, streams.
//! * [`stream`]: jobs that share a pipeline, their scheduler and their staging area.
//! * [`workers`]: the threads that run pipelines; [`due_queue`]: what waits for one; [`stalls`]: what is lacking.
//! * [`costs`]: what samples were measured to cost.
//! * [`prepare`]: one sample's way from storage, or the cache, into its slot.
//! * [`maker`]: what makes the samples of a stream: those threads, the jobs' own code, or the jobs.
//! * [`user_code`]: the processes that run the jobs' own code.
//! * [`failpoints`]: where tests make a thread panic.
//! * [`warm`]: filling a cache before the jobs come.
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
mod costs;
mod due_queue;
mod error;
mod failpoints;
mod maker;
mod outbox;
mod peer;
mod prepare;
mod registry;
mod server;
mod session;
mod settings;
mod stalls;
mod status;
mod stream;
mod user_code;
mod warm;
mod workers;

pub use caches::{check_cache_name, drop_left_segments};
pub use coprep_pipeline::{Dataset, Pipeline, ReadThrottle, Slowness, open_regular};
pub use error::{Error, Result};
pub use registry::describe;
pub use server::{OwnFile, Server, StopReason};
pub use settings::Settings;
pub use status::Monitor;
/// For `examples/overhead` alone.
#[doc(hidden)]
pub use workers::pass;
