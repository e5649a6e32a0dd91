//! A consumer of coprep's minibatches: one rank of a job, without Python.
//!
//! | module | what it does |
//! |---|---|
//! | [`connection`] | finds the coordinator, or starts one; greets it; carries requests and replies |
//! | [`control`] | what commands ask: status, stop, describe, drop caches, warm |
//! | [`loader`] | attaches, takes items, makes batches of them, keeps count, reconnects |
//! | [`preparation`] | tells the coordinator early which user code will be needed |
//! | [`batch`] | a batch and its memory: a view of a staging buffer, or a private copy |
//!
//! # The life of a batch
//!
//! The coordinator publishes *parts*: a slice of slots of one staging buffer. A part that is a whole batch
//! is given to the user as it lies there. A batch that straddles buffers is copied into private memory, part
//! by part as they come, so that a batch which is not complete pins nothing. A batch is copied too when the
//! consumer holds its share of buffers already, so that a job that keeps all its batches holds up nobody.
//!
//! A view stays valid while any array of it lives. When the last one goes, on whatever thread, the pages of
//! the buffer that were written are dropped, unless another slice of the same buffer is still held, and the
//! item is released. None of the locks on this way is ever held during a wait.
//!
//! # Exactly once
//!
//! What a job is still to be given in its epoch is all the state there is. The loader keeps the other side
//! of it, the set of ids it has given, one bit each. When the connection is lost, unread items are dropped,
//! a coordinator is found or started, and the set is presented to it; it gives the rest. An id enters the
//! set when its batch is handed to the user, and not before.
//!
//! # Waits
//!
//! Every wait is bounded and is cut into slices of at most [`SLICE`], between which the owner's [`InterruptCheck`] is
//! called (Python looks for signals there); before each wait the socket is looked at. If one that is for somebody else
//! (a rank, a cohort, a folder that is listed) lasts, the owner's [`Notice`] is called once.
//!
//! # Fork
//!
//! A loader belongs to the process that made it. In a forked child every call fails with
//! [`Error::Forked`], and dropping batches there does nothing: the parent is not disturbed. The child does not keep the
//! sockets, so that the coordinator sees when the parent ends; it keeps the mappings.
#![deny(unsafe_code)]

mod attachment;
pub mod batch;
pub mod connection;
pub mod control;
mod error;
mod launch;
pub mod loader;
mod notice;
pub mod preparation;
mod raw;
mod stats;
mod timeout;

pub use batch::{Array, Batch};
pub use connection::Connection;
pub use error::{Error, Result};
pub use loader::{Event, Loader};
pub use notice::{Notice, no_notice};
pub use preparation::Preparation;
pub use stats::Stats;
pub use timeout::{Interrupt, InterruptCheck, SLICE, no_interrupt};
