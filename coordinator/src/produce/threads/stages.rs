//! Tasks that wait for the threads of the pool, and the rules for which task a thread begins.
//!
//! A sample is *fetched*, unless it is cached, and then *prepared*. At most `cpus` threads prepare at a time, and at
//! most `threads` do either. Where these numbers are equal, storage is quick: the thread that fetches a sample goes on
//! with it, unless another is due earlier. Where there are more threads, they fetch ahead. Keeping processors busy then
//! matters more than taking the sample that is due first, and a bounded number of fetched samples waits. Where the
//! number of threads falls, threads that still wait for storage keep no other thread from preparing. Samples of unknown
//! cost are fetched when they are drawn, and then wait with the cost that their headers predict.
//!
//! A read that is stuck is set apart, and so are all reads of its source from then on ([`slow`]). They count neither
//! among the `threads` nor among the `cpus`, because threads beyond both carry them.
//!
//! A sample that memory is going to hold is read by one task at a time ([`shared_reads`]).
//!
//! Reads from a remote store need no thread while they wait ([`detached`]). They count among the `threads` all the same,
//! which bounds the reads that are under way.

mod accounting;
mod detached;
mod shared_reads;
#[cfg(test)]
mod tests;

use std::time::Instant;

use coprep_storage::ReadBytes;

use crate::observe::stalls::StallClock;
use crate::produce::deadline_queue::{Deadline, DeadlineHeap};
use crate::produce::threads::Ready;
use crate::produce::threads::slow::{STUCK, SlowSources, SourceFile, SourceId};
use crate::produce::threads::stages::accounting::Sums;
use crate::produce::threads::stages::detached::DetachedReads;
use crate::produce::threads::stages::shared_reads::SharedReads;
use coprep_pipeline::Scratch;

/// The questions that the queues ask about a task.
pub(super) trait StageWork {
    /// Returns `true` if the task still has to read its file.
    fn needs_fetch(&self) -> bool;
    /// Returns `true` if memory is going to hold the task's sample afterwards, as far as can be told now.
    fn is_to_cache(&self) -> bool;
    /// Returns `true` if the task's read may need no thread while it waits.
    fn may_detach(&self) -> bool {
        false
    }
    /// Returns the bytes that the task is going to read, or `None` if nothing has told them.
    fn expected_bytes(&self) -> Option<u64>;
}

/// A task for a thread.
pub(super) enum ThreadTask<W> {
    /// Fetch a sample, whose bytes a detached read may have brought.
    Fetch(W, Option<ReadBytes>),
    /// Begin a read that needs no thread while it waits, or fetch the sample if there is no such read.
    BeginFetch(W),
    Prepare(W, Box<Scratch>),
}

/// A task that a thread has done.
pub(super) enum CompletedTask<W> {
    /// The read of a sample was begun, and goes on without the thread.
    Begun,
    Fetched(W, Ready),
    Prepared(Box<Scratch>),
}

/// The most threads that read apart, of all sources together. Further reads count as any other task of the pool. A thread
/// that sleeps takes some KiB.
const MOST_APART: u32 = 256;

/// Most bytes of samples that are fetched, or being fetched, and not prepared. Remote storage needs many reads at a time,
/// and memory must not follow from the size of samples.
const MOST_HELD: u64 = 512 << 20;
/// Bytes of a sample before any was fetched, if no listing tells them. So at most 128 such reads are begun at first.
const FIRST_GUESS: u64 = 4 << 20;

/// A task that waits for a thread.
struct QueuedTask<W> {
    work: W,
    stage: Stage,
    due: Deadline,
    file: Option<SourceFile>,
    /// `true` if the task is going to read its file.
    reads: bool,
    /// `true` if others that need its file wait for it.
    is_shared: bool,
    /// `true` if its read may need no thread while it waits.
    may_detach: bool,
    /// Bytes that were fetched for it.
    bytes: u64,
    /// Bytes that it is going to fetch, if something has told them.
    expected: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fetch,
    Prepare,
}

/// The task of a thread.
struct Step {
    stage: Stage,
    due: Deadline,
    file: Option<SourceFile>,
    since: Instant,
    /// Bytes that are counted for it while it is fetched.
    expected: u64,
    /// `true` if the task counts neither in `fetching` nor in `preparing`.
    is_apart: bool,
    /// `true` if others that need its file wait for it.
    is_shared: bool,
    /// `true` if its thread is soon free for another task; see [`detached`].
    is_errand: bool,
}

/// The place of a task that is under way.
#[derive(Clone, Copy)]
enum Place {
    Thread(usize),
    Detached(usize),
}

