//! The messages between clients and the coordinator.
//!
//! The control plane is a Unix socket. It carries attach, detach, errors and statistics. The bulk of the data and its
//! hand-over live in shared memory and never pass through the socket.
//!
//! * [`spec`]: the pipeline that a job wants, as plain data.
//! * [`message`]: requests and replies.
//! * [`frame`]: the wire format: a fixed header with magic, version and length, then the message as a *validated* rkyv
//!   archive, then, for some messages, file descriptors.
//! * [`order`]: the order of an epoch, as a memory file beside a message.
//! * [`outgoing`]: a message that is sent piece by piece, by a sender that must not block.
//! * [`code`]: messages between the coordinator and the processes that run user code.
//! * [`uploader`]: messages between the coordinator and the processes that copy minibatches to GPUs.
//! * [`gpu_batch`]: the places of a batch's fields in a buffer of a GPU.
//! * [`dataset_path`]: one spelling for each path of a dataset.
//! * [`dataset_url`]: URLs of datasets in object stores.
//! * [`store_variables`]: the variables of a job's environment that describe them.
//! * [`given_credentials`]: credentials of stores that a running job gives.
//! * [`shard_list`], [`parquet_files`], [`array_files`], [`braces`]: tar shards, parquet files, and files of tokens and
//!   arrays, as a person names them.
//! * [`paths`]: where the socket lies, and who may own it.
//! * [`poll_interval`]: bounds of waits that a lost wake-up could prolong.
//! * [`polling`]: waits for descriptors that no signal cuts short.
//! * [`operators`]: rules for the operators of a pipeline.
//! * [`normalize`]: the values of one of them, for the CPU and the GPU.
//! * [`size`]: sizes in bytes as people write them, in settings and arguments.
//!
//! **Invariant.** Nothing received is trusted: the length is bounded before a byte is allocated, and the archive is
//! validated before it is read. A frame that fails either check ends that connection only.
#![deny(unsafe_code)]

pub mod array_files;
pub mod braces;
pub mod code;
pub mod dataset_path;
pub mod dataset_url;
mod file_list;
pub mod frame;
#[expect(missing_docs, reason = "rkyv derives undocumented archived types")]
pub mod given_credentials;
pub mod gpu_batch;
pub mod id_set;
pub mod item;
#[expect(missing_docs, reason = "rkyv derives undocumented archived types")]
pub mod message;
pub mod normalize;
pub mod operators;
pub mod order;
pub mod outgoing;
pub mod parquet_files;
pub mod paths;
pub mod poll_interval;
pub mod polling;
pub mod shard_list;
pub mod size;
#[expect(missing_docs, reason = "rkyv derives undocumented archived types")]
pub mod spec;
pub mod store_variables;
#[expect(missing_docs, reason = "rkyv derives undocumented archived types")]
pub mod uploader;

/// Version of the messages. A client and its coordinator must have the same.
pub const PROTOCOL_VERSION: u16 = 18;
