//! A record of the samples that a job was assigned, in order, as far back as its user may still ask for its state.
//!
//! A job runs ahead of its user: samples leave its need when they are drawn, and the user gets them later. So the state
//! after a given step is the current need and the samples assigned since that step. The log keeps only batches that
//! were not taken, and a few more.

use std::collections::VecDeque;
use std::sync::Arc;

use roaring::RoaringBitmap;

/// Number of rounds remembered after every rank took them: more than a client holds at a time.
const REMEMBERED: usize = 64;

/// A slice of a batch, all from one minibatch.
#[derive(Debug, Clone)]
struct AssignedSlice {
    minibatch: u64,
    epoch: u64,
    step: u64,
    ids: Vec<u32>,
    ended: bool,
}

/// An epoch whose last sample was drawn.
#[derive(Debug, Clone)]
struct Closed {
    epoch: u64,
    steps: u64,
    /// Samples that the epoch dropped.
    left: RoaringBitmap,
    /// All samples of the epoch.
    set: Arc<RoaringBitmap>,
}

/// The record of one job's deliveries; see the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeliveryLog {
    assigned: VecDeque<AssignedSlice>,
    /// Number of slices in `assigned` that end a batch.
    batches: usize,
    closed: VecDeque<Closed>,
    /// The first (epoch, step) from which on everything is remembered.
    from: (u64, u64),
}

impl DeliveryLog {
    pub(crate) fn new(epoch: u64) -> Self {
        DeliveryLog {
            from: (epoch, 0),
            ..DeliveryLog::default()
        }
    }

    /// Records a slice. Slices are assigned batch after batch.
    pub(crate) fn add(&mut self, minibatch: u64, epoch: u64, step: u64, ids: &[u32], ended: bool) {
        self.batches += usize::from(ended);
        self.assigned.push_back(AssignedSlice {
            minibatch,
            epoch,
            step,
            ids: ids.to_vec(),
            ended,
        });
    }

    /// Forgets `minibatch` and all later ones. Returns the samples of `epoch` to assign again, without the samples that
    /// were dropped; see [`reopen`](Self::reopen).
    pub(crate) fn take_back(&mut self, minibatch: u64, epoch: u64) -> RoaringBitmap {
        let mut ids = RoaringBitmap::new();
        while let Some(last) = self
            .assigned
            .pop_back_if(|last| last.minibatch >= minibatch)
        {
            self.batches -= usize::from(last.ended);
            if last.epoch == epoch {
                ids.extend(last.ids);
            }
        }
        ids
    }

    /// Reopens an epoch that was drawn to its end. Returns the samples that it had dropped, or `None` if it was not
    /// ended.
    pub(crate) fn reopen(&mut self, epoch: u64) -> Option<RoaringBitmap> {
        let mut left = None;
        while let Some(last) = self.closed.pop_back_if(|last| last.epoch >= epoch) {
            left = Some(last.left);
        }
        left
    }

    /// Records that sample `other` was assigned in place of `bad`. `bad` stays in the record as well, so that neither
    /// comes again.
    pub(crate) fn replaced(&mut self, bad: u32, other: u32) {
        if let Some(slice) = self
            .assigned
            .iter_mut()
            .rev()
            .find(|s| s.ids.contains(&bad))
        {
            slice.ids.push(other);
        }
    }

    /// Exchanges the positions of samples `one` and `other` of `epoch`.
    pub(crate) fn exchange(&mut self, epoch: u64, one: u32, other: u32) {
        let slices = self.assigned.iter_mut().rev();
        let positions: Vec<&mut u32> = slices
            .filter(|slice| slice.epoch == epoch)
            .flat_map(|slice| &mut slice.ids)
            .filter(|id| **id == one || **id == other)
            .take(2)
            .collect();
        // If one of the two is already forgotten, nobody can ask for a state before it, so exchanging the other
        // suffices.
        for id in positions {
            *id = if *id == one { other } else { one };
        }
    }

    pub(crate) fn close(
        &mut self,
        epoch: u64,
        steps: u64,
        left: &RoaringBitmap,
        set: &Arc<RoaringBitmap>,
    ) {
        self.closed.push_back(Closed {
            epoch,
            steps,
            left: left.clone(),
            set: set.clone(),
        });
    }

    /// Forgets slices that every rank took long ago. `waiting` is the number of slices that some rank has not taken.
    pub(crate) fn forget(&mut self, waiting: usize, ranks: usize) {
        while self.batches > waiting + REMEMBERED * ranks {
            let Some(gone) = self.assigned.pop_front() else {
                break;
            };
            self.batches -= usize::from(gone.ended);
            self.from = (gone.epoch, gone.step + 1);
        }
        while self.closed.front().is_some_and(|c| c.epoch < self.from.0) {
            self.closed.pop_front();
        }
    }

    /// Returns the samples that `epoch` dropped and the set of the epoch, if it is drawn to its end and had at least
    /// `steps` steps.
    pub(crate) fn left_by(
        &self,
        epoch: u64,
        steps: u64,
    ) -> Option<(&RoaringBitmap, &RoaringBitmap)> {
        let closed = self.closed.iter().find(|c| c.epoch == epoch)?;
        (steps <= closed.steps).then_some((&closed.left, &*closed.set))
    }

    /// Returns the samples assigned in `epoch` at and after `step`, or `None` if that is forgotten.
    pub(crate) fn since(&self, epoch: u64, step: u64) -> Option<RoaringBitmap> {
        if (epoch, step) < self.from {
            return None;
        }
        let later = self
            .assigned
            .iter()
            .filter(|b| b.epoch == epoch && b.step >= step);
        Some(later.flat_map(|b| b.ids.iter().copied()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(bitmap: Option<RoaringBitmap>) -> Vec<u32> {
        bitmap.expect("remembered").into_iter().collect()
    }

    #[test]
    fn samples_that_change_places_are_each_assigned_where_the_other_was() {
        let mut log = DeliveryLog::new(0);
        log.add(0, 0, 0, &[1, 2], true);
        log.add(1, 0, 1, &[3, 4], true);
        log.add(2, 1, 0, &[2, 3], true);
        log.exchange(0, 2, 3);
        assert_eq!(ids(log.since(0, 0)), [1, 2, 3, 4], "none is lost");
        assert_eq!(ids(log.since(0, 1)), [2, 4]);
        assert_eq!(ids(log.since(1, 0)), [2, 3], "another epoch is as it was");
        log.exchange(0, 2, 3);
        assert_eq!(ids(log.since(0, 1)), [3, 4]);
    }

    #[test]
    fn what_is_taken_back_was_never_assigned() {
        let mut log = DeliveryLog::new(0);
        log.add(0, 0, 0, &[1, 2], true);
        log.add(1, 0, 1, &[3], false);
        log.add(2, 0, 1, &[4], true);
        log.close(0, 2, &[9].into_iter().collect(), &Arc::default());
        log.add(2, 1, 0, &[1], true);
        assert_eq!(ids(Some(log.take_back(2, 0))), [4]);
        assert_eq!(ids(log.reopen(0)), [9]);
        assert_eq!(log.reopen(0), None);
        assert_eq!(ids(log.since(0, 1)), [3]);
        assert_eq!(ids(log.since(1, 0)), [0; 0]);
    }
}
