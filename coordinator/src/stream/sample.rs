//! A sample on its way into a slot of its minibatch, made by a thread of the coordinator or by a worker of user code.

mod large;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::sample_cache::{Form, Meta};
use coprep_cache::staging::{Layout, SlotMut};
use coprep_cache::task_table::TaskHandle;
use coprep_pipeline::SampleKey;
use coprep_protocol::code::{Raised, SampleRequest};
use coprep_protocol::message::CacheForm;
use fail::fail_point;

use crate::caches::DatasetCache;
use crate::observe::preparation_cost::PreparationCost;
use crate::produce::deadline_queue::Deadline;
use crate::produce::native::{Failure, Fetched, Recipe, SlotWriter, WorkerScratch};
use crate::produce::processes::{Begin, LargeRoom, Outlook, Task, TaskOutcome};
use crate::produce::producer::Producer;
use crate::produce::threads::{PoolWork, Ready};
use crate::stream::batch::PendingBatch;
use crate::stream::late_binding::{BindingId, BoundSlot};
use crate::stream::{Drawn, Numbers, Stream};

/// The work to prepare one sample of a minibatch.
pub(super) struct SampleWork {
    stream: Arc<Stream>,
    at: At,
    /// The minibatch that the sample was drawn for.
    drawn_for: Arc<PendingBatch>,
    draw: Drawn,
    plan: PreparationPlan,
    /// Whether no worker has begun to prepare the sample.
    is_waiting: bool,
    fetched: Option<Fetched>,
    /// Time since which the kernel refuses the memory that the sample must have.
    short_since: Option<Instant>,
    /// Number of threads in a row that have panicked while they had the sample.
    panics: u32,
}

/// Number of panics after which a sample breaks its stream off. From the second on, the threads only had to report it.
const MOST_PANICS: u32 = 3;

/// Plan for the preparation of a sample.
#[derive(Clone, Copy)]
pub(super) struct PreparationPlan {
    /// Time at which the preparation is to begin.
    pub(super) start: Deadline,
    /// Time at which the minibatch is due, in the seconds of a [`Deadline`], if samples are drawn ahead because some
    /// are slow.
    pub(super) due: Option<f64>,
    /// Whether the slot stays as it is: see [`replay`](super::replay).
    pub(super) is_there: bool,
}

/// Destination of a sample.
enum At {
    Bound(BoundSlot),
    /// The slot is decided when the sample is about to be written.
    LateBound(BindingId),
    /// The sample was written, as the last one of this minibatch.
    Last(Arc<PendingBatch>),
    /// Nothing is left to do.
    Over,
}

/// Result of the search for a sample in the cache.
enum Restored {
    /// The sample is in its slot.
    Whole(PreparationCost),
    /// The sample is not cached.
    Absent,
    /// The sample is larger than its slot, and there is no room for it, or not yet.
    NoRoom(LargeRoom),
}

impl PoolWork for SampleWork {
    fn needs_fetch(&self) -> bool {
        match &self.stream.config.producer {
            Producer::Native(recipe) if !self.plan.is_there && self.panics == 0 => {
                recipe.cached_as(self.draw.id).is_none()
            }
            _ => false,
        }
    }

    fn fetch(&mut self) -> Ready {
        let stream = self.stream.clone();
        if let Producer::Native(recipe) = &stream.config.producer
            && self.needs_fetch()
            && self.drawn_for.is_wanted()
        {
            self.time_runs(true);
            let is_looking = self.plan.due.is_some();
            // A failed read is repeated when the sample's turn comes, and reported then.
            self.fetched = recipe.fetch_ahead(self.draw.id, is_looking).ok();
            self.time_runs(false);
        }
        let fetched = self.fetched.as_ref();
        let expected = fetched.and_then(|f| f.expected);
        Ready {
            due: self.start_when_fetched(expected),
            at_work: fetched.map_or(Duration::ZERO, |f| f.at_work),
            bytes: fetched.map_or(0, |f| f.cost.fetched_bytes),
        }
    }

