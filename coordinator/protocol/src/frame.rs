//! Frames: messages as they lie on the wire.
//!
//! ```text
//! magic "CPRP" | version u16 | descriptors u16 | length u32 | reserved u32 | length bytes of rkyv archive
//! ```
//!
//! Numbers are little-endian. Descriptors travel with the header (`SCM_RIGHTS`). The version is checked before the
//! length, so that a client of another version is told about the version instead of "malformed".

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use rkyv::util::AlignedVec;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::PROTOCOL_VERSION;
use crate::message::{Reply, Request};
use crate::uploader::{UploaderEvent, UploaderRequest};

const MAGIC: [u8; 4] = *b"CPRP";
pub(crate) const HEADER: usize = 16;
/// Longest message. The longest legitimate one is an explicit list of a few million files.
pub const MAX_LENGTH: usize = 512 << 20;
/// Most descriptors that travel with one message.
pub const MAX_DESCRIPTORS: usize = 8;
/// Bytes by which the buffer of a message grows. An announced length alone therefore allocates no more than this.
const STEP: usize = 1 << 20;

/// The reason why a message could not be sent or received. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The other side closed the connection between two messages.
    Closed,
    /// The socket failed in this way, or was closed in the middle of a message.
    Io(std::io::ErrorKind),
    /// The other side is not coprep.
    Magic,
    /// The other side is another version of coprep.
    Version,
    /// The message is longer than [`MAX_LENGTH`].
    TooLong,
    /// The archive did not validate.
    Malformed,
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns the error that the other side closed the connection.
#[must_use]
pub fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the connection was closed")
}

/// Returns the error that the socket failed.
#[must_use]
pub fn failed(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io(error.kind()), "the connection failed").because(error)
}

/// Returns the error that a message is not valid.
pub fn malformed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Malformed, "malformed message").because(why)
}

pub(crate) fn too_long(bytes: usize) -> Error {
    Error::new(
        ErrorKind::TooLong,
        format!("a message of {bytes} bytes is longer than the {MAX_LENGTH} allowed"),
    )
}

fn wrong_version(theirs: u16) -> Error {
    Error::new(
        ErrorKind::Version,
        format!(
            "the other side speaks version {theirs} of the protocol, this side version {PROTOCOL_VERSION}"
        ),
    )
    .with_remedy("run `coprep stop`, and install the same version of coprep for all jobs")
}

/// A message that travels in a frame.
pub trait Message: Sized {
    /// Encodes the message as an archive.
    ///
    /// # Errors
    /// Only when memory runs out.
    fn encode(&self) -> Result<AlignedVec>;
    /// Decodes and validates an archive.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`].
    fn decode(bytes: &AlignedVec) -> Result<Self>;
}

macro_rules! message {
    ($type:ty) => {
        impl Message for $type {
            fn encode(&self) -> Result<AlignedVec> {
                rkyv::to_bytes::<rkyv::rancor::Error>(self).map_err(malformed)
            }
            fn decode(bytes: &AlignedVec) -> Result<Self> {
                rkyv::from_bytes::<$type, rkyv::rancor::Error>(bytes).map_err(malformed)
            }
        }
    };
}
message!(Request);
message!(Reply);
message!(UploaderRequest);
message!(UploaderEvent);

/// Sends a message, with descriptors if there are any.
///
/// # Errors
/// [`ErrorKind::Io`] when the other side is gone; [`ErrorKind::TooLong`].
pub fn send<M: Message>(socket: &UnixStream, message: &M, descriptors: &[RawFd]) -> Result<()> {
    let body = message.encode()?;
    if body.len() > MAX_LENGTH {
        return Err(too_long(body.len()));
    }
    let header = header(body.len(), descriptors.len());
    send_with_descriptors(socket, &header, descriptors).map_err(failed)?;
    (&mut &*socket).write_all(&body).map_err(failed)
}

