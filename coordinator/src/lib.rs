//! The coordinator: fetches each sample once, prepares each minibatch once, hands it to every job.
//!
//! * [`server`]: the socket, signals, idle exit.
//! * [`session`]: one connection, one consumer at most.
//! * [`registry`]: what is open: datasets, caches, streams.
//! * [`stream`]: jobs that share a pipeline, their scheduler and their staging area.
//! * [`workers`]: the threads that run pipelines.
//! * [`prepare`]: one sample's way from storage, or the cache, into its slot.
//! * [`warm`]: filling a cache before the jobs come.
//!
//! **Invariants.** No Python code runs here. No thread waits for a job: a job that stops reading is
//! simply not given more. Whatever a job holds is released by dropping what its session owns, so there
//! is one way out for leaving, dying and misbehaving.
#![forbid(unsafe_code)]

mod caches;
mod error;
mod outbox;
mod prepare;
mod registry;
mod server;
mod session;
mod settings;
mod status;
mod stream;
mod warm;
mod workers;

pub use caches::drop_left_segments;
pub use error::{Error, Result};
pub use server::{Server, StopReason};
pub use settings::Settings;
