//! Relaxed order: samples whose slot is bound only when they are about to be written.
//!
//! Each sample is drawn for a slot, as ever. One that is about to be written looks whether, in an earlier minibatch for the
//! same jobs, another is being made for longer than the budget ([`coprep_costs::Budget`]): then they exchange slots.
//! So the earlier minibatch is whole, the slow sample goes on undisturbed, and lands in the later one. Nothing is
//! restarted, and an exchange neither drops nor repeats: every slot has one sample and every sample one slot, always.
//!
//! Minibatches of other epochs are for other targets: a sample never leaves its epoch.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::staging::SlotMut;

use crate::stream::batch::Batch;

/// Where a sample will be written.
pub(crate) struct Berth {
    pub(crate) batch: Arc<Batch>,
    pub(crate) slot: SlotMut,
    /// Which of the minibatch.
    pub(crate) place: u32,
}

/// A sample that is not yet bound to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ticket(u64);

/// See the module.
#[derive(Default)]
pub(crate) struct Afloat {
    samples: HashMap<Ticket, Sample>,
    /// By minibatch, in the order of drawing, and place.
    by_place: BTreeMap<(u64, u32), Ticket>,
    tickets: u64,
}

struct Sample {
    id: u32,
    number: u64,
    berth: Berth,
    /// When a worker took it up, if one works at it.
    began: Option<Instant>,
    /// What was worked at it before.
    worked: Duration,
}

impl Sample {
    fn worked(&self) -> Duration {
        let now = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        self.worked + now
    }
}

/// Sample `slow` and sample `ready` exchanged their slots.
pub(crate) struct Overtaken {
    pub(crate) slow: u32,
    pub(crate) ready: u32,
}

impl Afloat {
    /// A sample of the minibatch of this number.
    pub(crate) fn add(&mut self, id: u32, number: u64, berth: Berth) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.by_place.insert((number, berth.place), ticket);
        let sample = Sample {
            id,
            number,
            berth,
            began: None,
            worked: Duration::ZERO,
        };
        self.samples.insert(ticket, sample);
        ticket
    }

    /// A worker takes it up: its time runs.
    pub(crate) fn begin(&mut self, ticket: Ticket) {
        if let Some(sample) = self.samples.get_mut(&ticket) {
            sample.began.get_or_insert_with(Instant::now);
        }
    }

    /// It is fetched, and waits to be prepared: its time stands still.
    pub(crate) fn pause(&mut self, ticket: Ticket) {
        if let Some(sample) = self.samples.get_mut(&ticket) {
            sample.worked = sample.worked();
            sample.began = None;
        }
    }

    /// Binds it to its own slot.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Berth> {
        let sample = self.samples.remove(&ticket)?;
        self.by_place.remove(&(sample.number, sample.berth.place));
        Some(sample.berth)
    }

    /// It is about to be written: binds it to its slot, or to that of a sample that holds an earlier minibatch up.
    pub(crate) fn claim(
        &mut self,
        ticket: Ticket,
        budget: Option<Duration>,
    ) -> Option<(Berth, Option<Overtaken>)> {
        let mut ready = self.samples.remove(&ticket)?;
        self.by_place.remove(&(ready.number, ready.berth.place));
        let slow = budget.and_then(|budget| self.slowest_before(&ready, budget));
        let Some(slow) = slow.and_then(|ticket| Some((ticket, self.samples.get_mut(&ticket)?)))
        else {
            return Some((ready.berth, None));
        };
        let (ticket, slow) = slow;
        self.by_place.remove(&(slow.number, slow.berth.place));
        std::mem::swap(&mut slow.berth, &mut ready.berth);
        std::mem::swap(&mut slow.number, &mut ready.number);
        self.by_place
            .insert((slow.number, slow.berth.place), ticket);
        let overtaken = Overtaken {
            slow: slow.id,
            ready: ready.id,
        };
        Some((ready.berth, Some(overtaken)))
    }

    /// Over its budget in the earliest minibatch of all.
    fn slowest_before(&self, ready: &Sample, budget: Duration) -> Option<Ticket> {
        let is_slow = |ticket: &Ticket| {
            self.samples.get(ticket).is_some_and(|sample| {
                sample.worked() > budget && sample.berth.batch.targets == ready.berth.batch.targets
            })
        };
        let before = self.by_place.range(..(ready.number, 0));
        before.map(|(_, ticket)| *ticket).find(is_slow)
    }
}
