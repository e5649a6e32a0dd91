//! Everything of coprep that lies in shared memory, and how a coordinator deals with its own ([`allocator`]). What a
//! sample means is not known here.
//!
//! There are two sides: the **coordinator** creates and writes, **consumers** (other processes of the same
//! user) map, read and release. And there are three regions with a protocol each:
//!
//! | region | module | life of a byte |
//! |---|---|---|
//! | the staging area | [`staging`], [`handover`], [`view`] | written, handed over, read, released, written again |
//! | the sample cache | [`sample_cache`] | written once, then immutable until the cache goes as a whole |
//! | what a worker of user code is to make | [`task_table`] | an entry: given, begun or withdrawn, written, then given again |
//!
//! All memory is reserved when it is created ([`memory`]): a shortage is an [`Error`] that says what was
//! wanted, what there was and what helps, and never a SIGBUS later.
//!
//! # Architecture invariants
//!
//! - No lock lies in shared memory, so no death can leave one held.
//! - The coordinator maps what a consumer may write with a fixed size, reads it word by word, and checks
//!   each word ([`handover`]). A consumer can end its own session by writing nonsense, and nothing else.
//! - A consumer has no way to write what others read: staging and *deliver* regions are sealed.
//! - `unsafe` lives in the modules that say `#![expect(unsafe_code)]` and nowhere else.
#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod allocator;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod futex;
pub mod handover;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod sample_cache;
#[cfg(not(loom))]
pub mod staging;
mod sync;
/// The one part of the sample cache that is lock-free, for its models.
#[cfg(loom)]
pub mod sample_cache {
    pub mod table;
}
pub mod task_table;
#[cfg(not(loom))]
pub mod view;

#[cfg(not(loom))]
pub use error::{Error, ErrorKind, Result};
