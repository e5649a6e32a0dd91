//! Messages between the coordinator and the processes that run user code.
//!
//! A **fork server** belongs to a stream. It is forked from a job that is attached to the stream, so it has the job's
//! dataset and everything that the job has set, and it ends when the job leaves. It forks the **workers**. All of them
//! use Unix sockets. Each message is its length (`u32`), followed by that many bytes:
//!
//! * with the fork server: JSON, a few messages in the life of a stream ([`ForkServerRequest`], [`ForkServerEvent`]);
//! * with a worker: fixed little-endian records, one message per chunk of samples ([`SampleRequest`],
//!   [`WorkerReport`]).
//!
//! Samples never pass through these sockets: a worker writes them straight into the staging buffers. If a sample does
//! not fit its slot, the coordinator tells the worker where to write it ([`WorkerReport::TooLarge`],
//! [`WorkerCommand::Room`]).
//!
//! **Invariant.** Messages from processes of user code are not trusted: lengths are bounded, records are validated, and
//! a malformed number ends that process only.

mod channel;
mod fork_server;
mod worker;

pub use crate::code::channel::{Channel, Incoming};
pub use crate::code::fork_server::{ForkServerEvent, ForkServerRequest};
pub use crate::code::worker::{
    CHUNKS, ChunkRequest, ENTRIES, MOST, PROGRESS, Probed, Raised, Remade, SampleRequest, Together,
    WorkerCommand, WorkerProgress, WorkerReport, entry, probe, remake, room, slot,
};

/// Returns the hexadecimal digits of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the bytes that hexadecimal digits stand for.
///
/// # Errors
/// When a character is not a hexadecimal digit, or the number of digits is odd.
pub fn unhex(digits: &str) -> Result<Vec<u8>, String> {
    let digit = |c: u8| (c as char).to_digit(16).ok_or("not a hexadecimal digit");
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else {
        return Err("an odd number of digits".into());
    };
    let byte = |&[high, low]: &[u8; 2]| Ok((digit(high)? * 16 + digit(low)?) as u8);
    pairs
        .iter()
        .map(byte)
        .collect::<Result<_, &str>>()
        .map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_make_no_sense_are_an_error() {
        assert_eq!(unhex("00fF"), Ok(vec![0, 255]));
        assert!(unhex("0").is_err() && unhex("0g").is_err());
    }
}
