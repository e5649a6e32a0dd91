//! Samples that a thread copies from the cache of prepared samples.

use std::sync::Arc;

use coprep_costs::MeasuredTimes;

use crate::caches::DatasetCache;
use crate::produce::deadline_queue::Deadline;
use crate::produce::processes::{LargeRoom, ProcessPool};
use crate::produce::producer::UserCodeStore;
use crate::produce::threads::PoolWork;
use crate::stream::sample::PendingSample;
use crate::stream::sample::process::ProcessWork;
use coprep_pipeline::Scratch;

/// The work of copying one sample that a worker process made before.
pub(super) struct CopyWork {
    pub(super) sample: PendingSample,
    pub(super) process_pool: Arc<ProcessPool>,
    pub(super) store: Arc<UserCodeStore>,
}

/// Result of the search for a sample in the cache.
pub(super) enum Restored {
    /// The sample is in its slot.
    Whole(MeasuredTimes),
    /// The sample is not cached.
    Absent,
    /// The sample is larger than its slot, and there is no room for it, or not yet.
    NoRoom(LargeRoom),
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

impl PendingSample {
    /// Fills the slot from the cache.
    pub(super) fn restore(&mut self, cache: Option<&DatasetCache>) -> Restored {
        let hit = cache.and_then(|cache| Some((cache, cache.store.get(self.draw.id)?)));
        let Some((cache, bytes)) = hit else {
            return Restored::Absent;
        };
        let Some(blob) = self.stream.producer_fields().blob_bytes(&bytes) else {
            return Restored::Absent;
        };
        self.claim();
        if self.stream.producer_fields().is_larger_than_slot(blob) {
            match self.room_for(blob as u64) {
                LargeRoom::At(_) => {}
                none => {
                    // Nobody waits for an answer, so the room is asked for anew later. By then the sample may have been
                    // evicted, and lie in the queue of workers that all wait behind it.
                    self.forget_large();
                    return Restored::NoRoom(none);
                }
            }
        } else {
            self.forget_large();
        }
        cache.count_hit();
        let stream = &self.stream;
        let slot = &mut self.destination.bound_slot(stream).slot;
        Restored::Whole(stream.producer_fields().restore(&bytes, slot))
    }

    /// Caches the slot as a worker process wrote it. `blob` bytes of it have no fixed size, as far as the process says.
    pub(super) fn keep_prepared(&mut self, cache: &DatasetCache, blob: u64) {
        cache.count_miss();
        let stream = &self.stream;
        let fields = stream.producer_fields();
        let slot = &mut self.destination.bound_slot(stream).slot;
        let blob = fields.blob_written(slot, blob);
        if fields.keep(cache, self.draw.id, slot, blob) {
            return;
        }
        // Another worker made the same sample meanwhile. All jobs must see the same bytes, so the cached ones take the
        // place of these, if they take as much room.
        let made = fields.fixed_bytes() + blob;
        if let Some(bytes) = cache.store.get(self.draw.id).filter(|b| b.len() == made) {
            cache.count_hit();
            fields.restore(&bytes, slot);
        }
    }
}
