//! A stream: the jobs that share one pipeline, their scheduler and their staging area.
//!
//! One mutex guards the [`engine`], the state that decides; whoever holds it never waits. Three kinds of
//! thread take it: sessions (a job comes or goes), workers (a minibatch is done) and the stream's own
//! driver, which sleeps on the doorbell and is rung when a consumer takes or releases something.
//! Samples are prepared outside it.

mod absent;
mod afloat;
mod batch;
mod cohorts;
mod consumer;
mod counters;
mod departed;
mod engine;
mod epochs;
mod explain;
mod forming;
mod layout;
mod numbers;
mod orders;
mod pace;
mod replay;
mod sample;
mod skipping;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use coprep_cache::handover::{Doorbell, Sender};
use coprep_cache::staging::StagingPool;
use coprep_cache::worklist::Given;
use coprep_costs::{Summary, early};
use coprep_protocol::message::{
    Attach, Attached, Awaited, CacheForm, CostStatus, Departure, Resume, SampleCost, StreamStatus,
};
use coprep_protocol::nap::nap;
use coprep_protocol::spec::{Field, PipelineSpec, UserDataset};
use coprep_scheduler::{Config, DrawOrder, Minibatch, Scheduler};
use fail::fail_point;

use crate::caches::Cache;
use crate::due_queue::Moment;
use crate::maker::Maker;
use crate::outbox::Outbox;
use crate::peer::Peer;
use crate::stream::absent::SOON;
use crate::stream::afloat::{Berth, Ticket};
use crate::stream::batch::Batch;
use crate::stream::consumer::Consumer;
use crate::stream::counters::Counters;
pub(crate) use crate::stream::departed::Leaver;
use crate::stream::engine::Engine;
pub(crate) use crate::stream::layout::{layout, most_blob};
pub(crate) use crate::stream::numbers::{Drawn, Numbers, fingerprint};
pub(crate) use crate::stream::orders::{Order, cohort_key};
use crate::stream::replay::Replay;
use crate::stream::sample::{Made, Plan, SampleWork};
use crate::user_code::{Resting, Trouble};
use crate::workers::{GivenUp, Workers};
use crate::{Error, Result};

/// Minibatches a rank's queue holds at most, if there are buffers for them. Jobs of about one speed drift apart by
/// some minibatches; in a queue of 16 they stay together more often than in one of 8 (docs/explanation/scheduler.md).
const QUEUE_DEPTH: u32 = 16;
/// Minibatches that are drawn ahead at most so that slow samples can be begun early.
const LOOKAHEAD: u32 = 8;
/// Minibatches under which a job is about to starve.
const LOW_WATER: u32 = 2;
/// The driver looks around this often even if nobody rings, which nothing needs: see [`nap`].
const NAP: Duration = Duration::from_millis(500);
/// Pause of a driver that has panicked.
const PAUSE: Duration = Duration::from_millis(20);
/// Most items of a consumer that are published and not released. What is beyond waits in the coordinator until some are
/// released; a consumer copies rather than hold more than half of them.
const RING: u64 = 4096;

/// What tells streams apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamKey {
    pub(crate) pipeline: u128,
    pub(crate) shuffle: bool,
    pub(crate) cache: CacheForm,
    pub(crate) lru: bool,
    pub(crate) reuse: u32,
    pub(crate) relaxed: bool,
    /// Tells the draws of its epochs apart; 0: each sample once.
    pub(crate) draws: u128,
    /// Tells cohorts apart whose epochs are their own, because they tell the order of each, or iterate their dataset; 0: it
    /// is none of these.
    pub(crate) told: u128,
}

impl StreamKey {
    /// Returns the order of samples that its jobs are promised.
    fn draw_order(&self) -> DrawOrder {
        // The sample for one number is as random as for another, so the order of numbers does not matter, and jobs share
        // most in this one.
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

/// What a stream is made of.
pub(crate) struct Blueprint {
    pub(crate) id: u64,
    pub(crate) key: StreamKey,
    /// Its first job named no form of the cache: it is for all jobs that name none.
    pub(crate) takes_any_form: bool,
    pub(crate) seed: u64,
    /// Maps the numbers of its epochs to samples.
    pub(crate) numbers: Numbers,
    pub(crate) maker: Maker,
    /// What a process that has loaded its user code is good for.
    pub(crate) code_key: u128,
    /// What user code is told apart by.
    pub(crate) identity: Option<UserDataset>,
    pub(crate) dataset_name: String,
    pub(crate) pipeline_text: String,
    /// Of streams that the coordinator's own pipelines make.
    pub(crate) spec: Option<PipelineSpec>,
    /// Minibatches are handed over again without being prepared.
    pub(crate) is_replayed: bool,
}

/// Who attaches.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) peer: Arc<Peer>,
}

impl Client {
    /// Returns true when the client has hung up, or its process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.outbox.is_gone() || self.peer.is_gone()
    }
}

