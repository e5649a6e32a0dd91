//! What is open on this node: datasets, caches, streams.
//!
//! Opening is serialised by one mutex (`opening`), so that two jobs that start at the same moment find
//! each other; looking is not held up by it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coprep_cache::staging::StagingPool;
use coprep_pipeline::{Dataset, Pipeline};
use coprep_protocol::message::{Attach, CacheForm, CacheRequest, StreamStatus, UserCode};
use coprep_protocol::spec::{Op, Part, PipelineSpec, Source, UserDataset};

use roaring::RoaringBitmap;

use crate::caches::{Cache, CacheKey, Opening, check_form, wanted, wanted_by_size};
use crate::maker::Maker;
use crate::prepare::Recipe;
use crate::stream::{Admission, Blueprint, Client, Seat, Stream, StreamKey, layout};
use crate::user_code::{Crew, Loaded, Resting, Trouble};
use crate::workers::Workers;
use crate::{Error, Result, Settings};

/// See the module.
pub(crate) struct Registry {
    pub(crate) settings: Settings,
    pub(crate) workers: Arc<Workers>,
    pub(crate) started: Instant,
    opening: Mutex<()>,
    open: Mutex<Open>,
    next_stream: AtomicU64,
    warmed: AtomicBool,
    /// By identity: whoever loads user code does so alone, and holds up nobody else.
    loading: Mutex<HashMap<u128, Arc<Mutex<()>>>>,
    /// By identity: processes that have loaded user code, whose jobs have just left.
    resting: Mutex<Vec<(u128, Resting)>>,
    /// By identity: room that samples of user code were found to need.
    room: Arc<Mutex<HashMap<u128, u64>>>,
}

/// Answer to a job.
pub(crate) enum Answer {
    /// It has a place.
    Admitted(Arc<Stream>, Box<Admission>),
    /// Its code is needed.
    WantCode,
}

#[derive(Default)]
struct Open {
    streams: Vec<Arc<Stream>>,
    caches: Vec<Arc<Cache>>,
}

impl Registry {
    pub(crate) fn new(settings: Settings) -> Result<Self> {
        let workers = Arc::new(Workers::start(settings.workers)?);
        Ok(Registry {
            settings,
            workers,
            started: Instant::now(),
            opening: Mutex::new(()),
            open: Mutex::default(),
            next_stream: AtomicU64::new(1),
            warmed: AtomicBool::new(false),
            loading: Mutex::default(),
            resting: Mutex::default(),
            room: Arc::default(),
        })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opening(&self) -> MutexGuard<'_, ()> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        self.open().streams.clone()
    }

    pub(crate) fn caches(&self) -> Vec<Arc<Cache>> {
        self.open().caches.clone()
    }

    /// Streams that use a cache now.
    pub(crate) fn users(&self, cache: &Arc<Cache>) -> u32 {
        let uses = |s: &&Arc<Stream>| {
            let used = s.blueprint.maker.cache();
            used.is_some_and(|c| Arc::ptr_eq(c, cache))
        };
        self.open().streams.iter().filter(uses).count() as u32
    }

    /// Finds or opens the job's stream, and gives it a place there. `dataset`: what the job's code loads.
    pub(crate) fn attach(
        &self,
        request: &Attach,
        client: &Client,
        dataset: Option<&OwnedFd>,
    ) -> Result<Answer> {
        let turn = self.turn_to_load(request);
        let _loads_alone = turn
            .as_ref()
            .map(|t| t.lock().unwrap_or_else(PoisonError::into_inner));
        let loaded = match (runs_code(request), self.find(request)) {
            (Some((user, code)), None) => self.load(request, user, code, dataset)?,
            _ => None,
        };
        let _one_at_a_time = self.opening();
        let stream = match self.find(request) {
            Some(stream) => {
                loaded.into_iter().for_each(Loaded::discard);
                stream
            }
            None if runs_code(request).is_some() && loaded.is_none() => {
                return Ok(Answer::WantCode);
            }
            None => self.open_stream(request, loaded)?,
        };
        let admitted = stream.attach(request, client);
        if stream.is_empty() {
            self.close(&stream);
        }
        Ok(Answer::Admitted(stream, Box::new(admitted?)))
    }

