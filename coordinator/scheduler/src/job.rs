//! One job: its need, its ranks' queues, its epochs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::ascending;
use crate::carried::{CarriedOver, Group, Left};
use crate::delivery_log::{Closed, DeliveryLog};
use crate::need::Need;
use crate::queue::Queue;
use crate::rank_batcher::RankBatcher;
use crate::{Behind, Config, Delivery, Error, JobId, JobSpec, Resume, error};

/// The state of a job as callers see it.
#[derive(Clone, Debug)]
pub struct JobView {
    /// Epoch that is being drawn.
    pub epoch: u64,
    /// Samples of that epoch that are not drawn yet, or 0 if the epoch's length is unknown.
    pub need: u32,
    /// Samples of that epoch, as far as they are known.
    pub samples: u32,
    queued: Vec<u32>,
}

impl JobView {
    /// Returns how many deliveries `rank` has not taken.
    #[must_use]
    pub fn queued(&self, rank: u32) -> u32 {
        self.queued.get(rank as usize).copied().unwrap_or(0)
    }
}

/// The samples that cannot be read, and the lengths of epochs, as far as they are known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// Samples that could not be read.
    pub(crate) bad: RoaringBitmap,
    /// The length of each epoch whose length was told. `None` if every epoch has all samples of its job's set.
    pub(crate) told: Option<BTreeMap<u64, Length>>,
    /// Number of samples that the need of an open epoch is extended by, each time that at most half of this number are
    /// left. It is far larger than a minibatch, so that no minibatch is mistaken for the last of the epoch.
    pub(crate) open_step: u32,
}

/// Number of samples of an epoch that is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// The epoch has this number of samples.
    Known(u32),
    /// The number is unknown until the epoch ends.
    Open,
}

/// For each minibatch, the number of ranks that have not taken it.
pub(crate) type PendingRanks = std::collections::HashMap<u64, u32>;

/// A job: its need, the queues of its ranks and its epochs.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// All samples of the job, including the bad ones. Where lengths of epochs are told, the samples of the current
    /// epoch; empty before its length is told.
    pub(crate) set: Arc<RoaringBitmap>,
    pub(crate) need: Need,
    /// The samples of the epoch that the job was given before, as long as the length of the epoch has not been told.
    /// `None` once it has been told.
    untold: Option<RoaringBitmap>,
    /// `true` if the end of the epoch is unknown. The set and the need of an open epoch grow as it is assigned.
    is_open: bool,
    /// The latest epoch that a rank has begun.
    begun: Option<u64>,
    /// Epochs that ended without a delivery and that the caller has not been told of yet.
    ended: Vec<u64>,
    /// Samples of the epoch at its start.
    whole: u64,
    /// The groups of samples that come before the others of the need, if the epoch continues one that was left early.
    pub(crate) carried: Arc<[CarriedOver]>,
    pub(crate) epoch: u64,
    pub(crate) cohort: Option<String>,
    pub(crate) skip_bad: bool,
    /// Minibatches that were made for others while this job was starving.
    pub(crate) passed_over: u32,
    batcher: RankBatcher,
    queues: Vec<Queue>,
    /// An epoch, and the rounds in it that were assigned to ranks that were behind. For the other ranks these rounds
    /// are not steps.
    caught_up: (u64, u64),
    /// For each rank, the epoch that it iterates, or `u64::MAX` if it has left.
    started: Vec<u64>,
    /// Samples of an epoch that may be drawn for this job's sake before a rank begins the epoch.
    ahead: u64,
    log: DeliveryLog,
    /// The state of the job before each minibatch from which nothing is taken yet, in order.
    marks: VecDeque<Mark>,
    /// `true` if the job does not read at present. Nothing is made for an absent job.
    pub(crate) is_absent: bool,
    /// `true` if the number of a minibatch decides with which rank a round begins.
    pub(crate) is_aligned: bool,
}

/// The state of a job before it was assigned a minibatch.
#[derive(Debug, Clone)]
struct Mark {
    minibatch: u64,
    epoch: u64,
    set: Arc<RoaringBitmap>,
    whole: u64,
    carried: Arc<[CarriedOver]>,
    is_open: bool,
    batcher: RankBatcher,
}

