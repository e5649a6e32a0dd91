//! The fork server of a stream's user code: a process that has the dataset, and forks workers.
//!
//! A job that is attached to the stream starts it, as a fork of itself, and passes its socket. So the fork server knows
//! what the job knew at that moment, and it ends when the job leaves the stream. Then another job starts the next one
//! ([`current_server`](super::current_server)).
//!
//! One thread reads its messages and sees it end. A worker's thread that needs it sends a request and waits. It sends
//! descriptors of itself and of its workers (pidfds), since it is no child of this process and may live in another
//! namespace. The kernel ends workers with their fork server, and a fork server ends when its socket is closed, so that
//! none of them outlives the coordinator, however that ends.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_protocol::code::{self, Channel, ForkServerEvent, ForkServerRequest};
use coprep_protocol::poll_interval::poll_every;
use coprep_protocol::polling::poll;
use coprep_shared_memory::lock::{lock, unpoisoned};
use coprep_shared_memory::staging::Layout;
use fail::fail_point;
use nix::poll::{PollFd, PollFlags};
use rustix::process::{Signal, pidfd_send_signal};

use crate::connection::peer::Peer;
use crate::connection::reply_queue::ReplyQueue;
use crate::error::{code_failed, fork_server_killed, os};
use crate::produce::processes::sample_shape::SampleShape;
use crate::{Error, Result};

/// Longest time until a fork server has its dataset. One that is forked has it at once. A new interpreter may import
/// large modules from slow storage.
const LOADING: Duration = Duration::from_secs(600);
const NOW_AND_THEN: Duration = Duration::from_millis(500);
/// Longest time for any request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest sleep of the thread when nothing wakes it. Nothing depends on it: see [`poll_every`].
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time that workers get to finish their samples, after which their fork server has ended them. It is short, because the
/// job has left, and what it held must be free within a second.
const GRACE: Duration = Duration::from_millis(700);
/// Time that a killed process gets to be gone before this is given up.
const KILLED: Duration = Duration::from_secs(2);

/// A socket of a fork server, and the consumer that gave it.
pub(crate) struct GivenServer {
    pub(crate) socket: UnixStream,
    pub(crate) giver: Giver,
}

/// The job that a fork server was forked from.
#[derive(Clone)]
pub(crate) struct Giver {
    /// Connection of the job.
    pub(crate) reply_queue: Arc<ReplyQueue>,
    /// Process of the job.
    pub(crate) peer: Arc<Peer>,
    pub(crate) pid: u32,
    /// `true` if the fork server stays between the epochs of the job.
    pub(crate) is_persistent: bool,
}

impl Giver {
    /// Returns `true` if the job has left, or its process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.reply_queue.is_gone() || self.peer.is_gone()
    }
}

/// A running fork server.
pub(super) struct ForkServer {
    /// Used for sending.
    channel: Channel,
    pub(super) giver: Giver,
    state: Mutex<ForkServerState>,
    changed: Condvar,
    closing: AtomicBool,
}

/// A worker that has started.
pub(super) struct Forked {
    pub(super) number: u32,
    pub(super) pid: u32,
    pub(super) socket: UnixStream,
}

/// The end of a worker process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WorkerEnd {
    /// It ended in this way, and its fork server goes on.
    Alone(String),
    /// It ended with its fork server.
    WithServer,
}

#[derive(Default)]
struct ForkServerState {
    pid: u32,
    /// The fork server itself (pidfd).
    process: Option<OwnedFd>,
    samples: Option<u64>,
    mapped: bool,
    /// Reason why a request that is about no worker failed.
    failed: Option<String>,
    /// Workers by number.
    workers: Vec<WorkerState>,
    /// Description of the end of the fork server, once it has ended.
    ended: Option<String>,
    /// Called when it has ended.
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Default)]
struct WorkerState {
    pid: u32,
    /// The worker itself (pidfd).
    process: Option<OwnedFd>,
    /// `true` if the worker makes samples. The worker that inspects the first samples does not, and nobody waits for
    /// its end.
    makes_samples: bool,
    socket: Option<UnixStream>,
    /// The worker's socket once more, to hang up on it.
    hang_up: Option<UnixStream>,
    /// Reason why the latest request about the worker failed.
    failed: Option<String>,
    exited: Option<String>,
}

