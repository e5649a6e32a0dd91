//! Tasks that wait for the threads of the pool, and the rules for which task a thread begins.
//!
//! A sample is *fetched*, unless it is cached, and then *prepared*. At most `cpus` threads prepare at a time, and at
//! most `threads` do either. Where these numbers are equal, storage is quick: the thread that fetches a sample goes on
//! with it, unless another is due earlier. Where there are more threads, they fetch ahead. Keeping processors busy then
//! matters more than taking the sample that is due first, and a bounded number of fetched samples waits. Where the
//! number of threads falls, threads that still wait for storage keep no other thread from preparing. Samples of unknown
//! cost are fetched when they are drawn, and then wait with the cost that their headers predict.

use std::time::Instant;

use coprep_costs::Interval;

use crate::observe::stalls::StallClock;
use crate::produce::deadline_queue::{Deadline, DeadlineHeap};
use crate::produce::threads::Ready;
use coprep_pipeline::Scratch;

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

/// The tasks of the pool; see the module.
pub(super) struct StageQueues<W> {
    to_fetch: DeadlineHeap<W>,
    to_prepare: DeadlineHeap<W>,
    fetching: u32,
    preparing: u32,
    cpus: u32,
    threads: u32,
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

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) fetched: u64,
    pub(super) fetched_bytes: u64,
    pub(super) prepared: u64,
    pub(super) fetch_s: f64,
    pub(super) fetch_cpu_s: f64,
    pub(super) prepare_s: f64,
    /// Waiting samples times seconds.
    to_fetch: f64,
    seconds: f64,
}

/// The present state of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) cpus: u32,
    pub(super) threads: u32,
    pub(super) fetching: u32,
    pub(super) preparing: u32,
    pub(super) to_fetch: u32,
    pub(super) to_prepare: u32,
}

