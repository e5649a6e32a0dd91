//! Sources whose storage is slow or dead, and the tasks that read from them.
//!
//! A read that takes longer than [`STUCK`] is set apart: it counts no more among the threads of the pool, and another
//! thread takes its place. Its source is *slow* from then on. The tasks that read from a slow source wait here, and
//! each of their reads is set apart from its beginning. So storage that never answers costs the jobs of its own
//! datasets, and no others.
//!
//! The number of reads of a slow source follows its answers, as in the slow start of TCP (RFC 5681). The source begins
//! with a credit of one read, the probe, and each answer pays for two more, up to [`MOST_READS`] at a time. Dead
//! storage answers nothing, so it holds only the reads that it had, and a probe each [`PROBE_EVERY`]. Storage that
//! answers slowly soon has as many reads as it may. After [`QUICK_ANSWERS`] quick answers in a row the source is like
//! any other again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::produce::deadline_queue::{Deadline, DeadlineHeap};

/// Identity of a dataset in the stores of some jobs, whose reads are slow or quick together.
pub(crate) type SourceId = u128;

/// The file that a task reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SourceFile {
    pub(crate) source: SourceId,
    /// The id of the sample that the file belongs to.
    pub(crate) sample: u32,
}

/// Time after which a read is stuck. Quick storage answers within milliseconds, and a disk under load within a second.
pub(super) const STUCK: Duration = Duration::from_secs(2);
/// Most reads of a slow source at a time.
const MOST_READS: u32 = 32;
/// Number of quick answers in a row after which a source is not slow any more. One is not enough: some files of slow
/// storage may be in the memory of the operating system.
const QUICK_ANSWERS: u32 = 32;
/// Time after which a source that answers nothing is probed once more. Storage may have come back, although the reads
/// from before will never return.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Time after which a source without reads is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// The slow sources.
pub(super) struct SlowSources<T> {
    sources: BTreeMap<SourceId, SlowSource<T>>,
}

/// A slow source.
struct SlowSource<T> {
    /// Tasks that read from the source.
    waiting: DeadlineHeap<T>,
    /// Number of its reads that are set apart.
    reads: u32,
    /// Number of reads that may begin.
    credit: u32,
    /// Number of quick answers in a row.
    quick: u32,
    /// Time of the last answer or probe.
    changed: Instant,
}

impl<T> SlowSources<T> {
    pub(super) fn new() -> Self {
        SlowSources {
            sources: BTreeMap::new(),
        }
    }

    pub(super) fn contains(&self, source: SourceId) -> bool {
        // Nearly always empty, and asked for each sample.
        !self.sources.is_empty() && self.sources.contains_key(&source)
    }

    /// Records a stuck read. `reads` is the number of all reads of this source that are set apart. Returns `true` if
    /// the source was not slow before.
    pub(super) fn stuck(&mut self, source: SourceId, reads: u32, now: Instant) -> bool {
        let is_new = !self.contains(source);
        let slow = self.sources.entry(source).or_insert_with(|| SlowSource {
            waiting: DeadlineHeap::new(),
            reads: 0,
            credit: 1,
            quick: 0,
            changed: now,
        });
        (slow.reads, slow.quick) = (reads, 0);
        is_new
    }

    /// Adds a task that reads from a slow source. Returns it if the source is not slow.
    pub(super) fn push(&mut self, source: SourceId, due: Deadline, task: T) -> Option<T> {
        match self.sources.get_mut(&source) {
            Some(slow) => {
                slow.waiting.push(due, task);
                None
            }
            None => Some(task),
        }
    }

    /// Returns `true` if a read may begin.
    pub(super) fn has_ready(&self) -> bool {
        self.sources.values().any(SlowSource::is_ready)
    }

    /// Takes the task that is due first among the tasks that may begin.
    pub(super) fn pop(&mut self) -> Option<T> {
        let ready = self.sources.values_mut().filter(|slow| slow.is_ready());
        let slow = ready.min_by_key(|slow| slow.waiting.first())?;
        slow.credit -= 1;
        slow.reads += 1;
        slow.waiting.pop()
    }

    /// Records that a read has returned. Returns the tasks of its source, with their times, if it is not slow any more.
    pub(super) fn answered(
        &mut self,
        source: SourceId,
        was_apart: bool,
        is_quick: bool,
        now: Instant,
    ) -> Vec<(Deadline, T)> {
        let Some(slow) = self.sources.get_mut(&source) else {
            return Vec::new();
        };
        slow.reads -= u32::from(was_apart);
        slow.credit = (slow.credit + 2).min(MOST_READS.saturating_sub(slow.reads));
        slow.quick = if is_quick { slow.quick + 1 } else { 0 };
        slow.changed = now;
        if slow.quick < QUICK_ANSWERS {
            return Vec::new();
        }
        let recovered = self.sources.remove(&source);
        recovered.map_or_else(Vec::new, |mut slow| slow.waiting.extract(|_| true))
    }

    /// Records that a read that was set apart has ended without an answer. It pays for no other read.
    pub(super) fn failed(&mut self, source: SourceId) {
        if let Some(slow) = self.sources.get_mut(&source) {
            slow.reads = slow.reads.saturating_sub(1);
        }
    }

