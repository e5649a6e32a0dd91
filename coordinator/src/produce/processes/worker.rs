//! A worker's thread keeps one worker process busy, and replaces the process when it ends.
//!
//! It takes a few samples at a time, as many as take a few milliseconds, and hands over the next few before those are
//! made. So messages cost little, and the worker need not wait for them. If a sample turns out to be slow, the samples
//! behind it are withdrawn for another worker to make. Written samples are seen in shared memory without a message
//! ([`coprep_shared_memory::task_table`]).
//!
//! A worker with a sample that is larger than its slot asks where to write it. While there is no memory for that, the
//! worker waits, and its other samples are withdrawn.
//!
//! Where the dataset is asked for all samples of a minibatch in one call, one worker makes all of them, chunk after
//! chunk, and none is withdrawn because the call takes long.
//!
//! A sample on which a worker ended is given to another worker once, alone. If that one ends too, the sample has
//! failed, and fails at once when it is drawn again ([`deadly`](super::deadly)). Samples that the process had not begun
//! go back without a mark, unless the process ended before it had made any. If the worker ended with its fork server, no
//! sample is at fault, and all of them wait for the next fork server.
//!
//! * [`reports`]: the process's messages, and the samples that it has written.
//! * [`room`]: memory for samples that are larger than their slots.
//! * [`ending`]: the end of the process, and the samples that it leaves.

mod ending;
mod reports;
mod room;

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_protocol::code::{
    self, CHUNKS, Channel, ChunkRequest, ENTRIES, MOST, SampleRequest, Together, WorkerReport,
};
use coprep_protocol::poll_interval::poll_every;
use coprep_shared_memory::task_table::{TaskHandle, TaskTable};
use fail::fail_point;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::Result;
use crate::caches::DatasetCache;
use crate::error::{from_lower, os};
use crate::produce::deadline_queue::Deadline;
use crate::produce::processes::deadly::Verdict;
use crate::produce::processes::fork_server::{ForkServer, Forked};
use crate::produce::processes::opened_files::have_changed;
use crate::produce::processes::worker::room::Want;
use crate::produce::processes::{Begin, ProcessPool, Task, TaskEstimate, TaskOutcome, Trouble};

/// Longest expected time of a chunk. If a sample takes longer than this, the samples behind it are withdrawn.
const TOGETHER: Duration = Duration::from_millis(12);
/// A sample of unknown cost shares a chunk only if this many typical samples fit into the chunk's time. Otherwise it
/// goes alone, because it may be slow, and in relaxed order the sample that takes its place must be found soon.
const UNKNOWN: f32 = 4.0;
/// Longest expected time of a chunk whose samples are cached. It is short because another epoch that draws a sample
/// while it is under way makes it again.
const TO_BE_KEPT: Duration = Duration::from_millis(2);
/// Time without a message after which the thread checks whether a sample takes longer than expected.
const SLOW_CHECK_INTERVAL: Duration = Duration::from_millis(18);
/// Longest sleep of a thread when nothing wakes it. Nothing depends on it: see [`poll_every`].
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// First and longest pause before a worker that ended is replaced.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// Number of workers that may end on one sample before the sample fails.
const ATTEMPTS: u32 = 2;
const PANICKED: &str =
    "was ended because its thread panicked, a defect of coprep: please report it";
const NOT_GIVEN: &str = "said something of a sample that it does not have";

/// Returns the number of samples in a chunk that take `seconds` each.
pub(super) fn chunk(seconds: f32) -> usize {
    // The cast saturates: a division by zero gives the largest number.
    let fitting = (TOGETHER.as_secs_f32() / seconds) as usize;
    fitting.clamp(1, MOST as usize)
}