impl Step {
    fn source(&self) -> Option<SourceId> {
        self.file.map(|file| file.source)
    }

    /// Returns `true` if the sample is being read now.
    fn is_read(&self, place: Place, is_reading: &impl Fn(usize) -> bool) -> bool {
        // Decoding may take as long as a stuck read, but it needs its processor.
        self.stage == Stage::Fetch || matches!(place, Place::Thread(thread) if is_reading(thread))
    }
}

impl<W> QueuedTask<W> {
    /// Returns the source that the task is going to read from.
    fn source(&self) -> Option<SourceId> {
        self.file.filter(|_| self.reads).map(|file| file.source)
    }

    fn reads_from(&self, source: SourceId) -> bool {
        self.source() == Some(source)
    }
}

/// The tasks of the pool; see the module.
pub(super) struct StageQueues<W> {
    to_fetch: DeadlineHeap<QueuedTask<W>>,
    to_prepare: DeadlineHeap<QueuedTask<W>>,
    slow: SlowSources<QueuedTask<W>>,
    shared_reads: SharedReads<QueuedTask<W>>,
    /// The task of each thread.
    under_way: Vec<Option<Step>>,
    detached: DetachedReads<W>,
    /// Number of threads that are soon free for another task; see [`detached`].
    errands: u32,
    /// `true` if most reads need no thread while they wait.
    expects_detached: bool,
    fetching: u32,
    preparing: u32,
    /// Number of reads that are set apart.
    apart: u32,
    /// Bytes of the samples that are fetched and not prepared.
    held: u64,
    /// Bytes that are expected for the samples that are being fetched. Reads that are set apart do not count: storage that
    /// is stuck sends none, and must keep no other storage from being read.
    incoming: u64,
    /// Bytes of the samples that were fetched last, on average.
    typical: u64,
    cpus: u32,
    threads: u32,
    /// Number of threads that exist.
    started: u32,
    /// Memory that is reused.
    #[expect(clippy::vec_box, reason = "boxes pass from hand to hand")]
    scratch: Vec<Box<Scratch>>,
    /// Time up to which the sums are complete.
    until: Instant,
    sums: Sums,
    /// The sums at the last call of [`start_interval`](Self::start_interval).
    recent: Sums,
    stall_clock: Option<StallClock>,
}

impl<W: StageWork> StageQueues<W> {
    /// Creates empty queues. `attributes` switches the stall clock on.
    pub(super) fn new(cpus: u32, attributes: bool, now: Instant) -> Self {
        StageQueues {
            to_fetch: DeadlineHeap::new(),
            to_prepare: DeadlineHeap::new(),
            slow: SlowSources::new(),
            shared_reads: SharedReads::new(),
            under_way: Vec::new(),
            detached: DetachedReads::new(),
            errands: 0,
            expects_detached: false,
            fetching: 0,
            preparing: 0,
            apart: 0,
            held: 0,
            incoming: 0,
            typical: FIRST_GUESS,
            cpus,
            threads: cpus,
            started: cpus,
            scratch: Vec::new(),
            until: now,
            sums: Sums::default(),
            recent: Sums::default(),
            stall_clock: attributes.then(StallClock::default),
        }
    }

    pub(super) fn limit(&mut self, cpus: u32, threads: u32) {
        (self.cpus, self.threads) = (cpus, threads.max(cpus));
    }

    /// Records the number of threads that exist.
    pub(super) fn set_started(&mut self, started: u32) {
        self.started = started;
    }

    /// Returns the number of threads that should exist.
    pub(super) fn wanted_threads(&self) -> u32 {
        let apart = self.apart_threads();
        let room = MOST_APART.saturating_sub(apart);
        self.pool_threads() + apart + self.slow.openings().min(room)
    }

    /// Returns the number of tasks that threads can have at a time.
    pub(super) fn capacity(&self) -> u32 {
        self.threads + self.apart + self.slow.credit()
    }

    pub(super) fn submit(
        &mut self,
        now: Instant,
        due: Deadline,
        is_to_fetch: bool,
        file: Option<SourceFile>,
        work: W,
    ) {
        self.advance_clock(now);
        let stage = if is_to_fetch {
            Stage::Fetch
        } else {
            Stage::Prepare
        };
        let task = QueuedTask {
            may_detach: is_to_fetch && work.may_detach(),
            expected: if is_to_fetch {
                work.expected_bytes()
            } else {
                None
            },
            work,
            stage,
            due,
            file,
            reads: is_to_fetch,
            is_shared: false,
            bytes: 0,
        };
        self.enqueue(task);
    }