/// A consumer's place in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seat {
    pub(crate) job: u64,
    pub(crate) rank: u32,
}

/// What a new consumer is given.
pub(crate) struct Admission {
    pub(crate) seat: Seat,
    pub(crate) attached: Attached,
    pub(crate) descriptors: [std::os::fd::OwnedFd; 4],
}

/// Jobs that share a pipeline.
pub(crate) struct Stream {
    pub(crate) blueprint: Blueprint,
    fields: Vec<Field>,
    /// Number of the fields that the maker writes, which come first.
    made: usize,
    pool: StagingPool,
    doorbell: Arc<Doorbell>,
    workers: Arc<Workers>,
    engine: Mutex<Engine>,
    /// If minibatches are to be handed over again.
    replay: Option<Replay>,
    /// Samples that no worker has begun.
    waiting: AtomicU32,
    counters: Counters,
    closed: AtomicBool,
    /// Number of jobs for which it was opened and that have not come yet. It is not closed before they have.
    expected: AtomicUsize,
    /// Its makers cannot go on: nobody is admitted any more.
    broken: AtomicBool,
    /// The driver is to break it off.
    doomed: AtomicBool,
}

impl Stream {
    /// Starts the driver of a stream whose staging area is reserved.
    pub(crate) fn open(
        blueprint: Blueprint,
        pool: StagingPool,
        workers: Arc<Workers>,
    ) -> Result<Arc<Stream>> {
        let engine = new_engine(&blueprint, &pool);
        let layout = pool.layout();
        let replay = blueprint
            .is_replayed
            .then(|| Replay::new(layout.buffers, layout.slots));
        let doorbell = Arc::new(Doorbell::new()?);
        // Whoever lets go of a minibatch last may be a worker, or another job.
        let rung = doorbell.clone();
        pool.on_free(move || rung.ring_if_resting());
        let stream = Arc::new(Stream {
            replay,
            made: blueprint.maker.made().len(),
            fields: blueprint.maker.fields(blueprint.numbers.are_ids()),
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
            blueprint,
        });
        stream.start_driver()?;
        Ok(stream)
    }

    fn start_driver(self: &Arc<Self>) -> Result<()> {
        let stream = Arc::downgrade(self);
        let builder = std::thread::Builder::new().name(format!("stream-{}", self.blueprint.id));
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

    /// Gives an engine up that may be half changed. Its jobs lose their connections, come again with what they were
    /// given, and find another stream. An empty engine takes its place, for whoever still has a sample or leaves.
    fn abandon(&self, engine: &mut Engine) {
        tracing::error!(
            parent: None,
            stream = self.blueprint.id,
            "a thread panicked while it held the stream: a defect of coprep, please report it"
        );
        self.give_up(engine);
    }

    fn give_up(&self, engine: &mut Engine) {
        self.prepare_nothing_more();
        let mut given_up = std::mem::replace(engine, new_engine(&self.blueprint, &self.pool));
        given_up.hang_up();
        // What is half changed may panic once more as it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(given_up)));
    }

    /// Has the driver break the stream off: for a thread that cannot take the lock.
    fn doom(&self) {
        self.doomed.store(true, Ordering::Release);
        self.doorbell.ring();
    }

    /// Adds a consumer. A job of several ranks begins when its last rank is here. `known`: ranks that have left the job.
    /// `None`: the stream has been closed.
    pub(crate) fn attach(
        self: &Arc<Self>,
        request: &Attach,
        known: &[Departure],
        client: &Client,
    ) -> Result<Option<Admission>> {
        let mut sender = Sender::create(self.ring_capacity(request.batch_size))?;
        let (deliver, reply) = sender.fds()?;
        let bell = self.doorbell.bell()?;
        let descriptors = [self.pool.reader_fd()?, deliver, reply, bell.fd()?];
        let consumer = Consumer::new(client.pid, client.outbox.clone(), sender, bell);
        self.serve_when_it_has_read(client);
        let mut engine = self.engine();
        // Asked under the lock under which a stream is closed, and whose holder hangs up on the jobs of a broken one.
        if self.is_closed() || self.is_broken() {
            return Ok(None);
        }
        let seat = engine.attach(request, known, &client.name, consumer)?;
        fail_point!("attach-locked");
        engine.share_buffers(self.pool.layout().buffers);
        let attached = self.attached(&engine, seat);
        Ok(Some(Admission {
            seat,
            attached,
            descriptors,
        }))
    }

    /// Begins to serve a consumer that has been told of its admission.
    pub(crate) fn begin(self: &Arc<Self>) {
        self.pump(&mut self.engine());
    }

    /// Errors that a client has no room for are published once it has read others.
    fn serve_when_it_has_read(&self, client: &Client) {
        let doorbell = self.doorbell.clone();
        client.outbox.on_room(move || doorbell.ring());
    }

    /// Returns which parts of its slots the maker writes.
    fn made(&self) -> Made<'_> {
        Made {
            layout: self.pool.layout(),
            fields: self.made,
        }
    }

