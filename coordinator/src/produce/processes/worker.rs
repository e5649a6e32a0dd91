//! A worker's thread keeps one worker process busy, and replaces the process when it ends.
//!
//! It takes a few samples at a time, as many as take a few milliseconds, and hands over the next few before those are
//! made. So messages cost little, and the worker need not wait for them. If a sample turns out to be slow, the samples
//! behind it are withdrawn for another worker to make. Written samples are seen in shared memory without a message
//! ([`coprep_cache::task_table`]).
//!
//! A worker with a sample that is larger than its slot asks where to write it. While there is no memory for that, the
//! worker waits, and its other samples are withdrawn.
//!
//! A sample on which a worker ended is given to another worker once, alone. If that one ends too, the sample has
//! failed, and fails at once when it is drawn again ([`deadly`](super::deadly)). Samples that the process had not begun
//! go back without a mark.

mod room;

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::sample_cache::{Form, Meta};
use coprep_cache::task_table::{TaskHandle, TaskTable, Written};
use coprep_costs::MeasuredTimes;
use coprep_protocol::code::{
    self, CHUNKS, Channel, ChunkRequest, ENTRIES, MOST, Raised, SampleRequest, WorkerProgress,
    WorkerReport,
};
use coprep_protocol::nap::nap;
use fail::fail_point;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::caches::DatasetCache;
use crate::produce::deadline_queue::Deadline;
use crate::produce::native::Failure;
use crate::produce::processes::deadly::Verdict;
use crate::produce::processes::fork_server::Forked;
use crate::produce::processes::worker::room::Want;
use crate::produce::processes::{Begin, Outlook, ProcessPool, Task, TaskOutcome, Trouble, failure};
use crate::{Error, Result};

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
/// Longest sleep of a thread when nothing wakes it. Nothing depends on it: see [`nap`].
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
    /// Its outlook when it was taken from the queue.
    outlook: Outlook,
}

impl PoolTask {
    pub(super) fn new(work: Box<dyn Task>, due: Deadline) -> Self {
        PoolTask {
            work,
            due,
            attempts: 0,
            alone: false,
            outlook: Outlook::default(),
        }
    }

    /// Returns the longest expected time of a chunk that contains it.
    fn longest(&self) -> Duration {
        if self.outlook.is_kept {
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
    pause: Duration,
    /// Time of the last sign of life: the process did something, or was given a chunk while it had none.
    heard: Instant,
    /// The part of the time off the processor in which the process did not wait for a processor, as it last reported.
    waits: f64,
    /// `true` if the process pool was told that this worker is busy.
    is_busy: bool,
    /// The room that the process waits for.
    want: Option<Want>,
}

struct WorkerProcess {
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
    /// A handle of each sample, once the process has been given the chunk.
    hands: Vec<Hand>,
    /// `true` if no sample of it delays the next chunk for long.
    is_quick: bool,
}

/// The thread's handle of a sample that the process was given.
struct Hand {
    given: TaskHandle,
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
            pause: PAUSES.0,
            heard: Instant::now(),
            waits: 0.0,
            is_busy: false,
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
            let turned = catch_unwind(AssertUnwindSafe(|| self.turn()));
            // A panic is handled like any other end of the process, because the process may still write its samples.
            let turned = turned.unwrap_or_else(|_| Err(PANICKED.into()));
            if let Err(why) = turned {
                self.lost(&why);
            }
            self.tell_whether_busy();
        }
    }

    fn tell_whether_busy(&mut self) {
        let is_busy = !self.chunks.is_empty();
        if is_busy != self.is_busy {
            self.is_busy = is_busy;
            self.process_pool.turns(is_busy);
        }
    }

