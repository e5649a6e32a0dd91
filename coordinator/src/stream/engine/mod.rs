//! The deciding state of a stream: its jobs, the samples that each still needs, and the minibatches on their way to
//! consumers.
//!
//! No thread waits while it holds this state, and nothing in it outlives its owner: dropping a consumer releases its
//! buffers.

pub(super) mod absent;
mod cohorts;
pub(super) mod departed;
mod epochs;
pub(super) mod explain;
mod forming;
pub(super) mod gpus;
pub(super) mod orders;
mod requests;
pub(super) mod server_search;
mod skipping;
mod status;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use coprep_costs::lookahead::StartPlan;
use coprep_protocol::message::{Attach, Departure, SampleError, Stalls};
use coprep_scheduler::{Behind, Delivery, JobId, JobSpec, Minibatch, Scheduler};
use roaring::RoaringBitmap;

use crate::Result;
use crate::device::GpuKey;
use crate::error::{from_lower, invalid};
use crate::observe::stalls::StallClock;
use crate::stream::batch::PendingBatch;
use crate::stream::consumer::{Consumer, ConsumerProgress, Pending};
use crate::stream::engine::departed::{Leaver, Membership};
use crate::stream::engine::forming::{RankDistances, RankResume, merge_resume};
use crate::stream::engine::gpus::StreamGpu;
use crate::stream::engine::orders::CohortOrders;
use crate::stream::engine::requests::{agree, job_spec};
use crate::stream::engine::server_search::ServerSearch;
use crate::stream::engine::skipping::Failures;
use crate::stream::engine::status::add_stalls;
use crate::stream::late_binding::{BindingId, BoundSlot, SlotBinder};
use crate::stream::{Drawn, Numbers, RankId, StreamConfig};

/// The deciding state of a stream; see the module.
pub(crate) struct Engine {
    /// Number of the stream, for the log.
    pub(super) stream: u64,
    pub(crate) scheduler: Scheduler,
    /// Maps the scheduler's numbers to samples.
    pub(crate) numbers: Numbers,
    pub(super) orders: CohortOrders,
    /// Number of samples of the dataset.
    pub(super) dataset_samples: u32,
    pub(crate) jobs: BTreeMap<u64, AttachedJob>,
    /// Minibatches in preparation or waiting to be published. Used for explanations.
    pub(crate) in_preparation: Vec<Arc<PendingBatch>>,
    /// For relaxed order: the samples that are not bound to a slot.
    pub(crate) late_binding: SlotBinder,
    /// Number of exchanges of slots between two samples.
    pub(crate) slot_swaps: u64,
    /// Number of minibatches drawn.
    pub(crate) drawn: u64,
    /// Number of minibatches that are drawn ahead, because some samples are slow.
    pub(crate) window: u32,
    /// Planned start times of the samples of these minibatches, in a
    /// [`Deadline`](crate::produce::deadline_queue::Deadline)'s seconds.
    pub(crate) plan: StartPlan,
    /// Time of the next check whether a job that others wait for reads.
    pub(crate) next_check: Option<Instant>,
    /// `true` if consumers may hold less, because some hold more than their share.
    pub(super) is_share_short: bool,
    next_job: u64,
    next_tag: u64,
    /// Waits of the consumers that have left, by cause.
    stalls_of_gone: Stalls,
    /// Samples that have failed, and whose failure was logged.
    failed: RoaringBitmap,
    pub(super) failures: Failures,
    /// Errors that may still have to be sent to jobs.
    unsent: Vec<Weak<SampleError>>,
    /// The GPUs that batches go to.
    gpus: BTreeMap<GpuKey, StreamGpu>,
    /// The search for a fork server.
    pub(super) servers: ServerSearch,
}

