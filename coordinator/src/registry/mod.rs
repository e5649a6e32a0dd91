//! What is open on this node: datasets, caches, streams.
//!
//! Opening is serialised by one mutex (`opening`), so that two jobs that start at the same moment find
//! each other; looking is not held up by it.

mod identity;
mod user_code;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use coprep_cache::allocator;
use coprep_cache::staging::StagingPool;
use coprep_pipeline::{Dataset, Pipeline, Throttle};
use coprep_protocol::message::{Attach, CacheForm, CacheRequest, StreamStatus};
use coprep_protocol::spec::{PipelineSpec, Source};

use crate::caches::{Cache, CacheKey, Opening, Sizes, check_form};
use crate::costs::AllCosts;
use crate::maker::Maker;
use crate::prepare::Recipe;
pub use crate::registry::identity::describe;
use crate::registry::identity::{code_key, content, differs, source_name, timed_alike};
use crate::registry::user_code::{UserCodes, ids_only, runs_code};
use crate::stream::{Admission, Blueprint, Client, Seat, Stream, StreamKey, layout};
use crate::user_code::Loaded;
use crate::workers::Workers;
use crate::{Error, Result, Settings};

/// See the module.
pub(crate) struct Registry {
    pub(crate) settings: Settings,
    pub(crate) workers: Arc<Workers>,
    /// What all datasets are read through.
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) started: Instant,
    opening: Mutex<()>,
    open: Mutex<Open>,
    next_stream: AtomicU64,
    warmed: AtomicBool,
    costs: AllCosts,
    user_code: UserCodes,
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
        let workers = Arc::new(Workers::start(settings.cpus, settings.attribution)?);
        Ok(Registry {
            costs: AllCosts::new(settings.costs),
            throttle: Arc::new(Throttle::new(settings.storage)),
            settings,
            workers,
            started: Instant::now(),
            opening: Mutex::new(()),
            open: Mutex::default(),
            next_stream: AtomicU64::new(1),
            warmed: AtomicBool::new(false),
            user_code: UserCodes::default(),
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
            (Some((user, code)), None) => {
                self.load(request, user, code, dataset, || !client.outbox.is_gone())?
            }
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
        let admitted = catch_unwind(AssertUnwindSafe(|| stream.attach(request, client)));
        if stream.is_empty() {
            self.close(&stream);
        }
        let admitted = admitted.unwrap_or_else(|panic| resume_unwind(panic));
        Ok(Answer::Admitted(stream, Box::new(admitted?)))
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
        if stream.is_closed() {
            return;
        }
        if let Some(resting) = stream.close() {
            self.user_code.rest(stream.blueprint.code_key, resting);
        }
        let mut open = self.open();
        open.streams.retain(|s| !Arc::ptr_eq(s, stream));
        let is_idle = open.streams.is_empty();
        drop(open);
        if is_idle {
            allocator::give_back();
        }
        tell_of(stream, "a stream is closed");
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
            relaxed: request.relaxed,
            reuse: request.cache.reuse,
        }
    }

    /// The form that a job's samples are cached in.
    fn form(&self, request: &Attach) -> CacheForm {
        let default = self.form_of(&request.cache);
        match &request.pipeline.source {
            Source::UserCode(_) if request.cache.reuse > 0 => CacheForm::Prepared,
            Source::UserCode(user)
                if default == CacheForm::Auto || request.cache.form.is_none() =>
            {
                match default {
                    CacheForm::Off => CacheForm::Off,
                    CacheForm::Auto if user.split => CacheForm::Auto,
                    _ if user.split => CacheForm::Decoded,
                    // What it makes may be random.
                    _ => CacheForm::Off,
                }
            }
            _ => default,
        }
    }

    /// The form that a request comes to.
    fn form_of(&self, request: &CacheRequest) -> CacheForm {
        match request.form {
            // What is evicted has no lasting price.
            Some(CacheForm::Auto) | None if request.lru => CacheForm::Decoded,
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
            spec: identity.is_none().then(|| request.pipeline.clone()),
            is_replayed: self.settings.replay,
            identity,
            code_key: code_key(request),
        };
        let stream = Stream::open(blueprint, pool, self.workers.clone())?;
        tell_of(&stream, "a stream is opened");
        self.tell_of_trouble(&stream);
        self.open().streams.push(stream.clone());
        Ok(stream)
    }

    /// Ends what has had nothing to do for long.
    ///
    /// # Errors
    /// When the workers cannot go on.
    pub(crate) fn tidy(&self) -> Result<()> {
        self.user_code.tidy();
        self.close_broken();
        self.workers.tidy()
    }

    /// Closes streams that were broken off, and that no session is left to close: it panicked as it left.
    fn close_broken(&self) {
        let _one_at_a_time = match self.opening.try_lock() {
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(lock)) => lock.into_inner(),
            // The next time.
            Err(TryLockError::WouldBlock) => return,
        };
        let streams = self.streams();
        let left = streams.iter().filter(|s| s.is_broken() && s.is_empty());
        left.for_each(|stream| self.close(stream));
    }

    /// With so many samples of each stream, those that cost most.
    pub(crate) fn stream_status(&self, slow: u32) -> Vec<StreamStatus> {
        let streams = self.streams();
        let status = |s: &Arc<Stream>| StreamStatus {
            differs: streams
                .iter()
                .filter_map(|other| differs(s, other))
                .collect(),
            ..s.status(slow)
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
        let dataset = Arc::new(Dataset::open(&spec.source)?.slowed(self.throttle.clone()));
        let pipeline = Pipeline::compile(&spec.ops)?;
        let cache = match form {
            CacheForm::Off => None,
            form => Some(self.cache(spec, request, form, &dataset, &pipeline)?),
        };
        // Pixels must not depend on whether a sample found room in the cache.
        let is_exact = cache.as_ref().is_some_and(|cache| cache.keeps_decoded());
        let pipeline = if is_exact { pipeline.exact() } else { pipeline };
        let costs = self
            .costs
            .of(timed_alike(spec, &dataset, is_exact), dataset.len());
        Ok(Recipe {
            dataset,
            pipeline: Arc::new(pipeline),
            cache,
            costs,
            price: self.workers.price(),
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
        let sizes = || Sizes::of(dataset, pipeline, form);
        let name = source_name(&spec.source);
        let reduces = pipeline.reduces();
        self.find_or_open_cache(key, dataset.len(), &name, request.bytes, reduces, sizes)
    }

    fn find_or_open_cache(
        &self,
        key: CacheKey,
        samples: u32,
        dataset_name: &str,
        bytes: Option<u64>,
        reduces: bool,
        sizes: impl FnOnce() -> Sizes,
    ) -> Result<Arc<Cache>> {
        if let Some(cache) = self.open().caches.iter().find(|c| c.key == key) {
            return Ok(cache.clone());
        }
        let opening = Opening {
            key,
            samples,
            dataset_name,
            sizes: sizes(),
            bytes,
            budget_left: self.budget_left(),
            segment: self.settings.cache_name.as_deref(),
            reduces,
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

fn tell_of(stream: &Stream, what: &str) {
    let Blueprint {
        id, dataset_name, ..
    } = &stream.blueprint;
    tracing::info!(stream = id, dataset = dataset_name, "{what}");
}

/// A seed for a stream whose jobs did not name one.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher is keyed by the operating system's randomness.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish() >> 1
}
