//! What clients and the coordinator say to each other.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod spec;
