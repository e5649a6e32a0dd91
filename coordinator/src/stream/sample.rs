//! A sample on its way into a slot of its minibatch, made by a thread of the coordinator or by a worker of user code.

use std::sync::Arc;
use std::time::Instant;

use coprep_cache::sample_cache::{Form, Meta};
use coprep_cache::staging::{Layout, SlotMut};
use coprep_pipeline::SampleKey;
use coprep_protocol::code::Order;
use coprep_protocol::message::CacheForm;
use coprep_scheduler::Draw;

use crate::caches::Cache;
use crate::maker::Maker;
use crate::prepare::{Cost, Failure, Recipe, Tools};
use crate::stream::Stream;
use crate::stream::batch::Batch;
use crate::user_code::{Begin, Outcome, Task};
use crate::workers::Work;

/// One sample of a minibatch, for a worker.
pub(super) struct SampleWork {
    pub(super) stream: Arc<Stream>,
    pub(super) batch: Arc<Batch>,
    pub(super) slot: SlotMut,
    pub(super) place: u32,
    pub(super) draw: Draw,
    /// No worker has begun it.
    pub(super) is_waiting: bool,
}

impl Work for SampleWork {
    fn run(mut self: Box<Self>, tools: &mut Tools) {
        if self.start() {
            let stream = self.stream.clone();
            match &stream.blueprint.maker {
                Maker::Native(recipe) => self.fill(recipe, tools),
                Maker::Crew { crew, prepared, .. } => match self.restore(prepared.as_deref()) {
                    Some(cost) => self.prepared(&cost),
                    // An LRU has let it go since the work was assigned.
                    None => return crew.submit(self),
                },
                Maker::Jobs { .. } => {
                    let visit = self.draw.visit.to_ne_bytes();
                    self.slot.field_mut(0).copy_from_slice(&visit);
                    self.prepared(&Cost::default());
                }
            }
        }
        self.end();
    }
}

impl Task for SampleWork {
    fn begin(&mut self) -> Begin {
        if !self.start() {
            return Begin::Over(Outcome::Dropped);
        }
        // Made meanwhile, for an earlier minibatch.
        let stream = self.stream.clone();
        let cache = match &stream.blueprint.maker {
            Maker::Crew { prepared, .. } => prepared.as_deref(),
            _ => None,
        };
        match self.restore(cache) {
            Some(cost) => Begin::Over(Outcome::Found(cost)),
            None => Begin::Make,
        }
    }

    fn order(&self) -> Order {
        Order {
            id: self.draw.id,
            buffer: self.batch.buffer,
            slot: self.slot.slot(),
            keep: false,
            visit: self.visit(),
            cached: (0, 0),
        }
    }

    fn finish(mut self: Box<Self>, outcome: Outcome) {
        match outcome {
            Outcome::Made(cost) => {
                self.made(&cost);
                self.end();
            }
            Outcome::Found(cost) => {
                self.prepared(&cost);
                self.end();
            }
            Outcome::Failed(failure) => match self.replace(failure) {
                true => self.stream.clone().assign(*self),
                false => self.end(),
            },
            Outcome::Dropped if !self.batch.is_wanted() => self.end(),
            // Nobody writes this slot any more, so the minibatch is never whole, and never published.
            Outcome::Dropped => {}
        }
    }
}

impl SampleWork {
    /// What keys its random numbers. A prepared sample has the same in all visits that it is used for.
    fn visit(&self) -> u64 {
        let key = &self.stream.blueprint.key;
        match (key.cache, u64::from(key.reuse)) {
            (CacheForm::Prepared, 0) => 0,
            (CacheForm::Prepared, times) => self.draw.visit / times * times,
            _ => self.draw.visit,
        }
    }

    /// A worker begins it. False: nobody wants it any more.
    fn start(&mut self) -> bool {
        if std::mem::take(&mut self.is_waiting) {
            self.stream.sample_begun();
        }
        self.batch.is_wanted()
    }