impl ForkServerState {
    /// Takes the failure of a request, so that a later request does not report it again.
    fn take_failure(&mut self) -> Option<Error> {
        self.failed.take().map(code_failed)
    }

    fn pids(&self) -> Vec<u32> {
        let producers = self.workers.iter().filter(|w| w.makes_samples);
        let running = producers.filter(|w| w.exited.is_none());
        running.map(|w| w.pid).filter(|&pid| pid > 0).collect()
    }
}

impl ForkServer {
    /// Takes over a fork server, and waits until it has the dataset, for as long as `is_awaited`.
    ///
    /// # Errors
    /// If it ends before, or takes too long.
    pub(super) fn start(
        given: GivenServer,
        is_awaited: impl Fn() -> bool,
    ) -> Result<Arc<ForkServer>> {
        let receiving = given
            .socket
            .try_clone()
            .map_err(|e| os("cannot copy a socket", e))?;
        let fork_server = Arc::new(ForkServer::new(given));
        let hearer = fork_server.clone();
        std::thread::Builder::new()
            .name("fork-server".into())
            .spawn(move || hearer.run(receiving))
            .map_err(|e| os("cannot start a thread", e))?;
        let find = |s: &mut ForkServerState| match s.samples {
            None if !is_awaited() => Some(Err(code_failed(
                "the job left while its dataset was loaded",
            ))),
            None => s.take_failure().map(Err),
            Some(_) => Some(Ok(())),
        };
        match fork_server
            .wait("to load the dataset", LOADING, find)
            .flatten()
        {
            Ok(()) => Ok(fork_server),
            Err(e) => {
                // Dropping it here would not end it, because the listening thread holds it as well.
                fork_server.close();
                Err(e)
            }
        }
    }

    /// Creates the coordinator's end of a connection with a fork server. [`hear`](Self::hear) reads its messages.
    fn new(given: GivenServer) -> ForkServer {
        ForkServer {
            channel: Channel::new(given.socket),
            giver: given.giver,
            state: Mutex::default(),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, ForkServerState> {
        lock(&self.state)
    }

    fn ask(&self, request: &ForkServerRequest, descriptors: &[RawFd]) -> Result<()> {
        let message = serde_json::to_vec(request).map_err(|e| {
            code_failed("a request to the dataset's process cannot be written").because(e)
        })?;
        // If the fork server is gone, its state says why, so this error is ignored.
        let _ = self.channel.send(&message, descriptors);
        Ok(())
    }

    /// Waits until `find` finds something. It looks after every change, and every 500 ms.
    ///
    /// # Errors
    /// If the fork server has ended, or `limit` has passed.
    fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&mut ForkServerState) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + limit;
        let mut state = self.state();
        loop {
            if let Some(found) = find(&mut state) {
                return Ok(found);
            }
            // Checked last, because a message that came before the end may hold the answer.
            if let Some(ended) = &state.ended {
                return Err(fork_server_killed(ended, what));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(code_failed(format!(
                    "the process that runs the dataset's code takes longer than {limit:?} {what}"
                )));
            }
            let waited = self.changed.wait_timeout(state, left.min(NOW_AND_THEN));
            state = unpoisoned(waited).0;
        }
    }

    /// Maps the staging area for the workers that will be started.
    pub(super) fn map(
        &self,
        layout: &Layout,
        shape: &SampleShape,
        seed: u64,
        file: BorrowedFd<'_>,
    ) -> Result<()> {
        let offsets = (0..layout.fields()).map(|f| layout.field_offset(f) as u64);
        let request = ForkServerRequest::Map {
            buffers: layout.buffers,
            slots: layout.slots,
            stride: layout.stride() as u64,
            offsets: offsets.collect(),
            blob: shape.blob(),
            structure: code::hex(&shape.structure),
            seed,
        };
        self.ask(&request, &[file.as_raw_fd()])?;
        let find = |s: &mut ForkServerState| {
            if s.mapped {
                Some(Ok(()))
            } else {
                s.take_failure().map(Err)
            }
        };
        self.wait("to map the staging area", REQUEST_TIMEOUT, find)
            .flatten()
    }

