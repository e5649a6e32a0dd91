//! Waits for descriptors that no signal cuts short.
//!
//! `poll` returns early for every signal that a handler of the process takes, and is not restarted whatever the
//! handler's flags are. A caller that takes this for the end of its time limit would give up on a healthy peer.

use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout};

/// Waits until one of `fds` has an event, or `limit` has passed. `None` waits without a limit. Returns the number of
/// descriptors that have an event: 0 only after the whole time.
///
/// # Errors
/// When the kernel refuses the call. A signal is no error.
pub fn poll(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<usize> {
    // A limit too far away for the clock is as good as none.
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match nix::poll::poll(fds, left.map_or(PollTimeout::NONE, rounded_up)) {
            // The kernel's longest wait is shorter than the longest limit.
            Ok(0) if left.is_none_or(|left| !left.is_zero()) => {}
            Err(Errno::EINTR) => {}
            Ok(ready) => return Ok(ready.cast_unsigned() as usize),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Returns `time` in whole milliseconds, rounded up so that a rest of less than one does not become a busy loop.
fn rounded_up(time: Duration) -> PollTimeout {
    PollTimeout::try_from(time.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
}
