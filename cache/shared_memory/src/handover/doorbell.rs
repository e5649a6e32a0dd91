//! The doorbell by which consumers wake the coordinator.
//!
//! Each consumer has its own eventfd, its bell, and the coordinator sleeps on all of them through one epoll set. A bell
//! is registered edge-triggered, so every ring is an event even if the count was not read since the last ring. The
//! coordinator therefore never reads a bell. Both processes share the descriptor, but whatever a consumer does to its
//! flags or its count affects only that consumer's rings:
//!
//! - It cannot swallow the ring of another consumer, because it has no descriptor of that bell.
//! - It cannot block the coordinator by clearing `O_NONBLOCK`, because the coordinator neither reads nor writes the
//!   bell.
//! - A bell that it keeps after it has left wakes nobody, because the bell was removed from the set.
//!
//! The coordinator wakes itself through an eventfd that no other process has.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Result, os};

/// Events that one call fetches. Any others stay ready for the next call.
const EVENTS: usize = 64;

/// The coordinator's end of all bells of a stream. See the module.
#[derive(Debug)]
pub struct Doorbell {
    bells: Arc<Epoll>,
    /// Eventfd by which the coordinator wakes itself. No other process has it.
    own: EventFd,
    /// True between [`set_idle`](Self::set_idle) and the end of the wait.
    is_idle: AtomicBool,
}

impl Doorbell {
    /// Returns a doorbell that no consumer can ring yet.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> Result<Self> {
        let failed = |e: Errno| os("cannot create a doorbell", e);
        let bells = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let own = event().map_err(failed)?;
        bells.add(&own, every_ring()).map_err(failed)?;
        Ok(Doorbell {
            bells: Arc::new(bells),
            own,
            is_idle: AtomicBool::new(false),
        })
    }

    /// Adds a bell for one consumer.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn bell(&self) -> Result<Bell> {
        let failed = |e: Errno| os("cannot create a consumer's bell", e);
        let event = event().map_err(failed)?;
        self.bells.add(&event, every_ring()).map_err(failed)?;
        Ok(Bell {
            event,
            bells: self.bells.clone(),
        })
    }

    /// Wakes the thread that waits, or the next one that waits.
    pub fn ring(&self) {
        ring(self.own.as_fd());
    }

    /// Announces that the coordinator is about to look for the last time and then to wait. From now on
    /// [`ring_if_idle`](Self::ring_if_idle) rings.
    pub fn set_idle(&self) {
        self.is_idle.store(true, Ordering::SeqCst);
    }

    /// Rings if the coordinator waits or is about to.
    ///
    /// The caller has made a change under a lock, under which the coordinator looks too, and has released it. So either
    /// the coordinator sees the change when it looks, or this call sees that it is idle.
    pub fn ring_if_idle(&self) {
        if self.is_idle.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Sleeps until a bell rings or the time is up. Returns whether a bell rang since the last call.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::MAX);
        let rang = self.bells.wait(&mut [EpollEvent::empty(); EVENTS], timeout);
        self.is_idle.store(false, Ordering::SeqCst);
        // An interrupted wait has no events. The next call finds any ring.
        rang.is_ok_and(|events| events > 0)
    }
}

/// One consumer's bell, as the coordinator keeps it. After it is dropped, the consumer's rings wake nobody.
#[derive(Debug)]
pub struct Bell {
    event: EventFd,
    bells: Arc<Epoll>,
}

impl Bell {
    /// Returns a descriptor for the consumer.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn fd(&self) -> Result<OwnedFd> {
        self.event
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| os("cannot share a consumer's bell", e))
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // Closing the descriptor would not remove it from the set, because the consumer may still hold a copy.
        let _ = self.bells.delete(&self.event);
    }
}

/// A consumer's end of its bell.
#[derive(Debug)]
pub struct Ringer {
    event: OwnedFd,
}

impl Ringer {
    /// Wraps the descriptor that [`Bell::fd`] returned.
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

/// Returns an edge-triggered event, so that a bell needs no reading between two rings.
fn every_ring() -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)
}

fn ring(event: BorrowedFd<'_>) {
    // If the count is full, the bell rings already. After any other error the coordinator is gone, which the socket
    // reports.
    while nix::unistd::write(event, &1u64.to_ne_bytes()) == Err(Errno::EINTR) {}
}
