//! Relaxed order: a sample is bound to a slot only when it is about to be written.
//!
//! Each sample is drawn for a slot, as in strict order. A sample that is about to be written checks the earlier
//! minibatches for the same jobs. If a worker has been making a sample there for longer than the budget
//! ([`coprep_costs::Budget`]), the two exchange slots. So the earlier minibatch becomes whole, and the slow sample
//! continues undisturbed and lands in the later one. Nothing is restarted, and an exchange neither drops nor repeats a
//! sample: at any time every slot has one sample and every sample one slot.
//!
//! A process that is given a sample is offered its slot, and need not ask for one
//! ([`coprep_shared_memory::task_table`]). There are two exceptions. A slow sample whose slot was taken back must ask.
//! So must one *filler* for each slow sample whose slot must be filled. A filler may turn out to be slow itself;
//! another is then found.
//!
//! Minibatches of other epochs are for other targets, so a sample never leaves its epoch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_shared_memory::staging::SlotMut;
use coprep_shared_memory::task_table::TaskHandle;

use crate::stream::batch::PendingBatch;

/// The slot that a sample will be written to.
pub(crate) struct BoundSlot {
    pub(crate) batch: Arc<PendingBatch>,
    pub(crate) slot: SlotMut,
    /// Index of the slot in the minibatch.
    pub(crate) position: u32,
}

/// Identifies a sample that is not yet bound to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BindingId(u64);

/// The samples of a stream that are not yet bound to a slot; see the module.
#[derive(Default)]
pub(crate) struct SlotBinder {
    samples: HashMap<BindingId, Sample>,
    /// Samples that a worker has begun, or soon will, by minibatch in the order of drawing, and by position.
    by_position: BTreeMap<(u64, u32), BindingId>,
    /// Samples given to a process that will ask where to write them. Each may fill the slot of a slow sample.
    fillers: HashSet<BindingId>,
    bindings: u64,
}

struct Sample {
    id: u32,
    number: u64,
    bound_slot: BoundSlot,
    /// The worker that makes it.
    by: By,
    /// Time that workers spent on it before the present one.
    worked: Duration,
    /// `true` if a process makes it that may take its slot without a message.
    is_offered: bool,
}

enum By {
    Nobody,
    /// A thread makes it, since this time.
    Thread(Instant),
    /// A process makes it, or will.
    Process(TaskHandle),
}

impl Sample {
    fn worked(&self) -> Duration {
        let now = match &self.by {
            By::Nobody => Duration::ZERO,
            By::Thread(began) => began.elapsed(),
            By::Process(given) => given.age().unwrap_or_default(),
        };
        self.worked + now
    }

    /// Returns `true` if it is over its budget, and its slot may still become another's.
    fn is_over(&self, budget: Duration) -> bool {
        let is_taken = match &self.by {
            By::Process(given) if self.is_offered => given.is_taken(),
            _ => false,
        };
        !is_taken && self.worked() > budget
    }

    /// Takes its slot back. Returns `false` if the process has taken the slot already.
    fn lets_go(&self) -> bool {
        match &self.by {
            By::Process(given) if self.is_offered => given.take_back(),
            _ => true,
        }
    }
}

/// The exchange of the slots of sample `slow` and sample `ready`.
pub(crate) struct SlotSwap {
    pub(crate) slow: u32,
    pub(crate) ready: u32,
}

impl SlotBinder {
    /// Adds a sample of the minibatch with this number.
    pub(crate) fn add(&mut self, id: u32, number: u64, bound_slot: BoundSlot) -> BindingId {
        let binding = BindingId(self.bindings);
        self.bindings += 1;
        let sample = Sample {
            id,
            number,
            bound_slot,
            by: By::Nobody,
            worked: Duration::ZERO,
            is_offered: false,
        };
        self.samples.insert(binding, sample);
        binding
    }

    /// Records that a worker begins it. Its time runs.
    pub(crate) fn begin(&mut self, binding: BindingId) {
        if let Some(sample) = self.samples.get_mut(&binding)
            && matches!(sample.by, By::Nobody)
        {
            sample.by = By::Thread(Instant::now());
            self.by_position
                .insert((sample.number, sample.bound_slot.position), binding);
        }
    }

