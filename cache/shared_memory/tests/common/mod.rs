//! A test with two processes: this one, and a child that runs one role of the same test binary.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

const ROLE: &str = "COPREP_TEST_ROLE";
const SOCKET: &str = "COPREP_TEST_SOCKET";
/// Limit for every wait. Nothing here takes longer, on any machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A child process and a socket to it. It is killed when this is dropped.
pub(crate) struct Peer {
    pub(crate) socket: UnixStream,
    child: Child,
    _folder: tempfile::TempDir,
}

impl Peer {
    /// Starts the test `child` of this binary, which calls [`role`].
    pub(crate) fn start(role: &str) -> Peer {
        let this = std::env::current_exe().unwrap();
        Peer::start_by(Command::new(this), role)
    }

    pub(crate) fn start_by(mut command: Command, role: &str) -> Peer {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let command = command
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .env(SOCKET, &path);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let mut peer = Peer {
            socket: UnixStream::pair().unwrap().0,
            child,
            _folder: folder,
        };
        peer.socket = peer.accept(&listener);
        peer
    }

    fn accept(&mut self, listener: &UnixListener) -> UnixStream {
        listener.set_nonblocking(true).unwrap();
        let start = Instant::now();
        loop {
            if let Ok((socket, _)) = listener.accept() {
                socket.set_nonblocking(false).unwrap();
                return bounded(socket);
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && start.elapsed() < TIMEOUT,
                "the child did not come: {ended:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn send(&self, descriptors: &[OwnedFd]) {
        send(&self.socket, descriptors);
    }

    /// Returns the child's next message.
    pub(crate) fn hear(&mut self) -> u64 {
        hear(&self.socket)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the child to end, and checks that it did not panic.
    pub(crate) fn ends_well(&mut self) {
        drop(self.socket.shutdown(std::net::Shutdown::Write));
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the child ended with {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The child may have ended already, so errors do not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bounded(socket: UnixStream) -> UnixStream {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// Returns the role of this process and the socket to its parent, if it is a child.
pub(crate) fn role() -> Option<(String, UnixStream)> {
    let role = std::env::var(ROLE).ok()?;
    let path = std::env::var_os(SOCKET)?;
    Some((
        role,
        bounded(UnixStream::connect(Path::new(&path)).unwrap()),
    ))
}

pub(crate) fn send(socket: &UnixStream, descriptors: &[OwnedFd]) {
    let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&[1])],
        &rights,
        MsgFlags::empty(),
        None,
    )
    .unwrap();
}

pub(crate) fn receive<const N: usize>(socket: &UnixStream) -> [OwnedFd; N] {
    let mut byte = [0];
    let mut iov = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([i32; 8]);
    let received = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut iov,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )
    .unwrap();
    let fds: Vec<OwnedFd> = received
        .cmsgs()
        .unwrap()
        .flat_map(|message| match message {
            ControlMessageOwned::ScmRights(fds) => fds,
            _ => Vec::new(),
        })
        // SAFETY: the kernel has just made these descriptors for us.
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
        .collect();
    fds.try_into().unwrap()
}

pub(crate) fn say(mut socket: &UnixStream, number: u64) {
    socket.write_all(&number.to_ne_bytes()).unwrap();
}

pub(crate) fn hear(mut socket: &UnixStream) -> u64 {
    let mut bytes = [0; 8];
    socket.read_exact(&mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

/// Waits until the parent closes its side.
pub(crate) fn until_closed(mut socket: &UnixStream) {
    let _ = socket.read(&mut [0]);
}

/// A small random number generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}
