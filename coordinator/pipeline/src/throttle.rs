//! Storage slower than it is: to see what a slower one would do.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How slow.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Slowness {
    /// Bytes a second that all reads together get; None: as many as the storage gives.
    pub bytes_per_s: Option<u64>,
    /// What each read takes beside.
    pub latency: Duration,
}

impl Slowness {
    /// Whether it changes anything.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Slowness::default()
    }
}

/// One device: reads wait for their share of its rate, in the order they come.
#[derive(Debug)]
pub(crate) struct Throttle {
    slowness: Slowness,
    free_at: Mutex<Instant>,
}

impl Throttle {
    pub(crate) fn new(slowness: Slowness) -> Self {
        Throttle {
            slowness,
            free_at: Mutex::new(Instant::now()),
        }
    }

    /// Takes as long as reading so many bytes would.
    pub(crate) fn wait(&self, bytes: u64) {
        let done = self.book(bytes) + self.slowness.latency;
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
    }

    fn book(&self, bytes: u64) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.slowness.bytes_per_s.filter(|&rate| rate > 0) else {
            return now;
        };
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = now.max(*free_at) + takes;
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_share_the_rate_and_each_has_the_latency() {
        let throttle = Throttle::new(Slowness {
            bytes_per_s: Some(1000),
            latency: Duration::ZERO,
        });
        let (now, first, second) = (Instant::now(), throttle.book(100), throttle.book(100));
        assert!(first - now >= Duration::from_millis(99));
        assert_eq!(second - first, Duration::from_millis(100));
    }
}