    /// Records that no worker makes it now, because it waits to be prepared after its fetch, or was withdrawn. Its time
    /// stops.
    pub(crate) fn pause(&mut self, binding: BindingId) {
        if let Some(sample) = self.samples.get_mut(&binding) {
            sample.worked = sample.worked();
            sample.by = By::Nobody;
            sample.is_offered = false;
            self.fillers.remove(&binding);
        }
    }

    /// Records that a process is given it. Returns the buffer and slot that the process is offered, or `None` if an
    /// earlier minibatch is held up. The slot is then better chosen when the sample is made.
    pub(crate) fn offer(
        &mut self,
        binding: BindingId,
        budget: Option<Duration>,
        given: TaskHandle,
    ) -> Option<(u32, u32)> {
        let sample = self.samples.get(&binding)?;
        let is_filler = budget.is_some_and(|budget| self.lacks_filler(sample, budget));
        let sample = self.samples.get_mut(&binding)?;
        sample.by = By::Process(given);
        self.by_position
            .insert((sample.number, sample.bound_slot.position), binding);
        sample.is_offered = !is_filler;
        if is_filler {
            self.fillers.insert(binding)
        } else {
            self.fillers.remove(&binding)
        };
        (!is_filler).then(|| {
            (
                sample.bound_slot.batch.buffer,
                sample.bound_slot.slot.slot(),
            )
        })
    }

    /// Binds a sample to its own slot.
    pub(crate) fn bind(&mut self, binding: BindingId) -> Option<BoundSlot> {
        self.remove(binding).map(|sample| sample.bound_slot)
    }

    fn remove(&mut self, binding: BindingId) -> Option<Sample> {
        let sample = self.samples.remove(&binding)?;
        self.by_position
            .remove(&(sample.number, sample.bound_slot.position));
        self.fillers.remove(&binding);
        Some(sample)
    }

    /// Binds a sample that is about to be written to its own slot, or to the slot of a slow sample that holds an
    /// earlier minibatch up.
    pub(crate) fn claim(
        &mut self,
        binding: BindingId,
        budget: Option<Duration>,
    ) -> Option<(BoundSlot, Option<SlotSwap>)> {
        let mut ready = self.remove(binding)?;
        let lets_go = |binding: &BindingId| self.samples.get(binding).is_some_and(Sample::lets_go);
        // `lets_go` takes a slot back, so candidates are asked one by one, and the first that agrees ends the search.
        let slow = budget.and_then(|budget| self.slow_before(&ready, budget).find(lets_go));
        let Some(slow) = slow.and_then(|binding| Some((binding, self.samples.get_mut(&binding)?)))
        else {
            return Some((ready.bound_slot, None));
        };
        let (binding, slow) = slow;
        self.by_position
            .remove(&(slow.number, slow.bound_slot.position));
        // The slow sample takes over the later slot, and its position in the order of minibatches.
        std::mem::swap(&mut slow.bound_slot, &mut ready.bound_slot);
        std::mem::swap(&mut slow.number, &mut ready.number);
        // The slow one may have been a filler itself.
        slow.is_offered = false;
        self.fillers.remove(&binding);
        self.by_position
            .insert((slow.number, slow.bound_slot.position), binding);
        let slot_swap = SlotSwap {
            slow: slow.id,
            ready: ready.id,
        };
        Some((ready.bound_slot, Some(slot_swap)))
    }

    /// Returns `true` if more earlier samples are slow than there are fillers for their slots.
    fn lacks_filler(&self, next: &Sample, budget: Duration) -> bool {
        let fillers = self.fillers.iter().filter_map(|t| self.samples.get(t));
        // A filler that is slow itself fills no slot.
        let quick = fillers.filter(|filler| !filler.is_over(budget)).count();
        self.slow_before(next, budget).nth(quick).is_some()
    }