impl Job {
    /// Creates a job that begins with its first epoch, or where it resumes. `all` holds the dataset's samples.
    ///
    /// # Errors
    /// If the job cannot be served as it asks.
    pub(crate) fn new(
        spec: &JobSpec,
        behind: Behind<'_>,
        all: &Arc<RoaringBitmap>,
        known: &Known,
    ) -> Result<Self, Error> {
        let set = match &spec.subset {
            Some(subset) => Arc::new(subset.clone()),
            None => all.clone(),
        };
        let batcher = RankBatcher::new(spec.batch_size, spec.world_size, spec.drop_last);
        let epoch = spec.resume.as_ref().map_or(0, |r| r.epoch);
        let mut job = Job {
            need: Need::new(RoaringBitmap::new()),
            untold: None,
            is_open: false,
            begun: None,
            ended: Vec::new(),
            whole: 0,
            carried: Arc::default(),
            set,
            epoch,
            cohort: spec.cohort.as_ref().map(|c| c.name.clone()),
            skip_bad: spec.skip_bad,
            passed_over: 0,
            batcher,
            queues: vec![Queue::default(); spec.world_size as usize],
            caught_up: (epoch, 0),
            started: vec![epoch; spec.world_size as usize],
            ahead: u64::MAX,
            log: DeliveryLog::new(epoch),
            marks: VecDeque::new(),
            is_absent: false,
            is_aligned: false,
        };
        if known.told.is_some() {
            job.fill(known);
            job.resume_told(spec.resume.as_ref(), known.open_step);
            return Ok(job);
        }
        if spec.resume.is_some() {
            // Bad samples leave the rest of the epoch below, if the rest can do without them.
            job.fill_without(&RoaringBitmap::new());
        } else {
            job.fill(known);
        }
        job.check(spec, job.need.len())?;
        if let Some(resume) = &spec.resume {
            job.need = job.need.without(&resume.delivered);
            job.carried = resume.carried.as_slice().into();
            job.batcher.owe(behind);
            // Where other ranks are done, there is room for the samples that these ranks were not assigned, and for
            // none that was left out.
            if job.leaves_out_bad() || (spec.skip_bad && behind.others_are_done) {
                job.lose(&(&known.bad | &resume.bad));
            }
            let most = behind.batches.iter().copied().max().unwrap_or(0);
            job.caught_up = (job.epoch, u64::from(most));
            if job.deliverable() == 0 {
                job.next_epoch(known);
            }
            job.check(spec, job.need.len())?;
        }
        Ok(job)
    }

    fn check(&self, spec: &JobSpec, remaining: u64) -> Result<(), Error> {
        let (ranks, batch_size) = (spec.world_size, spec.batch_size);
        if remaining == 0 {
            return Err(error::no_samples());
        }
        if !self.batcher.can_assign(remaining) {
            return Err(error::cannot_be_assigned(remaining, batch_size, ranks));
        }
        if self.batcher.deliverable(remaining) == 0 {
            return Err(error::all_dropped(remaining, batch_size, ranks));
        }
        Ok(())
    }

    // Epochs.

    /// Returns `true` if samples that are known to be bad leave the job's need.
    ///
    /// Members of a cohort keep them. The time at which a sample is found bad differs from run to run. Members that are
    /// not level, because one pauses or has come back, would therefore be assigned different batches. Instead the
    /// samples fail again, and their batches are shorter.
    pub(crate) fn leaves_out_bad(&self) -> bool {
        self.skip_bad && self.cohort.is_none()
    }

    /// Sets the need to all samples of an epoch.
    fn fill(&mut self, known: &Known) {
        if let Some(told) = &known.told {
            self.untold = Some(RoaringBitmap::new());
            self.is_open = false;
            self.set = Arc::default();
            self.fill_without(&RoaringBitmap::new());
            if let Some(&length) = told.get(&self.epoch) {
                self.fill_told(length, known.open_step);
            }
        } else if self.leaves_out_bad() {
            self.fill_without(&known.bad);
        } else {
            self.fill_without(&RoaringBitmap::new());
        }
    }

