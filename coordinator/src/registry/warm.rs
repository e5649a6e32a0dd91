//! Filling a cache before the jobs come.
//!
//! The worker threads admit samples in ascending order, behind the minibatches of any job, a bounded number at a time.
//! A warm-up ends when all samples were tried, when the cache and the local disk are full, or when the client goes away.
//! Samples cached by then stay, so that a second warm-up continues where the first one ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::Form;
use coprep_pipeline::Dataset;
use coprep_protocol::message::{CacheForm, Reply, Warm, WarmProgress};
use coprep_storage::{DetachedRead, ReadBytes};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use fail::fail_point;

use crate::caches::{DatasetCache, DatasetDisk};
use crate::error::{ErrorKind, invalid};
use crate::produce::deadline_queue::Deadline;
use crate::produce::failure::Failure;
use crate::produce::native::{BlockReads, Fetched, Recipe};
use crate::produce::threads::{PoolWork, Ready, SourceFile};
use crate::registry::{Registry, WaitingClient};
use crate::stream::{Client, Stream};
use crate::{Error, Result};
use coprep_pipeline::Scratch;

/// Interval of the progress reports to the client.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// Number of samples under way per thread.
const AHEAD: u32 = 4;

struct Admit {
    recipe: Arc<Recipe>,
    id: u32,
    fetched: Option<Fetched>,
    /// Receives the result; `None` once it was sent.
    done: Option<Sender<Admitted>>,
}

struct Admitted {
    id: u32,
    result: std::result::Result<u64, Failure>,
}

impl PoolWork for Admit {
    fn needs_fetch(&self) -> bool {
        self.recipe.is_to_fetch_for_admission(self.id) || self.recipe.is_to_look(self.id)
    }

    fn file(&self) -> Option<SourceFile> {
        Some(SourceFile {
            source: self.recipe.read_from,
            sample: self.id,
        })
    }

    fn is_to_cache(&self) -> bool {
        self.recipe.is_to_admit(self.id)
    }

    fn may_detach(&self) -> bool {
        self.recipe.may_detach(self.id)
    }

    fn expected_bytes(&self) -> Option<u64> {
        self.recipe.dataset.listed_len(self.id)
    }

    fn detached_read(&mut self) -> Option<DetachedRead> {
        let is_wanted = self.needs_fetch();
        is_wanted.then(|| self.recipe.detached_read(self.id))?
    }

    fn is_intact(&self, arrived: &ReadBytes) -> bool {
        self.recipe.is_intact(self.id, arrived)
    }

    fn fetch(&mut self, arrived: Option<ReadBytes>) -> Ready {
        let has_looked = self.recipe.look(self.id);
        if self.needs_fetch() {
            // A fetch that fails is tried again when the sample is admitted, and reported then.
            self.fetched = self.recipe.fetch_ahead(self.id, false, arrived).ok();
        }
        let fetched = self.fetched.as_ref();
        Ready {
            due: Deadline::MAX,
            at_work: fetched.map_or(0.0, |f| f.at_work),
            bytes: fetched.map_or(0, |f| f.bytes),
            is_answered: has_looked || fetched.is_some_and(|f| f.bytes > 0),
            is_unread: fetched.is_none() && self.needs_fetch(),
        }
    }

    fn run(mut self: Box<Self>, scratch: &mut Scratch) {
        fail_point!("warm-worker");
        let fetched = self.fetched.take();
        let admitted = self.recipe.admit(self.id, fetched, scratch);
        self.report_result(admitted.map(|cost| cost.fetched_bytes));
    }
}

impl Admit {
    fn report_result(&mut self, result: std::result::Result<u64, Failure>) {
        if let Some(done) = self.done.take() {
            // If the client has gone, nobody receives this.
            let _ = done.send(Admitted {
                id: self.id,
                result,
            });
        }
    }
}