/// A sample to make, with its history.
pub(super) struct PoolTask {
    pub(super) work: Box<dyn Task>,
    /// Time at which it was planned to begin.
    pub(super) due: Deadline,
    /// Number of workers that ended while they made it.
    attempts: u32,
    /// `true` if a worker ended on a chunk that had it. It is then made alone.
    alone: bool,
    /// The estimate when it was taken from the queue.
    estimate: TaskEstimate,
}

impl PoolTask {
    pub(super) fn new(work: Box<dyn Task>, due: Deadline) -> Self {
        PoolTask {
            work,
            due,
            attempts: 0,
            alone: false,
            estimate: TaskEstimate::default(),
        }
    }

    /// Returns the samples that the dataset is asked for together with it.
    pub(super) fn together(&self) -> Option<&Arc<Together>> {
        self.work.together().filter(|_| !self.alone)
    }

    /// Returns the longest expected time of a chunk that contains it.
    fn longest(&self) -> Duration {
        if self.estimate.is_kept {
            TO_BE_KEPT
        } else {
            TOGETHER
        }
    }
}

/// A buffer and a slot of it.
type SlotAddress = (u32, u32);

/// A worker's thread; see the module.
pub(super) struct Worker {
    process_pool: Arc<ProcessPool>,
    id: u32,
    process: Option<WorkerProcess>,
    /// Chunks that the process was given and has not finished, oldest first.
    chunks: VecDeque<Chunk>,
    /// Samples of the minibatch of the latest chunk that are for the next chunks.
    rest: VecDeque<PoolTask>,
    pause: Duration,
    /// Time of the last sign of life: the process did something, or was given a chunk while it had none.
    heard: Instant,
    /// The part of the time off the processor in which the process did not wait for a processor, as it last reported.
    waits: f64,
    /// `true` if the process pool was told that this worker is busy.
    is_busy: bool,
    /// `true` if the present process has made a sample.
    has_made: bool,
    /// The room that the process waits for.
    want: Option<Want>,
}

struct WorkerProcess {
    fork_server: Arc<ForkServer>,
    number: u32,
    pid: u32,
    channel: Channel,
    /// Files through which the values of deterministic parts pass, one per chunk under way. Empty if nothing is cached.
    scratch: Vec<File>,
    task_table: Arc<TaskTable>,
    next_chunk: u32,
}

struct Chunk {
    number: u32,
    /// The chunk's samples. An entry is `None` once the sample has ended or was withdrawn.
    tasks: Vec<Option<PoolTask>>,
    left: usize,
    /// The samples as they were assigned, once the process has been given the chunk.
    assigned: Vec<AssignedTask>,
    /// The samples that the dataset is asked for together.
    together: Option<Arc<Together>>,
    /// `true` if no sample of it delays the next chunk for long.
    is_quick: bool,
}

/// A sample that the process was given, as the thread sees it.
struct AssignedTask {
    handle: TaskHandle,
    /// The slot that the process was offered, where another may still take its place. The process either takes it or is
    /// told one.
    offered: Option<SlotAddress>,
    is_told: bool,
}

impl Worker {
    pub(super) fn new(process_pool: Arc<ProcessPool>, id: u32) -> Self {
        Worker {
            process_pool,
            id,
            process: None,
            chunks: VecDeque::new(),
            rest: VecDeque::new(),
            pause: PAUSES.0,
            heard: Instant::now(),
            waits: 0.0,
            is_busy: false,
            has_made: false,
            want: None,
        }
    }

    /// Runs until the process pool ends.
    pub(super) fn run(mut self) {
        let worked = catch_unwind(AssertUnwindSafe(|| self.work()));
        if worked.is_err() {
            let what = "the thread of a worker process panicked";
            self.process_pool.end(Trouble::Defect(what));
        }
        self.give_back();
    }

    fn work(&mut self) {
        while !self.process_pool.is_over() {
            let ran = catch_unwind(AssertUnwindSafe(|| self.run_once()));
            // A panic is handled like any other end of the process, because the process may still write its samples.
            let ran = ran.unwrap_or_else(|_| Err(PANICKED.into()));
            if let Err(why) = ran {
                self.lost(&why);
            }
            self.tell_whether_busy();
        }
    }