    /// Sets the need to the samples of an epoch of this length that the job was not given.
    fn fill_told(&mut self, length: Length, open_step: u32) {
        let Some(given) = self.untold.take() else {
            return;
        };
        let samples = match length {
            Length::Known(samples) => samples,
            Length::Open => beyond(&given).saturating_add(open_step),
        };
        self.is_open = length == Length::Open;
        self.set = Arc::new((0..samples).collect());
        self.whole = samples.into();
        self.need = Need::new((*self.set).clone()).without(&given);
    }

    /// Continues in an epoch from which the job was given samples before.
    fn resume_told(&mut self, resume: Option<&Resume>, open_step: u32) {
        let Some(resume) = resume else { return };
        if self.is_open {
            self.untold = Some(resume.delivered.clone());
            return self.fill_told(Length::Open, open_step);
        }
        if self.untold.is_some() {
            // The job's position is behind the samples that it was given, so that members of a cohort that are further
            // on wait for it.
            self.whole = resume.delivered.len();
            self.untold = Some(resume.delivered.clone());
        } else {
            self.need = self.need.without(&resume.delivered);
        }
    }

    fn fill_without(&mut self, bad: &RoaringBitmap) {
        let ids = &*self.set - bad;
        // If no sample at all can be read, the job keeps them, so that its user sees the error.
        let ids = if self.batcher.deliverable(ids.len()) == 0 {
            (*self.set).clone()
        } else {
            ids
        };
        self.whole = ids.len();
        self.need = Need::new(ids);
        self.carried = Arc::default();
    }

    fn next_epoch(&mut self, known: &Known) {
        self.log.close(Closed {
            epoch: self.epoch,
            steps: self.batcher.rounds(),
            left: (**self.need.ids()).clone(),
            set: self.set.clone(),
            whole: self.whole,
            carried: self.carried.clone(),
        });
        self.epoch += 1;
        self.batcher.begin_epoch();
        self.fill(known);
    }

    // Epochs whose number of samples is told.

    /// Returns the job's next epoch if its number of samples has not been told.
    pub(crate) fn untold(&self) -> Option<u64> {
        self.untold.is_some().then_some(self.epoch)
    }

    /// Records that `epoch` has this length.
    pub(crate) fn set_length(&mut self, epoch: u64, length: Length, known: &Known) {
        if self.untold() == Some(epoch) {
            self.fill_told(length, known.open_step);
            self.end_if_empty(known);
        } else if let Length::Known(samples) = length
            && self.epoch == epoch
            && self.is_open
        {
            self.cut(samples, known);
        }
    }

    /// Adds samples to the need of an open epoch that is about to run out of them.
    fn extend(&mut self, known: &Known) {
        if !self.is_open || self.need.len() > u64::from(known.open_step / 2) {
            return;
        }
        let end = beyond(&self.set);
        let more = end..end.saturating_add(known.open_step);
        let with_more = |ids: &RoaringBitmap| {
            let mut ids = ids.clone();
            ids.insert_range(more.clone());
            ids
        };
        self.need = Need::new(with_more(self.need.ids()));
        self.set = Arc::new(with_more(&self.set));
        self.whole += u64::from(more.end - more.start);
    }

    /// Ends the growth of an open epoch, which turns out to have `samples` samples. Samples beyond that were assigned
    /// in vain.
    fn cut(&mut self, samples: u32, known: &Known) {
        self.is_open = false;
        let mut left = (**self.need.ids()).clone();
        left.remove_range(samples..);
        self.need = Need::new(left);
        self.set = Arc::new((0..samples).collect());
        self.whole = samples.into();
        if self.position() > 0 && self.deliverable() == 0 {
            // No earlier delivery was marked as the last one, and no later one will be.
            self.end(known);
        } else {
            self.end_if_empty(known);
        }
    }

