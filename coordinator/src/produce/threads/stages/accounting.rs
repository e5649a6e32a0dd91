//! The time of the pool's threads by stage, and the resources that were lacking meanwhile.

use std::time::Instant;

use coprep_costs::Interval;

use crate::observe::stalls::StallClock;
use crate::produce::threads::stages::{StageQueues, StageWork};

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::produce::threads) struct Sums {
    pub(in crate::produce::threads) fetched: u64,
    /// Number of cached samples that were compared with their files.
    pub(in crate::produce::threads) compared: u64,
    pub(in crate::produce::threads) fetched_bytes: u64,
    pub(in crate::produce::threads) prepared: u64,
    pub(in crate::produce::threads) fetch_s: f64,
    pub(in crate::produce::threads) fetch_cpu_s: f64,
    pub(in crate::produce::threads) prepare_s: f64,
    /// Number of samples fetched by reads that were set apart. They are not in `fetched`, because they say nothing
    /// about the threads of the pool.
    pub(in crate::produce::threads) fetched_apart: u64,
    /// Thread seconds of the reads that were set apart.
    pub(in crate::produce::threads) apart_s: f64,
    /// Waiting samples times seconds.
    to_fetch: f64,
    seconds: f64,
}

/// The present state of the pool.
#[derive(Clone, Copy, Debug)]
pub(in crate::produce::threads) struct Now {
    pub(in crate::produce::threads) cpus: u32,
    pub(in crate::produce::threads) threads: u32,
    pub(in crate::produce::threads) fetching: u32,
    pub(in crate::produce::threads) preparing: u32,
    pub(in crate::produce::threads) apart: u32,
    pub(in crate::produce::threads) to_fetch: u32,
    pub(in crate::produce::threads) to_prepare: u32,
}

impl<W: StageWork> StageQueues<W> {
    /// Adds up the time since the last change.
    pub(in crate::produce::threads) fn advance_clock(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.until);
        self.until = now;
        if let Some(mut stall_clock) = self.stall_clock.take() {
            let (fetch, prep) = self.lacking();
            stall_clock.add(time, fetch, prep);
            self.stall_clock = Some(stall_clock);
        }
        let seconds = time.as_secs_f64();
        self.sums.seconds += seconds;
        self.sums.fetch_s += seconds * f64::from(self.fetching);
        self.sums.prepare_s += seconds * f64::from(self.preparing);
        self.sums.apart_s += seconds * f64::from(self.apart);
        self.sums.to_fetch += seconds * self.to_fetch.len() as f64;
    }

    /// Returns the weights of storage and of processors in the resources that are lacking now.
    fn lacking(&self) -> (f64, f64) {
        let (fetching, preparing) = (f64::from(self.fetching), f64::from(self.preparing));
        if self.apart > 0 && self.fetching + self.preparing == 0 {
            // Nothing is lacking but the data of slow sources.
            return (1.0, 0.0);
        }
        if self.fetches_ahead() {
            // Either processors wait for storage, or fetched samples wait for processors.
            let are_free = self.preparing < self.cpus || self.to_prepare.is_empty();
            return if self.fetching > 0 && are_free {
                (1.0, 0.0)
            } else {
                (0.0, preparing)
            };
        }
        // Each thread fetches and then prepares. While it waits for storage, a processor is free.
        if self.fetching > 0 {
            (fetching, preparing * self.on_processor())
        } else {
            (0.0, preparing)
        }
    }

    /// Returns the part of the recent fetching time that was not waiting.
    fn on_processor(&self) -> f64 {
        let seen = self.sums.since(&self.recent);
        if seen.fetch_s > 0.0 {
            (seen.fetch_cpu_s / seen.fetch_s).min(1.0)
        } else {
            1.0
        }
    }

    /// Returns the seconds and the number of samples that waited for storage since the last call of
    /// [`start_interval`](Self::start_interval).
    pub(in crate::produce::threads) fn lately(&self) -> (f64, u64) {
        let (now, then) = (&self.sums, &self.recent);
        (now.seconds - then.seconds, now.waits() - then.waits())
    }

    /// Starts a new interval for [`lately`](Self::lately). Returns the work of the interval that ends.
    pub(in crate::produce::threads) fn start_interval(&mut self) -> Interval {
        let before = std::mem::replace(&mut self.recent, self.sums);
        self.sums.since(&before)
    }

    pub(in crate::produce::threads) fn stall_clock(&self) -> StallClock {
        self.stall_clock.unwrap_or_default()
    }

    pub(in crate::produce::threads) fn sums(&self) -> Sums {
        self.sums
    }

    pub(in crate::produce::threads) fn now(&self) -> Now {
        Now {
            cpus: self.cpus,
            threads: self.threads,
            fetching: self.fetching,
            preparing: self.preparing,
            apart: self.apart,
            to_fetch: (self.to_fetch.len() + self.slow.waiting() + self.shared_reads.waiting())
                as u32,
            to_prepare: self.to_prepare.len() as u32,
        }
    }
}

impl Sums {
    /// Returns the number of samples for which a thread has waited for storage.
    fn waits(&self) -> u64 {
        self.fetched + self.compared
    }

    /// Returns the work done from `before` to now.
    pub(in crate::produce::threads) fn since(&self, before: &Sums) -> Interval {
        let seconds = self.seconds - before.seconds;
        Interval {
            seconds,
            fetched: (self.waits() - before.waits()) as u32,
            fetched_bytes: self.fetched_bytes - before.fetched_bytes,
            prepared: (self.prepared - before.prepared) as u32,
            fetch_s: self.fetch_s - before.fetch_s,
            fetch_cpu_s: self.fetch_cpu_s - before.fetch_cpu_s,
            prepare_s: self.prepare_s - before.prepare_s,
            to_fetch: (self.to_fetch - before.to_fetch) / seconds.max(f64::MIN_POSITIVE),
        }
    }
}
