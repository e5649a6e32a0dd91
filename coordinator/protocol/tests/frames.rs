//! Frames over real sockets, and malformed bytes.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use coprep_protocol::frame::{self, ErrorKind};
use coprep_protocol::message::{Reply, Request};
use proptest::prelude::*;

fn hello() -> Request {
    Request::Hello {
        name: "train.py".into(),
        pid: 7,
    }
}

#[test]
fn a_message_arrives_as_it_was_sent() {
    let (a, b) = UnixStream::pair().unwrap();
    frame::send(&a, &hello(), &[]).unwrap();
    let (got, fds) = frame::receive::<Request>(&b).unwrap();
    assert_eq!((got, fds.len()), (hello(), 0));
}

#[test]
fn descriptors_travel_with_their_message() {
    let (a, b) = UnixStream::pair().unwrap();
    let file = tempfile_with("through the socket");
    frame::send(&a, &Reply::Stopping, &[file.as_raw_fd()]).unwrap();
    let (_, mut fds) = frame::receive::<Reply>(&b).unwrap();
    let text = std::io::read_to_string(std::fs::File::from(fds.remove(0))).unwrap();
    assert_eq!(text, "through the socket");
}

fn tempfile_with(text: &str) -> std::fs::File {
    use std::io::Seek;
    let fd = nix::sys::memfd::memfd_create("t", nix::sys::memfd::MFdFlags::empty()).unwrap();
    let mut file = std::fs::File::from(fd);
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file
}

#[test]
fn the_end_of_a_connection_is_told_from_a_broken_message() {
    let (a, b) = UnixStream::pair().unwrap();
    drop(a);
    let error = frame::receive::<Request>(&b).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Closed);
    let (mut a, b) = UnixStream::pair().unwrap();
    a.write_all(&frame::to_bytes(&hello()).unwrap()[..20])
        .unwrap();
    drop(a);
    let error = frame::receive::<Request>(&b).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
}

#[test]
fn another_version_is_told_so() {
    let mut bytes = frame::to_bytes(&hello()).unwrap();
    bytes[4] = 99;
    let error = frame::parse::<Request>(&bytes).unwrap_err();
    assert!(error.to_string().contains("version 99"), "{error}");
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_anything_is_allocated() {
    let mut bytes = frame::to_bytes(&hello()).unwrap();
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = frame::parse::<Request>(&bytes).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooLong);
}

proptest! {
    #[test]
    fn malformed_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = frame::parse::<Request>(&bytes);
        let mut framed = frame::to_bytes(&hello()).unwrap();
        framed[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        framed.truncate(16);
        framed.extend(&bytes);
        let _ = frame::parse::<Request>(&framed);
    }

    #[test]
    fn a_damaged_message_is_an_error_or_another_message(at in 16usize..60, bit in 0u8..8) {
        let mut bytes = frame::to_bytes(&hello()).unwrap();
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 1 << bit;
        let _ = frame::parse::<Request>(&bytes);
    }
}
