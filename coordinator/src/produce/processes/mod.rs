//! Streams whose samples are made by the jobs' own code, in worker processes that all jobs of the stream share.
//!
//! * [`zygote`]: the process that has imported the modules that a program's datasets need, and that forks fork servers.
//! * [`fork_server`]: the process that has loaded the dataset and forks workers.
//! * [`worker`]: a thread per worker process, which keeps it busy and replaces it when it ends.
//! * [`loading`]: a dataset that is loaded, and the inspection of its first samples.
//! * [`sample_shape`]: the fields and sizes of its samples, as the inspection finds them.
//! * [`task`]: the contract between a pool and the samples that it makes.
//! * [`deadly`]: the samples that end their workers.
//!
//! The coordinator knows the command that starts that code, and the protocol of the processes that it starts
//! ([`coprep_protocol::code`]). It does not know the code's language.
//!
//! **Invariants.** A task ends exactly once: it is made, fails or is dropped, whatever happens to processes. A slot is
//! given to another worker only when the process that may write it no longer exists.

mod deadly;
mod fork_server;
mod loading;
mod sample_shape;
mod task;
mod worker;
mod zygote;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use coprep_costs::MeasuredTimes;
use coprep_shared_memory::lock::lock;
use crossbeam::utils::CachePadded;

use crate::Result;
use crate::caches::DatasetCache;
use crate::error::os;
use crate::observe::stalls::{BusyClock, StallClock};
use crate::produce::deadline_queue::{Deadline, DeadlineQueue};
use crate::produce::processes::deadly::DeadlySamples;
use crate::produce::processes::fork_server::ForkServer;
pub(crate) use crate::produce::processes::loading::{Loaded, Probing};
pub(crate) use crate::produce::processes::sample_shape::SampleShape;
pub(crate) use crate::produce::processes::task::{
    Begin, LargeRoom, Task, TaskEstimate, TaskOutcome,
};
use crate::produce::processes::worker::{PoolTask, Worker};
pub(crate) use crate::produce::processes::zygote::Zygote;

/// Reason why a process pool ended before its stream.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// Its fork server ended.
    ForkServer(String),
    /// A thread panicked.
    Defect(&'static str),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::ForkServer(why) => {
                write!(f, "the process that runs its dataset's code: {why}")
            }
            Trouble::Defect(what) => {
                write!(f, "{what}: a defect of coprep, please report it")
            }
        }
    }
}

/// A fork server that has loaded a dataset and has nothing to do.
pub(crate) struct IdleForkServer {
    /// The fork server, or `None` once it was taken.
    fork_server: Option<Arc<ForkServer>>,
    since: Instant,
}

impl IdleForkServer {
    /// Returns how long the fork server has been idle.
    pub(crate) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.fork_server
            .as_ref()
            .is_some_and(|fork_server| fork_server.ended().is_none())
    }
}

impl Drop for IdleForkServer {
    fn drop(&mut self) {
        if let Some(fork_server) = &self.fork_server {
            fork_server.close();
        }
    }
}

/// The worker processes of a stream.
pub(crate) struct ProcessPool {
    fork_server: Arc<ForkServer>,
    workers: u32,
    /// Longest time without a message from a worker that has something to do.
    timeout: Duration,
    /// Cache of the deterministic parts.
    cache: Option<Arc<DatasetCache>>,
    queue: DeadlineQueue<PoolTask>,
    /// Number of workers that wait for memory.
    stuck: AtomicU32,
    deadly: DeadlySamples,
    /// Typical time of a sample. It is written with every sample, so it has a cache line of its own.
    typical: CachePadded<Typical>,
    /// Measures how busy the workers are, or `None` if stalls are not attributed.
    clock: Option<Mutex<BusyClock>>,
    over: OnceLock<Option<Trouble>>,
    /// Called when the pool ends by itself.
    on_trouble: OnceLock<Box<dyn Fn(Trouble) + Send + Sync>>,
}

/// Chunks of samples that may wait per worker before the next minibatch is drawn.
const WAITING: u32 = 2;