    fn tell_whether_busy(&mut self) {
        let is_busy = !self.chunks.is_empty();
        if is_busy != self.is_busy {
            self.is_busy = is_busy;
            self.process_pool.set_busy(is_busy);
        }
    }

    /// Gives the process samples to make, or reads its next message. An error is the reason why the process must be
    /// replaced.
    fn run_once(&mut self) -> std::result::Result<(), String> {
        // A process that waits for room sends nothing else until it is answered.
        if self.want.is_some() {
            return self.make_room();
        }
        if self.chunks.is_empty() && !self.has_server() {
            self.process_pool.wait_for_server(poll_every(POLL_INTERVAL));
            return Ok(());
        }
        if self.chunks.len() < self.ahead() {
            let tasks = self.take();
            if !tasks.is_empty() {
                return self.give(tasks);
            }
        }
        // `take` has waited for a task, so returning at once does not spin.
        if self.chunks.is_empty() {
            return Ok(());
        }
        fail_point!("pool-turn");
        let given: usize = self.chunks.iter().map(|chunk| chunk.left).sum();
        let limit = self.time_limit();
        let Some(process) = &mut self.process else {
            return Err("is gone".into());
        };
        let time_left = limit.saturating_sub(self.heard.elapsed());
        // Samples behind a slow one must be found soon. A sample that is alone is only waited for.
        let wait = if given > 1 {
            SLOW_CHECK_INTERVAL
        } else {
            poll_every(POLL_INTERVAL)
        };
        match process.channel.receive(wait.min(time_left)) {
            Ok(Some(message)) => {
                self.heard = Instant::now();
                self.report(WorkerReport::parse(&message)?)
            }
            Ok(None) => {
                self.check_slow_sample()?;
                if self.heard.elapsed() >= limit {
                    Err(format!("took longer than {} s", limit.as_secs_f64()))
                } else {
                    Ok(())
                }
            }
            // No reason is given, because the way in which the process ended says more than a lost connection.
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(String::new()),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Returns the longest time without a sign of life: that of as many samples as are made in one call.
    fn time_limit(&self) -> Duration {
        let together = self.chunks.front().and_then(|c| c.together.as_ref());
        let samples = together.map_or(1, |together| together.ids.len() as u32);
        self.process_pool.timeout.saturating_mul(samples)
    }

    /// Returns `true` if there is a process, or a fork server that can start one.
    fn has_server(&self) -> bool {
        let is_running = |p: &WorkerProcess| !p.fork_server.is_closing();
        self.process.as_ref().is_some_and(is_running) || self.process_pool.server().is_some()
    }

    fn ahead(&self) -> usize {
        if self.chunks.iter().all(|chunk| chunk.is_quick) {
            CHUNKS as usize
        } else {
            1
        }
    }

    /// Takes the next samples to make. Waits for the first if no chunk is under way.
    fn take(&mut self) -> Vec<PoolTask> {
        if self.rest.is_empty() {
            self.rest = self.take_new().into();
        }
        let count = self.rest.len().min(MOST as usize);
        self.rest.drain(..count).collect()
    }

    fn take_new(&mut self) -> Vec<PoolTask> {
        let wait = if self.chunks.is_empty() {
            poll_every(POLL_INTERVAL)
        } else {
            Duration::ZERO
        };
        let mut tasks = self.process_pool.next_together(wait);
        if tasks.len() == 1
            && let Some(first) = tasks.pop_if(|task| task.together().is_none())
        {
            tasks = self.gather(first);
        }
        for task in tasks.iter_mut().filter(|task| task.together().is_some()) {
            task.estimate = task.work.estimate();
        }
        let mut to_make = Vec::with_capacity(tasks.len());
        for mut task in tasks {
            let begun = catch_unwind(AssertUnwindSafe(|| {
                fail_point!("pool-begin");
                task.work.begin()
            }));
            match begun {
                Ok(Begin::Make) => match self.verdict(&task) {
                    Verdict::Try => to_make.push(task),
                    Verdict::TryOnce => {
                        task.attempts = task.attempts.max(ATTEMPTS - 1);
                        to_make.push(task);
                    }
                    Verdict::Fail(failure) => task.work.finish(TaskOutcome::Failed(failure)),
                },
                Ok(Begin::Over(outcome)) => task.work.finish(outcome),
                // A task that is dropped reports its own failure. The others of the chunk go on.
                Err(_) => tracing::error!("{PANICKED}"),
            }
        }
        to_make
    }

    fn verdict(&self, task: &PoolTask) -> Verdict {
        let id = task.work.lasting_id();
        id.map_or(Verdict::Try, |id| self.process_pool.deadly.verdict(id))
    }

    /// Collects a chunk from the waiting samples, beginning with `first`.
    fn gather(&self, mut first: PoolTask) -> Vec<PoolTask> {
        let typical = self.process_pool.typical.seconds();
        let seconds = |task: &PoolTask| {
            let unknown = typical.filter(|&s| UNKNOWN * s <= task.longest().as_secs_f32());
            task.estimate.seconds.or(unknown)
        };
        first.estimate = first.work.estimate();
        let most = first.longest().as_secs_f32();
        let share = if first.alone {
            1
        } else {
            self.process_pool.share()
        };
        let mut together = seconds(&first);
        let mut tasks = vec![first];
        while tasks.len() < share.min(MOST as usize)
            && let Some(so_far) = together.filter(|&sum| sum < most)
            && let Some(mut task) = self.process_pool.next(Duration::ZERO)
        {
            task.estimate = task.work.estimate();
            together = seconds(&task).map(|more| so_far + more);
            if task.alone || together.is_none_or(|sum| sum > most) {
                // Put back and not kept, so that the first free worker can have it.
                self.process_pool.requeue(task);
                break;
            }
            tasks.push(task);
        }
        tasks
    }

    fn give(&mut self, tasks: Vec<PoolTask>) -> std::result::Result<(), String> {
        let typical = self.process_pool.typical.seconds();
        let is_quick = |task: &PoolTask| match task.estimate.seconds {
            Some(_) => task.estimate.is_quick,
            None => typical.is_some_and(|s| UNKNOWN * s <= task.longest().as_secs_f32()),
        };
        // Recorded before anything can fail, so that the samples are given to another worker if this one is lost.
        self.chunks.push_back(Chunk {
            number: 0,
            is_quick: tasks.iter().all(is_quick),
            left: tasks.len(),
            together: tasks.first().and_then(PoolTask::together).cloned(),
            tasks: tasks.into_iter().map(Some).collect(),
            assigned: Vec::new(),
        });
        let idle = self.chunks.len() == 1;
        if idle && let Some(process) = self.process.take_if(|p| p.channel.is_disconnected()) {
            // The process ended while it had nothing to do, so no sample is at fault.
            if self.reap(&process, "").is_none() {
                return Ok(());
            }
        }
        if self.process.is_none() && !self.start() {
            return Ok(());
        }
        // Nothing was expected of a process that had nothing to do. Its time limit begins now.
        if idle {
            self.heard = Instant::now();
        }
        let (Some(process), Some(chunk)) = (&mut self.process, self.chunks.back_mut()) else {
            return Ok(());
        };
        chunk.number = process.next_chunk;
        process.next_chunk = (process.next_chunk + 1) % CHUNKS;
        for (task, index) in chunk.tasks.iter_mut().flatten().zip(0..) {
            let handle = TaskHandle::new(&process.task_table, code::entry(chunk.number, index));
            let offered = if task.estimate.is_quick {
                // A quick sample is bound at once, because no other can be ready before it.
                task.work.bind(true);
                None
            } else {
                task.work.offer(&handle)
            };
            chunk.assigned.push(AssignedTask {
                handle,
                offered,
                is_told: false,
            });
        }
        let request = process.request(chunk, self.process_pool.cache.as_deref())?;
        process
            .channel
            .send(request.as_bytes(), &[])
            .map_err(|_| String::new())
    }

    /// Starts a process. Returns `false` if there is none now, and its samples have gone back or were dropped.
    fn start(&mut self) -> bool {
        let Some(fork_server) = self.process_pool.server() else {
            self.put_back_all();
            return false;
        };
        match self.start_with(&fork_server) {
            Ok(process) => {
                self.process = Some(process);
                self.has_made = false;
                true
            }
            // The next fork server will start one.
            Err(_) if fork_server.is_over() || fork_server.is_closing() => {
                self.put_back_all();
                false
            }
            Err(e) => {
                self.end_pool(e.to_string());
                false
            }
        }
    }

    fn start_with(&self, fork_server: &Arc<ForkServer>) -> Result<WorkerProcess> {
        let scratch = match &self.process_pool.cache {
            Some(_) => (0..CHUNKS).map(|_| scratch_file()).collect::<Result<_>>()?,
            None => Vec::new(),
        };
        let descriptors: Vec<RawFd> = scratch.iter().map(File::as_raw_fd).collect();
        let task_table = TaskTable::create(ENTRIES).map_err(from_lower)?;
        let workers = self.process_pool.workers;
        let Forked {
            number,
            pid,
            socket,
        } = fork_server.fork(
            (self.id, workers),
            None,
            Some(task_table.as_fd()),
            &descriptors,
        )?;
        tracing::debug!(worker = self.id, pid, "a worker of user code starts");
        Ok(WorkerProcess {
            fork_server: fork_server.clone(),
            number,
            pid,
            channel: Channel::new(socket),
            scratch,
            task_table,
            next_chunk: 0,
        })
    }
}

impl WorkerProcess {
    /// Builds the message for a chunk. Cached values are copied to the scratch file.
    fn request(
        &self,
        chunk: &Chunk,
        cache: Option<&DatasetCache>,
    ) -> std::result::Result<ChunkRequest, String> {
        let mut at = 0;
        let mut request =
            ChunkRequest::new(chunk.number, chunk.tasks.len(), chunk.together.as_deref());
        for (task, assigned) in chunk.tasks.iter().flatten().zip(&chunk.assigned) {
            let mut sample = task.work.request();
            if assigned.offered.is_some() {
                (sample.slot, sample.is_offered) = (assigned.offered, true);
            }
            if let (Some(cache), Some(file)) = (cache, self.scratch.get(chunk.number as usize)) {
                fill(&mut sample, cache, file, &mut at).map_err(|e| e.to_string())?;
            }
            request.push(&sample);
        }
        Ok(request)
    }
}

/// Copies the cached value of a sample to the scratch file, or asks the process to return the value.
fn fill(
    sample: &mut SampleRequest,
    cache: &DatasetCache,
    file: &File,
    at: &mut u64,
) -> std::io::Result<()> {
    cache.look(sample.id, |_, versions| {
        have_changed(&cache.store.get(sample.id)?, versions)
    });
    match cache.store.get(sample.id) {
        Some(hit) => {
            cache.count_hit();
            file.write_all_at(&hit, *at)?;
            sample.cached = (*at, hit.len() as u64);
            *at = (*at + hit.len() as u64).next_multiple_of(64);
        }
        None => {
            cache.count_miss();
            sample.keep = cache.may_admit(sample.id);
        }
    }
    Ok(())
}

fn scratch_file() -> Result<File> {
    let file: OwnedFd = memfd_create("coprep-scratch", MFdFlags::MFD_CLOEXEC)
        .map_err(|e| os("cannot create memory for a worker", e))?;
    Ok(File::from(file))
}
