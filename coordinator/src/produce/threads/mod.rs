//! The threads that fetch and prepare samples by native pipelines, one pool for all streams.
//!
//! Work that is due first begins first, whichever stream it is for. Work of a warm-up begins when nothing else is due.
//! The number of threads that fetch and that prepare follows the measured times of both ([`stages`],
//! [`coprep_costs::balance`]). Storage that is slow or dead holds up the work of its own datasets only ([`slow`]).

#[cfg(feature = "measure")]
mod pool_overhead;
mod reading;
mod slow;
mod stages;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use coprep_costs::Balance;
use coprep_protocol::message::PoolStatus;
use coprep_protocol::poll_interval::poll_every;
use coprep_shared_memory::descriptors;
use coprep_shared_memory::lock::{lock, unpoisoned};
use coprep_storage::{DetachedRead, ReadBytes};
use fail::fail_point;

use crate::Result;
use crate::error::{defect, os};
use crate::observe::stalls::{FetchWeight, StallClock};
use crate::produce::deadline_queue::Deadline;
#[cfg(feature = "measure")]
pub use crate::produce::threads::pool_overhead::pool_overhead;
use crate::produce::threads::reading::ReadMark;
pub(crate) use crate::produce::threads::reading::marked;
pub(crate) use crate::produce::threads::slow::{SourceFile, SourceId};
use crate::produce::threads::stages::{CompletedTask, StageQueues, StageWork, ThreadTask};
use coprep_pipeline::Scratch;

/// A task of the pool.
pub(crate) trait PoolWork: Send {
    /// Returns `true` if the task reads from storage before it is run.
    fn needs_fetch(&self) -> bool {
        false
    }
    /// Returns the file that the task reads, or `None` if it never reads from storage.
    fn file(&self) -> Option<SourceFile> {
        None
    }
    /// Returns `true` if memory is going to hold the sample after the task. Another task for the same file then waits
    /// for this one and does not read the file too.
    fn is_to_cache(&self) -> bool {
        false
    }
    /// Returns `true` if the task's read may need no thread while it waits.
    fn may_detach(&self) -> bool {
        false
    }
    /// Returns the bytes that the task is going to read, or `None` if nothing has told them.
    fn expected_bytes(&self) -> Option<u64> {
        None
    }
    /// Returns a read that needs no thread while it waits, or `None` if a thread is to [fetch](Self::fetch).
    fn detached_read(&mut self) -> Option<DetachedRead> {
        None
    }
    /// Returns `true` if the bytes that a detached read has brought may be used. Otherwise a thread reads.
    fn is_intact(&self, _arrived: &ReadBytes) -> bool {
        true
    }
    /// Reads from storage, unless the data has `arrived`, and keeps it until the task is run. Called only if
    /// [`needs_fetch`](Self::needs_fetch) returned `true`.
    fn fetch(&mut self, _arrived: Option<ReadBytes>) -> Ready {
        Ready::default()
    }
    /// Does the rest of the task, or all of it if nothing was fetched.
    fn run(self: Box<Self>, scratch: &mut Scratch);
}

impl StageWork for Box<dyn PoolWork> {
    fn needs_fetch(&self) -> bool {
        PoolWork::needs_fetch(&**self)
    }

    fn is_to_cache(&self) -> bool {
        PoolWork::is_to_cache(&**self)
    }

    fn may_detach(&self) -> bool {
        PoolWork::may_detach(&**self)
    }

    fn expected_bytes(&self) -> Option<u64> {
        PoolWork::expected_bytes(&**self)
    }
}

/// Panic payload that unwinds from a task that nobody waits for any more.
pub(crate) struct GivenUp;

impl GivenUp {
    /// Unwinds without reporting a panic.
    pub(crate) fn unwind() -> ! {
        std::panic::resume_unwind(Box::new(GivenUp))
    }
}

/// The result of a fetch.
#[derive(Default)]
pub(crate) struct Ready {
    /// Time at which the task is to be run.
    pub(crate) due: Deadline,
    /// The seconds of fetching in which the thread did not wait for storage.
    pub(crate) at_work: f32,
    pub(crate) bytes: u64,
    /// `true` if storage has answered: it gave the data, or told whether a cached sample is that of its file.
    pub(crate) is_answered: bool,
    /// `true` if the data could not be read, so that the task reads it when it is run.
    pub(crate) is_unread: bool,
}

