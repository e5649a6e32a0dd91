//! The sending side of a connection, shared by its session and its stream.

use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use coprep_protocol::frame::{self, FrameError};
use coprep_protocol::message::Reply;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A client that does not read its socket for this long has ended its connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends whole replies, one at a time.
pub(crate) struct Outbox {
    socket: Mutex<UnixStream>,
}

impl Outbox {
    pub(crate) fn new(socket: &UnixStream) -> std::io::Result<Self> {
        let socket = socket.try_clone()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Outbox {
            socket: Mutex::new(socket),
        })
    }

    pub(crate) fn send(&self, reply: &Reply) -> Result<(), FrameError> {
        self.send_with(reply, &[])
    }

    pub(crate) fn send_with(&self, reply: &Reply, descriptors: &[RawFd]) -> Result<(), FrameError> {
        let socket = self
            .socket
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        frame::send(&socket, reply, descriptors)
    }

    /// Whether the other side has hung up, or is no more.
    pub(crate) fn is_gone(&self) -> bool {
        let socket = self
            .socket
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // An end is told unasked.
        let mut socket = [PollFd::new(socket.as_fd(), PollFlags::empty())];
        let ends = PollFlags::POLLHUP | PollFlags::POLLERR;
        let seen = poll(&mut socket, PollTimeout::ZERO).map(|_| socket[0].revents());
        matches!(seen, Ok(Some(seen)) if seen.intersects(ends))
    }

    /// Ends the connection, both ways; the session's reader notices.
    pub(crate) fn hang_up(&self) {
        let socket = self
            .socket
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}
