//! Replay: minibatches are handed over again without being prepared, to measure how fast jobs are by themselves.
//!
//! A staging buffer that was filled once stays as it is, and its samples come again under other ids. Jobs that train on
//! them train on wrong labels, and do as much work.

use std::sync::atomic::{AtomicBool, Ordering};

/// The slots of the staging area that have been filled.
pub(super) struct Replay {
    filled: Vec<AtomicBool>,
    slots: u32,
}

impl Replay {
    pub(super) fn new(buffers: u32, slots: u32) -> Self {
        let all = buffers as usize * slots as usize;
        Replay {
            filled: (0..all).map(|_| AtomicBool::new(false)).collect(),
            slots,
        }
    }

    fn slot(&self, buffer: u32, slot: u32) -> Option<&AtomicBool> {
        self.filled.get((buffer * self.slots + slot) as usize)
    }

    pub(super) fn is_filled(&self, buffer: u32, slot: u32) -> bool {
        // Acquire pairs with the release in `fill`: the sample's bytes are visible with the flag.
        self.slot(buffer, slot)
            .is_some_and(|s| s.load(Ordering::Acquire))
    }

    pub(super) fn fill(&self, buffer: u32, slot: u32) {
        if let Some(filled) = self.slot(buffer, slot) {
            filled.store(true, Ordering::Release);
        }
    }
}
