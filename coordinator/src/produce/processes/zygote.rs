//! The zygote of a program: a process that imports the modules which the program's datasets need, once, and forks their
//! fork servers.
//!
//! Importing takes seconds if PyTorch is among the modules, and a program mostly has two datasets, one to train and one
//! to validate. The zygote only imports. It loads no dataset and runs none of the code that it has imported, so that a
//! fork server forked from it is like a new process that has just imported the same modules.
//!
//! One thread starts the zygote, reads its messages, and sees it end. The kernel ends a zygote with that thread, and
//! fork servers with their zygote. Every user of a zygote holds it by an [`Arc`], as each fork server does; the last
//! one that drops it ends it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_protocol::code::{Channel, ZygoteEvent, ZygoteRequest};
use coprep_protocol::message::UserCode;
use coprep_protocol::poll_interval::poll_every;
use coprep_shared_memory::lock::{lock, unpoisoned};
use fail::fail_point;

use crate::error::{code_failed, fork_server_killed, invalid, os};
use crate::{Error, Result};

/// Time that a process gets to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// Time that a zygote gets to report the end of a fork server that was killed: it may be importing.
const LONGEST_IMPORT: Duration = Duration::from_secs(600);
const NOW_AND_THEN: Duration = Duration::from_millis(500);
/// Longest sleep of the thread when nothing wakes it. Nothing depends on it: see [`poll_every`].
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A running zygote. It ends when this is dropped.
pub(crate) struct Zygote(Arc<ZygoteShared>);

/// The state that the zygote's thread shares.
struct ZygoteShared {
    /// Used for sending. The other end is the zygote's standard input.
    channel: Channel,
    /// Held while a request is sent, because several threads start fork servers.
    asking: Mutex<()>,
    state: Mutex<ZygoteState>,
    changed: Condvar,
    closing: AtomicBool,
}

#[derive(Default)]
struct ZygoteState {
    /// Number of fork servers that were asked for so far.
    fork_servers: u32,
    /// Fork servers that have ended, until somebody asks how.
    exited: HashMap<u32, Ended>,
    /// Description of the end of the zygote, once it has ended.
    ended: Option<Ended>,
}

/// The way in which a process ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) how: String,
    /// `true` if a signal that this process did not send ended it.
    pub(super) is_killed: bool,
}

impl Ended {
    pub(super) fn by_itself(how: String) -> Ended {
        Ended {
            how,
            is_killed: false,
        }
    }

    /// Returns the end by a defect of the coordinator. The process did nothing wrong, so another one may succeed.
    pub(super) fn by_defect() -> Ended {
        Ended {
            how: "was ended because the thread that heard it panicked, a defect of coprep".into(),
            is_killed: true,
        }
    }

    fn of(status: ExitStatus) -> Ended {
        Ended {
            how: format!("ended ({status})"),
            is_killed: status.signal().is_some(),
        }
    }

    /// Returns the error of a process that ended before it did `what`, for example `to load the dataset`.
    pub(super) fn error(&self, what: &str) -> Error {
        let how = &self.how;
        if self.is_killed {
            return fork_server_killed(how, what, 1);
        }
        code_failed(format!(
            "the process that runs the dataset's code {how}, while it was {what}"
        ))
        .with_remedy("its output is in the coordinator's log")
    }
}

impl Zygote {
    /// Starts a zygote that has imported nothing yet.
    pub(crate) fn start(code: &UserCode) -> Result<Arc<Zygote>> {
        let (ours, theirs) =
            UnixStream::pair().map_err(|e| os("cannot make a pair of sockets", e))?;
        let receiving = ours
            .try_clone()
            .map_err(|e| os("cannot copy a socket", e))?;
        let inner = Arc::new(ZygoteShared {
            channel: Channel::new(ours),
            asking: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
        });
        let (command, hearer) = (command(code, theirs)?, inner.clone());
        std::thread::Builder::new()
            .name("code-zygote".into())
            .spawn(move || hearer.run(command, receiving))
            .map_err(|e| os("cannot start a thread", e))?;
        Ok(Arc::new(Zygote(inner)))
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.state().ended.is_none()
    }

