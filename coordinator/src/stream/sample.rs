//! A sample on its way into a slot of its minibatch, made by a thread of the coordinator or by a worker of user code.

mod large;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::sample_cache::{Form, Meta};
use coprep_cache::staging::{Layout, SlotMut};
use coprep_cache::worklist::Given;
use coprep_pipeline::SampleKey;
use coprep_protocol::code::{Order, Raised};
use coprep_protocol::message::CacheForm;
use fail::fail_point;

use crate::caches::Cache;
use crate::due_queue::Moment;
use crate::maker::Maker;
use crate::prepare::{Cost, Failure, Fetched, Recipe, Slot, Tools};
use crate::stream::afloat::{Berth, Ticket};
use crate::stream::batch::Batch;
use crate::stream::{Drawn, Numbers, Stream};
use crate::user_code::{Begin, Outcome, Outlook, Room, Task};
use crate::workers::{Ready, Work};

/// One sample of a minibatch, for a worker.
pub(super) struct SampleWork {
    stream: Arc<Stream>,
    at: At,
    /// The minibatch it was drawn for.
    drawn_for: Arc<Batch>,
    draw: Drawn,
    plan: Plan,
    /// No worker has begun to prepare it.
    is_waiting: bool,
    fetched: Option<Fetched>,
    /// Since when the kernel refuses the memory that it must have.
    short_since: Option<Instant>,
    /// How often in a row a thread has panicked that had it.
    panics: u32,
}

/// A sample over which so many threads have panicked, though they had nothing to do but to report it, breaks its
/// stream off.
const MOST_PANICS: u32 = 3;

/// How a sample is to be made.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    /// When it is to be begun.
    pub(super) start: Moment,
    /// When its minibatch is due, in a moment's seconds, if samples are drawn ahead because some are slow.
    pub(super) due: Option<f64>,
    /// Its slot stays as it is: see [`replay`](super::replay).
    pub(super) is_there: bool,
}

/// Where it is written.
enum At {
    Bound(Berth),
    /// Known when it is about to be written.
    Afloat(Ticket),
    /// It was written, as the last one of this minibatch.
    Last(Arc<Batch>),
    /// Nothing is left to be done.
    Over,
}

/// What became of a sample that may be cached.
enum Restored {
    /// It is in its slot.
    Whole(Cost),
    /// It is not cached.
    Absent,
    /// It is larger than its slot, and there is no room for it, or not yet.
    NoRoom(Room),
}

impl Work for SampleWork {
    fn needs_fetch(&self) -> bool {
        match &self.stream.blueprint.maker {
            Maker::Native(recipe) if !self.plan.is_there && self.panics == 0 => {
                recipe.cached_as(self.draw.id).is_none()
            }
            _ => false,
        }
    }

