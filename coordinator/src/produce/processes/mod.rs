//! Streams whose samples are made by the jobs' own code, in worker processes that all jobs of the stream share.
//!
//! * [`fork_server`]: the process that has the dataset and forks workers. A job forks it from itself.
//! * [`current_server`]: the fork server that a pool has at present.
//! * [`worker`]: a thread per worker process, which keeps it busy and replaces it when it ends.
//! * [`loading`]: the inspection of a dataset's first samples.
//! * [`comparison`]: samples that are made only to be compared, when a job joins.
//! * [`sample_shape`]: the fields and sizes of its samples, as the inspection finds them.
//! * [`task`]: the contract between a pool and the samples that it makes.
//! * [`deadly`]: the samples that end their workers.
//!
//! The coordinator knows the protocol of these processes ([`coprep_protocol::code`]). It does not know the code's
//! language, and starts none of them: a fork server ends with the job that it was forked from, and a job that waits for
//! samples forks the next one. The samples that were made stay in their slots meanwhile, and the others stay queued.
//!
//! **Invariants.** A task ends exactly once: it is made, fails or is dropped, whatever happens to processes. A slot is
//! given to another worker only when the process that may write it no longer exists.

mod comparison;
mod current_server;
mod deadly;
mod fork_server;
mod loading;
mod opened_files;
mod sample_shape;
mod task;
mod worker;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use coprep_costs::MeasuredTimes;
use coprep_shared_memory::lock::lock;
use coprep_shared_memory::staging::StagingPool;
use crossbeam::utils::CachePadded;

use crate::Result;
use crate::caches::DatasetCache;
use crate::connection::reply_queue::ReplyQueue;
use crate::error::os;
use crate::observe::stalls::{BusyClock, StallClock};
use crate::produce::deadline_queue::{Deadline, DeadlineQueue};
pub(crate) use crate::produce::processes::comparison::Comparison;
use crate::produce::processes::current_server::CurrentServer;
use crate::produce::processes::deadly::DeadlySamples;
use crate::produce::processes::fork_server::ForkServer;
pub(crate) use crate::produce::processes::fork_server::{GivenServer, Giver};
pub(crate) use crate::produce::processes::loading::{Loaded, Probing};
pub(crate) use crate::produce::processes::sample_shape::SampleShape;
pub(crate) use crate::produce::processes::task::{
    Begin, LargeRoom, Task, TaskEstimate, TaskOutcome,
};
use crate::produce::processes::worker::{PoolTask, Worker};

/// Reason why a process pool cannot go on, or not for now.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// Its fork server ended, and another one may take its place.
    LostServer {
        how: String,
        /// `true` if it had made a sample, or ended with its job.
        was_of_use: bool,
    },
    /// Its fork server failed.
    ForkServer(String),
    /// A thread panicked.
    Defect(&'static str),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::ForkServer(why) | Trouble::LostServer { how: why, .. } => {
                write!(f, "the process that runs its dataset's code: {why}")
            }
            Trouble::Defect(what) => {
                write!(f, "{what}: a defect of coprep, please report it")
            }
        }
    }
}

/// The memory that workers write samples to, and the form of the samples.
pub(crate) struct WorkerStaging {
    pub(crate) pool: StagingPool,
    pub(crate) shape: SampleShape,
    /// Seed of the stream.
    pub(crate) seed: u64,
}

impl WorkerStaging {
    fn map(&self, fork_server: &ForkServer) -> Result<()> {
        fork_server.map(self.pool.layout(), &self.shape, self.seed, self.pool.file())
    }
}

