//! What the pool itself takes of a sample's way, for the program that measures overheads.

use std::time::{Duration, Instant};

use super::Ready;
use super::stages::{Done, Stages, Step};
use crate::due_queue::Moment;

/// Samples that wait meanwhile.
const WAITING: u32 = 64;

/// The time in which a pool gives out so many samples to be fetched and then prepared, and takes them back.
/// `attributes`: whether it keeps the clocks of what is lacking.
pub fn pass(attributes: bool, samples: u32) -> Duration {
    let began = Instant::now();
    let mut stages = Stages::new(2, attributes, began);
    for id in 0..WAITING + samples {
        stages.submit(Instant::now(), Moment::default(), true, id);
        if id < WAITING {
            continue;
        }
        // What is fetched is prepared next: it was due as early, and this pool does not fetch ahead.
        for _ in 0..2 {
            let done = match stages.next(Instant::now()) {
                Some(Step::Fetch(id)) => Done::Fetched(id, Ready::default()),
                Some(Step::Prepare(_, tools)) => Done::Prepared(tools),
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
