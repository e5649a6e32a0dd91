//! How consumers wake the coordinator.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};

/// An eventfd that the coordinator sleeps on, and that all consumers of a stream may ring.
///
/// A consumer could also swallow the ring of another (its descriptor can be read). That costs the other
/// at most the coordinator's longest sleep, and every sleep is bounded.
#[derive(Debug)]
pub struct Doorbell {
    event: EventFd,
}

impl Doorbell {
    /// A new one.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        Ok(Doorbell {
            event: event.map_err(|e| Error::os("cannot create a doorbell", e))?,
        })
    }

    /// A descriptor for a consumer.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn fd(&self) -> Result<OwnedFd> {
        self.event
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Error::os("cannot share a doorbell", e))
    }

    /// Wakes whoever waits, or the next who will.
    pub fn ring(&self) {
        ring(self.event.as_fd());
    }

    /// Forgets all rings until now.
    pub fn drain(&self) {
        // Nothing to read: nobody rang.
        let _ = self.event.read();
    }

    /// Sleeps until somebody rings or the time is up, and drains. True: somebody rang.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        let rang = matches!(poll(&mut fds, timeout), Ok(n) if n > 0);
        self.drain();
        rang
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A consumer's hand on the doorbell.
#[derive(Debug)]
pub struct Ringer {
    event: OwnedFd,
}

impl Ringer {
    /// From what [`Doorbell::fd`] gave.
    #[must_use]
    pub fn new(event: OwnedFd) -> Self {
        Ringer { event }
    }

    /// Wakes the coordinator.
    pub fn ring(&self) {
        ring(self.event.as_fd());
    }
}

fn ring(event: BorrowedFd<'_>) {
    // Full: it rings already. Any other error: the coordinator is gone, which the socket tells.
    while nix::unistd::write(event, &1u64.to_ne_bytes()) == Err(Errno::EINTR) {}
}