    /// Returns the samples of earlier minibatches that are over their budget, the earliest first.
    fn slow_before(&self, ready: &Sample, budget: Duration) -> impl Iterator<Item = BindingId> {
        let targets = ready.bound_slot.batch.targets();
        let is_slow = move |binding: &BindingId| {
            self.samples.get(binding).is_some_and(|sample| {
                sample.is_over(budget) && sample.bound_slot.batch.targets() == targets
            })
        };
        // Strictly earlier minibatches: an exchange within one minibatch gains nothing.
        let before = self.by_position.range(..(ready.number, 0));
        before.map(|(_, binding)| *binding).filter(is_slow)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use coprep_shared_memory::staging::{Layout, StagingPool};
    use coprep_shared_memory::task_table::TaskTable;

    use super::*;

    /// Three minibatches of one sample each.
    struct Few {
        late_binding: SlotBinder,
        first: BindingId,
        second: BindingId,
        third: BindingId,
        buffers: [u32; 3],
        ours: Arc<TaskTable>,
        theirs: TaskTable,
    }

    fn few() -> Few {
        let pool = StagingPool::create(Layout::new(&[8], 1, 3).unwrap()).unwrap();
        let mut late_binding = SlotBinder::default();
        let mut add = |number| {
            let (mut slots, unfinished) = pool.allocate().unwrap().split(1);
            let batch = Arc::new(PendingBatch::new(number, Vec::new(), 1, 1, unfinished));
            let slot = slots.pop().unwrap();
            let buffer = batch.buffer;
            let bound_slot = BoundSlot {
                batch,
                slot,
                position: 0,
            };
            (late_binding.add(number as u32, number, bound_slot), buffer)
        };
        let ((first, a), (second, b), (third, c)) = (add(1), add(2), add(3));
        let ours = TaskTable::create(4).unwrap();
        let theirs = TaskTable::open(ours.as_fd().try_clone_to_owned().unwrap(), 4).unwrap();
        Few {
            late_binding,
            first,
            second,
            third,
            buffers: [a, b, c],
            ours,
            theirs,
        }
    }

    impl Few {
        /// Offers a sample its slot, and begins it.
        fn offer(
            &mut self,
            binding: BindingId,
            entry: u32,
            budget: Duration,
        ) -> Option<(u32, u32)> {
            let given = TaskHandle::new(&self.ours, entry);
            let offered = self.late_binding.offer(binding, Some(budget), given);
            assert!(self.theirs.begin(entry));
            offered
        }

        /// Returns the buffer that it is bound to, and the sample that was overtaken for that.
        fn claim(&mut self, binding: BindingId, budget: Duration) -> (u32, Option<u32>) {
            let (bound_slot, slot_swap) = self.late_binding.claim(binding, Some(budget)).unwrap();
            (bound_slot.batch.buffer, slot_swap.map(|o| o.slow))
        }
    }

    const SLOW: Duration = Duration::ZERO;
    const QUICK: Duration = Duration::MAX;

    #[test]
    fn a_slot_that_is_offered_is_taken_back_for_one_that_is_ready() {
        let mut few = few();
        let [a, b, _] = few.buffers;
        assert_eq!(few.offer(few.first, 0, QUICK), Some((a, 0)));
        assert_eq!(few.claim(few.second, SLOW), (a, Some(1)));
        assert!(!few.theirs.commit(0));
        assert_eq!(few.claim(few.first, SLOW), (b, None));
    }

    #[test]
    fn a_slot_that_was_taken_stays_its_sample_s() {
        let mut few = few();
        let [a, b, _] = few.buffers;
        assert_eq!(few.offer(few.first, 0, QUICK), Some((a, 0)));
        assert!(few.theirs.commit(0));
        assert_eq!(few.claim(few.second, SLOW), (b, None));
        assert_eq!(few.late_binding.bind(few.first).unwrap().batch.buffer, a);
    }

    #[test]
    fn a_slot_whose_sample_is_not_begun_stays_its_sample_s() {
        let mut few = few();
        let [a, b, _] = few.buffers;
        let given = TaskHandle::new(&few.ours, 0);
        let offered = few
            .late_binding
            .offer(few.first, Some(QUICK), given.clone());
        assert_eq!(offered, Some((a, 0)));
        assert_eq!(few.claim(few.second, SLOW), (b, None));
        // Another worker makes it after all, so nothing of this counts.
        assert!(given.withdraw());
        few.late_binding.pause(few.first);
        assert_eq!(few.offer(few.first, 1, SLOW), Some((a, 0)));
        assert!(few.theirs.commit(1));
    }

    #[test]
    fn nothing_is_offered_behind_a_minibatch_that_is_held_up() {
        let mut few = few();
        let [a, b, _] = few.buffers;
        assert_eq!(few.offer(few.first, 0, QUICK), Some((a, 0)));
        assert_eq!(few.offer(few.second, 1, SLOW), None);
        assert_eq!(few.offer(few.second, 1, QUICK), Some((b, 0)));
    }

    #[test]
    fn one_is_not_offered_its_slot_for_each_that_is_held_up() {
        let mut few = few();
        let [a, b, _] = few.buffers;
        // The second sample is not begun, so nobody waits for it.
        let given = TaskHandle::new(&few.ours, 3);
        let offered = few.late_binding.offer(few.second, Some(SLOW), given);
        assert_eq!(offered, Some((b, 0)));
        assert_eq!(few.offer(few.first, 0, QUICK), Some((a, 0)));
        let given = TaskHandle::new(&few.ours, 1);
        assert_eq!(few.late_binding.offer(few.third, Some(SLOW), given), None);
        // The slow first sample has a filler.
        few.late_binding.pause(few.second);
        let given = TaskHandle::new(&few.ours, 2);
        let offered = few.late_binding.offer(few.second, Some(SLOW), given);
        assert_eq!(offered, Some((b, 0)));
        // Now it has none.
        few.late_binding.pause(few.second);
        few.late_binding.pause(few.third);
        assert_eq!(few.offer(few.second, 2, SLOW), None);
        assert_eq!(few.claim(few.second, SLOW), (a, Some(1)));
        assert!(few.late_binding.fillers.is_empty());
    }

    #[test]
    fn one_that_fills_a_slot_and_is_slow_itself_fills_none() {
        let mut few = few();
        let [a, b, c] = few.buffers;
        assert_eq!(few.offer(few.first, 0, QUICK), Some((a, 0)));
        assert_eq!(few.offer(few.second, 1, SLOW), None);
        // Both are held up: the third fills the slot of the first, and the next one fills that of the second.
        assert_eq!(few.offer(few.third, 2, SLOW), None);
        assert_eq!(few.claim(few.third, SLOW), (a, Some(1)));
        let bound_slot = few.late_binding.bind(few.first).unwrap();
        assert_eq!(bound_slot.batch.buffer, c);
        let fourth = few.late_binding.add(4, 4, bound_slot);
        assert_eq!(few.offer(fourth, 3, SLOW), None);
        assert_eq!(few.claim(fourth, SLOW), (b, Some(2)));
    }

    #[test]
    fn one_that_has_taken_its_slot_holds_nobody_up() {
        let mut few = few();
        let [a, b, _] = few.buffers;
        assert_eq!(few.offer(few.first, 0, QUICK), Some((a, 0)));
        assert!(few.theirs.commit(0));
        assert_eq!(few.offer(few.second, 1, SLOW), Some((b, 0)));
    }

    #[test]
    fn what_was_overtaken_can_be_overtaken_again() {
        let mut few = few();
        let [a, b, _] = few.buffers;
        assert_eq!(few.offer(few.first, 0, QUICK), Some((a, 0)));
        let (bound_slot, _) = few.late_binding.claim(few.second, Some(SLOW)).unwrap();
        // Drawn for a third minibatch. The overtaken sample lies in the second now.
        let third = few.late_binding.add(3, 3, bound_slot);
        assert_eq!(few.claim(third, SLOW), (b, Some(1)));
        assert_eq!(few.claim(few.first, SLOW), (a, None));
    }
}