impl ProcessPool {
    /// Starts the threads. Each thread starts its process when there is something to do.
    pub(crate) fn start(
        loaded: Loaded,
        workers: u32,
        timeout: Duration,
        cache: Option<Arc<DatasetCache>>,
        attributes: bool,
    ) -> Result<Arc<ProcessPool>> {
        let process_pool = Self::new(loaded.fork_server, workers, timeout, cache, attributes);
        for number in 0..workers {
            let worker = Worker::new(process_pool.clone(), number);
            let started = std::thread::Builder::new()
                .name(format!("code-{number}"))
                .spawn(move || worker.run());
            if let Err(e) = started {
                drop(process_pool.dismiss());
                return Err(os("cannot start a thread", e));
            }
        }
        Ok(process_pool)
    }

    /// Creates a pool without threads.
    fn new(
        fork_server: Arc<ForkServer>,
        workers: u32,
        timeout: Duration,
        cache: Option<Arc<DatasetCache>>,
        attributes: bool,
    ) -> Arc<ProcessPool> {
        Arc::new(ProcessPool {
            fork_server,
            workers,
            timeout,
            cache,
            queue: DeadlineQueue::new(),
            stuck: AtomicU32::new(0),
            deadly: DeadlySamples::default(),
            typical: CachePadded::default(),
            clock: attributes.then(|| Mutex::new(BusyClock::new(Instant::now()))),
            over: OnceLock::new(),
            on_trouble: OnceLock::new(),
        })
    }

    /// Sets the function that is called when the pool ends by itself.
    pub(crate) fn on_trouble(&self, tell: impl Fn(Trouble) + Send + Sync + 'static) {
        let _ = self.on_trouble.set(Box::new(tell));
    }

    /// Queues a sample to make. It is begun at `due`, or as soon as a worker is free.
    pub(crate) fn submit(&self, due: Deadline, task: Box<dyn Task>) {
        if self.is_over() {
            return task.finish(TaskOutcome::Dropped);
        }
        self.queue.push(due, PoolTask::new(task, due));
        // The pool may have ended since the check above, and drained its queue before this task came.
        if self.is_over() {
            self.drain();
        }
    }

    /// Returns the number of waiting samples below which the next minibatch is drawn.
    pub(crate) fn few_waiting(&self) -> u32 {
        WAITING * self.workers * self.chunk() as u32
    }

    pub(crate) fn workers(&self) -> u32 {
        self.workers
    }

    /// Returns the stalls until now.
    pub(crate) fn stall_clock(&self) -> StallClock {
        let clock = self.clock();
        clock.map_or_else(StallClock::default, |mut clock| {
            clock.advance_clock(Instant::now())
        })
    }

