//! Second requests for those that a store is slow to answer.
//!
//! Of many requests to a store, a few take many times as long as the others, and some are never answered. Another request
//! for the same usually is answered at once. So a request without an answer after twice the time that 99 of 100 take is
//! sent again, and the first answer counts. The bytes of an object that stop coming are asked for again too.
//!
//! Second requests are one in [`ONE_IN`] at most, so that a store that is slow as a whole has no more to do for them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of requests for each second one.
const ONE_IN: u64 = 50;
/// Number of answers that the usual time is that of, and after how many it is computed anew.
const ANSWERS: usize = 256;
const RENEWED_AFTER: usize = 32;
/// The time that 99 of 100 answers take counts this many times.
const TIMES: u32 = 2;
/// Shortest wait, for an answer and for more bytes of a body. Samples are read further ahead than this, so less need not
/// be won.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// The times of a store's answers, and the numbers of first and second requests.
#[derive(Debug, Default)]
pub(crate) struct Stragglers {
    /// The latest times, in microseconds.
    recent: Mutex<Recent>,
    /// Microseconds after which a request is sent again, or 0 if too few answers came yet.
    wait_us: AtomicU64,
    first: AtomicU64,
    second: AtomicU64,
}

#[derive(Debug, Default)]
struct Recent {
    times: Vec<u64>,
    /// Position of the oldest time, once there are [`ANSWERS`].
    next: usize,
    since_renewed: usize,
}

impl Stragglers {
    /// Counts a request.
    pub(crate) fn count(&self) {
        self.first.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the time of an answer.
    pub(crate) fn answered(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // Nothing that holds the lock can panic.
        let Ok(mut recent) = self.recent.lock() else {
            return;
        };
        if let Some(renewed) = recent.add(time) {
            let wait = renewed.saturating_mul(TIMES.into());
            self.wait_us.store(wait.max(1), Ordering::Relaxed);
        }
    }

    /// Returns the time after which a request may be sent again that is not answered, or whose body stops coming. `None` if
    /// it may not.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let wait = self.wait_us.load(Ordering::Relaxed);
        (wait > 0).then(|| Duration::from_micros(wait).max(SHORTEST_WAIT))
    }

    /// Returns `true` if one more second request may be sent, and counts it.
    pub(crate) fn may_send_second(&self) -> bool {
        let (first, second) = (&self.first, &self.second);
        // Several threads may ask at once, and exceed the share by as many.
        let may = second.load(Ordering::Relaxed) * ONE_IN < first.load(Ordering::Relaxed);
        if may {
            second.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    /// Returns the number of second requests so far.
    pub(crate) fn second_requests(&self) -> u64 {
        self.second.load(Ordering::Relaxed)
    }
}

impl Recent {
    /// Adds a time. Now and then returns the time that 99 of 100 answers take.
    fn add(&mut self, time: u64) -> Option<u64> {
        if self.times.len() < ANSWERS {
            self.times.push(time);
        } else {
            self.times[self.next] = time;
            self.next = (self.next + 1) % ANSWERS;
        }
        self.since_renewed += 1;
        if self.since_renewed < RENEWED_AFTER {
            return None;
        }
        self.since_renewed = 0;
        let mut times = self.times.clone();
        let at = times.len() * 99 / 100;
        Some(*times.select_nth_unstable(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(times_ms: impl IntoIterator<Item = u64>) -> Stragglers {
        let stragglers = Stragglers::default();
        for time in times_ms {
            stragglers.count();
            stragglers.answered(Duration::from_millis(time));
        }
        stragglers
    }

    #[test]
    fn nothing_is_sent_again_before_the_usual_time_is_known() {
        assert_eq!(seen([50; RENEWED_AFTER - 1]).wait(), None);
        assert!(seen([50; RENEWED_AFTER]).wait().is_some());
    }

    #[test]
    fn a_request_is_sent_again_after_twice_the_time_that_most_take() {
        let some_late = seen((0..256).map(|i| if i % 200 == 0 { 90_000 } else { 1500 }));
        assert_eq!(some_late.wait(), Some(Duration::from_secs(3)));
        assert_eq!(seen([1; 64]).wait(), Some(SHORTEST_WAIT));
    }

    #[test]
    fn times_of_long_ago_do_not_count() {
        let times = (0..256).map(|_| 5000).chain((0..256).map(|_| 1500));
        assert_eq!(seen(times).wait(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn few_requests_are_second_ones() {
        let stragglers = seen([50; 1000]);
        let sent = (0..1000).filter(|_| stragglers.may_send_second()).count();
        assert_eq!(sent as u64, 1000 / ONE_IN);
        assert_eq!(stragglers.second_requests(), 1000 / ONE_IN);
    }
}
