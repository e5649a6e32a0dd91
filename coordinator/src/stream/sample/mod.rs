//! A sample on its way into its slot.
//!
//! A [`PendingSample`] is the part that all samples have in common: the slot, the end, and the failure. Each producer
//! has a kind of work of its own around it:
//!
//! * [`origin`] decides once where a sample comes from, and hands it to its producer.
//! * [`pipeline`]: a pipeline of the coordinator's own prepares the sample.
//! * [`process`]: a worker process makes it by the jobs' own code; [`iterated`] ends the epochs of such a dataset.
//! * [`cached`]: a thread copies it from the cache of prepared samples.
//! * [`unprepared`]: the job prepares it itself, or it still lies in its slot.
//! * [`recovery`]: a thread panicked while it had the sample.
//!
//! [`slot`] binds samples to slots, [`prepared_cache`] fills slots from the cache of prepared samples and keeps them in
//! it, [`fields`] copies the bytes, and [`large`] finds room for samples that are larger than their slots.

mod cached;
mod fields;
mod iterated;
mod large;
mod origin;
mod pipeline;
mod prepared_cache;
mod process;
mod recovery;
mod slot;
mod unprepared;

use std::sync::Arc;
use std::time::Instant;

use fail::fail_point;

use crate::observe::preparation_cost::PreparationCost;
use crate::produce::deadline_queue::Deadline;
use crate::produce::failure::Failure;
use crate::stream::batch::PendingBatch;
use crate::stream::late_binding::BoundSlot;
pub(super) use crate::stream::sample::fields::ProducerFields;
pub(super) use crate::stream::sample::slot::Destination;
use crate::stream::{Drawn, Stream};

/// A sample of a minibatch, from its draw until its slot is written.
pub(super) struct PendingSample {
    stream: Arc<Stream>,
    destination: Destination,
    /// The minibatch that the sample was drawn for.
    drawn_for: Arc<PendingBatch>,
    draw: Drawn,
    plan: PreparationPlan,
    /// `true` if no worker has begun to prepare the sample.
    is_waiting: bool,
    /// Time since which the kernel refuses the memory that the sample must have.
    short_since: Option<Instant>,
    /// Number of threads in a row that have panicked while they had the sample.
    panics: u32,
}

/// Plan for the preparation of a sample.
#[derive(Clone, Copy)]
pub(super) struct PreparationPlan {
    /// Time at which the preparation is to begin.
    pub(super) start: Deadline,
    /// Time at which the minibatch is due, in the seconds of a [`Deadline`], if samples are drawn ahead because some
    /// are slow.
    pub(super) due: Option<f64>,
    /// `true` if the slot stays as it is: see [`replay`](super::replay).
    pub(super) is_there: bool,
}

impl PendingSample {
    pub(super) fn new(
        stream: Arc<Stream>,
        destination: Destination,
        drawn_for: Arc<PendingBatch>,
        draw: Drawn,
        plan: PreparationPlan,
    ) -> Self {
        PendingSample {
            stream,
            destination,
            drawn_for,
            draw,
            plan,
            is_waiting: true,
            short_since: None,
            panics: 0,
        }
    }

    // The beginning.

    /// Records that a thread begins to prepare the sample. Returns `false` if nobody wants the sample any more.
    fn start(&mut self) -> bool {
        self.time_runs(true);
        let is_wanted = self.is_started();
        if is_wanted {
            fail_point!("worker-prepare");
        }
        is_wanted
    }

    /// Records that the sample waits no more. Returns `false` if nobody wants the sample any more.
    fn is_started(&mut self) -> bool {
        // Counted once, however often the sample is begun anew.
        if std::mem::take(&mut self.is_waiting) {
            self.stream.sample_begun();
        }
        self.drawn_for.is_wanted()
    }

    // The end.

    /// Completes a slot whose other fields its producer has written, and counts the preparation.
    fn prepared(&mut self, cost: &PreparationCost) {
        fail_point!("worker-written");
        // These fields identify the sample: see `naming_fields`.
        let names = [self.draw.id, self.draw.number].map(|name| i64::from(name).to_ne_bytes());
        let stream = &self.stream;
        let BoundSlot { batch, slot, .. } = self.destination.bound_slot(stream);
        let naming_fields = stream.producer_fields().count..stream.fields.len();
        for (field, name) in naming_fields.zip(names) {
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
        stream.counters.add(cost, self.draw.visit);
    }

    /// Gives the slot back to its minibatch. The last sample of a minibatch completes it.
    fn end(mut self) {
        self.bound_slot();
        let Destination::Bound(BoundSlot { batch, slot, .. }) =
            std::mem::replace(&mut self.destination, Destination::Over)
        else {
            return;
        };
        // The slot goes first, because a buffer with a slot in use cannot be finished.
        drop(slot);
        if batch.slot_written() {
            self.destination = Destination::Last(batch);
            self.end_minibatch();
        }
    }

    fn end_minibatch(&mut self) {
        if let Destination::Last(batch) = &self.destination {
            self.stream.minibatch_done(batch);
        }
        self.destination = Destination::Over;
    }

    /// Drops a sample whose slot nobody writes any more. Its minibatch is never whole, and never published.
    fn abandon(mut self) {
        self.destination = Destination::Over;
    }

    // The failure.

    /// Ends a failed sample: another one is made in its place, or a gap is left.
    fn fail(mut self, failure: Failure) {
        if self.replace(failure) {
            self.begin_anew(Deadline::default());
        } else {
            self.end();
        }
    }

    /// Reports a failed sample to the jobs, and puts another one in its place. Returns `false` if there is none, which
    /// leaves a gap.
    fn replace(&mut self, failure: Failure) -> bool {
        let stream = &self.stream;
        stream.counters.add_failure();
        let path = stream.config.producer.path(self.draw.id);
        let BoundSlot {
            batch,
            position,
            slot,
        } = self.destination.bound_slot(stream);
        slot.forget_large();
        let other = stream
            .engine()
            .sample_failed(batch, *position, self.draw, path, failure);
        match other {
            Some(other) => self.draw = other,
            None => batch.mark_bad(*position),
        }
        other.is_some()
    }

    /// Hands the sample to its producer once more. Its origin may be another one by now.
    fn begin_anew(self, start: Deadline) {
        let stream = self.stream.clone();
        stream.assign(start, self);
    }
}
