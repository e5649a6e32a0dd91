//! A thread that looks after the connection of a job with several ranks while its user computes.
//!
//! When the coordinator has ended, its successor serves a job only after all ranks have come again. A rank that waits
//! for the others in a collective operation, with a batch in hand, makes no request. Therefore this thread notices the
//! loss and takes the rank's place in the new stream. Without it, one rank would wait in the collective operation, and
//! the other for the first to come back.

use std::sync::{Arc, Weak};

use crate::attachment::Owner;
use crate::error::{Result, not_started};
use crate::loader::Loader;
use crate::timeout::POLL_INTERVAL;

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