    fn run(mut self: Box<Self>, worker_scratch: &mut WorkerScratch) {
        if self.panics > 0 {
            return self.recover();
        }
        let stream = self.stream.clone();
        if self.start() {
            fail_point!("worker-prepare");
            match &stream.config.producer {
                _ if self.plan.is_there => self.prepared(&PreparationCost::default()),
                Producer::Native(recipe) => self.fill(recipe, worker_scratch),
                Producer::ProcessPool {
                    process_pool,
                    prepared,
                    ..
                } => match self.restore(prepared.as_deref()) {
                    Restored::Whole(cost) => self.prepared(&cost),
                    // An LRU cache has evicted the sample since the work was assigned.
                    Restored::Absent => return process_pool.submit(Deadline::default(), self),
                    Restored::NoRoom(LargeRoom::Failed(failure)) => {
                        return self.finish(TaskOutcome::Failed(failure));
                    }
                    Restored::NoRoom(LargeRoom::Unwanted) => {}
                    // The sample goes behind all that are due by now. With its own deadline, which may be before
                    // theirs, it would come first each time, and keep the threads from the samples whose end it waits
                    // for.
                    Restored::NoRoom(_) => return stream.assign(Deadline::now(), *self),
                },
                Producer::Jobs { .. } => {
                    let visit = self.draw.key.to_ne_bytes();
                    self.slot().field_mut(0).copy_from_slice(&visit);
                    self.prepared(&PreparationCost::default());
                }
            }
        }
        self.end();
    }
}

impl SlotWriter for SampleWork {
    fn bytes(&mut self) -> &mut [u8] {
        self.claim();
        fail_point!("worker-bound");
        self.slot().field_mut(0)
    }
}

impl Task for SampleWork {
    fn begin(&mut self) -> Begin {
        if !self.is_started() {
            return Begin::Over(TaskOutcome::Unwanted);
        }
        let stream = self.stream.clone();
        if self.is_iterated()
            && let Some(batches) = stream.engine().end_of(self.draw.visit)
            && self.draw.number >= batches
        {
            // The batch was drawn before the end of its epoch was known. The reader need not be asked.
            let ends = Failure::new(Raised::END, batches.to_string());
            return Begin::Over(TaskOutcome::Failed(ends));
        }
        // The sample may have been made meanwhile, for an earlier minibatch.
        let cache = match &stream.config.producer {
            Producer::ProcessPool { prepared, .. } => prepared.as_deref(),
            _ => None,
        };
        match self.restore(cache) {
            Restored::Whole(cost) => Begin::Over(TaskOutcome::Found(cost)),
            Restored::NoRoom(LargeRoom::Unwanted) => Begin::Over(TaskOutcome::Unwanted),
            // A worker can wait until there is room for it.
            Restored::Absent | Restored::NoRoom(_) => Begin::Make,
        }
    }

    fn order(&self) -> SampleRequest {
        SampleRequest {
            id: self.draw.id,
            place: match &self.at {
                At::Bound(bound_slot) => Some((bound_slot.batch.buffer, bound_slot.slot.slot())),
                _ => None,
            },
            is_offered: false,
            keep: false,
            visit: self.visit(),
            cached: (0, 0),
        }
    }

    fn lasting_id(&self) -> Option<u32> {
        (!self.is_iterated()).then_some(self.draw.id)
    }

    fn outlook(&self) -> Outlook {
        let (id, producer) = (self.draw.id, &self.stream.config.producer);
        let seconds = producer.expected(id);
        let budget = producer.costs().and_then(|costs| costs.budget());
        let is_kept = |cache: &DatasetCache| !cache.store.has(id) && cache.may_admit(id);
        Outlook {
            seconds,
            is_quick: seconds.zip(budget).is_some_and(|(s, budget)| s <= budget),
            is_kept: producer.cache().is_some_and(|cache| is_kept(cache)),
        }
    }

    fn offer(&mut self, given: &TaskHandle) -> Option<(u32, u32)> {
        match self.at {
            At::LateBound(binding) => self.stream.offer(binding, given.clone()),
            _ => None,
        }
    }

    fn put_back(&mut self) {
        self.time_runs(false);
        self.forget_large();
    }

    fn bind(&mut self, is_about_to_write: bool) -> (u32, u32) {
        if is_about_to_write {
            self.claim();
        }
        let bound_slot = self.bound_slot();
        (bound_slot.batch.buffer, bound_slot.slot.slot())
    }

    fn room(&mut self, bytes: u64) -> LargeRoom {
        self.room_for(bytes)
    }

