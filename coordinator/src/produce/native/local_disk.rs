//! Decides which samples the local disk holds beside memory, and hands them over.

use std::sync::Arc;

use coprep_cache::Form;

use crate::caches::{DatasetCache, DatasetDisk, WhenFull};
use crate::produce::native::{Fetched, FetchedAt, Prepared, Recipe};

impl Recipe {
    /// Brings a sample to the local disk that memory has taken already or does not take.
    pub(super) fn admit_to_disk(&self, id: u32, fetched: Option<Fetched>) -> Prepared {
        let fetched = match fetched {
            None if self.is_to_fetch_for_disk(id) => Some(self.fetch(id, None)?),
            fetched => fetched,
        };
        // The fetch counts, even if there is nothing to admit, for example because a job has cached the sample
        // meanwhile.
        let cost = fetched.as_ref().map(|fetched| fetched.cost);
        if let Some(cost) = &cost {
            self.costs.record(id, cost);
        }
        self.keep_on_disk(id, fetched, WhenFull::Wait);
        Ok(cost.unwrap_or_default())
    }

    pub(super) fn is_to_fetch_for_disk(&self, id: u32) -> bool {
        // An encoded sample is copied from memory.
        let cached_as = self.cached_as(id);
        cached_as != Some(Form::Encoded) && self.has_room_on_disk(id)
    }

    /// Returns `true` if the local disk has no room for the sample, or there is no disk.
    pub(crate) fn is_refused_by_disk(&self, id: u32) -> bool {
        let len = self.dataset.listed_len(id).unwrap_or(0);
        let refuses = |disk: &Arc<DatasetDisk>| disk.refuses(id, len);
        // A sample that does not go to the disk says nothing about those that do.
        self.disk.is_none() || self.disk_of(id).is_some_and(refuses)
    }

    /// Returns `true` if the local disk would take the sample.
    fn has_room_on_disk(&self, id: u32) -> bool {
        let len = self.dataset.listed_len(id).unwrap_or(0);
        let disk = self.disk_of(id);
        disk.is_some_and(|disk| disk.is_to_keep(id, len, self.is_kept_in_memory(id)))
    }

    /// Returns the local disk, if the sample may be there.
    pub(super) fn disk_of(&self, id: u32) -> Option<&Arc<DatasetDisk>> {
        let disk = self.disk.as_ref();
        disk.filter(|disk| disk.takes(&self.dataset, id))
    }

    /// Returns `true` if memory holds the sample for as long as the coordinator lives.
    fn is_kept_in_memory(&self, id: u32) -> bool {
        let evicts = self.cache.as_ref().is_some_and(|cache| cache.key.lru);
        !evicts && self.cached_as(id).is_some()
    }

    /// Returns `true` if a sample may go into memory in a form that has no price. Where neither memory nor the local disk
    /// holds all samples, memory keeps room for those that are not on the disk, so that both together hold as many as
    /// they can.
    pub(super) fn is_for_memory(&self, cache: &DatasetCache, id: u32) -> bool {
        let Some(disk) = self.disk_of(id).filter(|disk| disk.has(id)) else {
            return true;
        };
        if disk.holds_all() || cache.key.lru {
            return true;
        }
        let samples = u64::from(self.dataset.len());
        let elsewhere = samples.saturating_sub(disk.entries());
        cache.has_room_for_double(elsewhere, samples)
    }

    /// Hands a sample to the local disk, if it is to be kept there: as it was fetched, or as memory holds it.
    pub(super) fn keep_on_disk(&self, id: u32, fetched: Option<Fetched>, when_full: WhenFull) {
        let Some(disk) = self.disk_of(id) else {
            return;
        };
        let in_memory = self.is_kept_in_memory(id);
        // This is asked for every sample, and the answer is usually no.
        if !disk.is_to_keep(id, 0, in_memory) {
            return;
        }
        let file = fetched.filter(|fetched| fetched.fetched_at == FetchedAt::InMemory);
        if let Some(Fetched { file, version, .. }) = file {
            if disk.is_to_keep(id, file.len() as u64, in_memory) {
                disk.keep(id, version, file, when_full);
            }
            return;
        }
        let cache = self.cache.as_ref();
        let hit = cache.and_then(|cache| cache.store.get(id));
        if let Some(hit) = hit.filter(|hit| hit.meta().form == Form::Encoded)
            && disk.is_to_keep(id, hit.len() as u64, in_memory)
        {
            disk.keep(id, hit.meta().version, hit.to_vec(), when_full);
        }
    }
}