impl<W> StageQueues<W> {
    /// Creates empty queues. `attributes` switches the stall clock on.
    pub(super) fn new(cpus: u32, attributes: bool, now: Instant) -> Self {
        StageQueues {
            to_fetch: DeadlineHeap::new(),
            to_prepare: DeadlineHeap::new(),
            fetching: 0,
            preparing: 0,
            cpus,
            threads: cpus,
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

    pub(super) fn submit(&mut self, now: Instant, due: Deadline, is_to_fetch: bool, work: W) {
        self.advance_clock(now);
        if is_to_fetch {
            self.to_fetch.push(due, work)
        } else {
            self.to_prepare.push(due, work)
        }
    }

    pub(super) fn done(&mut self, now: Instant, done: CompletedTask<W>) {
        self.advance_clock(now);
        match done {
            CompletedTask::Fetched(work, ready) => {
                self.fetching -= 1;
                // A fetch of 0 bytes does not count: the sample may have been cached meanwhile.
                self.sums.fetched += u64::from(ready.bytes > 0);
                self.sums.fetched_bytes += ready.bytes;
                self.sums.fetch_cpu_s += f64::from(ready.at_work);
                self.to_prepare.push(ready.due, work);
            }
            CompletedTask::Prepared(scratch) => {
                self.preparing -= 1;
                self.sums.prepared += 1;
                self.scratch.push(scratch);
            }
        }
    }

    /// Returns `true` if there is a task that a thread may begin.
    pub(super) fn has_step(&self) -> bool {
        self.may_prepare() || self.may_fetch()
    }

    pub(super) fn next(&mut self, now: Instant) -> Option<ThreadTask<W>> {
        self.advance_clock(now);
        match (self.may_prepare(), self.may_fetch()) {
            (true, true) if self.is_fetching_first() => self.fetch(),
            (true, _) => self.prepare(),
            (false, true) => self.fetch(),
            (false, false) => None,
        }
    }

    fn prepare(&mut self) -> Option<ThreadTask<W>> {
        let work = self.to_prepare.pop()?;
        self.preparing += 1;
        Some(ThreadTask::Prepare(
            work,
            self.scratch.pop().unwrap_or_default(),
        ))
    }

    fn fetch(&mut self) -> Option<ThreadTask<W>> {
        let work = self.to_fetch.pop()?;
        self.fetching += 1;
        Some(ThreadTask::Fetch(work))
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
        !self.is_full() && !self.to_fetch.is_empty() && (self.has_room() || self.is_earlier())
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

    /// Adds up the time since the last change.
    pub(super) fn advance_clock(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.until);
        self.until = now;
        if let Some(mut stall_clock) = self.stall_clock.take() {
            let (fetch, prep) = self.lacking();
            stall_clock.add(time, fetch, prep);
            self.stall_clock = Some(stall_clock);
        }
        let seconds = time.as_secs_f64();
        self.sums.seconds += seconds;
        self.sums.fetch_s += seconds * f64::from(self.fetching);
        self.sums.prepare_s += seconds * f64::from(self.preparing);
        self.sums.to_fetch += seconds * self.to_fetch.len() as f64;
    }

    /// Returns the weights of storage and of processors in the resources that are lacking now.
    fn lacking(&self) -> (f64, f64) {
        let (fetching, preparing) = (f64::from(self.fetching), f64::from(self.preparing));
        if self.fetches_ahead() {
            // Either processors wait for storage, or fetched samples wait for processors.
            let are_free = self.preparing < self.cpus || self.to_prepare.is_empty();
            return if self.fetching > 0 && are_free {
                (1.0, 0.0)
            } else {
                (0.0, preparing)
            };
        }
        // Each thread fetches and then prepares. While it waits for storage, a processor is free.
        if self.fetching > 0 {
            (fetching, preparing * self.on_processor())
        } else {
            (0.0, preparing)
        }
    }

    /// Returns the part of the recent fetching time that was not waiting.
    fn on_processor(&self) -> f64 {
        let seen = self.sums.since(&self.recent);
        if seen.fetch_s > 0.0 {
            (seen.fetch_cpu_s / seen.fetch_s).min(1.0)
        } else {
            1.0
        }
    }

    /// Returns the seconds and the number of fetched samples since the last call of
    /// [`start_interval`](Self::start_interval).
    pub(super) fn lately(&self) -> (f64, u64) {
        let (now, then) = (&self.sums, &self.recent);
        (now.seconds - then.seconds, now.fetched - then.fetched)
    }

    /// Starts a new interval for [`lately`](Self::lately). Returns the work of the interval that ends.
    pub(super) fn start_interval(&mut self) -> Interval {
        let before = std::mem::replace(&mut self.recent, self.sums);
        self.sums.since(&before)
    }

    pub(super) fn stall_clock(&self) -> StallClock {
        self.stall_clock.unwrap_or_default()
    }

    pub(super) fn sums(&self) -> Sums {
        self.sums
    }

    pub(super) fn now(&self) -> Now {
        Now {
            cpus: self.cpus,
            threads: self.threads,
            fetching: self.fetching,
            preparing: self.preparing,
            to_fetch: self.to_fetch.len() as u32,
            to_prepare: self.to_prepare.len() as u32,
        }
    }
}

impl Sums {
    /// Returns the work done from `before` to now.
    pub(super) fn since(&self, before: &Sums) -> Interval {
        let seconds = self.seconds - before.seconds;
        Interval {
            seconds,
            fetched: (self.fetched - before.fetched) as u32,
            fetched_bytes: self.fetched_bytes - before.fetched_bytes,
            prepared: (self.prepared - before.prepared) as u32,
            fetch_s: self.fetch_s - before.fetch_s,
            fetch_cpu_s: self.fetch_cpu_s - before.fetch_cpu_s,
            prepare_s: self.prepare_s - before.prepare_s,
            to_fetch: (self.to_fetch - before.to_fetch) / seconds.max(f64::MIN_POSITIVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns a pool with samples of these names, in the order in which they are due.
    fn pool(cpus: u32, threads: u32, to_fetch: &str, to_prepare: &str) -> StageQueues<char> {
        let now = Instant::now();
        let mut stages = StageQueues::new(cpus, true, now);
        stages.limit(cpus, threads);
        for (i, name) in to_fetch.chars().enumerate() {
            stages.submit(now, Deadline::at(i as f64), true, name);
        }
        for (i, name) in to_prepare.chars().enumerate() {
            stages.submit(now, Deadline::at(i as f64 + 0.5), false, name);
        }
        stages
    }

    /// Returns the tasks that threads are given, one after the other.
    fn begun(stages: &mut StageQueues<char>) -> String {
        let step = |stages: &mut StageQueues<char>| match stages.next(Instant::now())? {
            ThreadTask::Fetch(name) => Some(format!("f{name} ")),
            ThreadTask::Prepare(name, _) => Some(format!("p{name} ")),
        };
        std::iter::from_fn(|| step(stages)).collect()
    }

    fn fetched(stages: &mut StageQueues<char>, name: char, due: f64) {
        let ready = Ready {
            due: Deadline::at(due),
            at_work: 0.0,
            bytes: 1,
        };
        let done = CompletedTask::Fetched(name, ready);
        stages.done(Instant::now(), done);
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
            stages.submit(Instant::now(), Deadline::default(), false, name);
        }
        assert_eq!(begun(&mut stages), "pa fa ");
        fetched(&mut stages, 'a', 9.0);
        assert_eq!(begun(&mut stages), "", "three wait already");
        stages.done(Instant::now(), CompletedTask::Prepared(Box::default()));
        assert_eq!(begun(&mut stages), "pb fb ");
    }

    #[test]
    fn a_processor_that_is_taken_away_is_given_up_when_it_is_free() {
        let mut stages = pool(2, 2, "", "wxyz");
        assert_eq!(begun(&mut stages), "pw px ");
        stages.limit(1, 1);
        stages.done(Instant::now(), CompletedTask::Prepared(Box::default()));
        assert_eq!(begun(&mut stages), "");
        stages.done(Instant::now(), CompletedTask::Prepared(Box::default()));
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
            for _ in 0..starts {
                stages.next(stages.until);
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
}
