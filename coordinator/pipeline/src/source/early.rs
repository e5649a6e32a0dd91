//! Samples that were read when their dataset was opened, and wait in memory for their first use.

use std::sync::Arc;

use coprep_storage::{EarlyObject, EarlyPart, Extent};

/// The early samples of a dataset.
#[derive(Debug, Default)]
pub(super) struct EarlySamples {
    /// The early samples of each object, by its number. The list is empty if there are none.
    objects: Vec<Option<Arc<EarlyObject>>>,
}

impl EarlySamples {
    pub(super) fn new(objects: Vec<Option<Arc<EarlyObject>>>) -> Self {
        EarlySamples { objects }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
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
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use coprep_storage::Stores;

    use super::*;

    #[test]
    fn a_sample_is_taken_once_and_its_start_is_seen_before() {
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
        assert_eq!(
            samples.take(extent(1, 3)).expect("it is there").bytes,
            b"abc"
        );
        assert!(samples.take(extent(1, 3)).is_none());
        assert_eq!(reads.held(), 0);
    }
}
