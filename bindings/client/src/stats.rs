//! What a loader counts.

use std::time::Duration;

/// Counts since the loader was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Batches given.
    pub batches: u64,
    /// Samples given.
    pub samples: u64,
    /// Time spent in waiting for batches: the stall.
    pub wait: Duration,
    /// The part of the stall that is due to fetching, by its share in the cost of what was waited for.
    pub fetch_stall: Duration,
    /// The part of the stall that is due to decoding and operators.
    pub prep_stall: Duration,
    /// Batches that were copied into private memory.
    pub copies: u64,
    /// Bytes of these.
    pub copied_bytes: u64,
    /// Times that a new connection was needed.
    pub reconnects: u64,
    /// Samples that failed and were raised as errors.
    pub errors: u64,
}

impl Stats {
    /// Splits a wait that has ended by `fetch_share` of 255.
    pub(crate) fn split(&mut self, waited: Duration, fetch_share: u8) {
        let fetch = waited.mul_f64(f64::from(fetch_share) / 255.0);
        self.fetch_stall += fetch;
        self.prep_stall += waited.saturating_sub(fetch);
    }
}
