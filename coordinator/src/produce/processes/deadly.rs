//! The samples that end their workers.
//!
//! Two workers end on such a sample before it is reported. In draws with replacement it may be drawn many times in one
//! epoch. Each time two workers would end, and each of them would be replaced after an ever longer pause. So the sample
//! is remembered, and fails at once.
//!
//! The batches of an iteration are not remembered, because their ids count them and mean other batches in the next
//! epoch.
//!
//! The reason why a worker ended is seldom known: a machine that is short of memory for a while ends workers too. So a
//! sample is tried again after [`RETRY_AFTER`], with one worker.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_shared_memory::lock::lock;

use crate::produce::failure::Failure;

/// Time for which a sample that ended its workers fails at once. A lost worker a minute is no noticeable cost for a
/// stream.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The samples that ended their workers. The lock is taken once per sample, by the thread of a worker that is about to
/// make it.
#[derive(Default)]
pub(super) struct DeadlySamples {
    by_id: Mutex<HashMap<u32, Deadly>>,
}

struct Deadly {
    since: Instant,
    failure: Failure,
}

/// Decision about a sample that was drawn.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The sample has ended no worker, so it is made.
    Try,
    /// The sample ended workers some time ago. It is made, and fails if it ends one more.
    TryOnce,
    /// The sample ended workers a moment ago, so it fails at once.
    Fail(Failure),
}

impl DeadlySamples {
    /// Records that a sample has ended the largest allowed number of workers.
    pub(super) fn add(&self, id: u32, failure: Failure) {
        self.add_at(Instant::now(), id, failure);
    }

    pub(super) fn verdict(&self, id: u32) -> Verdict {
        self.verdict_at(Instant::now(), id)
    }

    fn add_at(&self, now: Instant, id: u32, failure: Failure) {
        let deadly = Deadly {
            since: now,
            failure,
        };
        self.by_id().insert(id, deadly);
    }

    fn verdict_at(&self, now: Instant, id: u32) -> Verdict {
        let mut by_id = self.by_id();
        match by_id.get(&id) {
            None => Verdict::Try,
            Some(deadly) if now.duration_since(deadly.since) < RETRY_AFTER => {
                Verdict::Fail(deadly.failure.clone())
            }
            Some(_) => {
                by_id.remove(&id);
                Verdict::TryOnce
            }
        }
    }

    fn by_id(&self) -> MutexGuard<'_, HashMap<u32, Deadly>> {
        lock(&self.by_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadly_sample_fails_at_once_and_is_tried_once_after_a_while() {
        let samples = DeadlySamples::default();
        let now = Instant::now();
        samples.add_at(now, 7, Failure::new("dataset", "the worker ended".into()));
        let verdict = |id, seconds| samples.verdict_at(now + Duration::from_secs(seconds), id);
        assert!(matches!(verdict(8, 0), Verdict::Try));
        assert!(matches!(verdict(7, 59), Verdict::Fail(_)));
        assert!(matches!(verdict(7, 60), Verdict::TryOnce));
        // The sample has ended another worker.
        samples.add_at(
            now + Duration::from_secs(61),
            7,
            Failure::new("dataset", "and another".into()),
        );
        match verdict(7, 100) {
            Verdict::Fail(failure) => assert_eq!(failure.message, "and another"),
            other => panic!("{other:?}"),
        }
    }
}
