//! Relaxed order: samples whose slot is bound only when they are about to be written.
//!
//! Each sample is drawn for a slot, as ever. One that is about to be written looks whether, in an earlier minibatch for the
//! same jobs, another is being made for longer than the budget ([`coprep_costs::Budget`]): then they exchange slots.
//! So the earlier minibatch is whole, the slow sample goes on undisturbed, and lands in the later one. Nothing is
//! restarted, and an exchange neither drops nor repeats: every slot has one sample and every sample one slot, always.
//!
//! A process that makes a sample is offered its slot when it begins, unless an earlier minibatch is held up just then: so
//! only a sample whose slot was taken back meanwhile, for it was slow, has to ask ([`coprep_cache::offers`]).
//!
//! Minibatches of other epochs are for other targets: a sample never leaves its epoch.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::offers::Offer;
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
    /// Its slot is offered to who makes it.
    offer: Option<Offer>,
}

impl Sample {
    fn worked(&self) -> Duration {
        let now = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        self.worked + now
    }

    /// Whether its slot can be another's.
    fn lets_go(&self) -> bool {
        self.offer.as_ref().is_none_or(Offer::take_back)
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
            offer: None,
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

    /// Offers its slot, buffer and slot, to the process that makes it. None: an earlier minibatch is held up, and so it is
    /// better decided when it is made.
    pub(crate) fn offer(
        &mut self,
        ticket: Ticket,
        budget: Option<Duration>,
        offer: Offer,
    ) -> Option<(u32, u32)> {
        self.samples.get_mut(&ticket)?.offer = None;
        let sample = self.samples.get(&ticket)?;
        if budget.is_some_and(|budget| self.slow_before(sample, budget).next().is_some()) {
            return None;
        }
        let sample = self.samples.get_mut(&ticket)?;
        sample.offer = Some(offer);
        Some((sample.berth.batch.buffer, sample.berth.slot.slot()))
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
        let lets_go = |ticket: &Ticket| self.samples.get(ticket).is_some_and(Sample::lets_go);
        let slow = budget.and_then(|budget| self.slow_before(&ready, budget).find(lets_go));
        let Some(slow) = slow.and_then(|ticket| Some((ticket, self.samples.get_mut(&ticket)?)))
        else {
            return Some((ready.berth, None));
        };
        let (ticket, slow) = slow;
        self.by_place.remove(&(slow.number, slow.berth.place));
        std::mem::swap(&mut slow.berth, &mut ready.berth);
        std::mem::swap(&mut slow.number, &mut ready.number);
        slow.offer = None;
        self.by_place
            .insert((slow.number, slow.berth.place), ticket);
        let overtaken = Overtaken {
            slow: slow.id,
            ready: ready.id,
        };
        Some((ready.berth, Some(overtaken)))
    }

    /// Those over their budget in minibatches before, the earliest first.
    fn slow_before(&self, ready: &Sample, budget: Duration) -> impl Iterator<Item = Ticket> {
        let targets = &ready.berth.batch.targets;
        let is_slow = move |ticket: &Ticket| {
            self.samples.get(ticket).is_some_and(|sample| {
                sample.worked() > budget && sample.berth.batch.targets == *targets
            })
        };
        let before = self.by_place.range(..(ready.number, 0));
        before.map(|(_, ticket)| *ticket).filter(is_slow)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use coprep_cache::offers::Offers;
    use coprep_cache::staging::{Layout, StagingPool};

    use super::*;

    /// Two minibatches of one sample each.
    struct Two {
        afloat: Afloat,
        first: Ticket,
        second: Ticket,
        buffers: [u32; 2],
        ours: Arc<Offers>,
        theirs: Offers,
    }

    fn two() -> Two {
        let pool = StagingPool::create(Layout::new(&[8], 1, 2).unwrap()).unwrap();
        let mut afloat = Afloat::default();
        let mut add = |number| {
            let (mut slots, unfinished) = pool.allocate().unwrap().split(1);
            let batch = Arc::new(Batch::new(number, Vec::new(), 1, 1, unfinished));
            let slot = slots.pop().unwrap();
            let buffer = batch.buffer;
            let berth = Berth {
                batch,
                slot,
                place: 0,
            };
            (afloat.add(number as u32, number, berth), buffer)
        };
        let ((first, a), (second, b)) = (add(1), add(2));
        let ours = Offers::create(2).unwrap();
        let theirs = Offers::open(ours.as_fd().try_clone_to_owned().unwrap(), 2).unwrap();
        Two {
            afloat,
            first,
            second,
            buffers: [a, b],
            ours,
            theirs,
        }
    }

    impl Two {
        fn offer(&mut self, ticket: Ticket, word: u32, budget: Duration) -> Option<(u32, u32)> {
            let offer = Offer::new(&self.ours, word);
            self.afloat.begin(ticket);
            self.afloat.offer(ticket, Some(budget), offer)
        }

        /// The buffer it is bound to, and who was overtaken for that.
        fn claim(&mut self, ticket: Ticket, budget: Duration) -> (u32, Option<u32>) {
            let (berth, overtaken) = self.afloat.claim(ticket, Some(budget)).unwrap();
            (berth.batch.buffer, overtaken.map(|o| o.slow))
        }
    }

    const SLOW: Duration = Duration::ZERO;
    const QUICK: Duration = Duration::MAX;

    #[test]
    fn a_slot_that_is_offered_is_taken_back_for_one_that_is_ready() {
        let mut two = two();
        let [a, b] = two.buffers;
        assert_eq!(two.offer(two.first, 0, QUICK), Some((a, 0)));
        assert_eq!(two.claim(two.second, SLOW), (a, Some(1)));
        assert!(!two.theirs.take(0));
        assert_eq!(two.claim(two.first, SLOW), (b, None));
    }

    #[test]
    fn a_slot_that_was_taken_stays_its_sample_s() {
        let mut two = two();
        let [a, b] = two.buffers;
        assert_eq!(two.offer(two.first, 0, QUICK), Some((a, 0)));
        assert!(two.theirs.take(0));
        assert_eq!(two.claim(two.second, SLOW), (b, None));
        assert_eq!(two.afloat.take(two.first).unwrap().batch.buffer, a);
    }

    #[test]
    fn nothing_is_offered_behind_a_minibatch_that_is_held_up() {
        let mut two = two();
        let [a, b] = two.buffers;
        assert_eq!(two.offer(two.first, 0, QUICK), Some((a, 0)));
        assert_eq!(two.offer(two.second, 1, SLOW), None);
        assert_eq!(two.offer(two.second, 1, QUICK), Some((b, 0)));
    }

    #[test]
    fn what_was_overtaken_can_be_overtaken_again() {
        let mut two = two();
        let [a, b] = two.buffers;
        assert_eq!(two.offer(two.first, 0, QUICK), Some((a, 0)));
        let (berth, _) = two.afloat.claim(two.second, Some(SLOW)).unwrap();
        // Drawn for a third minibatch: what was overtaken lies in the second now.
        let third = two.afloat.add(3, 3, berth);
        assert_eq!(two.claim(third, SLOW), (b, Some(1)));
        assert_eq!(two.claim(two.first, SLOW), (a, None));
    }
}
