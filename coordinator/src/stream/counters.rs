//! Counters of a stream's work since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use coprep_protocol::message::Totals;
use coprep_shared_memory::lock::lock;

use crate::observe::preparation_cost::PreparationCost;

#[derive(Default)]
pub(super) struct Counters {
    prepared: AtomicU64,
    delivered: AtomicU64,
    fetched: AtomicU64,
    fetched_bytes: AtomicU64,
    failed: AtomicU64,
    fetch_ns: AtomicU64,
    prep_ns: AtomicU64,
    fetched_by_visit: Mutex<Vec<u64>>,
}

fn nanoseconds(seconds: f32) -> u64 {
    (f64::from(seconds) * 1e9).round() as u64
}

/// See [`Totals::fetched_by_visit`].
const VISITS_COUNTED: u64 = 256;

impl Counters {
    pub(super) fn add(&self, cost: &PreparationCost, visit: u64) {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        self.fetched
            .fetch_add(u64::from(cost.fetched_bytes > 0), Ordering::Relaxed);
        self.fetched_bytes
            .fetch_add(cost.fetched_bytes, Ordering::Relaxed);
        self.fetch_ns
            .fetch_add(nanoseconds(cost.times.fetch_seconds()), Ordering::Relaxed);
        self.prep_ns
            .fetch_add(nanoseconds(cost.times.prep()), Ordering::Relaxed);
        if visit < VISITS_COUNTED {
            self.count_visit(visit as usize, cost.fetched_bytes);
        }
    }

    pub(super) fn add_delivered(&self, samples: u64) {
        self.delivered.fetch_add(samples, Ordering::Relaxed);
    }

    pub(super) fn add_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn visits(&self) -> MutexGuard<'_, Vec<u64>> {
        lock(&self.fetched_by_visit)
    }

    fn count_visit(&self, visit: usize, bytes: u64) {
        let mut visits = self.visits();
        if visits.len() <= visit {
            visits.resize(visit + 1, 0);
        }
        visits[visit] += bytes;
    }

    pub(super) fn totals(&self) -> Totals {
        let seconds = |ns: &AtomicU64| ns.load(Ordering::Relaxed) as f64 / 1e9;
        Totals {
            prepared: self.prepared.load(Ordering::Relaxed),
            delivered: self.delivered.load(Ordering::Relaxed),
            fetched_bytes: self.fetched_bytes.load(Ordering::Relaxed),
            fetched: self.fetched.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            fetch_s: seconds(&self.fetch_ns),
            prep_s: seconds(&self.prep_ns),
            fetched_by_visit: self.visits().clone(),
        }
    }
}
