//! Takes one sample from storage, or from the cache, into its slot.
//!
//! A sample is fetched once and decoded once per preparation, and is not copied between the steps. A file that will be
//! cached in its encoded form is read straight into the cache, and a decoded sample is decoded there. Where the form is
//! chosen by price ([`coprep_costs::forms`]), the file is read first, and copied if its encoded form is chosen.
//!
//! A sample that is not in memory is looked up on the local disk before it is fetched. A sample that was fetched, and
//! that memory has not taken, goes there after it was prepared ([`DiskTier`](crate::caches::DiskTier)).

mod block_reads;
mod thread_usage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::{Form, Meta};
use coprep_costs::{ExpectedCost, Features, MeasuredTimes};
use coprep_pipeline::{
    Dataset, DecodedShape, DecodedView, Pipeline, PipelineRun, SampleKey, Scratch,
};
use coprep_protocol::message::CacheForm;
use fail::fail_point;

use crate::caches::{DatasetCache, DatasetDisk, WhenFull};
use crate::observe::costs::Costs;
use crate::observe::preparation_cost::PreparationCost;
use crate::observe::stalls::FetchWeight;
use crate::produce::failure::Failure;
pub(crate) use crate::produce::native::block_reads::BlockReads;
use crate::produce::native::thread_usage::{ThreadUsage, cpu_since_last, thread_cpu};
use crate::produce::threads::marked;

/// Everything that is needed to prepare the samples of a stream.
pub(crate) struct Recipe {
    /// Recipes with equal identities make equal samples.
    pub(crate) identity: u128,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) cache: Option<Arc<DatasetCache>>,
    /// The samples on the local disk.
    pub(crate) disk: Option<Arc<DatasetDisk>>,
    /// The reason why the local disk does not hold these samples, for the jobs.
    pub(crate) disk_note: Option<String>,
    /// Set if a request brings many samples at once.
    pub(crate) blocks: Option<BlockReads>,
    pub(crate) costs: Arc<Costs>,
    /// Weight of the time of waiting for storage.
    pub(crate) fetch_weight: Arc<FetchWeight>,
}

/// The slot that a sample is written to. It is asked for only when the last step is about to write.
///
/// It is a trait because this layer does not know the streams, which own the slots.
pub(crate) trait SlotWriter {
    fn bytes(&mut self) -> &mut [u8];
}

/// The place of a fetched sample.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FetchedAt {
    InMemory,
    InCache,
}

/// A sample that was fetched and not yet prepared.
pub(crate) struct Fetched {
    /// The file as it was read, for this preparation only; see [`allocator`](coprep_shared_memory::allocator). Empty if
    /// it was read into the cache.
    file: Vec<u8>,
    fetched_at: FetchedAt,
    /// Bytes that were read, from storage or from the local disk.
    pub(crate) bytes: u64,
    pub(crate) cost: PreparationCost,
    /// The seconds of fetching in which the thread did not wait.
    pub(crate) at_work: f32,
    /// Seconds that preparing it will take, by its header, or `None` if too little is known or `is_looking` was false.
    pub(crate) expected: Option<f32>,
}

/// The facts in the header of a sample's file that decide costs.
struct HeaderInfo {
    features: Features,
    decoded: DecodedShape,
}

/// A file that was read straight into the cache.
struct AdmittedFile {
    bytes: u64,
    cost: PreparationCost,
}

type Prepared = Result<PreparationCost, Failure>;

impl Fetched {
    /// Returns a sample that was fetched into memory, by the thread that goes on with it.
    fn in_memory(file: Vec<u8>, cost: PreparationCost) -> Self {
        Fetched {
            bytes: file.len() as u64,
            file,
            fetched_at: FetchedAt::InMemory,
            cost,
            at_work: 0.0,
            expected: None,
        }
    }
}

impl Recipe {
    /// Prepares sample `key.id` into `slot`, and caches it if there is room. `fetched` is the sample if it was fetched
    /// before.
    ///
    /// A panic of an operator is a failure of that sample, not of the coordinator.
    pub(crate) fn prepare(
        &self,
        key: SampleKey,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
        slot: &mut dyn SlotWriter,
    ) -> Prepared {
        let ahead = fetch_seconds(fetched.as_ref());
        let prepared = guarded(ahead, scratch, self.costs.is_on(), |scratch| {
            match &self.cache {
                None => self.prepare_from_storage(key, fetched, scratch, slot),
                Some(cache) => self.prepare_cached(cache, key, fetched, scratch, slot),
            }
        });
        if let Ok(cost) = &prepared {
            self.costs.record(key.id, cost);
        }
        // If it came from memory or from the local disk, nobody will ask for what was read early.
        drop(self.dataset.take_early(key.id));
        prepared
    }