    /// Ends the epoch if it has begun and has nothing left to assign. Such an epoch has no last delivery that would
    /// announce its end.
    fn end_if_empty(&mut self, known: &Known) {
        let has_begun = self.begun == Some(self.epoch);
        if has_begun && self.untold.is_none() && self.deliverable() == 0 {
            self.end(known);
        }
    }

    /// Ends the epoch without a delivery that announces the end.
    fn end(&mut self, known: &Known) {
        self.ended.push(self.epoch);
        self.next_epoch(known);
    }

    /// Returns the epochs that ended without a delivery since this was last called.
    pub(crate) fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// Begins the next epoch because the user has left the current one. All deliveries that are assigned and not taken
    /// are void.
    pub(crate) fn restart(&mut self, known: &Known) {
        self.epoch = self.iterated().saturating_add(1);
        self.batcher.begin_epoch();
        self.queues.fill(Queue::default());
        self.marks.clear();
        self.is_absent = false;
        self.log = DeliveryLog::new(self.epoch);
        self.fill(known);
        self.begin_at_once();
    }

    /// Records that all ranks are in the epoch: a rank that asks to leave the one before is, as soon as it is answered.
    fn begin_at_once(&mut self) {
        let epoch = self.epoch;
        let started = self.started.iter_mut();
        started.for_each(|started| *started = epoch.max(*started));
    }

    /// Begins the next epoch, which continues `epoch`. Each rank was given `batches` batches of that. Returns
    /// for each rank the number of deliveries that are void, counted from the latest. Returns `None` if all deliveries
    /// that are assigned and not taken are void, as after [`restart`](Self::restart).
    pub(crate) fn leave(
        &mut self,
        epoch: u64,
        batches: u64,
        is_alone: bool,
        known: &Known,
    ) -> Option<Vec<u32>> {
        // All members of a cohort are assigned the same, wherever each of them left its epoch. Ranks that caught up with
        // others in this epoch count their steps from different points.
        let caught_up = self.caught_up.0 == epoch && self.caught_up.1 > 0;
        let is_free = self.cohort.is_none() && known.told.is_none();
        let can_continue = is_free && epoch == self.iterated() && !caught_up;
        let left = can_continue.then(|| self.left(epoch, batches)).flatten();
        let Some(left) = left else {
            self.restart(known);
            return None;
        };
        let then = left.continuation(self.set.len());
        // The sequence of a job alone must not depend on how much of it is drawn.
        let nothing = RoaringBitmap::new();
        let mixed = if is_alone { &then.mixed } else { &nothing };
        let void = self.keep_until(self.log.first_of_end(epoch, batches, mixed), known);
        if void.is_some() && self.batcher.leave_epoch(batches) {
            self.go_on(&left, batches, &then.carried, known);
            return void;
        }
        self.restart(known);
        self.carried = then.carried;
        None
    }

    /// Takes back `minibatch` and all later ones. Returns the number of deliveries of each rank that are void, or `None`
    /// if something was taken from the minibatch.
    fn keep_until(&mut self, minibatch: Option<u64>, known: &Known) -> Option<Vec<u32>> {
        let Some(minibatch) = minibatch else {
            return Some(vec![0; self.queues.len()]);
        };
        let at = self
            .marks
            .iter()
            .position(|mark| mark.minibatch == minibatch)?;
        Some(self.take_back_from(at, known))
    }

    /// Returns the point at which the job leaves `epoch` after `batches` batches, or `None` if it is not known any more.
    fn left(&self, epoch: u64, batches: u64) -> Option<Left> {
        let given = self.state(epoch, batches)?.delivered;
        let (whole, carried) = if epoch == self.epoch {
            (self.whole, self.carried.clone())
        } else {
            let closed = self.log.closed(epoch, batches)?;
            (closed.whole, closed.carried.clone())
        };
        let samples = &*self.set - given;
        Some(Left {
            epoch,
            given: whole.saturating_sub(samples.len()),
            samples,
            carried,
        })
    }