/// The pool of threads.
pub(crate) struct ThreadPool {
    pool: Arc<SharedPool>,
    /// Largest number of processors, if the operator gave one.
    cap: Option<u32>,
    started: Mutex<Vec<JoinHandle<()>>>,
    /// `true` if the system refused to start another thread.
    is_short: Mutex<bool>,
}

struct SharedPool {
    fetch_weight: Arc<FetchWeight>,
    state: Mutex<PoolState>,
}

struct PoolState {
    /// The clock at the last rebalancing.
    stall_clock_before: StallClock,
    stages: StageQueues<Box<dyn PoolWork>>,
    /// The marks of the threads, by their numbers.
    read_marks: Vec<ReadMark>,
    balance: Balance,
    /// `true` if a thread panicked outside of a task.
    is_broken: bool,
    /// The threads that wait for a task. The last one is woken first, because its memory is most likely still in the
    /// processor's caches.
    idle: Vec<Thread>,
    /// Number of threads that were woken, and do not run yet.
    waking: u32,
    stop: bool,
}

/// Returns the function that tells whether a thread is reading.
fn is_reading(marks: &[ReadMark]) -> impl Fn(usize) -> bool {
    move |thread| marks.get(thread).is_some_and(ReadMark::is_reading)
}

/// Largest number of threads beyond one per processor, which wait for local storage.
const MOST_WAITING: u32 = 128;
/// Largest number of reads of remote storage at a time, with up to eight processors.
const MOST_REMOTE: u32 = 512;
/// Largest number of them for each processor, with more than eight. With a latency of 50 ms they bring 1,280 samples a
/// second. Of 16 processors, each prepared 750 photographs a second.
const MOST_REMOTE_EACH: u32 = 64;
/// The divisor for the share of this process's descriptors that reads of remote storage may take. Jobs, files and idle
/// connections have the rest.
const SHARE_OF_DESCRIPTORS: u64 = 2;
/// Threads for each processor with which remote storage begins. They keep a processor busy that prepares 2,500 photographs
/// a second while answers take 50 ms, with some to spare.
const FIRST_REMOTE: u32 = 160;
/// Seconds between two rebalancings: at least `OFTEN`, and at most `SELDOM` if fewer than [`ENOUGH`] samples were
/// fetched.
const OFTEN: f64 = 0.5;
const SELDOM: f64 = 2.0;
/// Number of fetched samples from which an interval is representative.
const ENOUGH: u64 = 32;
/// Longest sleep of a worker when nothing wakes it. Nothing depends on it: see [`poll_every`].
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl ThreadPool {
    /// Starts a thread for each processor that may be used, `cap` at most. `attributes` switches
    /// [`stall_clock`](Self::stall_clock) on.
    pub(crate) fn start(cap: Option<u32>, attributes: bool) -> Result<Self> {
        let (cpus, now) = (usable(cap), Instant::now());
        let state = PoolState {
            stall_clock_before: StallClock::default(),
            stages: StageQueues::new(cpus, attributes, now),
            read_marks: Vec::new(),
            balance: Balance::new(cpus, cpus + MOST_WAITING),
            is_broken: false,
            idle: Vec::new(),
            waking: 0,
            stop: false,
        };
        let workers = ThreadPool {
            pool: Arc::new(SharedPool {
                fetch_weight: Arc::new(FetchWeight::new()),
                state: Mutex::new(state),
            }),
            cap,
            started: Mutex::default(),
            is_short: Mutex::new(false),
        };
        workers.start_threads(cpus)?;
        Ok(workers)
    }

    fn start_threads(&self, wanted: u32) -> Result<()> {
        let mut started = lock(&self.started);
        for number in started.len()..wanted as usize {
            let (pool, mark) = (self.pool.clone(), ReadMark::default());
            let of_thread = mark.clone();
            let builder = std::thread::Builder::new().name(format!("worker-{number}"));
            let thread = builder
                .spawn(move || {
                    of_thread.adopt();
                    work_guarded(&pool, number);
                })
                .map_err(|e| os("cannot start worker threads", e))?;
            started.push(thread);
            let mut state = self.pool.state();
            state.read_marks.push(mark);
            state.stages.set_started(started.len() as u32);
            self.pool.wake(state);
        }
        Ok(())
    }

    /// Lets as many threads fetch as remote storage needs, and begins with many.
    pub(crate) fn expect_remote(&self) {
        let cpus = usable(self.cap);
        let mut state = self.pool.state();
        state
            .balance
            .allow(cpus + most_remote(cpus, descriptors::limit().ok()));
        let threads = state.balance.begin_with(cpus * FIRST_REMOTE);
        state.stages.limit(cpus, threads);
        state.stages.expect_detached();
    }

    /// Returns the number of threads that may fetch or prepare at a time.
    pub(crate) fn threads(&self) -> u32 {
        self.pool.state().stages.now().threads
    }

    /// Returns the number of tasks that threads may have at a time, with the reads of slow sources.
    pub(crate) fn capacity(&self) -> u32 {
        self.pool.state().stages.capacity()
    }

    /// Returns the sample of this source whose file has been read for longest, and since when.
    pub(crate) fn longest_read(&self, source: SourceId) -> Option<(u32, Instant)> {
        let state = self.pool.state();
        state
            .stages
            .longest_read(source, is_reading(&state.read_marks))
    }

    /// Returns the number of threads that may prepare at a time.
    pub(crate) fn cpus(&self) -> u32 {
        self.pool.state().stages.now().cpus
    }

    /// Returns the weight of the time of waiting for storage.
    pub(crate) fn fetch_weight(&self) -> Arc<FetchWeight> {
        self.pool.fetch_weight.clone()
    }

    /// Adds a task to begin at `due`, or as soon as a thread is free.
    pub(crate) fn submit(&self, due: Deadline, work: Box<dyn PoolWork>) {
        let (is_to_fetch, file) = (work.needs_fetch(), work.file());
        let mut state = self.pool.state();
        let stages = &mut state.stages;
        stages.submit(Instant::now(), due, is_to_fetch, file, work);
        self.pool.wake(state);
    }

    /// Returns the stall clock until now. All zero for a pool that does not attribute.
    pub(crate) fn stall_clock(&self) -> StallClock {
        let mut state = self.pool.state();
        state.stages.advance_clock(Instant::now());
        state.stages.stall_clock()
    }

    /// Sets stuck reads apart, and rebalances fetching and preparing, if it is time. Must be called now and then.
    ///
    /// # Errors
    /// When a thread has panicked outside of a task, because the pool's state may be half changed.
    pub(crate) fn maintain(&self) -> Result<()> {
        if self.pool.state().is_broken {
            return Err(defect("a worker thread panicked"));
        }
        self.pool.rebalance(self.cap);
        let wanted = self.pool.set_stuck_apart();
        let mut is_short = lock(&self.is_short);
        // A refusal is not tried again, because each attempt would fail and warn once more.
        if !*is_short && let Err(e) = self.start_threads(wanted) {
            *is_short = true;
            tracing::warn!("{e}: storage is waited for by fewer threads than it could serve");
        }
        Ok(())
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let mut state = self.pool.state();
        state.stages.advance_clock(Instant::now());
        let (now, sums) = (state.stages.now(), state.stages.sums());
        PoolStatus {
            cpus: now.cpus,
            threads: now.threads,
            fetching: now.fetching,
            preparing: now.preparing,
            slow_reads: now.apart,
            to_fetch: now.to_fetch,
            to_prepare: now.to_prepare,
            fetched: sums.fetched + sums.fetched_apart,
            prepared: sums.prepared,
            fetch_s: sums.fetch_s + sums.apart_s,
            prepare_s: sums.prepare_s,
        }
    }
}