    /// Fetches a sample that is not cached. It goes into the cache if its file is to be cached as it is. With
    /// `is_looking`, its header is read to predict its cost, unless the cost is known.
    pub(crate) fn fetch_ahead(&self, id: u32, is_looking: bool) -> Result<Fetched, Failure> {
        let before = ThreadUsage::now();
        let mut file = Vec::new();
        let (cost, fetched_at, bytes) = match self.fetch_into_cache(id)? {
            Some(admitted) => (admitted.cost, FetchedAt::InCache, admitted.bytes),
            None => {
                let cost = self.fetch_file(id, &mut file)?;
                (cost, FetchedAt::InMemory, file.len() as u64)
            }
        };
        let wall = cost.times.fetch_seconds();
        let (cpu, at_work) = before.spent(wall);
        // Threads of remote storage work for the fetch while this one waits.
        let elsewhere = self
            .dataset
            .io_cpu_for(id, cost.fetched_bytes)
            .as_secs_f32();
        let (cpu, at_work) = (cpu + elsewhere, (at_work + elsewhere).min(wall));
        let mut expected = self.expected(id);
        if expected.is_none() && is_looking && fetched_at == FetchedAt::InMemory {
            // A broken file is reported when it is decoded.
            let header_info = self.inspect_header(&file).ok();
            let predicted = header_info.and_then(|picture| self.costs.predict(picture.features));
            expected = predicted.map(|cost| cost.prep());
        }
        Ok(Fetched {
            file,
            fetched_at,
            bytes,
            cost: PreparationCost {
                times: MeasuredTimes {
                    cpu: Some(cpu).filter(|cpu| *cpu > 0.0),
                    ..cost.times
                },
                ..cost
            },
            at_work,
            expected,
        })
    }

    /// Reads the file into the cache. Returns `None` if it is not to be cached as it is, or there is no room.
    fn fetch_into_cache(&self, id: u32) -> Result<Option<AdmittedFile>, Failure> {
        let encoded = |cache: &&Arc<DatasetCache>| {
            cache.form == CacheForm::Encoded && !self.is_of_unknown_length(id)
        };
        let Some(cache) = self.cache.as_ref().filter(encoded) else {
            return Ok(None);
        };
        self.admit_encoded(cache, id)
    }

    /// Returns the form in which a sample is cached, or `None` if it is not cached, or another recipe prepared it.
    pub(crate) fn cached_as(&self, id: u32) -> Option<Form> {
        let meta = self.cache.as_ref()?.store.meta(id)?;
        let is_usable = meta.form != Form::Prepared || meta == self.prepared_meta();
        is_usable.then_some(meta.form)
    }

    /// Returns the description of a sample to which all operators of this recipe were applied.
    ///
    /// Pipelines that differ only in their last operators share a cache. They share decoded samples, but prepared ones
    /// belong to one of them. So the description has the recipe's identity in the place of a decoded sample's width and
    /// height.
    fn prepared_meta(&self) -> Meta {
        Meta {
            form: Form::Prepared,
            width: self.identity as u32,
            height: (self.identity >> 32) as u32,
        }
    }

    /// Returns the seconds that a sample will take a worker, as it is cached now, or `None` if it was never prepared.
    pub(crate) fn expected(&self, id: u32) -> Option<f32> {
        self.costs.expected(id, self.cached_as(id))
    }

    /// Brings sample `id` into the cache, if it is not there and there is room. Prepares nothing else.
    /// `fetched` is the sample if it was fetched before.
    pub(crate) fn admit(
        &self,
        id: u32,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
    ) -> Prepared {
        let Some(cache) = self.cache.as_ref().filter(|_| self.is_to_admit(id)) else {
            return self.admit_to_disk(id, fetched);
        };
        let ahead = fetch_seconds(fetched.as_ref());
        let cost = guarded(ahead, scratch, self.costs.is_on(), |scratch| {
            self.admit_to(cache, id, fetched, scratch)
        });
        if let Ok(cost) = &cost {
            self.costs.record(id, cost);
        }
        cost
    }