    fn enqueue(&mut self, mut task: QueuedTask<W>) {
        let source = task.source();
        if source.is_some_and(|source| self.slow.contains(source)) {
            // Its read may take for ever, and another one may be answered.
            let was_shared = std::mem::take(&mut task.is_shared);
            self.end_shared(task.file.filter(|_| was_shared));
        }
        let task = match source {
            Some(source) => self.slow.push(source, task.due, task),
            None => Some(task),
        };
        let Some(task) = task else { return };
        match task.stage {
            Stage::Fetch => self.to_fetch.push(task.due, task),
            Stage::Prepare => self.to_prepare.push(task.due, task),
        }
    }

    /// Lets the tasks go on that waited for a read.
    fn end_shared(&mut self, file: Option<SourceFile>) {
        let Some(file) = file else { return };
        for (_, task) in self.shared_reads.end(file) {
            let needs_fetch = task.work.needs_fetch();
            let stage = if needs_fetch {
                Stage::Fetch
            } else {
                Stage::Prepare
            };
            self.enqueue(QueuedTask {
                stage,
                reads: needs_fetch,
                ..task
            });
        }
    }

    /// Lets a task wait whose file another one reads. Otherwise returns it, and others wait for it from now on if memory
    /// is going to hold its sample.
    fn share(&mut self, mut task: QueuedTask<W>) -> Option<QueuedTask<W>> {
        let Some(file) = task.file.filter(|_| task.stage == Stage::Fetch) else {
            return Some(task);
        };
        if !self.shared_reads.contains(file) {
            task.is_shared = task.work.is_to_cache();
            if task.is_shared {
                self.shared_reads.begin(file);
            }
            return Some(task);
        }
        let due = task.due;
        if self.shared_reads.join(file, due, task) {
            // The task that has read the file would be prepared after this one is due.
            let is_reader = |task: &QueuedTask<W>| task.is_shared && task.file == Some(file);
            for (_, reader) in self.to_prepare.extract(is_reader) {
                let due = self.shared_reads.fetched(file, reader.due);
                self.enqueue(QueuedTask { due, ..reader });
            }
        }
        None
    }

    /// Records that a thread has done its task.
    pub(super) fn done(&mut self, now: Instant, thread: usize, done: CompletedTask<W>) {
        self.advance_clock(now);
        if matches!(done, CompletedTask::Begun) {
            return self.end_errand();
        }
        let Some(step) = self.under_way.get_mut(thread).and_then(Option::take) else {
            return;
        };
        self.errands -= u32::from(step.is_errand);
        self.stop_counting(step.stage, step.is_apart, step.expected);
        let shared = step.file.filter(|_| step.is_shared);
        match done {
            CompletedTask::Fetched(work, ready) => {
                self.count_fetched(&ready, step.is_apart);
                self.answered(now, &step, ready.is_answered);
                let due = match shared {
                    Some(file) => self.shared_reads.fetched(file, ready.due),
                    None => ready.due,
                };
                let task = QueuedTask {
                    work,
                    stage: Stage::Prepare,
                    due,
                    file: step.file,
                    reads: ready.is_unread,
                    is_shared: step.is_shared,
                    may_detach: false,
                    bytes: ready.bytes,
                    expected: None,
                };
                self.held += ready.bytes;
                self.enqueue(task);
            }
            CompletedTask::Begun => {}
            CompletedTask::Prepared(scratch) => {
                self.sums.prepared += 1;
                self.scratch.push(scratch);
                self.answered(now, &step, false);
                self.end_shared(shared);
            }
        }
    }

    /// Counts a task that is under way. `expected` are the bytes that it fetches.
    fn count(&mut self, stage: Stage, is_apart: bool, expected: u64) {
        *self.counter(stage, is_apart) += 1;
        if stage == Stage::Fetch && !is_apart {
            self.incoming += expected;
        }
    }

    fn stop_counting(&mut self, stage: Stage, is_apart: bool, expected: u64) {
        *self.counter(stage, is_apart) -= 1;
        if stage == Stage::Fetch && !is_apart {
            self.incoming -= expected;
        }
    }

    fn counter(&mut self, stage: Stage, is_apart: bool) -> &mut u32 {
        match stage {
            _ if is_apart => &mut self.apart,
            Stage::Fetch => &mut self.fetching,
            Stage::Prepare => &mut self.preparing,
        }
    }

