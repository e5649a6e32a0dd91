//! Takes one sample from storage, or from the cache, into its slot.
//!
//! A sample is fetched once and decoded once per preparation, and is not copied between the steps. A file that will be
//! cached in its encoded form is read straight into the cache, and a decoded sample is decoded there. Where the form is
//! chosen by price ([`coprep_costs::forms`]), the file is read first, and copied if its encoded form is chosen.
//!
//! A sample that is not in memory is looked up on the local disk before it is fetched. A sample that was fetched, and
//! that memory has not taken, goes there after it was prepared ([`DiskTier`](crate::caches::DiskTier)).

mod admission;
mod block_reads;
mod fetching;
mod local_disk;
mod thread_usage;

use std::sync::Arc;

use coprep_cache::{Form, Meta};
use coprep_costs::{ExpectedCost, Features, MeasuredTimes};
use coprep_pipeline::{
    Dataset, DecodedShape, DecodedView, Pipeline, PipelineRun, SampleKey, Scratch,
};
use coprep_protocol::message::CacheForm;
use coprep_storage::Stores;

use crate::caches::{DatasetCache, DatasetDisk, WhenFull};
use crate::observe::costs::Costs;
use crate::observe::preparation_cost::PreparationCost;
use crate::observe::stalls::FetchWeight;
use crate::produce::failure::Failure;
pub(crate) use crate::produce::native::block_reads::BlockReads;
use crate::produce::native::thread_usage::cpu_since_last;
use crate::produce::threads::SourceId;

/// Everything that is needed to prepare the samples of a stream.
pub(crate) struct Recipe {
    /// Recipes with equal identities make equal samples.
    pub(crate) identity: u128,
    pub(crate) dataset: Arc<Dataset>,
    /// Identity of its reads, which are slow or quick together.
    pub(crate) read_from: SourceId,
    /// The stores of the dataset. As long as they are held, jobs with the same variables are given the same ones.
    pub(crate) _stores: Arc<Stores>,
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
    /// Version of the file before it was read, or 0 if it has none.
    version: u64,
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
    fn in_memory(file: Vec<u8>, version: u64, cost: PreparationCost) -> Self {
        Fetched {
            bytes: file.len() as u64,
            file,
            version,
            fetched_at: FetchedAt::InMemory,
            cost,
            at_work: 0.0,
            expected: None,
        }
    }

    /// Returns the description of the file as a cached sample.
    fn as_encoded(&self) -> Meta {
        Meta {
            version: self.version,
            ..Meta::of(Form::Encoded)
        }
    }
}

impl Recipe {
    /// Returns the bytes of the blocks that are in memory.
    pub(crate) fn block_bytes(&self) -> u64 {
        let blocks = self.blocks.as_ref();
        blocks.map_or(0, |blocks| blocks.held_bytes(&self.dataset))
    }

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

    /// Returns the form in which a sample is cached, or `None` if it is not cached, or another recipe prepared it.
    pub(crate) fn cached_as(&self, id: u32) -> Option<Form> {
        let meta = self.cache.as_ref()?.store.meta(id)?;
        let is_usable = meta.form != Form::Prepared || meta == self.prepared_meta(meta.version);
        is_usable.then_some(meta.form)
    }

    /// Returns the description of a sample to which all operators of this recipe were applied.
    ///
    /// Pipelines that differ only in their last operators share a cache. They share decoded samples, but prepared ones
    /// belong to one of them. So the description has the recipe's identity in the place of a decoded sample's width and
    /// height.
    fn prepared_meta(&self, version: u64) -> Meta {
        Meta {
            form: Form::Prepared,
            version,
            width: self.identity as u32,
            height: (self.identity >> 32) as u32,
        }
    }

    /// Returns the seconds that a sample will take a worker, as it is cached now, or `None` if it was never prepared.
    pub(crate) fn expected(&self, id: u32) -> Option<f32> {
        self.costs.expected(id, self.cached_as(id))
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
                cache.keep(key.id, fetched.as_encoded(), &fetched.file);
                let prepared = self.prepare_fetched(&fetched, key, scratch, slot)?;
                Ok(self.finish(key.id, fetched).plus(prepared))
            }
            CacheForm::Encoded => {
                self.count_from_here();
                let admitted = self.admit_encoded(cache, key.id, &mut None)?;
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
            Some(Form::Encoded) => cache.keep(key.id, fetched.as_encoded(), &fetched.file),
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
            cache.keep(key.id, self.prepared_meta(fetched.version), slot.bytes());
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
                if meta != self.prepared_meta(meta.version) || out.len() != hit.len() {
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
