//! Bounded waits that their owner can interrupt.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Interrupt, Result, disconnected, interrupted};

/// Longest time between two calls of an [`InterruptCheck`]. Ctrl-C in Python takes effect within it.
pub const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Callback that runs at least every [`POLL_INTERVAL`] of a wait. If it fails, the wait ends with
/// [`crate::ErrorKind::Interrupted`].
pub type InterruptCheck = Arc<dyn Fn() -> std::result::Result<(), Interrupt> + Send + Sync>;

/// Returns a check that never interrupts.
#[must_use]
pub fn no_interrupt() -> InterruptCheck {
    Arc::new(|| Ok(()))
}

/// A bounded wait and its start.
pub(crate) struct Timeout<'a> {
    interrupt_check: &'a InterruptCheck,
    start: Instant,
    limit: Duration,
}

impl<'a> Timeout<'a> {
    pub(crate) fn new(limit: Duration, interrupt_check: &'a InterruptCheck) -> Self {
        Timeout {
            interrupt_check,
            start: Instant::now(),
            limit,
        }
    }

    pub(crate) fn interrupt_check(&self) -> &'a InterruptCheck {
        self.interrupt_check
    }

    pub(crate) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.waited())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.waited() >= self.limit
    }

    /// Sleeps for `time`, or until the limit if that comes first. The owner may interrupt it.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time.min(self.left());
        loop {
            (self.interrupt_check)().map_err(interrupted)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Waits until `fd` can be read or is at its end. Returns whether that happened within the limit.
    pub(crate) fn until_readable(&self, fd: BorrowedFd<'_>) -> Result<bool> {
        loop {
            (self.interrupt_check)().map_err(interrupted)?;
            let left = self.left();
            // The poll comes even if no time is left, so that a limit of zero still finds data that has come.
            if events(fd, PollFlags::POLLIN, left.min(POLL_INTERVAL))?.is_some() {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }
}

/// Returns the events that `poll` reports for `fd`, or `None` if there was none in time or a signal ended the wait.
pub(crate) fn events(
    fd: BorrowedFd<'_>,
    wanted: PollFlags,
    time: Duration,
) -> Result<Option<PollFlags>> {
    // The time is rounded up, so that a wait of less than a millisecond does not become a busy loop.
    let time = PollTimeout::try_from(time.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(fd, wanted)];
    loop {
        match poll(&mut fds, time) {
            // A look without a wait is repeated: it has to find what has come. A wait ends, so that its owner checks
            // for interrupts at once, and waits for the rest of its time.
            Err(Errno::EINTR) if time == PollTimeout::ZERO => {}
            Ok(0) | Err(Errno::EINTR) => return Ok(None),
            Ok(_) => return Ok(fds[0].revents()),
            Err(e) => return Err(disconnected(format!("poll: {e}"))),
        }
    }
}