    fn finish(mut self: Box<Self>, outcome: TaskOutcome) {
        match outcome {
            TaskOutcome::Made { cost, blob } => {
                if self.is_iterated() {
                    self.stream.engine().forget_ended_readers();
                }
                self.made(&cost, blob);
                self.end();
            }
            TaskOutcome::Found(cost) => {
                self.prepared(&cost);
                self.end();
            }
            TaskOutcome::Failed(failure) if self.is_beyond_end(&failure) => self.end(),
            TaskOutcome::Failed(failure) => self.failed(failure),
            TaskOutcome::EndedWorkers(failure) => {
                if self.is_iterated() {
                    self.ended_readers();
                }
                self.failed(failure);
            }
            TaskOutcome::Unwanted => self.end(),
            // Nobody writes this slot any more, so the minibatch is never whole, and never published.
            TaskOutcome::Dropped => self.at = At::Over,
        }
    }
}

impl SampleWork {
    /// Creates the work for a sample whose slot is fixed.
    pub(super) fn bound(
        stream: Arc<Stream>,
        bound_slot: BoundSlot,
        draw: Drawn,
        plan: PreparationPlan,
    ) -> Self {
        let drawn_for = bound_slot.batch.clone();
        Self::new(stream, At::Bound(bound_slot), drawn_for, draw, plan)
    }

    /// Creates the work for a sample whose slot `binding` decides later.
    pub(super) fn late_binding(
        stream: Arc<Stream>,
        binding: BindingId,
        drawn_for: Arc<PendingBatch>,
        draw: Drawn,
        plan: PreparationPlan,
    ) -> Self {
        Self::new(stream, At::LateBound(binding), drawn_for, draw, plan)
    }

