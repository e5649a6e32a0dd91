//! Memory for samples that are larger than their slots: which sample is given some, which one waits, and which one may
//! exceed the limit.
//!
//! A sample's slot owns the memory that it is given (`coprep_shared_memory`, `staging/large.rs`), until its buffer is
//! free. Memory is requested when the sample is made and its size is known. The worker process that made it requests it
//! and waits for the answer. A thread that copies the sample from the cache requests it too, and does other work in
//! between.
//!
//! # Nobody waits for ever
//!
//! Within the limit every request is granted at once. Beyond it a sample waits, and asks again every few milliseconds,
//! until others have released some memory. It must not wait for a consumer that waits for it. So it may exceed the
//! limit if some consumer is short of minibatches, and one of these holds:
//!
//! - Its minibatch was begun first of all minibatches that are not whole, so that all others come after it.
//! - No worker is left, because all of them wait, and its minibatch was begun first of all that wait. The samples of
//!   the minibatch that was begun first of all may lie in the queue.
//!
//! One of the two holds for some sample whenever a consumer is short and nothing else makes progress. A worker that
//! does not wait takes queued samples. If none is queued, the missing samples of the first minibatch are being made.
//! This ends, or waits, and then the first rule holds. If all workers wait, the second rule holds for the first entry
//! of the list of waiting samples. So the list has only samples for which a worker waits at this moment. A slot that is
//! dropped leaves the list ([`SlotMut`](coprep_shared_memory::staging::SlotMut)), and so does a sample that is put
//! back, that fails, or that is to be copied from the cache and asks again later.
//!
//! A consumer is short if it has taken all that was handed over to it, and a minibatch is being made for it, or would
//! be if there were buffers. Otherwise it has a minibatch to take, or waits for nothing here.
//!
//! A sample that nobody wants, or whose stream was given up, waits no more. Requests of a stream that was given up are
//! never granted (see `StagingPool::retire`).

use std::time::{Duration, Instant};

use crate::produce::failure::Failure;
use crate::produce::processes::LargeRoom;
use crate::stream::late_binding::BoundSlot;
use crate::stream::sample::{Destination, PendingSample};

/// Time that a sample waits at once for others to release memory.
const A_MOMENT: Duration = Duration::from_millis(10);
/// Time for which the kernel may refuse memory that a sample must have, before the sample fails.
const MOST_SHORT: Duration = Duration::from_secs(10);

impl PendingSample {
    /// Reserves `bytes` bytes for the sample, or waits for a moment.
    pub(super) fn room_for(&mut self, bytes: u64) -> LargeRoom {
        let stream = &self.stream;
        let BoundSlot { batch, slot, .. } = self.destination.bound_slot(stream);
        if !batch.is_wanted() || stream.pool.is_retired() {
            return LargeRoom::Unwanted;
        }
        batch.note_large();
        if let Ok(Some(at)) = slot.reserve_large(bytes, false) {
            return LargeRoom::At(at);
        }
        let process_pool = stream.config.producer.process_pool();
        let is_stuck = process_pool.is_some_and(|process_pool| process_pool.is_stuck());
        // The two rules of the module. The engine is locked only if one of them holds.
        let is_next = slot.is_of_first_minibatch() || (is_stuck && slot.waits_longest());
        let reserved = if is_next && stream.engine().is_any_consumer_short() {
            slot.reserve_large(bytes, true)
        } else {
            Ok(None)
        };
        match reserved {
            Ok(Some(at)) => LargeRoom::At(at),
            Ok(None) => {
                stream.pool.wait_for_large(A_MOMENT);
                LargeRoom::Wait
            }
            Err(e) => self.short_of_memory(bytes, &e),
        }
    }

    /// Handles a refusal by the kernel of memory that the sample must have. Others may release some, unless the machine
    /// has too little.
    fn short_of_memory(&mut self, bytes: u64, why: &coprep_shared_memory::Error) -> LargeRoom {
        let since = *self.short_since.get_or_insert_with(Instant::now);
        if why.kind().is_shortage() && since.elapsed() < MOST_SHORT {
            self.stream.pool.wait_for_large(A_MOMENT);
            return LargeRoom::Wait;
        }
        let message = format!(
            "it takes {bytes} bytes, more than its place in a batch, and there is no memory for that: {why}; or make the \
             sample, or the batch, smaller"
        );
        LargeRoom::Failed(Failure::new("prepare", message))
    }

    /// Gives up the memory that was reserved for the sample. Nobody writes there any more.
    pub(super) fn forget_large(&mut self) {
        if let Destination::Bound(bound_slot) = &mut self.destination {
            bound_slot.slot.forget_large();
        }
    }
}