    fn count_fetched(&mut self, ready: &Ready, is_apart: bool) {
        // A fetch of 0 bytes does not count: the sample may have been cached meanwhile.
        let fetched = u64::from(ready.bytes > 0);
        if fetched > 0 {
            self.typical = (15 * self.typical + ready.bytes) / 16;
        }
        if is_apart {
            self.sums.fetched_apart += fetched;
        } else {
            self.sums.fetched += fetched;
            self.sums.compared += u64::from(ready.is_answered).saturating_sub(fetched);
            self.sums.fetched_bytes += ready.bytes;
            self.sums.fetch_cpu_s += f64::from(ready.at_work);
        }
    }

    /// Tells a slow source whether it has answered a read.
    fn answered(&mut self, now: Instant, step: &Step, is_answered: bool) {
        let source = step.source().filter(|source| self.slow.contains(*source));
        // A task may end without a read, because nobody wants its sample any more.
        let Some(source) = source.filter(|_| step.is_apart || is_answered) else {
            return;
        };
        let is_quick = is_answered && now.saturating_duration_since(step.since) < STUCK;
        let freed = self.slow.answered(source, step.is_apart, is_quick, now);
        for (_, task) in freed {
            self.enqueue(task);
        }
    }

    /// Sets reads apart that are stuck, and lets slow sources go on. `is_reading` tells whether a thread that prepares
    /// a sample is reading. Must be called now and then.
    pub(super) fn maintain(&mut self, now: Instant, is_reading: impl Fn(usize) -> bool) {
        self.advance_clock(now);
        let threads = (0..self.under_way.len()).map(Place::Thread);
        let places = threads.chain(self.detached.numbers().map(Place::Detached));
        for place in places.collect::<Vec<_>>() {
            self.set_apart_if_stuck(now, place, &is_reading);
        }
        let ended = self.slow.maintain(now, |task| task.work.needs_fetch());
        for (_, task) in ended {
            // It goes to its own queue, although its source is slow.
            self.enqueue(QueuedTask {
                reads: false,
                ..task
            });
        }
    }

    fn set_apart_if_stuck(
        &mut self,
        now: Instant,
        place: Place,
        is_reading: &impl Fn(usize) -> bool,
    ) {
        let is_full = self.apart_threads() >= MOST_APART;
        let has_thread_for = |place| matches!(place, Place::Detached(_)) || !is_full;
        let step = match place {
            Place::Thread(thread) => self.under_way.get_mut(thread).and_then(Option::as_mut),
            Place::Detached(number) => self.detached.step_mut(number),
        };
        let Some(step) = step else { return };
        let is_long = now.saturating_duration_since(step.since) >= STUCK;
        let Some(source) = step.source().filter(|_| is_long && !step.is_apart) else {
            return;
        };
        let (stage, expected) = (step.stage, step.expected);
        if !step.is_read(place, is_reading) || !has_thread_for(place) {
            return;
        }
        step.is_apart = true;
        // The same file may be answered at another attempt.
        let was_shared = std::mem::take(&mut step.is_shared);
        let shared = step.file.filter(|_| was_shared);
        self.stop_counting(stage, false, expected);
        self.count(stage, true, expected);
        let under_way = self.under_way.iter().flatten().chain(self.detached.steps());
        let reads = under_way.filter(|step| step.is_apart && step.source() == Some(source));
        if self.slow.stuck(source, reads.count() as u32, now) {
            self.set_waiting_apart(source);
        }
        self.end_shared(shared);
    }

    /// Moves the waiting tasks of a source that has become slow.
    fn set_waiting_apart(&mut self, source: SourceId) {
        let mut tasks = self.to_fetch.extract(|task| task.reads_from(source));
        tasks.append(&mut self.to_prepare.extract(|task| task.reads_from(source)));
        for (_, task) in tasks {
            self.enqueue(task);
        }
    }

    /// Returns the sample of this source whose file has been read for longest, and since when.
    pub(super) fn longest_read(
        &self,
        source: SourceId,
        is_reading: impl Fn(usize) -> bool,
    ) -> Option<(u32, Instant)> {
        let steps = self.under_way.iter().enumerate();
        let steps = steps.filter_map(|(thread, step)| Some((thread, step.as_ref()?)));
        let is_read =
            |(thread, step): &(usize, &Step)| step.is_read(Place::Thread(*thread), &is_reading);
        let by_threads = steps.filter(is_read).map(|(_, step)| step);
        let reads = by_threads.chain(self.detached.steps());
        let of_source = reads.filter(|step| step.source() == Some(source));
        let longest = of_source.min_by_key(|step| step.since)?;
        Some((longest.file?.sample, longest.since))
    }

