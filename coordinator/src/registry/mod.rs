//! The open datasets, caches and streams of this node.
//!
//! Slow operations (listing a folder, loading user code, reserving memory) run in [`flights`], one for each stream,
//! cache and folder. Two jobs that start at the same moment find each other, and nobody else waits.
//!
//! **Locks.** `open` is held only briefly, never over I/O. These locks may be taken within it: the state of a flight,
//! and the locks with which a cache counts its bytes. A stream's
//! engine is locked outside of it. A stream is closed, and admits jobs, under its engine's lock. So a job is either in
//! a stream when that might be closed, or finds it closed and looks again.

mod credentials;
mod dataset_caches;
mod datasets;
mod departures;
mod flights;
mod identity;
mod job_stores;
mod meeting;
mod shadow_samples;
pub(crate) mod status;
mod user_code;
mod waiting_client;
pub(crate) mod warm;
mod warmth;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use coprep_pipeline::{Dataset, Pipeline};
use coprep_protocol::message::{Attach, CacheForm, CacheRequest, StreamStatus};
use coprep_protocol::spec::{IdentityPart, PipelineSpec, Source, WorkingDirectory};
use coprep_shared_memory::allocator;
use coprep_shared_memory::lock::lock;
use coprep_shared_memory::staging::StagingPool;
use coprep_storage::{ReadThrottle, Stores};

use crate::caches::{
    CacheKey, DatasetCache, DatasetDisk, DiskCandidate, DiskTier, Pin, check_form,
};
use crate::connection::reply_queue::ReplyQueue;
use crate::device::Uploaders;
use crate::error::{defect, from_lower, invalid, os};
use crate::observe::costs::AllCosts;
use crate::produce::native::{BlockReads, Recipe};
use crate::produce::processes::GivenServer;
use crate::produce::producer::Producer;
use crate::produce::threads::ThreadPool;
pub(crate) use crate::registry::credentials::GivenByClient;
use crate::registry::credentials::Providers;
use crate::registry::dataset_caches::GaveWay;
use crate::registry::datasets::ListingKey;
use crate::registry::departures::Departures;
use crate::registry::flights::{Flight, FlightOutcome, FlightParty, Flights, Waiter};
pub use crate::registry::identity::describe;
use crate::registry::identity::{content, differs, preparation, reads_of, source_name, unshared};
use crate::registry::job_stores::AllStores;
pub(crate) use crate::registry::job_stores::JobStores;
pub(crate) use crate::registry::meeting::MeetingParty;
use crate::registry::meeting::Meetings;
pub(crate) use crate::registry::shadow_samples::Shadow;
use crate::registry::shadow_samples::Shadows;
use crate::registry::user_code::{Ends, ids_only, runs_code};
pub(crate) use crate::registry::waiting_client::WaitingClient;
use crate::registry::warmth::names_no_form;
use crate::stream::{
    Client, Numbers, RankId, Registration, Stream, StreamConfig, StreamKey, cohort_key,
    fingerprint, layout, slots,
};
use crate::{Result, Settings};

/// Bytes that were read when tar shards were opened, and that wait in memory until a job uses them.
const EARLY_READS: u64 = 256 << 20;

/// The datasets, caches and streams that are open on this node.
pub(crate) struct Registry {
    pub(crate) settings: Settings,
    pub(crate) workers: Arc<ThreadPool>,
    /// Throttle that all datasets are read through.
    pub(crate) throttle: Arc<ReadThrottle>,
    /// The remote stores that datasets are read from, for each job's variables.
    pub(crate) stores: AllStores,
    /// The jobs that give the credentials of their stores.
    providers: Providers,
    /// The local disk that holds samples below the caches in memory.
    pub(crate) disk: Option<DiskTier>,
    pub(crate) started: Instant,
    open: Mutex<Open>,
    next_stream: AtomicU64,
    costs: AllCosts,
    /// Ends of fork servers of user code.
    ends: Arc<Ends>,
    departures: Departures,
    shadows: Shadows,
    /// Whether a working directory counts, by the identity of the pipeline and the hash of the directory.
    directories: Mutex<HashMap<(u128, u128), bool>>,
    pub(crate) uploaders: Uploaders,
}