    /// Begins the next epoch with the deliveries that are assigned.
    fn go_on(&mut self, left: &Left, batches: u64, carried: &Arc<[CarriedOver]>, known: &Known) {
        let mut given = &*self.set - &left.samples;
        if self.leaves_out_bad() {
            given -= &known.bad;
        }
        self.epoch = left.epoch + 1;
        self.log.leave_epoch(left.epoch, batches);
        let to_come = self.log.since(self.epoch, 0).unwrap_or_default();
        self.need = Need::new(given | &**self.need.ids());
        self.whole = self.need.len() + to_come.len();
        self.carried = carried.clone();
        self.caught_up = (self.epoch, 0);
        for mark in &mut self.marks {
            (mark.epoch, mark.whole) = (self.epoch, self.whole);
            mark.carried = carried.clone();
            mark.batcher.leave_epoch(batches);
        }
        self.is_absent = false;
        self.begin_at_once();
    }

    pub(crate) fn start(&mut self, rank: u32, epoch: u64, known: &Known) {
        if let Some(started) = self.started.get_mut(rank as usize) {
            *started = epoch.max(*started);
        }
        self.begun = self.begun.max(Some(epoch));
        if known.told.is_some() {
            self.end_if_empty(known);
        }
    }

    /// Returns the latest epoch that all ranks have begun to iterate.
    pub(crate) fn iterated(&self) -> u64 {
        self.started.iter().copied().min().unwrap_or(0)
    }

    /// Returns `true` if a rank that has not left has begun `epoch`, or a later one.
    pub(crate) fn has_begun(&self, epoch: u64) -> bool {
        let here = self.started.iter().filter(|&&started| started < u64::MAX);
        here.max().is_some_and(|&latest| epoch <= latest)
    }

    /// Bounds how many samples of an epoch may be drawn for this job's sake before a rank begins the epoch.
    pub(crate) fn set_ahead(&mut self, samples: u64) {
        self.ahead = samples;
    }

    /// Returns `true` if the next minibatch, of at most `slots` samples, may be drawn for this job's sake even if no
    /// rank has begun the epoch.
    pub(crate) fn may_be_ahead(&self, slots: u32) -> bool {
        let next = self.deliverable().min(u64::from(slots));
        self.position().saturating_add(next) <= self.ahead
    }

    /// Returns the next `count` ids of a job in ascending order, or all if there are fewer.
    pub(crate) fn next_ids(&self, count: u64, minibatch: u64, config: &Config) -> Vec<u32> {
        if !self.has_ranks() {
            return ascending::next_ids(&self.need, count);
        }
        let first = self.first_rank(minibatch, config);
        let slices = self
            .batcher
            .clone()
            .assign(self.need.len(), count as u32, first);
        ascending::dealt_ids(&self.need, &self.set, self.queues.len() as u32, &slices)
    }

    /// Returns `true` if `ids` are the next ids of this job in ascending order.
    pub(crate) fn is_next(&self, ids: &[u32], minibatch: u64, config: &Config) -> bool {
        if self.has_ranks() {
            self.next_ids(ids.len() as u64, minibatch, config) == ids
        } else {
            ascending::begins_with(&self.need, ids)
        }
    }

    /// Returns `true` if the job has more than one rank.
    pub(crate) fn has_ranks(&self) -> bool {
        self.queues.len() > 1
    }

    /// Returns how many samples of the epoch were drawn.
    pub(crate) fn position(&self) -> u64 {
        self.whole - self.need.len()
    }

    /// Returns how many samples the epoch has still to assign.
    pub(crate) fn deliverable(&self) -> u64 {
        self.batcher.deliverable(self.need.len())
    }

    // Queues.

    /// Returns the rank with which a round begins if it begins in `minibatch`.
    fn first_rank(&self, minibatch: u64, config: &Config) -> u32 {
        if self.is_aligned {
            let drawn = minibatch * u64::from(config.slots);
            self.batcher.aligned(drawn)
        } else {
            0
        }
    }

    /// Returns the queue of the rank that is assigned to next, in `minibatch`.
    fn next_queue(&self, minibatch: u64, config: &Config) -> &Queue {
        let first = self.first_rank(minibatch, config);
        &self.queues[self.batcher.next_rank(first) as usize]
    }