    /// Returns `true` if there is a task that a thread may begin.
    pub(super) fn has_step(&self) -> bool {
        self.has_arrived() || self.may_prepare() || self.may_fetch() || self.may_read_apart()
    }

    /// Returns the task that a thread is to begin.
    pub(super) fn next(&mut self, now: Instant, thread: usize) -> Option<ThreadTask<W>> {
        self.advance_clock(now);
        while self.has_arrived() {
            let task = self.finish_arrived(thread);
            if task.is_some() {
                return task;
            }
        }
        loop {
            let task = match (self.may_prepare(), self.may_fetch()) {
                // Beginning a read takes less time than preparing a sample, and storage works meanwhile.
                (true, true) if self.is_fetching_first() || self.is_errand_first() => {
                    self.to_fetch.pop()
                }
                (true, _) => self.to_prepare.pop(),
                (false, true) => self.to_fetch.pop(),
                (false, false) if self.may_read_apart() => {
                    let task = self.slow.pop()?;
                    return Some(self.begin(now, thread, task, true));
                }
                (false, false) => None,
            }?;
            if let Some(task) = self.share(task) {
                return Some(self.begin(now, thread, task, false));
            }
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        thread: usize,
        task: QueuedTask<W>,
        is_apart: bool,
    ) -> ThreadTask<W> {
        let QueuedTask {
            work,
            stage,
            due,
            file,
            bytes,
            is_shared,
            may_detach,
            expected,
            ..
        } = task;
        self.held -= bytes;
        let expected = expected.unwrap_or(self.typical);
        self.count(stage, is_apart, expected);
        // A read of a slow source has a thread, which waits for as long as it may take.
        let is_errand = stage == Stage::Fetch && may_detach && !is_apart;
        self.errands += u32::from(is_errand);
        let step = Step {
            stage,
            due,
            file,
            since: now,
            expected,
            is_apart,
            is_shared,
            is_errand,
        };
        self.put(thread, step);
        match stage {
            Stage::Fetch if is_errand => ThreadTask::BeginFetch(work),
            Stage::Fetch => ThreadTask::Fetch(work, None),
            Stage::Prepare => ThreadTask::Prepare(work, self.scratch.pop().unwrap_or_default()),
        }
    }

    /// Gives a thread its task.
    fn put(&mut self, thread: usize, step: Step) {
        if thread >= self.under_way.len() {
            self.under_way.resize_with(thread + 1, || None);
        }
        self.under_way[thread] = Some(step);
    }

    /// Returns `true` if a slow source may be read, and the other tasks still have all their threads then.
    fn may_read_apart(&self) -> bool {
        if !self.slow.has_ready() {
            return false;
        }
        let apart = self.apart_threads();
        apart < MOST_APART && self.started > self.pool_threads() + apart
    }

    fn is_full(&self) -> bool {
        self.fetching + self.preparing >= self.threads
    }

    fn may_prepare(&self) -> bool {
        // A thread that waits for storage uses no processor, so it keeps none from preparing where threads fetch ahead.
        (!self.is_full() || self.fetches_ahead())
            && self.preparing < self.cpus
            && !self.to_prepare.is_empty()
    }

    /// Returns `true` if more threads fetch than there are processors, or did a moment ago.
    fn fetches_ahead(&self) -> bool {
        self.threads > self.cpus || self.fetching > self.threads
    }

    fn may_fetch(&self) -> bool {
        // If enough fetched samples wait, only a sample that is due before all of them is worth a thread.
        !self.is_full()
            && !self.to_fetch.is_empty()
            && (self.has_room() || self.is_earlier())
            && self.has_memory()
    }

    /// Returns `true` if one more read keeps the bytes within their bound, or processors would have nothing to do.
    fn has_memory(&self) -> bool {
        let next = self.to_fetch.peek().and_then(|task| task.expected);
        let bytes = self.held + self.incoming + next.unwrap_or(self.typical);
        self.fetching + self.preparing < self.cpus || bytes <= MOST_HELD
    }

    /// Returns `true` if few enough fetched samples wait to be prepared.
    fn has_room(&self) -> bool {
        self.to_prepare.len() < (self.cpus + self.threads) as usize
    }

    fn is_earlier(&self) -> bool {
        self.to_fetch.first() < self.to_prepare.first()
    }

    /// Returns `true` if storage is quick and the sample that is due first is not fetched yet.
    fn is_fetching_first(&self) -> bool {
        self.threads == self.cpus && self.is_earlier()
    }
}
