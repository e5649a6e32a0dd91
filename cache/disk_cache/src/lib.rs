//! Samples on a local disk: one file for each dataset, in one folder.
//!
//! A file is filled once and never evicts. It has the format of a named segment ([`coprep_cache::index`]), and is read
//! and written by system calls instead of a mapping, so that a damaged disk or a file that somebody cuts is an error
//! and never a SIGBUS:
//!
//! ```text
//! file: | header, one page | index: entries of 56 bytes | payloads, each on a multiple of 64 bytes |
//! ```
//!
//! # What holds after a crash
//!
//! A payload is written before its entry, and the header before the first entry. Nothing is synchronised, because every
//! read is verified:
//!
//! | event | what is left | what happens |
//! |---|---|---|
//! | the process is killed | all finished writes, in order | an entry that was written in part fails its checksum, and its position is free |
//! | power is lost | some of the writes, in any order | the same, and a payload that is missing in part fails its checksum at its first read |
//! | a bit flips, or somebody writes into the file | anything | the same |
//!
//! A sample that fails is dropped: its room and its position are used again, and the caller fetches it anew.
//!
//! # Architecture invariants
//!
//! - Numbers that are read from a file are checked before they are used. After the file was opened, its index is not
//!   read again: the positions and checksums in memory decide.
//! - The lock of a file's state is never held over a read or a write.
//! - Only the process that holds the folder's lock creates, fills or removes files in it.
#![forbid(unsafe_code)]

mod error;
mod file;
mod folder;

pub use error::{Error, ErrorKind, Result};
pub use file::{DiskCache, DiskOptions, DiskUsage, Lookup, TakeOver};
pub use folder::{DiskFolder, StoredFile};
