//! The fork server of a stream's user code: a process that loads the dataset once and forks workers.
//!
//! One thread has it forked by a [`zygote`](super::zygote), reads its messages, and sees it end. A worker's thread that
//! needs it sends a request and waits. The kernel ends a fork server with its zygote, and workers with their fork
//! server, so that none of them outlives the coordinator, however that ends.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_protocol::code::{self, Channel, ForkServerEvent, ForkServerRequest};
use coprep_protocol::message::UserCode;
use coprep_protocol::poll_interval::poll_every;
use coprep_shared_memory::lock::{lock, unpoisoned};
use coprep_shared_memory::staging::Layout;
use fail::fail_point;

use crate::error::{code_failed, os};
use crate::produce::processes::sample_shape::SampleShape;
use crate::produce::processes::zygote::{Ended, Zygote};
use crate::{Error, Result};

/// Longest time to load a dataset. Slow storage and large imports may take minutes.
const LOADING: Duration = Duration::from_secs(600);
const NOW_AND_THEN: Duration = Duration::from_millis(500);
/// Longest time for any request but the one to load a dataset.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest sleep of the thread when nothing wakes it. Nothing depends on it: see [`poll_every`].
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A running fork server.
pub(super) struct ForkServer {
    /// Used for sending. The other end is the fork server's standard input.
    channel: Channel,
    /// Held while requests are sent that must follow each other. A worker with samples to make needs the staging area,
    /// so it must not be requested after the staging area was unmapped. Locked before `state`.
    asking: Mutex<()>,
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

#[derive(Default)]
struct ForkServerState {
    samples: Option<u64>,
    mapped: bool,
    /// Reason why a request that is about no worker failed.
    failed: Option<String>,
    /// Workers by number.
    workers: Vec<WorkerState>,
    /// Description of the end of the fork server, once it has ended.
    ended: Option<Ended>,
}

#[derive(Default)]
struct WorkerState {
    pid: u32,
    /// `true` if the worker makes samples. The worker that inspects the first samples does not, and nobody waits for
    /// its end.
    makes_samples: bool,
    socket: Option<UnixStream>,
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
    /// Starts a fork server and lets it load the dataset, for as long as `is_awaited`. Returns it with the number of
    /// samples.
    ///
    /// With `anew`, the fork server imports everything it needs by itself.
    pub(super) fn start(
        zygote: &Arc<Zygote>,
        code: &UserCode,
        dataset: &OwnedFd,
        anew: bool,
        is_awaited: impl Fn() -> bool,
    ) -> Result<(Arc<ForkServer>, u64)> {
        let (ours, theirs) =
            UnixStream::pair().map_err(|e| os("cannot make a pair of sockets", e))?;
        let receiving = ours
            .try_clone()
            .map_err(|e| os("cannot copy a socket", e))?;
        let fork_server = Arc::new(ForkServer::new(ours));
        let (zygote, hearer) = (zygote.clone(), fork_server.clone());
        let prelude = code.prelude.clone();
        let hear = move || {
            let number = zygote.start_fork_server(&prelude, anew, &theirs);
            // Closed here, so that the fork server's death closes the socket.
            drop(theirs);
            hearer.run(&zygote, number, receiving);
        };
        std::thread::Builder::new()
            .name("fork-server".into())
            .spawn(hear)
            .map_err(|e| os("cannot start a thread", e))?;
        let find = |s: &mut ForkServerState| match s.samples {
            None if !is_awaited() => Some(Err(code_failed(
                "the job left while its dataset was loaded",
            ))),
            None => s.take_failure().map(Err),
            Some(samples) => Some(Ok(samples)),
        };
        let loaded = fork_server
            .ask(&ForkServerRequest::Load, &[dataset.as_raw_fd()])
            .and_then(|()| fork_server.wait("to load the dataset", LOADING, find))
            .flatten();
        match loaded {
            Ok(samples) => Ok((fork_server, samples)),
            Err(e) => {
                // Dropping it here would not end it, because the listening thread holds it as well.
                fork_server.close();
                Err(e)
            }
        }
    }

