//! The set of samples that a job must still be given in its epoch.
//!
//! Jobs that advance together have equal needs. They share one bitmap, so that a draw costs them one removal. A
//! fingerprint tells whether two sets are equal: the exclusive or of a hash of every id, updated with each sample that
//! leaves (Zobrist hashing).

use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::draw::mix;

/// A shared set of sample ids with a fingerprint.
#[derive(Debug, Clone)]
pub(crate) struct Need {
    ids: Arc<RoaringBitmap>,
    len: u64,
    fingerprint: u64,
}

impl Need {
    pub(crate) fn new(mut ids: RoaringBitmap) -> Self {
        // Random draws break runs into pieces, so selecting and removing in run containers would cost milliseconds.
        ids.remove_run_compression();
        let fingerprint = fingerprint(&ids);
        Need {
            len: ids.len(),
            ids: Arc::new(ids),
            fingerprint,
        }
    }

    pub(crate) fn ids(&self) -> &Arc<RoaringBitmap> {
        &self.ids
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if the sets are equal. Different sets compare as equal with a probability of 2^-64.
    pub(crate) fn equals(&self, other: &Need) -> bool {
        self.len == other.len && self.fingerprint == other.fingerprint
    }

    pub(crate) fn shares_bitmap(&self, other: &Need) -> bool {
        Arc::ptr_eq(&self.ids, &other.ids)
    }

    /// Returns this set without `gone`.
    pub(crate) fn without(&self, gone: &RoaringBitmap) -> Need {
        if self.ids.is_disjoint(gone) {
            return self.clone();
        }
        let left = fingerprint(&(&*self.ids & gone));
        let ids = &*self.ids - gone;
        Need {
            len: ids.len(),
            ids: Arc::new(ids),
            fingerprint: self.fingerprint ^ left,
        }
    }

    /// Removes `drawn`, all of which must be in the set.
    pub(crate) fn remove(&mut self, drawn: &[u32]) {
        let ids = Arc::make_mut(&mut self.ids);
        for &id in drawn {
            let held = ids.remove(id);
            debug_assert!(held, "sample {id} was drawn from outside the need");
            self.fingerprint ^= mix(u64::from(id));
        }
        self.len = ids.len();
    }
}

fn fingerprint(ids: &RoaringBitmap) -> u64 {
    ids.iter().fold(0, |sum, id| sum ^ mix(u64::from(id)))
}
