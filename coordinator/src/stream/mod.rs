//! A stream: the jobs that share one pipeline, their scheduler and their staging area.
//!
//! One mutex guards the [`engine`], the state that decides. A thread that holds it never waits. Three kinds of thread
//! take it: sessions (a job comes or goes), workers (a minibatch is done) and the stream's own driver, which sleeps on
//! the doorbell and is woken when a consumer takes or releases something. Samples are prepared outside it.

mod batch;
mod consumer;
mod counters;
mod engine;
mod late_binding;
mod layout;
mod numbers;
mod pace;
mod replay;
mod sample;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use coprep_cache::handover::{Doorbell, Sender};
use coprep_cache::staging::StagingPool;
use coprep_cache::task_table::TaskHandle;
use coprep_costs::{Summary, lookahead};
use coprep_protocol::message::{
    Attach, Attached, Awaited, CacheForm, CostStatus, Departure, ResumePoint, SampleCost,
    StreamStatus,
};
use coprep_protocol::nap::nap;
use coprep_protocol::spec::{Field, PipelineSpec, UserDataset};
use coprep_scheduler::{Config, DrawOrder, Minibatch, Scheduler};
use fail::fail_point;

use crate::connection::peer::Peer;
use crate::connection::reply_queue::ReplyQueue;
use crate::produce::deadline_queue::Deadline;
use crate::produce::processes::{IdleForkServer, Trouble};
use crate::produce::producer::Producer;
use crate::produce::threads::{GivenUp, ThreadPool};
use crate::stream::batch::PendingBatch;
use crate::stream::consumer::Consumer;
use crate::stream::counters::Counters;
use crate::stream::engine::Engine;
use crate::stream::engine::absent::SOON;
pub(crate) use crate::stream::engine::departed::Leaver;
pub(crate) use crate::stream::engine::orders::{EpochOrder, cohort_key};
use crate::stream::late_binding::{BindingId, BoundSlot};
pub(crate) use crate::stream::layout::{layout, most_blob};
pub(crate) use crate::stream::numbers::{Drawn, Numbers, fingerprint};
use crate::stream::replay::Replay;
use crate::stream::sample::{Destination, PendingSample, PreparationPlan, ProducerFields};
use crate::{Error, Result};

/// Largest number of minibatches in a rank's queue, if there are buffers for them. Jobs of about one speed drift apart
/// by some minibatches; in a queue of 16 they stay together more often than in one of 8 (docs/explanation/scheduler.md).
const QUEUE_DEPTH: u32 = 16;
/// Largest number of minibatches that are drawn ahead so that slow samples can be begun early.
const LOOKAHEAD: u32 = 8;
/// Number of queued minibatches below which a job is about to starve.
const LOW_WATER: u32 = 2;
/// Interval at which the driver checks for work even if nobody rings. Nothing depends on it: see [`nap`].
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause of a driver that has panicked, because it may panic again at once.
const PAUSE: Duration = Duration::from_millis(20);
/// Largest number of items of a consumer that are published and not released. Further items wait in the coordinator
/// until some are released. A consumer that would hold more than half of them copies instead.
const RING: u64 = 4096;

/// The properties in which jobs must agree to share a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamKey {
    pub(crate) pipeline: u128,
    pub(crate) shuffle: bool,
    pub(crate) cache: CacheForm,
    pub(crate) lru: bool,
    pub(crate) reuse: u32,
    pub(crate) relaxed: bool,
    /// Identity of the draws of its epochs, or 0 if each sample is drawn once.
    pub(crate) draws: u128,
    /// Identity of a cohort whose epochs are its own, because it tells the order of each or iterates its dataset. It is
    /// 0 for all other jobs.
    pub(crate) told: u128,
}

impl StreamKey {
    /// Returns the order of samples that the stream's jobs are promised.
    fn draw_order(&self) -> DrawOrder {
        // The sample for one number is as random as for another, so the order of numbers does not matter, and jobs
        // share most in this one.
        if self.draws != 0 {
            return DrawOrder::AscendingInCommon;
        }
        match (self.shuffle && self.told == 0, self.relaxed) {
            (true, _) => DrawOrder::Random,
            (false, false) => DrawOrder::Ascending,
            // A job that asked for relaxed order cares for the set of samples, and shares more of them.
            (false, true) => DrawOrder::AscendingInCommon,
        }
    }
}

