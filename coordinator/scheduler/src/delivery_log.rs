//! A record of the samples that a job was assigned, in order, as far back as its user may still ask for its state.
//!
//! A job runs ahead of its user: samples leave its need when they are drawn, and the user gets them later. So the state
//! after a given step is the current need and the samples assigned since that step. The log keeps only batches that
//! were not taken, and a few more.

use std::collections::VecDeque;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::carried::CarriedOver;
use crate::rank_batcher::RankSlice;

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
    /// See [`RankSlice::is_of_end`].
    is_of_end: bool,
}

/// An epoch whose last sample was drawn.
#[derive(Debug, Clone)]
pub(crate) struct Closed {
    pub(crate) epoch: u64,
    pub(crate) steps: u64,
    /// Samples that the epoch dropped.
    pub(crate) left: RoaringBitmap,
    /// All samples of the epoch.
    pub(crate) set: Arc<RoaringBitmap>,
    /// Samples of the epoch at its start.
    pub(crate) whole: u64,
    /// The samples that came first in it.
    pub(crate) carried: Arc<[CarriedOver]>,
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
    pub(crate) fn add(&mut self, minibatch: u64, epoch: u64, slice: &RankSlice, ids: &[u32]) {
        self.batches += usize::from(slice.ends_batch);
        self.assigned.push_back(AssignedSlice {
            minibatch,
            epoch,
            step: slice.step,
            ids: ids.to_vec(),
            ended: slice.ends_batch,
            is_of_end: slice.is_of_end,
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

    pub(crate) fn close(&mut self, closed: Closed) {
        self.closed.push_back(closed);
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

    /// Returns `epoch` if it is drawn to its end and had at least `steps` steps.
    pub(crate) fn closed(&self, epoch: u64, steps: u64) -> Option<&Closed> {
        let closed = self.closed.iter().find(|c| c.epoch == epoch)?;
        (steps <= closed.steps).then_some(closed)
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

    // Epochs that are left early.

    /// Returns the first minibatch that cannot stay if `epoch` is left after `steps` steps: it belongs to the end of the
    /// epoch, or has one of these samples.
    pub(crate) fn first_of_end(
        &self,
        epoch: u64,
        steps: u64,
        samples: &RoaringBitmap,
    ) -> Option<u64> {
        let goes = |slice: &&AssignedSlice| {
            slice.is_of_end || slice.ids.iter().any(|&id| samples.contains(id))
        };
        let later = self
            .assigned
            .iter()
            .filter(|slice| (slice.epoch, slice.step) >= (epoch, steps));
        later.filter(goes).map(|slice| slice.minibatch).next()
    }

    /// Forgets the first `steps` steps of `epoch`, and all before. The later ones belong to the next epoch.
    pub(crate) fn leave_epoch(&mut self, epoch: u64, steps: u64) {
        self.assigned
            .retain(|slice| (slice.epoch, slice.step) >= (epoch, steps));
        for slice in &mut self.assigned {
            slice.epoch += 1;
            slice.step -= steps;
        }
        self.batches = self.assigned.iter().filter(|slice| slice.ended).count();
        self.closed.clear();
        self.from = (epoch + 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(bitmap: Option<RoaringBitmap>) -> Vec<u32> {
        bitmap.expect("remembered").into_iter().collect()
    }

    fn add(
        log: &mut DeliveryLog,
        minibatch: u64,
        (epoch, step): (u64, u64),
        ids: &[u32],
        ends_batch: bool,
    ) {
        let slice = RankSlice {
            rank: 0,
            len: ids.len() as u32,
            step,
            ends_batch,
            ends_epoch: false,
            is_of_end: false,
        };
        log.add(minibatch, epoch, &slice, ids);
    }

    #[test]
    fn samples_that_change_places_are_each_assigned_where_the_other_was() {
        let mut log = DeliveryLog::new(0);
        add(&mut log, 0, (0, 0), &[1, 2], true);
        add(&mut log, 1, (0, 1), &[3, 4], true);
        add(&mut log, 2, (1, 0), &[2, 3], true);
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
        add(&mut log, 0, (0, 0), &[1, 2], true);
        add(&mut log, 1, (0, 1), &[3], false);
        add(&mut log, 2, (0, 1), &[4], true);
        log.close(Closed {
            epoch: 0,
            steps: 2,
            left: [9].into_iter().collect(),
            set: Arc::default(),
            whole: 5,
            carried: Arc::default(),
        });
        add(&mut log, 2, (1, 0), &[1], true);
        assert_eq!(ids(Some(log.take_back(2, 0))), [4]);
        assert_eq!(ids(log.reopen(0)), [9]);
        assert_eq!(log.reopen(0), None);
        assert_eq!(ids(log.since(0, 1)), [3]);
        assert_eq!(ids(log.since(1, 0)), [0; 0]);
    }

    #[test]
    fn what_was_assigned_of_an_epoch_that_is_left_belongs_to_the_next() {
        let mut log = DeliveryLog::new(4);
        add(&mut log, 0, (4, 0), &[1, 2], true);
        add(&mut log, 1, (4, 1), &[3, 4], true);
        add(&mut log, 2, (4, 2), &[5], false);
        log.leave_epoch(4, 1);
        assert_eq!(log.since(4, 1), None);
        assert_eq!(ids(log.since(5, 0)), [3, 4, 5]);
        assert_eq!(ids(log.since(5, 1)), [5]);
    }
}