    fn new(
        stream: Arc<Stream>,
        at: At,
        drawn_for: Arc<PendingBatch>,
        draw: Drawn,
        plan: PreparationPlan,
    ) -> Self {
        SampleWork {
            stream,
            at,
            drawn_for,
            draw,
            plan,
            is_waiting: true,
            fetched: None,
            short_since: None,
            panics: 0,
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.draw.id
    }

    pub(super) fn is_there(&self) -> bool {
        self.plan.is_there
    }

    /// Returns the visit that keys the sample's random numbers. A prepared sample has the same one in all visits that
    /// it is used for.
    fn visit(&self) -> u64 {
        let key = &self.stream.config.key;
        match (key.cache, u64::from(key.reuse)) {
            (CacheForm::Prepared, 0) => 0,
            // Draws cannot have this, because a prepared sample is used as often as it is drawn.
            (CacheForm::Prepared, times) => self.draw.visit / times * times,
            _ => self.draw.key,
        }
    }

    /// Returns when to begin a sample whose data has been read. A sample of unknown cost was drawn to be begun at once.
    /// Now its cost is known, and it gets its planned start.
    fn start_when_fetched(&self, expected: Option<f32>) -> Deadline {
        let was_known = self.stream.config.producer.expected(self.draw.id).is_some();
        match self.plan.due.filter(|_| !was_known) {
            Some(due) => Stream::start_of_one(due, expected),
            None => self.plan.start,
        }
    }

    /// Starts or stops the clock of a late-bound sample, which shows whether a thread works at it. Another sample may
    /// take its slot meanwhile.
    fn time_runs(&self, is_running: bool) {
        let At::LateBound(binding) = self.at else {
            return;
        };
        let late_binding = &mut self.stream.engine().late_binding;
        if is_running {
            late_binding.begin(binding)
        } else {
            late_binding.pause(binding)
        }
    }

    /// Records that a worker begins to prepare the sample. Returns false if nobody wants the sample any more.
    fn start(&mut self) -> bool {
        self.time_runs(true);
        self.is_started()
    }

    /// Records that the sample waits no more. Returns false if nobody wants the sample any more.
    fn is_started(&mut self) -> bool {
        if std::mem::take(&mut self.is_waiting) {
            self.stream.sample_begun();
        }
        self.drawn_for.is_wanted()
    }

    /// Binds the sample to a slot because it is about to be written.
    fn claim(&mut self) {
        if let At::LateBound(binding) = self.at {
            self.at = At::Bound(self.stream.claim(binding));
        }
    }

    fn bound_slot(&mut self) -> &mut BoundSlot {
        if let At::LateBound(binding) = self.at {
            self.at = At::Bound(self.stream.take(binding));
        }
        match &mut self.at {
            At::Bound(bound_slot) => bound_slot,
            _ => unreachable!("it was bound just now, and is not over"),
        }
    }

    fn slot(&mut self) -> &mut SlotMut {
        &mut self.bound_slot().slot
    }

    fn end(mut self) {
        self.bound_slot();
        let At::Bound(BoundSlot { batch, slot, .. }) = std::mem::replace(&mut self.at, At::Over)
        else {
            return;
        };
        drop(slot);
        if batch.slot_written() {
            self.at = At::Last(batch);
            self.end_minibatch();
        }
    }

    fn end_minibatch(&mut self) {
        if let At::Last(batch) = &self.at {
            self.stream.minibatch_done(batch);
        }
        self.at = At::Over;
    }

    /// Reports the panic of a thread that had the sample, so that the minibatch still becomes whole.
    fn recover(mut self: Box<Self>) {
        let is_wanted = self.is_started();
        if let At::LateBound(binding) = self.at {
            // The slot may be gone, together with the stream.
            self.at = self.stream.try_take(binding).map_or(At::Over, At::Bound);
        }
        match self.at {
            At::Over => return,
            At::Last(_) => return self.end_minibatch(),
            _ => {}
        }
        if is_wanted && self.replace(Failure::defect()) {
            let stream = self.stream.clone();
            self.panics = 0;
            stream.assign(Deadline::default(), *self);
        } else {
            self.end();
        }
    }

    /// Prepares the sample, or the one that replaces it, or leaves a gap.
    fn fill(&mut self, recipe: &Recipe, worker_scratch: &mut WorkerScratch) {
        if let Some(fetched) = self.fetched.take() {
            worker_scratch.take_over(fetched);
        }
        loop {
            match self.prepare(recipe, worker_scratch) {
                Ok(cost) => return self.prepared(&cost),
                Err(failure) => {
                    if !self.replace(failure) {
                        return;
                    }
                }
            }
        }
    }

    fn prepare(
        &mut self,
        recipe: &Recipe,
        worker_scratch: &mut WorkerScratch,
    ) -> Result<PreparationCost, Failure> {
        let key = SampleKey {
            seed: self.stream.config.seed,
            id: self.draw.id,
            visit: self.draw.key,
        };
        let cost = recipe.prepare(key, worker_scratch, self)?;
        let label = recipe.dataset.label(self.draw.id);
        self.slot()
            .field_mut(1)
            .copy_from_slice(&label.to_ne_bytes());
        Ok(cost)
    }

    /// Fills the slot from the cache.
    fn restore(&mut self, cache: Option<&DatasetCache>) -> Restored {
        let stream = self.stream.clone();
        let layout = stream.made();
        let hit = cache.and_then(|cache| Some((cache, cache.store.get(self.draw.id)?)));
        let Some((cache, bytes)) = hit else {
            return Restored::Absent;
        };
        let Some(blob) = layout.blob_bytes(&bytes) else {
            return Restored::Absent;
        };
        if layout.is_larger_than_slot(blob) {
            self.claim();
            match self.room_for(blob as u64) {
                LargeRoom::At(_) => {}
                none => {
                    // Nobody waits for an answer, so the room is asked for anew later. By then the sample may have been
                    // evicted, and lie in the queue of workers that all wait behind it.
                    self.forget_large();
                    return Restored::NoRoom(none);
                }
            }
        } else {
            self.claim();
            self.forget_large();
        }
        cache.count_hit();
        Restored::Whole(layout.restore(&bytes, self.slot()))
    }

    /// Returns whether the failure says that there is no such batch, because its epoch ended before it. That leaves a
    /// gap without a report: the end of the epoch is announced separately.
    fn is_beyond_end(&mut self, failure: &Failure) -> bool {
        let batches = (failure.stage == Raised::END).then(|| failure.message.parse().ok());
        let Some(batches) = batches.flatten().filter(|_| self.is_iterated()) else {
            return false;
        };
        let BoundSlot { batch, place, slot } = self.bound_slot();
        slot.forget_large();
        batch.mark_bad(*place);
        self.end_epoch(self.draw.number.min(batches));
        true
    }

    fn is_iterated(&self) -> bool {
        matches!(self.stream.config.numbers, Numbers::Batches)
    }

    /// Records that the epoch has `batches` batches.
    fn end_epoch(&mut self, batches: u32) {
        let stream = self.stream.clone();
        let epoch = self.draw.visit;
        let batch = self.bound_slot().batch.clone();
        // Members come and leave under this lock.
        let mut engine = stream.engine();
        // A cohort that has left may have been followed by another, which iterates this epoch anew. That one may end
        // elsewhere, and the first end that is told stands.
        if batch.is_wanted() {
            engine.end_epoch(epoch, batches);
        }
    }

    /// Handles a batch that has ended the largest allowed number of readers. If another batch did so, too, and none was
    /// made since, no reader gets past this place, and the epoch ends. Otherwise each later batch would end two more
    /// readers, and there might be no last one.
    fn ended_readers(&mut self) {
        let (epoch, number) = (self.draw.visit, self.draw.number);
        let other = self.stream.engine().ended_readers(epoch, number);
        if let Some(other) = other {
            // Both are reported, in whichever order they were tried.
            self.end_epoch(number.max(other).saturating_add(1));
        }
    }

    /// Handles a failed sample: another one is made in its place, or a gap is left.
    fn failed(mut self: Box<Self>, failure: Failure) {
        if self.replace(failure) {
            let stream = self.stream.clone();
            stream.assign(Deadline::default(), *self);
        } else {
            self.end();
        }
    }

    /// Reports a failed sample to the jobs, and puts another one in its place. Returns false if there is none, which
    /// leaves a gap.
    fn replace(&mut self, failure: Failure) -> bool {
        let stream = self.stream.clone();
        stream.counters.add_failure();
        let path = stream.config.producer.path(self.draw.id);
        let draw = self.draw;
        let BoundSlot { batch, place, slot } = self.bound_slot();
        slot.forget_large();
        let other = stream
            .engine()
            .sample_failed(batch, *place, draw, path, failure);
        match other {
            Some(other) => self.draw = other,
            None => batch.mark_bad(*place),
        }
        other.is_some()
    }

    fn prepared(&mut self, cost: &PreparationCost) {
        fail_point!("worker-written");
        // These fields identify the sample: see `naming_fields`.
        let names = [self.draw.id, self.draw.number].map(|name| i64::from(name).to_ne_bytes());
        let stream = self.stream.clone();
        let BoundSlot { batch, slot, .. } = self.bound_slot();
        for (field, name) in (stream.made().fields..stream.fields.len()).zip(names) {
            slot.field_mut(field).copy_from_slice(&name);
        }
        // A sample that is larger than its slot is lost when the buffer is freed, so it cannot be replayed.
        if let Some(replay) = stream
            .replay
            .as_ref()
            .filter(|_| slot.large_mut().is_none())
        {
            replay.fill(batch.buffer, slot.slot());
        }
        self.stream.counters.add(cost, self.draw.visit);
    }

    /// Replaces the bytes that were made by the cached ones, if these take as much room.
    fn replace_by_cached(&mut self, cache: &DatasetCache, blob: usize) {
        let stream = self.stream.clone();
        let layout = stream.made();
        let made = layout.fixed_bytes() + blob;
        if let Some(bytes) = cache.store.get(self.draw.id).filter(|b| b.len() == made) {
            cache.count_hit();
            layout.restore(&bytes, self.slot());
        }
    }

    /// Records that a worker of user code has written the slot.
    fn made(&mut self, cost: &PreparationCost, blob: u64) {
        let stream = self.stream.clone();
        if let Producer::ProcessPool {
            prepared, costs, ..
        } = &stream.config.producer
        {
            costs.record(self.draw.id, cost);
            if let Some(cache) = prepared {
                cache.count_miss();
                let layout = stream.made();
                let blob = layout.blob_written(self.slot(), blob);
                if !layout.keep(cache, self.draw.id, self.slot(), blob) {
                    // Another worker made the same sample meanwhile. All jobs must see the same bytes.
                    self.replace_by_cached(cache, blob);
                }
            }
        }
        self.prepared(cost);
    }
}

impl Drop for SampleWork {
    /// Gives a sample that is dropped before it is over, because a thread panicked, to another thread, which reports
    /// it. This is not done here: while a panic unwinds, locks are not poisoned, and another panic would end the
    /// process.
    fn drop(&mut self) {
        let at = std::mem::replace(&mut self.at, At::Over);
        if matches!(at, At::Over) {
            return;
        }
        if self.panics >= MOST_PANICS {
            return self.stream.doom();
        }
        let again = SampleWork {
            stream: self.stream.clone(),
            at,
            drawn_for: self.drawn_for.clone(),
            draw: self.draw,
            plan: self.plan,
            is_waiting: self.is_waiting,
            fetched: None,
            short_since: self.short_since,
            panics: self.panics + 1,
        };
        let workers = &self.stream.workers;
        workers.submit(Deadline::default(), Box::new(again));
    }
}

/// The fields of a slot that its producer writes: all except the fields that identify the sample.
#[derive(Clone, Copy)]
pub(super) struct Made<'a> {
    pub(super) layout: &'a Layout,
    /// Number of these fields, which come first.
    pub(super) fields: usize,
}

