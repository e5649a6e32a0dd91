//! Opening streams of user code.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use coprep_cache::staging::StagingPool;
use coprep_protocol::message::{Attach, CacheForm, UserCode};
use coprep_protocol::spec::{Source, UserDataset};
use roaring::RoaringBitmap;

use super::flights::Flight;
use super::identity::{code_key, zygote_key};
use super::{Registry, Wanted};
use crate::caches::{CacheKey, Pin, Sizes, check_form};
use crate::maker::{Maker, naming_fields};
use crate::stream::{Numbers, Stream, layout, most_blob};
use crate::user_code::{Crew, Loaded, Probing, Resting, Shape, Trouble, Zygote};
use crate::{Error, Result};

/// How long a process that has loaded user code is kept for the next job, and how many of them.
const REST: Duration = Duration::from_secs(60);
const MOST_RESTING: usize = 4;
/// How often a dataset is loaded whose host is killed meanwhile, and the pause before the second time.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// How often a stream's host may come to its end before the stream has handed over anything: beyond that, opening it once
/// more would not help. And how long such ends are remembered.
const MOST_ENDS: u32 = 4;
const MEMORY_OF_ENDS: Duration = Duration::from_secs(60);
/// Most workers of one stream's user code.
const MOST_CODE_WORKERS: u32 = 128;
/// Samples of which some are looked at to know what user code makes: more of them only where the first ones fail.
const PROBES: u32 = 64;
/// As many of them are the first ones, unless all of them are spread over the dataset.
const PROBES_IN_A_ROW: u32 = 8;

/// What is known of user code beyond its streams; all of it by identity.
#[derive(Default)]
pub(super) struct UserCodes {
    /// Processes that have loaded it, whose jobs have just left.
    resting: Mutex<Vec<(u128, Resting)>>,
    zygotes: Mutex<Vec<KnownZygote>>,
    ends: Arc<Ends>,
}

/// A process that forks hosts, as long as somebody holds it.
struct KnownZygote {
    /// See [`zygote_key`].
    key: u128,
    /// Names of the datasets that it was started or used for.
    datasets: Vec<String>,
    zygote: Weak<Zygote>,
}

impl KnownZygote {
    fn alive(&self) -> Option<Arc<Zygote>> {
        self.zygote.upgrade().filter(|zygote| zygote.is_alive())
    }
}

/// Hosts that came to their ends, one after the other, before their streams had handed over anything.
#[derive(Default)]
struct Ends(Mutex<HashMap<u128, End>>);

struct End {
    times: u32,
    latest: Instant,
    why: String,
}

impl Ends {
    fn lock(&self) -> MutexGuard<'_, HashMap<u128, End>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an end. `is_of_use`: the stream had handed something over.
    fn note(&self, key: u128, why: &str, is_of_use: bool) {
        let mut ends = self.lock();
        ends.retain(|_, end| end.latest.elapsed() < MEMORY_OF_ENDS);
        let before = ends.remove(&key).map_or(0, |end| end.times);
        if !is_of_use {
            let end = End {
                times: before + 1,
                latest: Instant::now(),
                why: why.to_owned(),
            };
            ends.insert(key, end);
        }
    }

    /// Fails if there were too many, and forgets them: whoever asks again may have mended what it was.
    fn check(&self, key: u128) -> Result<()> {
        let mut ends = self.lock();
        let is_too_often =
            |end: &mut End| end.times >= MOST_ENDS && end.latest.elapsed() < MEMORY_OF_ENDS;
        match ends
            .extract_if(|k, end| *k == key && is_too_often(end))
            .next()
        {
            Some((_, end)) => Err(Error::Code(format!(
                "the process that runs the dataset's code came to its end {} times before a batch was ready. The last \
                 time: {}",
                end.times, end.why
            ))),
            None => Ok(()),
        }
    }
}

