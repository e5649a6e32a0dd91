//! The storage that samples are read from: local files, object stores and HTTP servers.
//!
//! An [`ObjectTable`] lists the objects of a dataset: files of a local folder, or objects of a bucket with the sizes and
//! ETags of their listing. An [`Extent`] is a range of bytes of one object; a loose file is an extent that covers all of
//! its object. A [`RemoteStore`] lists and reads one bucket or server. The [`Stores`] of a process share the threads
//! that do their I/O.
//!
//! # Errors
//!
//! Errors are of three kinds, which are never mixed:
//!
//! - An object cannot be read ([`ErrorKind::NotFound`], [`ErrorKind::Read`]): the caller may leave it out.
//! - An object is not the one that was listed ([`ErrorKind::Changed`]).
//! - The store does not answer, or refuses ([`ErrorKind::Unavailable`]). A read waits, and tries again, for as long as
//!   [`Stores::patience`] says. Such an error says nothing about the object, so no sample may be left out for it.
//!
//! No message, log line or identity contains a secret: URLs with credentials or queries are refused, and of an answer
//! only the status and the error code are shown.
#![forbid(unsafe_code)]

mod answer;
mod aws_profile;
mod client;
mod connector;
mod credential_process;
mod early_reads;
mod error;
mod file;
mod file_versions;
mod headers;
mod health;
mod held_blocks;
mod http_options;
mod hub;
mod io_runtime;
mod job_credentials;
mod lap;
mod large_reads;
mod left_out;
mod listed;
mod names;
mod objects;
mod odd_keys;
mod open_files;
mod parallel;
mod probe;
mod remote;
mod stores;
mod stragglers;
mod target;
mod throttle;
mod traffic;
mod variables;

pub use early_reads::{EarlyObject, EarlyPart, EarlyReads};
pub use error::{Error, ErrorKind};
pub use file::{MOST_BYTES, descriptor_shortage, open as open_regular};
pub use file_versions::{FileStat, FileVersions};
pub use health::OutageReport;
pub use held_blocks::HeldBlocks;
pub use io_runtime::while_wanted;
pub use job_credentials::{CredentialPool, JobProvider};
pub use large_reads::{LargeRead, LargeReads};
pub use left_out::LeftOut;
pub use objects::{Extent, ObjectTable};
pub use open_files::{LocalIdentity, local_identity};
pub use parallel::in_parallel;
pub use probe::ReadTimes;
pub use remote::{DetachedRead, ListEvent, ListedObject, ReadBytes, RemoteStore};
pub use stores::{PATIENCE, Stores};
pub use throttle::{ReadThrottle, Slowness};
pub use traffic::StoreTraffic;
