//! Artificially slow storage, to measure how a job would do on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Rate and latency that reads are held to.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Slowness {
    /// Bytes a second that all reads share, or `None` for no bound.
    pub bytes_per_s: Option<u64>,
    /// Time that each read takes in addition.
    pub latency: Duration,
}

impl Slowness {
    /// Returns `true` if nothing is slowed.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Slowness::default()
    }
}

/// One storage device. Reads wait for their share of its rate, in the order in which they come.
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
    /// Returns a throttle, to be shared by all datasets on the same storage.
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

    /// Locks the device. Each change is one step, so a panic leaves no half-done change behind the lock.
    fn lock(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the slowness for reads that begin from now on.
    pub fn set(&self, slowness: Slowness) {
        let mut device = self.lock();
        device.slowness = slowness;
        device.free_at = Instant::now();
        self.is_on.store(!slowness.is_none(), Ordering::Relaxed);
    }

    /// Returns `true` if reads are slowed.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Sleeps for the time in which the device would read `bytes`.
    pub(crate) fn wait(&self, bytes: u64) {
        if self.is_on() {
            let done = self.book(bytes);
            std::thread::sleep(done.saturating_duration_since(Instant::now()));
        }
    }

    /// Reserves the device for a read of `bytes`, and returns the time at which the read is done.
    fn book(&self, bytes: u64) -> Instant {
        let now = Instant::now();
        let mut device = self.lock();
        let latency = device.slowness.latency;
        // A rate of 0 counts as no bound: the division would give a time that `from_secs_f64` panics at.
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
