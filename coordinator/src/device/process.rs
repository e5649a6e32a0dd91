//! One process that uploads to a GPU.
//!
//! It is this program again, with a command of its own (`coprep uploader`). Its standard input is the connection. It ends
//! when the connection does, and with the thread that started it.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coprep_protocol::frame;
use coprep_protocol::message::is_of_driver;
use coprep_protocol::uploader::{UploaderEvent, UploaderRequest};

use crate::Result;
use crate::error::os;

/// This program, even if its file was replaced meanwhile.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";
/// Time that a process gets to end by itself, and the interval of the looks whether it has.
const GRACE: Duration = Duration::from_secs(2);
const LITTLE: Duration = Duration::from_millis(5);

/// Names and values of variables.
pub(super) type Environment = Vec<(Vec<u8>, Vec<u8>)>;

/// An event that a process caused.
pub(super) enum ProcessEvent {
    Said(UploaderEvent, Vec<OwnedFd>),
    /// It has ended, or said something that is no message. The reason is for people.
    Ended(String),
}

/// A process that uploads. Dropping it ends it.
pub(super) struct UploaderProcess {
    child: Child,
    socket: UnixStream,
}

impl UploaderProcess {
    /// Starts a process for a GPU. A thread calls `tell` with each event, and last with [`ProcessEvent::Ended`].
    pub(super) fn start(
        program: &Path,
        uuid: &str,
        environment: &Environment,
        tell: impl Fn(ProcessEvent) + Send + 'static,
    ) -> Result<Self> {
        let (socket, theirs) =
            UnixStream::pair().map_err(|e| os("cannot make a pair of sockets", e))?;
        let receiving = socket
            .try_clone()
            .map_err(|e| os("cannot copy a socket", e))?;
        let mut command = command(program, uuid, environment, theirs);
        let child = command
            .spawn()
            .map_err(|e| os("cannot start an uploader", e))?;
        // The command holds the process's end of the socket, which is to be closed by the process's death.
        drop(command);
        let process = UploaderProcess { child, socket };
        std::thread::Builder::new()
            .name("uploader-ear".into())
            .spawn(move || listen(&receiving, &tell))
            .map_err(|e| os("cannot start a thread", e))?;
        Ok(process)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn send(&self, request: &UploaderRequest, descriptors: &[OwnedFd]) {
        let numbers: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        // If the process has ended, the thread that listens says so.
        let _ = frame::send(&self.socket, request, &numbers);
    }

    /// Ends the process at once, because it does not get on.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for the end of a process that has hung up, and returns how it ended.
    pub(super) fn reap(mut self) -> String {
        self.await_end().unwrap_or_else(|| "was ended".to_owned())
    }

    fn await_end(&mut self) -> Option<String> {
        let end = Instant::now() + GRACE;
        while Instant::now() < end {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(format!("has ended ({status})")),
                Ok(None) => std::thread::sleep(LITTLE),
                Err(e) => return Some(format!("cannot be waited for: {e}")),
            }
        }
        None
    }
}

impl Drop for UploaderProcess {
    fn drop(&mut self) {
        // The thread that listens has a descriptor of this socket too, so closing this one would not end the
        // connection.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if self.await_end().is_none() {
            self.kill();
            // A process that hangs in its driver ends when the driver lets it, and is not waited for.
            let _ = self.await_end();
        }
    }
}

fn listen(socket: &UnixStream, tell: &impl Fn(ProcessEvent)) {
    loop {
        match frame::receive_despite_signals::<UploaderEvent>(socket) {
            Ok((event, descriptors)) => tell(ProcessEvent::Said(event, descriptors)),
            Err(e) => return tell(ProcessEvent::Ended(e.to_string())),
        }
    }
}

fn command(program: &Path, uuid: &str, environment: &Environment, socket: UnixStream) -> Command {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let mut command = Command::new(program);
    command
        // Lists of processes show this name, in place of the path in `/proc`.
        .arg0("coprep")
        .args(["uploader", uuid])
        .stdin(Stdio::from(OwnedFd::from(socket)));
    // The driver is to be found and set up as in the jobs, whatever the environment that the coordinator was started in.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_driver(name.as_encoded_bytes())) {
        command.env_remove(name);
    }
    let given = environment.iter().filter(|(name, _)| is_of_driver(name));
    command
        .envs(given.map(|(name, value)| (text(name), text(value))))
        // The process sees no other GPU, and makes no context there by mistake.
        .env("CUDA_VISIBLE_DEVICES", uuid);
    command
}
