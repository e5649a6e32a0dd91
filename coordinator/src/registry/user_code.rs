//! Opening streams of user code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_protocol::id_set;
use coprep_protocol::message::{Attach, CacheForm, UserCode};
use coprep_protocol::spec::{Source, UserDataset};
use coprep_shared_memory::lock::lock;
use coprep_shared_memory::staging::StagingPool;
use roaring::RoaringBitmap;

use super::Registry;
use super::dataset_caches::NeededCache;
use super::flights::Flight;
use crate::Result;
use crate::caches::{CacheKey, Pin, SampleBytes, check_form};
use crate::error::{ErrorKind, code_failed, from_lower, invalid};
use crate::produce::processes::{
    GivenServer, Loaded, PoolOptions, Probing, ProcessPool, SampleShape, Trouble, WorkerStaging,
};
use crate::produce::producer::{Producer, UserCodeStore, naming_fields};
use crate::stream::{Numbers, Stream, layout, most_blob, slots};

/// Number of times that a stream's fork server may end before it has made a sample. Beyond that, another one would not
/// help. The second constant is how long such ends are remembered.
const MOST_ENDS: u32 = 4;
const MEMORY_OF_ENDS: Duration = Duration::from_secs(60);
/// Largest number of workers of one stream's user code.
const MOST_CODE_WORKERS: u32 = 128;
/// Number of candidates for the inspection of samples. Only a few of them are inspected, more only where the first ones
/// fail.
const PROBES: u32 = 64;
/// Number of candidates that are the first samples of the dataset, unless all candidates are spread over it.
const PROBES_IN_A_ROW: u32 = 8;

/// Fork servers that ended one after the other before they had made a sample, by the identity of their code.
#[derive(Default)]
pub(super) struct Ends(Mutex<HashMap<u128, OpeningEnd>>);

struct OpeningEnd {
    times: u32,
    latest: Instant,
    why: String,
}

impl Ends {
    fn lock(&self) -> MutexGuard<'_, HashMap<u128, OpeningEnd>> {
        lock(&self.0)
    }

    /// Records the end of a fork server. `is_of_use`: it had made a sample. Returns `true` if it was one too many.
    fn note(&self, key: u128, why: &str, is_of_use: bool) -> bool {
        let mut ends = self.lock();
        ends.retain(|_, end| end.latest.elapsed() < MEMORY_OF_ENDS);
        let before = ends.remove(&key).map_or(0, |end| end.times);
        if is_of_use {
            return false;
        }
        let end = OpeningEnd {
            times: before + 1,
            latest: Instant::now(),
            why: why.to_owned(),
        };
        ends.insert(key, end);
        before + 1 >= MOST_ENDS
    }

    /// Fails if there were too many ends, and forgets them, because the user may have fixed the cause before the next
    /// attempt.
    ///
    /// # Errors
    /// With the reason of the latest end.
    fn check(&self, key: u128) -> Result<()> {
        let mut ends = self.lock();
        let is_too_often =
            |end: &mut OpeningEnd| end.times >= MOST_ENDS && end.latest.elapsed() < MEMORY_OF_ENDS;
        match ends
            .extract_if(|k, end| *k == key && is_too_often(end))
            .next()
        {
            Some((_, end)) => Err(code_failed(format!(
                "the process that runs the dataset's code came to its end {} times before a batch was ready. The last \
                 time: {}",
                end.times, end.why
            ))),
            None => Ok(()),
        }
    }
}

/// The samples of a Python dataset, as far as a cache of them depends on them.
struct CachedSamples<'a> {
    /// Name of the dataset.
    name: &'a str,
    samples: u32,
    seed: u64,
    shape: &'a SampleShape,
}

