//! A thread that looks after the connection of a job with several ranks while its user computes.
//!
//! When the coordinator has ended, its successor serves a job only after all ranks have come again. A rank that waits
//! for the others in a collective operation, with a batch in hand, makes no request. Therefore this thread notices the
//! loss and takes the rank's place in the new stream. Without it, one rank would wait in the collective operation, and
//! the other for the first to come back.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::attachment::Owner;
use crate::error::{Result, not_started};
use crate::loader::Loader;
use crate::timeout::POLL_INTERVAL;

/// Pause after a failed attempt to attach anew. The attempt itself may have lasted long.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A series of failed attempts to attach anew.
#[derive(Clone, Copy)]
pub(super) struct FailedAttempts {
    since: Instant,
    latest: Instant,
}

impl FailedAttempts {
    /// Adds an attempt to the series `before`.
    pub(super) fn and_another(before: Option<FailedAttempts>) -> Self {
        let latest = Instant::now();
        FailedAttempts {
            since: before.map_or(latest, |failed| failed.since),
            latest,
        }
    }

    /// Returns `true` if it is time for the next attempt. No attempt is due after `limit`.
    pub(super) fn is_due(&self, limit: Duration) -> bool {
        self.latest.elapsed() >= RETRY_PAUSE && self.since.elapsed() < limit
    }
}

/// Starts the thread, which ends with the loader.
pub(super) fn start(loader: &Arc<Loader>) -> Result<()> {
    let (loader, owner) = (Arc::downgrade(loader), Owner::current());
    let thread = std::thread::Builder::new().name("coprep-watch".into());
    let started = thread.spawn(move || run(&loader, owner));
    started
        .map(drop)
        .map_err(|e| not_started(format!("a thread: {e}")))
}

fn run(loader: &Weak<Loader>, owner: Owner) {
    while owner.is_here() {
        std::thread::sleep(POLL_INTERVAL);
        // The reference is weak, so that this thread does not keep the loader alive.
        match loader.upgrade() {
            Some(loader) => loader.reattach_if_lost(),
            None => return,
        }
    }
}