    fn attached(&self, engine: &Engine, seat: Seat) -> Attached {
        let maker = &self.blueprint.maker;
        let all = self.blueprint.numbers.count(maker.samples());
        let (epoch, job_samples) = engine.position(seat).unwrap_or((0, all));
        Attached {
            stream: self.blueprint.id,
            job: seat.job,
            seed: self.blueprint.seed,
            dataset_samples: maker.samples(),
            job_samples,
            classes: maker.classes().to_vec(),
            fields: self.fields.clone(),
            slots: self.pool.layout().slots,
            buffers: self.pool.layout().buffers,
            large_bytes: self.pool.layout().large_limit(),
            epoch,
            structure: maker.structure().to_vec(),
            notes: Vec::new(),
            token: engine.token(seat),
        }
    }

    /// Returns room for every part of a full queue and of all buffers that can be held, within [`RING`].
    fn ring_capacity(&self, batch_size: u32) -> u32 {
        let layout = self.pool.layout();
        let parts = u64::from(layout.slots / batch_size.max(1)) + 2;
        let all = u64::from(QUEUE_DEPTH + layout.buffers) * parts + 64;
        all.min(RING).next_power_of_two() as u32
    }

    /// Removes a consumer, however it left. True: nobody is left.
    pub(crate) fn detach(self: &Arc<Self>, seat: Seat) -> bool {
        let mut engine = self.engine();
        engine.detach(seat);
        engine.share_buffers(self.pool.layout().buffers);
        self.pump(&mut engine);
        engine.is_empty()
    }

