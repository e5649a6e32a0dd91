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

mod accounting;
mod shared_reads;

use std::time::Instant;

use crate::observe::stalls::StallClock;
use crate::produce::deadline_queue::{Deadline, DeadlineHeap};
use crate::produce::threads::Ready;
use crate::produce::threads::slow::{STUCK, SlowSources, SourceFile, SourceId};
use crate::produce::threads::stages::accounting::Sums;
use crate::produce::threads::stages::shared_reads::SharedReads;
use coprep_pipeline::Scratch;

/// The questions that the queues ask about a task.
pub(super) trait StageWork {
    /// Returns `true` if the task still has to read its file.
    fn needs_fetch(&self) -> bool;
    /// Returns `true` if memory is going to hold the task's sample afterwards, as far as can be told now.
    fn is_to_cache(&self) -> bool;
}

/// A task for a thread.
pub(super) enum ThreadTask<W> {
    Fetch(W),
    Prepare(W, Box<Scratch>),
}

/// A task that a thread has done.
pub(super) enum CompletedTask<W> {
    Fetched(W, Ready),
    Prepared(Box<Scratch>),
}

/// The most reads that are set apart, of all sources together. Further ones count as any other task of the pool. Each
/// costs a thread that sleeps, which takes some KiB.
const MOST_APART: u32 = 256;

/// Most bytes of samples that are fetched, or being fetched, and not prepared. Remote storage needs many reads at a time,
/// and memory must not follow from the size of samples.
const MOST_HELD: f64 = (512 << 20) as f64;

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
    /// Bytes that were fetched for it.
    bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fetch,
    Prepare,
}

/// The task of a thread.
struct Step {
    stage: Stage,
    file: Option<SourceFile>,
    since: Instant,
    /// `true` if the task counts neither in `fetching` nor in `preparing`.
    is_apart: bool,
    /// `true` if others that need its file wait for it.
    is_shared: bool,
}

impl Step {
    fn source(&self) -> Option<SourceId> {
        self.file.map(|file| file.source)
    }

