//! The sample cache: samples by id, shared by all streams of a dataset. This crate does not know the meaning of a
//! sample's bytes, which [`Form`] a sample should have, or when it is needed next.
//!
//! [`SampleCache`] is the contract, and each policy is a file with its tests. coprep uses [`NoEviction`]. [`Lru`] is a
//! baseline for comparison, and [`BoundedReuse`] serves samples that are used a few times.
//!
//! | policy | memory | life of a byte |
//! |---|---|---|
//! | [`NoEviction`] | a segment of shared memory, which may have a name and outlive the coordinator | written once, then immutable until the sample is removed, or the cache goes as a whole |
//! | [`Lru`], [`BoundedReuse`] | private memory of the coordinator | written once, and freed when its sample is evicted or replaced |
//!
//! All memory of a segment is reserved when it is created. A shortage is therefore an [`Error`] that states the bytes
//! wanted, the bytes available and a remedy. It is never a SIGBUS later.
//!
//! # Architecture invariants
//!
//! - No lock lies in a segment, so a coordinator that dies leaves none locked.
//! - Every part of a named segment that another process left is checked before use: the header, each entry of the
//!   index ([`index`]), and each payload at its first hit.
//! - `unsafe` appears only in the modules that say `#![expect(unsafe_code)]`.
#![deny(unsafe_code)]

#[cfg(not(feature = "loom"))]
mod arena;
#[cfg(not(feature = "loom"))]
mod bounded_reuse;
#[cfg(not(feature = "loom"))]
mod contract;
#[cfg(not(feature = "loom"))]
mod error;
#[cfg(not(feature = "loom"))]
pub mod index;
#[cfg(not(feature = "loom"))]
pub mod layout;
#[cfg(not(feature = "loom"))]
mod lru;
#[cfg(not(feature = "loom"))]
mod meta;
#[cfg(not(feature = "loom"))]
mod named;
#[cfg(not(feature = "loom"))]
mod no_eviction;
#[cfg(not(feature = "loom"))]
mod room;
// The lock-free part. The models need no other part.
pub mod table;

#[cfg(not(feature = "loom"))]
pub use self::{
    bounded_reuse::BoundedReuse,
    contract::{Hit, Reservation, SampleCache, Usage},
    error::{Error, ErrorKind, Result},
    lru::Lru,
    meta::{Form, Meta},
    named::{LONGEST as LONGEST_NAME, NamedSegment, is_name, list_named, remove_named},
    no_eviction::{NoEviction, TakeOver},
    room::RoomAllocator,
};
