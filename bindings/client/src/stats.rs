//! Counts of a loader.

use std::time::Duration;

use coprep_protocol::item::StallSplit;
use coprep_shared_memory::handover::Account;

/// Counts since the loader was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Batches given.
    pub batches: u64,
    /// Samples given.
    pub samples: u64,
    /// Time spent waiting for batches: the stall.
    pub wait: Duration,
    /// Part of the stall in which the coordinator lacked storage.
    pub fetch_stall: Duration,
    /// Part of the stall in which the coordinator lacked processors.
    pub prep_stall: Duration,
    /// Rest of the stall: the coordinator waited for other jobs (the rest of a cohort, a rank, or a buffer), or was not
    /// running.
    pub others_stall: Duration,
    /// Batches that were copied into private memory.
    pub copies: u64,
    /// Bytes of the copied batches.
    pub copied_bytes: u64,
    /// Number of reconnections.
    pub reconnects: u64,
    /// Samples that failed and were raised as errors.
    pub errors: u64,
    /// Samples that are left out of the epochs because they failed. Each counts once.
    pub skipped: u64,
    /// Copies to the GPU: one for each part of a batch.
    pub uploads: u64,
    /// Bytes of these copies.
    pub uploaded_bytes: u64,
    /// Parts of batches that an uploader had copied to the GPU for several jobs. They are not among
    /// [`uploads`](Self::uploads).
    pub shared_uploads: u64,
    /// Time spent waiting for the GPU: for copies to begin, and before that for the job's own work that reads all
    /// buffers. It is no part of the stall.
    pub upload_wait: Duration,
    /// Reason why the staging area is not pinned, and the processor copies batches before the GPU does. `None` if it is
    /// pinned, or nothing was uploaded.
    pub bounced: Option<String>,
    /// Reason why this job copies all its batches itself, although it would share. `None` if it shares, or waits for
    /// others to share with.
    pub not_shared: Option<String>,
}

impl Stats {
    /// Divides a wait that has ended among its causes.
    pub(crate) fn split(&mut self, waited: Duration, shares: WaitShares) {
        let fetch = waited.mul_f64(shares.fetch);
        // Bounded by the rest, so that the parts never exceed the whole.
        let prep = waited
            .mul_f64(shares.prep)
            .min(waited.saturating_sub(fetch));
        self.fetch_stall += fetch;
        self.prep_stall += prep;
        self.others_stall += waited.saturating_sub(fetch + prep);
    }

    /// Returns the part of the stall that is not divided yet.
    #[must_use]
    pub fn open_stall(&self) -> Duration {
        self.wait
            .saturating_sub(self.fetch_stall + self.prep_stall + self.others_stall)
    }

    /// Returns the counts in the form that the coordinator reads.
    pub(crate) fn account(&self) -> Account {
        let ns = |time: Duration| time.as_nanos() as u64;
        Account {
            batches: self.batches,
            fetch_ns: ns(self.fetch_stall),
            prep_ns: ns(self.prep_stall),
            others_ns: ns(self.others_stall),
            open_ns: ns(self.open_stall()),
            uploads: self.uploads,
            upload_bytes: self.uploaded_bytes,
            upload_wait_ns: ns(self.upload_wait),
        }
    }
}

/// Shares of a wait, 0 to 1, by the resource that was short. The rest is due to other jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WaitShares {
    fetch: f64,
    prep: f64,
}

impl WaitShares {
    pub(crate) const OTHERS: WaitShares = WaitShares {
        fetch: 0.0,
        prep: 0.0,
    };

    /// Unpacks the shares from an item's tag.
    pub(crate) fn unpack(tag: u64) -> Self {
        let split = StallSplit::unpack(tag);
        let share = |part: u32| f64::from(part) / f64::from(StallSplit::WHOLE);
        WaitShares {
            fetch: share(split.fetch),
            prep: share(split.prep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_wait_add_up() {
        let second = Duration::from_secs(1);
        let mut stats = Stats {
            wait: 4 * second,
            ..Stats::default()
        };
        stats.split(2 * second, WaitShares::unpack(1 << 14 | 1 << (15 + 32)));
        assert_eq!(stats.fetch_stall, second / 2);
        assert_eq!(stats.prep_stall, second);
        assert_eq!(stats.others_stall, second / 2);
        assert_eq!(stats.open_stall(), 2 * second);
        // Whatever the tag says, no share exceeds the whole.
        stats.split(2 * second, WaitShares::unpack(u64::MAX));
        assert_eq!(stats.fetch_stall, second / 2 + 2 * second);
        assert_eq!(stats.open_stall(), Duration::ZERO);
    }
}
