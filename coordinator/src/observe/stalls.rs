//! The causes for which consumers wait for minibatches.
//!
//! At any moment a pool of workers lacks storage, or processors, or nothing. If it lacks nothing, a consumer that waits
//! waits for other jobs. Three clocks measure the time of each. A consumer that had to wait for a minibatch is told how
//! the time since the previous one was divided, and divides its wait alike. So the parts of a wait add up to it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coprep_costs::MeasuredTimes;
use coprep_protocol::item::StallSplit;

/// Time since the pool was made, by the resource that the pool lacked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StallClock {
    pub(crate) fetch: Duration,
    pub(crate) prep: Duration,
    /// Time in which nothing was lacking.
    pub(crate) none: Duration,
}

impl StallClock {
    /// Adds a time in which storage and processors were lacking in the ratio of `fetch` to `prep`.
    pub(crate) fn add(&mut self, time: Duration, fetch: f64, prep: f64) {
        let all = fetch + prep;
        if all <= 0.0 {
            self.none += time;
            return;
        }
        let fetch = time.mul_f64(fetch / all);
        self.fetch += fetch;
        self.prep += time.saturating_sub(fetch);
    }

    /// Returns the clock of two pools that the same consumers wait for. Nothing was lacking only while neither pool
    /// lacked anything.
    pub(crate) fn with(self, other: StallClock) -> StallClock {
        StallClock {
            fetch: self.fetch + other.fetch,
            prep: self.prep + other.prep,
            none: self.none.min(other.none),
        }
    }

    /// Returns the part of storage in the time from `before` to now in which something was lacking.
    pub(crate) fn fetch_part(&self, before: &StallClock) -> f32 {
        let fetch = self.fetch.saturating_sub(before.fetch).as_secs_f32();
        let prep = self.prep.saturating_sub(before.prep).as_secs_f32();
        if fetch + prep > 0.0 {
            fetch / (fetch + prep)
        } else {
            1.0
        }
    }

    /// Returns how the time from `before` to now was divided, when nothing was prepared for `idle` at its beginning.
    pub(crate) fn since(&self, before: &StallClock, idle: Duration) -> StallSplit {
        let part = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64();
        let (fetch, prep) = (part(self.fetch, before.fetch), part(self.prep, before.prep));
        let all = fetch + prep + part(self.none, before.none) + idle.as_secs_f64();
        if all <= 0.0 {
            return StallSplit::OTHERS;
        }
        let whole = f64::from(StallSplit::WHOLE);
        let fetch = (fetch / all * whole).round() as u32;
        StallSplit {
            fetch,
            // Both parts may be rounded up, and must not exceed the whole.
            prep: ((prep / all * whole).round() as u32).min(StallSplit::WHOLE - fetch),
        }
    }
}

/// The cost of a second of waiting for storage, 0 to 1, in seconds of a worker.
///
/// It is 1 where a waiting thread keeps a processor idle, and 0 where other threads meanwhile prepare samples that were
/// fetched before. The worth of caching is computed with it.
#[derive(Debug)]
pub(crate) struct FetchWeight(AtomicU32);

impl FetchWeight {
    pub(crate) fn new() -> Self {
        FetchWeight(AtomicU32::new(1f32.to_bits()))
    }

    pub(crate) fn get(&self) -> f32 {
        f32::from_bits(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, weight: f32) {
        self.0
            .store(weight.clamp(0.0, 1.0).to_bits(), Ordering::Relaxed);
    }
}

/// Clocks of workers that report the time of each stage only when a task is done.
#[derive(Debug)]
pub(crate) struct BusyClock {
    busy: u32,
    until: Instant,
    /// Moving average of the fetch time of recent tasks, in microseconds.
    fetch_us: f64,
    prep_us: f64,
    stall_clock: StallClock,
}

/// Weight of one task in the moving averages.
const NEWS: f64 = 1.0 / 64.0;

impl BusyClock {
    pub(crate) fn new(now: Instant) -> Self {
        BusyClock {
            busy: 0,
            until: now,
            fetch_us: 0.0,
            prep_us: 0.0,
            stall_clock: StallClock::default(),
        }
    }

    /// Records that a worker has become busy, or has nothing more to do.
    pub(crate) fn set_busy(&mut self, now: Instant, is_busy: bool) {
        self.advance_clock(now);
        self.busy = if is_busy {
            self.busy + 1
        } else {
            self.busy.saturating_sub(1)
        };
    }

    /// Returns the number of busy workers.
    pub(crate) fn busy(&self) -> u32 {
        self.busy
    }

    /// Records the times of one task.
    pub(crate) fn took(&mut self, times: &MeasuredTimes) {
        self.fetch_us += NEWS * (f64::from(times.fetch_seconds()) * 1e6 - self.fetch_us);
        self.prep_us += NEWS * (f64::from(times.prep()) * 1e6 - self.prep_us);
    }

    pub(crate) fn advance_clock(&mut self, now: Instant) -> StallClock {
        let time = now.saturating_duration_since(self.until);
        self.until = now;
        match self.busy {
            0 => self.stall_clock.add(time, 0.0, 0.0),
            // Until the first task is done, the time counts as preparing.
            _ => self
                .stall_clock
                .add(time, self.fetch_us, self.prep_us.max(1e-3)),
        }
        self.stall_clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn shares_are_of_the_time_between_two_looks() {
        let mut stall_clock = StallClock::default();
        stall_clock.add(SECOND, 0.0, 7.0);
        let before = stall_clock;
        stall_clock.add(3 * SECOND, 1.0, 0.0);
        stall_clock.add(SECOND, 0.0, 0.0);
        let shares = stall_clock.since(&before, Duration::ZERO);
        assert_eq!(shares.fetch, StallSplit::WHOLE / 4 * 3);
        assert_eq!(shares.prep, 0);
        assert_eq!(
            stall_clock.since(&stall_clock, Duration::ZERO),
            StallSplit::OTHERS
        );
        let shares = stall_clock.since(&before, 4 * SECOND);
        assert_eq!(shares.fetch, StallSplit::WHOLE / 8 * 3);
    }

    #[test]
    fn time_of_both_is_divided() {
        let mut stall_clock = StallClock::default();
        stall_clock.add(SECOND, 1.0, 3.0);
        assert_eq!(stall_clock.fetch, SECOND / 4);
        assert_eq!(stall_clock.prep, SECOND / 4 * 3);
        let shares = stall_clock.since(&StallClock::default(), Duration::ZERO);
        assert_eq!(shares.fetch + shares.prep, StallSplit::WHOLE);
    }

    #[test]
    fn workers_that_are_busy_lack_what_their_work_took() {
        let start = Instant::now();
        let mut clock = BusyClock::new(start);
        clock.set_busy(start + SECOND, true);
        clock.set_busy(start + SECOND, true);
        let times = MeasuredTimes {
            fetch: Some(3.0),
            random: Some(1.0),
            ..MeasuredTimes::default()
        };
        for _ in 0..1000 {
            clock.took(&times);
        }
        clock.set_busy(start + 5 * SECOND, false);
        clock.set_busy(start + 5 * SECOND, false);
        let stall_clock = clock.advance_clock(start + 6 * SECOND);
        let seconds = |d: Duration| d.as_secs_f64().round();
        assert_eq!(seconds(stall_clock.fetch), 3.0);
        assert_eq!(seconds(stall_clock.prep), 1.0);
        assert_eq!(stall_clock.none, 2 * SECOND);
    }
}