    /// Probes sources that answer nothing, and forgets sources that have nothing to do. Returns the tasks that do not
    /// read any more, with their times.
    pub(super) fn maintain(
        &mut self,
        now: Instant,
        is_reading: impl Fn(&T) -> bool,
    ) -> Vec<(Deadline, T)> {
        let mut ended = Vec::new();
        self.sources.retain(|_, slow| {
            ended.append(&mut slow.waiting.extract(|task| !is_reading(task)));
            slow.probe(now);
            !slow.is_forgotten(now)
        });
        ended
    }

    /// Returns the number of tasks that wait.
    pub(super) fn waiting(&self) -> usize {
        self.sources.values().map(|slow| slow.waiting.len()).sum()
    }

    /// Returns the number of reads that may begin, for which there are tasks.
    pub(super) fn openings(&self) -> u32 {
        let ready = |slow: &SlowSource<T>| slow.credit.min(slow.waiting.len() as u32);
        self.sources.values().map(ready).sum()
    }

    /// Returns the number of reads that may begin.
    pub(super) fn credit(&self) -> u32 {
        self.sources.values().map(|slow| slow.credit).sum()
    }
}

impl<T> SlowSource<T> {
    fn is_ready(&self) -> bool {
        self.credit > 0 && !self.waiting.is_empty()
    }

    fn probe(&mut self, now: Instant) {
        let is_time = now.saturating_duration_since(self.changed) >= PROBE_EVERY;
        if is_time && self.credit == 0 && self.reads < MOST_READS {
            (self.credit, self.changed) = (1, now);
        }
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        let is_idle = self.reads == 0 && self.waiting.is_empty();
        is_idle && now.saturating_duration_since(self.changed) >= FORGET_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: SourceId = 1;

    /// Returns a source with some stuck reads and many tasks.
    fn slow(reads: u32, now: Instant) -> SlowSources<u32> {
        let mut sources = SlowSources::new();
        assert!(sources.stuck(SOURCE, reads, now));
        for task in 0..1000 {
            assert!(
                sources
                    .push(SOURCE, Deadline::at(f64::from(task)), task)
                    .is_none()
            );
        }
        sources
    }

    fn begin_all(sources: &mut SlowSources<u32>) -> u32 {
        std::iter::from_fn(|| sources.pop()).count() as u32
    }

    #[test]
    fn dead_storage_is_given_a_probe_now_and_then_and_a_bounded_number_in_all() {
        let mut now = Instant::now();
        let mut sources = slow(2, now);
        assert_eq!(begin_all(&mut sources), 1);
        let mut probes = 0;
        for _ in 0..100 {
            assert!(sources.maintain(now, |_| true).is_empty());
            assert_eq!(begin_all(&mut sources), 0, "not before the time");
            now += PROBE_EVERY;
            sources.maintain(now, |_| true);
            probes += begin_all(&mut sources);
        }
        assert_eq!(probes, MOST_READS - 3);
    }

    #[test]
    fn storage_that_answers_slowly_is_soon_read_by_many_threads() {
        let now = Instant::now();
        let mut sources = slow(2, now);
        let mut reads = 2 + begin_all(&mut sources);
        let mut seen = vec![reads];
        for _ in 0..6 {
            for _ in 0..reads {
                assert!(sources.answered(SOURCE, true, false, now).is_empty());
            }
            reads = begin_all(&mut sources);
            seen.push(reads);
        }
        assert_eq!(seen, [3, 6, 12, 24, 32, 32, 32]);
    }

    #[test]
    fn a_source_whose_answers_are_quick_again_gets_its_tasks_back_in_order() {
        let now = Instant::now();
        let mut sources = slow(1, now);
        let mut begun = Vec::new();
        let back = loop {
            begun.extend(sources.pop());
            let back = sources.answered(SOURCE, true, true, now);
            if !back.is_empty() {
                break back;
            }
        };
        assert_eq!(begun.len() as u32, QUICK_ANSWERS);
        begun.extend(back.iter().map(|(_, task)| task));
        assert_eq!(begun, (0..1000).collect::<Vec<_>>());
        assert!(!sources.contains(SOURCE));
    }

    #[test]
    fn one_slow_answer_among_quick_ones_keeps_a_source_slow() {
        let now = Instant::now();
        let mut sources = slow(0, now);
        for answer in 0..10 * QUICK_ANSWERS {
            sources.pop();
            let is_quick = answer % QUICK_ANSWERS != 0;
            assert!(sources.answered(SOURCE, true, is_quick, now).is_empty());
        }
    }

    #[test]
    fn tasks_that_nobody_wants_any_more_are_not_kept_by_dead_storage() {
        let now = Instant::now();
        let mut sources = slow(1, now);
        let ended = sources.maintain(now, |task| *task >= 10);
        assert_eq!(ended.len(), 10);
        assert_eq!(sources.waiting(), 990);
    }

    #[test]
    fn a_slow_source_without_reads_is_forgotten_after_a_while() {
        let now = Instant::now();
        let mut sources = SlowSources::<u32>::new();
        sources.stuck(SOURCE, 1, now);
        sources.maintain(now + FORGET_AFTER, |_| true);
        assert!(sources.contains(SOURCE), "a read is stuck");
        sources.answered(SOURCE, true, false, now);
        sources.maintain(now + FORGET_AFTER / 2, |_| true);
        assert!(sources.contains(SOURCE));
        sources.maintain(now + FORGET_AFTER, |_| true);
        assert!(!sources.contains(SOURCE));
    }
}
