//! What was drawn for one rank and not yet taken by it: in preparation, or ready.

use std::collections::VecDeque;

/// One delivery.
#[derive(Debug, Clone, Copy)]
struct Entry {
    minibatch: u64,
    len: u32,
    ends_batch: bool,
}

/// A rank's queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    entries: VecDeque<Entry>,
    minibatches: u32,
    samples: u64,
    batches: u32,
}

impl Queue {
    pub(crate) fn push(&mut self, minibatch: u64, len: u32, ends_batch: bool) {
        let same = self
            .entries
            .back()
            .is_some_and(|e| e.minibatch == minibatch);
        self.minibatches += u32::from(!same);
        self.samples += u64::from(len);
        self.batches += u32::from(ends_batch);
        self.entries.push_back(Entry {
            minibatch,
            len,
            ends_batch,
        });
    }

    /// The consumer took the oldest delivery; its minibatch.
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

    /// The minibatches, each once.
    pub(crate) fn each(&self) -> impl Iterator<Item = u64> {
        let mut before = None;
        let ids = self.entries.iter().map(|e| e.minibatch);
        ids.filter(move |&id| before.replace(id) != Some(id))
    }

    /// Deliveries.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Staging buffers it keeps in use.
    pub(crate) fn minibatches(&self) -> u32 {
        self.minibatches
    }

    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Batches whose last sample is there.
    pub(crate) fn whole_batches(&self) -> u32 {
        self.batches
    }
}