    /// Creates the coordinator's end of a connection with a fork server. [`hear`](Self::hear) reads its messages.
    pub(super) fn new(socket: UnixStream) -> ForkServer {
        ForkServer {
            channel: Channel::new(socket),
            asking: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, ForkServerState> {
        lock(&self.state)
    }

    fn asking(&self) -> MutexGuard<'_, ()> {
        lock(&self.asking)
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
                return Err(ended.error(what));
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

    /// Starts worker `id` of `workers`.
    pub(super) fn fork(
        &self,
        id: u32,
        workers: u32,
        task_table: Option<BorrowedFd<'_>>,
        scratch: &[RawFd],
    ) -> Result<Forked> {
        let asking = self.asking();
        let number = {
            let mut state = self.state();
            if task_table.is_some() && !state.mapped {
                return Err(code_failed("the stream is at its end"));
            }
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
        };
        let task_table = task_table.as_ref().map(AsRawFd::as_raw_fd);
        let descriptors: Vec<RawFd> = task_table
            .into_iter()
            .chain(scratch.iter().copied())
            .collect();
        self.ask(&request, &descriptors)?;
        // Released before the wait, so that other threads can ask meanwhile.
        drop(asking);
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

    /// Ends all workers and unmaps the staging area, so that only the dataset stays in memory.
    pub(super) fn become_idle(&self) {
        let running =
            |(number, w): (usize, &WorkerState)| w.exited.is_none().then_some(number as u32);
        let _asking = self.asking();
        let running: Vec<u32> = {
            let mut state = self.state();
            // From now on `fork` refuses to start a worker that needs the staging area.
            state.mapped = false;
            let workers = state.workers.iter().enumerate();
            workers.filter_map(running).collect()
        };
        for worker in running {
            // `ask` fails only if a request cannot be encoded. A fork server that is gone has no worker left.
            let _ = self.ask(&ForkServerRequest::Kill { worker }, &[]);
        }
        let _ = self.ask(&ForkServerRequest::Unmap, &[]);
    }

    /// Returns the number of samples of the dataset, once it is loaded.
    pub(super) fn samples(&self) -> Option<u64> {
        self.state().samples
    }

    /// Asks the fork server to kill a worker. [`exited`](Self::exited) then waits for its end.
    pub(super) fn kill(&self, worker: u32) {
        // `ask` fails only if a request cannot be encoded.
        let _ = self.ask(&ForkServerRequest::Kill { worker }, &[]);
    }

    /// Waits until a worker is gone. Returns how it ended, or `None` if it is still there after `limit`.
    ///
    /// # Errors
    /// With the reason why nobody will tell how it ends: how the fork server has ended, or why it cannot kill the
    /// worker.
    pub(super) fn exited(
        &self,
        worker: u32,
        limit: Duration,
    ) -> std::result::Result<Option<String>, String> {
        let find = |s: &mut ForkServerState| {
            let worker = s.workers.get_mut(worker as usize)?;
            if let Some(how) = &worker.exited {
                return Some(Ok(Some(how.clone())));
            }
            if let Some(why) = worker.failed.take() {
                return Some(Err(why));
            }
            // Checked last, because a message that came before the end may say how the worker ended.
            let ended = s.ended.as_ref();
            ended.map(|ended| Err(format!("it {}", ended.how)))
        };
        // `find` sees the end of the fork server, so the wait fails only when the time is up.
        self.wait("to end a worker", limit, find)
            .unwrap_or(Ok(None))
    }

    /// Returns how the fork server ended, or `None` if it is running.
    pub(super) fn ended(&self) -> Option<String> {
        self.state().ended.as_ref().map(|ended| ended.how.clone())
    }

    /// Returns the error of a request `what` (for example `to load the dataset`) if the fork server has ended.
    pub(super) fn ended_while(&self, what: &str) -> Option<Error> {
        self.state().ended.as_ref().map(|ended| ended.error(what))
    }

    /// Returns the processes that make samples.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.state().pids()
    }

    /// Ends the fork server and all its workers.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.channel.hang_up();
    }

    // The thread that reads the fork server's messages.

    fn run(&self, zygote: &Arc<Zygote>, number: u32, socket: UnixStream) {
        let heard = catch_unwind(AssertUnwindSafe(|| self.hear(Channel::new(socket))));
        // Also after an invalid message and after a panic: the process ends when its socket closes.
        self.channel.hang_up();
        let how = zygote.reap(number);
        let ended = match heard {
            Ok(Some(why)) => Ended::by_itself(format!("sent an invalid message: {why}")),
            Ok(None) => how,
            Err(_) => Ended::by_defect(),
        };
        if !self.closing.load(Ordering::Acquire) {
            tracing::warn!(
                how = ended.how,
                "the fork server of a stream's user code has ended"
            );
        }
        self.state().ended = Some(ended);
        self.changed.notify_all();
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
            ForkServerEvent::Loaded { samples } => state.samples = Some(samples),
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
                let found = state.zip(channel.take_descriptor());
                let (state, socket) = found.ok_or("a worker of no number")?;
                (state.pid, state.socket) = (pid, Some(UnixStream::from(socket)));
            }
            ForkServerEvent::Exited { worker, how } => {
                let state = state.workers.get_mut(worker as usize);
                state.ok_or("a worker of no number")?.exited = Some(how);
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }
}

#[cfg(test)]
impl ForkServer {
    /// Returns a fork server with `workers` workers, and the process's end of its channel, which a test holds. It has
    /// ended once the test has dropped that end.
    pub(super) fn of_test(workers: usize) -> (Arc<ForkServer>, Channel) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let receiving = ours.try_clone().expect("a copy of the socket");
        let fork_server = Arc::new(ForkServer::new(ours));
        let worker = || WorkerState {
            makes_samples: true,
            ..WorkerState::default()
        };
        fork_server.state().workers = std::iter::repeat_with(worker).take(workers).collect();
        let hearer = fork_server.clone();
        std::thread::spawn(move || {
            hearer.hear(Channel::new(receiving));
            hearer.state().ended = Some(Ended::by_itself("ended (signal: 9)".into()));
            hearer.changed.notify_all();
        });
        (fork_server, Channel::new(theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_failure_is_told_to_whoever_waits_for_that_worker() {
        let (fork_server, process) = ForkServer::of_test(2);
        let failed = br#"{"event": "failed", "worker": 0, "message": "cannot fork"}"#;
        process.send(failed, &[]).unwrap();
        let exited = br#"{"event": "exited", "worker": 1, "how": "was killed"}"#;
        process.send(exited, &[]).unwrap();
        // Both messages have come when the second has, and the failure is left for the other worker.
        assert_eq!(fork_server.exited(1, LIMIT), Ok(Some("was killed".into())));
        assert_eq!(fork_server.exited(0, LIMIT), Err("cannot fork".into()));
        assert_eq!(fork_server.exited(0, Duration::ZERO), Ok(None));
    }

    #[test]
    fn a_worker_that_nobody_can_report_is_not_waited_for() {
        let (fork_server, process) = ForkServer::of_test(2);
        let exited = br#"{"event": "exited", "worker": 1, "how": "was killed"}"#;
        process.send(exited, &[]).unwrap();
        drop(process);
        let ended = Err("it ended (signal: 9)".into());
        assert_eq!(fork_server.exited(0, LIMIT), ended);
        assert_eq!(fork_server.exited(1, LIMIT), Ok(Some("was killed".into())));
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