    /// None: nothing is to be loaded.
    fn turn_to_load(&self, request: &Attach) -> Option<Arc<Mutex<()>>> {
        runs_code(request)?;
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody waits for.
        loading.retain(|_, turn| Arc::strong_count(turn) > 1);
        let turn = loading.entry(request.pipeline.fingerprint()).or_default();
        Some(turn.clone())
    }

    fn load(
        &self,
        request: &Attach,
        user: &UserDataset,
        code: &UserCode,
        dataset: Option<&OwnedFd>,
    ) -> Result<Option<Loaded>> {
        check_user_form(self.form(request), user)?;
        let probes = |samples: u32| probes(request, samples, user.split);
        let room = self.room().get(&request.pipeline.fingerprint()).copied();
        let (split, room) = (user.split, room.unwrap_or(0));
        let resting = self.take_resting(code_key(request));
        let loaded = match (resting, dataset) {
            (Some(resting), _) => Loaded::again(resting, code, probes, split, room)?,
            (None, Some(dataset)) => Loaded::load(code, dataset, probes, split, room)?,
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

    fn room(&self) -> MutexGuard<'_, HashMap<u128, u64>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A consumer left, however.
    pub(crate) fn detach(&self, stream: &Arc<Stream>, seat: Seat) {
        if !stream.detach(seat) {
            return;
        }
        let _one_at_a_time = self.opening();
        if stream.is_empty() {
            self.close(stream);
        }
    }

    fn close(&self, stream: &Arc<Stream>) {
        if let Some(resting) = stream.close() {
            let mut all = self.resting();
            all.push((stream.blueprint.code_key, resting));
            let surplus = all.len().saturating_sub(MOST_RESTING);
            all.drain(..surplus);
        }
        self.open().streams.retain(|s| !Arc::ptr_eq(s, stream));
    }

    fn resting(&self) -> MutexGuard<'_, Vec<(u128, Resting)>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what has had nothing to do for long.
    pub(crate) fn tidy(&self) {
        self.resting()
            .retain(|(_, resting)| resting.is_alive() && resting.time() < REST);
    }

    /// A process that has loaded this code and has nothing to do.
    fn take_resting(&self, key: u128) -> Option<Resting> {
        let mut all = self.resting();
        let at = all
            .iter()
            .position(|(k, resting)| *k == key && resting.is_alive())?;
        Some(all.swap_remove(at).1)
    }

    fn find(&self, request: &Attach) -> Option<Arc<Stream>> {
        let key = self.key(request);
        let fits = |s: &&Arc<Stream>| {
            !s.is_broken()
                && s.blueprint.key == key
                && request.seed.is_none_or(|seed| seed == s.blueprint.seed)
        };
        self.open().streams.iter().find(fits).cloned()
    }

    fn key(&self, request: &Attach) -> StreamKey {
        let cache = self.form(request);
        StreamKey {
            pipeline: request.pipeline.fingerprint(),
            shuffle: request.shuffle,
            cache,
            lru: request.cache.lru && cache != CacheForm::Off,
            reuse: request.cache.reuse,
        }
    }

    /// The form that a job's samples are cached in.
    fn form(&self, request: &Attach) -> CacheForm {
        let default = self.form_of(&request.cache);
        match &request.pipeline.source {
            Source::UserCode(_) if request.cache.reuse > 0 => CacheForm::Prepared,
            Source::UserCode(user) if request.cache.form.is_none() => match default {
                CacheForm::Off => CacheForm::Off,
                _ if user.split => CacheForm::Decoded,
                // What it makes may be random.
                _ => CacheForm::Off,
            },
            _ => default,
        }
    }

    /// The form that a request comes to.
    fn form_of(&self, request: &CacheRequest) -> CacheForm {
        match request.form {
            Some(form) => form,
            None if request.bytes.is_none() && self.settings.cache_budget == 0 => CacheForm::Off,
            None => self.settings.cache_form,
        }
    }

    fn open_stream(&self, request: &Attach, loaded: Option<Loaded>) -> Result<Arc<Stream>> {
        let slots = request.batch_size.max(1);
        let seed = request.seed.or(request.seed_hint);
        let seed = seed.unwrap_or_else(random_seed);
        let room = |fields: &[_]| layout(fields, slots, self.settings.staging_bytes);
        let (maker, pool, identity) = match (&request.pipeline.source, loaded) {
            (Source::UserCode(user), Some(loaded)) => {
                let (maker, pool) = self.crew(request, user, loaded, slots, seed)?;
                (maker, pool, Some(user.clone()))
            }
            (Source::UserCode(user), None) => {
                let maker = ids_only(user)?;
                let pool = StagingPool::create(room(&maker.fields())?)?;
                (maker, pool, Some(user.clone()))
            }
            _ => {
                let maker = Maker::Native(self.recipe(&request.pipeline, &request.cache)?);
                let pool = StagingPool::create(room(&maker.fields())?)?;
                (maker, pool, None)
            }
        };
        let blueprint = Blueprint {
            id: self.next_stream.fetch_add(1, Ordering::Relaxed),
            key: self.key(request),
            seed,
            dataset_name: source_name(&request.pipeline.source),
            pipeline_text: describe(&request.pipeline),
            maker,
            identity,
            code_key: code_key(request),
        };
        let stream = Stream::open(blueprint, pool, self.workers.clone())?;
        self.tell_of_trouble(&stream);
        self.open().streams.push(stream.clone());
        Ok(stream)
    }

    /// The workers of user code, and the staging area that they fill.
    fn crew(
        &self,
        request: &Attach,
        user: &UserDataset,
        loaded: Loaded,
        slots: u32,
        seed: u64,
    ) -> Result<(Maker, StagingPool)> {
        let form = self.form(request);
        let samples = loaded.samples;
        let shape = loaded.shape.clone();
        let pool_and_cache = || {
            let index = Maker::Jobs { samples }.fields().pop();
            let fields: Vec<_> = shape.fields.iter().cloned().chain(index).collect();
            let layout = layout(&fields, slots, self.settings.staging_bytes)?;
            let pool =
                StagingPool::create_with(layout.clone(), |file| loaded.map(&layout, seed, file))?;
            let sample_bytes = match form {
                CacheForm::Prepared => shape.fields.iter().map(|f| f.sample_bytes() as u64).sum(),
                _ => shape.kept,
            };
            let cache = self.user_cache(request, user, form, samples, sample_bytes, seed)?;
            Ok((pool, cache))
        };
        let (pool, cache) = match pool_and_cache() {
            Ok(both) => both,
            Err(e) => {
                loaded.discard();
                return Err(e);
            }
        };
        let (prepared, kept) = match form {
            CacheForm::Prepared => (cache, None),
            _ => (None, cache),
        };
        let code = request.code.as_ref();
        let workers = match code.map_or(0, |c| c.workers) {
            0 => self.workers.count() as u32,
            asked => asked.min(MOST_CODE_WORKERS),
        };
        let patience = Duration::from_millis(code.map_or(0, |c| c.patience_ms));
        let crew = Crew::start(loaded, workers, patience, kept.clone())?;
        let maker = Maker::Crew {
            crew,
            samples,
            fields: shape.fields,
            structure: shape.structure,
            prepared,
            kept,
        };
        Ok((maker, pool))
    }

    fn user_cache(
        &self,
        request: &Attach,
        user: &UserDataset,
        form: CacheForm,
        samples: u32,
        sample_bytes: u64,
        seed: u64,
    ) -> Result<Option<Arc<Cache>>> {
        check_form(form, request.cache.bytes)?;
        if form == CacheForm::Off {
            return Ok(None);
        }
        let content = match form {
            CacheForm::Decoded => request.pipeline.decoded_fingerprint(),
            // With its random numbers, and as it lies in a slot.
            _ => {
                let made = [
                    request.pipeline.fingerprint(),
                    seed.into(),
                    sample_bytes.into(),
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
        let wanted = || wanted_by_size(sample_bytes, samples);
        self.find_or_open_cache(key, samples, &user.name, request.cache.bytes, wanted)
            .map(Some)
    }

    /// A stream whose makers came to their end is opened anew when its jobs come again.
    fn tell_of_trouble(&self, stream: &Arc<Stream>) {
        let Some(crew) = stream.blueprint.maker.crew() else {
            return;
        };
        let (key, room) = (stream.blueprint.key.pipeline, self.room.clone());
        let stream = Arc::downgrade(stream);
        crew.on_trouble(move |trouble| {
            if let Trouble::TooLarge(bytes) = trouble {
                let mut room = room.lock().unwrap_or_else(PoisonError::into_inner);
                room.insert(key, bytes.saturating_mul(2));
            }
            if let Some(stream) = stream.upgrade() {
                stream.break_off(&trouble);
            }
        });
    }

    pub(crate) fn stream_status(&self) -> Vec<StreamStatus> {
        let streams = self.streams();
        let status = |s: &Arc<Stream>| StreamStatus {
            differs: streams
                .iter()
                .filter_map(|other| differs(s, other))
                .collect(),
            ..s.status()
        };
        streams.iter().map(status).collect()
    }

    /// Opens dataset, pipeline and cache for a warm-up; serialised with the jobs' openings.
    pub(crate) fn recipe_for_warming(
        &self,
        pipeline: &PipelineSpec,
        cache: &CacheRequest,
    ) -> Result<Recipe> {
        let _one_at_a_time = self.opening();
        self.recipe(pipeline, cache)
    }

    fn recipe(&self, spec: &PipelineSpec, request: &CacheRequest) -> Result<Recipe> {
        let form = self.form_of(request);
        check_form(form, request.bytes)?;
        if form == CacheForm::Prepared || request.reuse > 0 {
            return Err(Error::Invalid(
                "cache=\"prepared\" and reuse are for datasets of your own code: choose \"decoded\", \"encoded\" or \"off\"".into(),
            ));
        }
        let dataset = Arc::new(Dataset::open(&spec.source)?);
        let pipeline = Pipeline::compile(&spec.ops)?;
        if form == CacheForm::Off {
            return Ok(Recipe {
                dataset,
                pipeline: Arc::new(pipeline),
                cache: None,
            });
        }
        // Pixels must not depend on whether a sample found room in the cache.
        let pipeline = if form == CacheForm::Decoded {
            pipeline.exact()
        } else {
            pipeline
        };
        let cache = self.cache(spec, request, form, &dataset, &pipeline)?;
        Ok(Recipe {
            dataset,
            pipeline: Arc::new(pipeline),
            cache: Some(cache),
        })
    }

    fn cache(
        &self,
        spec: &PipelineSpec,
        request: &CacheRequest,
        form: CacheForm,
        dataset: &Dataset,
        pipeline: &Pipeline,
    ) -> Result<Arc<Cache>> {
        let key = CacheKey {
            content: content(spec, form, dataset),
            form,
            lru: request.lru,
            reuse: 0,
        };
        let wanted = || wanted(dataset, pipeline, form);
        let name = source_name(&spec.source);
        self.find_or_open_cache(key, dataset.len(), &name, request.bytes, wanted)
    }

    fn find_or_open_cache(
        &self,
        key: CacheKey,
        samples: u32,
        dataset_name: &str,
        bytes: Option<u64>,
        wanted: impl FnOnce() -> u64,
    ) -> Result<Arc<Cache>> {
        if let Some(cache) = self.open().caches.iter().find(|c| c.key == key) {
            return Ok(cache.clone());
        }
        let opening = Opening {
            key,
            samples,
            dataset_name,
            wanted: wanted(),
            bytes,
            budget_left: self.budget_left(),
            segment: self.settings.cache_name.as_deref(),
        };
        let cache = Arc::new(Cache::open(&opening)?);
        self.open().caches.push(cache.clone());
        Ok(cache)
    }

    /// From now on the coordinator stays for longer without connections.
    pub(crate) fn keep_warm(&self) {
        self.warmed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_warmed(&self) -> bool {
        self.warmed.load(Ordering::Relaxed)
    }

    fn budget_left(&self) -> u64 {
        let taken: u64 = self.open().caches.iter().map(|c| c.capacity()).sum();
        self.settings.cache_budget.saturating_sub(taken)
    }

    /// Frees the caches that no stream uses, of one dataset or of all; gives their bytes.
    pub(crate) fn drop_caches(&self, name: Option<&str>) -> u64 {
        let _one_at_a_time = self.opening();
        let unused = |c: &Arc<Cache>| self.users(c) == 0 && name.is_none_or(|n| c.belongs_to(n));
        let (gone, kept): (Vec<_>, Vec<_>) = self.caches().into_iter().partition(unused);
        if kept.is_empty() {
            self.warmed.store(false, Ordering::Relaxed);
        }
        self.open().caches = kept;
        gone.into_iter().map(Cache::discard).sum()
    }
}

/// Identity of what a cache holds: the list of samples, and for the decoded form what was done to them.
fn content(spec: &PipelineSpec, form: CacheForm, dataset: &Dataset) -> u128 {
    let done = if form == CacheForm::Decoded {
        spec.decoded_fingerprint()
    } else {
        spec.source.fingerprint()
    };
    let mut both = done.to_le_bytes().to_vec();
    both.extend(dataset.fingerprint().to_le_bytes());
    xxhash_rust::xxh3::xxh3_128(&both)
}

/// How long a process that has loaded user code is kept for the next job, and how many of them.
const REST: Duration = Duration::from_secs(60);
const MOST_RESTING: usize = 4;
/// Most workers of one stream's user code.
const MOST_CODE_WORKERS: u32 = 128;
/// Samples of which some are looked at to know what user code makes: more of them only where the first ones fail.
const PROBES: u32 = 64;

/// What is to be run, if the job's own code makes the samples.
fn runs_code(request: &Attach) -> Option<(&UserDataset, &UserCode)> {
    match &request.pipeline.source {
        Source::UserCode(user) if !user.in_job => Some((user, request.code.as_ref()?)),
        _ => None,
    }
}

/// What a process that has loaded user code is good for: the same code, run in the same way.
fn code_key(request: &Attach) -> u128 {
    let mut key = xxhash_rust::xxh3::Xxh3::new();
    key.update(&request.pipeline.fingerprint().to_le_bytes());
    let mut part = |bytes: &[u8]| {
        key.update(&(bytes.len() as u64).to_le_bytes());
        key.update(bytes);
    };
    if let Some(code) = &request.code {
        code.command.iter().for_each(|argument| part(argument));
        part(&code.directory);
        for (name, value) in &code.environment {
            part(name);
            part(value);
        }
    }
    key.digest128()
}

/// Ids to look at: of the job's own set, and spread over it.
fn probes(request: &Attach, samples: u32, split: bool) -> Vec<u32> {
    let set = request
        .subset
        .as_deref()
        .and_then(|bytes| RoaringBitmap::deserialize_from(bytes).ok());
    let len = set.as_ref().map_or(u64::from(samples), RoaringBitmap::len) as u32;
    let place = |n: u32| match &set {
        Some(set) => set.select(n),
        None => Some(n),
    };
    // With a split, the cache's size is estimated from some of them; else the first that succeeds is enough.
    let step = if split { (len / PROBES).max(1) } else { 1 };
    let ids = (0..PROBES.min(len)).filter_map(|i| place(i * step));
    ids.filter(|&id| id < samples).collect()
}

fn ids_only(user: &UserDataset) -> Result<Maker> {
    let samples = user.samples.filter(|_| user.in_job).ok_or_else(|| {
        Error::Invalid(
            "a dataset whose samples the job makes itself must say how many it has".into(),
        )
    })?;
    Ok(Maker::Jobs { samples })
}

fn check_user_form(form: CacheForm, user: &UserDataset) -> Result<()> {
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

/// In what a stream differs from another that looks like it.
fn differs(one: &Arc<Stream>, other: &Arc<Stream>) -> Option<String> {
    let (a, b) = (&one.blueprint, &other.blueprint);
    if a.id == b.id || a.dataset_name != b.dataset_name {
        return None;
    }
    let mut parts = Vec::new();
    if let (Some(a), Some(b)) = (&a.identity, &b.identity) {
        parts.extend(parts_that_differ(&a.dataset, &b.dataset));
        parts.extend(parts_that_differ(&a.rest, &b.rest));
        if a.in_job != b.in_job {
            parts.push("num_workers=0".into());
        }
    } else if a.pipeline_text != b.pipeline_text || a.key.pipeline != b.key.pipeline {
        parts.push("operators".into());
    }
    let others = [
        ("shuffle", a.key.shuffle != b.key.shuffle),
        (
            "cache",
            a.key.cache != b.key.cache || a.key.lru != b.key.lru,
        ),
        ("reuse", a.key.reuse != b.key.reuse),
    ];
    let others = others.iter().filter(|(_, differs)| *differs);
    parts.extend(others.map(|(name, _)| (*name).to_owned()));
    // Where something else differs, seeds that nobody named do too.
    if parts.is_empty() && a.seed != b.seed {
        parts.push("seed".into());
    }
    Some(format!("stream {}: {}", b.id, parts.join(", ")))
}

fn parts_that_differ(a: &[Part], b: &[Part]) -> Vec<String> {
    let of = |parts: &[Part]| -> std::collections::BTreeMap<String, u128> {
        parts.iter().map(|p| (p.name.clone(), p.hash)).collect()
    };
    let (a, b) = (of(a), of(b));
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing = names
        .into_iter()
        .filter(|name| a.get(*name) != b.get(*name));
    differing.cloned().collect()
}

fn source_name(source: &Source) -> String {
    match source {
        Source::ImageFolder { root } => root.clone(),
        Source::Files(list) => format!("{} files", list.paths.len()),
        Source::UserCode(user) => user.name.clone(),
    }
}

fn describe(spec: &PipelineSpec) -> String {
    match &spec.source {
        Source::UserCode(user) if user.in_job => "made by the jobs".into(),
        Source::UserCode(user) if user.split => "dataset[i] > transform".into(),
        Source::UserCode(_) => "dataset[i]".into(),
        _ => describe_operators(&spec.ops),
    }
}

fn describe_operators(ops: &[Op]) -> String {
    let name = |op: &Op| match op {
        Op::Decode { .. } => "decode".into(),
        Op::Resize { to, .. } => format!("resize({to:?})"),
        Op::CenterCrop { height, width } => format!("center_crop({height}, {width})"),
        Op::RandomResizedCrop { height, width, .. } => {
            format!("random_resized_crop({height}, {width})")
        }
        Op::RandomHorizontalFlip { p } => format!("random_horizontal_flip({p})"),
        Op::Normalize { .. } => "normalize".into(),
    };
    ops.iter().map(name).collect::<Vec<String>>().join(" > ")
}

/// A seed for a stream whose jobs did not name one.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher is keyed by the operating system's randomness.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish() >> 1
}