/// The worker processes of a stream.
pub(crate) struct ProcessPool {
    server: CurrentServer,
    /// Number of samples that the present fork server has made.
    made: AtomicU64,
    staging: WorkerStaging,
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

/// Options of a pool.
pub(crate) struct PoolOptions {
    pub(crate) workers: u32,
    /// Longest time without a message from a worker that has something to do.
    pub(crate) timeout: Duration,
    /// Cache of the deterministic parts.
    pub(crate) cache: Option<Arc<DatasetCache>>,
    /// `true` if stalls are attributed.
    pub(crate) attributes: bool,
}

/// Chunks of samples that may wait per worker before the next minibatch is drawn.
const WAITING: u32 = 2;

impl ProcessPool {
    /// Gives the staging area to the fork server, and starts the threads. Each thread starts its process when there is
    /// something to do.
    pub(crate) fn start(
        loaded: Loaded,
        staging: WorkerStaging,
        options: PoolOptions,
    ) -> Result<Arc<ProcessPool>> {
        let fork_server = loaded.fork_server;
        if let Err(e) = staging.map(&fork_server) {
            fork_server.close();
            return Err(e);
        }
        let workers = options.workers;
        let process_pool = Self::new(fork_server.clone(), staging, options);
        process_pool.watch(&fork_server);
        for number in 0..workers {
            let worker = Worker::new(process_pool.clone(), number);
            let started = std::thread::Builder::new()
                .name(format!("code-{number}"))
                .spawn(move || worker.run());
            if let Err(e) = started {
                process_pool.dismiss();
                return Err(os("cannot start a thread", e));
            }
        }
        Ok(process_pool)
    }

    /// Creates a pool without threads.
    fn new(
        fork_server: Arc<ForkServer>,
        staging: WorkerStaging,
        options: PoolOptions,
    ) -> Arc<ProcessPool> {
        let attributes = options.attributes;
        Arc::new(ProcessPool {
            server: CurrentServer::new(fork_server),
            made: AtomicU64::new(0),
            staging,
            workers: options.workers,
            timeout: options.timeout,
            cache: options.cache,
            queue: DeadlineQueue::new(),
            stuck: AtomicU32::new(0),
            deadly: DeadlySamples::default(),
            typical: CachePadded::default(),
            clock: attributes.then(|| Mutex::new(BusyClock::new(Instant::now()))),
            over: OnceLock::new(),
            on_trouble: OnceLock::new(),
        })
    }

    // The fork server.

    /// Returns `true` if a job should give a fork server.
    pub(crate) fn wants_server(&self) -> bool {
        self.server.is_absent() && !self.is_over()
    }

    /// Takes a fork server, unless there is one. It gets ready in the background.
    pub(crate) fn give_server(self: &Arc<Self>, given: GivenServer) {
        let giver = given.giver.clone();
        // A fork server that is not needed finds its socket closed.
        if self.is_over() || !self.server.begin(&giver.reply_queue) {
            return;
        }
        let (process_pool, job) = (self.clone(), giver.clone());
        let start = move || process_pool.start_server(given, &job);
        let started = std::thread::Builder::new()
            .name("start-server".into())
            .spawn(start);
        if let Err(e) = started {
            self.server.finish(&giver.reply_queue, None);
            self.tell(Trouble::LostServer {
                how: format!("cannot be heard: {e}"),
                was_of_use: false,
            });
        }
    }

    fn start_server(self: &Arc<Self>, given: GivenServer, giver: &Giver) {
        let is_awaited = || !self.is_over() && !giver.is_gone();
        let started = ForkServer::start(given, is_awaited).and_then(|server| {
            let mapped = self.staging.map(&server);
            if mapped.is_err() {
                server.close();
            }
            mapped.map(|()| server)
        });
        match started {
            Ok(server) => {
                self.made.store(0, Ordering::Relaxed);
                let job = &giver.reply_queue;
                if self.server.finish(job, Some(server.clone())) && !self.is_over() {
                    self.watch(&server);
                } else {
                    server.close();
                }
            }
            Err(e) => {
                self.server.finish(&giver.reply_queue, None);
                self.tell(Trouble::LostServer {
                    how: e.to_string(),
                    was_of_use: giver.is_gone(),
                });
            }
        }
    }

