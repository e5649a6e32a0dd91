//! A consumer of coprep's minibatches, which is one rank of a job, without Python.
//!
//! | module | task |
//! |---|---|
//! | [`connection`] | finds the coordinator; greets it; carries requests and replies |
//! | `launch` | starts a coordinator if there is none |
//! | [`control`] | makes the requests of commands: status, stop, describe, drop caches, warm |
//! | [`loader`] | attaches, takes items, makes batches of them, records the samples that were given, reconnects |
//! | [`credentials`] | gives credentials that exist only in the job's process |
//! | [`batch`] | a batch and its memory: a view of a staging buffer, or a private copy |
//! | [`device`] | batches on the job's GPU |
//!
//! # The life of a batch
//!
//! The coordinator publishes *parts*, which are slices of slots of one staging buffer. A part that is a whole batch is
//! given to the user in place. A batch that straddles buffers is copied into private memory, part by part as they come,
//! so that an incomplete batch pins no buffer. A batch is also copied when the consumer already holds its share of
//! buffers, so that a job that keeps all its batches delays nobody.
//!
//! A view stays valid while any array of it lives. When the last one is dropped, on any thread, the written pages of
//! the buffer are dropped, unless another slice of the same buffer is still held, and the item is released. No lock on
//! this way is ever held during a wait.
//!
//! # Exactly once
//!
//! The set of samples that a job has still to receive in its epoch is the only state. The loader keeps the complement:
//! the set of ids that it has given, one bit each. When the connection is lost, the loader drops unread items, finds or
//! starts a coordinator, and presents the set to it. The coordinator then gives the rest. An id enters the set when its
//! batch is handed to the user, and not before.
//!
//! # Waits
//!
//! Every wait is bounded. At least every [`POLL_INTERVAL`] the owner's [`InterruptCheck`] is called (Python looks for
//! signals there), and before each wait the socket is checked. If a wait for somebody else (a rank, a cohort, a folder
//! that is listed) takes long, the owner's [`Notice`] is called once.
//!
//! # Fork
//!
//! A loader belongs to the process that made it. In a forked child every call fails with [`ErrorKind::Forked`], and
//! dropping batches has no effect, so that the parent is not disturbed. The child does not keep the sockets, so that
//! the coordinator sees when the parent ends. It keeps the mappings.
#![deny(unsafe_code)]

mod attachment;
pub mod batch;
pub mod connection;
pub mod control;
pub mod credentials;
pub mod device;
mod error;
mod launch;
pub mod loader;
mod notice;
mod raw;
mod stats;
mod timeout;

pub use batch::{Array, Batch};
pub use connection::Connection;
pub use error::{Error, ErrorKind, Interrupt, Result, not_given};
pub use loader::{DeviceEvent, Event, JobCode, Loader};
pub use notice::{Notice, no_notice};
pub use stats::Stats;
pub use timeout::{InterruptCheck, POLL_INTERVAL, no_interrupt};
