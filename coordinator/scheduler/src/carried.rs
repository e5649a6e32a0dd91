//! An epoch that is left early is continued by the next one: the samples that come first in it.
//!
//! The samples that the epoch which was left had still to give are *carried over*: they come before those that it had
//! given. So an epoch consists of groups of samples, which come one after the other. The samples of a group are drawn
//! with the key of the epoch in which the group came to be, at the positions that they would have had in it. Therefore
//! the sequence of a job alone goes on as if it had not been cut, and does not depend on how much of it was drawn
//! before the epoch was left.
//!
//! The samples that were given come last, as a group of their own. If as much as half of the set comes before the group
//! that was last until then, the two are mixed, because groups that never mix would come back together for ever.

use std::sync::Arc;

use roaring::RoaringBitmap;

/// A group of samples that an epoch which was left early carries over.
#[derive(Clone, Debug, PartialEq)]
pub struct CarriedOver {
    /// The epoch in which the group came to be. It keys the draws of these samples and their random operators.
    pub epoch: u64,
    /// Number of samples that the job was given from the beginning of that epoch to the beginning of the present one.
    pub before: u64,
    /// The samples. The job has been given some of them since.
    pub ids: Arc<RoaringBitmap>,
}

/// Samples that come before the others of a need, or all others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) ids: Arc<RoaringBitmap>,
    /// The epoch that keys the draws.
    pub(crate) epoch: u64,
    /// Position in that epoch of the next sample that is drawn.
    pub(crate) position: u64,
}

/// The point at which an epoch is left.
pub(crate) struct Left {
    pub(crate) epoch: u64,
    /// Samples of the epoch that the job was not given.
    pub(crate) samples: RoaringBitmap,
    /// Number of samples that it was given.
    pub(crate) given: u64,
    /// The groups that the epoch itself began with.
    pub(crate) carried: Arc<[CarriedOver]>,
}

/// The beginning of the epoch that continues one.
pub(crate) struct Continuation {
    pub(crate) carried: Arc<[CarriedOver]>,
    /// Samples that were not given, and that are mixed with those that were.
    pub(crate) mixed: RoaringBitmap,
}

impl Left {
    /// Returns how the next epoch begins. The job has `all` samples.
    pub(crate) fn continuation(&self, all: u64) -> Continuation {
        let mut last = self.samples.clone();
        let mut carried = Vec::new();
        for group in self.carried.iter() {
            let ids = &*group.ids & &self.samples;
            if ids.is_empty() {
                continue;
            }
            last -= &ids;
            carried.push(CarriedOver {
                epoch: group.epoch,
                before: group.before + self.given,
                ids: Arc::new(ids),
            });
        }
        let first: u64 = carried.iter().map(|group| group.ids.len()).sum();
        if 2 * first < all && !last.is_empty() {
            carried.push(CarriedOver {
                epoch: self.epoch,
                before: self.given,
                ids: Arc::new(std::mem::take(&mut last)),
            });
        }
        Continuation {
            carried: carried.into(),
            mixed: last,
        }
    }
}
