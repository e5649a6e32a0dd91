//! The deliveries that were drawn for one rank and that it has not taken: some are in preparation, some are ready.

use std::collections::VecDeque;

/// One delivery in a rank's queue.
#[derive(Debug, Clone, Copy)]
struct QueuedDelivery {
    minibatch: u64,
    len: u32,
    ends_batch: bool,
}

/// A rank's queue, with its totals kept up to date.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    entries: VecDeque<QueuedDelivery>,
    minibatches: u32,
    samples: u64,
    batches: u32,
}

impl Queue {
    pub(crate) fn push(&mut self, minibatch: u64, len: u32, ends_batch: bool) {
        // Deliveries of one minibatch share a buffer, so it counts once.
        let same = self
            .entries
            .back()
            .is_some_and(|e| e.minibatch == minibatch);
        self.minibatches += u32::from(!same);
        self.samples += u64::from(len);
        self.batches += u32::from(ends_batch);
        self.entries.push_back(QueuedDelivery {
            minibatch,
            len,
            ends_batch,
        });
    }

    /// Removes the oldest delivery, because the consumer took it. Returns its minibatch.
    pub(crate) fn pop(&mut self) -> Option<u64> {
        let entry = self.entries.pop_front()?;
        let same = self
            .entries
            .front()
            .is_some_and(|e| e.minibatch == entry.minibatch);
        self.minibatches -= u32::from(!same);
        self.samples -= u64::from(entry.len);
        self.batches -= u32::from(entry.ends_batch);
        Some(entry.minibatch)
    }

    /// Removes the deliveries of `minibatch` and of all later ones. Returns their number.
    pub(crate) fn take_back(&mut self, minibatch: u64) -> u32 {
        let from = self.entries.partition_point(|e| e.minibatch < minibatch);
        let gone = self.entries.split_off(from);
        let mut minibatches: Vec<u64> = gone.iter().map(|e| e.minibatch).collect();
        minibatches.dedup();
        self.minibatches -= minibatches.len() as u32;
        self.samples -= gone.iter().map(|e| u64::from(e.len)).sum::<u64>();
        self.batches -= gone.iter().map(|e| u32::from(e.ends_batch)).sum::<u32>();
        gone.len() as u32
    }

    /// Returns the minibatch of the oldest delivery.
    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.front().map(|e| e.minibatch)
    }

    /// Iterates over the minibatches, each once.
    pub(crate) fn each(&self) -> impl Iterator<Item = u64> {
        let mut before = None;
        let ids = self.entries.iter().map(|e| e.minibatch);
        ids.filter(move |&id| before.replace(id) != Some(id))
    }

    /// Returns the number of deliveries.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Returns the number of minibatches, which is the number of staging buffers that the queue keeps in use.
    pub(crate) fn minibatches(&self) -> u32 {
        self.minibatches
    }

    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of batches whose last sample is in the queue.
    pub(crate) fn whole_batches(&self) -> u32 {
        self.batches
    }
}