/// The parts and properties of a new stream.
pub(crate) struct StreamConfig {
    pub(crate) id: u64,
    pub(crate) key: StreamKey,
    /// `true` if its first job named no form of the cache. Such a stream serves all jobs that name none.
    pub(crate) takes_any_form: bool,
    pub(crate) seed: u64,
    /// Maps the numbers of its epochs to samples.
    pub(crate) numbers: Numbers,
    pub(crate) producer: Producer,
    /// Identity of the user code that a process has loaded, so that a later stream can use the process.
    pub(crate) code_key: u128,
    /// Identity of the user's dataset, by which datasets of user code are told apart.
    pub(crate) identity: Option<UserDataset>,
    pub(crate) dataset_name: String,
    pub(crate) pipeline_text: String,
    /// The pipeline, for streams that the coordinator's own pipelines make.
    pub(crate) spec: Option<PipelineSpec>,
    /// `true` if minibatches are handed over again without being prepared.
    pub(crate) is_replayed: bool,
}

/// The client process that attaches a consumer.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) reply_queue: Arc<ReplyQueue>,
    pub(crate) peer: Arc<Peer>,
}

impl Client {
    /// Returns `true` if the client has hung up, or its process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.reply_queue.is_gone() || self.peer.is_gone()
    }
}

/// Identity of a consumer in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RankId {
    pub(crate) job: u64,
    pub(crate) rank: u32,
}

/// The answer to a new consumer: its identity, its stream's properties and the descriptors that it maps.
pub(crate) struct Registration {
    pub(crate) rank_id: RankId,
    pub(crate) attached: Attached,
    pub(crate) descriptors: [std::os::fd::OwnedFd; 4],
}

/// The pipeline of a group of jobs that share it.
pub(crate) struct Stream {
    pub(crate) config: StreamConfig,
    fields: Vec<Field>,
    /// Number of the fields that the producer writes, which come first.
    producer_fields: usize,
    pool: StagingPool,
    doorbell: Arc<Doorbell>,
    workers: Arc<ThreadPool>,
    engine: Mutex<Engine>,
    /// State for minibatches that are handed over again, if they are.
    replay: Option<Replay>,
    /// Number of samples that no worker has begun.
    waiting: AtomicU32,
    counters: Counters,
    closed: AtomicBool,
    /// Number of jobs for which it was opened and that have not come yet. The stream is not closed before they have
    /// come.
    expected: AtomicUsize,
    /// `true` if its producers cannot go on. A broken stream admits nobody.
    broken: AtomicBool,
    /// `true` if the driver is to break the stream off.
    doomed: AtomicBool,
}

impl Stream {
    /// Starts the driver of a stream whose staging area is reserved.
    pub(crate) fn open(
        config: StreamConfig,
        pool: StagingPool,
        workers: Arc<ThreadPool>,
    ) -> Result<Arc<Stream>> {
        let engine = new_engine(&config, &pool);
        let layout = pool.layout();
        let replay = config
            .is_replayed
            .then(|| Replay::new(layout.buffers, layout.slots));
        let doorbell = Arc::new(Doorbell::new()?);
        // The last reader of a minibatch may be a worker, or another job.
        let rung = doorbell.clone();
        pool.on_free(move || rung.ring_if_resting());
        let stream = Arc::new(Stream {
            replay,
            producer_fields: config.producer.made().len(),
            fields: config.producer.fields(config.numbers.are_ids()),
            pool,
            doorbell,
            workers,
            engine: Mutex::new(engine),
            waiting: AtomicU32::new(0),
            counters: Counters::default(),
            closed: AtomicBool::new(false),
            expected: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            doomed: AtomicBool::new(false),
            config,
        });
        stream.start_driver()?;
        Ok(stream)
    }

    fn start_driver(self: &Arc<Self>) -> Result<()> {
        let stream = Arc::downgrade(self);
        let builder = std::thread::Builder::new().name(format!("stream-{}", self.config.id));
        builder
            .spawn(move || drive(&stream))
            .map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(())
    }

