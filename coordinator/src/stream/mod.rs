//! A stream: the jobs that share one pipeline, their scheduler and their staging area.
//!
//! One mutex guards the [`engine`], the state that decides. A thread that holds it never waits. Three kinds of thread
//! take it: sessions (a job comes or goes), workers (a minibatch is done) and the stream's own driver, which sleeps on
//! the doorbell and is woken when a consumer takes or releases something. Samples are prepared outside it.
//!
//! * [`config`]: the properties of a stream. [`status`]: its state, for people. [`counters`]: its work so far.
//! * [`driver`]: the stream's own thread.
//! * [`drawing`]: a minibatch is drawn, and its samples go to their producers.
//! * [`numbers`], [`layout`]: the samples that are drawn, and the staging area that they go to.
//! * [`sample`]: one sample, until its slot is written. [`batch`]: its minibatch, until all slots are.
//! * [`late_binding`]: slots that are decided late. [`replay`]: slots that stay as they are.
//! * [`gpus`]: rings on the GPUs of its consumers, to which minibatches are copied once.
//! * [`servers`]: the jobs that give the fork server of their code.
//! * [`consumer`]: one rank, and the items that wait for it. [`pace`]: how far a job is prepared for beyond an epoch.

mod batch;
mod config;
mod consumer;
mod counters;
mod drawing;
mod driver;
mod engine;
mod gpus;
mod late_binding;
mod layout;
mod numbers;
mod pace;
mod replay;
mod sample;
mod servers;
mod status;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use coprep_protocol::message::{Attach, Attached, Departure, ResumePoint};
use coprep_protocol::spec::Field;
use coprep_scheduler::{Config, Scheduler};
use coprep_shared_memory::handover::{Bell, Doorbell, Sender};
use coprep_shared_memory::staging::StagingPool;
use fail::fail_point;

use crate::Result;
use crate::error::from_lower;
use crate::produce::processes::Trouble;
use crate::produce::threads::ThreadPool;
pub(crate) use crate::stream::config::{Client, RankId, Registration, StreamConfig, StreamKey};
use crate::stream::consumer::Consumer;
pub(crate) use crate::stream::consumer::LeftAt;
use crate::stream::counters::Counters;
use crate::stream::engine::Engine;
pub(crate) use crate::stream::engine::departed::Leaver;
pub(crate) use crate::stream::engine::orders::{EpochOrder, cohort_key};
pub(crate) use crate::stream::layout::{layout, most_blob, slots};
pub(crate) use crate::stream::numbers::{Drawn, Numbers, fingerprint};
use crate::stream::replay::Replay;
use crate::stream::sample::ProducerFields;

/// Largest number of minibatches in a rank's queue, if there are buffers for them. Jobs of about one speed drift apart
/// by some minibatches; in a queue of 16 they stay together more often than in one of 8 (docs/explanation/scheduler.md).
const QUEUE_DEPTH: u32 = 16;
/// Number of queued minibatches below which a job is about to starve.
const LOW_WATER: u32 = 2;
/// Largest number of items of a consumer that are published and not released. Further items wait in the coordinator
/// until some are released. A consumer that would hold more than half of them copies instead.
const RING: u64 = 4096;

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
    /// Number of rings that were opened.
    rings: AtomicU32,
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
        let doorbell = Arc::new(Doorbell::new().map_err(from_lower)?);
        // The last reader of a minibatch may be a worker, or another job.
        let rung = doorbell.clone();
        pool.on_free(move || rung.ring_if_idle());
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
            rings: AtomicU32::new(0),
            broken: AtomicBool::new(false),
            doomed: AtomicBool::new(false),
            config,
        });
        stream.start_driver()?;
        Ok(stream)
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
        // Before the hang-up, which frees buffers that no thread may fill again.
        self.prepare_nothing_more();
        let mut given_up = std::mem::replace(engine, new_engine(&self.config, &self.pool));
        given_up.hang_up();
        // A half-changed engine may panic once more as it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(given_up)));
    }

    /// Makes the hand-over to one consumer: the sending end, the consumer's bell, and the descriptors for its client.
    fn hand_over(
        &self,
        request: &Attach,
    ) -> coprep_shared_memory::Result<(Sender, Bell, [OwnedFd; 4])> {
        let mut sender = Sender::create(self.ring_capacity(request.batch_size))?;
        let (deliver, reply) = sender.fds()?;
        let bell = self.doorbell.bell()?;
        let descriptors = [self.pool.reader_fd()?, deliver, reply, bell.fd()?];
        Ok((sender, bell, descriptors))
    }

    /// Adds a consumer. A job of several ranks begins when its last rank is here. `known` lists ranks that have left
    /// the job. Returns `None` if the stream has been closed.
    pub(crate) fn attach(
        self: &Arc<Self>,
        request: &Attach,
        known: &[Departure],
        client: &Client,
    ) -> Result<Option<Registration>> {
        // Files and memory are made before the lock is taken, because that may take a while, or fail.
        let (sender, bell, descriptors) = self.hand_over(request).map_err(from_lower)?;
        let mut consumer = Consumer::new(client.pid, client.reply_queue.clone(), sender, bell);
        consumer.is_persistent = request.code.as_ref().is_some_and(|c| c.is_persistent);
        consumer.is_unproven = client.is_unproven.clone();
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
            unshared: Vec::new(),
            left_out: None,
            token: engine.token(rank_id),
        }
    }

    /// Returns a number for a ring, by which items name it. No other ring of the stream has it, and it is not 0.
    fn next_ring(&self) -> u32 {
        self.rings.fetch_add(1, Ordering::Relaxed) + 1
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
        // Several threads may find it empty, and only the first may end it.
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
    pub(crate) fn end(&self) {
        // The driver may be asleep. It wakes, finds the stream closed, and ends.
        self.doorbell.ring();
        if let Some(process_pool) = self.config.producer.process_pool() {
            process_pool.dismiss();
        }
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

    /// Records that a consumer begins to iterate an epoch. Returns `true` if it should give a fork server.
    pub(crate) fn epoch_started(self: &Arc<Self>, rank_id: RankId, epoch: u64) -> bool {
        let mut engine = self.engine();
        // Samples that it took before belong to the epoch before.
        self.pump(&mut engine);
        engine.epoch_started(rank_id, epoch);
        let wants_server = self.wants_server_of(&mut engine, rank_id);
        self.pump(&mut engine);
        wants_server
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

    /// Leaves an epoch on behalf of a consumer. The answer is sent when every rank of its job has asked.
    pub(crate) fn restart_epoch(self: &Arc<Self>, rank_id: RankId, left: LeftAt) {
        let mut engine = self.engine();
        engine.restart_epoch(rank_id, left);
        self.pump(&mut engine);
    }

    pub(crate) fn state(&self, rank_id: RankId, epoch: u64, batches: u64) -> Result<ResumePoint> {
        self.engine().state(rank_id, epoch, batches)
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
        windows: config.windows.clone(),
    };
    Engine::new(config, Scheduler::new(for_scheduler))
}
