//! Memory that the processes of coprep share, and the protocols over it. This crate does not know the meaning of a
//! sample's bytes.
//!
//! There are two sides. The **coordinator** creates and writes; **consumers** (other processes of the same user) map,
//! read and release. There are two regions, each with its own protocol:
//!
//! | region | module | life of a byte |
//! |---|---|---|
//! | the staging area | [`staging`], [`handover`], [`view`] | written, handed over, read, released, written again |
//! | the task table of a worker of user code | [`task_table`] | an entry is queued, begun or withdrawn, written, then queued again |
//!
//! The sample cache is a third region. It is a crate of its own, `coprep-cache`, over the memory files, mappings and
//! reservations of this one ([`mapping`], [`memory`]).
//!
//! All memory is reserved when it is created ([`memory`]). A shortage is therefore an [`Error`] that states the bytes
//! wanted, the bytes available and a remedy. It is never a SIGBUS later.
//!
//! The crate also has the settings of a process's own allocator ([`allocator`]), of its threads ([`scheduling`]) and of its
//! open files ([`descriptors`]), because several of the processes that share the memory need them, and this is the only
//! crate that all of them use.
//!
//! # Architecture invariants
//!
//! - No lock lies in shared memory, so a process that dies cannot leave one locked.
//! - The coordinator maps the memory that a consumer may write with a fixed size, reads it word by word, and checks
//!   each word ([`handover`]). A consumer that writes invalid data can end its own session and do no other harm.
//! - A consumer has no way to write memory that others read: staging and *deliver* regions are sealed.
//! - `unsafe` appears only in the modules that say `#![expect(unsafe_code)]`.
#![deny(unsafe_code)]

#[cfg(not(feature = "loom"))]
pub mod allocator;
#[cfg(not(feature = "loom"))]
pub mod descriptors;
#[cfg(not(feature = "loom"))]
mod error;
#[cfg(not(feature = "loom"))]
mod futex;
pub mod handover;
#[cfg(not(feature = "loom"))]
pub mod lock;
#[cfg(not(feature = "loom"))]
pub mod mapping;
#[cfg(not(feature = "loom"))]
pub mod memory;
#[cfg(not(feature = "loom"))]
pub mod scheduling;
#[cfg(not(feature = "loom"))]
pub mod staging;
mod sync;
pub mod task_table;
#[cfg(not(feature = "loom"))]
pub mod view;

#[cfg(not(feature = "loom"))]
pub use error::{Error, ErrorKind, Result};
