//! The zygote of a program: a process that imports what the program's datasets need, once, and forks their hosts.
//!
//! Importing takes seconds where PyTorch is among it, and a program mostly has two datasets, one to train and one to
//! validate. The zygote only imports. It loads no dataset and runs nothing of what it has imported, so that a host that
//! is forked from it is as a new process that has just imported the same.
//!
//! One thread starts it, hears what it says, and sees it end. The kernel ends a zygote with that thread, and hosts with
//! their zygote. Whoever needs a zygote holds it by an [`Arc`], as each host does; the last one that lets go ends it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coprep_protocol::code::{Channel, ZygoteEvent, ZygoteRequest};
use coprep_protocol::message::UserCode;
use coprep_protocol::nap::nap;
use fail::fail_point;

use crate::{Error, Result};

/// How long a process may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// How long a zygote may take to say that a host has ended that was killed: it may be importing.
const LONGEST_IMPORT: Duration = Duration::from_secs(600);
const NOW_AND_THEN: Duration = Duration::from_millis(500);
/// How often the thread looks around though nothing woke it, which nothing needs: see [`nap`].
const NAP: Duration = Duration::from_millis(500);

/// A running zygote. Dropped, it ends.
pub(crate) struct Zygote(Arc<ZygoteShared>);

/// What the zygote's thread needs as well.
struct ZygoteShared {
    /// For sending; the other end of it is the zygote's standard input.
    channel: Channel,
    /// Held while a request is sent: hosts are started by several threads.
    asking: Mutex<()>,
    state: Mutex<ZygoteState>,
    changed: Condvar,
    closing: AtomicBool,
}

#[derive(Default)]
struct ZygoteState {
    /// Hosts that were asked for so far.
    hosts: u32,
    /// Those that have ended, until somebody has asked how.
    exited: HashMap<u32, Ended>,
    /// Why there is no zygote any more.
    ended: Option<Ended>,
}

/// How a process ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) how: String,
    /// By a signal that it was sent, and not by this process.
    pub(super) is_killed: bool,
}

impl Ended {
    pub(super) fn by_itself(how: String) -> Ended {
        Ended {
            how,
            is_killed: false,
        }
    }

    /// By a defect of this process. It did nothing wrong, and another one may do better.
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

    /// The error of a process that was to do something: `to load the dataset`.
    pub(super) fn error(&self, what: &str) -> Error {
        let how = self.how.clone();
        if self.is_killed {
            return Error::HostKilled {
                how,
                doing: what.to_owned(),
                attempts: 1,
            };
        }
        Error::Code(format!(
            "the process that runs the dataset's code {how}, while it was {what}: its output is in the coordinator's log"
        ))
    }
}

impl Zygote {
    /// Starts a zygote that has imported nothing yet.
    pub(crate) fn start(code: &UserCode) -> Result<Arc<Zygote>> {
        let (ours, theirs) =
            UnixStream::pair().map_err(|e| Error::io("cannot make a pair of sockets", e))?;
        let receiving = ours
            .try_clone()
            .map_err(|e| Error::io("cannot copy a socket", e))?;
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
            .map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Arc::new(Zygote(inner)))
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.state().ended.is_none()
    }

    /// Lets it import what hosts will need.
    pub(crate) fn import(&self, prelude: &str) {
        self.0.ask(&ZygoteRequest::Import { prelude }, &[]);
    }

    /// Asks for a host, and gives its number. The host's end of `socket` is closed when the host has ended, or is not
    /// started; then [`reap`](Self::reap) says why.
    ///
    /// `anew`: the host imports by itself whatever it needs.
    pub(super) fn start_host(&self, prelude: &str, anew: bool, socket: &UnixStream) -> u32 {
        let host = {
            let mut state = self.0.state();
            state.hosts += 1;
            state.hosts - 1
        };
        let request = ZygoteRequest::Host {
            host,
            prelude,
            anew,
        };
        self.0.ask(&request, &[socket.as_raw_fd()]);
        host
    }

    /// Waits for a host whose connection has ended; says how it ended.
    pub(super) fn reap(self: &Arc<Self>, host: u32) -> Ended {
        let began = Instant::now();
        let mut is_asked = false;
        let mut state = self.0.state();
        loop {
            if let Some(ended) = state.exited.remove(&host) {
                return ended;
            }
            // A host ends with its zygote.
            if let Some(ended) = &state.ended {
                return ended.clone();
            }
            if began.elapsed() >= GRACE {
                drop(state);
                if !is_asked {
                    is_asked = true;
                    self.0.ask(&ZygoteRequest::Kill { host }, &[]);
                }
                // One that still imports, for nobody, does not hear it.
                if Arc::strong_count(self) == 1 || began.elapsed() >= LONGEST_IMPORT {
                    self.0.close();
                }
                state = self.0.state();
            }
            let waited = self.0.changed.wait_timeout(state, NOW_AND_THEN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: &ZygoteRequest<'_>, descriptors: &[RawFd]) {
        // Numbers and texts can be written as JSON.
        let message = serde_json::to_vec(request).unwrap_or_default();
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        // A zygote that is gone has said why by another way.
        let _ = self.channel.send(&message, descriptors);
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.channel.hang_up();
    }

    // The thread that hears it.

    fn run(&self, mut command: Command, socket: UnixStream) {
        let ended = match command.spawn() {
            // The command holds the zygote's end of the socket: gone, so that its death is seen.
            Ok(child) => {
                drop(command);
                let heard = catch_unwind(AssertUnwindSafe(|| self.hear(Channel::new(socket))));
                self.channel.hang_up();
                let how = reap(child);
                match heard {
                    Ok(Some(why)) => Ended::by_itself(format!("said what makes no sense: {why}")),
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

    /// Until it has ended. Some: why it must be ended.
    fn hear(&self, mut channel: Channel) -> Option<String> {
        loop {
            match channel.receive(nap(NAP)) {
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
        let (host, ended) = match event {
            ZygoteEvent::Exited { host, status } => (host, Ended::of(ExitStatus::from_raw(status))),
            ZygoteEvent::Failed { host, message } => {
                let how = format!("cannot be started: {message}");
                (host, Ended::by_itself(how))
            }
        };
        let mut state = self.state();
        if host < state.hosts {
            state.exited.insert(host, ended);
        }
        drop(state);
        self.changed.notify_all();
    }
}

fn command(code: &UserCode, socket: UnixStream) -> Result<Command> {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let Some((program, arguments)) = code.command.split_first() else {
        return Err(Error::Invalid(
            "the command that runs user code is empty".into(),
        ));
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

/// Waits for a process that hung up; says how it ended.
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
        let host = zygote.start_host("{}", false, &theirs);
        drop(theirs);
        let mut channel = Channel::new(ours);
        let end = channel.receive(Duration::from_secs(60)).unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
        zygote.reap(host)
    }

    #[test]
    fn a_host_whose_zygote_cannot_be_started_says_why() {
        let ended = reaped(&Zygote::start(&code("/nowhere")).unwrap());
        assert!(
            ended.how.contains("cannot be started (/nowhere)"),
            "{ended:?}"
        );
        assert!(!ended.is_killed);
    }

    #[test]
    fn a_host_ends_as_its_zygote_did() {
        let zygote = Zygote::start(&code("/bin/false")).unwrap();
        assert!(reaped(&zygote).how.contains("exit status: 1"));
        assert!(!zygote.is_alive());
    }

    #[test]
    fn a_zygote_ends_when_nobody_holds_it_any_more() {
        // Reads its standard input until the end.
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
