//! Connections with a coordinator that runs: finding it, the greeting, requests and replies. `launch` starts one.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coprep_protocol::frame;
use coprep_protocol::message::{Reply, Request};
use coprep_protocol::paths::CoordinatorPaths;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use crate::error::{
    Error, ErrorKind, Result, disconnected, explained, from_frame, invalid, no_place, refused,
    timed_out, violation,
};
use crate::notice::{Notice, Wait, no_notice};
use crate::raw;
use crate::timeout::{InterruptCheck, Timeout, events, no_interrupt};

/// Longest time for the other side to accept, to greet, or to send the rest of a message. It is short, because a
/// coordinator does these at once, however much other work it has.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of connecting.
#[derive(Clone)]
pub struct ConnectOptions {
    /// Name of this client in `coprep status`.
    pub name: String,
    /// `true` to start a coordinator if there is none.
    pub start: bool,
    /// Path of the `coprep` program, unless `COPREP_BIN` names another.
    pub program: Option<PathBuf>,
    /// Check that is called during waits.
    pub interrupt_check: InterruptCheck,
}

impl ConnectOptions {
    /// Returns options for connecting to a coordinator that already runs.
    #[must_use]
    pub fn find(name: impl Into<String>) -> Self {
        ConnectOptions {
            name: name.into(),
            start: false,
            program: None,
            interrupt_check: no_interrupt(),
        }
    }

    /// Returns options for connecting to a coordinator, which is started if none runs.
    #[must_use]
    pub fn start(name: impl Into<String>) -> Self {
        ConnectOptions {
            start: true,
            ..ConnectOptions::find(name)
        }
    }
}

/// A connection whose other side has been checked: a coordinator of this version and this user.
pub struct Connection {
    // This field comes before the socket, so that it is dropped first.
    _unshared: raw::Unshared,
    socket: UnixStream,
    /// Process id of the coordinator.
    pub pid: u32,
    /// Version of the coordinator.
    pub version: String,
}

