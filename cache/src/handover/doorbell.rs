//! How consumers wake the coordinator.
//!
//! Each consumer has an eventfd of its own, its bell, and the coordinator sleeps on all of them by one epoll set. A bell
//! is registered edge-triggered: every ring is an event, even if the count was not read since the one before. So the
//! coordinator never reads a bell, and whatever a consumer does to the descriptor that both share (its flags, its
//! count) changes nothing but its own rings:
//!
//! - It cannot swallow the ring of another: it has no descriptor of another's bell.
//! - It cannot make the coordinator block by clearing `O_NONBLOCK`: the coordinator neither reads nor writes the bell.
//! - A bell that it keeps after it has left wakes nobody: it was taken out of the set.
//!
//! What the coordinator tells itself goes by an eventfd that nobody else has.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};

/// Events that one call fetches. Those left over are there at the next call.
const EVENTS: usize = 64;

/// The coordinator's end: all bells of a stream. See the module.
#[derive(Debug)]
pub struct Doorbell {
    bells: Arc<Epoll>,
    /// Nobody else has it.
    own: EventFd,
    /// See [`rest`](Self::rest).
    resting: AtomicBool,
}

impl Doorbell {
    /// Returns a doorbell that no consumer can ring yet.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> Result<Self> {
        let failed = |e: Errno| Error::os("cannot create a doorbell", e);
        let bells = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let own = event().map_err(failed)?;
        bells.add(&own, every_ring()).map_err(failed)?;
        Ok(Doorbell {
            bells: Arc::new(bells),
            own,
            resting: AtomicBool::new(false),
        })
    }

    /// Adds a bell for one consumer.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn bell(&self) -> Result<Bell> {
        let failed = |e: Errno| Error::os("cannot create a consumer's bell", e);
        let event = event().map_err(failed)?;
        self.bells.add(&event, every_ring()).map_err(failed)?;
        Ok(Bell {
            event,
            bells: self.bells.clone(),
        })
    }

    /// Wakes whoever waits, or the next who will.
    pub fn ring(&self) {
        ring(self.own.as_fd());
    }

    /// Says that the coordinator is about to look for the last time and then to wait: from now on
    /// [`ring_if_resting`](Self::ring_if_resting) rings.
    pub fn rest(&self) {
        self.resting.store(true, Ordering::SeqCst);
    }

    /// Rings if the coordinator waits, or is about to. To be called after a change that it looks at under a lock, once
    /// that lock was held: either the coordinator sees the change when it looks, or this sees that it rests.
    pub fn ring_if_resting(&self) {
        if self.resting.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Sleeps until somebody rings, or the time is up. Returns whether somebody rang since the last call.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::MAX);
        let rang = self.bells.wait(&mut [EpollEvent::empty(); EVENTS], timeout);
        self.resting.store(false, Ordering::SeqCst);
        // An interrupted wait has no events; whoever rang is found by the next call.
        rang.is_ok_and(|events| events > 0)
    }
}

/// One consumer's bell, as the coordinator keeps it. Dropped, the consumer's rings wake nobody any more.
#[derive(Debug)]
pub struct Bell {
    event: EventFd,
    bells: Arc<Epoll>,
}

impl Bell {
    /// Returns a descriptor for the consumer.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn fd(&self) -> Result<OwnedFd> {
        self.event
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::os("cannot share a consumer's bell", e))
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // Closing the descriptor would not take it out of the set: the consumer may still have another.
        let _ = self.bells.delete(&self.event);
    }
}

/// A consumer's hand on its bell.
#[derive(Debug)]
pub struct Ringer {
    event: OwnedFd,
}

impl Ringer {
    /// From what [`Bell::fd`] gave.
    #[must_use]
    pub fn new(event: OwnedFd) -> Self {
        Ringer { event }
    }

    /// Wakes the coordinator.
    pub fn ring(&self) {
        ring(self.event.as_fd());
    }
}

fn event() -> nix::Result<EventFd> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
}

/// Edge-triggered: a bell needs no reading between two rings.
fn every_ring() -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)
}

fn ring(event: BorrowedFd<'_>) {
    // Full: it rings already. Any other error: the coordinator is gone, which the socket tells.
    while nix::unistd::write(event, &1u64.to_ne_bytes()) == Err(Errno::EINTR) {}
}