    fn clock(&self) -> Option<MutexGuard<'_, BusyClock>> {
        let clock = self.clock.as_ref()?;
        Some(lock(clock))
    }

    /// Returns how many workers have a sample to make.
    pub(crate) fn busy(&self) -> u32 {
        self.clock().map_or(0, |clock| clock.busy())
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.fork_server.pids()
    }

    /// Ends threads and workers. Returns the fork server, which has the dataset in memory, unless the pool had failed.
    pub(crate) fn dismiss(&self) -> Option<IdleForkServer> {
        // This fails if the pool has ended by itself, or its fork server has.
        let well = self.over.set(None).is_ok() && self.fork_server.ended().is_none();
        self.drain();
        if !well {
            self.fork_server.close();
            return None;
        }
        self.fork_server.become_idle();
        Some(IdleForkServer {
            fork_server: Some(self.fork_server.clone()),
            since: Instant::now(),
        })
    }

    /// Ends a pool that cannot go on, and reports the reason.
    fn end(&self, trouble: Trouble) {
        if self.over.set(Some(trouble.clone())).is_err() {
            return;
        }
        self.fork_server.close();
        self.drain();
        if let Some(tell) = self.on_trouble.get() {
            tell(trouble);
        }
    }

    fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// Drops the queued tasks, and wakes the threads that wait for a task.
    fn drain(&self) {
        self.queue.close();
        let queued = std::iter::from_fn(|| self.queue.try_pop());
        queued.for_each(|task| task.work.finish(TaskOutcome::Dropped));
    }

    // For the workers' threads.

    fn next(&self, wait: Duration) -> Option<PoolTask> {
        self.queue.pop(wait)
    }

    /// Puts back a sample that any worker may make, behind the samples that are due before it.
    fn requeue(&self, task: PoolTask) {
        self.queue.push(task.due, task);
        if self.is_over() {
            self.drain();
        }
    }

    /// Puts back a sample before all others, because its minibatch has waited longest.
    fn requeue_first(&self, task: PoolTask) {
        self.queue.push(Deadline::default(), task);
        if self.is_over() {
            self.drain();
        }
    }

    /// Returns the largest number of samples in a chunk.
    fn chunk(&self) -> usize {
        self.typical.seconds().map_or(1, worker::chunk)
    }

    /// Records that a worker begins, or ceases, to wait for memory.
    fn waits_for_room(&self, waits: bool) {
        if waits {
            self.stuck.fetch_add(1, Ordering::Relaxed);
        } else {
            self.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns `true` if every worker waits for memory.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck() >= self.workers
    }

    /// Returns how many workers wait for memory.
    pub(crate) fn stuck(&self) -> u32 {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Returns how many samples one worker may take and leave as many for each of the others.
    fn share(&self) -> usize {
        self.queue.len() / self.workers as usize + 1
    }

    /// Records that a worker has something to do, or nothing more.
    fn set_busy(&self, is_busy: bool) {
        if let Some(mut clock) = self.clock() {
            clock.set_busy(Instant::now(), is_busy);
        }
    }

    fn took(&self, times: &MeasuredTimes) {
        if let Some(mut clock) = self.clock() {
            clock.took(times);
        }
        self.typical.observe(times.total());
    }
}

/// Typical time of a sample in seconds: the geometric mean of about the last hundred, which a few slow ones hardly
/// change. If two threads write at once, one of the two samples is lost.
#[derive(Default)]
struct Typical {
    seen: AtomicU32,
    /// Bits of the logarithm.
    logarithm: AtomicU32,
}

impl Typical {
    // The mean of the first samples is exact. From this number on older samples fade out.
    const MOST_SEEN: u32 = 64;

    fn observe(&self, seconds: f32) {
        let seen = self.seen.load(Ordering::Relaxed);
        let before = f32::from_bits(self.logarithm.load(Ordering::Relaxed));
        let now = seconds.max(f32::MIN_POSITIVE).ln();
        let after = before + (now - before) / (seen + 1) as f32;
        self.logarithm.store(after.to_bits(), Ordering::Relaxed);
        let seen = (seen + 1).min(Self::MOST_SEEN);
        self.seen.store(seen, Ordering::Relaxed);
    }

    /// Returns the typical time, or `None` if no sample has been made.
    fn seconds(&self) -> Option<f32> {
        let logarithm = f32::from_bits(self.logarithm.load(Ordering::Relaxed));
        (self.seen.load(Ordering::Relaxed) > 0).then(|| logarithm.exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typical_is_what_most_take() {
        let typical = Typical::default();
        assert_eq!(typical.seconds(), None);
        // The first sample also loads things that all others need.
        typical.observe(2.0);
        for number in 0..1000 {
            typical.observe(if number % 20 == 7 { 0.4 } else { 0.002 });
        }
        let seconds = typical.seconds().unwrap();
        assert!((0.002..0.003).contains(&seconds), "{seconds}");
        for _ in 0..1000 {
            typical.observe(0.02);
        }
        assert!((typical.seconds().unwrap() - 0.02).abs() < 1e-4);
        typical.observe(0.0);
        assert!(typical.seconds().unwrap().is_finite());
    }

    #[test]
    fn a_chunk_is_as_many_as_take_a_few_milliseconds() {
        let chunks = [0.0, 1e-6, 1e-3, 2.3e-3, 5e-3, 1.0].map(worker::chunk);
        assert_eq!(chunks, [64, 64, 12, 5, 2, 1]);
    }
}