impl Registry {
    /// Takes over the fork server that a job has given, inspects some samples, and creates its workers and its staging
    /// area. Returns `None` if the fork server has ended meanwhile and another one is needed: it may have been killed, or
    /// its job has left.
    pub(super) fn open_code(
        self: &Arc<Self>,
        request: &Attach,
        user: &UserDataset,
        code: &UserCode,
        given: Option<GivenServer>,
        seed: u64,
        flight: &Arc<Flight<Arc<Stream>>>,
    ) -> Result<Option<(Producer, StagingPool, Option<Pin>)>> {
        check_user_form(self.form(request), user)?;
        let key = request.pipeline.fingerprint();
        self.ends.check(key)?;
        let Some(given) = given else {
            return Ok(None);
        };
        flight.step(format!("the dataset of {} is being loaded", user.name));
        let probing = Probing {
            ids: |samples| probes(request, samples, user.split),
            split: user.split,
            most_blob: |samples| {
                let slots = slots(request.batch_size, Numbers::of_epoch(request, samples));
                most_blob(slots, self.settings.staging_bytes)
            },
            workers: self.code_workers(request),
        };
        let is_awaited = || flight.is_awaited();
        let giver = given.giver.clone();
        let opened = Loaded::start(given, code, is_awaited, probing)
            .and_then(|loaded| self.process_pool(request, user, loaded, seed, flight));
        match opened {
            Err(e) if matches!(e.kind(), ErrorKind::ForkServerKilled) => {
                tracing::warn!(error = %e, "another fork server of user code is needed");
                self.ends.note(key, &e.to_string(), giver.is_gone());
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    /// Creates the workers of user code, and the staging area that they fill.
    fn process_pool(
        self: &Arc<Self>,
        request: &Attach,
        user: &UserDataset,
        loaded: Loaded,
        seed: u64,
        flight: &Arc<Flight<Arc<Stream>>>,
    ) -> Result<(Producer, StagingPool, Option<Pin>)> {
        let form = self.form(request);
        let samples = loaded.samples;
        let shape = loaded.shape.clone();
        let pool_and_cache = || {
            flight.step("the memory of its batches is being reserved");
            let numbers = Numbers::of(request, seed, samples)?;
            let fields = shape.fields.iter().cloned();
            let fields: Vec<_> = fields.chain(naming_fields(numbers.are_ids())).collect();
            let epoch = Numbers::of_epoch(request, samples);
            let slots = slots(request.batch_size, epoch);
            let layout = layout(&fields, slots, epoch, self.settings.staging_bytes)?;
            let pool = StagingPool::create_shared(layout).map_err(from_lower)?;
            let cached = CachedSamples {
                name: &user.name,
                samples,
                seed,
                shape: &shape,
            };
            let pin = self.user_cache(request, &cached, form, flight)?;
            Ok((pool, pin))
        };
        let (pool, pin) = match pool_and_cache() {
            Ok(both) => both,
            Err(e) => {
                // Dropping `loaded` would not end its fork server, because the listening thread holds it as well.
                loaded.discard();
                return Err(e);
            }
        };
        let cache = pin.as_ref().map(|pin| pin.cache().clone());
        let (prepared, kept) = match form {
            CacheForm::Prepared => (cache, None),
            _ => (None, cache),
        };
        let staging = WorkerStaging {
            pool: pool.clone(),
            shape: shape.clone(),
            seed,
        };
        let code = request.code.as_ref();
        let options = PoolOptions {
            workers: self.code_workers(request),
            timeout: Duration::from_millis(code.map_or(0, |c| c.sample_timeout_ms)),
            cache: kept.clone(),
            attributes: self.settings.attribution,
        };
        let process_pool = ProcessPool::start(loaded, staging, options)?;
        let producer = Producer::ProcessPool {
            process_pool,
            samples,
            fields: shape.fields,
            structure: shape.structure,
            // A cached sample is used beside others than those that it was made with.
            at_once: shape.at_once && form == CacheForm::Off,
            store: Arc::new(UserCodeStore {
                prepared,
                kept,
                costs: self.costs.of(request.pipeline.fingerprint(), samples),
            }),
        };
        Ok((producer, pool, pin))
    }

    /// Returns the number of workers of a stream of user code.
    fn code_workers(&self, request: &Attach) -> u32 {
        match request.code.as_ref().map_or(0, |c| c.workers) {
            // An iterable dataset is iterated by one reader. A second one would give its batches once more.
            _ if request.is_iterated() => 1,
            0 => self.workers.cpus(),
            asked => asked.min(MOST_CODE_WORKERS),
        }
    }

    fn user_cache(
        self: &Arc<Self>,
        request: &Attach,
        cached: &CachedSamples<'_>,
        form: CacheForm,
        party: &Arc<Flight<Arc<Stream>>>,
    ) -> Result<Option<Pin>> {
        check_form(form, request.cache.bytes)?;
        if form == CacheForm::Off {
            return Ok(None);
        }
        let CachedSamples { samples, shape, .. } = *cached;
        let content = match form {
            CacheForm::Decoded | CacheForm::Auto => request.pipeline.decoded_fingerprint(),
            // Prepared samples depend on their random numbers, and on the layout of their parts in a slot.
            _ => {
                let made = [
                    request.pipeline.fingerprint(),
                    cached.seed.into(),
                    shape.fixed_bytes().into(),
                ];
                xxhash_rust::xxh3::xxh3_128(&made.map(u128::to_le_bytes).concat())
            }
        };
        let key = CacheKey {
            content,
            form,
            lru: request.cache.lru,
            reuse: request.cache.reuse,
        };
        let needed = NeededCache {
            key,
            samples,
            dataset_name: cached.name.into(),
            cached_pipeline: None,
            bytes: request.cache.bytes,
            reduces: false,
            // A value has a list of the files of which it was made. Prepared samples have none.
            of_files: form != CacheForm::Prepared,
        };
        let sample_bytes = match form {
            CacheForm::Prepared => shape.prepared_bytes(),
            _ => shape.kept,
        };
        // If samples have no fixed size, the job may know more about them than an inspection of a few shows.
        let at_least = request.cache.bytes.filter(|_| shape.is_uneven());
        let sizes = move || {
            Ok(SampleBytes::by_sample(sample_bytes, samples).at_least(at_least.unwrap_or(0)))
        };
        self.find_or_open_cache(needed, &**party, sizes).map(Some)
    }

    /// Breaks a stream off when its process pool fails, and has it look for a fork server when that has ended. A stream
    /// that is broken off is opened anew when its jobs come again.
    pub(super) fn tell_of_trouble(&self, stream: &Arc<Stream>) {
        let Some(process_pool) = stream.config.producer.process_pool() else {
            return;
        };
        let key = stream.config.key.pipeline;
        let ends = self.ends.clone();
        // Weak, because the stream owns the pool that keeps this function.
        let stream = Arc::downgrade(stream);
        process_pool.on_trouble(move |trouble| {
            // Noted before the jobs are sent away, because they come again at once, and are checked against it.
            let is_too_often = match &trouble {
                Trouble::LostServer { how, was_of_use } => ends.note(key, how, *was_of_use),
                Trouble::ForkServer(why) => ends.note(key, why, false),
                Trouble::Defect(_) => true,
            };
            let Some(stream) = stream.upgrade() else {
                return;
            };
            if is_too_often || !matches!(trouble, Trouble::LostServer { .. }) {
                stream.break_off(&trouble);
            } else {
                stream.look_for_server();
            }
        });
    }
}

/// Returns the dataset and the code to run, if the job's own code makes the samples in worker processes.
pub(super) fn runs_code(request: &Attach) -> Option<(&UserDataset, &UserCode)> {
    match &request.pipeline.source {
        Source::UserCode(user) if !user.in_job => Some((user, request.code.as_ref()?)),
        _ => None,
    }
}

/// Returns the samples that a job may be given, or `None` if it may be given all.
pub(super) fn job_ids(request: &Attach) -> Option<RoaringBitmap> {
    let weights = request.draws.as_ref().and_then(|d| d.weights.as_ref());
    if let Some(weights) = weights {
        let weighted = (0..).zip(weights).filter(|(_, weight)| **weight > 0.0);
        return Some(weighted.map(|(id, _)| id).collect());
    }
    let subset = request.subset.as_deref();
    // A malformed subset is refused when the job attaches. Until then it does not matter which samples are inspected.
    subset.and_then(|bytes| id_set::deserialize(bytes).ok())
}

/// Returns the ids of the samples to inspect. They are of the job's own set, and spread over it.
pub(super) fn probes(request: &Attach, samples: u32, split: bool) -> Vec<u32> {
    let set = job_ids(request);
    let len = set.as_ref().map_or(u64::from(samples), RoaringBitmap::len) as u32;
    let id_at = |n: u32| match &set {
        Some(set) => set.select(n),
        None => Some(n),
    };
    // With a split, the cache's size is estimated from some of them. Without, the first one that succeeds is enough,
    // and if samples have no fixed size, a few of the others.
    let count = PROBES.min(len);
    let step = (len / PROBES).max(1);
    let in_a_row = if split { 0 } else { PROBES_IN_A_ROW };
    let position_of = |i: u32| if i < in_a_row { i } else { i * step };
    let mut positions: Vec<u32> = (0..count).map(position_of).collect();
    if split {
        // Any first few of them are spread evenly: they are 0, 1/2, 1/4, 3/4, ... of the way.
        positions.sort_by_key(|position| (position / step).reverse_bits());
    }
    let ids = positions.into_iter().filter_map(id_at);
    ids.filter(|&id| id < samples).collect()
}

pub(super) fn ids_only(user: &UserDataset) -> Result<Producer> {
    let samples = user.samples.filter(|_| user.in_job).ok_or_else(|| {
        invalid("a dataset whose samples the job makes itself must say how many it has")
    })?;
    Ok(Producer::Jobs { samples })
}

pub(super) fn check_user_form(form: CacheForm, user: &UserDataset) -> Result<()> {
    let (why, remedy) = match form {
        CacheForm::Encoded => (
            "a dataset of your own code has no encoded form",
            "choose \"decoded\" with transform=, \"prepared\" or \"off\"",
        ),
        CacheForm::Decoded if !user.split => (
            "cache=\"decoded\" keeps what dataset[i] gives, before the random transform",
            "pass that one as transform= and leave it out of the dataset; or choose cache=\"prepared\" if nothing is \
             random",
        ),
        _ => return Ok(()),
    };
    Err(invalid(why).with_remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_server_that_ends_over_and_over_is_not_started_again() {
        let ends = Ends::default();
        for _ in 0..MOST_ENDS {
            assert!(ends.check(1).is_ok());
            ends.note(1, "no descriptor is left", false);
        }
        assert!(
            ends.check(2).is_ok(),
            "the fork servers of other code did not end"
        );
        let refused = ends.check(1).map_err(|e| e.to_string());
        assert!(
            refused
                .is_err_and(|why| why.contains("4 times") && why.contains("no descriptor is left"))
        );
        assert!(ends.check(1).is_ok(), "whoever asks again is served");
    }

    #[test]
    fn a_fork_server_that_was_of_use_is_started_again() {
        let ends = Ends::default();
        for of_use in [false, false, false, true, false] {
            ends.note(1, "it was killed", of_use);
        }
        assert!(ends.check(1).is_ok());
    }
}