    /// Returns `true` if its thread is reading now.
    fn is_read(&self, thread: usize, is_reading: &impl Fn(usize) -> bool) -> bool {
        // Decoding may take as long as a stuck read, but it needs its processor.
        self.stage == Stage::Fetch || is_reading(thread)
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
    fetching: u32,
    preparing: u32,
    /// Number of reads that are set apart.
    apart: u32,
    /// Bytes of the samples that are fetched and not prepared.
    held: u64,
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
            fetching: 0,
            preparing: 0,
            apart: 0,
            held: 0,
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
        let room = MOST_APART.saturating_sub(self.apart);
        self.threads + self.apart + self.slow.openings().min(room)
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
        let Some(step) = self.under_way.get_mut(thread).and_then(Option::take) else {
            return;
        };
        self.stop_counting(step.stage, step.is_apart);
        let shared = step.file.filter(|_| step.is_shared);
        match done {
            CompletedTask::Fetched(work, ready) => {
                self.count_fetched(&ready, step.is_apart);
                self.answered(now, &step, ready.bytes);
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
                    bytes: ready.bytes,
                };
                self.held += ready.bytes;
                self.enqueue(task);
            }
            CompletedTask::Prepared(scratch) => {
                self.sums.prepared += 1;
                self.scratch.push(scratch);
                self.answered(now, &step, 0);
                self.end_shared(shared);
            }
        }
    }

    fn count(&mut self, stage: Stage, is_apart: bool) {
        *self.counter(stage, is_apart) += 1;
    }

    fn stop_counting(&mut self, stage: Stage, is_apart: bool) {
        *self.counter(stage, is_apart) -= 1;
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
        if is_apart {
            self.sums.fetched_apart += fetched;
        } else {
            self.sums.fetched += fetched;
            self.sums.fetched_bytes += ready.bytes;
            self.sums.fetch_cpu_s += f64::from(ready.at_work);
        }
    }

    /// Tells a slow source that it has answered a read with `bytes` bytes.
    fn answered(&mut self, now: Instant, step: &Step, bytes: u64) {
        let source = step.source().filter(|source| self.slow.contains(*source));
        // A task may end without a read, because nobody wants its sample any more.
        let Some(source) = source.filter(|_| step.is_apart || bytes > 0) else {
            return;
        };
        let is_quick = bytes > 0 && now.saturating_duration_since(step.since) < STUCK;
        let freed = self.slow.answered(source, step.is_apart, is_quick, now);
        for (_, task) in freed {
            self.enqueue(task);
        }
    }

    /// Sets reads apart that are stuck, and lets slow sources go on. `is_reading` tells whether a thread that prepares
    /// a sample is reading. Must be called now and then.
    pub(super) fn maintain(&mut self, now: Instant, is_reading: impl Fn(usize) -> bool) {
        self.advance_clock(now);
        for thread in 0..self.under_way.len() {
            self.set_apart_if_stuck(now, thread, &is_reading);
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
        thread: usize,
        is_reading: &impl Fn(usize) -> bool,
    ) {
        let Some(step) = self.under_way.get_mut(thread).and_then(Option::as_mut) else {
            return;
        };
        let is_long = now.saturating_duration_since(step.since) >= STUCK;
        let Some(source) = step.source().filter(|_| is_long && !step.is_apart) else {
            return;
        };
        if !step.is_read(thread, is_reading) || self.apart >= MOST_APART {
            return;
        }
        let stage = step.stage;
        step.is_apart = true;
        // The same file may be answered at another attempt.
        let was_shared = std::mem::take(&mut step.is_shared);
        let shared = step.file.filter(|_| was_shared);
        self.stop_counting(stage, false);
        self.count(stage, true);
        let apart = self.under_way.iter().flatten();
        let reads = apart.filter(|step| step.is_apart && step.source() == Some(source));
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
        let reads = steps.filter(|(thread, step)| step.is_read(*thread, &is_reading));
        let of_source = reads.filter(|(_, step)| step.source() == Some(source));
        let (_, longest) = of_source.min_by_key(|(_, step)| step.since)?;
        Some((longest.file?.sample, longest.since))
    }

    /// Returns `true` if there is a task that a thread may begin.
    pub(super) fn has_step(&self) -> bool {
        self.may_prepare() || self.may_fetch() || self.may_read_apart()
    }

    /// Returns the task that a thread is to begin.
    pub(super) fn next(&mut self, now: Instant, thread: usize) -> Option<ThreadTask<W>> {
        self.advance_clock(now);
        loop {
            let task = match (self.may_prepare(), self.may_fetch()) {
                (true, true) if self.is_fetching_first() => self.to_fetch.pop(),
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
            file,
            bytes,
            is_shared,
            ..
        } = task;
        self.held -= bytes;
        self.count(stage, is_apart);
        if thread >= self.under_way.len() {
            self.under_way.resize_with(thread + 1, || None);
        }
        self.under_way[thread] = Some(Step {
            stage,
            file,
            since: now,
            is_apart,
            is_shared,
        });
        match stage {
            Stage::Fetch => ThreadTask::Fetch(work),
            Stage::Prepare => ThreadTask::Prepare(work, self.scratch.pop().unwrap_or_default()),
        }
    }

    /// Returns `true` if a slow source may be read, and the other tasks still have all their threads then.
    fn may_read_apart(&self) -> bool {
        self.started > self.threads + self.apart && self.apart < MOST_APART && self.slow.has_ready()
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
        let each = self.sums.fetched_bytes as f64 / self.sums.fetched.max(1) as f64;
        let reads = f64::from(self.fetching + 1);
        self.fetching + self.preparing < self.cpus || self.held as f64 + reads * each <= MOST_HELD
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Memory takes samples with a capital letter, and refuses those with a digit. Nobody wants `u` and `v` any more.
    impl StageWork for char {
        fn needs_fetch(&self) -> bool {
            !self.is_ascii_uppercase() && !['u', 'v'].contains(self)
        }

        fn is_to_cache(&self) -> bool {
            self.is_ascii_uppercase() || self.is_ascii_digit()
        }
    }

    /// Returns a pool with samples of these names, in the order in which they are due.
    fn pool(cpus: u32, threads: u32, to_fetch: &str, to_prepare: &str) -> StageQueues<char> {
        let now = Instant::now();
        let mut stages = StageQueues::new(cpus, true, now);
        stages.limit(cpus, threads);
        for (i, name) in to_fetch.chars().enumerate() {
            stages.submit(now, Deadline::at(i as f64), true, Some(SOURCE), name);
        }
        for (i, name) in to_prepare.chars().enumerate() {
            stages.submit(now, Deadline::at(i as f64 + 0.5), false, None, name);
        }
        stages
    }

    const SOURCE: SourceFile = SourceFile {
        source: 1,
        sample: 0,
    };
    const OTHER: SourceFile = SourceFile {
        source: 2,
        sample: 0,
    };

    /// Lets a thread that does nothing yet begin a task. Returns the thread and the task.
    fn begin(stages: &mut StageQueues<char>, now: Instant) -> Option<(usize, String)> {
        let free = stages.under_way.iter().position(Option::is_none);
        let thread = free.unwrap_or(stages.under_way.len());
        let task = match stages.next(now, thread)? {
            ThreadTask::Fetch(name) => format!("f{name} "),
            ThreadTask::Prepare(name, _) => format!("p{name} "),
        };
        Some((thread, task))
    }

    /// Returns the tasks that threads are given, one after the other.
    fn begun_at(stages: &mut StageQueues<char>, now: Instant) -> String {
        std::iter::from_fn(|| Some(begin(stages, now)?.1)).collect()
    }

    fn begun(stages: &mut StageQueues<char>) -> String {
        begun_at(stages, Instant::now())
    }

    /// Returns the thread that has been at a task for longest.
    fn first_at(stages: &StageQueues<char>, stage: Stage) -> usize {
        let steps = stages.under_way.iter().enumerate();
        let at_stage = steps.filter_map(|(thread, step)| Some((thread, step.as_ref()?)));
        let mut threads = at_stage.filter(|(_, step)| step.stage == stage);
        threads.next().expect("a task at this stage").0
    }

    fn fetched_by(stages: &mut StageQueues<char>, now: Instant, thread: usize, ready: Ready) {
        stages.done(now, thread, CompletedTask::Fetched('.', ready));
    }

    fn ready(due: f64) -> Ready {
        Ready {
            due: Deadline::at(due),
            bytes: 1,
            ..Ready::default()
        }
    }

    fn fetched(stages: &mut StageQueues<char>, name: char, due: f64) {
        let thread = first_at(stages, Stage::Fetch);
        let done = CompletedTask::Fetched(name, ready(due));
        stages.done(Instant::now(), thread, done);
    }

    fn prepared(stages: &mut StageQueues<char>) {
        let thread = first_at(stages, Stage::Prepare);
        let done = CompletedTask::Prepared(Box::default());
        stages.done(Instant::now(), thread, done);
    }

    #[test]
    fn without_more_threads_than_processors_what_is_due_first_is_begun_first() {
        assert_eq!(begun(&mut pool(3, 3, "ab", "xy")), "fa px fb ");
        assert_eq!(begun(&mut pool(1, 1, "", "x")), "px ");
    }

    #[test]
    fn whoever_fetched_a_sample_goes_on_with_it() {
        let mut stages = pool(1, 1, "ab", "");
        assert_eq!(begun(&mut stages), "fa ");
        fetched(&mut stages, 'a', 0.0);
        assert_eq!(begun(&mut stages), "pa ");
    }

    #[test]
    fn more_threads_fetch_and_never_prepare_more_than_there_are_processors() {
        assert_eq!(begun(&mut pool(1, 4, "abcd", "xyz")), "px fa fb fc ");
        assert_eq!(begun(&mut pool(2, 4, "", "xyz")), "px py ");
    }

    #[test]
    fn no_more_is_fetched_than_can_soon_be_prepared() {
        let mut stages = pool(1, 2, "abcdefgh", "");
        for name in "abc".chars() {
            stages.submit(Instant::now(), Deadline::default(), false, None, name);
        }
        assert_eq!(begun(&mut stages), "pa fa ");
        fetched(&mut stages, 'a', 9.0);
        assert_eq!(begun(&mut stages), "", "three wait already");
        prepared(&mut stages);
        assert_eq!(begun(&mut stages), "pb fb ");
    }

    #[test]
    fn large_samples_are_fetched_fewer_at_a_time() {
        let mut stages = pool(1, 8, "abcdefgh", "");
        assert_eq!(begun(&mut stages), "fa fb fc fd fe ff fg fh ");
        let large = || Ready {
            bytes: MOST_HELD as u64 / 4,
            ..Ready::default()
        };
        for name in "ijkl".chars() {
            stages.submit(Instant::now(), Deadline::at(50.0), true, None, name);
        }
        for thread in 0..4 {
            fetched_by(&mut stages, Instant::now(), thread, large());
        }
        // One is prepared, three wait, four are being read: that is more than the bound already.
        assert_eq!(begun(&mut stages), "p. ");
    }

    #[test]
    fn a_processor_that_is_taken_away_is_given_up_when_it_is_free() {
        let mut stages = pool(2, 2, "", "wxyz");
        assert_eq!(begun(&mut stages), "pw px ");
        stages.limit(1, 1);
        prepared(&mut stages);
        assert_eq!(begun(&mut stages), "");
        prepared(&mut stages);
        assert_eq!(begun(&mut stages), "py ");
    }

    #[test]
    fn threads_that_are_too_many_by_now_keep_nobody_from_preparing() {
        for threads in [2, 3] {
            let mut stages = pool(2, 8, "abcdefgh", "");
            assert_eq!(begun(&mut stages), "fa fb fc fd fe ff fg fh ");
            stages.limit(2, threads);
            for name in "abc".chars() {
                fetched(&mut stages, name, 0.0);
            }
            assert_eq!(begun(&mut stages), "pa pb ", "{threads} threads");
        }
    }

    #[test]
    fn what_is_lacking_is_what_the_threads_wait_for() {
        let second = Duration::from_secs(1);
        let stalls_of = |mut stages: StageQueues<char>, starts: usize| {
            for thread in 0..starts {
                stages.next(stages.until, thread);
            }
            let before = stages.stall_clock();
            stages.advance_clock(stages.until + second);
            let shares = stages.stall_clock().since(&before, Duration::ZERO);
            (shares.fetch >> 14, shares.prep >> 14)
        };
        // Compared in quarters.
        assert_eq!(stalls_of(pool(2, 2, "", ""), 0), (0, 0));
        assert_eq!(stalls_of(pool(2, 2, "", "xy"), 2), (0, 4));
        assert_eq!(stalls_of(pool(2, 2, "a", "x"), 2), (2, 2));
        assert_eq!(stalls_of(pool(2, 6, "abcd", "x"), 5), (4, 0));
        assert_eq!(stalls_of(pool(2, 6, "abcd", "xyz"), 5), (0, 4));
    }

    /// Starts the threads that the pool wants after maintenance.
    fn maintain(stages: &mut StageQueues<char>, now: Instant, reads_in_prepare: bool) {
        stages.maintain(now, |_| reads_in_prepare);
        stages.set_started(stages.started.max(stages.wanted_threads()));
    }

    #[test]
    fn dead_storage_stops_its_own_samples_only() {
        let mut stages = pool(2, 2, "abcdefgh", "");
        let now = Instant::now();
        assert_eq!(begun_at(&mut stages, now), "fa fb ");
        for name in "xyz".chars() {
            stages.submit(now, Deadline::at(99.0), true, Some(OTHER), name);
        }
        maintain(&mut stages, now + STUCK / 2, false);
        assert_eq!(begun_at(&mut stages, now + STUCK / 2), "", "not yet");
        let later = now + STUCK;
        maintain(&mut stages, later, false);
        assert_eq!(stages.now().apart, 2);
        // Both threads are replaced, and a third one probes the source.
        assert_eq!(stages.started, 5);
        assert_eq!(begun_at(&mut stages, later), "fx fy fc ");
        maintain(&mut stages, later, false);
        assert_eq!((stages.started, stages.now().to_fetch), (5, 6));
    }

    #[test]
    fn a_source_that_answers_goes_on_and_no_sample_is_lost() {
        let mut stages = pool(2, 2, "abcdefgh", "");
        let mut now = Instant::now();
        let mut seen = String::new();
        for _ in 0..10 {
            seen += &begun_at(&mut stages, now);
            maintain(&mut stages, now + STUCK, false);
            seen += &begun_at(&mut stages, now + STUCK);
            now += STUCK * 3 / 2;
            for thread in 0..stages.under_way.len() {
                match &stages.under_way[thread] {
                    Some(step) if step.stage == Stage::Fetch => {
                        fetched_by(&mut stages, now, thread, ready(0.0));
                    }
                    Some(_) => stages.done(now, thread, CompletedTask::Prepared(Box::default())),
                    None => {}
                }
            }
        }
        let mut reads: Vec<&str> = seen.split(' ').filter(|s| s.starts_with('f')).collect();
        reads.sort_unstable();
        assert_eq!(reads, ["fa", "fb", "fc", "fd", "fe", "ff", "fg", "fh"]);
        assert_eq!(stages.sums.prepared, 8);
        let now = stages.now();
        assert_eq!((now.apart, now.fetching, now.preparing), (0, 0, 0));
        assert_eq!((now.to_fetch, now.to_prepare), (0, 0));
    }

    #[test]
    fn a_sample_that_is_read_while_it_is_prepared_is_set_apart_and_one_that_is_decoded_is_not() {
        for is_reading in [true, false] {
            let now = Instant::now();
            let mut stages = pool(1, 1, "", "");
            stages.submit(now, Deadline::default(), false, Some(SOURCE), 'a');
            stages.submit(now, Deadline::at(9.0), false, None, 'b');
            assert_eq!(begun_at(&mut stages, now), "pa ");
            maintain(&mut stages, now + STUCK, is_reading);
            let next = if is_reading { "pb " } else { "" };
            assert_eq!(begun_at(&mut stages, now + STUCK), next);
        }
    }

    #[test]
    fn a_sample_that_a_slow_source_failed_to_give_is_read_again_apart() {
        let now = Instant::now();
        let mut stages = pool(1, 1, "a", "");
        assert_eq!(begun_at(&mut stages, now), "fa ");
        maintain(&mut stages, now + STUCK, false);
        let failed = Ready {
            is_unread: true,
            ..Ready::default()
        };
        fetched_by(&mut stages, now + STUCK, 0, failed);
        maintain(&mut stages, now + STUCK, false);
        assert_eq!(begun_at(&mut stages, now + STUCK), "p. ");
        let counts = stages.now();
        assert_eq!((counts.apart, counts.preparing), (1, 0));
    }

    #[test]
    fn samples_of_a_slow_source_that_nobody_wants_are_ended() {
        let now = Instant::now();
        let mut stages = pool(1, 1, "auv", "");
        assert_eq!(begun_at(&mut stages, now), "fa ");
        stages.maintain(now + STUCK, |_| false);
        assert_eq!(begun_at(&mut stages, now + STUCK), "fu ");
        fetched_by(&mut stages, now + STUCK, 1, Ready::default());
        assert_eq!(begun_at(&mut stages, now + STUCK), "p. ");
    }

    fn done_fetching(stages: &mut StageQueues<char>, thread: usize, name: char, due: f64) {
        let done = CompletedTask::Fetched(name, ready(due));
        stages.done(Instant::now(), thread, done);
    }

    fn done_preparing(stages: &mut StageQueues<char>, thread: usize) {
        let done = CompletedTask::Prepared(Box::default());
        stages.done(Instant::now(), thread, done);
    }

    #[test]
    fn a_file_that_memory_will_hold_is_read_by_one_task_and_the_others_prepare_it_from_memory() {
        // Three tasks for the same file.
        let mut stages = pool(2, 8, "ABC", "");
        assert_eq!(begun(&mut stages), "fA ");
        assert_eq!(stages.now().to_fetch, 2);
        done_fetching(&mut stages, 0, 'A', 0.0);
        assert_eq!(begun(&mut stages), "pA ");
        done_preparing(&mut stages, 0);
        assert_eq!(begun(&mut stages), "pB pC ");
        assert_eq!(stages.now().to_fetch, 0);
    }

    #[test]
    fn a_file_that_memory_refused_is_read_by_the_next_task() {
        let mut stages = pool(2, 8, "123", "");
        for name in "123".chars() {
            assert_eq!(begun(&mut stages), format!("f{name} "));
            done_fetching(&mut stages, 0, name, 0.0);
            assert_eq!(begun(&mut stages), format!("p{name} "));
            done_preparing(&mut stages, 0);
        }
        assert_eq!(begun(&mut stages), "");
    }

    #[test]
    fn files_that_memory_will_not_hold_and_other_files_are_read_at_the_same_time() {
        assert_eq!(begun(&mut pool(2, 8, "ab", "")), "fa fb ");
        let mut stages = pool(2, 8, "A", "");
        let (now, other) = (Instant::now(), Some(OTHER));
        stages.submit(now, Deadline::at(9.0), true, other, 'B');
        assert_eq!(begun(&mut stages), "fA fB ");
    }

    #[test]
    fn a_sample_is_prepared_as_early_as_the_first_task_that_waits_for_it_is_due() {
        for joins_while_reading in [true, false] {
            let mut stages = pool(1, 8, "", "x");
            let now = Instant::now();
            assert_eq!(begun(&mut stages), "px ");
            stages.submit(now, Deadline::MAX, true, Some(SOURCE), 'A');
            assert_eq!(begun(&mut stages), "fA ");
            stages.submit(now, Deadline::at(5.0), false, None, 'y');
            let join = |stages: &mut StageQueues<char>| {
                stages.submit(now, Deadline::at(1.0), true, Some(SOURCE), 'B');
                assert_eq!(begun(stages), "");
            };
            if joins_while_reading {
                join(&mut stages);
            }
            let done = CompletedTask::Fetched(
                'A',
                Ready {
                    due: Deadline::MAX,
                    ..ready(0.0)
                },
            );
            stages.done(now, 1, done);
            if !joins_while_reading {
                join(&mut stages);
            }
            done_preparing(&mut stages, 0);
            assert_eq!(begun(&mut stages), "pA ");
            done_preparing(&mut stages, 0);
            assert_eq!(begun(&mut stages), "pB ");
        }
    }

    #[test]
    fn nobody_waits_for_a_read_that_is_stuck() {
        let mut stages = pool(2, 2, "12", "");
        let now = Instant::now();
        assert_eq!(begun_at(&mut stages, now), "f1 ");
        maintain(&mut stages, now + STUCK, false);
        assert_eq!(begun_at(&mut stages, now + STUCK), "f2 ");
    }
}
