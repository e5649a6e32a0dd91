//! What the pool itself takes of a sample's way, for the program that measures overheads.

use std::time::{Duration, Instant};

use super::Ready;
use super::stages::{CompletedTask, StageQueues, ThreadTask};
use crate::produce::deadline_queue::Deadline;

/// Samples that wait meanwhile.
const WAITING: u32 = 64;

/// The time in which a pool gives out so many samples to be fetched and then prepared, and takes them back.
/// `attributes`: whether it keeps the clocks of what is lacking.
pub fn pass(attributes: bool, samples: u32) -> Duration {
    let began = Instant::now();
    let mut stages = StageQueues::new(2, attributes, began);
    for id in 0..WAITING + samples {
        stages.submit(Instant::now(), Deadline::default(), true, id);
        if id < WAITING {
            continue;
        }
        // What is fetched is prepared next: it was due as early, and this pool does not fetch ahead.
        for _ in 0..2 {
            let done = match stages.next(Instant::now()) {
                Some(ThreadTask::Fetch(id)) => CompletedTask::Fetched(id, Ready::default()),
                Some(ThreadTask::Prepare(_, worker_scratch)) => {
                    CompletedTask::Prepared(worker_scratch)
                }
                None => break,
            };
            stages.done(Instant::now(), done);
        }
    }
    assert_eq!(
        stages.sums().prepared,
        u64::from(samples),
        "all went through"
    );
    began.elapsed()
}
