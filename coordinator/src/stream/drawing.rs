//! Minibatches, from the decision to draw one to the last slot.
//!
//! A minibatch is drawn late, for the jobs as they are when it is prepared, but early enough that no worker is idle and
//! that slow samples can be begun in time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use coprep_costs::{Summary, lookahead};
use coprep_protocol::code::Together;
use coprep_scheduler::Minibatch;
use fail::fail_point;

use crate::produce::deadline_queue::Deadline;
use crate::stream::batch::PendingBatch;
use crate::stream::engine::Engine;
use crate::stream::engine::absent::SOON;
use crate::stream::late_binding::BoundSlot;
use crate::stream::replay::Replay;
use crate::stream::sample::{Destination, PendingSample, PreparationPlan};
use crate::stream::{Drawn, Stream};

/// Largest number of minibatches that are drawn ahead so that slow samples can be begun early.
const LOOKAHEAD: u32 = 8;

impl Stream {
    /// Polls every consumer, and then decides, starts and publishes minibatches. Returns `true` if something happened.
    pub(super) fn pump(self: &Arc<Self>, engine: &mut Engine) -> bool {
        fail_point!("pump-locked");
        // A job whose connection was ended goes on with the minibatches that it has taken until it notices. So from
        // then on no buffer is filled again, not even one that a job has just given back by leaving.
        if self.is_broken() {
            return false;
        }
        let before = engine.next_check.take();
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
        let server_check = self.tend_server(engine);
        self.publish(engine);
        let others = next_cohort.into_iter().chain(engine.copy_deadline());
        let others = others.chain(server_check);
        engine.next_check = engine.next_check.into_iter().chain(others).min();
        self.wake_driver_for(engine.next_check, before);
        progress
    }

    /// Wakes the driver if it would otherwise sleep beyond `next_check`. It may be asleep until `before`, if that is
    /// known.
    fn wake_driver_for(&self, next_check: Option<Instant>, before: Option<Instant>) {
        let is_sooner = |at: Instant| before.is_none_or(|before| at + SOON < before);
        if next_check.is_some_and(is_sooner) {
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
            None => 2 * self.workers.capacity(),
        }
    }

    fn worker_count(&self) -> u32 {
        match self.config.producer.process_pool() {
            Some(process_pool) => process_pool.workers(),
            None => self.workers.threads(),
        }
    }

    /// Records that a worker begins a sample, and draws another minibatch if few are waiting.
    pub(super) fn sample_begun(self: &Arc<Self>) {
        // Several workers begin samples at once. Only the one that crosses the bound takes the lock.
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
        let mut batch = PendingBatch::new(
            engine.drawn,
            minibatch.targets,
            samples.len() as u32,
            deliveries,
            unfinished,
        );
        batch.together = self.together(&samples);
        let batch = Arc::new(batch);
        let starts = self.starts(engine, &samples);
        let stall_clock = self.config.producer.stall_clock(&self.workers);
        engine.expect(&batch, minibatch.deliveries, &stall_clock);
        // Counted before a worker can begin any of them, because each beginning counts one down.
        self.waiting
            .fetch_add(samples.len() as u32, Ordering::Relaxed);
        let is_relaxed = self.config.key.relaxed;
        let is_ahead = engine.window > 0;
        for (position, ((slot, draw), start)) in
            slots.into_iter().zip(samples).zip(starts).enumerate()
        {
            let bound_slot = BoundSlot {
                batch: batch.clone(),
                slot,
                position: position as u32,
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

    /// Returns the samples of a minibatch, if the dataset is asked for all of them together.
    fn together(&self, samples: &[Drawn]) -> Option<Arc<Together>> {
        let first = samples
            .first()
            .filter(|_| self.config.producer.is_at_once())?;
        Some(Arc::new(Together {
            ids: samples.iter().map(|draw| draw.id).collect(),
            visit: first.key,
        }))
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
    pub(super) fn start_of_one(due: f64, expected: Option<f32>) -> Deadline {
        // The factor leaves time for one more sample that may be queued before this one.
        Deadline::at(due - 2.0 * f64::from(expected.unwrap_or(0.0)))
    }

    pub(super) fn minibatch_done(self: &Arc<Self>, batch: &PendingBatch) {
        fail_point!("minibatch-done");
        batch.finish();
        if batch.done().is_none() {
            // Another thread panicked as it closed the gaps.
            self.doom();
        }
        self.pump(&mut self.engine());
    }
}