/// Returns the largest number of reads of remote storage at a time, in a process that may have this many descriptors.
fn most_remote(cpus: u32, descriptors: Option<u64>) -> u32 {
    let most = MOST_REMOTE.max(MOST_REMOTE_EACH.saturating_mul(cpus));
    let fitting = descriptors.map_or(u64::MAX, |limit| limit / SHARE_OF_DESCRIPTORS);
    most.min(u32::try_from(fitting).unwrap_or(u32::MAX))
}

/// Returns the number of processors that this process may use now: `cap`, or all that affinity and control group allow.
fn usable(cap: Option<u32>) -> u32 {
    // A number that the operator gave is taken even if there are fewer processors.
    let there = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    cap.unwrap_or_else(there).max(1)
}

impl SharedPool {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }

    /// Wakes a thread if there is a task for one.
    fn wake(&self, mut state: MutexGuard<'_, PoolState>) {
        let wants_thread = state.stages.wants_thread(state.waking);
        let woken = wants_thread.then(|| state.idle.pop()).flatten();
        state.waking += u32::from(woken.is_some());
        drop(state);
        if let Some(thread) = woken {
            thread.unpark();
        }
    }

    /// Records that a thread reads, and is not soon free for another task. One that waits may have to take its place.
    fn reads_itself(&self, thread: usize) {
        let mut state = self.state();
        state.stages.reads_itself(thread);
        self.wake(state);
    }

    /// Wakes all threads that wait for a task.
    fn wake_all(&self, mut state: MutexGuard<'_, PoolState>) {
        let woken = std::mem::take(&mut state.idle);
        state.waking += woken.len() as u32;
        drop(state);
        woken.iter().for_each(Thread::unpark);
    }

    /// Sets stuck reads apart. Returns the number of threads that the pool should have.
    fn set_stuck_apart(&self) -> u32 {
        let mut state = self.state();
        let PoolState {
            stages, read_marks, ..
        } = &mut *state;
        let is_reading = is_reading(read_marks);
        stages.maintain(Instant::now(), is_reading);
        let wanted = stages.wanted_threads();
        self.wake(state);
        wanted
    }

    /// Rebalances fetching and preparing, if it is time.
    fn rebalance(&self, cap: Option<u32>) {
        let now = Instant::now();
        let mut state = self.state();
        state.stages.advance_clock(now);
        let (time, fetched) = state.stages.lately();
        if time < OFTEN || (fetched < ENOUGH && time < SELDOM) {
            return;
        }
        let seen = state.stages.start_interval();
        let cpus = usable(cap);
        let threads = state.balance.observe(cpus, &seen);
        state.stages.limit(cpus, threads);
        let stall_clock = state.stages.stall_clock();
        let before = std::mem::replace(&mut state.stall_clock_before, stall_clock);
        drop(state);
        // Without threads beyond one per processor, a thread that waits for storage keeps its processor idle.
        let now = if threads > cpus {
            stall_clock.fetch_part(&before)
        } else {
            1.0
        };
        // Smoothed, because one interval is short.
        self.fetch_weight.set((self.fetch_weight.get() + now) / 2.0);
        // The new limits may let several waiting threads begin a task.
        self.wake_all(self.state());
    }

    /// Waits until a task wants a thread, or the pool stops, or for a while.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, PoolState>) -> MutexGuard<'a, PoolState> {
        let this = std::thread::current();
        let end = Instant::now() + poll_every(POLL_INTERVAL);
        while !state.stop && !state.stages.wants_thread(state.waking) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.idle.push(this.clone());
            drop(state);
            std::thread::park_timeout(left);
            state = self.state();
            let waiting = state.idle.iter().position(|idle| idle.id() == this.id());
            match waiting {
                Some(at) => drop(state.idle.remove(at)),
                // Whoever woke it has taken it out.
                None => state.waking -= 1,
            }
        }
        state
    }

    /// Waits for a task for a thread. Returns `None` when there is none after a while, so that the caller checks
    /// whether the pool has stopped.
    fn next<'a>(
        &'a self,
        mut state: MutexGuard<'a, PoolState>,
        thread: usize,
    ) -> Option<ThreadTask<Box<dyn PoolWork>>> {
        if !state.stages.has_step() {
            state = self.wait(state);
        }
        let step = state.stages.next(Instant::now(), thread);
        // There may be another task besides this one.
        self.wake(state);
        step
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.stop = true;
        self.pool.wake_all(state);
        let this = std::thread::current().id();
        let started = std::mem::take(unpoisoned(self.started.get_mut()));
        // The last owner may be a task, and a thread cannot wait for itself.
        for thread in started.into_iter().filter(|t| t.thread().id() != this) {
            let _ = thread.join();
        }
        // An I/O thread may hold the pool for a moment longer. It must drop no task, and with it the last store.
        let empty = StageQueues::new(1, false, Instant::now());
        let tasks = std::mem::replace(&mut self.pool.state().stages, empty);
        drop(tasks);
    }
}