impl Connection {
    /// Connects to the coordinator if there is one. A coordinator that ends meanwhile counts as none.
    pub(crate) fn find(paths: &CoordinatorPaths, options: &ConnectOptions) -> Result<Option<Self>> {
        let found = match connect_to(&paths.socket) {
            // A folder or a socket that is not this user's says more than that nobody can be reached. Other errors may pass.
            Err(e) => {
                let is_ours = paths.prepare().and_then(|()| paths.check_socket());
                is_ours.map_err(no_place).and(Err(e))?
            }
            Ok(found) => found,
        };
        let Some(socket) = found else {
            return Ok(None);
        };
        check_owner(&socket, &paths.socket)?;
        match greet(socket, options) {
            Ok(connection) => Ok(Some(connection)),
            Err(e) if e.kind().is_lost() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sends a request without waiting for an answer.
    ///
    /// # Errors
    /// [`ErrorKind::Disconnected`] when the coordinator is gone.
    pub fn send(&self, request: &Request) -> Result<()> {
        frame::send(&self.socket, request, &[]).map_err(from_frame)
    }

    /// Sends a request with a memory file of `bytes`. The bytes are copied once, however many they are.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`ErrorKind::Invalid`] when memory is short.
    pub fn send_with(&self, request: &Request, bytes: &[u8]) -> Result<()> {
        let shortage =
            |e: std::io::Error| invalid(format!("no memory for {} bytes", bytes.len())).because(e);
        let file =
            memfd_create("coprep-code", MFdFlags::MFD_CLOEXEC).map_err(|e| shortage(e.into()))?;
        let mut file = std::fs::File::from(file);
        std::io::Write::write_all(&mut file, bytes).map_err(shortage)?;
        self.send_file(request, &file.into())
    }

    /// Sends a request with a file.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_file(&self, request: &Request, file: &OwnedFd) -> Result<()> {
        frame::send(&self.socket, request, &[file.as_raw_fd()]).map_err(from_frame)
    }

    /// Receives the next reply with its descriptors, or `None` if none comes within `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::Disconnected`], [`ErrorKind::Interrupted`].
    pub fn receive(
        &self,
        limit: Duration,
        interrupt_check: &InterruptCheck,
    ) -> Result<Option<(Reply, Vec<OwnedFd>)>> {
        let timeout = Timeout::new(limit, interrupt_check);
        loop {
            if !timeout.until_readable(self.socket.as_fd())? {
                return Ok(None);
            }
            match frame::receive(&self.socket) {
                Ok(received) => return Ok(Some(received)),
                Err(e) if *e.kind() == frame::ErrorKind::Io(std::io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(from_frame(e)),
            }
        }
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); [`ErrorKind::Refused`]; [`ErrorKind::Timeout`].
    pub fn ask(
        &self,
        request: &Request,
        what: &'static str,
        limit: Duration,
        interrupt_check: &InterruptCheck,
    ) -> Result<Reply> {
        self.send(request)?;
        let timeout = Timeout::new(limit, interrupt_check);
        let (reply, _) = self.answer(what, &timeout, &no_notice())?;
        match reply {
            Reply::Refused(refusal) => Err(refused(refusal)),
            reply => Ok(reply),
        }
    }

    /// Waits for an answer. If that takes long and the coordinator has said why, the user is notified.
    ///
    /// # Errors
    /// As [`receive`](Self::receive); [`ErrorKind::Timeout`].
    pub(crate) fn answer(
        &self,
        what: &'static str,
        timeout: &Timeout<'_>,
        notice: &Notice,
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        let mut wait = Wait::new(what, notice);
        loop {
            let left = timeout.left();
            let slice = wait.due().map_or(left, |due| due.min(left));
            match self.receive(slice, timeout.interrupt_check())? {
                Some((Reply::Awaited(awaited), _)) => wait.record(awaited),
                Some(answer) => return Ok(answer),
                None if timeout.is_over() => {
                    let error = self.timeout_error(what, timeout.waited());
                    return Err(explained(error, wait.explanation()));
                }
                None => {}
            }
            wait.notify_if_due()?;
        }
    }

    /// Returns the error of a coordinator that has not answered in time.
    pub(crate) fn timeout_error(&self, what: &'static str, waited: Duration) -> Error {
        // Before its greeting it is not known which process that is.
        let explanation = if self.pid == 0 {
            "the coordinator listens and does not answer: it is stopped, or has no file descriptor left".to_owned()
        } else {
            format!("the coordinator (process {}) does not answer", self.pid)
        };
        timed_out(what, waited, explanation)
    }

    /// Ends the connection, also for another thread that waits for a reply.
    pub(crate) fn hang_up(&self) {
        // This fails only if the coordinator has hung up already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Tells the coordinator that no more requests will come, and waits until it has closed its side as well, for
    /// `limit` at most.
    pub fn finish(&self, limit: Duration) {
        // This fails only if the coordinator has hung up already, which the loop below finds out.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let interrupt_check = no_interrupt();
        let timeout = Timeout::new(limit, &interrupt_check);
        while !self.is_lost() && !timeout.is_over() {
            let _ = events(self.socket.as_fd(), PollFlags::empty(), timeout.left());
        }
    }

    /// Returns `true` if the other side has hung up, or will send no more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let peek = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        // A coordinator may close its sending side first and keep the items that are ready for this client until it is
        // gone.
        if matches!(recv(self.socket.as_raw_fd(), &mut [0], peek), Ok(0)) {
            return true;
        }
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        match events(self.socket.as_fd(), PollFlags::empty(), Duration::ZERO) {
            Ok(events) => events.is_some_and(|e| e.intersects(gone)),
            Err(_) => true,
        }
    }
}

/// Connects to the socket. Returns `None` if no process listens there.
fn connect_to(path: &Path) -> Result<Option<UnixStream>> {
    let failed = |e: Errno| disconnected(format!("cannot connect to {}: {e}", path.display()));
    let address = UnixAddr::new(path).map_err(|_| {
        invalid(format!("the socket's path {} is too long", path.display()))
            .with_remedy("name one of at most 107 bytes in COPREP_SOCKET")
    })?;
    let fd = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .map_err(failed)?;
    // While the listener's queue is full, `connect` blocks as long as the send timeout allows.
    let limit = TimeVal::new(HANDSHAKE_TIMEOUT.as_secs() as i64, 0);
    setsockopt(&fd, sockopt::SendTimeout, &limit).map_err(failed)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &limit).map_err(failed)?;
    loop {
        // ENOENT: no socket. ECONNREFUSED: a socket file that a killed coordinator has left.
        match connect(fd.as_raw_fd(), &address) {
            Ok(()) => return Ok(Some(UnixStream::from(fd))),
            Err(Errno::ENOENT | Errno::ECONNREFUSED) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(failed(e)),
        }
    }
}

fn check_owner(socket: &UnixStream, path: &Path) -> Result<()> {
    let me = nix::unistd::getuid().as_raw();
    match frame::peer_uid(socket) {
        Ok(uid) if uid == me => Ok(()),
        Ok(uid) => Err(Error::new(
            ErrorKind::UntrustedPeer,
            format!(
                "{} belongs to a process of user {uid}, not of user {me}",
                path.display()
            ),
        )
        .with_remedy("name another socket in COPREP_SOCKET")),
        Err(e) => Err(disconnected(format!(
            "the kernel does not say who listens: {e}"
        ))),
    }
}

fn greet(socket: UnixStream, options: &ConnectOptions) -> Result<Connection> {
    let mut connection = Connection {
        _unshared: raw::Unshared::new(socket.as_raw_fd()),
        socket,
        pid: 0,
        version: String::new(),
    };
    let hello = Request::Hello {
        name: options.name.clone(),
        pid: std::process::id(),
    };
    match connection.ask(
        &hello,
        "the coordinator's greeting",
        HANDSHAKE_TIMEOUT,
        &options.interrupt_check,
    )? {
        Reply::Welcome { pid, version } => {
            (connection.pid, connection.version) = (pid, version);
            Ok(connection)
        }
        other => Err(violation(format!("it greets with {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_below_a_file_is_no_lost_connection() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let paths = CoordinatorPaths::at(file.path().join("coordinator.sock"));
        let found = Connection::find(&paths, &ConnectOptions::find("test"));
        let error = found.err().unwrap();
        assert!(!error.kind().is_lost(), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("Not a directory") && text.contains("COPREP_SOCKET"),
            "{text}"
        );
    }
}