impl Drop for Admit {
    /// Reports a failure if a worker panicked while it had the sample. Otherwise the warm-up would wait for ever.
    fn drop(&mut self) {
        self.report_result(Err(Failure::defect()));
    }
}

/// Serves [`coprep_protocol::message::Request::Warm`].
pub(crate) fn warm(
    registry: &Arc<Registry>,
    request: &Warm,
    client: &Client,
) -> Result<WarmProgress> {
    let source = &request.pipeline.source;
    let stores = registry.stores_of(&request.store_variables, request.provider, source)?;
    let (recipe, _pin) = registry.recipe(
        &request.pipeline,
        &request.cache,
        &stores,
        blocks_of,
        &WaitingClient::new(client),
    )?;
    let cache = recipe.cache.clone();
    match &cache {
        Some(cache) => {
            mark(cache, request.keep);
            registry.begin_looks(cache, &request.cache);
        }
        None if recipe.disk.is_some() => {}
        None => {
            return Err(invalid("nothing to warm: the cache is off").with_remedy(
                "choose the form \"encoded\" or \"decoded\", and serve with --cache",
            ));
        }
    }
    let (done, results) = unbounded();
    let mut run = WarmRun {
        registry,
        recipe: &recipe,
        cache: cache.as_deref(),
        done,
        progress: WarmProgress::default(),
        requests_before: recipe.dataset.requests().unwrap_or_default(),
        unavailable: None,
    };
    run.progress.total = u64::from(recipe.dataset.len());
    run.all(&results, client)?;
    // The client is told how many samples the disk has.
    if let Some(disk) = &registry.disk {
        disk.flush();
    }
    Ok(run.report())
}

/// Number of samples that a warm-up has under way at a time, about.
const UNDER_WAY: u32 = 2048;

/// Returns the blocks that a warm-up reads: it brings all samples, so that one request may bring many.
fn blocks_of(dataset: &Dataset) -> Result<Option<BlockReads>> {
    let is_in_blocks = dataset.is_remote() || dataset.is_in_row_groups();
    Ok(is_in_blocks
        .then(|| BlockReads::of(dataset, UNDER_WAY))
        .flatten())
}

/// Serves [`coprep_protocol::message::Request::KeepWarm`].
pub(crate) fn keep_warm(stream: &Stream, keep: bool) -> Result<WarmProgress> {
    let producer = &stream.config.producer;
    let cache = producer
        .cache()
        .ok_or_else(|| invalid("nothing to keep: the stream has no cache"))?;
    mark(cache, keep);
    let samples = u64::from(producer.samples());
    let so_far = WarmProgress {
        done: samples,
        total: samples,
        ..WarmProgress::default()
    };
    Ok(with_usage(so_far, Some(cache), None))
}

fn mark(cache: &DatasetCache, keep: bool) {
    cache.mark_warmed();
    if keep {
        cache.keep_unused();
    }
}

/// Adds the usage of the cache and of the local disk.
fn with_usage(
    mut progress: WarmProgress,
    cache: Option<&DatasetCache>,
    disk: Option<&DatasetDisk>,
) -> WarmProgress {
    if let Some(disk) = disk.map(DatasetDisk::status) {
        progress.on_disk = disk.entries;
        progress.disk_bytes = disk.used;
        progress.disk_capacity = disk.capacity;
    }
    let Some(cache) = cache else {
        return progress;
    };
    let usage = cache.store.usage();
    progress.cached = usage.entries();
    progress.capacity = usage.capacity;
    progress.form = Some(cache.form);
    match cache.form {
        CacheForm::Encoded => progress.encoded_bytes = usage.used,
        CacheForm::Auto => {
            progress.encoded_bytes = usage.bytes_by_form[Form::Encoded as usize];
            progress.decoded_bytes = usage.bytes() - progress.encoded_bytes;
        }
        _ => progress.decoded_bytes = usage.used,
    }
    progress
}

