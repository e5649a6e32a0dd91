//! Samples that were read when their dataset was opened, and wait in memory for their first use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use coprep_storage::{EarlyObject, EarlyPart, Extent};

/// The early samples of a dataset.
#[derive(Debug, Default)]
pub(super) struct EarlySamples {
    /// Those of each object. Empty if there are none.
    objects: Vec<Option<Arc<EarlyObject>>>,
    /// Number of preparations so far, while there are early samples.
    prepared: AtomicU32,
}

impl EarlySamples {
    pub(super) fn new(objects: Vec<Option<Arc<EarlyObject>>>) -> Self {
        EarlySamples {
            objects,
            prepared: AtomicU32::new(0),
        }
    }

    fn of(&self, extent: Extent) -> Option<&EarlyObject> {
        self.objects.get(extent.object as usize)?.as_deref()
    }

    /// Takes a sample.
    pub(super) fn take(&self, extent: Extent) -> Option<EarlyPart> {
        self.of(extent)?.take(extent.at, extent.len?.into())
    }

    /// Returns the first bytes of a sample, `most` at most. It stays.
    pub(super) fn head(&self, extent: Extent, most: u64) -> Option<Vec<u8>> {
        self.of(extent)?.head(extent.at, most)
    }

    /// Counts a preparation of one of `samples` samples. After as many as there are samples, the rest is given up: it
    /// belongs to samples that are in the cache already, or that no job asks for.
    pub(super) fn count_prepared(&self, samples: u32) {
        if !self.objects.is_empty() && self.prepared.fetch_add(1, Ordering::Relaxed) + 1 == samples
        {
            self.objects
                .iter()
                .flatten()
                .for_each(|object| object.clear());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use coprep_storage::Stores;

    use super::*;

    #[test]
    fn samples_that_nobody_took_are_given_up_after_an_epoch() {
        let stores = Stores::default().with_early_reads(1 << 10);
        let reads = stores.early_reads();
        let mut part = reads.reserve(3).expect("there is room");
        part.bytes.extend_from_slice(b"abc");
        reads.keep("shard".into(), HashMap::from([(512, part)]));
        let samples = EarlySamples::new(vec![None, reads.find("shard")]);
        let extent = |object, len| Extent {
            object,
            at: 512,
            len: Some(len),
        };
        assert_eq!(samples.head(extent(1, 3), 2).as_deref(), Some(&b"ab"[..]));
        for other in [extent(0, 3), extent(2, 3)] {
            assert!(samples.take(other).is_none());
        }
        samples.count_prepared(2);
        assert!(reads.held() > 0);
        samples.count_prepared(2);
        assert_eq!(reads.held(), 0);
        assert!(samples.take(extent(1, 3)).is_none());
    }
}