    fn fetch(&mut self) -> Ready {
        let stream = self.stream.clone();
        if let Maker::Native(recipe) = &stream.blueprint.maker
            && self.needs_fetch()
            && self.drawn_for.is_wanted()
        {
            self.time_runs(true);
            let is_looking = self.plan.due.is_some();
            // What fails is tried again in its turn, and reported then.
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

    fn run(mut self: Box<Self>, tools: &mut Tools) {
        if self.panics > 0 {
            return self.recover();
        }
        let stream = self.stream.clone();
        if self.start() {
            fail_point!("worker-prepare");
            match &stream.blueprint.maker {
                _ if self.plan.is_there => self.prepared(&Cost::default()),
                Maker::Native(recipe) => self.fill(recipe, tools),
                Maker::Crew { crew, prepared, .. } => match self.restore(prepared.as_deref()) {
                    Restored::Whole(cost) => self.prepared(&cost),
                    // An LRU has let it go since the work was assigned.
                    Restored::Absent => return crew.submit(Moment::default(), self),
                    Restored::NoRoom(Room::Failed(failure)) => {
                        return self.finish(Outcome::Failed(failure));
                    }
                    Restored::NoRoom(Room::Unwanted) => {}
                    // Behind all that is due by now. With its own moment, which may be before theirs, it would come first
                    // each time, and keep the threads from the samples whose end it waits for.
                    Restored::NoRoom(_) => return stream.assign(Moment::now(), *self),
                },
                Maker::Jobs { .. } => {
                    let visit = self.draw.key.to_ne_bytes();
                    self.slot().field_mut(0).copy_from_slice(&visit);
                    self.prepared(&Cost::default());
                }
            }
        }
        self.end();
    }
}

impl Slot for SampleWork {
    fn bytes(&mut self) -> &mut [u8] {
        self.claim();
        fail_point!("worker-bound");
        self.slot().field_mut(0)
    }
}

impl Task for SampleWork {
    fn begin(&mut self) -> Begin {
        if !self.is_started() {
            return Begin::Over(Outcome::Unwanted);
        }
        let stream = self.stream.clone();
        if self.is_iterated()
            && let Some(batches) = stream.engine().end_of(self.draw.visit)
            && self.draw.number >= batches
        {
            // It was drawn before its epoch was known to end. The reader need not be asked.
            let ends = Failure::new(Raised::END, batches.to_string());
            return Begin::Over(Outcome::Failed(ends));
        }
        // Made meanwhile, for an earlier minibatch.
        let cache = match &stream.blueprint.maker {
            Maker::Crew { prepared, .. } => prepared.as_deref(),
            _ => None,
        };
        match self.restore(cache) {
            Restored::Whole(cost) => Begin::Over(Outcome::Found(cost)),
            Restored::NoRoom(Room::Unwanted) => Begin::Over(Outcome::Unwanted),
            // A worker can wait until there is room for it.
            Restored::Absent | Restored::NoRoom(_) => Begin::Make,
        }
    }

    fn order(&self) -> Order {
        Order {
            id: self.draw.id,
            place: match &self.at {
                At::Bound(berth) => Some((berth.batch.buffer, berth.slot.slot())),
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
        let (id, maker) = (self.draw.id, &self.stream.blueprint.maker);
        let seconds = maker.expected(id);
        let budget = maker.costs().and_then(|costs| costs.budget());
        let is_kept = |cache: &Cache| !cache.store.has(id) && cache.may_admit(id);
        Outlook {
            seconds,
            is_quick: seconds.zip(budget).is_some_and(|(s, budget)| s <= budget),
            is_kept: maker.cache().is_some_and(|cache| is_kept(cache)),
        }
    }

    fn offer(&mut self, given: &Given) -> Option<(u32, u32)> {
        match self.at {
            At::Afloat(ticket) => self.stream.offer(ticket, given.clone()),
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
        let berth = self.berth();
        (berth.batch.buffer, berth.slot.slot())
    }

    fn room(&mut self, bytes: u64) -> Room {
        self.room_for(bytes)
    }

    fn finish(mut self: Box<Self>, outcome: Outcome) {
        match outcome {
            Outcome::Made { cost, blob } => {
                if self.is_iterated() {
                    self.stream.engine().forget_ended_readers();
                }
                self.made(&cost, blob);
                self.end();
            }
            Outcome::Found(cost) => {
                self.prepared(&cost);
                self.end();
            }
            Outcome::Failed(failure) if self.is_beyond_end(&failure) => self.end(),
            Outcome::Failed(failure) => self.failed(failure),
            Outcome::EndedWorkers(failure) => {
                if self.is_iterated() {
                    self.ended_readers();
                }
                self.failed(failure);
            }
            Outcome::Unwanted => self.end(),
            // Nobody writes this slot any more, so the minibatch is never whole, and never published.
            Outcome::Dropped => self.at = At::Over,
        }
    }
}

impl SampleWork {
    /// For the slot of `berth`, come what may.
    pub(super) fn bound(stream: Arc<Stream>, berth: Berth, draw: Drawn, plan: Plan) -> Self {
        let drawn_for = berth.batch.clone();
        Self::new(stream, At::Bound(berth), drawn_for, draw, plan)
    }

    /// For the slot that `ticket` will give.
    pub(super) fn afloat(
        stream: Arc<Stream>,
        ticket: Ticket,
        drawn_for: Arc<Batch>,
        draw: Drawn,
        plan: Plan,
    ) -> Self {
        Self::new(stream, At::Afloat(ticket), drawn_for, draw, plan)
    }

    fn new(stream: Arc<Stream>, at: At, drawn_for: Arc<Batch>, draw: Drawn, plan: Plan) -> Self {
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

    /// What keys its random numbers. A prepared sample has the same in all visits that it is used for.
    fn visit(&self) -> u64 {
        let key = &self.stream.blueprint.key;
        match (key.cache, u64::from(key.reuse)) {
            (CacheForm::Prepared, 0) => 0,
            // This is refused for draws: a prepared sample is used as often as it is drawn.
            (CacheForm::Prepared, times) => self.draw.visit / times * times,
            _ => self.draw.key,
        }
    }

    /// A sample that nothing was known of was drawn to be begun at once: now it is known, and has its time.
    fn start_when_fetched(&self, expected: Option<f32>) -> Moment {
        let was_known = self.stream.blueprint.maker.expected(self.draw.id).is_some();
        match self.plan.due.filter(|_| !was_known) {
            Some(due) => Stream::start_of_one(due, expected),
            None => self.plan.start,
        }
    }

    /// Where it may be overtaken: whether somebody works at it.
    fn time_runs(&self, is_running: bool) {
        let At::Afloat(ticket) = self.at else { return };
        let afloat = &mut self.stream.engine().afloat;
        match is_running {
            true => afloat.begin(ticket),
            false => afloat.pause(ticket),
        }
    }

    /// A worker begins to prepare it. False: nobody wants it any more.
    fn start(&mut self) -> bool {
        self.time_runs(true);
        self.is_started()
    }

    /// It waits no more. False: nobody wants it any more.
    fn is_started(&mut self) -> bool {
        if std::mem::take(&mut self.is_waiting) {
            self.stream.sample_begun();
        }
        self.drawn_for.is_wanted()
    }

    /// It is about to be written.
    fn claim(&mut self) {
        if let At::Afloat(ticket) = self.at {
            self.at = At::Bound(self.stream.claim(ticket));
        }
    }

    fn berth(&mut self) -> &mut Berth {
        if let At::Afloat(ticket) = self.at {
            self.at = At::Bound(self.stream.take(ticket));
        }
        match &mut self.at {
            At::Bound(berth) => berth,
            _ => unreachable!("it was bound just now, and is not over"),
        }
    }

    fn slot(&mut self) -> &mut SlotMut {
        &mut self.berth().slot
    }

    fn end(mut self) {
        self.berth();
        let At::Bound(Berth { batch, slot, .. }) = std::mem::replace(&mut self.at, At::Over) else {
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

    /// A thread panicked while it had the sample: reports that, so that its minibatch becomes whole all the same.
    fn recover(mut self: Box<Self>) {
        let is_wanted = self.is_started();
        if let At::Afloat(ticket) = self.at {
            // It may be gone, with the stream.
            self.at = self.stream.try_take(ticket).map_or(At::Over, At::Bound);
        }
        match self.at {
            At::Over => return,
            At::Last(_) => return self.end_minibatch(),
            _ => {}
        }
        if is_wanted && self.replace(Failure::defect()) {
            let stream = self.stream.clone();
            self.panics = 0;
            stream.assign(Moment::default(), *self);
        } else {
            self.end();
        }
    }

    /// Prepares the sample, or the one that replaces it, or leaves a gap.
    fn fill(&mut self, recipe: &Recipe, tools: &mut Tools) {
        if let Some(fetched) = self.fetched.take() {
            tools.take_over(fetched);
        }
        loop {
            match self.prepare(recipe, tools) {
                Ok(cost) => return self.prepared(&cost),
                Err(failure) => {
                    if !self.replace(failure) {
                        return;
                    }
                }
            }
        }
    }

    fn prepare(&mut self, recipe: &Recipe, tools: &mut Tools) -> Result<Cost, Failure> {
        let key = SampleKey {
            seed: self.stream.blueprint.seed,
            id: self.draw.id,
            visit: self.draw.key,
        };
        let cost = recipe.prepare(key, tools, self)?;
        let label = recipe.dataset.label(self.draw.id);
        self.slot()
            .field_mut(1)
            .copy_from_slice(&label.to_ne_bytes());
        Ok(cost)
    }

    /// Fills the slot with what is cached.
    fn restore(&mut self, cache: Option<&Cache>) -> Restored {
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
                Room::At(_) => {}
                none => {
                    // Nobody waits for an answer: it asks anew. By then it may not be cached any more, and lie in the queue of
                    // workers that all wait behind it.
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

    /// Returns whether there is no such sample, because its epoch has ended before it. That leaves a gap, which nobody is told
    /// of. The end of the epoch is told by itself.
    fn is_beyond_end(&mut self, failure: &Failure) -> bool {
        let batches = (failure.stage == Raised::END).then(|| failure.message.parse().ok());
        let Some(batches) = batches.flatten().filter(|_| self.is_iterated()) else {
            return false;
        };
        let Berth { batch, place, slot } = self.berth();
        slot.forget_large();
        batch.mark_bad(*place);
        self.end_epoch(self.draw.number.min(batches));
        true
    }

    fn is_iterated(&self) -> bool {
        matches!(self.stream.blueprint.numbers, Numbers::Batches)
    }

    /// Its epoch has only so many batches.
    fn end_epoch(&mut self, batches: u32) {
        let stream = self.stream.clone();
        let epoch = self.draw.visit;
        let batch = self.berth().batch.clone();
        // Members come and leave under this lock.
        let mut engine = stream.engine();
        // A cohort that has left may have been followed by another, which iterates this epoch anew. It may end elsewhere, and
        // the first end that is told stands.
        if batch.is_wanted() {
            engine.end_epoch(epoch, batches);
        }
    }

    /// The batch has ended as many readers as may be tried. If another one did, and none was made since, no reader comes past
    /// the place, and the epoch ends. Otherwise each batch to come would end two more, and there might be no last one.
    fn ended_readers(&mut self) {
        let (epoch, number) = (self.draw.visit, self.draw.number);
        let other = self.stream.engine().ended_readers(epoch, number);
        if let Some(other) = other {
            // Both are reported, in whichever order they were tried.
            self.end_epoch(number.max(other).saturating_add(1));
        }
    }

    /// The sample failed: another one is made in its place, or a gap is left.
    fn failed(mut self: Box<Self>, failure: Failure) {
        if self.replace(failure) {
            let stream = self.stream.clone();
            stream.assign(Moment::default(), *self);
        } else {
            self.end();
        }
    }

    /// The sample failed: the jobs are told, and it is another one now. False: there is none, and a gap is left.
    fn replace(&mut self, failure: Failure) -> bool {
        let stream = self.stream.clone();
        stream.counters.add_failure();
        let path = stream.blueprint.maker.path(self.draw.id);
        let draw = self.draw;
        let Berth { batch, place, slot } = self.berth();
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

    fn prepared(&mut self, cost: &Cost) {
        fail_point!("worker-written");
        // The fields that say what the sample is: see `naming_fields`.
        let names = [self.draw.id, self.draw.number].map(|name| i64::from(name).to_ne_bytes());
        let stream = self.stream.clone();
        let Berth { batch, slot, .. } = self.berth();
        for (field, name) in (stream.made().fields..stream.fields.len()).zip(names) {
            slot.field_mut(field).copy_from_slice(&name);
        }
        // What is larger than its slot goes when the buffer is free.
        if let Some(replay) = stream
            .replay
            .as_ref()
            .filter(|_| slot.large_mut().is_none())
        {
            replay.fill(batch.buffer, slot.slot());
        }
        self.stream.counters.add(cost, self.draw.visit);
    }

    /// Replaces what was made by what is cached, where that takes as much room.
    fn replace_by_cached(&mut self, cache: &Cache, blob: usize) {
        let stream = self.stream.clone();
        let layout = stream.made();
        let made = layout.fixed_bytes() + blob;
        if let Some(bytes) = cache.store.get(self.draw.id).filter(|b| b.len() == made) {
            cache.count_hit();
            layout.restore(&bytes, self.slot());
        }
    }

    /// A worker of user code has written the slot.
    fn made(&mut self, cost: &Cost, blob: u64) {
        let stream = self.stream.clone();
        if let Maker::Crew {
            prepared, costs, ..
        } = &stream.blueprint.maker
        {
            costs.record(self.draw.id, cost);
            if let Some(cache) = prepared {
                cache.count_miss();
                let layout = stream.made();
                let blob = layout.blob_written(self.slot(), blob);
                if !layout.keep(cache, self.draw.id, self.slot(), blob) {
                    // Another worker made the same sample meanwhile: all jobs are to see one.
                    self.replace_by_cached(cache, blob);
                }
            }
        }
        self.prepared(cost);
    }
}

impl Drop for SampleWork {
    /// Gives a sample that is dropped before it is over, because a thread panicked, to another thread, which reports it.
    /// Not here: while a panic unwinds, locks are not poisoned, and another panic would end the process.
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
        workers.submit(Moment::default(), Box::new(again));
    }
}

/// The fields of a slot that its maker writes: all but those that say what the sample is.
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

    /// Returns how many bytes of a cached sample are of no fixed size. `None`: it is none of this layout.
    fn blob_bytes(self, cached: &[u8]) -> Option<usize> {
        let blob = cached.len().checked_sub(self.fixed_bytes())?;
        (self.layout.large_field().is_some() || blob == 0).then_some(blob)
    }

    fn is_larger_than_slot(self, blob: usize) -> bool {
        let field = self.layout.large_field();
        field.is_some_and(|field| blob > self.layout.sample_bytes(field))
    }

    /// Returns how many bytes of no fixed size a worker wrote, which says that they are `said`.
    fn blob_written(self, slot: &mut SlotMut, said: u64) -> usize {
        let field = self.layout.large_field();
        let room = field.map_or(0, |f| self.layout.sample_bytes(f));
        let in_slot = usize::try_from(said).unwrap_or(usize::MAX).min(room);
        slot.large_mut().map_or(in_slot, |large| large.len())
    }

    /// Returns a part of a slot, or what lies elsewhere in its place.
    fn part(self, slot: &mut SlotMut, field: usize) -> &mut [u8] {
        let is_large = self.layout.large_field() == Some(field) && slot.large_mut().is_some();
        if is_large {
            slot.large_mut().unwrap_or_default()
        } else {
            slot.field_mut(field)
        }
    }

    /// Caches a slot as it is; of no fixed size are `blob` bytes of it. False: there is no room, or it is there already.
    fn keep(self, cache: &Cache, id: u32, slot: &mut SlotMut, blob: usize) -> bool {
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
    fn restore(self, bytes: &[u8], slot: &mut SlotMut) -> Cost {
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
        Cost {
            random: began.elapsed(),
            ..Cost::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use coprep_cache::staging::{Filling, StagingPool};
    use coprep_scheduler::{Cohort, Draw, JobId, JobSpec};

    use super::*;
    use crate::stream::{Blueprint, StreamKey, layout};
    use crate::workers::Workers;

    const MEMBER: JobId = JobId(1);

    /// A stream of an iterated dataset, whose only member is in epoch 0. All of its buffers are kept here, so that nothing is
    /// drawn.
    struct Iterated {
        stream: Arc<Stream>,
        buffers: Vec<Filling>,
        kept: Vec<Arc<Batch>>,
    }

    fn iterated() -> Iterated {
        let maker = Maker::Jobs { samples: 1 };
        let fields = maker.fields(Numbers::Batches.are_ids());
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
        let blueprint = Blueprint {
            id: 1,
            key,
            takes_any_form: false,
            seed: 7,
            numbers: Numbers::Batches,
            maker,
            code_key: 0,
            identity: None,
            dataset_name: String::new(),
            pipeline_text: String::new(),
            spec: None,
            is_replayed: false,
        };
        let workers = Arc::new(Workers::start(Some(1), false).unwrap());
        let stream = Stream::open(blueprint, pool, workers).unwrap();
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
        /// A batch of epoch 0 that so many members wait for.
        fn batch(&mut self, number: u32, members: u32) -> Box<SampleWork> {
            let (slots, unfinished) = self.buffers.pop().unwrap().split(1);
            let batch = Arc::new(Batch::new(1, Vec::new(), 1, members, unfinished));
            self.kept.push(batch.clone());
            let berth = Berth {
                batch,
                slot: slots.into_iter().next().unwrap(),
                place: 0,
            };
            let draw = Numbers::Batches.sample(Draw {
                id: number,
                visit: 0,
            });
            let plan = Plan {
                start: Moment::default(),
                due: None,
                is_there: false,
            };
            Box::new(SampleWork::bound(self.stream.clone(), berth, draw, plan))
        }

        /// Where epoch 0 ends, as far as that is known, and the number of samples that the scheduler takes it to have.
        fn length(&self) -> (Option<u32>, u32) {
            let engine = self.stream.engine();
            let view = engine.scheduler.job(MEMBER).unwrap();
            (engine.end_of(0), view.samples)
        }
    }

    fn ends_at(batches: u32) -> Outcome {
        Outcome::Failed(Failure::new(Raised::END, batches.to_string()))
    }

    #[test]
    fn an_end_that_nobody_waits_for_any_more_ends_no_epoch_of_another_cohort() {
        let mut iterated = iterated();
        let open = iterated.length();
        assert_eq!(open.0, None);
        // It was drawn for a cohort that has left, which was in epoch 0 as well.
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
            batch.finish(Outcome::EndedWorkers(why));
            iterated.length()
        };
        assert_eq!(ends_readers(&mut iterated, 2), open);
        iterated.batch(3, 1).finish(Outcome::Made {
            cost: Cost::default(),
            blob: 0,
        });
        let came_past = "a reader came past the other one";
        assert_eq!(ends_readers(&mut iterated, 5), open, "{came_past}");
        assert_eq!(ends_readers(&mut iterated, 4), (Some(6), 6));
        let begun = behind.begin();
        assert!(matches!(begun, Begin::Over(Outcome::Failed(end)) if end.stage == Raised::END));
        behind.finish(ends_at(6));
    }
}
