//! Memory for a sample that is larger than its slot: who is given some, who waits, and who goes beyond the limit.
//!
//! A sample's slot owns what it is given (`coprep_cache`, `staging/large.rs`), from when it is given until its buffer is
//! free. It is asked for when the sample is made and its size known: by the worker process that made it, which waits for
//! the answer, or by a thread that copies it from the cache, which does other work in between.
//!
//! # Nobody waits for ever
//!
//! Within the limit whoever asks is given memory at once. Beyond it a sample waits, and asks again every few milliseconds,
//! until others have let go of some. It must not wait for a consumer that waits for it. So it goes beyond the limit if some
//! consumer is short of minibatches, and
//!
//! - its minibatch was begun first of those that are not whole: all others come after it. Or
//! - no worker is left, because all of them wait, and of all that wait its minibatch was begun first. The samples of the
//!   minibatch that was begun first of all may lie in the queue.
//!
//! One of the two is true of some sample whenever a consumer is short and nothing else goes on. A worker that does not wait
//! takes what is queued. If none is queued, what lacks of the first minibatch is being made, which ends, or waits, and then
//! the first rule holds. If all workers wait, the second one holds for the first of the list of those that wait. So the list
//! has samples only for which a worker waits at this moment. A slot that is dropped leaves it
//! ([`SlotMut`](coprep_cache::staging::SlotMut)), and so does a sample that is put back, that fails, or that is to be copied
//! from the cache and asks again later.
//!
//! A consumer is short if it has taken all that was handed over to it, and a minibatch is being made for it, or would be if
//! there were buffers. Otherwise somebody has a minibatch to take, or waits for nothing here.
//!
//! A sample that nobody wants, or whose stream was given up, waits no more. Of a stream that was given up nobody is given
//! anything (see `StagingPool::retire`).

use std::time::{Duration, Instant};

use crate::produce::native::Failure;
use crate::produce::processes::LargeRoom;
use crate::stream::late_binding::BoundSlot;
use crate::stream::sample::{At, SampleWork};

/// How long a sample waits at a time for others to let go of memory.
const A_MOMENT: Duration = Duration::from_millis(10);
/// For how long the kernel may refuse memory that a sample must have.
const MOST_SHORT: Duration = Duration::from_secs(10);

impl SampleWork {
    /// Has `bytes` bytes reserved for the sample, or waits for a moment.
    pub(super) fn room_for(&mut self, bytes: u64) -> LargeRoom {
        let stream = self.stream.clone();
        let BoundSlot { batch, slot, .. } = self.bound_slot();
        if !batch.is_wanted() || stream.pool.is_retired() {
            return LargeRoom::Unwanted;
        }
        if let Ok(Some(at)) = slot.reserve_large(bytes, false) {
            return LargeRoom::At(at);
        }
        let process_pool = stream.config.producer.process_pool();
        let is_stuck = process_pool.is_some_and(|process_pool| process_pool.is_stuck());
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

    /// The kernel refuses memory that the sample must have. Others may let go of some, unless it is more than there is.
    fn short_of_memory(&mut self, bytes: u64, why: &coprep_cache::Error) -> LargeRoom {
        let since = *self.short_since.get_or_insert_with(Instant::now);
        if why.is_shortage() && since.elapsed() < MOST_SHORT {
            self.stream.pool.wait_for_large(A_MOMENT);
            return LargeRoom::Wait;
        }
        let message = format!(
            "it takes {bytes} bytes, more than its place in a batch, and there is no memory for that: {why}; or make the \
             sample, or the batch, smaller"
        );
        LargeRoom::Failed(Failure::new("prepare", message))
    }

    /// Gives up what was reserved for the sample. Nobody writes there any more.
    pub(super) fn forget_large(&mut self) {
        if let At::Bound(bound_slot) = &mut self.at {
            bound_slot.slot.forget_large();
        }
    }
}