    /// Returns `true` if one more minibatch may be queued, with at most `bound` in the queue. It gets the number
    /// `minibatch`.
    ///
    /// A low bound shows that buffers are scarce. In that case only as many of the queued minibatches as the low-water
    /// mark may be minibatches that nobody else waits for, because a job that falls behind would pin their buffers for
    /// itself. But no rank goes without because of another rank's queue.
    ///
    /// There is no room while the number of samples of the epoch has not been told, or is 0.
    ///
    /// At most one epoch is begun before all ranks iterate it. [`may_be_ahead`](Self::may_be_ahead) decides how much of
    /// it is drawn for this job's sake. This function does not, because the job may take part in minibatches that
    /// others need.
    pub(crate) fn has_room(
        &self,
        bound: u32,
        config: &Config,
        waiting: &PendingRanks,
        minibatch: u64,
    ) -> bool {
        let queue = self.next_queue(minibatch, config);
        let own = || {
            queue
                .each()
                .filter(|id| waiting.get(id) == Some(&1))
                .count()
        };
        let is_scarce = bound < config.depth && self.empty_queues() == 0;
        !self.is_absent
            && self.deliverable() > 0
            && self.epoch <= self.iterated().saturating_add(1)
            && queue.minibatches() < bound
            && (!is_scarce || own() < config.low_water.max(1) as usize)
    }

    pub(crate) fn count_waiting(&self, waiting: &mut PendingRanks) {
        for id in self.queues.iter().flat_map(Queue::each) {
            *waiting.entry(id).or_insert(0) += 1;
        }
    }

    pub(crate) fn empty_queues(&self) -> u32 {
        self.queues.iter().filter(|q| q.minibatches() == 0).count() as u32
    }

    /// Returns `true` if a rank is about to run out, or misses a part of its next batch.
    pub(crate) fn starves(&self, config: &Config) -> bool {
        let low = u64::from(config.low_water) * u64::from(config.slots);
        self.queues
            .iter()
            .any(|q| q.samples() <= low || q.whole_batches() == 0)
    }

    /// Returns `true` if the rank that is assigned to next, in `minibatch`, has no whole batch of an epoch that was
    /// begun, and could be assigned one if there were buffers.
    pub(crate) fn is_out_of_batches(&self, config: &Config, minibatch: u64) -> bool {
        let queue = self.next_queue(minibatch, config);
        queue.whole_batches() == 0
            && self.has_begun(self.epoch)
            && self.has_room(u32::MAX, config, &PendingRanks::new(), minibatch)
    }

    pub(crate) fn take(&mut self, rank: u32, deliveries: u32) {
        let Some(queue) = self.queues.get_mut(rank as usize) else {
            return;
        };
        let taken = (0..deliveries).filter_map(|_| queue.pop()).last();
        if let Some(minibatch) = taken {
            self.keep(minibatch);
        }
        let waiting: u32 = self.queues.iter().map(Queue::len).sum();
        self.log.forget(waiting as usize, self.queues.len());
    }

    // Taking back.

    /// Commits to all deliveries up to `minibatch`: they are not taken back any more.
    fn keep(&mut self, minibatch: u64) {
        let later = self
            .marks
            .partition_point(|mark| mark.minibatch <= minibatch);
        self.marks.drain(..later);
    }

    /// Commits to the next delivery of `rank`, because its user has been told something about it.
    pub(crate) fn keep_next(&mut self, rank: u32) {
        if let Some(next) = self.queues.get(rank as usize).and_then(Queue::first) {
            self.keep(next);
        }
    }