    /// Starts worker `id` of `workers`. With a seed it makes samples only to be compared.
    pub(super) fn fork(
        &self,
        (id, workers): (u32, u32),
        seed: Option<u64>,
        task_table: Option<BorrowedFd<'_>>,
        scratch: &[RawFd],
    ) -> Result<Forked> {
        let number = {
            let mut state = self.state();
            state.workers.push(WorkerState {
                makes_samples: task_table.is_some(),
                ..WorkerState::default()
            });
            state.workers.len() as u32 - 1
        };
        let request = ForkServerRequest::Fork {
            worker: number,
            id,
            workers,
            scratch: scratch.len() as u32,
            task_table: task_table.is_some(),
            seed,
        };
        let task_table = task_table.as_ref().map(AsRawFd::as_raw_fd);
        let descriptors: Vec<RawFd> = task_table
            .into_iter()
            .chain(scratch.iter().copied())
            .collect();
        self.ask(&request, &descriptors)?;
        let find = |s: &mut ForkServerState| {
            let worker = s.workers.get_mut(number as usize)?;
            if let Some(why) = worker.failed.take() {
                return Some(Err(code_failed(why)));
            }
            Some(Ok(Forked {
                number,
                pid: worker.pid,
                socket: worker.socket.take()?,
            }))
        };
        self.wait("to start a worker", REQUEST_TIMEOUT, find)
            .flatten()
    }

    /// Returns the number of samples of the dataset, once the fork server has it.
    pub(super) fn samples(&self) -> Option<u64> {
        self.state().samples
    }

    pub(super) fn pid(&self) -> u32 {
        self.state().pid
    }

    /// Kills a worker. [`wait_for_worker`](Self::wait_for_worker) then waits for its end.
    pub(super) fn kill(&self, worker: u32) {
        let state = self.state();
        let process = state.workers.get(worker as usize);
        let process = process.and_then(|w| w.process.as_ref());
        let killed = process.is_some_and(|p| pidfd_send_signal(p, Signal::KILL).is_ok());
        drop(state);
        if !killed {
            // The worker may be in another namespace, whose processes only those in it may signal. `ask` fails only if a
            // request cannot be encoded.
            let _ = self.ask(&ForkServerRequest::Kill { worker }, &[]);
        }
    }

    /// Waits until a worker is gone. Returns how it ended, or `None` if it is still there after `limit`.
    pub(super) fn wait_for_worker(&self, worker: u32, limit: Duration) -> Option<WorkerEnd> {
        let end = Instant::now() + limit;
        let find = |s: &mut ForkServerState| {
            let exited = s.workers.get(worker as usize)?.exited.as_ref();
            exited.map(|how| WorkerEnd::Alone(how.clone()))
        };
        if let Ok(alone) = self.wait("to end a worker", limit, find) {
            return Some(alone);
        }
        let state = self.state();
        state.ended.as_ref()?;
        let process = state.workers.get(worker as usize);
        let process = process.and_then(|w| w.process.as_ref());
        let process = process.and_then(|p| p.try_clone().ok());
        drop(state);
        // The fork server has ended, and the kernel kills its workers.
        let left = end.saturating_duration_since(Instant::now()).max(KILLED);
        process
            .is_none_or(|process| is_gone_within(&process, left))
            .then_some(WorkerEnd::WithServer)
    }

    /// Returns `true` if the fork server has ended.
    pub(super) fn is_over(&self) -> bool {
        self.state().ended.is_some()
    }

    /// Returns how the fork server ended, or `None` if it is running.
    pub(super) fn ended(&self) -> Option<String> {
        self.state().ended.clone()
    }

