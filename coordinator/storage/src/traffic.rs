//! Counts of the requests that are sent to a store.
//!
//! The counts are taken below the client of the store, so that its own retries and the pages of listings count too.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stragglers::Stragglers;

/// Numbers of requests to a store, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTraffic {
    /// Name of the store, such as `s3://bucket`.
    pub store: String,
    /// Requests that were sent, including repeated ones and requests for credentials.
    pub requests: u64,
    /// Requests that were answered, whatever the answer was.
    pub answered: u64,
    /// Requests without an answer, and those whose answer made the client try again or give up: statuses of 5xx, 429,
    /// 408, 401 and 403.
    pub failed: u64,
    /// Requests that were sent a second time, because the first one was not answered in the usual time.
    pub second: u64,
    /// Bytes of objects that were received.
    pub received: u64,
}

impl StoreTraffic {
    /// Adds the requests of other clients of the store.
    pub fn add(&mut self, other: &StoreTraffic) {
        self.requests += other.requests;
        self.answered += other.answered;
        self.failed += other.failed;
        self.second += other.second;
        self.received += other.received;
    }
}

/// The counters of a store.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    requests: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    received: AtomicU64,
    pub(crate) stragglers: Stragglers,
}

impl TrafficCounters {
    pub(crate) fn count_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a request that is sent.
    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a request. `is_failed` says that it was not answered, or that the answer made the client try
    /// again or give up.
    pub(crate) fn count_end(&self, is_answered: bool, is_failed: bool) {
        for (counter, counts) in [(&self.answered, is_answered), (&self.failed, is_failed)] {
            counter.fetch_add(u64::from(counts), Ordering::Relaxed);
        }
    }

    pub(crate) fn of(&self, store: &str) -> StoreTraffic {
        StoreTraffic {
            store: store.to_owned(),
            requests: self.requests.load(Ordering::Relaxed),
            answered: self.answered.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            second: self.stragglers.second_requests(),
            received: self.received.load(Ordering::Relaxed),
        }
    }
}
