//! Tar shards in the layout of WebDataset: their samples, and the indexes that find them.
//!
//! A tar file has no table of contents. An *index* lists the samples of one shard: the place of each image, its name, and
//! its label. It is made when a shard is opened for the first time, by reading the chain of headers ([`open`](open())),
//! and kept in a folder of the user. An index file beside a shard is used too, if it fits.
//!
//! Other files that samples are parts of are found in the same way ([`find_files`]).
//!
//! An index and a shard are data from outside: all numbers are checked before anything is read by them.
#![forbid(unsafe_code)]

mod dali;
mod fault;
mod index;
mod index_files;
mod json_label;
mod locate;
mod members;
mod open;
mod samples;
mod scan;
mod wids;

pub use index_files::IndexFolder;
pub use locate::{FoundFiles, find_files};
pub use open::{
    Checksums, IndexOrigins, IndexSummary, OpenShards, ShardSamples, open, write_indexes,
};
