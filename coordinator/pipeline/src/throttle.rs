//! Storage slower than it is: to see what a slower one would do.

use std::sync::atomic::{AtomicBool, Ordering};
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
pub struct ReadThrottle {
    is_on: AtomicBool,
    device: Mutex<Device>,
}

#[derive(Debug)]
struct Device {
    slowness: Slowness,
    free_at: Instant,
}

impl ReadThrottle {
    /// For all datasets that are to share it.
    #[must_use]
    pub fn new(slowness: Slowness) -> Self {
        ReadThrottle {
            is_on: AtomicBool::new(!slowness.is_none()),
            device: Mutex::new(Device {
                slowness,
                free_at: Instant::now(),
            }),
        }
    }

    /// Changes it, for reads that begin from now on.
    pub fn set(&self, slowness: Slowness) {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        device.slowness = slowness;
        device.free_at = Instant::now();
        self.is_on.store(!slowness.is_none(), Ordering::Relaxed);
    }

    /// Takes as long as reading so many bytes would.
    pub(crate) fn wait(&self, bytes: u64) {
        if self.is_on.load(Ordering::Relaxed) {
            let done = self.book(bytes);
            std::thread::sleep(done.saturating_duration_since(Instant::now()));
        }
    }

    fn book(&self, bytes: u64) -> Instant {
        let now = Instant::now();
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let latency = device.slowness.latency;
        let Some(rate) = device.slowness.bytes_per_s.filter(|&rate| rate > 0) else {
            return now + latency;
        };
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        device.free_at = now.max(device.free_at) + takes;
        device.free_at + latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_share_the_rate_and_each_has_the_latency() {
        let throttle = ReadThrottle::new(Slowness {
            bytes_per_s: Some(1000),
            latency: Duration::ZERO,
        });
        let (now, first, second) = (Instant::now(), throttle.book(100), throttle.book(100));
        assert!(first - now >= Duration::from_millis(99));
        assert_eq!(second - first, Duration::from_millis(100));
    }

    #[test]
    fn what_is_set_holds_from_then_on() {
        let throttle = ReadThrottle::new(Slowness::default());
        let latency = Duration::from_secs(5);
        assert!(throttle.book(1 << 40) <= Instant::now());
        throttle.set(Slowness {
            latency,
            bytes_per_s: None,
        });
        assert!(throttle.book(1) > Instant::now() + latency / 2);
        throttle.set(Slowness::default());
        assert!(throttle.book(1 << 40) <= Instant::now());
    }
}
