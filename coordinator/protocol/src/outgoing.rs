//! Messages that are sent piece by piece, by a sender that must not block.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use rkyv::util::AlignedVec;

use crate::frame::{self, HEADER, MAX_LENGTH, Message, Result, header};

/// An encoded message, the number of its bytes that have been sent, and the descriptors that travel with its first
/// byte.
pub struct Outgoing {
    header: [u8; HEADER],
    body: AlignedVec,
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

impl Outgoing {
    /// Encodes a message.
    ///
    /// # Errors
    /// [`frame::ErrorKind::TooLong`], or when memory is short.
    pub fn new<M: Message>(message: &M, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let body = message.encode()?;
        if body.len() > MAX_LENGTH {
            return Err(frame::too_long(body.len()));
        }
        Ok(Outgoing {
            header: header(body.len(), descriptors.len()),
            body,
            sent: 0,
            descriptors,
        })
    }

    /// Returns the length of the frame in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        HEADER + self.body.len()
    }

    /// Sends as many bytes as the socket takes now, without blocking. Returns `true` if everything has been sent.
    ///
    /// # Errors
    /// When the other side is gone.
    pub fn send_some(&mut self, socket: &UnixStream) -> std::io::Result<bool> {
        while self.sent < self.bytes() {
            match self.send_part(socket) {
                Ok(sent) => {
                    self.sent += sent;
                    // The descriptors travelled with the first byte; this side needs its copies no longer.
                    self.descriptors.clear();
                }
                Err(Errno::EINTR) => {}
                // ENOBUFS means that the kernel has no memory for the message at the moment.
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    fn send_part(&self, socket: &UnixStream) -> nix::Result<usize> {
        let header = &self.header[self.sent.min(HEADER)..];
        let body = &self.body[self.sent.saturating_sub(HEADER)..];
        let parts = [IoSlice::new(header), IoSlice::new(body)];
        let descriptors: Vec<RawFd> = self.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let control: &[_] = if descriptors.is_empty() { &[] } else { &rights };
        // The flag applies to this call alone. O_NONBLOCK would also apply to the thread that reads this socket.
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(socket.as_raw_fd(), &parts, control, flags, None)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::frame;
    use crate::message::Reply;

    #[test]
    fn a_message_longer_than_the_sockets_buffer_arrives_in_parts_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let reply = Reply::Explanation("x".repeat(3 << 20));
        let passed = ours.as_fd().try_clone_to_owned().expect("a descriptor");
        let mut outgoing = Outgoing::new(&reply, vec![passed]).expect("encoded");
        assert!(!outgoing.send_some(&ours).expect("the other side is there"));
        let reader = std::thread::spawn(move || frame::receive::<Reply>(&theirs));
        while !outgoing.send_some(&ours).expect("the other side is there") {
            std::thread::yield_now();
        }
        let (received, descriptors) = reader.join().expect("no panic").expect("received");
        assert_eq!(received, reply);
        assert_eq!(descriptors.len(), 1);
    }

    #[test]
    fn who_sends_to_a_side_that_has_gone_is_told() {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        drop(theirs);
        let mut outgoing = Outgoing::new(&Reply::WantServer, Vec::new()).expect("encoded");
        assert!(outgoing.send_some(&ours).is_err());
    }
}
