//! Opening the caches of datasets within one budget, and dropping them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use coprep_pipeline::{Dataset, Pipeline};
use coprep_protocol::message::{CacheForm, CacheRequest, GivenWay};
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
    /// `true` if samples are local files, which may be written anew.
    pub(super) of_files: bool,
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
            of_files: dataset.has_file_versions(),
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
        self.free_if_outgrown(&needed);
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
        self.make_room(needed, sizes.capacity(needed.bytes, u64::MAX));
        let capacity = {
            let mut open = self.open();
            let capacity = sizes.capacity(needed.bytes, self.room(&open));
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
            of_files: needed.of_files,
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
        let bytes = self.free(|open| {
            let unused = open.unused();
            unused
                .filter(|c| name.is_none_or(|n| c.belongs_to(n)))
                .cloned()
                .collect()
        });
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.drop_unused(name));
        bytes + on_disk
    }

    /// Frees the caches that `choose` names, which nothing uses. Returns the number of freed bytes.
    fn free(&self, choose: impl FnOnce(&mut Open) -> Vec<Arc<DatasetCache>>) -> u64 {
        let mut open = self.open();
        let gone = choose(&mut open);
        open.caches
            .retain(|cache| gone.iter().all(|g| !Arc::ptr_eq(g, cache)));
        // A job that asks for one of them now waits until its segment is removed.
        let begin = |cache: &Arc<DatasetCache>| {
            open.reserved.push((cache.key, cache.capacity()));
            let step = "its old cache is being freed".into();
            open.opening_caches.begin(cache.key, step).0
        };
        let freeing: Vec<_> = gone.iter().map(begin).collect();
        drop(open);
        let bytes: u64 = gone.into_iter().map(DatasetCache::discard).sum();
        for flight in &freeing {
            self.land_cache(flight, FlightOutcome::Nothing);
        }
        bytes
    }

    /// Returns the bytes that a new cache may reserve.
    fn room(&self, open: &Open) -> u64 {
        // If the kernel does not tell, only the budget bounds the cache.
        let available = coprep_shared_memory::memory::available().unwrap_or(u64::MAX);
        // Memory that others are reserving now still counts as available.
        let unclaimed = available.saturating_sub(open.reserved_bytes()) / 2;
        let budget = self.settings.cache_budget;
        budget.saturating_sub(open.cache_bytes()).min(unclaimed)
    }

    /// Frees caches that nothing uses, those used longest ago first, until there is room for a cache of `bytes` bytes.
    ///
    /// That no sample is evicted is promised to datasets in use. The others would keep their room for ever.
    fn make_room(&self, needed: &NeededCache, bytes: u64) {
        self.free(|open| {
            let mut room = self.room(open);
            let unused = open.unused().filter(|cache| !cache.is_kept());
            let mut unused: Vec<_> = unused.cloned().collect();
            unused.sort_by_key(|cache| cache.last_used());
            let goes = |cache: &Arc<DatasetCache>| {
                let is_short = room < bytes;
                room = room.saturating_add(cache.capacity());
                is_short
            };
            let gone: Vec<_> = unused.into_iter().take_while(goes).collect();
            for cache in &gone {
                open.given_way.note(cache, &needed.dataset_name);
            }
            gone
        });
    }

    /// Frees the cache itself if nothing uses it, and it was given little room where there is much now: others may have
    /// been in use when it was opened.
    fn free_if_outgrown(&self, needed: &NeededCache) {
        self.free(|open| {
            let wanted =
                |cache: &DatasetCache| needed.bytes.unwrap_or(u64::MAX).min(cache.wanted());
            let may_grow = |cache: &&Arc<DatasetCache>| {
                let is_small = wanted(cache) / MUCH_MORE >= cache.capacity();
                cache.key == needed.key && is_small && !cache.is_named() && !cache.is_warmed()
            };
            let Some(cache) = open.unused().find(may_grow).cloned() else {
                return Vec::new();
            };
            // Its own room, and that of others that would give way, counts as free.
            let unused = open.unused().filter(|other| !other.is_kept());
            let unused: u64 = unused.map(|other| other.capacity()).sum();
            let could_be = wanted(&cache).min(self.room(open).saturating_add(unused));
            if could_be / MUCH_MORE >= cache.capacity() {
                vec![cache]
            } else {
                Vec::new()
            }
        });
    }

    pub(crate) fn given_way(&self) -> Vec<GivenWay> {
        self.open().given_way.status()
    }
}

/// A cache is made anew if it could be this many times as large. What it holds is then prepared once more.
const MUCH_MORE: u64 = 2;
/// Number of caches that gave way, and are remembered.
const MOST_GIVEN_WAY: usize = 8;

/// The last caches that gave way to others.
#[derive(Default)]
pub(super) struct GaveWay(VecDeque<(GivenWay, Instant)>);

impl GaveWay {
    fn note(&mut self, cache: &DatasetCache, to: &str) {
        let (dataset, bytes) = (cache.dataset(), cache.capacity());
        tracing::info!(dataset, bytes, to, "an unused cache gives way");
        let given_way = GivenWay {
            dataset: dataset.to_owned(),
            form: cache.form,
            bytes,
            to: to.to_owned(),
            ago_s: 0.0,
        };
        self.0.push_front((given_way, Instant::now()));
        self.0.truncate(MOST_GIVEN_WAY);
    }

    fn status(&self) -> Vec<GivenWay> {
        let shown = |(given_way, at): &(GivenWay, Instant)| GivenWay {
            ago_s: at.elapsed().as_secs_f64(),
            ..given_way.clone()
        };
        self.0.iter().map(shown).collect()
    }
}

impl Open {
    /// Returns the caches that nothing uses, or is about to use.
    fn unused(&self) -> impl Iterator<Item = &Arc<DatasetCache>> {
        let caches = self.caches.iter();
        caches.filter(|cache| self.users(cache) == 0 && !cache.is_pinned())
    }

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