    pub(crate) fn can_be_taken_back(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Takes back all minibatches after the last one from which something was taken. Returns for each rank the number
    /// of deliveries that are void, counted from the latest.
    ///
    /// The job is again as it was before these were assigned, with two exceptions: samples that were found bad and left
    /// its need since, and the end of an epoch that became known.
    pub(crate) fn take_back(&mut self, known: &Known) -> Vec<u32> {
        self.take_back_from(0, known)
    }

    /// Takes back the minibatch of this mark and all later ones.
    fn take_back_from(&mut self, mark: usize, known: &Known) -> Vec<u32> {
        let Some(mark) = self.marks.split_off(mark).pop_front() else {
            return vec![0; self.queues.len()];
        };
        let assigned = self.log.take_back(mark.minibatch, mark.epoch);
        let left = self.log.reopen(mark.epoch);
        let left = left.unwrap_or_else(|| (**self.need.ids()).clone());
        self.need = Need::new(left | assigned);
        (self.epoch, self.whole, self.batcher) = (mark.epoch, mark.whole, mark.batcher);
        (self.set, self.untold) = (mark.set, None);
        self.carried = mark.carried;
        self.is_open = mark.is_open;
        if self.is_open {
            // The need has grown since the mark.
            let end = beyond(&self.set).max(beyond(self.need.ids()));
            self.set = Arc::new((0..end).collect());
            self.whole = end.into();
        }
        if self.leaves_out_bad() {
            self.lose(&known.bad);
        }
        let queues = self.queues.iter_mut();
        let void = queues.map(|q| q.take_back(mark.minibatch)).collect();
        // An end of the epoch that was told behind these deliveries is void, too.
        self.ended.retain(|&ended| ended < mark.epoch);
        let length = known.told.as_ref().and_then(|told| told.get(&mark.epoch));
        if let Some(Length::Known(samples)) = length
            && self.is_open
        {
            self.cut(*samples, known);
        }
        void
    }

    /// Removes unreadable samples from the need, as long as every promise is kept without them.
    pub(crate) fn lose(&mut self, bad: &RoaringBitmap) {
        let known = bad & &**self.need.ids();
        for id in known {
            if self.can_lose_one() {
                self.need.remove(&[id]);
            }
        }
    }

    // Samples.

    /// Assigns samples that have just left the need, which had `before` samples. Ends the epoch if nothing is left to
    /// assign.
    pub(crate) fn assign(
        &mut self,
        id: JobId,
        ids: &[u32],
        before: u64,
        minibatch: u64,
        config: &Config,
        known: &Known,
    ) -> Vec<Delivery> {
        let (mut start, epoch) = (0, self.epoch);
        let first = self.first_rank(minibatch, config);
        self.marks.push_back(Mark {
            minibatch,
            epoch,
            set: self.set.clone(),
            whole: self.whole,
            carried: self.carried.clone(),
            is_open: self.is_open,
            batcher: self.batcher.clone(),
        });
        let mut deliveries = Vec::new();
        for slice in self.batcher.assign(before, ids.len() as u32, first) {
            let assigned = &ids[start as usize..(start + slice.len) as usize];
            self.log.add(minibatch, epoch, &slice, assigned);
            self.queues[slice.rank as usize].push(minibatch, slice.len, slice.ends_batch);
            deliveries.push(Delivery {
                job: id,
                rank: slice.rank,
                epoch,
                start,
                len: slice.len,
                ends_batch: slice.ends_batch,
                ends_epoch: slice.ends_epoch,
            });
            start += slice.len;
        }
        self.passed_over = 0;
        self.extend(known);
        if self.deliverable() == 0 {
            self.next_epoch(known);
        }
        deliveries
    }

    /// Returns `true` if one sample may leave the need without being assigned.
    pub(crate) fn can_lose_one(&self) -> bool {
        self.batcher.can_lose_one(self.need.len())
    }

    /// Returns `true` if another sample may take the place of one that could not be read.
    ///
    /// Members of a cohort are assigned the same, however far ahead each of them was drawn, and the content of their
    /// needs depends on that. Ranks that raise errors come back for the bad sample as well, if they have not heard of
    /// it. In an epoch that other ranks have finished, there would be no room for both samples.
    pub(crate) fn takes_replacements(&self) -> bool {
        self.cohort.is_none() && (self.skip_bad || self.queues.len() == 1)
    }

    /// Records that `other` takes the place of `bad`.
    pub(crate) fn replaced(&mut self, bad: u32, other: u32) {
        self.log.replaced(bad, other);
    }

    /// Records that samples `one` and `other` exchange their positions.
    pub(crate) fn exchange(&mut self, epoch: u64, one: u32, other: u32) {
        self.log.exchange(epoch, one, other);
    }

    /// Returns the samples that the job was given once every rank has taken `batches` batches of `epoch`, or `None` if
    /// that is not known any more.
    pub(crate) fn state(&self, epoch: u64, batches: u64) -> Option<Resume> {
        // The log also counts the rounds that were assigned only to ranks that were behind. They come first.
        let batches = batches
            + if self.caught_up.0 == epoch {
                self.caught_up.1
            } else {
                0
            };
        let to_come = self.log.since(epoch, batches)?;
        let (left, set, carried): (&RoaringBitmap, &RoaringBitmap, _) = if epoch == self.epoch {
            (self.need.ids(), &self.set, &self.carried)
        } else {
            let closed = self.log.closed(epoch, batches)?;
            (&closed.left, &closed.set, &closed.carried)
        };
        let delivered = match &self.untold {
            Some(given) if epoch == self.epoch => given.clone(),
            _ => set - &(left | &to_come),
        };
        Some(Resume {
            epoch,
            delivered,
            bad: RoaringBitmap::new(),
            carried: carried.to_vec(),
        })
    }

    // Groups.

    /// Returns the groups of samples from which the next `count` are drawn: all samples of each group but the last.
    pub(crate) fn next_groups(&self, count: u64) -> Vec<Group> {
        let (mut groups, mut position) = (Vec::new(), self.position());
        let end = position + count;
        let mut others = None;
        for carried in self.carried.iter() {
            let ids = &*carried.ids & &**self.need.ids();
            let of_others = others.get_or_insert_with(|| (**self.need.ids()).clone());
            *of_others -= &ids;
            if ids.is_empty() {
                continue;
            }
            let len = ids.len();
            groups.push(Group {
                ids: Arc::new(ids),
                epoch: carried.epoch,
                position: carried.before + position,
            });
            position += len;
            if position >= end {
                return groups;
            }
        }
        groups.push(Group {
            ids: others.map_or_else(|| self.need.ids().clone(), Arc::new),
            epoch: self.epoch,
            position,
        });
        groups
    }

    /// Returns the first group of samples, if the need consists of groups.
    pub(crate) fn first_group(&self) -> Option<Arc<RoaringBitmap>> {
        let carried = self.carried.iter();
        let mut groups = carried.map(|group| &*group.ids & &**self.need.ids());
        groups.find(|ids| !ids.is_empty()).map(Arc::new)
    }

    /// Returns `true` if the next `count` samples would be drawn from the same samples for this job alone: from all of
    /// these groups, and then from `last`.
    pub(crate) fn draws_from(&self, count: u64, groups: &[Group], last: &RoaringBitmap) -> bool {
        if self.carried.is_empty() {
            return groups.is_empty() && self.need.len() == last.len();
        }
        let own = self.next_groups(count);
        let theirs = groups.iter().map(|group| &*group.ids).chain([last]);
        own.iter().map(|group| &*group.ids).eq(theirs)
    }

    /// Returns the epoch that keys the random operators of a sample, if it is drawn for this job alone.
    pub(crate) fn visit_of(&self, id: u32) -> u64 {
        let carried = self.carried.iter().find(|group| group.ids.contains(id));
        carried.map_or(self.epoch, |group| group.epoch)
    }

    pub(crate) fn view(&self) -> JobView {
        // The number of samples that are left of an open epoch is unknown.
        let need = if self.is_open { 0 } else { self.need.len() };
        JobView {
            epoch: self.epoch,
            need: need as u32,
            samples: (self.position() + need) as u32,
            queued: self.queues.iter().map(Queue::len).collect(),
        }
    }
}

/// Returns the number after the largest of a set, or 0 if it is empty.
fn beyond(ids: &RoaringBitmap) -> u32 {
    ids.max().map_or(0, |last| last.saturating_add(1))
}
