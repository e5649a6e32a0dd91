//! What is open on this node: datasets, caches, streams.
//!
//! Opening is serialised by one mutex (`opening`), so that two jobs that start at the same moment find
//! each other; looking is not held up by it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use coprep_pipeline::{Dataset, Pipeline};
use coprep_protocol::message::{Attach, CacheForm, CacheRequest};
use coprep_protocol::spec::{Op, PipelineSpec, Source};

use crate::caches::{Cache, CacheKey, Opening, check_form};
use crate::prepare::Recipe;
use crate::stream::{Admission, Blueprint, Client, Seat, Stream, StreamKey};
use crate::workers::Workers;
use crate::{Result, Settings};

/// See the module.
pub(crate) struct Registry {
    pub(crate) settings: Settings,
    pub(crate) workers: Arc<Workers>,
    pub(crate) started: Instant,
    opening: Mutex<()>,
    open: Mutex<Open>,
    next_stream: AtomicU64,
    warmed: AtomicBool,
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
            s.blueprint
                .recipe
                .cache
                .as_ref()
                .is_some_and(|c| Arc::ptr_eq(c, cache))
        };
        self.open().streams.iter().filter(uses).count() as u32
    }

    /// Finds or opens the job's stream, and gives it a place there.
    pub(crate) fn attach(
        &self,
        request: &Attach,
        client: &Client,
    ) -> Result<(Arc<Stream>, Admission)> {
        let _one_at_a_time = self.opening();
        let stream = match self.find(request) {
            Some(stream) => stream,
            None => self.open_stream(request)?,
        };
        let admitted = stream.attach(request, client);
        if stream.is_empty() {
            self.close(&stream);
        }
        Ok((stream, admitted?))
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
        stream.close();
        self.open().streams.retain(|s| !Arc::ptr_eq(s, stream));
    }

    fn find(&self, request: &Attach) -> Option<Arc<Stream>> {
        let key = self.key(request);
        let fits = |s: &&Arc<Stream>| {
            s.blueprint.key == key && request.seed.is_none_or(|seed| seed == s.blueprint.seed)
        };
        self.open().streams.iter().find(fits).cloned()
    }

    fn key(&self, request: &Attach) -> StreamKey {
        let cache = self.form(&request.cache);
        StreamKey {
            pipeline: request.pipeline.fingerprint(),
            shuffle: request.shuffle,
            cache,
            lru: request.cache.lru && cache != CacheForm::Off,
        }
    }

    /// The form that a request comes to.
    fn form(&self, request: &CacheRequest) -> CacheForm {
        match request.form {
            Some(form) => form,
            None if request.bytes.is_none() && self.settings.cache_budget == 0 => CacheForm::Off,
            None => self.settings.cache_form,
        }
    }

    fn open_stream(&self, request: &Attach) -> Result<Arc<Stream>> {
        let key = self.key(request);
        let recipe = self.recipe(&request.pipeline, &request.cache)?;
        let blueprint = Blueprint {
            id: self.next_stream.fetch_add(1, Ordering::Relaxed),
            key,
            seed: request
                .seed
                .or(request.seed_hint)
                .unwrap_or_else(random_seed),
            dataset_name: source_name(&request.pipeline.source),
            pipeline_text: describe(&request.pipeline.ops),
            slots: request.batch_size.max(1),
            staging_bytes: self.settings.staging_bytes,
            recipe,
        };
        let stream = Stream::open(blueprint, self.workers.clone())?;
        self.open().streams.push(stream.clone());
        Ok(stream)
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
        let form = self.form(request);
        check_form(form, request.bytes)?;
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
        };
        if let Some(cache) = self.open().caches.iter().find(|c| c.key == key) {
            return Ok(cache.clone());
        }
        let opening = Opening {
            key,
            dataset,
            dataset_name: &source_name(&spec.source),
            pipeline,
            bytes: request.bytes,
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

fn source_name(source: &Source) -> String {
    match source {
        Source::ImageFolder { root } => root.clone(),
        Source::Files(list) => format!("{} files", list.paths.len()),
    }
}

fn describe(ops: &[Op]) -> String {
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