    /// Has the pool look for another fork server when this one ends.
    fn watch(self: &Arc<Self>, server: &Arc<ForkServer>) {
        // Weak, because the fork server keeps this function.
        let (process_pool, watched) = (Arc::downgrade(self), Arc::downgrade(server));
        server.on_end(move || {
            if let Some((process_pool, server)) = process_pool.upgrade().zip(watched.upgrade()) {
                process_pool.lost(&server);
            }
        });
        // The job may have left while the fork server was starting.
        if server.giver.is_gone() {
            self.end_server_of(&server.giver.reply_queue);
        }
    }

    /// Records the end of a fork server.
    fn lost(&self, server: &Arc<ForkServer>) {
        if self.server.remove(server) && !self.is_over() && !server.is_closing() {
            self.tell(Trouble::LostServer {
                how: server.ended().unwrap_or_default(),
                was_of_use: self.made.load(Ordering::Relaxed) > 0 || server.giver.is_gone(),
            });
        }
    }

    /// Ends the fork server of a job, which leaves the stream. Returns `true` if there was one.
    pub(crate) fn end_server_of(&self, job: &Arc<ReplyQueue>) -> bool {
        self.server
            .remove_of(job)
            .inspect(|server| server.close())
            .is_some()
    }

    /// Ends the fork server, because no job iterates an epoch, unless its job wants to keep it. Returns its process id.
    pub(crate) fn end_idle_server(&self) -> Option<u32> {
        let server = self
            .server
            .remove_if(|server| !server.giver.is_persistent)?;
        server.close();
        Some(server.pid())
    }

    fn server(&self) -> Option<Arc<ForkServer>> {
        self.server.get()
    }

    /// Waits for a fork server for a while.
    fn wait_for_server(&self, limit: Duration) {
        if !self.is_over() {
            self.server.wait(limit);
        }
    }

    /// Sets the function that is called when the pool ends by itself, and when its fork server does.
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
        self.server().map_or(Vec::new(), |server| server.pids())
    }

    /// Ends threads, workers and the fork server.
    pub(crate) fn dismiss(&self) {
        // This fails if the pool has ended by itself.
        let _ = self.over.set(None);
        self.close();
    }

    /// Ends a pool that cannot go on, and reports the reason.
    fn end(&self, trouble: Trouble) {
        if self.over.set(Some(trouble.clone())).is_err() {
            return;
        }
        self.close();
        self.tell(trouble);
    }

    fn tell(&self, trouble: Trouble) {
        if let Some(tell) = self.on_trouble.get() {
            tell(trouble);
        }
    }

    /// Ends the fork server of a pool that is over, and drops the queued tasks.
    fn close(&self) {
        if let Some(server) = self.server.remove_if(|_| true) {
            server.close();
        }
        self.server.notify();
        self.drain();
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

    /// Returns the next sample, and with it those that the dataset is asked for together with it.
    fn next_together(&self, wait: Duration) -> Vec<PoolTask> {
        self.queue
            .pop_group(wait, |task| task.together().map(Arc::as_ptr))
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
        self.made.fetch_add(1, Ordering::Relaxed);
        self.typical.observe(times.total());
    }
}

#[cfg(test)]
impl ProcessPool {
    /// Returns a pool without threads, whose staging area nobody writes.
    fn of_test(fork_server: Arc<ForkServer>, workers: u32) -> Arc<ProcessPool> {
        use coprep_shared_memory::staging::Layout;

        let layout = Layout::new(&[8], 1, 1).expect("a layout");
        let staging = WorkerStaging {
            pool: StagingPool::create_shared(layout).expect("memory"),
            shape: SampleShape::default(),
            seed: 0,
        };
        let options = PoolOptions {
            workers,
            timeout: Duration::from_secs(60),
            cache: None,
            attributes: false,
        };
        Self::new(fork_server, staging, options)
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
