//! Descriptors that came without being asked for are closed. This is the only test of its program, because it counts
//! descriptors.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::io::IoSlice;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use coprep_protocol::code::Channel;
use coprep_protocol::frame::{self, MAX_DESCRIPTORS};
use coprep_protocol::message::Request;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Sends `bytes` with `descriptors` descriptors.
fn send(socket: &UnixStream, bytes: &[u8], descriptors: usize) {
    let fds: Vec<RawFd> = vec![socket.as_raw_fd(); descriptors];
    let rights = [ControlMessage::ScmRights(&fds)];
    let iov = [IoSlice::new(bytes)];
    sendmsg::<()>(socket.as_raw_fd(), &iov, &rights, MsgFlags::empty(), None).unwrap();
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let header = frame::to_bytes(&Request::RestartEpoch {
        epoch: 0,
        batches: 0,
    })
    .unwrap();
    let before = open();
    for descriptors in [1, MAX_DESCRIPTORS, MAX_DESCRIPTORS + 1, 60, 253] {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, &header, descriptors);
        assert!(frame::receive::<Request>(&b).is_err(), "{descriptors}");
    }
    // Every byte of a header comes with more descriptors.
    let (a, b) = UnixStream::pair().unwrap();
    header.chunks(1).for_each(|byte| send(&a, byte, 3));
    assert!(frame::receive::<Request>(&b).is_err());
    drop((a, b));
    assert_eq!(open(), before, "of frames");

    // The same from a process of user code.
    let (a, b) = UnixStream::pair().unwrap();
    let mut channel = Channel::new(b);
    (0..20).for_each(|_| send(&a, &[1, 0, 0, 0, b'D'], 3));
    let mut received = || channel.receive(Duration::from_secs(10));
    assert!((0..20).any(|_| received().is_err()));
    drop((a, channel));
    assert_eq!(open(), before, "of a channel");

    // When few descriptors are left, the kernel installs as many as it can.
    let (a, b) = UnixStream::pair().unwrap();
    send(&a, &header, MAX_DESCRIPTORS);
    let limits = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let here = open();
    setrlimit(Resource::RLIMIT_NOFILE, here as u64 + 3, limits.1).unwrap();
    let refused = frame::receive::<Request>(&b);
    setrlimit(Resource::RLIMIT_NOFILE, limits.0, limits.1).unwrap();
    assert!(refused.is_err());
    assert_eq!(open(), here, "of a process that has hardly any left");
}
