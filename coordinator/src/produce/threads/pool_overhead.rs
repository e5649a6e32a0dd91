//! Measures the pool's own share of a sample's time, for the program that measures overheads.

use std::time::{Duration, Instant};

use super::Ready;
use super::stages::{CompletedTask, StageQueues, StageWork, ThreadTask};
use crate::produce::deadline_queue::Deadline;

impl StageWork for u32 {
    fn needs_fetch(&self) -> bool {
        true
    }

    fn is_to_cache(&self) -> bool {
        false
    }

    fn expected_bytes(&self) -> Option<u64> {
        Some(1)
    }
}

/// Number of samples that wait meanwhile.
const WAITING: u32 = 64;

/// Returns the time in which a pool gives out `samples` samples to be fetched and then prepared, and takes them back.
/// `attributes` switches its stall clock on.
pub fn pool_overhead(attributes: bool, samples: u32) -> Duration {
    let began = Instant::now();
    let mut stages = StageQueues::new(2, attributes, began);
    for id in 0..WAITING + samples {
        stages.submit(Instant::now(), Deadline::default(), true, None, id);
        if id < WAITING {
            continue;
        }
        // A fetched sample is prepared next: it was due as early, and this pool does not fetch ahead.
        for _ in 0..2 {
            let done = match stages.next(Instant::now(), 0) {
                Some(ThreadTask::Fetch(id, _) | ThreadTask::BeginFetch(id)) => {
                    CompletedTask::Fetched(id, Ready::default())
                }
                Some(ThreadTask::Prepare(_, scratch)) => CompletedTask::Prepared(scratch),
                None => break,
            };
            stages.done(Instant::now(), 0, done);
        }
    }
    assert_eq!(
        stages.sums().prepared,
        u64::from(samples),
        "all went through"
    );
    began.elapsed()
}