    fn end(self) {
        let SampleWork {
            stream,
            batch,
            slot,
            ..
        } = self;
        drop(slot);
        if batch.slot_written() {
            stream.minibatch_done(&batch);
        }
    }

    /// Prepares the sample, or the one that replaces it, or leaves a gap.
    fn fill(&mut self, recipe: &Recipe, tools: &mut Tools) {
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
            visit: self.draw.visit,
        };
        let cost = recipe.prepare(key, tools, self.slot.field_mut(0))?;
        let label = recipe.dataset.label(self.draw.id);
        self.slot.field_mut(1).copy_from_slice(&label.to_ne_bytes());
        Ok(cost)
    }

    /// Fills the slot with what is cached.
    fn restore(&mut self, cache: Option<&Cache>) -> Option<Cost> {
        let cache = cache?;
        let layout = self.stream.pool.layout();
        let bytes = cache.store.get(self.draw.id)?;
        if bytes.len() != written_bytes(layout) {
            return None;
        }
        cache.count_hit();
        Some(restore(&bytes, &mut self.slot, layout))
    }

    /// The sample failed: the jobs are told, and it is another one now. False: there is none, and a gap is left.
    fn replace(&mut self, failure: Failure) -> bool {
        let stream = &self.stream;
        stream.counters.add_failure();
        let path = stream.blueprint.maker.path(self.draw.id);
        let other =
            stream
                .engine()
                .sample_failed(&self.batch, self.place, self.draw, path, failure);
        match other {
            Some(other) => self.draw = other,
            None => self.batch.mark_bad(self.place),
        }
        other.is_some()
    }

    fn prepared(&mut self, cost: &Cost) {
        let index = self.stream.fields.len() - 1;
        self.slot
            .field_mut(index)
            .copy_from_slice(&i64::from(self.draw.id).to_ne_bytes());
        self.batch.add_cost(cost);
        self.stream.counters.add(cost, self.draw.visit);
    }

    /// A worker of user code has written the slot.
    fn made(&mut self, cost: &Cost) {
        let stream = self.stream.clone();
        if let Maker::Crew {
            prepared: Some(cache),
            ..
        } = &stream.blueprint.maker
        {
            cache.count_miss();
            if !keep(cache, self.draw.id, &mut self.slot, stream.pool.layout()) {
                // Another worker made the same sample meanwhile: all jobs are to see one.
                self.restore(Some(cache));
            }
        }
        self.prepared(cost);
    }
}

/// Fields of a slot of user code: all but the index.
fn written_fields(layout: &Layout) -> std::ops::Range<usize> {
    0..layout.fields() - 1
}

fn written_bytes(layout: &Layout) -> usize {
    written_fields(layout).map(|f| layout.sample_bytes(f)).sum()
}

/// Caches a slot as it is. False: there is no room, or it is there already.
fn keep(cache: &Cache, id: u32, slot: &mut SlotMut, layout: &Layout) -> bool {
    let bytes = written_bytes(layout);
    let meta = Meta::of(Form::Prepared);
    let Some(mut place) = cache.store.reserve(id, bytes, meta) else {
        return false;
    };
    let mut rest = place.as_mut_slice();
    for field in written_fields(layout) {
        let part = slot.field_mut(field);
        let (target, after) = rest.split_at_mut(part.len());
        target.copy_from_slice(part);
        rest = after;
    }
    place.commit();
    true
}

/// Fills a slot with what was cached of another.
fn restore(bytes: &[u8], slot: &mut SlotMut, layout: &Layout) -> Cost {
    let began = Instant::now();
    let mut rest = bytes;
    for field in written_fields(layout) {
        let part = slot.field_mut(field);
        let (source, after) = rest.split_at(part.len());
        part.copy_from_slice(source);
        rest = after;
    }
    Cost {
        prep: began.elapsed(),
        ..Cost::default()
    }
}
