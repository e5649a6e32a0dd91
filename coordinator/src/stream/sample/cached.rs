//! Samples that a thread copies from the cache of prepared samples.

use std::sync::Arc;

use coprep_pipeline::Scratch;

use crate::produce::deadline_queue::Deadline;
use crate::produce::processes::{LargeRoom, ProcessPool};
use crate::produce::producer::UserCodeStore;
use crate::produce::threads::PoolWork;
use crate::stream::sample::PendingSample;
use crate::stream::sample::prepared_cache::Restored;
use crate::stream::sample::process::ProcessWork;

/// The work of copying one sample that a worker process made before.
pub(super) struct CopyWork {
    pub(super) sample: PendingSample,
    pub(super) process_pool: Arc<ProcessPool>,
    pub(super) store: Arc<UserCodeStore>,
}

impl PoolWork for CopyWork {
    fn run(self: Box<Self>, _: &mut Scratch) {
        let CopyWork {
            mut sample,
            process_pool,
            store,
        } = *self;
        if !sample.start() {
            return sample.end();
        }
        match sample.restore(store.prepared.as_deref()) {
            Restored::Whole(times) => {
                sample.prepared(&times.into());
                sample.end();
            }
            // An LRU cache has evicted the sample since the work was assigned.
            Restored::Absent => {
                let work = ProcessWork::new(sample, store);
                process_pool.submit(Deadline::default(), Box::new(work));
            }
            Restored::NoRoom(LargeRoom::Failed(failure)) => sample.fail(failure),
            Restored::NoRoom(LargeRoom::Unwanted) => sample.end(),
            // The sample goes behind all that are due by now. With its own deadline, which may be before theirs, it
            // would come first each time, and keep the threads from the samples whose end it waits for.
            Restored::NoRoom(_) => sample.begin_anew(Deadline::now()),
        }
    }
}
