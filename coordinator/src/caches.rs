//! Caches of datasets, within one budget for the node.
//!
//! A cache belongs to a dataset and a form, and for the decoded form to the deterministic operators, so
//! that streams which differ only in their random operators share it. Its memory is reserved when it is
//! opened: as much as the dataset needs, or as the budget leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coprep_cache::sample_cache::{
    Lru, NoEviction, Renewing, SampleCache, list_named, remove_named,
};
use coprep_pipeline::{Dataset, Pipeline};
use coprep_protocol::message::{CacheForm, CacheStatus};

use crate::{Error, Result};

/// What tells one cache from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CacheKey {
    /// The samples, and for the decoded form what was done to them.
    pub(crate) content: u128,
    pub(crate) form: CacheForm,
    pub(crate) lru: bool,
    /// Times that an entry is used; 0: always.
    pub(crate) reuse: u32,
}

impl CacheKey {
    fn policy(&self) -> String {
        match (self.reuse, self.lru) {
            (0, true) => "lru".into(),
            (0, false) => "no-eviction".into(),
            (times, _) => format!("renewed after {times}"),
        }
    }
}

/// The cache of one dataset in one form.
pub(crate) struct Cache {
    pub(crate) key: CacheKey,
    pub(crate) form: CacheForm,
    pub(crate) store: Box<dyn SampleCache>,
    dataset: String,
    /// The named segment in which it lies.
    segment: Option<String>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What a new cache is made for.
pub(crate) struct Opening<'a> {
    pub(crate) key: CacheKey,
    pub(crate) samples: u32,
    pub(crate) dataset_name: &'a str,
    /// Bytes that all samples take.
    pub(crate) wanted: u64,
    /// What the job asked for.
    pub(crate) bytes: Option<u64>,
    /// What the node has left for caches.
    pub(crate) budget_left: u64,
    /// Prefix of a named segment.
    pub(crate) segment: Option<&'a str>,
}

/// Bytes beyond its payload that a sample takes in an arena, at most: alignment.
const PER_SAMPLE: u64 = 64;
/// How many samples are looked at to know what a dataset needs.
const PROBES: u32 = 4096;

impl Cache {
    pub(crate) fn open(opening: &Opening<'_>) -> Result<Cache> {
        let capacity = opening.capacity();
        let is_private = opening.key.lru || opening.key.reuse > 0;
        let segment = opening.segment_name().filter(|_| !is_private);
        let store: Box<dyn SampleCache> = match (opening.key.lru, &segment) {
            _ if opening.key.reuse > 0 => Box::new(Renewing::new(capacity, opening.key.reuse)),
            (true, _) => Box::new(Lru::new(capacity)),
            (false, None) => Box::new(NoEviction::anonymous(capacity, opening.samples)?),
            (false, Some(name)) => Box::new(opening.named(name, capacity)?),
        };
        Ok(Cache {
            key: opening.key,
            form: opening.key.form,
            store,
            dataset: opening.dataset_name.to_owned(),
            segment,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    pub(crate) fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.store.usage().capacity
    }

    /// Frees its memory, and removes its named segment; gives the bytes.
    pub(crate) fn discard(self: Arc<Self>) -> u64 {
        let (bytes, segment) = (self.capacity(), self.segment.clone());
        // As long as it is mapped, the segment counts as used.
        drop(self);
        if let Some(Err(e)) = segment.as_deref().map(remove_named) {
            tracing::warn!("a cache's segment stays: {e}");
        }
        bytes
    }

    pub(crate) fn belongs_to(&self, name: &str) -> bool {
        self.dataset == name
    }

    pub(crate) fn status(&self, users: u32) -> CacheStatus {
        let usage = self.store.usage();
        CacheStatus {
            dataset: self.dataset.clone(),
            form: self.form,
            policy: self.key.policy(),
            capacity: usage.capacity,
            used: usage.used,
            entries: usage.entries(),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            users,
        }
    }
}

impl Opening<'_> {
    fn capacity(&self) -> u64 {
        // An explicit size is taken as it is: too large is an error of the reservation, not of taste.
        match self.bytes {
            Some(bytes) => bytes.min(self.wanted),
            None => self
                .wanted
                .min(self.budget_left)
                .min(coprep_cache::memory::available().unwrap_or(u64::MAX) / 2),
        }
    }

    fn fingerprint(&self) -> u128 {
        self.key.content ^ self.key.form as u128
    }

    fn segment_name(&self) -> Option<String> {
        self.segment
            .map(|prefix| format!("{prefix}.{:016x}", self.fingerprint() as u64))
    }

    fn named(&self, name: &str, capacity: u64) -> Result<NoEviction> {
        let (cache, found) = NoEviction::named(name, capacity, self.samples, self.fingerprint())?;
        tracing::info!(
            name,
            entries = found.entries,
            bytes = found.bytes,
            dropped = found.dropped,
            "cache segment opened"
        );
        Ok(cache)
    }
}

/// Removes the named segments that coordinators left behind; gives their bytes.
///
/// # Errors
/// When `/dev/shm` cannot be read, or a segment cannot be removed.
pub fn drop_left_segments() -> Result<u64> {
    let mut bytes = 0;
    for segment in list_named()?.into_iter().filter(|s| !s.in_use) {
        if remove_named(&segment.name)? {
            bytes += segment.bytes;
        }
    }
    Ok(bytes)
}

/// Bytes that all samples take in a form; an estimate from every so manieth of a large dataset.
pub(crate) fn wanted(dataset: &Dataset, pipeline: &Pipeline, form: CacheForm) -> u64 {
    let step = dataset.len().div_ceil(PROBES).max(1);
    let mut file = Vec::new();
    let size = |id| match form {
        CacheForm::Encoded => dataset.file_len(id).unwrap_or(0),
        _ => decoded_bytes(dataset, pipeline, id, &mut file),
    };
    let probed: u64 = (0..dataset.len())
        .step_by(step as usize)
        .map(size)
        .map(|bytes| bytes + PER_SAMPLE)
        .sum();
    let margin = if step > 1 { probed / 20 } else { 0 };
    (probed + margin)
        .saturating_mul(u64::from(step))
        .max(1 << 20)
}

/// The same for samples of about `sample_bytes` bytes each.
pub(crate) fn wanted_by_size(sample_bytes: u64, samples: u32) -> u64 {
    let each = sample_bytes.saturating_add(sample_bytes / 4 + PER_SAMPLE);
    each.saturating_mul(u64::from(samples)).max(1 << 20)
}

fn decoded_bytes(dataset: &Dataset, pipeline: &Pipeline, id: u32, head: &mut Vec<u8>) -> u64 {
    // A sample that cannot be read is reported when a job asks for it.
    let shape = dataset
        .fetch_head(id, head)
        .and_then(|()| pipeline.decoded_size(head));
    shape.map_or(0, |s| s.bytes() as u64)
}

/// Refuses a form that the pipeline does not have.
pub(crate) fn check_form(form: CacheForm, bytes: Option<u64>) -> Result<()> {
    match (form, bytes) {
        (CacheForm::Off, Some(_)) => Err(Error::Invalid(
            "cache_bytes was given with cache=\"off\": leave it out, or choose \"encoded\" or \"decoded\"".into(),
        )),
        _ => Ok(()),
    }
}