    /// Closes a stream that has no consumer: it admits none from now on. Returns true if it was open and empty; then the
    /// caller calls [`end`](Self::end).
    pub(crate) fn close_if_empty(&self) -> bool {
        let engine = self.engine();
        let is_unused = engine.is_empty() && self.expected.load(Ordering::Acquire) == 0;
        is_unused && !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Announces that many jobs, each of which will try to attach and then call [`has_come`](Self::has_come).
    pub(crate) fn expect(&self, jobs: usize) {
        self.expected.fetch_add(jobs, Ordering::AcqRel);
    }

    /// One that was expected has been admitted, or has not.
    pub(crate) fn has_come(&self) {
        self.expected.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the driver of a closed stream. Buffers and queues are freed when the last consumer lets go.
    ///
    /// Gives what is worth keeping for the next stream of the same user code.
    pub(crate) fn end(&self) -> Option<Resting> {
        self.doorbell.ring();
        self.blueprint.maker.crew()?.dismiss()
    }

    /// Its makers came to their end: every job is sent away, comes again with what it was given, and finds
    /// another stream.
    ///
    /// Nothing is drawn any more. A job that has not noticed yet still takes what lies ready for it, and must
    /// not find another minibatch in those buffers.
    pub(crate) fn break_off(&self, trouble: &Trouble) {
        tracing::warn!(parent: None, stream = self.blueprint.id, error = %trouble, "a stream is opened anew");
        self.give_up(&mut self.engine());
    }

    /// Returns whether any job was given something.
    pub(crate) fn has_delivered(&self) -> bool {
        self.counters.totals().delivered > 0
    }

    /// Prepares nothing more, and admits nobody. To be called before its jobs' connections are ended.
    pub(crate) fn retire(&self) {
        // Under the lock, so that no thread is in the middle of filling a buffer when this returns.
        let _engine = self.engine();
        self.prepare_nothing_more();
    }

    /// To be called under the lock, before the jobs' connections are ended: see [`StagingPool::retire`].
    fn prepare_nothing_more(&self) {
        self.broken.store(true, Ordering::Release);
        self.pool.retire();
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(crate) fn epoch_started(self: &Arc<Self>, seat: Seat, epoch: u64) {
        let mut engine = self.engine();
        // What it took before belongs to the epoch before.
        self.pump(&mut engine);
        engine.epoch_started(seat, epoch);
        self.pump(&mut engine);
    }

    /// A consumer tells the order of an epoch that it begins, or was handed before.
    pub(crate) fn tell_order(
        self: &Arc<Self>,
        seat: Seat,
        epoch: u64,
        order: Order,
        is_settled: bool,
    ) {
        let mut engine = self.engine();
        engine.tell_order(seat, epoch, order, is_settled);
        self.pump(&mut engine);
    }

    /// The consumer leaves `epoch`; answered when every rank of its job has asked.
    pub(crate) fn restart_epoch(self: &Arc<Self>, seat: Seat, epoch: u64) {
        let mut engine = self.engine();
        engine.restart_epoch(seat, epoch);
        self.pump(&mut engine);
    }

    pub(crate) fn state(&self, seat: Seat, epoch: u64, batches: u64) -> Result<Resume> {
        self.engine().state(seat, epoch, batches)
    }

    pub(crate) fn explain(&self, seat: Seat) -> String {
        let text = explain::explain(&self.engine(), seat, self.pool.free(), &self.blueprint);
        let stuck = self.blueprint.maker.crew().map_or(0, |crew| crew.stuck());
        if stuck == 0 {
            return text;
        }
        format!(
            "{text}; {stuck} workers wait for memory, because what is prepared or held takes most of the {} KiB that \
             samples may take which are larger than most (--staging, COPREP_STAGING)",
            self.pool.layout().large_limit() >> 10
        )
    }

    /// Returns whom a consumer waits for, if that is somebody else and not its samples.
    pub(crate) fn who_is_awaited(&self, seat: Seat) -> Option<Awaited> {
        explain::who_is_awaited(&self.engine(), seat)
    }

    pub(crate) fn status(&self, slow: u32) -> StreamStatus {
        let layout = self.pool.layout();
        let costs = self.cost_status(slow);
        let engine = self.engine();
        StreamStatus {
            id: self.blueprint.id,
            dataset: self.blueprint.dataset_name.clone(),
            samples: self.blueprint.maker.samples(),
            pipeline: self.blueprint.pipeline_text.clone(),
            seed: self.blueprint.seed,
            cache: self.blueprint.key.cache,
            relaxed: self.blueprint.key.relaxed,
            costs,
            worker_pids: self.blueprint.maker.crew().map_or(Vec::new(), |c| c.pids()),
            busy_workers: self.blueprint.maker.crew().map_or(0, |c| c.busy()),
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
        let Some(costs) = self.blueprint.maker.costs() else {
            return CostStatus::default();
        };
        let sample = |(id, cost): (u32, coprep_costs::Cost)| SampleCost {
            id,
            path: self.blueprint.maker.path(id),
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

    /// Looks at every consumer, decides, starts and publishes. True: something happened.
    fn pump(self: &Arc<Self>, engine: &mut Engine) -> bool {
        fail_point!("pump-locked");
        // A job whose connection was ended goes on with what it has taken until it notices. So from then on no buffer
        // is filled again, not even one that a job has just given back by leaving.
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

    /// The driver sleeps until `look_again`, but it may be asleep already, until `before` if that is known.
    fn wake_driver_for(&self, look_again: Option<Instant>, before: Option<Instant>) {
        let is_sooner = |at: Instant| before.is_none_or(|before| at + SOON < before);
        if look_again.is_some_and(is_sooner) {
            self.doorbell.ring();
        }
    }

    /// Draws a minibatch. Makes room for it if need be.
    fn next_minibatch(&self, engine: &mut Engine) -> Option<Minibatch> {
        loop {
            let minibatch = engine.scheduler.next(self.pool.to_begin());
            if minibatch.is_some() || !engine.make_room() {
                return minibatch;
            }
        }
    }

    /// Late, so that a minibatch is for the jobs as they are when it is prepared, and before a worker is idle. But so
    /// early that slow samples can be begun in time.
    fn is_time_to_draw(&self, engine: &Engine) -> bool {
        self.waiting.load(Ordering::Relaxed) < self.few_waiting()
            || (engine.in_preparation.len() as u32) < engine.window
    }

    fn few_waiting(&self) -> u32 {
        match self.blueprint.maker.crew() {
            Some(crew) => crew.few_waiting(),
            None => 2 * self.workers.threads(),
        }
    }

    fn worker_count(&self) -> u32 {
        match self.blueprint.maker.crew() {
            Some(crew) => crew.workers(),
            None => self.workers.threads(),
        }
    }

    /// A worker begins a sample.
    fn sample_begun(self: &Arc<Self>) {
        if self.waiting.fetch_sub(1, Ordering::Relaxed) == self.few_waiting() {
            self.pump(&mut self.engine());
        }
    }

    fn publish(&self, engine: &mut Engine) {
        let lacks = || self.blueprint.maker.lacks(&self.workers);
        self.counters.add_delivered(engine.publish(lacks));
    }

    /// Gives a minibatch its buffer and its samples to the workers.
    fn start(self: &Arc<Self>, engine: &mut Engine, minibatch: Minibatch) {
        let Some(filling) = self.pool.allocate() else {
            // The scheduler was told of a free buffer, and only this thread allocates under the lock.
            tracing::error!(parent: None, stream = self.blueprint.id, "no staging buffer for a minibatch that was drawn");
            return;
        };
        let samples = engine.samples(&minibatch);
        let (slots, unfinished) = filling.split(samples.len() as u32);
        let deliveries = minibatch.deliveries.len() as u32;
        engine.drawn += 1;
        let batch = Arc::new(Batch::new(
            engine.drawn,
            minibatch.targets,
            samples.len() as u32,
            deliveries,
            unfinished,
        ));
        let starts = self.starts(engine, &samples);
        let lacks = self.blueprint.maker.lacks(&self.workers);
        engine.expect(&batch, minibatch.deliveries, &lacks);
        self.waiting
            .fetch_add(samples.len() as u32, Ordering::Relaxed);
        let is_relaxed = self.blueprint.key.relaxed;
        let is_ahead = engine.window > 0;
        for (place, ((slot, draw), start)) in slots.into_iter().zip(samples).zip(starts).enumerate()
        {
            let berth = Berth {
                batch: batch.clone(),
                slot,
                place: place as u32,
            };
            let is_filled = |replay: &Replay| replay.is_filled(batch.buffer, berth.slot.slot());
            let plan = Plan {
                start,
                due: is_ahead.then(|| engine.plan.due()),
                // In relaxed order it may come to another slot.
                is_there: !is_relaxed && self.replay.as_ref().is_some_and(is_filled),
            };
            let work = if is_relaxed {
                let ticket = engine.afloat.add(draw.number, engine.drawn, berth);
                SampleWork::afloat(self.clone(), ticket, batch.clone(), draw, plan)
            } else {
                SampleWork::bound(self.clone(), berth, draw, plan)
            };
            self.assign(start, work);
        }
    }

    /// When each sample of a minibatch is to be begun; see [`coprep_costs::early`].
    fn starts(&self, engine: &mut Engine, samples: &[Drawn]) -> Vec<Moment> {
        let now = Moment::now();
        let maker = &self.blueprint.maker;
        let Some(costs) = maker.costs() else {
            return vec![now; samples.len()];
        };
        let lately = costs.lately();
        let mean = lately.map_or(0.0, |lately| lately.mean);
        let period = mean * samples.len() as f32 / self.worker_count() as f32;
        engine.window = lately.map_or(0, |lately| self.window(&lately, samples.len(), period));
        if engine.window == 0 {
            let start = Moment::at(engine.plan.pause(now.seconds()));
            return vec![start; samples.len()];
        }
        let known: Vec<Option<f32>> = samples.iter().map(|draw| maker.expected(draw.id)).collect();
        let expected: Vec<f32> = known.iter().map(|cost| cost.unwrap_or(mean)).collect();
        let first = engine.in_preparation.first().map(|batch| batch.number);
        let ahead = first.map_or(0, |first| engine.drawn - first) as u32;
        let workers = self.worker_count();
        let starts = (engine.plan).draw(now.seconds(), ahead, &expected, workers, period);
        let start = |(start, known): (f64, Option<f32>)| match known {
            Some(_) => Moment::at(start),
            // Looked at first, or begun at once: it may be slow.
            None => now,
        };
        starts.into_iter().zip(known).map(start).collect()
    }

    /// Minibatches of so many samples to draw ahead, `period` seconds apart.
    fn window(&self, lately: &Summary, samples: usize, period: f32) -> u32 {
        let most = LOOKAHEAD.min(self.pool.layout().buffers.saturating_sub(2));
        let spread = match self.blueprint.key.relaxed {
            // A slow sample holds nobody up but at the epoch's end.
            true => 0,
            false => early::SPREAD,
        };
        early::window_needed(lately, samples as u32, period, spread, most)
    }

    /// The same for a sample that has been looked at, and is expected to take so long.
    fn start_of_one(due: f64, expected: Option<f32>) -> Moment {
        // A second one may be before it.
        Moment::at(due - 2.0 * f64::from(expected.unwrap_or(0.0)))
    }

    /// Beyond which a sample counts as slow.
    fn budget(&self) -> Option<Duration> {
        let budget = self.blueprint.maker.costs().and_then(|c| c.budget());
        budget.map(Duration::from_secs_f32)
    }

    /// Offers a sample's slot to the process that makes it: buffer and slot.
    fn offer(&self, ticket: Ticket, given: Given) -> Option<(u32, u32)> {
        let budget = self.budget();
        self.engine().afloat.offer(ticket, budget, given)
    }

    /// Binds a sample that is about to be written to a slot.
    fn claim(&self, ticket: Ticket) -> Berth {
        let budget = self.budget();
        let berth = self.engine().claim(ticket, budget);
        berth.unwrap_or_else(|| GivenUp::unwind())
    }

    /// Binds a sample to the slot that it was drawn for.
    fn take(&self, ticket: Ticket) -> Berth {
        self.try_take(ticket).unwrap_or_else(|| GivenUp::unwind())
    }

    /// The same. Returns `None` if the stream was given up meanwhile, with the slot.
    fn try_take(&self, ticket: Ticket) -> Option<Berth> {
        self.engine().afloat.take(ticket)
    }

    fn assign(self: &Arc<Self>, start: Moment, work: SampleWork) {
        match &self.blueprint.maker {
            Maker::Crew { crew, prepared, .. }
                if !work.is_there() && !is_in(prepared.as_deref(), work.id()) =>
            {
                crew.submit(start, Box::new(work));
            }
            _ => self.workers.submit(start, Box::new(work)),
        }
    }

    fn minibatch_done(self: &Arc<Self>, batch: &Batch) {
        fail_point!("minibatch-done");
        batch.finish();
        if batch.done().is_none() {
            // Another thread panicked as it closed the gaps.
            self.doom();
        }
        self.pump(&mut self.engine());
    }
}

fn new_engine(blueprint: &Blueprint, pool: &StagingPool) -> Engine {
    let config = Config {
        samples: blueprint.numbers.count(blueprint.maker.samples()),
        slots: pool.layout().slots,
        depth: QUEUE_DEPTH,
        low_water: LOW_WATER,
        seed: blueprint.seed,
        order: blueprint.key.draw_order(),
        is_told: blueprint.key.told != 0,
    };
    Engine::new(blueprint, Scheduler::new(config))
}

fn is_in(cache: Option<&Cache>, id: u32) -> bool {
    cache.is_some_and(|cache| cache.store.has(id))
}

/// The driver: looks around whenever a consumer rings.
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
        let longest = nap(NAP);
        let rest = look_again.map_or(longest, |at| at.saturating_duration_since(Instant::now()));
        self.doorbell.wait(rest.min(longest));
        self.engine().disarm();
    }

    /// Leaves every consumer armed: it rings from now on. What it did before is seen here. Returns when to look again, if
    /// somebody lacks what another may hold without reading.
    fn pump_until_quiet(self: &Arc<Self>) -> Option<Instant> {
        let mut engine = self.engine();
        while self.pump(&mut engine) {}
        // From here on whoever changes something rings: consumers, and whoever frees a buffer.
        self.doorbell.rest();
        engine.arm();
        while self.pump(&mut engine) {}
        engine.look_again
    }
}
