//! Opening the caches of datasets within one budget, and dropping them.

use std::sync::Arc;
use std::time::Instant;

use coprep_pipeline::{Dataset, Pipeline};
use coprep_protocol::message::{CacheForm, CacheRequest};
use coprep_protocol::spec::PipelineSpec;

use super::flights::{Flight, FlightOutcome, FlightParty, Waiter};
use super::identity::{content, source_name};
use super::{Open, Registry, wait_for};
use crate::Result;
use crate::caches::{CacheKey, CacheOptions, CachedPipeline, DatasetCache, Pin, SampleBytes};

/// A cache that a job needs.
#[derive(Clone)]
pub(super) struct NeededCache {
    pub(super) key: CacheKey,
    pub(super) samples: u32,
    pub(super) dataset_name: String,
    /// Source of the samples, for native pipelines.
    pub(super) cached_pipeline: Option<CachedPipeline>,
    /// Bytes that the job asked for.
    pub(super) bytes: Option<u64>,
    pub(super) reduces: bool,
}

impl Registry {
    pub(super) fn cache(
        self: &Arc<Self>,
        spec: &PipelineSpec,
        request: &CacheRequest,
        form: CacheForm,
        dataset: &Arc<Dataset>,
        pipeline: &Arc<Pipeline>,
        party: &dyn FlightParty,
    ) -> Result<Pin> {
        let needed = NeededCache {
            key: CacheKey {
                content: content(spec, form, dataset),
                form,
                lru: request.lru,
                reuse: 0,
            },
            samples: dataset.len(),
            dataset_name: source_name(&spec.source),
            cached_pipeline: Some(CachedPipeline::of(spec, form)),
            bytes: request.bytes,
            reduces: pipeline.reduces(),
        };
        let (dataset, pipeline) = (dataset.clone(), pipeline.clone());
        self.find_or_open_cache(needed, party, move || {
            SampleBytes::of(&dataset, &pipeline, form)
        })
    }

    /// Finds the cache, or opens it. `sizes` may read the headers of samples.
    pub(super) fn find_or_open_cache(
        self: &Arc<Self>,
        needed: NeededCache,
        party: &dyn FlightParty,
        sizes: impl Fn() -> Result<SampleBytes> + Clone + Send + 'static,
    ) -> Result<Pin> {
        let mut may_be_others = true;
        loop {
            party.still_waits("its cache is being reserved", Instant::now())?;
            let waiter = match self.cache_or_flight(&needed, &sizes) {
                Ok(pin) => return Ok(pin),
                Err(waiter) => waiter,
            };
            let is_first = waiter.is_first;
            // The cache itself is taken from the table, since it may be dropped before it is pinned.
            match wait_for(waiter, party) {
                // The flight may have been begun for a job with other credentials, which the store refuses. One more
                // shows whether it refuses these ones too.
                Err(e) if may_be_others && !is_first && e.kind().is_unavailable() => {
                    may_be_others = false;
                }
                waited => drop(waited?),
            }
        }
    }

    fn cache_or_flight(
        self: &Arc<Self>,
        needed: &NeededCache,
        sizes: &(impl Fn() -> Result<SampleBytes> + Clone + Send + 'static),
    ) -> std::result::Result<Pin, Waiter<Arc<DatasetCache>>> {
        let mut open = self.open();
        if let Some(cache) = open.caches.iter().find(|c| c.key == needed.key) {
            return Ok(Pin::new(cache));
        }
        if let Some(waiter) = open.opening_caches.join(&needed.key) {
            return Err(waiter);
        }
        let step = format!("the cache of {} is being reserved", needed.dataset_name);
        let (flight, waiter) = open.opening_caches.begin(needed.key, step);
        drop(open);
        let (needed, sizes) = (needed.clone(), sizes.clone());
        let open_it = move |registry: &Arc<Registry>, _: &Arc<Flight<Arc<DatasetCache>>>| {
            Ok(Some((registry.open_cache(&needed, sizes()?)?, None)))
        };
        self.fly(flight, open_it, Registry::land_cache);
        Err(waiter)
    }

    fn open_cache(&self, needed: &NeededCache, sizes: SampleBytes) -> Result<Arc<DatasetCache>> {
        // If the kernel does not tell, only the budget bounds the cache.
        let available = coprep_shared_memory::memory::available().unwrap_or(u64::MAX);
        let capacity = {
            let mut open = self.open();
            // Memory that others are reserving now still counts as available.
            let unclaimed = available.saturating_sub(open.reserved_bytes()) / 2;
            let budget_left = self
                .settings
                .cache_budget
                .saturating_sub(open.cache_bytes());
            let capacity = sizes.capacity(needed.bytes, budget_left.min(unclaimed));
            // Reserved before the lock is released, so that two caches that open at once do not both count on these
            // bytes.
            open.reserved.push((needed.key, capacity));
            capacity
        };
        let opening = CacheOptions {
            key: needed.key,
            samples: needed.samples,
            dataset_name: &needed.dataset_name,
            cached_pipeline: needed.cached_pipeline.clone(),
            sizes,
            capacity,
            segment: self.settings.cache_name.as_deref(),
            reduces: needed.reduces,
        };
        DatasetCache::open(&opening).map(Arc::new)
    }

    fn land_cache(
        &self,
        flight: &Arc<Flight<Arc<DatasetCache>>>,
        outcome: FlightOutcome<Arc<DatasetCache>>,
    ) {
        let mut open = self.open();
        // One lock for both steps, so that the budget counts these bytes at any time, and counts them once.
        if let Some(landed) = open.opening_caches.remove(flight) {
            open.reserved.retain(|(key, _)| *key != landed);
        }
        if let FlightOutcome::Done(cache) = &outcome {
            open.caches.push(cache.clone());
        }
        flight.land(outcome, |_| {});
    }

    pub(crate) fn is_warmed(&self) -> bool {
        self.caches().iter().any(|cache| cache.is_warmed())
    }

    /// Frees the caches that nothing uses, of one dataset or of all. Returns the number of freed bytes.
    pub(crate) fn drop_caches(&self, name: Option<&str>) -> u64 {
        let mut open = self.open();
        let all = std::mem::take(&mut open.caches);
        let is_unused = |c: &Arc<DatasetCache>| open.users(c) == 0 && !c.is_pinned();
        let (gone, kept): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|c| is_unused(c) && name.is_none_or(|n| c.belongs_to(n)));
        open.caches = kept;
        // A job that asks for one of them now waits until its segment is removed.
        let begin = |cache: &Arc<DatasetCache>| {
            open.reserved.push((cache.key, cache.capacity()));
            let step = "its old cache is being freed".into();
            open.opening_caches.begin(cache.key, step).0
        };
        let freeing: Vec<_> = gone.iter().map(begin).collect();
        drop(open);
        let bytes: u64 = gone.into_iter().map(DatasetCache::discard).sum();
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.drop_unused(name));
        for flight in &freeing {
            self.land_cache(flight, FlightOutcome::Nothing);
        }
        bytes + on_disk
    }
}

impl Open {
    /// Returns the bytes of caches that are being opened or freed.
    fn reserved_bytes(&self) -> u64 {
        self.reserved.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the bytes of the budget that are taken.
    fn cache_bytes(&self) -> u64 {
        let held: u64 = self.caches.iter().map(|c| c.capacity()).sum();
        held.saturating_add(self.reserved_bytes())
    }
}