    /// Locks the engine. If a thread panicked while it held the lock, the stream is broken off first.
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(|poisoned| {
            let mut engine = poisoned.into_inner();
            self.abandon(&mut engine);
            self.engine.clear_poison();
            engine
        })
    }

    /// Gives up an engine that may be half changed. Its jobs lose their connections, come again with the record of
    /// their samples, and find another stream. An empty engine takes its place for threads that still have a sample, or
    /// leave.
    fn abandon(&self, engine: &mut Engine) {
        tracing::error!(
            parent: None,
            stream = self.config.id,
            "a thread panicked while it held the stream: a defect of coprep, please report it"
        );
        self.give_up(engine);
    }

    fn give_up(&self, engine: &mut Engine) {
        self.prepare_nothing_more();
        let mut given_up = std::mem::replace(engine, new_engine(&self.config, &self.pool));
        given_up.hang_up();
        // A half-changed engine may panic once more as it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(given_up)));
    }

    /// Has the driver break the stream off, on behalf of a thread that cannot take the lock.
    fn doom(&self) {
        self.doomed.store(true, Ordering::Release);
        self.doorbell.ring();
    }

    /// Adds a consumer. A job of several ranks begins when its last rank is here. `known` lists ranks that have left
    /// the job. Returns `None` if the stream has been closed.
    pub(crate) fn attach(
        self: &Arc<Self>,
        request: &Attach,
        known: &[Departure],
        client: &Client,
    ) -> Result<Option<Registration>> {
        let mut sender = Sender::create(self.ring_capacity(request.batch_size))?;
        let (deliver, reply) = sender.fds()?;
        let bell = self.doorbell.bell()?;
        let descriptors = [self.pool.reader_fd()?, deliver, reply, bell.fd()?];
        let consumer = Consumer::new(client.pid, client.reply_queue.clone(), sender, bell);
        self.serve_when_it_has_read(client);
        let mut engine = self.engine();
        // This is checked under the lock under which a stream is closed. The thread that breaks a stream off holds it,
        // too, while it hangs up on the jobs.
        if self.is_closed() || self.is_broken() {
            return Ok(None);
        }
        let rank_id = engine.attach(request, known, &client.name, consumer)?;
        fail_point!("attach-locked");
        engine.share_buffers(self.pool.layout().buffers);
        let attached = self.attached(&engine, rank_id);
        Ok(Some(Registration {
            rank_id,
            attached,
            descriptors,
        }))
    }

    /// Begins to serve a consumer that has been told of its admission.
    pub(crate) fn begin(self: &Arc<Self>) {
        self.pump(&mut self.engine());
    }

    /// Wakes the driver once the client has read replies. Errors that had no room in its queue are published then.
    fn serve_when_it_has_read(&self, client: &Client) {
        let doorbell = self.doorbell.clone();
        client.reply_queue.on_room(move || doorbell.ring());
    }

    /// Returns the parts of the slots that the producer writes.
    fn producer_fields(&self) -> ProducerFields<'_> {
        ProducerFields {
            layout: self.pool.layout(),
            count: self.producer_fields,
        }
    }

    fn attached(&self, engine: &Engine, rank_id: RankId) -> Attached {
        let producer = &self.config.producer;
        let all = self.config.numbers.count(producer.samples());
        let (epoch, job_samples) = engine.position(rank_id).unwrap_or((0, all));
        Attached {
            stream: self.config.id,
            job: rank_id.job,
            seed: self.config.seed,
            dataset_samples: producer.samples(),
            job_samples,
            classes: producer.classes().to_vec(),
            fields: self.fields.clone(),
            slots: self.pool.layout().slots,
            buffers: self.pool.layout().buffers,
            large_bytes: self.pool.layout().large_limit(),
            epoch,
            structure: producer.structure().to_vec(),
            notes: Vec::new(),
            token: engine.token(rank_id),
        }
    }

    /// Returns the capacity of a consumer's ring: room for every part of a full queue and of all buffers that can be
    /// held, within [`RING`].
    fn ring_capacity(&self, batch_size: u32) -> u32 {
        let layout = self.pool.layout();
        let parts = u64::from(layout.slots / batch_size.max(1)) + 2;
        let all = u64::from(QUEUE_DEPTH + layout.buffers) * parts + 64;
        all.min(RING).next_power_of_two() as u32
    }

    /// Removes a consumer, however it left. Returns `true` if nobody is left.
    pub(crate) fn detach(self: &Arc<Self>, rank_id: RankId) -> bool {
        let mut engine = self.engine();
        engine.detach(rank_id);
        engine.share_buffers(self.pool.layout().buffers);
        self.pump(&mut engine);
        engine.is_empty()
    }

    /// Closes a stream that has no consumer: it admits none from now on. Returns true if it was open and empty. In that
    /// case the caller calls [`end`](Self::end).
    pub(crate) fn close_if_empty(&self) -> bool {
        let engine = self.engine();
        let is_unused = engine.is_empty() && self.expected.load(Ordering::Acquire) == 0;
        is_unused && !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Announces `jobs` jobs. Each of them will try to attach and then call [`has_come`](Self::has_come).
    pub(crate) fn expect(&self, jobs: usize) {
        self.expected.fetch_add(jobs, Ordering::AcqRel);
    }

    /// Records that an expected job has been admitted, or has failed to attach.
    pub(crate) fn has_come(&self) {
        self.expected.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the driver of a closed stream. Buffers and queues are freed when the last consumer lets go.
    ///
    /// Returns the idle fork server, which the next stream of the same user code can use.
    pub(crate) fn end(&self) -> Option<IdleForkServer> {
        self.doorbell.ring();
        self.config.producer.process_pool()?.dismiss()
    }

    /// Breaks the stream off because its producers cannot go on. Every job is sent away, comes again with the record of
    /// its samples, and finds another stream.
    ///
    /// Nothing is drawn any more. A job that has not noticed yet still takes the minibatches that are ready for it, and
    /// must not find another minibatch in their buffers.
    pub(crate) fn break_off(&self, trouble: &Trouble) {
        tracing::warn!(parent: None, stream = self.config.id, error = %trouble, "a stream is opened anew");
        self.give_up(&mut self.engine());
    }

    /// Returns `true` if any job was given a sample.
    pub(crate) fn has_delivered(&self) -> bool {
        self.counters.totals().delivered > 0
    }

    /// Stops the preparation of samples, and admits nobody from now on. The caller ends the jobs' connections
    /// afterwards.
    pub(crate) fn retire(&self) {
        // The lock makes sure that no thread is in the middle of filling a buffer when this returns.
        let _engine = self.engine();
        self.prepare_nothing_more();
    }

    /// Stops the preparation of samples. The caller holds the lock, and ends the jobs' connections afterwards: see
    /// [`StagingPool::retire`].
    fn prepare_nothing_more(&self) {
        self.broken.store(true, Ordering::Release);
        self.pool.retire();
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(crate) fn epoch_started(self: &Arc<Self>, rank_id: RankId, epoch: u64) {
        let mut engine = self.engine();
        // Samples that it took before belong to the epoch before.
        self.pump(&mut engine);
        engine.epoch_started(rank_id, epoch);
        self.pump(&mut engine);
    }

    /// Records the order of an epoch that a consumer begins, or was handed before.
    pub(crate) fn tell_order(
        self: &Arc<Self>,
        rank_id: RankId,
        epoch: u64,
        order: EpochOrder,
        is_settled: bool,
    ) {
        let mut engine = self.engine();
        engine.tell_order(rank_id, epoch, order, is_settled);
        self.pump(&mut engine);
    }

    /// Leaves `epoch` on behalf of a consumer. The answer is sent when every rank of its job has asked.
    pub(crate) fn restart_epoch(self: &Arc<Self>, rank_id: RankId, epoch: u64) {
        let mut engine = self.engine();
        engine.restart_epoch(rank_id, epoch);
        self.pump(&mut engine);
    }

    pub(crate) fn state(&self, rank_id: RankId, epoch: u64, batches: u64) -> Result<ResumePoint> {
        self.engine().state(rank_id, epoch, batches)
    }

    pub(crate) fn explain(&self, rank_id: RankId) -> String {
        let text =
            engine::explain::explain(&self.engine(), rank_id, self.pool.free(), &self.config);
        let stuck = self
            .config
            .producer
            .process_pool()
            .map_or(0, |process_pool| process_pool.stuck());
        if stuck == 0 {
            return text;
        }
        format!(
            "{text}; {stuck} workers wait for memory, because what is prepared or held takes most of the {} KiB that \
             samples may take which are larger than most (--staging, COPREP_STAGING)",
            self.pool.layout().large_limit() >> 10
        )
    }

    /// Returns whom a consumer waits for, if it waits for somebody else and not for its samples.
    pub(crate) fn who_is_awaited(&self, rank_id: RankId) -> Option<Awaited> {
        engine::explain::who_is_awaited(&self.engine(), rank_id)
    }

    pub(crate) fn status(&self, slow: u32) -> StreamStatus {
        let layout = self.pool.layout();
        let costs = self.cost_status(slow);
        let engine = self.engine();
        StreamStatus {
            id: self.config.id,
            dataset: self.config.dataset_name.clone(),
            samples: self.config.producer.samples(),
            pipeline: self.config.pipeline_text.clone(),
            seed: self.config.seed,
            cache: self.config.key.cache,
            relaxed: self.config.key.relaxed,
            costs,
            worker_pids: self
                .config
                .producer
                .process_pool()
                .map_or(Vec::new(), |c| c.pids()),
            busy_workers: self.config.producer.process_pool().map_or(0, |c| c.busy()),
            differs: Vec::new(),
            notes: Vec::new(),
            slots: layout.slots,
            buffers: layout.buffers,
            buffers_free: self.pool.free(),
            staging_bytes: self.pool.reserved_bytes(),
            totals: self.counters.totals(),
            stalls: engine.stalls(),
            jobs: engine.status(),
        }
    }

    fn cost_status(&self, slow: u32) -> CostStatus {
        let Some(costs) = self.config.producer.costs() else {
            return CostStatus::default();
        };
        let sample = |(id, cost): (u32, coprep_costs::ExpectedCost)| SampleCost {
            id,
            path: self.config.producer.path(id),
            fetch_s: cost.fetch,
            decode_s: cost.decode,
            fixed_s: cost.fixed,
            random_s: cost.random,
            cpu_s: cost.cpu,
        };
        let slowest = costs.slowest(slow as usize);
        let (measured, bytes) = costs.size();
        let engine = self.engine();
        CostStatus {
            measured,
            bytes: bytes as u64,
            mean_s: costs.lately().map_or(0.0, |lately| lately.mean),
            budget_s: costs.budget(),
            window: engine.window,
            overtaken: engine.overtaken,
            slowest: slowest.into_iter().map(sample).collect(),
        }
    }

    /// Polls every consumer, and then decides, starts and publishes minibatches. Returns `true` if something happened.
    fn pump(self: &Arc<Self>, engine: &mut Engine) -> bool {
        fail_point!("pump-locked");
        // A job whose connection was ended goes on with the minibatches that it has taken until it notices. So from
        // then on no buffer is filled again, not even one that a job has just given back by leaving.
        if self.is_broken() {
            return false;
        }
        let before = engine.look_again.take();
        let mut progress = engine.poll();
        let (has_begun, next_cohort) = engine.begin_cohorts();
        progress |= has_begun;
        progress |= engine.settle_orders();
        engine.end_epochs_without_delivery();
        if progress {
            engine.share_again(self.pool.layout().buffers);
        }
        self.publish(engine);
        engine.bound_what_is_ahead();
        while self.is_time_to_draw(engine) {
            let Some(minibatch) = self.next_minibatch(engine) else {
                break;
            };
            progress = true;
            self.start(engine, minibatch);
        }
        self.publish(engine);
        engine.look_again = engine.look_again.into_iter().chain(next_cohort).min();
        self.wake_driver_for(engine.look_again, before);
        progress
    }

    /// Wakes the driver if it would otherwise sleep beyond `look_again`. It may be asleep until `before`, if that is
    /// known.
    fn wake_driver_for(&self, look_again: Option<Instant>, before: Option<Instant>) {
        let is_sooner = |at: Instant| before.is_none_or(|before| at + SOON < before);
        if look_again.is_some_and(is_sooner) {
            self.doorbell.ring();
        }
    }

    /// Draws a minibatch. Makes room for it if necessary.
    fn next_minibatch(&self, engine: &mut Engine) -> Option<Minibatch> {
        loop {
            let minibatch = engine.scheduler.next(self.pool.to_begin());
            if minibatch.is_some() || !engine.make_room() {
                return minibatch;
            }
        }
    }

    /// Returns `true` if it is time to draw another minibatch. Drawing is late, so that a minibatch is for the jobs as
    /// they are when it is prepared, but before a worker is idle. It is also early enough that slow samples can be
    /// begun in time.
    fn is_time_to_draw(&self, engine: &Engine) -> bool {
        self.waiting.load(Ordering::Relaxed) < self.few_waiting()
            || (engine.in_preparation.len() as u32) < engine.window
    }

    fn few_waiting(&self) -> u32 {
        match self.config.producer.process_pool() {
            Some(process_pool) => process_pool.few_waiting(),
            None => 2 * self.workers.threads(),
        }
    }

    fn worker_count(&self) -> u32 {
        match self.config.producer.process_pool() {
            Some(process_pool) => process_pool.workers(),
            None => self.workers.threads(),
        }
    }

    /// Records that a worker begins a sample, and draws another minibatch if few are waiting.
    fn sample_begun(self: &Arc<Self>) {
        if self.waiting.fetch_sub(1, Ordering::Relaxed) == self.few_waiting() {
            self.pump(&mut self.engine());
        }
    }

    fn publish(&self, engine: &mut Engine) {
        let stall_clock = || self.config.producer.stall_clock(&self.workers);
        self.counters.add_delivered(engine.publish(stall_clock));
    }

    /// Gives a minibatch its buffer, and its samples to the workers.
    fn start(self: &Arc<Self>, engine: &mut Engine, minibatch: Minibatch) {
        let Some(filling) = self.pool.allocate() else {
            // The scheduler was told of a free buffer, and only this thread allocates under the lock.
            tracing::error!(parent: None, stream = self.config.id, "no staging buffer for a minibatch that was drawn");
            return;
        };
        let samples = engine.samples(&minibatch);
        let (slots, unfinished) = filling.split(samples.len() as u32);
        let deliveries = minibatch.deliveries.len() as u32;
        engine.drawn += 1;
        let batch = Arc::new(PendingBatch::new(
            engine.drawn,
            minibatch.targets,
            samples.len() as u32,
            deliveries,
            unfinished,
        ));
        let starts = self.starts(engine, &samples);
        let stall_clock = self.config.producer.stall_clock(&self.workers);
        engine.expect(&batch, minibatch.deliveries, &stall_clock);
        self.waiting
            .fetch_add(samples.len() as u32, Ordering::Relaxed);
        let is_relaxed = self.config.key.relaxed;
        let is_ahead = engine.window > 0;
        for (place, ((slot, draw), start)) in slots.into_iter().zip(samples).zip(starts).enumerate()
        {
            let bound_slot = BoundSlot {
                batch: batch.clone(),
                slot,
                place: place as u32,
            };
            let is_filled =
                |replay: &Replay| replay.is_filled(batch.buffer, bound_slot.slot.slot());
            let plan = PreparationPlan {
                start,
                due: is_ahead.then(|| engine.plan.due()),
                // In relaxed order the sample may come to another slot.
                is_there: !is_relaxed && self.replay.as_ref().is_some_and(is_filled),
            };
            let destination = if is_relaxed {
                let late_binding = &mut engine.late_binding;
                Destination::LateBound(late_binding.add(draw.number, engine.drawn, bound_slot))
            } else {
                Destination::Bound(bound_slot)
            };
            let sample = PendingSample::new(self.clone(), destination, batch.clone(), draw, plan);
            self.assign(start, sample);
        }
    }

    /// Returns when each sample of a minibatch is to be begun; see [`coprep_costs::lookahead`].
    fn starts(&self, engine: &mut Engine, samples: &[Drawn]) -> Vec<Deadline> {
        let now = Deadline::now();
        let producer = &self.config.producer;
        let Some(costs) = producer.costs() else {
            return vec![now; samples.len()];
        };
        let lately = costs.lately();
        let mean = lately.map_or(0.0, |lately| lately.mean);
        let period = mean * samples.len() as f32 / self.worker_count() as f32;
        engine.window = lately.map_or(0, |lately| self.window(&lately, samples.len(), period));
        if engine.window == 0 {
            let start = Deadline::at(engine.plan.pause(now.seconds()));
            return vec![start; samples.len()];
        }
        let known: Vec<Option<f32>> = samples
            .iter()
            .map(|draw| producer.expected(draw.id))
            .collect();
        let expected: Vec<f32> = known.iter().map(|cost| cost.unwrap_or(mean)).collect();
        let first = engine.in_preparation.first().map(|batch| batch.number);
        let ahead = first.map_or(0, |first| engine.drawn - first) as u32;
        let workers = self.worker_count();
        let starts = (engine.plan).draw(now.seconds(), ahead, &expected, workers, period);
        let start = |(start, known): (f64, Option<f32>)| match known {
            Some(_) => Deadline::at(start),
            // The cost of the sample is unknown. It may be slow, so its header is read, or it is begun, at once.
            None => now,
        };
        starts.into_iter().zip(known).map(start).collect()
    }

    /// Returns how many minibatches of `samples` samples to draw ahead, if one is consumed every `period` seconds.
    fn window(&self, lately: &Summary, samples: usize, period: f32) -> u32 {
        let most = LOOKAHEAD.min(self.pool.layout().buffers.saturating_sub(2));
        let spread = if self.config.key.relaxed {
            // In relaxed order a slow sample delays nobody except at the epoch's end.
            0
        } else {
            lookahead::SPREAD
        };
        lookahead::window_needed(lately, samples as u32, period, spread, most)
    }

    /// Returns when to begin a sample whose header has been read, and which is expected to take `expected` seconds.
    fn start_of_one(due: f64, expected: Option<f32>) -> Deadline {
        // The factor leaves time for one more sample that may be queued before this one.
        Deadline::at(due - 2.0 * f64::from(expected.unwrap_or(0.0)))
    }

    /// Returns the time beyond which a sample counts as slow.
    fn budget(&self) -> Option<Duration> {
        let budget = self.config.producer.costs().and_then(|c| c.budget());
        budget.map(Duration::from_secs_f32)
    }

    /// Offers a sample's slot to the process that makes it. Returns the buffer and slot.
    fn offer(&self, binding: BindingId, given: TaskHandle) -> Option<(u32, u32)> {
        let budget = self.budget();
        self.engine().late_binding.offer(binding, budget, given)
    }

    /// Binds a sample that is about to be written to a slot.
    fn claim(&self, binding: BindingId) -> BoundSlot {
        let budget = self.budget();
        let bound_slot = self.engine().claim(binding, budget);
        bound_slot.unwrap_or_else(|| GivenUp::unwind())
    }

    /// Binds a sample to the slot that it was drawn for.
    fn take(&self, binding: BindingId) -> BoundSlot {
        self.try_take(binding).unwrap_or_else(|| GivenUp::unwind())
    }

    /// Binds a sample to the slot that it was drawn for. Returns `None` if the stream was given up meanwhile, with the
    /// slot.
    fn try_take(&self, binding: BindingId) -> Option<BoundSlot> {
        self.engine().late_binding.take(binding)
    }

    fn minibatch_done(self: &Arc<Self>, batch: &PendingBatch) {
        fail_point!("minibatch-done");
        batch.finish();
        if batch.done().is_none() {
            // Another thread panicked as it closed the gaps.
            self.doom();
        }
        self.pump(&mut self.engine());
    }
}

fn new_engine(config: &StreamConfig, pool: &StagingPool) -> Engine {
    let for_scheduler = Config {
        samples: config.numbers.count(config.producer.samples()),
        slots: pool.layout().slots,
        depth: QUEUE_DEPTH,
        low_water: LOW_WATER,
        seed: config.seed,
        order: config.key.draw_order(),
        is_told: config.key.told != 0,
    };
    Engine::new(config, Scheduler::new(for_scheduler))
}

/// Runs the driver, which checks for work whenever a consumer rings.
fn drive(stream: &Weak<Stream>) {
    while let Some(stream) = stream.upgrade() {
        if stream.is_closed() {
            return;
        }
        let turned = catch_unwind(AssertUnwindSafe(|| stream.look_around()));
        if turned.is_err() {
            stream.break_off(&Trouble::Defect("the driver of the stream panicked"));
            // It may panic again, until all jobs have left.
            std::thread::sleep(PAUSE);
        }
    }
}

impl Stream {
    fn look_around(self: &Arc<Self>) {
        fail_point!("driver-turn");
        if self.doomed.swap(false, Ordering::AcqRel) {
            self.break_off(&Trouble::Defect("a worker panicked over and over"));
        }
        let look_again = self.pump_until_quiet();
        let longest = nap(POLL_INTERVAL);
        let rest = look_again.map_or(longest, |at| at.saturating_duration_since(Instant::now()));
        self.doorbell.wait(rest.min(longest));
        self.engine().disarm();
    }

    /// Checks for work until there is none, and arms every consumer: it rings from now on. Events before that are seen
    /// here. Returns when to check again, if a job lacks buffers that another may hold without reading.
    fn pump_until_quiet(self: &Arc<Self>) -> Option<Instant> {
        let mut engine = self.engine();
        while self.pump(&mut engine) {}
        // From here on every thread that changes something rings: consumers, and threads that free a buffer.
        self.doorbell.rest();
        engine.arm();
        while self.pump(&mut engine) {}
        engine.look_again
    }
}