    /// Returns the error of a request `what` (for example `to load the dataset`) if the fork server has ended.
    pub(super) fn ended_while(&self, what: &str) -> Option<Error> {
        self.ended().map(|ended| fork_server_killed(&ended, what))
    }

    /// Calls `tell` when the fork server has ended, at once if it has.
    pub(super) fn on_end(&self, tell: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.ended.is_none() {
            state.on_end = Some(Box::new(tell));
            return;
        }
        drop(state);
        tell();
    }

    /// Returns the processes that make samples.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.state().pids()
    }

    /// Returns `true` if the coordinator has ended it, so that its end is no trouble.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Ends the fork server and all its workers. A worker finishes the sample that it is making, if that does not take
    /// long.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        for worker in &self.state().workers {
            if let Some(socket) = &worker.hang_up {
                let _ = socket.shutdown(std::net::Shutdown::Both);
            }
        }
        self.channel.hang_up();
    }

    // The thread that reads the fork server's messages.

    fn run(&self, socket: UnixStream) {
        let heard = catch_unwind(AssertUnwindSafe(|| self.hear(Channel::new(socket))));
        // Also after an invalid message and after a panic: the process ends when its socket closes.
        self.channel.hang_up();
        let is_gone = self.reap();
        let how = match heard {
            Ok(Some(why)) => format!("sent an invalid message: {why}"),
            Ok(None) if is_gone => "ended".into(),
            Ok(None) => "hung up and is still there".into(),
            Err(_) => {
                "was ended because the thread that heard it panicked, a defect of coprep".into()
            }
        };
        if !self.is_closing() {
            tracing::warn!(how, "the fork server of a stream's user code has ended");
        }
        let mut state = self.state();
        state.ended = Some(how);
        let on_end = state.on_end.take();
        drop(state);
        self.changed.notify_all();
        if let Some(tell) = on_end {
            tell();
        }
    }

    /// Waits for the end of the process, whose connection has ended, and kills it if it takes too long. Returns `false`
    /// if it is still there.
    fn reap(&self) -> bool {
        let process = self.state().process.take();
        // One that has not sent its descriptor has no workers yet.
        process.is_none_or(|process| {
            is_gone_within(&process, GRACE) || {
                let _ = pidfd_send_signal(&process, Signal::KILL);
                is_gone_within(&process, KILLED)
            }
        })
    }

    /// Reads messages until the fork server has ended. Returns `Some` with a reason if it must be ended.
    fn hear(&self, mut channel: Channel) -> Option<String> {
        loop {
            match channel.receive(poll_every(POLL_INTERVAL)) {
                Ok(Some(message)) => {
                    fail_point!("fork-server-listener");
                    if let Err(why) = self.heard(&message, &mut channel) {
                        return Some(why);
                    }
                }
                Ok(None) => {}
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return None,
                Err(e) => return Some(e.to_string()),
            }
        }
    }

    fn heard(&self, message: &[u8], channel: &mut Channel) -> std::result::Result<(), String> {
        let event = serde_json::from_slice(message).map_err(|e| e.to_string())?;
        let mut state = self.state();
        match event {
            ForkServerEvent::Ready { pid, samples } => {
                (state.pid, state.samples) = (pid, Some(samples));
                state.process = channel.take_descriptor();
            }
            ForkServerEvent::Mapped => state.mapped = true,
            ForkServerEvent::Failed {
                worker: None,
                message,
            } => state.failed = Some(message),
            ForkServerEvent::Failed {
                worker: Some(worker),
                message,
            } => {
                let state = state.workers.get_mut(worker as usize);
                state.ok_or("a worker of no number")?.failed = Some(message);
            }
            ForkServerEvent::Forked { worker, pid } => {
                let state = state.workers.get_mut(worker as usize);
                let descriptors = channel.take_descriptor().zip(channel.take_descriptor());
                let found = state.zip(descriptors);
                let (state, (socket, process)) = found.ok_or("a worker of no number")?;
                let socket = UnixStream::from(socket);
                state.hang_up = socket.try_clone().ok();
                (state.pid, state.socket, state.process) = (pid, Some(socket), Some(process));
            }
            ForkServerEvent::Exited { worker, how } => {
                let state = state.workers.get_mut(worker as usize);
                let state = state.ok_or("a worker of no number")?;
                (state.exited, state.process, state.hang_up) = (Some(how), None, None);
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }
}

/// Waits for the end of a process. Returns `false` if it is still there after `limit`.
fn is_gone_within(process: &OwnedFd, limit: Duration) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, Some(limit)).is_ok_and(|n| n > 0)
}

