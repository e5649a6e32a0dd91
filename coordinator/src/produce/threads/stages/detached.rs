//! Reads that no thread waits for.
//!
//! A thread begins such a read and goes on with another task. When the bytes have arrived, any thread goes on with the
//! sample. Both are *errands*: they take little time. A thread that has prepared a sample does them before it
//! prepares the next one. To wake another thread for each of them would take the processor from one that prepares.

use std::collections::VecDeque;

use coprep_storage::ReadBytes;

use crate::produce::threads::stages::{
    QueuedTask, Stage, StageQueues, StageWork, Step, ThreadTask,
};

/// Number of errands for which a thread is woken although all processors are busy, and a further one for as many again.
/// Samples that take long to prepare must not keep the reads of others from being begun.
const MANY: usize = 16;
/// Threads beyond those that are busy, where most reads are detached. Reads of some other dataset may need a thread each.
const SPARE: u32 = 32;

/// The read of a task.
struct Detached<W> {
    step: Step,
    work: W,
}

/// The detached reads, by their numbers.
pub(super) struct DetachedReads<W> {
    reads: Vec<Option<Detached<W>>>,
    free: Vec<usize>,
    /// Reads that have ended, and their bytes.
    arrived: VecDeque<(usize, Option<ReadBytes>)>,
}

impl<W> DetachedReads<W> {
    pub(super) fn new() -> Self {
        DetachedReads {
            reads: Vec::new(),
            free: Vec::new(),
            arrived: VecDeque::new(),
        }
    }

    fn insert(&mut self, read: Detached<W>) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        self.reads[number] = Some(read);
        number
    }

    /// Takes a read that has ended, and its bytes.
    fn pop_arrived(&mut self) -> Option<(Detached<W>, Option<ReadBytes>)> {
        let (number, bytes) = self.arrived.pop_front()?;
        let read = self.reads.get_mut(number)?.take()?;
        self.free.push(number);
        Some((read, bytes))
    }

    /// Returns the numbers of all reads.
    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.reads.len()
    }

    pub(super) fn step_mut(&mut self, number: usize) -> Option<&mut Step> {
        let read = self.reads.get_mut(number)?.as_mut()?;
        Some(&mut read.step)
    }

    pub(super) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.reads.iter().flatten().map(|read| &read.step)
    }
}

impl<W: StageWork> StageQueues<W> {
    /// Expects that most reads need no thread, so that fewer threads are started than may read.
    pub(in crate::produce::threads) fn expect_detached(&mut self) {
        self.expects_detached = true;
    }

    /// Takes the task of a thread, whose read goes on without one. Returns the number of the read. The thread is at its
    /// errand until it has [begun](CompletedTask::Begun) the read.
    pub(in crate::produce::threads) fn detach(&mut self, thread: usize, work: W) -> Option<usize> {
        let mut step = self.under_way.get_mut(thread)?.take()?;
        step.is_errand = false;
        Some(self.detached.insert(Detached { step, work }))
    }

    /// Records that a thread has begun a read.
    pub(super) fn end_errand(&mut self) {
        self.errands -= 1;
    }

    /// Records that a thread reads, and so is at no errand.
    pub(in crate::produce::threads) fn reads_itself(&mut self, thread: usize) {
        let step = self.under_way.get_mut(thread).and_then(Option::as_mut);
        let was_errand = step.is_some_and(|step| std::mem::take(&mut step.is_errand));
        self.errands -= u32::from(was_errand);
    }

    /// Records that a detached read has ended: with its bytes, or without if it brought none.
    pub(in crate::produce::threads) fn arrived(&mut self, number: usize, bytes: Option<ReadBytes>) {
        self.detached.arrived.push_back((number, bytes));
    }

    /// Lets a thread go on with a sample whose read has ended, or returns `None` if the read brought nothing.
    pub(super) fn finish_arrived(&mut self, thread: usize) -> Option<ThreadTask<W>> {
        let (mut read, bytes) = self.detached.pop_arrived()?;
        if bytes.is_none() {
            self.fetch_by_thread(read);
            return None;
        }
        read.step.is_errand = true;
        self.errands += 1;
        self.put(thread, read.step);
        Some(ThreadTask::Fetch(read.work, bytes))
    }

    /// Lets a task whose read brought nothing wait for a thread that reads. Where storage fails, many reads end at the same
    /// time, and their threads would be all that there are, so such a task waits as any other.
    fn fetch_by_thread(&mut self, failed: Detached<W>) {
        let Detached { step, work } = failed;
        self.stop_counting(step.stage, step.is_apart, step.expected);
        if let Some(source) = step.source().filter(|_| step.is_apart) {
            self.slow.failed(source);
        }
        self.end_shared(step.file.filter(|_| step.is_shared));
        self.enqueue(QueuedTask {
            stage: Stage::Fetch,
            due: step.due,
            file: step.file,
            reads: true,
            is_shared: false,
            may_detach: false,
            bytes: 0,
            expected: Some(step.expected),
            work,
        });
    }

    pub(super) fn has_arrived(&self) -> bool {
        !self.detached.arrived.is_empty()
    }

    /// Returns `true` if the task that is to be fetched first needs a thread only to begin.
    pub(super) fn is_errand_first(&self) -> bool {
        self.to_fetch.peek().is_some_and(|task| task.may_detach)
    }

    /// Returns `true` if a thread that waits for a task is to be woken. `waking` threads are awake soon.
    pub(in crate::produce::threads) fn wants_thread(&self, waking: u32) -> bool {
        if self.preparing + self.errands + waking < self.cpus {
            return self.has_step();
        }
        let needs_thread = self.may_fetch() && !self.is_errand_first();
        // A thread at an errand does one after another. If each of the many were to wake a thread, most would find nothing.
        let soon_free = (self.errands + waking) as usize;
        needs_thread || self.may_read_apart() || self.waiting_errands() >= MANY * (1 + soon_free)
    }

    /// Returns the number of errands that could be done now.
    fn waiting_errands(&self) -> usize {
        let arrived = self.detached.arrived.len();
        if !self.may_fetch() {
            return arrived;
        }
        let free = self.threads.saturating_sub(self.fetching + self.preparing);
        arrived + self.to_fetch.len().min(free as usize)
    }

    /// Returns the number of threads for all tasks that are not set apart.
    pub(super) fn pool_threads(&self) -> u32 {
        if !self.expects_detached {
            return self.threads;
        }
        let steps = self.under_way.iter().flatten();
        let reads =
            steps.filter(|step| step.stage == Stage::Fetch && !step.is_apart && !step.is_errand);
        // Twice as many, so that their number grows quickly where threads have to wait after all.
        self.threads
            .min(self.cpus + SPARE + 2 * reads.count() as u32)
    }

    /// Returns the number of threads that have reads that are set apart.
    pub(super) fn apart_threads(&self) -> u32 {
        let steps = self.under_way.iter().flatten();
        steps.filter(|step| step.is_apart).count() as u32
    }
}