fn work_guarded(pool: &Arc<SharedPool>, thread: usize) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| work(pool, thread))).is_err() {
        pool.state().is_broken = true;
    }
}

fn work(pool: &Arc<SharedPool>, thread: usize) {
    let mut done = None;
    loop {
        fail_point!("worker-loop");
        let mut state = pool.state();
        if let Some(done) = done.take() {
            state.stages.done(Instant::now(), thread, done);
        }
        if state.stop {
            return;
        }
        let task = pool.next(state, thread);
        done = task.map(|task| carry_out(pool, thread, task));
    }
}

fn carry_out(
    pool: &Arc<SharedPool>,
    thread: usize,
    task: ThreadTask<Box<dyn PoolWork>>,
) -> CompletedTask<Box<dyn PoolWork>> {
    match task {
        ThreadTask::BeginFetch(mut work) => {
            let read = std::panic::catch_unwind(AssertUnwindSafe(|| work.detached_read()));
            // After a panic the thread fetches, and the panic is reported if it comes again.
            if let Ok(Some(read)) = read {
                detach(pool, thread, work, read);
                return CompletedTask::Begun;
            }
            pool.reads_itself(thread);
            fetched(work, None)
        }
        ThreadTask::Fetch(work, arrived) => {
            let had_arrived = arrived.is_some();
            let arrived = arrived.filter(|bytes| work.is_intact(bytes));
            if had_arrived && arrived.is_none() {
                pool.reads_itself(thread);
            }
            fetched(work, arrived)
        }
        ThreadTask::Prepare(work, scratch) => prepared(work, scratch),
    }
}

