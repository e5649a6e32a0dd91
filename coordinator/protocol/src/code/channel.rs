//! A connection with a process of user code, over which messages of any length go whole, with descriptors beside them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use crate::frame;
use crate::polling::poll;

/// Longest message. A longer announced length is refused before any memory is allocated for it.
const MAX_LENGTH: usize = 64 << 20;
/// Free room that each read is given, at least.
const STEP: usize = 16 << 10;
/// Largest receive buffer that is kept while it is empty. A larger one is freed, since very long messages are rare.
const KEPT: usize = 1 << 20;

/// One end of a connection with a fork server or a worker.
pub struct Channel {
    socket: UnixStream,
    incoming: Incoming,
    descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Creates a channel over a connected socket.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        Channel {
            socket,
            incoming: Incoming::default(),
            descriptors: Vec::new(),
        }
    }

    /// Sends a message, with descriptors if there are any.
    ///
    /// # Errors
    /// When the other side is gone.
    pub fn send(&self, message: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(message);
        frame::send_with_descriptors(&self.socket, &bytes, descriptors)
    }

    /// Receives the next message. Returns `None` if none comes within `limit`, which no signal shortens.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the other side is gone; another error for a message that is too long.
    pub fn receive(&mut self, limit: Duration) -> io::Result<Option<Vec<u8>>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(message) = self.incoming.message()? {
                return Ok(Some(message));
            }
            if !self.is_readable(end.saturating_duration_since(Instant::now()))? {
                return Ok(None);
            }
            self.read()?;
        }
    }

    /// Takes the oldest descriptor that came with the messages so far. It may belong to a message that has not been
    /// received yet, so call this only for a message that has a descriptor.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        (!self.descriptors.is_empty()).then(|| self.descriptors.remove(0))
    }

    /// Returns `true` if the other side has hung up.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|n| n > 0)
    }

    /// Closes the connection in both directions.
    pub fn hang_up(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn is_readable(&self, limit: Duration) -> io::Result<bool> {
        // The thread polls before it reads, because a thread that waits in recvmsg also wakes when the other side has
        // read data that was sent to it.
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, Some(limit)).map(|n| n > 0)
    }

    fn read(&mut self) -> io::Result<()> {
        let room = self.incoming.room();
        match frame::receive_part(&self.socket, room, &mut self.descriptors) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.incoming.came(read);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            // The other side ended without reading everything that was sent to it.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Err(e) => Err(e),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes that were received but not taken yet.
#[derive(Default)]
pub struct Incoming {
    /// Memory for the bytes; they lie in `from..to`.
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Incoming {
    /// Takes the next message. Returns `None` if it has not arrived completely.
    ///
    /// # Errors
    /// When the announced length is above the limit.
    pub fn message(&mut self) -> io::Result<Option<Vec<u8>>> {
        let received = &self.buffer[self.from..self.to];
        let Some((&length, rest)) = received.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_LENGTH {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let message = rest.get(..length).map(<[u8]>::to_vec);
        if message.is_some() {
            self.from += 4 + length;
        }
        Ok(message)
    }

    /// Returns free room for receiving more. Memory is allocated only for a message that is longer than those before
    /// it, and is not kept for a very long one.
    pub fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.to == 0 && self.buffer.len() > KEPT {
            self.buffer = Vec::new();
        }
        let needed = self.to + STEP;
        if self.buffer.len() < needed {
            let size = needed.max(self.buffer.len() * 2).max(2 * STEP);
            self.buffer.resize(size, 0);
        }
        &mut self.buffer[self.to..]
    }

    /// Notes that `bytes` bytes were received into the room.
    pub fn came(&mut self, bytes: usize) {
        self.to = (self.to + bytes).min(self.buffer.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_whatever_their_length() {
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        let (here, mut there) = (Channel::new(here), Channel::new(there));
        let long = vec![7u8; 3 * STEP + 1];
        let sender = std::thread::spawn(move || {
            for message in [&b"a"[..], b"", &long] {
                here.send(message, &[]).expect("sent");
            }
        });
        let limit = Duration::from_secs(5);
        let mut next = || there.receive(limit).expect("received").expect("in time");
        assert_eq!(next(), b"a");
        assert_eq!(next(), b"");
        assert_eq!(next().len(), 3 * STEP + 1);
        sender.join().expect("no panic");
        let end = there.receive(limit).expect_err("the other side is gone");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        assert!(there.is_disconnected());
    }

    #[test]
    fn who_goes_without_reading_all_is_heard_to_the_end() {
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        let (mut here, there) = (Channel::new(here), Channel::new(there));
        here.send(b"never read", &[]).expect("sent");
        there.send(b"last words", &[]).expect("sent");
        drop(there);
        let limit = Duration::from_secs(5);
        assert_eq!(
            here.receive(limit).expect("received").expect("in time"),
            b"last words"
        );
        let end = here.receive(limit).expect_err("the other side is gone");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_length_that_is_too_long_is_refused_before_it_is_read() {
        let (mut here, there) = UnixStream::pair().expect("a pair of sockets");
        io::Write::write_all(&mut here, &u32::MAX.to_le_bytes()).expect("written");
        let mut there = Channel::new(there);
        assert!(there.receive(Duration::from_secs(5)).is_err());
    }
}