/// Answer to a job that attaches.
pub(crate) enum Answer {
    /// The job is registered with this stream.
    Admitted(Arc<Stream>, Box<Registration>),
    /// No process runs the code of the job's dataset, so the job must start a fork server.
    WantServer,
}

/// The tables of open things, and of things that are being opened or freed. One lock guards them, and is held only
/// briefly.
#[derive(Default)]
struct Open {
    streams: Vec<Arc<Stream>>,
    caches: Vec<Arc<DatasetCache>>,
    /// The streams in which ranks meet.
    meetings: Meetings,
    opening_streams: Flights<StreamKey, Arc<Stream>>,
    opening_caches: Flights<CacheKey, Arc<DatasetCache>>,
    /// Listings of folders and stores.
    listing: Flights<ListingKey, Arc<Dataset>>,
    /// Bytes of caches that are being opened or freed. They count towards the budget.
    reserved: Vec<(CacheKey, u64)>,
    given_way: GaveWay,
}

/// Result of the search for a job's stream.
enum Found {
    Stream(Arc<Stream>),
    Opening(Waiter<Arc<Stream>>),
    WantServer,
}

impl Registry {
    pub(crate) fn new(settings: Settings) -> Result<Self> {
        let disk = settings.disk.as_ref().map(DiskTier::start).transpose()?;
        let workers = Arc::new(ThreadPool::start(settings.cpus, settings.attribution)?);
        Ok(Registry {
            costs: AllCosts::new(settings.costs),
            throttle: Arc::new(ReadThrottle::new(settings.storage)),
            stores: AllStores::new(
                &Stores::new(settings.storage_patience).with_early_reads(EARLY_READS),
            ),
            providers: Providers::default(),
            settings,
            workers,
            disk,
            started: Instant::now(),
            open: Mutex::default(),
            next_stream: AtomicU64::new(1),
            ends: Arc::default(),
            departures: Departures::default(),
            shadows: Shadows::default(),
            directories: Mutex::default(),
            uploaders: Uploaders::default(),
        })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }

    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        self.open().streams.clone()
    }

    pub(crate) fn caches(&self) -> Vec<Arc<DatasetCache>> {
        self.open().caches.clone()
    }

    /// Returns the number of streams that use a cache now.
    pub(crate) fn users(&self, cache: &Arc<DatasetCache>) -> u32 {
        self.open().users(cache)
    }

    /// Makes the working directory of a job a part of its identity, if it was one for the first job of that directory.
    pub(crate) fn count_directory(&self, request: &mut Attach) {
        let pipeline = request.pipeline.fingerprint();
        if let Source::UserCode(user) = &mut request.pipeline.source {
            let WorkingDirectory { hash, is_used } = user.directory;
            let mut directories = lock(&self.directories);
            if *directories.entry((pipeline, hash)).or_insert(is_used) {
                user.dataset.push(IdentityPart {
                    name: "working directory".into(),
                    hash,
                    value: String::new(),
                    why: "a relative path leads to something there".into(),
                });
            }
        }
    }

    /// Finds or opens the job's stream, and registers the job there. `server` is a fork server that the job has started.
    pub(crate) fn attach(
        self: &Arc<Self>,
        request: &Arc<Attach>,
        client: &Client,
        mut server: Option<GivenServer>,
    ) -> Result<Answer> {
        // The stores are held until the job is in a stream, so that they keep their number.
        let source = &request.pipeline.source;
        let stores = self.stores_of(&request.store_variables, request.provider, source)?;
        let (key, waiting) = (self.key(request, &stores), WaitingClient::new(client));
        let mut is_compared = false;
        // A stream that was found may be closed before the job is in it, so the search goes on until one admits the
        // job.
        loop {
            let found = self.find_or_open(key, request, &stores, &mut server);
            let (stream, is_expected) = match found {
                Found::Stream(stream) => (stream, false),
                Found::WantServer => return Ok(Answer::WantServer),
                Found::Opening(waiter) => match wait_for(waiter, &waiting)? {
                    Some(stream) => (stream, true),
                    None => continue,
                },
            };
            if !is_compared && let Some(shadow) = self.shadow_of(&stream, request, client) {
                is_compared = true;
                let given = server.take();
                if given.is_none_or(|given| !shadow.lets_join(self, client, given)) {
                    if is_expected {
                        stream.has_come();
                    }
                    self.close_if_empty(&stream);
                    return Ok(Answer::WantServer);
                }
            }
            let found = stream;
            let stream = self.meet(&key, request, &found);
            if let Some(cache) = stream.config.producer.cache() {
                self.begin_looks(cache, &request.cache);
            }
            // The stream may have been opened at the same moment for a job with another seed, say. Then this job looks
            // again.
            let attach = || {
                if serves(&stream, &key, request) {
                    let known = self.departed(request);
                    stream.attach(request, &known, client)
                } else {
                    Ok(None)
                }
            };
            // A panic goes on only after the job was counted. Otherwise the stream would expect it, and stay open, for
            // ever.
            let admitted = catch_unwind(AssertUnwindSafe(attach));
            // Counted before `close_if_empty`, which spares a stream that still expects a job.
            if is_expected {
                found.has_come();
            }
            let is_admitted = matches!(admitted, Ok(Ok(Some(_))));
            // The job uses another stream or none, and may have been the only one that this stream was opened for.
            if !is_admitted || !Arc::ptr_eq(&found, &stream) {
                self.close_if_empty(&found);
            }
            let admitted = admitted.unwrap_or_else(|panic| resume_unwind(panic));
            if let Some(mut registration) = admitted? {
                // Ranks may have left after the job had asked, and before the stream knew its token.
                for departure in self.departed(request) {
                    if let Err(e) = stream.depart(&departure) {
                        tracing::warn!(error = %e, "a rank that has left described its departure wrongly");
                    }
                }
                registration.attached.unshared = unshared(&stream, client.pid, &self.streams());
                for why in &registration.attached.unshared {
                    tracing::info!(stream = stream.config.id, "{why}");
                }
                registration.attached.notes = self.notes(&stream);
                for note in &registration.attached.notes {
                    tracing::warn!(stream = stream.config.id, "{note}");
                }
                registration.attached.left_out = left_out(&stream);
                return Ok(Answer::Admitted(stream, Box::new(registration)));
            }
        }
    }

    /// Compares cached samples with their files before a job or a warm-up that starts now uses them, unless it or the
    /// operator waives that.
    fn begin_looks(&self, cache: &DatasetCache, request: &CacheRequest) {
        if request.check_files && self.settings.check_files {
            cache.begin_looks();
        }
    }

    /// Ends the fork server that was forked from a job. Called when the job leaves, however it does.
    pub(crate) fn end_server_of(&self, job: &Arc<ReplyQueue>) {
        for stream in self.streams() {
            stream.end_server_of(job);
        }
    }

    /// Removes a consumer, however it left.
    pub(crate) fn detach(&self, stream: &Arc<Stream>, rank_id: RankId) {
        if stream.detach(rank_id) {
            self.close_if_empty(stream);
        }
    }

    fn close_if_empty(&self, stream: &Arc<Stream>) {
        if !stream.close_if_empty() {
            return;
        }
        stream.end();
        if let Some(cache) = stream.config.producer.cache() {
            cache.note_use();
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

    /// Looks for the stream that a job belongs to, and begins to open it if there is none.
    fn find_or_open(
        self: &Arc<Self>,
        key: StreamKey,
        request: &Arc<Attach>,
        stores: &Arc<JobStores>,
        server: &mut Option<GivenServer>,
    ) -> Found {
        let mut open = self.open();
        if let Some(stream) = open.stream(&key, request) {
            return Found::Stream(stream);
        }
        if let Some(waiter) = open.opening_streams.join(&key) {
            return Found::Opening(waiter);
        }
        // A job that finds an open stream need not start a fork server.
        if runs_code(request).is_some() && server.is_none() {
            return Found::WantServer;
        }
        let name = source_name(&request.pipeline.source);
        let step = format!("the dataset {name} is being opened");
        let (flight, waiter) = open.opening_streams.begin(key, step);
        drop(open);
        let (request, stores, server) = (request.clone(), stores.clone(), server.take());
        let open_it = move |registry: &Arc<Registry>, flight: &Arc<Flight<Arc<Stream>>>| {
            registry.open_stream(&request, &stores, server, flight)
        };
        self.fly(flight, open_it, Registry::land_stream);
        Found::Opening(waiter)
    }

    fn land_stream(&self, flight: &Arc<Flight<Arc<Stream>>>, outcome: FlightOutcome<Arc<Stream>>) {
        let opened = match &outcome {
            FlightOutcome::Done(stream) => Some(stream.clone()),
            _ => None,
        };
        let mut open = self.open();
        open.opening_streams.remove(flight);
        open.streams.extend(opened.clone());
        // Every job that waited for the stream will attach, or find that its client has left. Until then it stays open.
        flight.land(outcome, |waiters| {
            if let Some(stream) = &opened {
                stream.expect(waiters);
            }
        });
        drop(open);
        // All jobs that waited for the stream may have left.
        if let Some(stream) = opened {
            self.close_if_empty(&stream);
        }
    }

    /// Runs a flight in a thread of its own, and lands it. Its pin is held until then.
    fn fly<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        flight: Arc<Flight<T>>,
        work: impl FnOnce(&Arc<Registry>, &Arc<Flight<T>>) -> Result<Option<(T, Option<Pin>)>>
        + Send
        + 'static,
        land: fn(&Registry, &Arc<Flight<T>>, FlightOutcome<T>),
    ) {
        let (registry, span, flying) = (self.clone(), tracing::Span::current(), flight.clone());
        let run = move || {
            // The flight's log lines name the job for which it was begun.
            let _span = span.entered();
            let done = catch_unwind(AssertUnwindSafe(|| work(&registry, &flying)));
            let done = done.unwrap_or_else(|_| Err(defect("the dataset cannot be opened")));
            let (outcome, _pin) = match done {
                Ok(Some((result, pin))) => (FlightOutcome::Done(result), pin),
                Ok(None) => (FlightOutcome::Nothing, None),
                Err(e) => (FlightOutcome::Failed(e), None),
            };
            land(&registry, &flying, outcome);
        };
        let thread = std::thread::Builder::new().name("open".into());
        // The closure is gone with the error, so nobody else lands the flight, and its waiters would wait in vain.
        if let Err(e) = thread.spawn(run) {
            let error = os("cannot start a thread", e);
            land(self, &flight, FlightOutcome::Failed(error));
        }
    }

    fn key(&self, request: &Attach, stores: &JobStores) -> StreamKey {
        let cache = self.form(request);
        StreamKey {
            pipeline: request.pipeline.fingerprint(),
            stores: stores.number(),
            shuffle: request.shuffle,
            shuffle_window: request.shuffle_window,
            cache,
            lru: request.cache.lru && cache != CacheForm::Off,
            relaxed: request.relaxed,
            reuse: request.cache.reuse,
            draws: fingerprint(request.draws.as_ref()),
            told: cohort_key(request),
        }
    }

    /// Returns the form that a job's samples are cached in.
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
                    // The samples that this code makes may be random, and a cache would repeat them.
                    _ => CacheForm::Off,
                }
            }
            _ => default,
        }
    }

    /// Returns the form of the cache that a request resolves to.
    fn form_of(&self, request: &CacheRequest) -> CacheForm {
        match request.form {
            // The automatic choice goes by the lasting price of a sample, and a sample that may be evicted has none.
            Some(CacheForm::Auto) | None if request.lru => CacheForm::Decoded,
            Some(form) => form,
            // Without a budget, and without a size that the job asks for, no byte could be reserved.
            None if request.bytes.is_none() && self.settings.cache_budget == 0 => CacheForm::Off,
            None => self.settings.cache_form,
        }
    }

    /// Opens a stream: lists its dataset or takes over its fork server, and reserves its cache and its staging area.
    /// Returns `None` if another fork server is needed.
    fn open_stream(
        self: &Arc<Self>,
        request: &Attach,
        stores: &Arc<JobStores>,
        server: Option<GivenServer>,
        flight: &Arc<Flight<Arc<Stream>>>,
    ) -> Result<Option<(Arc<Stream>, Option<Pin>)>> {
        check_use(request)?;
        // `seed_hint` is the seed that the job had before its coordinator ended. It keeps the order of its samples.
        let seed = request.seed.or(request.seed_hint);
        let seed = seed.unwrap_or_else(random_seed);
        let reserve = |producer: &Producer| {
            flight.step("the memory of its batches is being reserved");
            let numbers = Numbers::of(request, seed, producer.samples())?;
            let epoch = Numbers::of_epoch(request, producer.samples());
            let layout = layout(
                &producer.fields(numbers.are_ids()),
                slots(request.batch_size, epoch),
                epoch,
                self.settings.staging_bytes,
            )?;
            StagingPool::create(layout).map_err(from_lower)
        };
        let (producer, pool, identity, pin) = match (&request.pipeline.source, runs_code(request)) {
            (Source::UserCode(user), Some((_, code))) => {
                let opened = self.open_code(request, user, code, server, seed, flight)?;
                let Some((producer, pool, pin)) = opened else {
                    return Ok(None);
                };
                (producer, pool, Some(user.clone()), pin)
            }
            (Source::UserCode(user), None) => {
                let producer = ids_only(user)?;
                let pool = reserve(&producer)?;
                (producer, pool, Some(user.clone()), None)
            }
            _ => {
                let blocks = |dataset: &Dataset| blocks_of(request, dataset);
                let (recipe, pin) =
                    self.recipe(&request.pipeline, &request.cache, stores, blocks, &**flight)?;
                let producer = Producer::Native(recipe);
                let pool = reserve(&producer)?;
                (producer, pool, None, pin)
            }
        };
        let numbers = Numbers::of(request, seed, producer.samples())?;
        let windows = match &producer {
            Producer::Native(recipe) => recipe.blocks.as_ref().and_then(BlockReads::windows),
            _ => None,
        };
        let config = StreamConfig {
            windows,
            numbers,
            id: self.next_stream.fetch_add(1, Ordering::Relaxed),
            key: self.key_of_new_stream(request, stores, &producer),
            takes_any_form: names_no_form(request),
            seed,
            dataset_name: source_name(&request.pipeline.source),
            pipeline_text: describe(&request.pipeline),
            producer,
            spec: identity.is_none().then(|| request.pipeline.clone()),
            is_replayed: self.settings.replay,
            identity,
        };
        let stream = Stream::open(config, pool, self.workers.clone())?;
        tell_of(&stream, "a stream is opened");
        self.tell_of_trouble(&stream);
        Ok(Some((stream, pin)))
    }

    /// Closes broken streams that nobody else closes, and rebalances the pool of threads. Must be called now and then.
    ///
    /// # Errors
    /// When the pool of threads cannot go on, because one of them has panicked outside of a task.
    pub(crate) fn maintain(&self) -> Result<()> {
        self.close_broken();
        self.workers.maintain()
    }

    /// Closes broken streams that no session is left to close, because the session panicked as it left.
    fn close_broken(&self) {
        let streams = self.streams();
        let broken = streams.iter().filter(|stream| stream.is_broken());
        broken.for_each(|stream| self.close_if_empty(stream));
    }

    /// Returns the status of all streams, each with its `slow` most expensive samples.
    pub(crate) fn stream_status(&self, slow: u32) -> Vec<StreamStatus> {
        let streams = self.streams();
        let status = |s: &Arc<Stream>| {
            let mut status = s.status(slow);
            let others = streams.iter();
            status.differs = others.filter_map(|other| differs(s, other)).collect();
            status.notes.extend(self.notes(s));
            status.notes.extend(left_out(s));
            status
        };
        streams.iter().map(status).collect()
    }

    /// Opens dataset, pipeline and cache. The cache is not dropped as long as the pin is held.
    pub(crate) fn recipe(
        self: &Arc<Self>,
        spec: &PipelineSpec,
        request: &CacheRequest,
        stores: &Arc<JobStores>,
        blocks: impl FnOnce(&Dataset) -> Result<Option<BlockReads>>,
        party: &dyn FlightParty,
    ) -> Result<(Arc<Recipe>, Option<Pin>)> {
        let form = self.form_of(request);
        check_form(form, request.bytes)?;
        if form == CacheForm::Prepared || request.reuse > 0 {
            return Err(
                invalid("cache=\"prepared\" and reuse are for datasets of your own code")
                    .with_remedy("choose \"decoded\", \"encoded\" or \"off\""),
            );
        }
        // A mistake is reported before a store is listed, which may take long.
        Pipeline::check(&spec.ops).map_err(from_lower)?;
        let dataset = self.dataset(&spec.source, stores, party)?;
        let pipeline = Pipeline::for_dataset(&spec.ops, &dataset).map_err(from_lower)?;
        let pipeline = Arc::new(pipeline);
        let form = self
            .warmed_form(spec, request, form, &dataset)
            .unwrap_or(form);
        let pin = match form {
            CacheForm::Off => None,
            form => Some(self.cache(spec, request, form, &dataset, &pipeline, party)?),
        };
        let cache = pin.as_ref().map(|pin| pin.cache().clone());
        // Pixels must not depend on whether a sample found room in the cache.
        let is_exact = cache.as_ref().is_some_and(|cache| cache.keeps_decoded());
        let pipeline = if is_exact {
            Arc::new(pipeline.exact())
        } else {
            pipeline
        };
        let identity = preparation(spec, &dataset, is_exact);
        let costs = self.costs.of(identity, dataset.len());
        let (disk, disk_note) = self.disk_of(spec, &dataset, &pipeline);
        let recipe = Recipe {
            identity,
            read_from: reads_of(&dataset, stores),
            _stores: stores.stores.clone(),
            blocks: blocks(&dataset)?,
            dataset,
            pipeline,
            cache,
            disk,
            disk_note,
            costs,
            fetch_weight: self.workers.fetch_weight(),
        };
        Ok((Arc::new(recipe), pin))
    }
}