    /// Brings a sample to the local disk that memory has taken already or does not take.
    fn admit_to_disk(&self, id: u32, fetched: Option<Fetched>) -> Prepared {
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

    /// Returns `true` if [`admit`](Self::admit) reads the sample from storage or from the local disk.
    pub(crate) fn is_to_fetch_for_admission(&self, id: u32) -> bool {
        self.is_to_admit(id) || self.is_to_fetch_for_disk(id)
    }

    fn is_to_fetch_for_disk(&self, id: u32) -> bool {
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
    fn disk_of(&self, id: u32) -> Option<&Arc<DatasetDisk>> {
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
    fn is_for_memory(&self, cache: &DatasetCache, id: u32) -> bool {
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
    fn keep_on_disk(&self, id: u32, fetched: Option<Fetched>, when_full: WhenFull) {
        let Some(disk) = self.disk_of(id) else {
            return;
        };
        let in_memory = self.is_kept_in_memory(id);
        // This is asked for every sample, and the answer is usually no.
        if !disk.is_to_keep(id, 0, in_memory) {
            return;
        }
        let file = fetched.filter(|fetched| fetched.fetched_at == FetchedAt::InMemory);
        if let Some(Fetched { file, .. }) = file {
            if disk.is_to_keep(id, file.len() as u64, in_memory) {
                disk.keep(id, file, when_full);
            }
            return;
        }
        let cache = self.cache.as_ref();
        let hit = cache.and_then(|cache| cache.store.get(id));
        if let Some(hit) = hit.filter(|hit| hit.meta().form == Form::Encoded)
            && disk.is_to_keep(id, hit.len() as u64, in_memory)
        {
            disk.keep(id, hit.to_vec(), when_full);
        }
    }

    /// Returns `true` if [`admit`](Self::admit) would bring the sample into memory.
    pub(crate) fn is_to_admit(&self, id: u32) -> bool {
        let cache = self.cache.as_ref();
        cache.is_some_and(|cache| !cache.store.has(id) && cache.may_admit(id))
    }

    fn inspect_header(&self, file: &[u8]) -> Result<HeaderInfo, Failure> {
        let picture = self.pipeline.inspect(file).map_err(Failure::decode)?;
        Ok(HeaderInfo {
            features: Features {
                bytes: file.len() as u64,
                pixels: picture.pixels,
            },
            decoded: picture.decoded,
        })
    }

    fn prepare_from_storage(
        &self,
        key: SampleKey,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
        slot: &mut dyn SlotWriter,
    ) -> Prepared {
        let fetched = self.fetch(key.id, fetched)?;
        let prepared = self.prepare_fetched(&fetched, key, scratch, slot)?;
        Ok(self.finish(key.id, fetched).plus(prepared))
    }

    /// Hands over a fetched sample that nobody needs any more. Returns the cost of its fetch.
    fn finish(&self, id: u32, fetched: Fetched) -> PreparationCost {
        let cost = fetched.cost;
        self.keep_on_disk(id, Some(fetched), WhenFull::Drop);
        cost
    }

    fn prepare_cached(
        &self,
        cache: &DatasetCache,
        key: SampleKey,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
        slot: &mut dyn SlotWriter,
    ) -> Prepared {
        if let Some(cost) = self.prepare_hit(cache, key, scratch, slot)? {
            self.keep_on_disk(key.id, None, WhenFull::Drop);
            return Ok(match fetched {
                // A sample that was fetched into the cache for this preparation counts as a miss.
                Some(fetched) if fetched.fetched_at == FetchedAt::InCache => {
                    cache.count_miss();
                    fetched.cost.plus(cost)
                }
                _ => {
                    cache.count_hit();
                    cost
                }
            });
        }
        cache.count_miss();
        match cache.form {
            // A sample that another recipe prepared keeps its room, so this one cannot be admitted.
            CacheForm::Auto if self.is_to_admit(key.id) => {
                self.prepare_in_best_form(cache, key, fetched, scratch, slot)
            }
            CacheForm::Auto => self.prepare_from_storage(key, fetched, scratch, slot),
            CacheForm::Encoded if self.is_of_unknown_length(key.id) => {
                let fetched = self.fetch(key.id, fetched)?;
                cache.keep(key.id, Meta::of(Form::Encoded), &fetched.file);
                let prepared = self.prepare_fetched(&fetched, key, scratch, slot)?;
                Ok(self.finish(key.id, fetched).plus(prepared))
            }
            CacheForm::Encoded => {
                self.count_from_here();
                let admitted = self.admit_encoded(cache, key.id)?;
                let finished = match self.prepare_hit(cache, key, scratch, slot)? {
                    Some(cost) => {
                        self.keep_on_disk(key.id, None, WhenFull::Drop);
                        cost
                    }
                    // The sample was not admitted, and its file was not read.
                    None => self.prepare_from_storage(key, fetched, scratch, slot)?,
                };
                Ok(admitted.map_or(finished, |admitted| admitted.cost.plus(finished)))
            }
            _ => {
                let fetched = self.fetch(key.id, fetched)?;
                let admitted = self.decode_into_cache(cache, key.id, &fetched, scratch)?;
                let finished = match self.prepare_hit(cache, key, scratch, slot)? {
                    Some(cost) => cost,
                    // There was no room, or an LRU cache has evicted the sample since.
                    None => self.prepare_fetched(&fetched, key, scratch, slot)?,
                };
                Ok(self.finish(key.id, fetched).plus(admitted).plus(finished))
            }
        }
    }

    /// Caches the sample in the form that is worth most, or not at all.
    fn prepare_in_best_form(
        &self,
        cache: &DatasetCache,
        key: SampleKey,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
        slot: &mut dyn SlotWriter,
    ) -> Prepared {
        let fetched = self.fetch(key.id, fetched)?;
        let picture = self.inspect_header(&fetched.file)?;
        let (mut done, stages) = match self.costs.predict(picture.features) {
            Some(expected) => (None, expected),
            // Until costs can be predicted, a sample is measured before its form is chosen.
            None => {
                let cost = self.prepare_fetched(&fetched, key, scratch, slot)?;
                (Some(cost), cost.times.into())
            }
        };
        let form = self.choose(cache, key.id, &fetched.cost, &stages, &picture);
        let mut admitted = PreparationCost::default();
        match form {
            Some(Form::Encoded) => cache.keep(key.id, Meta::of(Form::Encoded), &fetched.file),
            Some(Form::Decoded) => {
                admitted = self.decode_into_cache(cache, key.id, &fetched, scratch)?;
                if done.is_none() {
                    done = self.prepare_hit(cache, key, scratch, slot)?;
                }
            }
            _ => {}
        }
        let done = match done {
            Some(done) => done,
            None => self.prepare_fetched(&fetched, key, scratch, slot)?,
        };
        if form == Some(Form::Prepared) {
            cache.keep(key.id, self.prepared_meta(), slot.bytes());
        }
        Ok(self.finish(key.id, fetched).plus(admitted).plus(done))
    }

    fn choose(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: &PreparationCost,
        stages: &ExpectedCost,
        picture: &HeaderInfo,
    ) -> Option<Form> {
        let fetch = usual(fetched.times.fetch_seconds(), stages.fetch);
        // Caching always saves the CPU time of fetching. Waiting counts by its weight.
        let at_work = fetched.times.cpu.unwrap_or(0.0).min(fetch);
        let fetch = at_work + self.fetch_weight.get() * (fetch - at_work);
        let mut offers = vec![
            (Form::Encoded, picture.features.bytes as usize, fetch),
            (
                Form::Decoded,
                picture.decoded.bytes(),
                fetch + stages.decode + stages.fixed,
            ),
        ];
        // With random operators, a cached result would be the same in every epoch.
        if self.pipeline.is_deterministic() {
            let bytes = self.pipeline.output().sample_bytes();
            offers.push((Form::Prepared, bytes, fetch + stages.prep()));
        }
        cache.choose(id, &offers)
    }

    fn prepare_hit(
        &self,
        cache: &DatasetCache,
        key: SampleKey,
        scratch: &mut Scratch,
        slot: &mut dyn SlotWriter,
    ) -> Result<Option<PreparationCost>, Failure> {
        let Some(hit) = cache.store.get(key.id) else {
            return Ok(None);
        };
        let meta = hit.meta();
        let run = match meta.form {
            Form::Decoded => {
                let view = DecodedView {
                    width: meta.width,
                    height: meta.height,
                    pixels: &hit,
                };
                self.pipeline
                    .prepare_decoded(view, key, scratch, || slot.bytes())
            }
            Form::Prepared => {
                let out = slot.bytes();
                if meta != self.prepared_meta() || out.len() != hit.len() {
                    return Ok(None);
                }
                out.copy_from_slice(&hit);
                Ok(PipelineRun::default())
            }
            Form::Encoded => self
                .pipeline
                .prepare_encoded(&hit, key, scratch, || slot.bytes()),
        };
        let run = run.map_err(Failure::decode)?;
        Ok(Some(PreparationCost::of(&run, hit.len())))
    }

    fn prepare_fetched(
        &self,
        fetched: &Fetched,
        key: SampleKey,
        scratch: &mut Scratch,
        slot: &mut dyn SlotWriter,
    ) -> Prepared {
        let run = self
            .pipeline
            .prepare_encoded(&fetched.file, key, scratch, || slot.bytes())
            .map_err(Failure::decode)?;
        Ok(PreparationCost::of(&run, fetched.file.len()))
    }

    /// Fetches a sample into memory, unless it was before.
    fn fetch(&self, id: u32, fetched: Option<Fetched>) -> Result<Fetched, Failure> {
        if let Some(fetched) = fetched.filter(|f| f.fetched_at == FetchedAt::InMemory) {
            return Ok(fetched);
        }
        self.count_from_here();
        let mut file = Vec::new();
        let cost = self.fetch_file(id, &mut file)?;
        Ok(Fetched::in_memory(file, cost))
    }

    /// Restarts the thread's CPU clock before a fetch. A thread that waits for storage uses less CPU time than its
    /// stages take, so CPU time from before this sample could be counted with it.
    fn count_from_here(&self) {
        if self.costs.is_on() {
            thread_cpu();
        }
    }

    /// Reads from storage. While it lasts, the pool sees that the thread reads.
    fn read<T>(
        &self,
        id: u32,
        read: impl FnOnce(&Dataset, u32) -> Result<T, coprep_pipeline::Error>,
    ) -> Result<T, Failure> {
        marked(|| {
            fail_point!(&format!("read {}", self.dataset.path(id).display()));
            read(&self.dataset, id).map_err(Failure::fetch)
        })
    }

    /// Takes a sample from its block. Returns `false` if it must be read by itself.
    fn take_from_block(&self, id: u32, take: impl FnOnce(&[u8])) -> Result<bool, Failure> {
        let Some(blocks) = &self.blocks else {
            return Ok(false);
        };
        self.read(id, |dataset, id| blocks.take_sample(dataset, id, take))
    }

    fn fetch_file(&self, id: u32, into: &mut Vec<u8>) -> Prepared {
        let start = Instant::now();
        if let Some(disk) = self.disk_of(id)
            && marked(|| disk.read(id, into))
        {
            return Ok(fetch_time(start.elapsed()).into());
        }
        let took = self.read_whole(id, into, start)?;
        Ok(PreparationCost {
            fetched_bytes: into.len() as u64,
            ..fetch_time(took).into()
        })
    }

    /// Reads a sample that is not on the local disk. Returns the time since `start`, or the time that reading it took when
    /// its dataset was opened: a later epoch has to read it again.
    fn read_whole(&self, id: u32, into: &mut Vec<u8>, start: Instant) -> Result<Duration, Failure> {
        if let Some(mut early) = self.dataset.take_early(id) {
            *into = std::mem::take(&mut early.bytes);
            return Ok(early.took);
        }
        let is_read = self.take_from_block(id, |bytes| bytes.clone_into(into))?;
        if !is_read {
            self.read(id, |dataset, id| dataset.fetch(id, into))?;
        }
        Ok(start.elapsed())
    }

    /// Does the same with a buffer of exactly the sample's length.
    fn read_into(&self, id: u32, into: &mut [u8], start: Instant) -> Result<Duration, Failure> {
        if let Some(early) = self.dataset.take_early(id) {
            into.copy_from_slice(&early.bytes);
            return Ok(early.took);
        }
        let is_read = self.take_from_block(id, |bytes| into.copy_from_slice(bytes))?;
        if !is_read {
            self.read(id, |dataset, id| dataset.fetch_into(id, into))?;
        }
        Ok(start.elapsed())
    }

    fn admit_to(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
    ) -> Prepared {
        match cache.form {
            CacheForm::Encoded if self.is_of_unknown_length(id) => {
                let fetched = self.fetch(id, fetched)?;
                cache.keep(id, Meta::of(Form::Encoded), &fetched.file);
                Ok(self.finish_admission(id, fetched))
            }
            CacheForm::Encoded => {
                self.count_from_here();
                match self.admit_encoded(cache, id)? {
                    Some(admitted) => {
                        self.keep_on_disk(id, None, WhenFull::Wait);
                        Ok(admitted.cost)
                    }
                    None => self.admit_to_disk(id, fetched),
                }
            }
            CacheForm::Auto => self.admit_in_best_form(cache, id, fetched, scratch),
            _ => {
                let fetched = self.fetch(id, fetched)?;
                let decoded = self.decode_into_cache(cache, id, &fetched, scratch)?;
                Ok(self.finish_admission(id, fetched).plus(decoded))
            }
        }
    }

    /// Does the same as [`finish`](Self::finish) for a warm-up, which may wait for the disk.
    fn finish_admission(&self, id: u32, fetched: Fetched) -> PreparationCost {
        let cost = fetched.cost;
        self.keep_on_disk(id, Some(fetched), WhenFull::Wait);
        cost
    }

    /// Admits a sample in the form that is worth most, for a warm-up, which prepares nothing.
    fn admit_in_best_form(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: Option<Fetched>,
        scratch: &mut Scratch,
    ) -> Prepared {
        let fetched = self.fetch(id, fetched)?;
        let admitted = self.admit_fetched(cache, id, &fetched, scratch)?;
        self.finish_admission(id, fetched);
        Ok(admitted)
    }

    /// Admits a fetched sample in the form that is worth most. Returns the cost, with that of the fetch.
    fn admit_fetched(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: &Fetched,
        scratch: &mut Scratch,
    ) -> Prepared {
        let picture = self.inspect_header(&fetched.file)?;
        let mut cost = PreparationCost {
            features: picture.features,
            ..fetched.cost
        };
        if let Some(stages) = self.costs.predict(cost.features) {
            let form = self.choose(cache, id, &cost, &stages, &picture);
            return Ok(match form {
                Some(Form::Encoded) => {
                    cache.keep(id, Meta::of(Form::Encoded), &fetched.file);
                    cost
                }
                Some(_) => cost.plus(self.decode_into_cache(cache, id, fetched, scratch)?),
                None => cost,
            });
        }
        // Until costs can be predicted, a sample is measured before its form is chosen.
        let (decoded, pixels) = self.decode(fetched, scratch)?;
        cost = cost.plus(decoded);
        match self.choose(cache, id, &cost, &cost.times.into(), &picture) {
            Some(Form::Encoded) => cache.keep(id, Meta::of(Form::Encoded), &fetched.file),
            Some(_) => cache.keep(id, pixels.0, &pixels.1),
            None => {}
        }
        Ok(cost)
    }

    fn decode(
        &self,
        fetched: &Fetched,
        scratch: &mut Scratch,
    ) -> Result<(PreparationCost, (Meta, Vec<u8>)), Failure> {
        let start = Instant::now();
        let file = &fetched.file;
        let shape = self.pipeline.decoded_size(file).map_err(Failure::decode)?;
        let mut pixels = vec![0; shape.bytes()];
        self.pipeline
            .decode_into(file, scratch, &mut pixels)
            .map_err(Failure::decode)?;
        let cost = decode_time(start.elapsed()).into();
        Ok((cost, (decoded_as(shape), pixels)))
    }

    /// Returns `true` if only a request, or its row group, tells how long the sample is. It is then read into memory and copied, since its
    /// room in the cache cannot be reserved before it is read.
    fn is_of_unknown_length(&self, id: u32) -> bool {
        let is_measured = self.dataset.is_remote() || self.dataset.is_in_row_groups();
        is_measured && self.dataset.listed_len(id).is_none()
    }

    /// Reads the file straight into the cache. Returns `None` if there is no room for it. Nothing is read then.
    fn admit_encoded(
        &self,
        cache: &DatasetCache,
        id: u32,
    ) -> Result<Option<AdmittedFile>, Failure> {
        let start = Instant::now();
        if !self.is_for_memory(cache, id) {
            return Ok(None);
        }
        let length = self.read(id, Dataset::file_len)?;
        let meta = Meta::of(Form::Encoded);
        let Some(mut reservation) = cache.store.reserve(id, length as usize, meta) else {
            return Ok(None);
        };
        let into = reservation.as_mut_slice();
        let disk = self.disk_of(id);
        let is_on_disk = disk.is_some_and(|disk| marked(|| disk.read_into(id, into)));
        let took = if is_on_disk {
            start.elapsed()
        } else {
            self.read_into(id, into, start)?
        };
        reservation.commit();
        if is_on_disk {
            cache.count_double();
        }
        let cost = PreparationCost {
            fetched_bytes: if is_on_disk { 0 } else { length },
            ..fetch_time(took).into()
        };
        Ok(Some(AdmittedFile {
            bytes: length,
            cost,
        }))
    }

    /// Decodes the file straight into the cache, if there is room.
    fn decode_into_cache(
        &self,
        cache: &DatasetCache,
        id: u32,
        fetched: &Fetched,
        scratch: &mut Scratch,
    ) -> Prepared {
        let start = Instant::now();
        let file = &fetched.file;
        let shape = self.pipeline.decoded_size(file).map_err(Failure::decode)?;
        let meta = decoded_as(shape);
        let has_no_price = cache.forms.is_none();
        if has_no_price && !self.is_for_memory(cache, id) {
            return Ok(PreparationCost::default());
        }
        let Some(mut reservation) = cache.store.reserve(id, shape.bytes(), meta) else {
            return Ok(PreparationCost::default());
        };
        self.pipeline
            .decode_into(file, scratch, reservation.as_mut_slice())
            .map_err(Failure::decode)?;
        reservation.commit();
        if self.disk_of(id).is_some_and(|disk| disk.has(id)) {
            cache.count_double();
        }
        Ok(PreparationCost {
            in_full: true,
            ..decode_time(start.elapsed()).into()
        })
    }
}

fn fetch_time(time: Duration) -> MeasuredTimes {
    MeasuredTimes {
        fetch: MeasuredTimes::stage(time),
        ..MeasuredTimes::default()
    }
}

fn decode_time(time: Duration) -> MeasuredTimes {
    MeasuredTimes {
        decode: MeasuredTimes::stage(time),
        ..MeasuredTimes::default()
    }
}

/// Returns the seconds that fetching is expected to take: the measured time, within a factor of 2 of the prediction.
/// The bound keeps one bad moment from deciding: the form is chosen from a single measurement, and for good.
fn usual(measured: f32, predicted: f32) -> f32 {
    if predicted > 0.0 {
        measured.clamp(predicted / 2.0, predicted * 2.0)
    } else {
        measured
    }
}

fn decoded_as(shape: DecodedShape) -> Meta {
    Meta {
        form: Form::Decoded,
        width: shape.width,
        height: shape.height,
    }
}

/// Returns the seconds that were spent on a sample before its preparation.
fn fetch_seconds(fetched: Option<&Fetched>) -> f32 {
    fetched.map_or(0.0, |fetched| fetched.cost.times.fetch_seconds())
}

/// Runs a preparation, and adds its CPU time if `is_measured`. `ahead` are the seconds of its cost that were spent
/// before.
fn guarded(
    ahead: f32,
    scratch: &mut Scratch,
    is_measured: bool,
    run: impl FnOnce(&mut Scratch) -> Prepared,
) -> Prepared {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(scratch)));
    let prepared = caught.unwrap_or_else(|_| {
        // The panic may have left it half changed.
        *scratch = Scratch::default();
        Err(Failure::new(
            "prepare",
            "an operator panicked: a defect of coprep, please report it".into(),
        ))
    })?;
    if !is_measured {
        return Ok(prepared);
    }
    // A sample that was fetched before brings the CPU time of fetching in its own cost.
    let wall = (prepared.times.total() - ahead).max(0.0);
    let cpu = cpu_since_last().as_secs_f32().min(wall);
    let used = MeasuredTimes {
        cpu: Some(cpu).filter(|cpu| *cpu > 0.0),
        ..MeasuredTimes::default()
    };
    Ok(prepared.plus(used.into()))
}
