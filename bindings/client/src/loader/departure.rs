//! Closing of a loader, and the departure of its rank from the job.
//!
//! When a job of several ranks loses its coordinator, its ranks meet again in another stream, which begins when all are
//! there. A rank that has left does not come. Therefore it announces its departure before it goes ([`Departure`]): to
//! its coordinator, which tells the other ranks, or else to a coordinator that another rank has started meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coprep_protocol::message::{Departure, Reply, Request};
use coprep_shared_memory::lock::lock;

use crate::connection::{ConnectOptions, Connection};
use crate::error::ErrorKind;
use crate::loader::{Loader, LoaderState};
use crate::timeout::{InterruptCheck, Timeout, no_interrupt};

/// Longest search for a coordinator. A rank that needs one starts it as soon as it sees that the previous one is gone.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two attempts to find one.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

impl Loader {
    /// Leaves the coordinator. Batches that are held stay valid. The other ranks of the job go on without this one.
    pub fn close(&self) {
        if !self.owner.is_here() {
            return;
        }
        // Set before the lock is taken: the watch may hold it while it reconnects, and gives it up when it sees this.
        self.closing.store(true, Ordering::Relaxed);
        let mut inner = lock(&self.inner);
        if !std::mem::replace(&mut inner.closed, true) {
            self.leave(&mut inner);
        }
    }

    fn leave(&self, inner: &mut LoaderState) {
        if let Some(credentials) = &self.options.credentials {
            credentials.close();
        }
        let departure = self.departure(inner);
        let mut link = inner.link.take();
        let is_announced = match (&mut link, &departure) {
            (Some(link), Some(departure)) => link.announce_departure(departure.clone()),
            (_, departure) => departure.is_none(),
        };
        if let Some(link) = link {
            link.leave();
        }
        if let Some(uploader) = inner.uploader.take() {
            uploader.end();
        }
        // The other ranks may have lost the same coordinator, and look for this rank at the next one.
        if let Some(departure) = departure.filter(|_| !is_announced) {
            self.announce_to_any_coordinator(departure);
        }
    }

    /// Returns the departure to announce, or `None` if nobody has to know: the rank is alone, or its job has not begun.
    fn departure(&self, inner: &LoaderState) -> Option<Departure> {
        let has_others = self.options.attach.world_size > 1;
        let token = inner.token.filter(|_| has_others)?;
        Some(Departure {
            token,
            rank: self.options.attach.rank,
            resume: inner.resume()?,
        })
    }

    /// Announces to whichever coordinator runs that this rank has left. If none appears in time, no rank needs to know.
    fn announce_to_any_coordinator(&self, departure: Departure) {
        let interrupt_check = no_interrupt();
        let timeout = Timeout::new(SEARCH_TIMEOUT, &interrupt_check);
        let options = ConnectOptions::find(&self.options.name);
        let request = Request::Leave(departure);
        while !timeout.is_over() {
            let answer = Connection::open(&self.options.paths, &options)
                .and_then(|c| c.ask(&request, "the departure", timeout.left(), &interrupt_check));
            match answer {
                // It would be refused again.
                Err(e) if matches!(e.kind(), ErrorKind::Refused(_)) => return,
                Ok(Reply::Left { is_known: true }) => return,
                // This coordinator may end, too, before the other ranks come to it.
                _ => drop(timeout.sleep(RETRY_PAUSE)),
            }
        }
    }

    /// Records ranks that have left the job.
    pub(super) fn note_departed(&self, inner: &mut LoaderState, departed: Vec<Departure>) {
        let (rank, ranks) = (self.options.attach.rank, self.options.attach.world_size);
        let others = departed
            .into_iter()
            .filter(|d| d.rank != rank && d.rank < ranks);
        inner.departed.extend(others.map(|d| (d.rank, d)));
    }

    /// Returns a check that ends a wait when another thread wants to close the loader.
    pub(super) fn until_closing(&self) -> InterruptCheck {
        let closing = self.closing.clone();
        Arc::new(move || {
            if closing.load(Ordering::Relaxed) {
                Err("the loader is being closed".into())
            } else {
                Ok(())
            }
        })
    }
}