impl Registry {
    /// Opens the samples of a dataset on the local disk. A disk that cannot be used is told to the jobs, which go on
    /// without it.
    fn disk_of(
        &self,
        spec: &PipelineSpec,
        dataset: &Dataset,
        pipeline: &Pipeline,
    ) -> (Option<Arc<DatasetDisk>>, Option<String>) {
        let Some(tier) = &self.disk else {
            return (None, None);
        };
        let opened = tier.open(&DiskCandidate {
            fingerprint: content(spec, CacheForm::Encoded, dataset),
            name: &source_name(&spec.source),
            dataset,
            pipeline,
        });
        match opened {
            Ok(disk) => (disk, None),
            Err(e) => (
                None,
                Some(format!("samples are not kept on the local disk: {e}")),
            ),
        }
    }
}

impl Open {
    fn stream(&self, key: &StreamKey, request: &Attach) -> Option<Arc<Stream>> {
        let fitting = self.streams.iter().filter(|s| serves(s, key, request));
        fitting.max_by_key(|s| s.config.takes_any_form).cloned()
    }

    /// Returns the number of streams that use a cache now.
    fn users(&self, cache: &Arc<DatasetCache>) -> u32 {
        let uses = |s: &&Arc<Stream>| {
            let used = s.config.producer.cache();
            used.is_some_and(|c| Arc::ptr_eq(c, cache))
        };
        self.streams.iter().filter(uses).count() as u32
    }
}