/// Starts a read that goes on without this thread.
fn detach(pool: &Arc<SharedPool>, thread: usize, work: Box<dyn PoolWork>, read: DetachedRead) {
    // Numbered first, because the read may end before this function does.
    let number = pool.state().stages.detach(thread, work);
    let Some(number) = number else { return };
    // The pool may end before the read does.
    let pool = Arc::downgrade(pool);
    read.start(move |bytes| {
        if let Some(pool) = pool.upgrade() {
            let mut state = pool.state();
            state.stages.arrived(number, bytes);
            pool.wake(state);
        }
    });
}

fn fetched(
    mut work: Box<dyn PoolWork>,
    arrived: Option<ReadBytes>,
) -> CompletedTask<Box<dyn PoolWork>> {
    let fetched = std::panic::catch_unwind(AssertUnwindSafe(|| {
        fail_point!("worker-fetch");
        work.fetch(arrived)
    }));
    // A fetch that failed is tried again when the sample is prepared, and reported then.
    let ready = fetched.unwrap_or_else(|_| Ready {
        is_unread: true,
        ..Ready::default()
    });
    CompletedTask::Fetched(work, ready)
}

fn prepared(
    work: Box<dyn PoolWork>,
    mut scratch: Box<Scratch>,
) -> CompletedTask<Box<dyn PoolWork>> {
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| work.run(&mut scratch)));
    if let Err(panic) = ran {
        if !panic.is::<GivenUp>() {
            tracing::error!("a worker panicked: a defect of coprep, please report it");
        }
        *scratch = Scratch::default();
    }
    CompletedTask::Prepared(scratch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_remote_storage_grow_with_the_processors_and_leave_descriptors_for_others() {
        assert_eq!(most_remote(2, None), 512);
        assert_eq!(most_remote(2, Some(65_536)), 512);
        assert_eq!(most_remote(16, Some(65_536)), 1024);
        assert_eq!(most_remote(64, Some(65_536)), 4096);
        assert_eq!(most_remote(64, Some(1024)), 512);
    }
}