/// A training run that is attached to a stream.
pub(crate) struct AttachedJob {
    pub(crate) name: String,
    /// Name that groups its ranks.
    group: String,
    pub(crate) batch_size: u32,
    pub(crate) skip_errors: bool,
    /// By rank: the consumer, or `None` if the rank is not here yet or has left.
    pub(crate) ranks: Vec<Option<Consumer>>,
    /// The request to the scheduler, until all ranks are here.
    pub(crate) forming: Option<JobSpec>,
    /// By rank: the point from which it resumes.
    pub(super) resumes: Vec<RankResume>,
    pub(super) membership: Membership,
    /// `true` if its ranks were sent away to meet again in another job. It is given nothing more.
    pub(super) is_over: bool,
    /// See [`Attach::has_begun`].
    pub(super) has_begun: bool,
    /// The epoch whose order its client knows; see [`Attach::knows_order_of`]. `None` as soon as it has told it.
    pub(super) knows_order_of: Option<u64>,
    /// The epoch, and the number of its batches that all ranks had been given, when the job was formed.
    pub(super) level: (u64, u64),
    /// Number of samples in a batch for each rank, or in the epoch if these are fewer.
    pub(super) round: u64,
    delivered: u64,
    pub(super) came: Instant,
}

impl Engine {
    pub(crate) fn new(config: &StreamConfig, scheduler: Scheduler) -> Self {
        Engine {
            stream: config.id,
            scheduler,
            numbers: config.numbers.clone(),
            orders: CohortOrders::default(),
            dataset_samples: config.producer.samples(),
            jobs: BTreeMap::new(),
            in_preparation: Vec::new(),
            late_binding: SlotBinder::default(),
            slot_swaps: 0,
            drawn: 0,
            window: 0,
            plan: StartPlan::new(),
            next_check: None,
            is_share_short: false,
            next_job: 1,
            stalls_of_gone: Stalls::default(),
            next_tag: 0,
            failed: RoaringBitmap::new(),
            failures: Failures::default(),
            unsent: Vec::new(),
            gpus: BTreeMap::new(),
            servers: ServerSearch::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    // Attaching and detaching.

    pub(crate) fn attach(
        &mut self,
        request: &Attach,
        known: &[Departure],
        name: &str,
        consumer: Consumer,
    ) -> Result<RankId> {
        self.check(request)?;
        if request.cohort.is_some() {
            self.forget_who_has_hung_up();
        }
        self.check_rank_is_free(request, &consumer)?;
        let departed = self.departed(request, known)?;
        let spec = job_spec(request)?;
        let id = match self.forming_job(request, &departed) {
            Some(id) => self.join_ranks(id, &spec)?,
            None => self.new_job(request, name, spec)?,
        };
        let Some(job) = self.jobs.get_mut(&id) else {
            return Err(invalid("the job has just left"));
        };
        let rank = request.rank as usize;
        job.membership.note(request);
        job.has_begun |= request.has_begun;
        // `check` and `forming_job` have made sure that the job has this rank.
        job.ranks[rank] = Some(consumer);
        job.resumes[rank] = request
            .resume
            .as_ref()
            .map_or_else(RankResume::default, RankResume::of);
        let rank_id = RankId {
            job: id,
            rank: request.rank,
        };
        self.share_departures(rank_id, &request.departed, &departed);
        self.start_if_complete(id, request.rank)?;
        Ok(rank_id)
    }

    /// Removes consumers whose clients have hung up and whose sessions are about to end, because a member of a cohort
    /// that attaches again needs its place.
    fn forget_who_has_hung_up(&mut self) {
        let has_hung_up = |job: &AttachedJob| match &job.ranks[..] {
            [Some(only)] => only.reply_queue.is_gone(),
            // The session of a rank decides whether the other ranks continue without it.
            _ => false,
        };
        let jobs = self.jobs.iter();
        let gone: Vec<u64> = jobs
            .filter(|(_, job)| has_hung_up(job))
            .map(|(&id, _)| id)
            .collect();
        for job in gone {
            self.detach(RankId { job, rank: 0 });
        }
    }

    /// Refuses a rank if another process waits as this rank of a job of this name: the ranks of two jobs would form one.
    /// A job that has begun knows its ranks by their tokens.
    fn check_rank_is_free(&self, request: &Attach, consumer: &Consumer) -> Result<()> {
        if request.world_size == 1 || !request.tokens.is_empty() {
            return Ok(());
        }
        let is_new = |job: &&AttachedJob| job.forms_for(request) && !job.membership.has_begun();
        let mut jobs = self.jobs.values().filter(is_new);
        let of_another = |job: &AttachedJob| {
            let there = job.ranks[request.rank as usize].as_ref()?;
            let is_another = there.pid != consumer.pid && !there.reply_queue.is_gone();
            is_another.then_some(there.pid)
        };
        match jobs.find_map(of_another) {
            Some(pid) => Err(invalid(format!(
                "process {pid} waits as rank {} of {} of {:?} already",
                request.rank, request.world_size, request.group
            ))
            .with_remedy("give each job another group=, and each of its ranks another rank=")),
            None => Ok(()),
        }
    }

    /// Returns a forming job that still waits for this rank: the job that it belonged to, or else one of the same
    /// group.
    fn forming_job(&self, request: &Attach, departed: &[Leaver]) -> Option<u64> {
        let fits =
            |job: &AttachedJob| job.forms_for(request) && job.can_be_joined(request, departed);
        let fitting = || self.jobs.iter().filter(|(_, job)| fits(job));
        let is_its_own = |job: &AttachedJob| job.membership.is_of_any(&request.tokens);
        let own = fitting().find(|(_, job)| is_its_own(job));
        own.or_else(|| fitting().next()).map(|(&id, _)| id)
    }

    /// Adds a rank to a forming job. The samples that any of its ranks was given count as given to the job. The ranks
    /// must agree on everything else.
    ///
    /// If ranks present different epochs, the ranks with the earlier one were given all of it
    /// ([`AttachedJob::last_epoch`]), or left it together with the others.
    fn join_ranks(&mut self, id: u64, spec: &JobSpec) -> Result<u64> {
        let forming = self.jobs.get_mut(&id).and_then(|job| job.forming.as_mut());
        let Some(forming) = forming else {
            return Ok(id);
        };
        agree(forming, spec)?;
        if let Some(resume) = &spec.resume {
            merge_resume(forming, resume);
        }
        Ok(id)
    }

    fn new_job(&mut self, request: &Attach, name: &str, spec: JobSpec) -> Result<u64> {
        if request.world_size > 1 {
            // Checked now, so that the first rank hears of an error, and not only the last one to attach.
            let begun_anew = JobSpec {
                resume: None,
                ..spec.clone()
            };
            self.scheduler.admits(&begun_anew).map_err(from_lower)?;
        }
        let id = self.next_job;
        self.next_job += 1;
        let job = AttachedJob {
            name: name.to_owned(),
            group: request.group.clone(),
            batch_size: request.batch_size,
            skip_errors: request.skip_errors,
            ranks: (0..request.world_size).map(|_| None).collect(),
            forming: Some(spec),
            resumes: vec![RankResume::default(); request.world_size as usize],
            membership: Membership::new(&request.tokens),
            is_over: false,
            has_begun: false,
            knows_order_of: request.knows_order_of,
            level: (0, 0),
            round: u64::from(request.batch_size) * u64::from(request.world_size),
            delivered: 0,
            came: Instant::now(),
        };
        self.jobs.insert(id, job);
        Ok(id)
    }

    /// Starts a job if all its ranks are here. If it cannot start, the caller tells `rank` why. The other ranks lose
    /// their connections, and are told when they attach again.
    pub(super) fn start_if_complete(&mut self, id: u64, rank: u32) -> Result<()> {
        let started = self.start(id);
        if started.is_err() {
            let ranks = self.jobs.remove(&id).map_or(Vec::new(), |job| job.ranks);
            let others = ranks
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != rank as usize);
            others
                .filter_map(|(_, other)| other.as_ref())
                .for_each(|c| c.reply_queue.hang_up());
        }
        started
    }

    fn start(&mut self, id: u64) -> Result<()> {
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        if job.awaits_any() {
            return Ok(());
        }
        let Some(mut spec) = job.forming.take() else {
            return Ok(());
        };
        if let Some(resume) = spec.resume.as_mut().filter(|_| !self.numbers.are_ids()) {
            // These are ids. In the next epoch the numbers for which they were drawn stand for other samples, so no
            // number is bad.
            resume.bad.clear();
        }
        let epoch = spec.resume.as_ref().map_or(0, |r| r.epoch);
        let RankDistances {
            most,
            behind,
            forfeited,
            others_are_done,
        } = job.rank_distances(epoch)?;
        job.level = (epoch, most);
        let behind = Behind {
            batches: &behind,
            others_are_done,
            forfeited,
        };
        self.scheduler
            .attach_behind(JobId(id), spec, behind)
            .map_err(from_lower)?;
        if let Some(view) = self.scheduler.job(JobId(id)) {
            job.round = job.round.min(view.samples.into());
        }
        let gone = job.gone();
        gone.into_iter()
            .for_each(|rank| self.has_gone(RankId { job: id, rank }));
        self.hand_orders(id);
        self.note_begun_epochs(id);
        self.end_resumed_epoch(id, epoch);
        self.tell_skipped_before(id);
        self.answer_who_left_before(id);
        self.restart_if_all_ask(id);
        Ok(())
    }

    /// Removes one rank. The job ends with its last rank.
    pub(crate) fn detach(&mut self, rank_id: RankId) {
        let Some(job) = self.jobs.get_mut(&rank_id.job) else {
            return;
        };
        let rank = job.ranks.get_mut(rank_id.rank as usize);
        if let Some(consumer) = rank.and_then(Option::take) {
            add_stalls(&mut self.stalls_of_gone, &consumer.sender.account());
            self.leave_gpu(&consumer);
        }
        let Some(job) = self.jobs.get(&rank_id.job) else {
            return;
        };
        if job.ranks.iter().any(Option::is_some) {
            self.has_gone(rank_id);
            // The other ranks may have waited only for this one.
            return self.restart_if_all_ask(rank_id.job);
        }
        let begun = job.forming.is_none();
        self.jobs.remove(&rank_id.job);
        if begun {
            self.scheduler.detach(JobId(rank_id.job));
        }
        if self.jobs.is_empty() {
            self.forget_orders();
        }
    }

    /// Makes a rank that has left hold nobody up: it counts as having taken all its deliveries and begun every epoch.
    fn has_gone(&mut self, rank_id: RankId) {
        let id = JobId(rank_id.job);
        if let Some(view) = self.scheduler.job(id) {
            self.scheduler
                .taken(id, rank_id.rank, view.queued(rank_id.rank));
            self.scheduler.epoch_started(id, rank_id.rank, u64::MAX);
        }
    }

    pub(super) fn consumers(&mut self) -> impl Iterator<Item = &mut Consumer> {
        self.jobs
            .values_mut()
            .flat_map(|job| job.ranks.iter_mut().flatten())
    }

    /// Returns `true` if a consumer has nothing to take while a minibatch is being prepared for it, or would be if
    /// there were buffers.
    pub(super) fn is_any_consumer_short(&mut self) -> bool {
        self.scheduler.lacks_buffers() || self.consumers().any(|c| c.lacks_a_minibatch())
    }

    pub(super) fn consumer(&mut self, rank_id: RankId) -> Option<&mut Consumer> {
        self.jobs
            .get_mut(&rank_id.job)?
            .ranks
            .get_mut(rank_id.rank as usize)?
            .as_mut()
    }

    // The round: reads the actions of consumers, and hands over minibatches.

    /// Reads which items every consumer took and released. Returns `true` if something changed.
    pub(crate) fn poll(&mut self) -> bool {
        let mut progress = false;
        let scheduler = &mut self.scheduler;
        for (&id, job) in &mut self.jobs {
            let mut reads = false;
            for (rank, consumer) in job.ranks.iter_mut().enumerate() {
                let Some(c) = consumer else { continue };
                match c.poll() {
                    Ok(p) => {
                        progress |= p.any;
                        note_taken(scheduler, id, rank, &p);
                        // A job that counted as absent is back as soon as one rank takes something or waits.
                        reads |= c.sender.is_absent() && (p.took || c.sender.is_waiting());
                    }
                    Err(violation) => end(c, &violation),
                }
            }
            if reads {
                job.set_absent(false);
                scheduler.set_absent(JobId(id), false);
                progress = true;
            }
        }
        if !self.gpus.is_empty() {
            progress |= self.poll_rings(Instant::now());
        }
        progress
    }

    /// Hands over all minibatches that are ready, and returns the number of samples.
    ///
    /// `stall_clock` returns the pool's clock, and is called only if something is handed over.
    pub(crate) fn publish(&mut self, stall_clock: impl FnOnce() -> StallClock) -> u64 {
        let mut delivered = 0;
        if !self.gpus.is_empty() {
            self.fill_rings(Instant::now());
        }
        // Reading the clock takes the lock of a pool.
        let stall_clock = if self.jobs.values().any(AttachedJob::has_ready) {
            stall_clock()
        } else {
            StallClock::default()
        };
        for job in self.jobs.values_mut().filter(|job| !job.is_over) {
            let last_epoch = job.last_epoch();
            for consumer in job.ranks.iter_mut().flatten() {
                let ring = gpus::ring_of(&self.gpus, consumer);
                match consumer.flush(&stall_clock, last_epoch, ring) {
                    Ok(samples) => {
                        job.delivered += samples;
                        delivered += samples;
                    }
                    Err(violation) => end(consumer, &violation),
                }
            }
        }
        self.in_preparation.retain(|batch| batch.done().is_none());
        delivered
    }

    /// Records the consumers that a minibatch will go to.
    pub(crate) fn expect(
        &mut self,
        batch: &Arc<PendingBatch>,
        deliveries: Vec<Delivery>,
        stall_clock: &StallClock,
    ) {
        self.in_preparation.push(batch.clone());
        for delivery in deliveries {
            let rank_id = RankId {
                job: delivery.job.0,
                rank: delivery.rank,
            };
            let (epoch, ends_epoch) = (delivery.epoch, delivery.ends_epoch);
            // The rank has left: its delivery counts as taken at once.
            let Some(consumer) = self.consumer(rank_id) else {
                batch.one_delivery_less();
                self.scheduler.taken(JobId(rank_id.job), rank_id.rank, 1);
                continue;
            };
            consumer.expect(batch.clone(), delivery, stall_clock);
            if ends_epoch {
                consumer.pending.push_back(Pending::EpochEnd { epoch });
            }
        }
    }

    /// Ends all connections. The jobs attach again, each with the samples that it was given.
    pub(crate) fn hang_up(&mut self) {
        self.consumers().for_each(|c| c.reply_queue.hang_up());
    }

    pub(crate) fn arm(&mut self) {
        self.consumers().for_each(|c| c.sender.arm());
        self.arm_rings();
    }

    pub(crate) fn disarm(&mut self) {
        self.consumers().for_each(|c| c.sender.disarm());
        self.disarm_rings();
    }

    // Relaxed order.

    /// Binds a sample that is about to be written to a slot.
    pub(crate) fn claim(
        &mut self,
        binding: BindingId,
        budget: Option<Duration>,
    ) -> Option<BoundSlot> {
        let (bound_slot, slot_swap) = self.late_binding.claim(binding, budget)?;
        if let Some(o) = slot_swap {
            self.slot_swaps += 1;
            self.scheduler
                .exchange(&bound_slot.batch.targets(), o.slow, o.ready);
        }
        Some(bound_slot)
    }

    // Samples.

    /// Returns the samples of a minibatch, slot by slot.
    pub(super) fn samples(&self, minibatch: &Minibatch) -> Vec<Drawn> {
        let skips = |job: JobId| self.jobs.get(&job.0).is_none_or(|job| job.skip_errors);
        let all_skip = minibatch.targets.iter().all(|target| skips(target.job));
        let sample = |draw| {
            let drawn = self.numbers.sample(draw);
            // If no job wants to hear of the failure, the sample need not fail again before another is drawn.
            let is_bad = all_skip && self.failed.contains(drawn.id);
            let other = is_bad.then(|| self.numbers.redraw(&drawn, &self.failed));
            other.flatten().unwrap_or(drawn)
        };
        minibatch.samples.iter().copied().map(sample).collect()
    }
}

impl AttachedJob {
    fn has_ready(&self) -> bool {
        let last_epoch = self.last_epoch();
        let mut ranks = self.ranks.iter().flatten();
        !self.is_over && ranks.any(|consumer| consumer.has_ready(last_epoch))
    }
}

/// Tells the scheduler about the deliveries that a rank took.
pub(super) fn note_taken(
    scheduler: &mut Scheduler,
    job: u64,
    rank: usize,
    progress: &ConsumerProgress,
) {
    let (job, rank) = (JobId(job), rank as u32);
    scheduler.taken(job, rank, progress.deliveries);
    if progress.told {
        scheduler.told(job, rank);
    }
}

pub(super) fn end(consumer: &Consumer, why: &dyn std::error::Error) {
    tracing::warn!(
        parent: None,
        pid = consumer.pid,
        error = %why,
        "a consumer's connection is ended"
    );
    consumer.reply_queue.hang_up();
}
