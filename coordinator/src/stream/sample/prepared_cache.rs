//! The cache of prepared samples: a slot is filled from it, or kept in it.

use coprep_costs::MeasuredTimes;

use crate::caches::DatasetCache;
use crate::produce::processes::LargeRoom;
use crate::stream::sample::PendingSample;

/// Result of the search for a sample in the cache.
pub(super) enum Restored {
    /// The sample is in its slot.
    Whole(MeasuredTimes),
    /// The sample is not cached.
    Absent,
    /// The sample is larger than its slot, and there is no room for it, or not yet.
    NoRoom(LargeRoom),
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