/// Returns `true` if a job can take part in a stream. `key` is the job's key.
fn serves(stream: &Stream, key: &StreamKey, request: &Attach) -> bool {
    let config = &stream.config;
    // A job that names no form takes that of the jobs before it, whichever cache was warm when those came.
    let takes_its_form = config.takes_any_form && names_no_form(request);
    let cache = if takes_its_form {
        config.key.cache
    } else {
        key.cache
    };
    !stream.is_broken()
        && !stream.is_closed()
        && config.key == StreamKey { cache, ..*key }
        && request.seed.is_none_or(|seed| seed == config.seed)
}

/// Waits for a flight. Returns `None` if the caller must look again: the flight ended without a result, or failed in a
/// way that does not predict the result of this party's own attempt.
fn wait_for<T: Clone>(waiter: Waiter<T>, party: &dyn FlightParty) -> Result<Option<T>> {
    let is_first = waiter.is_first;
    match waiter.wait(party)? {
        FlightOutcome::Done(result) => Ok(Some(result)),
        FlightOutcome::Failed(e) if is_first || e.kind().is_everybodys() => Err(e),
        FlightOutcome::Failed(_) | FlightOutcome::Nothing => Ok(None),
    }
}

/// Returns the blocks that a job's samples are read in, if it draws from windows.
fn blocks_of(request: &Attach, dataset: &Dataset) -> Result<Option<BlockReads>> {
    if request.shuffle_window == 0 {
        // The default depends on the dataset alone, so that an order is the same on every machine.
        let is_in_order = !request.shuffle && request.draws.is_none() && !request.is_told;
        return Ok(BlockReads::by_default(dataset, is_in_order));
    }
    let blocks = BlockReads::of(dataset, request.shuffle_window).ok_or_else(no_window)?;
    Ok(Some(blocks))
}