#[cfg(test)]
impl ForkServer {
    /// Returns a fork server with `workers` workers, and the process's end of its channel, which a test holds. It has
    /// ended once the test has dropped that end.
    pub(super) fn of_test(workers: usize) -> (Arc<ForkServer>, Channel) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let receiving = ours.try_clone().expect("a copy of the socket");
        let (job, _) = UnixStream::pair().expect("a pair of sockets");
        let writer = crate::connection::reply_queue::ReplyWriter::start().expect("a thread");
        let giver = Giver {
            reply_queue: ReplyQueue::new(&job, &writer).expect("a queue"),
            peer: Arc::new(Peer::of(&job)),
            pid: 0,
            is_persistent: false,
        };
        let fork_server = Arc::new(ForkServer::new(GivenServer {
            socket: ours,
            giver,
        }));
        let worker = || WorkerState {
            makes_samples: true,
            ..WorkerState::default()
        };
        fork_server.state().workers = std::iter::repeat_with(worker).take(workers).collect();
        let hearer = fork_server.clone();
        std::thread::spawn(move || hearer.run(receiving));
        (fork_server, Channel::new(theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_worker_that_ends_alone_says_how() {
        let (fork_server, process) = ForkServer::of_test(2);
        let exited = br#"{"event": "exited", "worker": 1, "how": "was killed"}"#;
        process.send(exited, &[]).unwrap();
        let alone = WorkerEnd::Alone("was killed".into());
        assert_eq!(fork_server.wait_for_worker(1, LIMIT), Some(alone));
        assert_eq!(fork_server.wait_for_worker(0, Duration::ZERO), None);
    }

    #[test]
    fn a_worker_whose_fork_server_ends_has_ended_with_it() {
        let (fork_server, process) = ForkServer::of_test(2);
        let exited = br#"{"event": "exited", "worker": 1, "how": "was killed"}"#;
        process.send(exited, &[]).unwrap();
        drop(process);
        let with_server = Some(WorkerEnd::WithServer);
        assert_eq!(fork_server.wait_for_worker(0, LIMIT), with_server);
        let alone = WorkerEnd::Alone("was killed".into());
        assert_eq!(fork_server.wait_for_worker(1, LIMIT), Some(alone));
    }

    #[test]
    fn the_slots_of_a_worker_that_outlives_its_fork_server_are_not_free() {
        let (fork_server, process) = ForkServer::of_test(1);
        let me = rustix::process::pidfd_open(
            rustix::process::getpid(),
            rustix::process::PidfdFlags::empty(),
        );
        fork_server.state().workers[0].process = Some(me.unwrap());
        drop(process);
        assert_eq!(fork_server.wait_for_worker(0, LIMIT.min(KILLED)), None);
    }

    #[test]
    fn workers_are_those_that_make_samples_and_run() {
        let worker = |pid, makes_samples, exited: Option<&str>| WorkerState {
            pid,
            makes_samples,
            exited: exited.map(Into::into),
            ..WorkerState::default()
        };
        let state = ForkServerState {
            workers: vec![
                // This worker has inspected the first samples, and is about to end.
                worker(10, false, None),
                worker(11, true, Some("was killed")),
                worker(12, true, None),
                // This worker has not been forked yet.
                worker(0, true, None),
            ],
            ..ForkServerState::default()
        };
        assert_eq!(state.pids(), [12]);
    }
}