    /// Asks the zygote to import the modules that fork servers will need.
    pub(crate) fn import(&self, prelude: &str) {
        self.0.ask(&ZygoteRequest::Import { prelude }, &[]);
    }

    /// Asks for a fork server, and returns its number. The fork server's end of `socket` is closed when it has ended or
    /// could not be started; [`reap`](Self::reap) then says why.
    ///
    /// With `anew`, the fork server imports everything it needs by itself.
    pub(super) fn start_fork_server(&self, prelude: &str, anew: bool, socket: &UnixStream) -> u32 {
        let number = {
            let mut state = self.0.state();
            state.fork_servers += 1;
            state.fork_servers - 1
        };
        let request = ZygoteRequest::ForkServer {
            number,
            prelude,
            anew,
        };
        self.0.ask(&request, &[socket.as_raw_fd()]);
        number
    }

    /// Waits for a fork server whose connection has ended, and returns how it ended.
    pub(super) fn reap(self: &Arc<Self>, number: u32) -> Ended {
        let began = Instant::now();
        let mut is_asked = false;
        let mut state = self.0.state();
        loop {
            if let Some(ended) = state.exited.remove(&number) {
                return ended;
            }
            // A fork server ends with its zygote.
            if let Some(ended) = &state.ended {
                return ended.clone();
            }
            if began.elapsed() >= GRACE {
                drop(state);
                if !is_asked {
                    is_asked = true;
                    self.0.ask(&ZygoteRequest::Kill { number }, &[]);
                }
                // A zygote that is still importing for nobody does not read the request, so it is ended itself.
                if Arc::strong_count(self) == 1 || began.elapsed() >= LONGEST_IMPORT {
                    self.0.close();
                }
                state = self.0.state();
            }
            let waited = self.0.changed.wait_timeout(state, NOW_AND_THEN);
            state = unpoisoned(waited).0;
        }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl ZygoteShared {
    fn state(&self) -> MutexGuard<'_, ZygoteState> {
        lock(&self.state)
    }

    fn ask(&self, request: &ZygoteRequest<'_>, descriptors: &[RawFd]) {
        // Numbers and strings can always be written as JSON.
        let message = serde_json::to_vec(request).unwrap_or_default();
        let _asking = lock(&self.asking);
        // If the zygote is gone, its state says why, so this error is ignored.
        let _ = self.channel.send(&message, descriptors);
    }

    fn close(&self) {
        // Release pairs with the Acquire in `run`. Set first, so that the thread that sees the end knows it was wanted.
        self.closing.store(true, Ordering::Release);
        self.channel.hang_up();
    }

    // The thread that reads the zygote's messages.

    fn run(&self, mut command: Command, socket: UnixStream) {
        let ended = match command.spawn() {
            // The command holds the zygote's end of the socket. It is dropped so that the zygote's death closes the
            // socket.
            Ok(child) => {
                drop(command);
                let heard = catch_unwind(AssertUnwindSafe(|| self.hear(Channel::new(socket))));
                self.channel.hang_up();
                let how = reap(child);
                match heard {
                    Ok(Some(why)) => Ended::by_itself(format!("sent an invalid message: {why}")),
                    Ok(None) => how,
                    Err(_) => Ended::by_defect(),
                }
            }
            Err(e) => Ended::by_itself(format!(
                "cannot be started ({}): {e}",
                command.get_program().display()
            )),
        };
        if !self.closing.load(Ordering::Acquire) {
            tracing::warn!(
                how = ended.how,
                "a process that imports for user code has ended"
            );
        }
        self.state().ended = Some(ended);
        self.changed.notify_all();
    }

    /// Reads messages until the zygote has ended. Returns `Some` with a reason if it must be ended.
    fn hear(&self, mut channel: Channel) -> Option<String> {
        loop {
            match channel.receive(poll_every(POLL_INTERVAL)) {
                Ok(Some(message)) => {
                    fail_point!("zygote-listener");
                    match serde_json::from_slice(&message) {
                        Ok(event) => self.heard(event),
                        Err(e) => return Some(e.to_string()),
                    }
                }
                Ok(None) => {}
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return None,
                Err(e) => return Some(e.to_string()),
            }
        }
    }

    fn heard(&self, event: ZygoteEvent) {
        let (number, ended) = match event {
            ZygoteEvent::Exited { number, status } => {
                (number, Ended::of(ExitStatus::from_raw(status)))
            }
            ZygoteEvent::Failed { number, message } => {
                let how = format!("cannot be started: {message}");
                (number, Ended::by_itself(how))
            }
        };
        let mut state = self.state();
        // A number that was never given out is ignored, so that a confused process cannot fill the map.
        if number < state.fork_servers {
            state.exited.insert(number, ended);
        }
        drop(state);
        self.changed.notify_all();
    }
}

fn command(code: &UserCode, socket: UnixStream) -> Result<Command> {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let Some((program, arguments)) = code.command.split_first() else {
        return Err(invalid("the command that runs user code is empty"));
    };
    let mut command = Command::new(text(program));
    command
        .args(arguments.iter().map(|a| text(a)))
        .env_clear()
        .envs(code.environment.iter().map(|(k, v)| (text(k), text(v))))
        .current_dir(text(&code.directory))
        .stdin(Stdio::from(OwnedFd::from(socket)));
    Ok(command)
}

/// Waits for a process that hung up, kills it if that takes too long, and returns how it ended.
fn reap(mut child: Child) -> Ended {
    let end = Instant::now() + GRACE;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(Some(status)) => return Ended::of(status),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => return Ended::by_itself(format!("cannot be waited for: {e}")),
        }
    }
    let _ = child.kill();
    let how = child
        .wait()
        .map_or_else(|e| e.to_string(), |status| format!("was ended ({status})"));
    // This process sent the signal, so the end does not count as a kill from outside.
    Ended::by_itself(how)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(program: &str) -> UserCode {
        UserCode {
            command: vec![program.into()],
            directory: "/".into(),
            ..UserCode::default()
        }
    }

    fn reaped(zygote: &Arc<Zygote>) -> Ended {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let number = zygote.start_fork_server("{}", false, &theirs);
        drop(theirs);
        let mut channel = Channel::new(ours);
        let end = channel.receive(Duration::from_secs(60)).unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
        zygote.reap(number)
    }

    #[test]
    fn a_fork_server_whose_zygote_cannot_be_started_says_why() {
        let ended = reaped(&Zygote::start(&code("/nowhere")).unwrap());
        assert!(
            ended.how.contains("cannot be started (/nowhere)"),
            "{ended:?}"
        );
        assert!(!ended.is_killed);
    }

    #[test]
    fn a_fork_server_ends_as_its_zygote_did() {
        let zygote = Zygote::start(&code("/bin/false")).unwrap();
        assert!(reaped(&zygote).how.contains("exit status: 1"));
        assert!(!zygote.is_alive());
    }

    #[test]
    fn a_zygote_ends_when_nobody_holds_it_any_more() {
        // `cat` reads its standard input until the end.
        let zygote = Zygote::start(&code("/bin/cat")).unwrap();
        let inner = zygote.0.clone();
        assert!(zygote.is_alive());
        drop(zygote);
        let state = inner.state();
        let ends = |state: &mut ZygoteState| state.ended.is_none();
        let waited = inner
            .changed
            .wait_timeout_while(state, Duration::from_secs(60), ends)
            .unwrap();
        assert!(waited.0.ended.is_some());
    }
}