pub(crate) fn header(length: usize, descriptors: usize) -> [u8; HEADER] {
    let mut h = [0; HEADER];
    h[..4].copy_from_slice(&MAGIC);
    h[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    h[6..8].copy_from_slice(&(descriptors as u16).to_le_bytes());
    h[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    h
}

/// Sends all of `header`, with descriptors if there are any.
pub(crate) fn send_with_descriptors(
    socket: &UnixStream,
    header: &[u8],
    descriptors: &[RawFd],
) -> std::io::Result<()> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control: &[_] = if descriptors.is_empty() { &[] } else { &rights };
    loop {
        let iov = [IoSlice::new(header)];
        match sendmsg::<()>(
            socket.as_raw_fd(),
            &iov,
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            // The descriptors travel with the first byte.
            Ok(n) => return (&mut &*socket).write_all(&header[n..]),
            Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives one message with its descriptors. Blocks, but respects the socket's read timeout. A signal that comes before
/// the message ends the wait with [`std::io::ErrorKind::Interrupted`].
///
/// # Errors
/// [`ErrorKind::Closed`] at the end of the connection; the other kinds if the frame is wrong.
pub fn receive<M: Message>(socket: &UnixStream) -> Result<(M, Vec<OwnedFd>)> {
    let mut header = [0u8; HEADER];
    let mut descriptors = Vec::new();
    receive_header(socket, &mut header, &mut descriptors)?;
    let length = check(&header, descriptors.len())?;
    let body = receive_body(socket, length)?;
    Ok((M::decode(&body)?, descriptors))
}

/// Receives one message as [`receive`] does, for a caller that checks for no interrupts.
///
/// A read with a time limit is never restarted after a signal, not even after one that has no handler: a process that is
/// stopped and continued, as by a debugger, is interrupted too. The time limit then begins anew.
///
/// # Errors
/// As [`receive`]. A signal is no error.
pub fn receive_despite_signals<M: Message>(socket: &UnixStream) -> Result<(M, Vec<OwnedFd>)> {
    loop {
        match receive(socket) {
            Err(e) if *e.kind() == ErrorKind::Io(std::io::ErrorKind::Interrupted) => {}
            received => return received,
        }
    }
}

fn receive_header(
    socket: &UnixStream,
    header: &mut [u8; HEADER],
    fds: &mut Vec<OwnedFd>,
) -> Result<()> {
    let mut have = 0;
    while have < HEADER {
        match receive_part(socket, &mut header[have..], fds) {
            Ok(0) if have == 0 => return Err(closed()),
            Ok(0) => return Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => have += n,
            // A signal in the middle of a header is ignored, since the header has to be completed. At the start of one,
            // the caller gets the chance to check for interrupts.
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted && have > 0 => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(())
}

/// Receives some bytes and the descriptors that came with them. Returns 0 at the end of the connection.
///
/// # Errors
/// When the socket fails, or when more descriptors came than a message may have or than this process could take. The
/// descriptors that did come are then closed.
pub(crate) fn receive_part(
    socket: &UnixStream,
    part: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(part)];
    let message = recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    // The descriptors are taken in every case, so that they are closed in every case: the kernel installs those of a
    // truncated message as well.
    let received = control.drain().filter_map(|control| match control {
        RecvAncillaryMessage::ScmRights(received) => Some(received),
        _ => None,
    });
    let received: Vec<OwnedFd> = received.flatten().collect();
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(std::io::Error::other(format!(
            "more descriptors came than the {MAX_DESCRIPTORS} allowed, or this process has none left"
        )));
    }
    if fds.len() + received.len() > MAX_DESCRIPTORS {
        return Err(std::io::Error::other(format!(
            "more than {MAX_DESCRIPTORS} descriptors came that nobody asked for"
        )));
    }
    fds.extend(received);
    Ok(message.bytes)
}

/// Checks a header and returns the length of the body.
fn check(header: &[u8; HEADER], descriptors: usize) -> Result<usize> {
    let u16_at = |i: usize| u16::from_le_bytes([header[i], header[i + 1]]);
    if header[..4] != MAGIC {
        return Err(Error::new(ErrorKind::Magic, "not a coprep message"));
    }
    if u16_at(4) != PROTOCOL_VERSION {
        return Err(wrong_version(u16_at(4)));
    }
    let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
    if length > MAX_LENGTH {
        return Err(too_long(length));
    }
    if usize::from(u16_at(6)) != descriptors {
        return Err(malformed(format!(
            "{} descriptors announced, {descriptors} came",
            u16_at(6)
        )));
    }
    Ok(length)
}

fn receive_body(mut socket: &UnixStream, length: usize) -> Result<AlignedVec> {
    let mut body = AlignedVec::with_capacity(length.min(STEP));
    while body.len() < length {
        let have = body.len();
        body.resize(length.min(have + STEP), 0);
        socket.read_exact(&mut body[have..]).map_err(failed)?;
    }
    Ok(body)
}

/// Decodes a frame from bytes, which is the whole path of a received message except the socket. It serves fuzzing.
///
/// # Errors
/// As [`receive`].
pub fn parse<M: Message>(bytes: &[u8]) -> Result<M> {
    let header = bytes.first_chunk::<HEADER>().ok_or_else(closed)?;
    let length = check(header, 0)?;
    let rest = bytes[HEADER..].get(..length).ok_or_else(closed)?;
    let mut body = AlignedVec::with_capacity(length);
    body.extend_from_slice(rest);
    M::decode(&body)
}

/// Encodes a message into the bytes that [`parse`] takes.
///
/// # Errors
/// As [`send`].
pub fn to_bytes<M: Message>(message: &M) -> Result<Vec<u8>> {
    let body = message.encode()?;
    let mut bytes = header(body.len(), 0).to_vec();
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Returns the user id of the process at the other end.
///
/// # Errors
/// When the kernel does not tell.
pub fn peer_uid(socket: &impl AsFd) -> std::io::Result<u32> {
    Ok(nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)?.uid())
}