fn no_window() -> crate::Error {
    invalid("shuffle_window is for samples that lie together in larger files, such as tar shards")
        .with_remedy("leave it out: all samples are drawn from then")
}

/// Checks the options of a job that has draws, orders of its own, or an iterable dataset.
fn check_use(request: &Attach) -> Result<()> {
    let is_cached =
        !matches!(request.cache.form, None | Some(CacheForm::Off)) || request.cache.reuse > 0;
    if request.is_iterated() && (is_cached || request.relaxed || request.batch_size != 1) {
        return Err(invalid(
            "the batches of an iterable dataset have no ids: they cannot be cached, and come in its order",
        ));
    }
    let is_shuffled = request.shuffle && request.draws.is_none() && !request.is_told;
    if request.shuffle_window > 0 && !is_shuffled {
        return Err(
            invalid("shuffle_window is for random orders of each sample once")
                .with_remedy("set shuffle=True, without a sampler, or leave it out"),
        );
    }
    if request.shuffle_window > 0 && matches!(request.pipeline.source, Source::UserCode(_)) {
        return Err(no_window());
    }
    if (request.draws.is_some() || request.is_told) && request.cache.reuse > 0 {
        return Err(invalid(
            "reuse counts the epochs that a prepared sample is used for, and this sampler may give a sample many \
             times in one, or not at all",
        )
        .with_remedy("leave reuse out, or choose cache=\"prepared\""));
    }
    Ok(())
}

/// Returns what jobs are told of samples that are left out.
fn left_out(stream: &Stream) -> Option<String> {
    match &stream.config.producer {
        Producer::Native(recipe) => recipe.dataset.left_out().note(&stream.config.dataset_name),
        _ => None,
    }
}

fn tell_of(stream: &Stream, what: &str) {
    let StreamConfig {
        id, dataset_name, ..
    } = &stream.config;
    tracing::info!(stream = id, dataset = dataset_name, "{what}");
}

/// Returns a seed for a stream whose jobs did not name one.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher is keyed by the operating system's randomness.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish() >> 1
}