struct WarmRun<'a> {
    registry: &'a Arc<Registry>,
    recipe: &'a Arc<Recipe>,
    /// `None` if only the local disk is filled.
    cache: Option<&'a DatasetCache>,
    done: Sender<Admitted>,
    progress: WarmProgress,
    /// Requests to the remote stores of the dataset before this warm-up.
    requests_before: u64,
    /// The error of storage that does not answer.
    unavailable: Option<String>,
}

impl WarmRun<'_> {
    fn all(&mut self, results: &Receiver<Admitted>, client: &Client) -> Result<()> {
        let (mut next, mut under_way, mut reported) = (0, 0, Instant::now());
        loop {
            let window = self.registry.workers.threads() * AHEAD;
            while under_way < window && next < self.recipe.dataset.len() && !self.is_full() {
                self.submit(next);
                (next, under_way) = (next + 1, under_way + 1);
            }
            // Further samples would wait as long, and fail as well.
            if let Some(failure) = self.unavailable.take() {
                let kind = ErrorKind::Pipeline(coprep_pipeline::ErrorKind::Unavailable);
                return Err(Error::new(kind, failure));
            }
            if under_way == 0 {
                return Ok(());
            }
            match results.recv_timeout(REPORT_EVERY) {
                Ok(admitted) => {
                    under_way -= 1;
                    self.count(admitted);
                }
                Err(RecvTimeoutError::Timeout) => {}
                // This run keeps a sender, so the channel is never disconnected.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                self.send_progress(client)?;
            }
        }
    }

    fn submit(&self, id: u32) {
        let work = Admit {
            recipe: self.recipe.clone(),
            id,
            fetched: None,
            done: Some(self.done.clone()),
        };
        self.registry.workers.submit(Deadline::MAX, Box::new(work));
    }

    /// Returns `true` if no byte is left, or samples were refused for lack of room. Later samples are not tried then.
    fn is_full(&self) -> bool {
        let usage = self.cache.map(|cache| cache.store.usage());
        let is_memory_full = usage.is_none_or(|usage| usage.used >= usage.capacity);
        // The disk takes what memory refuses, until it refuses a sample too.
        (is_memory_full && self.recipe.disk.is_none()) || self.progress.full
    }

    fn count(&mut self, admitted: Admitted) {
        self.progress.done += 1;
        match admitted.result {
            Ok(bytes) => {
                self.progress.fetched_bytes += bytes;
                // The sample was tried and is absent. Without a choice of forms, the reason can only be a lack of room.
                let refuses =
                    |cache: &DatasetCache| !cache.store.has(admitted.id) && cache.forms.is_none();
                self.progress.full |=
                    self.cache.is_none_or(refuses) && self.recipe.is_refused_by_disk(admitted.id);
            }
            Err(failure) if failure.is_unavailable => {
                self.unavailable.get_or_insert(failure.message);
            }
            Err(failure) => {
                self.progress.failed += 1;
                let path = self.recipe.dataset.path(admitted.id);
                let text = || {
                    format!(
                        "sample {} ({}): {}",
                        admitted.id,
                        path.display(),
                        failure.message
                    )
                };
                self.progress.first_failure.get_or_insert_with(text);
            }
        }
    }

    fn send_progress(&mut self, client: &Client) -> Result<()> {
        let gone = || invalid("the client that asked for the warm-up has gone");
        if client.is_gone() {
            return Err(gone());
        }
        if !client.reply_queue.is_empty() {
            // The client has not read the previous report. It gets the state with a later one.
            return Ok(());
        }
        client
            .reply_queue
            .send(&Reply::Progress(self.report()))
            .map_err(|_| gone())
    }

    fn report(&self) -> WarmProgress {
        let requests = self.recipe.dataset.requests();
        let progress = WarmProgress {
            requests: requests.map(|so_far| so_far - self.requests_before),
            ..self.progress.clone()
        };
        with_usage(progress, self.cache, self.recipe.disk.as_deref())
    }
}
