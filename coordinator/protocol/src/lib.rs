//! What clients and the coordinator say to each other.
//!
//! The control plane is a Unix socket. It carries attach, detach, errors and statistics; the bulk of
//! the data and its hand-over live in shared memory and never pass here.
//!
//! * [`spec`]: what a job wants prepared, as plain data.
//! * [`message`]: requests and replies.
//! * [`frame`]: how a message lies on the wire: a fixed header with magic, version and length, then the
//!   message as a *validated* rkyv archive, then, for some replies, file descriptors.
//! * [`outgoing`]: a message that is sent bit by bit, by a sender that must not wait.
//! * [`code`]: what the coordinator and the processes that run user code say to each other.
//! * [`dataset_path`]: how a path of a dataset is spelled.
//! * [`place`]: where the socket lies, and who may own it.
//! * [`operators`]: rules for the operators of a pipeline.
//! * [`size`]: sizes in bytes as people write them, in settings and arguments.
//!
//! **Invariant.** Nothing received is trusted: the length is bounded before a byte is allocated, the
//! archive is validated before it is read, and a frame that fails either ends that connection only.
#![deny(unsafe_code)]

pub mod code;
pub mod dataset_path;
pub mod frame;
#[expect(missing_docs, reason = "rkyv derives undocumented archived types")]
pub mod message;
pub mod nap;
pub mod operators;
pub mod order;
pub mod outgoing;
pub mod paths;
pub mod size;
#[expect(missing_docs, reason = "rkyv derives undocumented archived types")]
pub mod spec;

/// Version of the messages. Client and coordinator must have the same.
pub const PROTOCOL_VERSION: u16 = 7;