impl Registry {
    /// Loads a dataset, looks at a sample, and makes what workers and staging area it needs. `None`: the dataset's code
    /// is needed.
    ///
    /// A host that is killed meanwhile is replaced: the kernel kills those that hold much memory, and not because of
    /// what they do.
    pub(super) fn open_code(
        self: &Arc<Self>,
        request: &Attach,
        user: &UserDataset,
        code: &UserCode,
        dataset: Option<&OwnedFd>,
        (slots, seed): (u32, u64),
        flight: &Arc<Flight<Arc<Stream>>>,
    ) -> Result<Option<(Maker, StagingPool, Option<Pin>)>> {
        check_user_form(self.form(request), user)?;
        self.user_code.ends.check(request.pipeline.fingerprint())?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            flight.step(format!("the dataset of {} is being loaded", user.name));
            let probing = Probing {
                ids: |samples| probes(request, samples, user.split),
                split: user.split,
                most_blob: most_blob(slots, self.settings.staging_bytes),
            };
            // What ended the process may have been an import: then only this dataset's host is to end of it.
            let anew = attempts > 1;
            let is_awaited = || flight.is_awaited();
            let loaded = self.load((request, user), code, dataset, anew, is_awaited, probing);
            let opened = loaded.and_then(|loaded| {
                let crew = |loaded| self.crew(request, user, loaded, (slots, seed), flight);
                loaded.map(crew).transpose()
            });
            match opened {
                Err(Error::HostKilled { how, doing, .. }) if attempts < ATTEMPTS => {
                    tracing::warn!(how, doing, attempts, "a host of user code is started anew");
                    // What took the memory may be gone then.
                    std::thread::sleep(PAUSE * attempts);
                }
                Err(Error::HostKilled { how, doing, .. }) => {
                    return Err(Error::HostKilled {
                        how,
                        doing,
                        attempts,
                    });
                }
                other => return other,
            }
        }
    }

    fn load(
        &self,
        (request, user): (&Attach, &UserDataset),
        code: &UserCode,
        dataset: Option<&OwnedFd>,
        anew: bool,
        is_awaited: impl Fn() -> bool,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Option<Loaded>> {
        let resting = self.user_code.take_resting(code_key(request));
        let loaded = match (resting, dataset) {
            (Some(resting), _) => Loaded::again(resting, code, probing)?,
            (None, Some(dataset)) => {
                let zygote = self.user_code.zygote(code, &user.name)?;
                Loaded::load(&zygote, code, dataset, anew, is_awaited, probing)?
            }
            (None, None) => return Ok(None),
        };
        let there = loaded.samples;
        if let Some(here) = user.samples.filter(|&here| here != there) {
            loaded.discard();
            return Err(Error::Code(format!(
                "the dataset has {here} samples in the job and {there} in its worker: its len() must not change, and \
                 must not depend on the process"
            )));
        }
        Ok(Some(loaded))
    }

    /// Lets a process import what this code will need, unless the process of another program serves the same dataset: then
    /// this one's job will probably share that stream. The process stays as long as the result is held.
    pub(crate) fn prepare(&self, code: &UserCode, dataset: &str) -> Result<Option<Arc<Zygote>>> {
        if self.user_code.is_others(code, dataset) {
            return Ok(None);
        }
        let zygote = self.user_code.zygote(code, dataset)?;
        zygote.import(&code.prelude);
        Ok(Some(zygote))
    }

    /// The workers of user code, and the staging area that they fill.
    fn crew(
        self: &Arc<Self>,
        request: &Attach,
        user: &UserDataset,
        loaded: Loaded,
        (slots, seed): (u32, u64),
        flight: &Arc<Flight<Arc<Stream>>>,
    ) -> Result<(Maker, StagingPool, Option<Pin>)> {
        let form = self.form(request);
        let samples = loaded.samples;
        let shape = loaded.shape.clone();
        let pool_and_cache = || {
            flight.step("the memory of its batches is being reserved");
            let numbers = Numbers::of(request, seed, samples)?;
            let fields = shape.fields.iter().cloned();
            let fields: Vec<_> = fields.chain(naming_fields(numbers.are_ids())).collect();
            let layout = layout(&fields, slots, self.settings.staging_bytes)?;
            let pool =
                StagingPool::create_with(layout.clone(), |file| loaded.map(&layout, seed, file))?;
            let pin = self.user_cache(request, user, form, samples, &shape, seed, flight)?;
            Ok((pool, pin))
        };
        let (pool, pin) = match pool_and_cache() {
            Ok(both) => both,
            Err(e) => {
                loaded.discard();
                return Err(e);
            }
        };
        let cache = pin.as_ref().map(|pin| pin.cache().clone());
        let (prepared, kept) = match form {
            CacheForm::Prepared => (cache, None),
            _ => (None, cache),
        };
        let code = request.code.as_ref();
        let workers = match code.map_or(0, |c| c.workers) {
            _ if request.is_iterated() => 1,
            0 => self.workers.cpus(),
            asked => asked.min(MOST_CODE_WORKERS),
        };
        let patience = Duration::from_millis(code.map_or(0, |c| c.patience_ms));
        let crew = Crew::start(
            loaded,
            workers,
            patience,
            kept.clone(),
            self.settings.attribution,
        )?;
        let maker = Maker::Crew {
            crew,
            samples,
            fields: shape.fields,
            structure: shape.structure,
            prepared,
            kept,
            costs: self.costs.of(request.pipeline.fingerprint(), samples),
        };
        Ok((maker, pool, pin))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "all of them tell caches of one dataset apart"
    )]
    fn user_cache(
        self: &Arc<Self>,
        request: &Attach,
        user: &UserDataset,
        form: CacheForm,
        samples: u32,
        shape: &Shape,
        seed: u64,
        party: &Arc<Flight<Arc<Stream>>>,
    ) -> Result<Option<Pin>> {
        check_form(form, request.cache.bytes)?;
        if form == CacheForm::Off {
            return Ok(None);
        }
        let content = match form {
            CacheForm::Decoded | CacheForm::Auto => request.pipeline.decoded_fingerprint(),
            // With its random numbers, and its parts as they lie in a slot.
            _ => {
                let made = [
                    request.pipeline.fingerprint(),
                    seed.into(),
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
        let wanted = Wanted {
            key,
            samples,
            dataset_name: user.name.clone(),
            origin: None,
            bytes: request.cache.bytes,
            reduces: false,
        };
        let sample_bytes = match form {
            CacheForm::Prepared => shape.prepared_bytes(),
            _ => shape.kept,
        };
        // Of samples of any size the job may know more than a look at some of them tells.
        let at_least = request.cache.bytes.filter(|_| shape.is_uneven());
        let sizes = move || Sizes::by_sample(sample_bytes, samples).at_least(at_least.unwrap_or(0));
        self.find_or_open_cache(wanted, &**party, sizes).map(Some)
    }

    /// A stream whose makers came to their end is opened anew when its jobs come again.
    pub(super) fn tell_of_trouble(&self, stream: &Arc<Stream>) {
        let Some(crew) = stream.blueprint.maker.crew() else {
            return;
        };
        let key = stream.blueprint.key.pipeline;
        let ends = self.user_code.ends.clone();
        let stream = Arc::downgrade(stream);
        crew.on_trouble(move |trouble| {
            if let Some(stream) = stream.upgrade() {
                if let Trouble::Host(why) = &trouble {
                    ends.note(key, why, stream.has_delivered());
                }
                stream.break_off(&trouble);
            }
        });
    }
}

impl UserCodes {
    fn zygotes(&self) -> MutexGuard<'_, Vec<KnownZygote>> {
        self.zygotes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the process that forks the hosts of this code, or starts one.
    fn zygote(&self, code: &UserCode, dataset: &str) -> Result<Arc<Zygote>> {
        let key = zygote_key(code);
        let mut all = self.zygotes();
        all.retain(|known| known.zygote.strong_count() > 0);
        for known in all.iter_mut().filter(|known| known.key == key) {
            if let Some(zygote) = known.alive() {
                if !known.datasets.iter().any(|name| name == dataset) {
                    known.datasets.push(dataset.to_owned());
                }
                return Ok(zygote);
            }
        }
        let zygote = Zygote::start(code)?;
        all.push(KnownZygote {
            key,
            datasets: vec![dataset.to_owned()],
            zygote: Arc::downgrade(&zygote),
        });
        Ok(zygote)
    }

    /// Returns true if a process that another program started forks hosts for a dataset of this name.
    fn is_others(&self, code: &UserCode, dataset: &str) -> bool {
        let key = zygote_key(code);
        let all = self.zygotes();
        let mut others = all.iter().filter(|known| known.key != key);
        others.any(|known| known.alive().is_some() && known.datasets.iter().any(|d| d == dataset))
    }

    fn resting(&self) -> MutexGuard<'_, Vec<(u128, Resting)>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a process for the next job.
    pub(super) fn rest(&self, key: u128, resting: Resting) {
        let mut all = self.resting();
        all.push((key, resting));
        let surplus = all.len().saturating_sub(MOST_RESTING);
        let ended: Vec<_> = all.drain(..surplus).collect();
        // They are ended without the lock.
        drop(all);
        drop(ended);
    }

    /// Returns true if there is a process that has loaded this code and has nothing to do.
    pub(super) fn is_resting(&self, key: u128) -> bool {
        let all = self.resting();
        all.iter()
            .any(|(k, resting)| *k == key && resting.is_alive())
    }

    /// Takes a process that has loaded this code and has nothing to do.
    fn take_resting(&self, key: u128) -> Option<Resting> {
        let mut all = self.resting();
        let at = all
            .iter()
            .position(|(k, resting)| *k == key && resting.is_alive())?;
        Some(all.swap_remove(at).1)
    }

    /// Returns how long it takes until something has had nothing to do for long.
    pub(super) fn next_tidy(&self) -> Option<Duration> {
        let left = |(_, resting): &(u128, Resting)| REST.saturating_sub(resting.time());
        self.resting().iter().map(left).min()
    }

    /// Ends what has had nothing to do for long.
    pub(super) fn tidy(&self) {
        let is_old = |resting: &Resting| !resting.is_alive() || resting.time() >= REST;
        let ended: Vec<_> = self
            .resting()
            .extract_if(.., |(_, resting)| is_old(resting))
            .collect();
        drop(ended);
    }
}

/// What is to be run, if the job's own code makes the samples.
pub(super) fn runs_code(request: &Attach) -> Option<(&UserDataset, &UserCode)> {
    match &request.pipeline.source {
        Source::UserCode(user) if !user.in_job => Some((user, request.code.as_ref()?)),
        _ => None,
    }
}

/// Returns the samples that a job may be given, if these are not all.
fn job_ids(request: &Attach) -> Option<RoaringBitmap> {
    let weights = request.draws.as_ref().and_then(|d| d.weights.as_ref());
    if let Some(weights) = weights {
        let weighted = (0..).zip(weights).filter(|(_, weight)| **weight > 0.0);
        return Some(weighted.map(|(id, _)| id).collect());
    }
    let subset = request.subset.as_deref();
    subset.and_then(|bytes| RoaringBitmap::deserialize_from(bytes).ok())
}

/// Ids to look at: of the job's own set, and spread over it.
pub(super) fn probes(request: &Attach, samples: u32, split: bool) -> Vec<u32> {
    let set = job_ids(request);
    let len = set.as_ref().map_or(u64::from(samples), RoaringBitmap::len) as u32;
    let place = |n: u32| match &set {
        Some(set) => set.select(n),
        None => Some(n),
    };
    // With a split, the cache's size is estimated from some of them; else the first that succeeds is enough, and where
    // they are of no fixed size, a few of the others.
    let count = PROBES.min(len);
    let step = (len / PROBES).max(1);
    let in_a_row = if split { 0 } else { PROBES_IN_A_ROW };
    let place_of = |i: u32| if i < in_a_row { i } else { i * step };
    let mut places: Vec<u32> = (0..count).map(place_of).collect();
    if split {
        // However few are looked at: 0, 1/2, 1/4, 3/4, ... of the way.
        places.sort_by_key(|place| (place / step).reverse_bits());
    }
    let ids = places.into_iter().filter_map(place);
    ids.filter(|&id| id < samples).collect()
}

pub(super) fn ids_only(user: &UserDataset) -> Result<Maker> {
    let samples = user.samples.filter(|_| user.in_job).ok_or_else(|| {
        Error::Invalid(
            "a dataset whose samples the job makes itself must say how many it has".into(),
        )
    })?;
    Ok(Maker::Jobs { samples })
}

pub(super) fn check_user_form(form: CacheForm, user: &UserDataset) -> Result<()> {
    let why = match form {
        CacheForm::Encoded => {
            "a dataset of your own code has no encoded form: choose \"decoded\" with transform=, \"prepared\" or \"off\""
        }
        CacheForm::Decoded if !user.split => {
            "cache=\"decoded\" keeps what dataset[i] gives, before the random transform: pass that one as \
             transform= and leave it out of the dataset; or choose cache=\"prepared\" if nothing is random"
        }
        _ => return Ok(()),
    };
    Err(Error::Invalid(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_ends_over_and_over_is_not_started_again() {
        let ends = Ends::default();
        for _ in 0..MOST_ENDS {
            assert!(ends.check(1).is_ok());
            ends.note(1, "no descriptor is left", false);
        }
        assert!(ends.check(2).is_ok(), "the hosts of other code did not end");
        let refused = ends.check(1).map_err(|e| e.to_string());
        assert!(
            refused
                .is_err_and(|why| why.contains("4 times") && why.contains("no descriptor is left"))
        );
        assert!(ends.check(1).is_ok(), "whoever asks again is served");
    }

    #[test]
    fn a_host_that_was_of_use_is_started_again() {
        let ends = Ends::default();
        for of_use in [false, false, false, true, false] {
            ends.note(1, "it was killed", of_use);
        }
        assert!(ends.check(1).is_ok());
    }

    fn code(process: &str, mark: &str) -> UserCode {
        UserCode {
            command: vec!["/bin/cat".into()],
            directory: "/".into(),
            environment: vec![("MARK".into(), mark.into())],
            process: process.into(),
            ..UserCode::default()
        }
    }

    #[test]
    fn datasets_of_one_process_share_what_was_imported_in_the_same_environment() {
        let codes = UserCodes::default();
        let first = codes.zygote(&code("1", "a"), "train").unwrap();
        let same = codes.zygote(&code("1", "a"), "validate").unwrap();
        assert!(Arc::ptr_eq(&first, &same));
        for other in [code("2", "a"), code("1", "b")] {
            assert!(!Arc::ptr_eq(
                &first,
                &codes.zygote(&other, "train").unwrap()
            ));
        }
    }

    #[test]
    fn nothing_is_imported_early_for_a_dataset_that_another_process_serves() {
        let codes = UserCodes::default();
        let first = codes.zygote(&code("1", ""), "train").unwrap();
        drop(codes.zygote(&code("1", ""), "validate").unwrap());
        assert!(codes.is_others(&code("2", ""), "train"));
        assert!(codes.is_others(&code("2", ""), "validate"));
        assert!(!codes.is_others(&code("2", ""), "test"));
        assert!(!codes.is_others(&code("1", ""), "train"), "its own");
        drop(first);
        assert!(!codes.is_others(&code("2", ""), "train"), "it has ended");
    }
}