impl Made<'_> {
    /// Returns the fields without the one whose values may be larger than the slot, which is the last of them.
    fn fixed(self) -> std::ops::Range<usize> {
        0..self.layout.large_field().unwrap_or(self.fields)
    }

    fn fixed_bytes(self) -> usize {
        self.fixed().map(|f| self.layout.sample_bytes(f)).sum()
    }

    /// Returns how many bytes of a cached sample have no fixed size, or `None` if the sample does not have this layout.
    fn blob_bytes(self, cached: &[u8]) -> Option<usize> {
        let blob = cached.len().checked_sub(self.fixed_bytes())?;
        (self.layout.large_field().is_some() || blob == 0).then_some(blob)
    }

    fn is_larger_than_slot(self, blob: usize) -> bool {
        let field = self.layout.large_field();
        field.is_some_and(|field| blob > self.layout.sample_bytes(field))
    }

    /// Returns how many bytes without a fixed size a worker wrote. `said` is the number that it reports.
    fn blob_written(self, slot: &mut SlotMut, said: u64) -> usize {
        let field = self.layout.large_field();
        let room = field.map_or(0, |f| self.layout.sample_bytes(f));
        let in_slot = usize::try_from(said).unwrap_or(usize::MAX).min(room);
        slot.large_mut().map_or(in_slot, |large| large.len())
    }

    /// Returns a field of a slot, or the large value that lies elsewhere in its place.
    fn part(self, slot: &mut SlotMut, field: usize) -> &mut [u8] {
        let is_large = self.layout.large_field() == Some(field) && slot.large_mut().is_some();
        if is_large {
            slot.large_mut().unwrap_or_default()
        } else {
            slot.field_mut(field)
        }
    }

    /// Caches a slot as it is; `blob` bytes of it have no fixed size. Returns false if there is no room, or the sample
    /// is cached already.
    fn keep(self, cache: &DatasetCache, id: u32, slot: &mut SlotMut, blob: usize) -> bool {
        let bytes = self.fixed_bytes() + blob;
        let meta = Meta::of(Form::Prepared);
        let Some(mut place) = cache.store.reserve(id, bytes, meta) else {
            return false;
        };
        let mut rest = place.as_mut_slice();
        for field in 0..self.fields {
            let part = self.part(slot, field);
            // The field of no fixed size comes last, and may not fill its part.
            let len = part.len().min(rest.len());
            let (target, after) = rest.split_at_mut(len);
            target.copy_from_slice(&part[..len]);
            rest = after;
        }
        place.commit();
        true
    }

    /// Fills a slot with the cached bytes of another. A value that is larger than the slot has its place already.
    fn restore(self, bytes: &[u8], slot: &mut SlotMut) -> PreparationCost {
        let began = Instant::now();
        let mut rest = bytes;
        for field in 0..self.fields {
            let part = self.part(slot, field);
            // The field of no fixed size comes last, and may not fill its part.
            let len = part.len().min(rest.len());
            let (source, after) = rest.split_at(len);
            part[..len].copy_from_slice(source);
            rest = after;
        }
        PreparationCost {
            random: began.elapsed(),
            ..PreparationCost::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use coprep_cache::staging::{Filling, StagingPool};
    use coprep_scheduler::{Cohort, Draw, JobId, JobSpec};

    use super::*;
    use crate::produce::threads::ThreadPool;
    use crate::stream::{StreamConfig, StreamKey, layout};

    const MEMBER: JobId = JobId(1);

    /// A stream of an iterated dataset whose only member is in epoch 0. The test keeps all of its buffers, so that
    /// nothing is drawn.
    struct Iterated {
        stream: Arc<Stream>,
        buffers: Vec<Filling>,
        kept: Vec<Arc<PendingBatch>>,
    }

    fn iterated() -> Iterated {
        let producer = Producer::Jobs { samples: 1 };
        let fields = producer.fields(Numbers::Batches.are_ids());
        let pool = StagingPool::create(layout(&fields, 1, 1 << 20).unwrap()).unwrap();
        let buffers = std::iter::from_fn(|| pool.allocate()).collect();
        let key = StreamKey {
            pipeline: 1,
            shuffle: false,
            cache: CacheForm::Off,
            lru: false,
            reuse: 0,
            relaxed: false,
            draws: 0,
            told: 1,
        };
        let config = StreamConfig {
            id: 1,
            key,
            takes_any_form: false,
            seed: 7,
            numbers: Numbers::Batches,
            producer,
            code_key: 0,
            identity: None,
            dataset_name: String::new(),
            pipeline_text: String::new(),
            spec: None,
            is_replayed: false,
        };
        let workers = Arc::new(ThreadPool::start(Some(1), false).unwrap());
        let stream = Stream::open(config, pool, workers).unwrap();
        let spec = JobSpec {
            batch_size: 1,
            world_size: 1,
            drop_last: false,
            subset: None,
            resume: None,
            cohort: Some(Cohort {
                name: "c".into(),
                size: 1,
            }),
            skip_bad: false,
        };
        let mut engine = stream.engine();
        engine.scheduler.attach(MEMBER, spec).unwrap();
        engine.scheduler.open_epoch(0);
        drop(engine);
        Iterated {
            stream,
            buffers,
            kept: Vec::new(),
        }
    }

    impl Iterated {
        /// Returns the work for a batch of epoch 0 that `members` members wait for.
        fn batch(&mut self, number: u32, members: u32) -> Box<SampleWork> {
            let (slots, unfinished) = self.buffers.pop().unwrap().split(1);
            let batch = Arc::new(PendingBatch::new(1, Vec::new(), 1, members, unfinished));
            self.kept.push(batch.clone());
            let bound_slot = BoundSlot {
                batch,
                slot: slots.into_iter().next().unwrap(),
                place: 0,
            };
            let draw = Numbers::Batches.sample(Draw {
                id: number,
                visit: 0,
            });
            let plan = PreparationPlan {
                start: Deadline::default(),
                due: None,
                is_there: false,
            };
            Box::new(SampleWork::bound(
                self.stream.clone(),
                bound_slot,
                draw,
                plan,
            ))
        }

        /// Returns the end of epoch 0, as far as it is known, and the number of samples that the scheduler takes it to
        /// have.
        fn length(&self) -> (Option<u32>, u32) {
            let engine = self.stream.engine();
            let view = engine.scheduler.job(MEMBER).unwrap();
            (engine.end_of(0), view.samples)
        }
    }

    fn ends_at(batches: u32) -> TaskOutcome {
        TaskOutcome::Failed(Failure::new(Raised::END, batches.to_string()))
    }

    #[test]
    fn an_end_that_nobody_waits_for_any_more_ends_no_epoch_of_another_cohort() {
        let mut iterated = iterated();
        let open = iterated.length();
        assert_eq!(open.0, None);
        // This batch was drawn for a cohort that has left, which was in epoch 0 as well.
        iterated.batch(3, 0).finish(ends_at(3));
        assert_eq!(iterated.length(), open);
        iterated.batch(7, 1).finish(ends_at(5));
        assert_eq!(iterated.length(), (Some(5), 5));
    }

    #[test]
    fn an_epoch_ends_behind_two_batches_that_ended_their_readers_and_none_is_asked_for_what_comes_then()
     {
        let mut iterated = iterated();
        let open = iterated.length();
        let mut behind = iterated.batch(6, 1);
        assert!(matches!(behind.begin(), Begin::Make));
        assert_eq!(behind.lasting_id(), None);
        let ends_readers = |iterated: &mut Iterated, number| {
            let why = Failure::new("dataset", "the worker that made it was killed".into());
            let batch = iterated.batch(number, 1);
            batch.finish(TaskOutcome::EndedWorkers(why));
            iterated.length()
        };
        assert_eq!(ends_readers(&mut iterated, 2), open);
        iterated.batch(3, 1).finish(TaskOutcome::Made {
            cost: PreparationCost::default(),
            blob: 0,
        });
        let came_past = "a reader came past the other one";
        assert_eq!(ends_readers(&mut iterated, 5), open, "{came_past}");
        assert_eq!(ends_readers(&mut iterated, 4), (Some(6), 6));
        let begun = behind.begin();
        assert!(matches!(begun, Begin::Over(TaskOutcome::Failed(end)) if end.stage == Raised::END));
        behind.finish(ends_at(6));
    }
}