    /// Gives the process samples to make, or reads its next message. An error is the reason why the process must be
    /// replaced.
    fn turn(&mut self) -> std::result::Result<(), String> {
        if self.want.is_some() {
            return self.make_room();
        }
        if self.chunks.len() < self.ahead() {
            let tasks = self.take();
            if !tasks.is_empty() {
                return self.give(tasks);
            }
        }
        if self.chunks.is_empty() {
            return Ok(());
        }
        fail_point!("pool-turn");
        let given: usize = self.chunks.iter().map(|chunk| chunk.left).sum();
        let Some(process) = &mut self.process else {
            return Err("is gone".into());
        };
        let time_left = self
            .process_pool
            .timeout
            .saturating_sub(self.heard.elapsed());
        // Samples behind a slow one must be found soon. A sample that is alone is only waited for.
        let wait = if given > 1 {
            SLOW_CHECK_INTERVAL
        } else {
            nap(POLL_INTERVAL)
        };
        match process.channel.receive(wait.min(time_left)) {
            Ok(Some(message)) => {
                self.heard = Instant::now();
                self.report(WorkerReport::parse(&message)?)
            }
            Ok(None) => {
                self.check_slow_sample()?;
                if self.heard.elapsed() >= self.process_pool.timeout {
                    Err(format!(
                        "took longer than {} s",
                        self.process_pool.timeout.as_secs_f64()
                    ))
                } else {
                    Ok(())
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(String::new()),
            Err(e) => Err(e.to_string()),
        }
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
        let wait = if self.chunks.is_empty() {
            nap(POLL_INTERVAL)
        } else {
            Duration::ZERO
        };
        let first = self.process_pool.next(wait);
        let tasks = first.map_or_else(Vec::new, |first| self.gather(first));
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
            task.outlook.seconds.or(unknown)
        };
        first.outlook = first.work.outlook();
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
            task.outlook = task.work.outlook();
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
        let is_quick = |task: &PoolTask| match task.outlook.seconds {
            Some(_) => task.outlook.is_quick,
            None => typical.is_some_and(|s| UNKNOWN * s <= task.longest().as_secs_f32()),
        };
        // Recorded before anything can fail, so that the samples are given to another worker if this one is lost.
        self.chunks.push_back(Chunk {
            number: 0,
            is_quick: tasks.iter().all(is_quick),
            left: tasks.len(),
            tasks: tasks.into_iter().map(Some).collect(),
            hands: Vec::new(),
        });
        let idle = self.chunks.len() == 1;
        if idle && let Some(process) = self.process.take_if(|p| p.channel.is_lost()) {
            // The process ended while it had nothing to do, so no sample is at fault.
            if self.reap(process.number, "").is_none() {
                self.end_pool();
                return Ok(());
            }
        }
        if self.process.is_none() {
            match self.start() {
                Ok(process) => self.process = Some(process),
                Err(e) => {
                    self.give_back();
                    self.process_pool.end(Trouble::ForkServer(e.to_string()));
                    return Ok(());
                }
            }
        }
        if idle {
            self.heard = Instant::now();
        }
        let (Some(process), Some(chunk)) = (&mut self.process, self.chunks.back_mut()) else {
            return Ok(());
        };
        chunk.number = process.next_chunk;
        process.next_chunk = (process.next_chunk + 1) % CHUNKS;
        for (task, index) in chunk.tasks.iter_mut().flatten().zip(0..) {
            let given = TaskHandle::new(&process.task_table, code::entry(chunk.number, index));
            let offered = if task.outlook.is_quick {
                // A quick sample is bound at once, because no other can be ready before it.

                task.work.bind(true);
                None
            } else {
                task.work.offer(&given)
            };
            chunk.hands.push(Hand {
                given,
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

    fn start(&self) -> Result<WorkerProcess> {
        let scratch = match &self.process_pool.cache {
            Some(_) => (0..CHUNKS).map(|_| scratch_file()).collect::<Result<_>>()?,
            None => Vec::new(),
        };
        let descriptors: Vec<RawFd> = scratch.iter().map(File::as_raw_fd).collect();
        let task_table = TaskTable::create(ENTRIES)?;
        let (fork_server, workers) = (&self.process_pool.fork_server, self.process_pool.workers);
        let Forked {
            number,
            pid,
            socket,
        } = fork_server.fork(self.id, workers, Some(task_table.as_fd()), &descriptors)?;
        tracing::debug!(worker = self.id, pid, "a worker of user code starts");
        Ok(WorkerProcess {
            number,
            pid,
            channel: Channel::new(socket),
            scratch,
            task_table,
            next_chunk: 0,
        })
    }

    // The process's messages.

    fn report(&mut self, report: WorkerReport) -> std::result::Result<(), String> {
        self.pause = PAUSES.0;
        match report {
            WorkerReport::Written(progress) => self.advanced(progress)?,
            WorkerReport::Ready(index) => self.tell_where(index)?,
            WorkerReport::Raised(index, raised) => self.raised(index, raised)?,
            WorkerReport::TooLarge(index, bytes) => self.wants_room(index, bytes)?,
            WorkerReport::Probed(_) => return Err("said what it was not asked".into()),
        }
        Ok(())
    }

    fn advanced(&mut self, progress: WorkerProgress) -> std::result::Result<(), String> {
        self.waits = progress.waited_for_nothing();
        self.take_written()?;
        if progress.ends_chunk {
            // Popped only now, because the process may look at the chunk's entries until it has reported the end.
            match self.chunks.pop_front() {
                Some(chunk) if chunk.left == 0 => {}
                Some(chunk) => {
                    self.chunks.push_front(chunk);
                    return Err("ended a chunk before all of its samples".into());
                }
                None => return Err(NOT_GIVEN.into()),
            }
        }
        Ok(())
    }

    /// Finishes the samples that the process has written.
    fn take_written(&mut self) -> std::result::Result<(), String> {
        let hands = self.chunks.front().map_or(0, |chunk| chunk.hands.len());
        for index in 0..hands {
            let chunk = self.chunks.front();
            let is_there = chunk.is_some_and(|c| c.tasks[index].is_some());
            let written = chunk.and_then(|c| c.hands[index].given.written());
            if let Some(written) = written.filter(|_| is_there) {
                self.written(index as u32, &written)?;
                self.heard = Instant::now();
            }
        }
        Ok(())
    }

    /// Called when the process was silent for a while. Withdraws the samples behind one that takes long, for another
    /// worker.
    fn check_slow_sample(&mut self) -> std::result::Result<(), String> {
        self.take_written()?;
        let Some(chunk) = self.chunks.front() else {
            return Ok(());
        };
        let mut left = (chunk.tasks.iter().zip(&chunk.hands)).filter(|(task, _)| task.is_some());
        let age = left.find_map(|(_, hand)| hand.given.age());
        if age.is_none_or(|age| age < TOGETHER) {
            return Ok(());
        }
        let process_pool = self.process_pool.clone();
        self.withdraw(|task| process_pool.requeue_first(task));
        Ok(())
    }

    /// Withdraws the samples that the process has not begun, and passes each to `another`.
    fn withdraw(&mut self, another: impl Fn(PoolTask)) {
        // A chunk that is not quick also keeps the process from being given more.
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.is_quick = false;
        }
        for chunk in &mut self.chunks {
            for (place, hand) in chunk.tasks.iter_mut().zip(&chunk.hands) {
                if let Some(mut task) = place.take_if(|_| hand.given.withdraw()) {
                    chunk.left -= 1;
                    task.work.put_back();
                    another(task);
                }
            }
        }
    }

    /// Takes a sample out of the oldest chunk. The caller must finish it. Samples left in the chunk are given to
    /// another worker if this one fails.
    fn take_task(&mut self, index: u32) -> std::result::Result<PoolTask, String> {
        let chunk = self.chunks.front_mut();
        let place = chunk.and_then(|c| {
            c.left = c.left.saturating_sub(1);
            c.tasks.get_mut(index as usize)
        });
        place.and_then(Option::take).ok_or_else(|| NOT_GIVEN.into())
    }

    /// Tells the process where to write a sample that is ready.
    fn tell_where(&mut self, index: u32) -> std::result::Result<(), String> {
        let chunk = self.chunks.front_mut();
        let task = chunk.and_then(|c| c.tasks.get_mut(index as usize)?.as_mut());
        let (Some(task), Some(process)) = (task, &mut self.process) else {
            return Err(NOT_GIVEN.into());
        };
        let (buffer, slot) = task.work.bind(true);
        let message = code::place(buffer, slot);
        let told = process.channel.send(&message, &[]);
        if let Some(chunk) = self.chunks.front_mut() {
            // The chunk is nearly done, so the next one can be given without waiting for its end.
            chunk.is_quick |= chunk.left == 1;
            if let Some(hand) = chunk.hands.get_mut(index as usize) {
                hand.is_told = true;
            }
        }
        told.map_err(|_| String::new())
    }

    fn written(&mut self, index: u32, written: &Written) -> std::result::Result<(), String> {
        let wall = Duration::from_nanos(written.wall_ns);
        let cpu = Duration::from_nanos(written.cpu_ns).min(wall);
        let dataset = Duration::from_nanos(written.dataset_ns).min(wall);
        self.check_taken(index, "wrote to a place that it did not take")?;
        if written.kept.1 > 0 {
            self.keep(index, written.kept, dataset)?;
        }
        let task = self.take_task(index)?;
        // Time off the processor without waiting for one is taken to be the dataset's time of reading.
        let fetch = (wall - cpu).mul_f64(self.waits).min(dataset);
        let times = MeasuredTimes {
            // Zero waiting was measured, too. `None` would leave an older, longer measurement in place.
            fetch: Some(fetch.as_secs_f32()),
            decode: MeasuredTimes::stage(dataset - fetch),
            fixed: None,
            random: MeasuredTimes::stage(wall - dataset),
            cpu: MeasuredTimes::stage(cpu),
        };
        self.process_pool.took(&times);
        let blob = written.blob;
        task.work.finish(TaskOutcome::Made { times, blob });
        Ok(())
    }

    /// Returns an error if the process was offered a slot for the sample and has not taken it.
    fn check_taken(&self, index: u32, what: &str) -> std::result::Result<(), String> {
        let chunk = self.chunks.front();
        let hand = chunk.and_then(|c| c.hands.get(index as usize));
        if hand.is_some_and(|h| h.offered.is_some() && !h.is_told && !h.given.is_taken()) {
            return Err(what.into());
        }
        Ok(())
    }

    /// Admits the value of a deterministic part to the cache. This copy is the only way into the cache, so that no
    /// process of user code can write there.
    fn keep(
        &self,
        index: u32,
        (at, len): (u64, u64),
        dataset: Duration,
    ) -> std::result::Result<(), String> {
        let scratch = self.chunks.front().zip(self.process.as_ref());
        let (Some((chunk, process)), Some(cache)) = (scratch, &self.process_pool.cache) else {
            return Ok(());
        };
        let Some(Some(task)) = chunk.tasks.get(index as usize) else {
            return Err(NOT_GIVEN.into());
        };
        let id = task.work.request().id;
        let Some(file) = process.scratch.get(chunk.number as usize) else {
            return Ok(());
        };
        let form = Form::Decoded;
        // Checked before room is reserved, because the length is only the process's claim.
        let there = file.metadata().map_err(|e| e.to_string())?.len();
        if at.checked_add(len).is_none_or(|end| end > there) {
            return Err("said where a value lies, and it is not there".into());
        }
        let len = usize::try_from(len).map_err(|e| e.to_string())?;
        let offer = [(form, len, dataset.as_secs_f32())];
        if cache.forms.is_some() && cache.choose(id, &offer).is_none() {
            return Ok(());
        }
        if let Some(mut place) = cache.store.reserve(id, len, Meta::of(form)) {
            file.read_exact_at(place.as_mut_slice(), at)
                .map_err(|e| format!("said where a value lies, and it is not there: {e}"))?;
            place.commit();
        }
        Ok(())
    }

    fn raised(&mut self, index: u32, raised: Raised) -> std::result::Result<(), String> {
        let failure = failure(raised, self.name())?;
        let task = self.take_task(index)?;
        task.work.finish(TaskOutcome::Failed(failure));
        Ok(())
    }

    fn name(&self) -> String {
        let pid = self.process.as_ref().map_or(0, |process| process.pid);
        format!("{} (process {pid})", self.id)
    }

    // The end of the process.

    /// Replaces the process. `why` is empty if it ended by itself.
    fn lost(&mut self, why: &str) {
        self.forget_want();
        if self.process_pool.is_over() {
            return;
        }
        let name = self.name();
        let Some(WorkerProcess { number, pid, .. }) = self.process.take() else {
            return self.blame(&name, why);
        };
        let Some(exited) = self.reap(number, why) else {
            return self.end_pool();
        };
        let how = if why.is_empty() { exited } else { why.into() };
        tracing::warn!(
            worker = self.id,
            pid,
            how,
            "a worker of user code is replaced"
        );
        self.blame(&name, &how);
        if !self.process_pool.is_over() {
            std::thread::sleep(self.pause);
        }
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    /// Ends a process, and returns how it ended once it is gone. `why` is empty if it ends by itself. Returns `None` if
    /// the fork server is gone.
    ///
    /// The process must be gone before its slots are given to anybody else, because it may still be writing them. Nor
    /// may an iterable dataset be iterated twice at the same time: its stream has one worker, whose next process is
    /// started after this. PyTorch's workers of the former process are gone as well. They hold its socket too, so the
    /// socket is not lost before they have ended. If the process is killed here, the kernel sends them SIGKILL
    /// (`end_with_parent` in `_worker.py`) before it reports that their parent has ended.
    fn reap(&self, number: u32, why: &str) -> Option<String> {
        let fork_server = &self.process_pool.fork_server;
        let exited = match why {
            "" => fork_server.exited(number, Duration::from_secs(2)),
            _ => None,
        };
        exited.or_else(|| fork_server.kill(number))
    }

    /// Ends the pool, because its fork server is gone.
    fn end_pool(&mut self) {
        self.give_back();
        let why = self.process_pool.fork_server.ended().unwrap_or_default();
        self.process_pool
            .end(Trouble::ForkServer(format!("it {why}")));
    }

    /// Blames the sample that the process was making, or the oldest if it had begun none.
    fn blame(&mut self, name: &str, how: &str) {
        // The process is gone, so its written samples are complete. An error here changes nothing.
        let _ = self.take_written();
        let is_at = |chunk: &Chunk, index: usize| {
            let age = chunk.hands.get(index).map(|hand| hand.given.age());
            chunk.tasks[index].is_some() && age.flatten().is_some()
        };
        let begun = self.chunks.front().and_then(|chunk| {
            let mut indices = 0..chunk.tasks.len();
            indices.find(|&index| is_at(chunk, index))
        });
        let mut tasks: Vec<Option<PoolTask>> = std::mem::take(&mut self.chunks)
            .into_iter()
            .flat_map(|chunk| chunk.tasks)
            .collect();
        let at_fault = begun.or_else(|| tasks.iter().position(Option::is_some));
        if let Some(mut task) = at_fault.and_then(|index| tasks[index].take()) {
            task.attempts += 1;
            task.alone = true;
            if task.attempts >= ATTEMPTS {
                let message = format!(
                    "the worker that made it {how}, and so did another before: run it in the job with num_workers=0 \
                     to see what it does"
                );
                let failure = Failure {
                    worker: name.into(),
                    ..Failure::new("dataset", message)
                };
                if let Some(id) = task.work.lasting_id() {
                    self.process_pool.deadly.add(id, failure.clone());
                }
                task.work.finish(TaskOutcome::EndedWorkers(failure));
            } else {
                task.work.put_back();
                self.process_pool.requeue_first(task);
            }
        }
        for mut task in tasks.into_iter().flatten() {
            task.work.put_back();
            self.process_pool.requeue_first(task);
        }
    }

    /// Drops the remaining samples, because the process pool has ended and nobody will make them.
    fn give_back(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let tasks = chunks.into_iter().flat_map(|c| c.tasks).flatten();
        tasks.for_each(|task| task.work.finish(TaskOutcome::Dropped));
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
        let mut request = ChunkRequest::new(chunk.number, chunk.tasks.len());
        for (task, hand) in chunk.tasks.iter().flatten().zip(&chunk.hands) {
            let mut sample = task.work.request();
            if hand.offered.is_some() {
                (sample.place, sample.is_offered) = (hand.offered, true);
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
        .map_err(|e| Error::io("cannot create memory for a worker", e))?;
    Ok(File::from(file))
}
