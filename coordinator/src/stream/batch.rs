//! A minibatch during its preparation.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use coprep_protocol::code::Together;
use coprep_scheduler::{JobId, Target};
use coprep_shared_memory::lock::lock;
use coprep_shared_memory::staging::{Lease, Unfinished};

/// A minibatch, from its draw until its last slot is written.
pub(crate) struct PendingBatch {
    /// Number of the minibatch in the order of draws. The first one is number 1.
    pub(crate) number: u64,
    /// The jobs that it was drawn for, without jobs that it was taken back from. A sample that fails is replaced by
    /// one that all of them need.
    targets: Mutex<Vec<Target>>,
    /// The staging buffer that it is written to.
    pub(crate) buffer: u32,
    pub(crate) drawn: Instant,
    /// Its samples, if the dataset is asked for all of them together.
    pub(crate) together: Option<Arc<Together>>,
    /// Number of slots that are not yet written.
    remaining: AtomicU32,
    /// Number of deliveries that somebody still waits for.
    wanted: AtomicU32,
    /// The slots whose sample failed and was not replaced.
    bad: Mutex<Vec<u32>>,
    /// `true` if a sample is larger than its slot, so that no GPU can be given the minibatch.
    has_large: AtomicBool,
    unfinished: Mutex<Option<Unfinished>>,
    done: OnceLock<CompletedBatch>,
}

/// A minibatch that is ready to be handed over.
pub(crate) struct CompletedBatch {
    pub(crate) lease: Lease,
    /// Number of slots that hold samples, from the first one on.
    pub(crate) slots: u32,
    /// The slots that were taken out, ascending.
    bad: Vec<u32>,
}

impl PendingBatch {
    pub(crate) fn new(
        number: u64,
        targets: Vec<Target>,
        slots: u32,
        deliveries: u32,
        unfinished: Unfinished,
    ) -> Self {
        PendingBatch {
            number,
            targets: Mutex::new(targets),
            buffer: unfinished.buffer(),
            drawn: Instant::now(),
            together: None,
            remaining: AtomicU32::new(slots),
            wanted: AtomicU32::new(deliveries),
            bad: Mutex::default(),
            has_large: AtomicBool::new(false),
            unfinished: Mutex::new(Some(unfinished)),
            done: OnceLock::new(),
        }
    }

    /// Returns the jobs that it is for.
    pub(crate) fn targets(&self) -> Vec<Target> {
        self.lock_targets().clone()
    }

    fn lock_targets(&self) -> MutexGuard<'_, Vec<Target>> {
        lock(&self.targets)
    }

    /// Removes a job from the targets, because the minibatch was taken back from it. The job may be given the samples
    /// in another minibatch.
    pub(crate) fn remove_target(&self, job: JobId) {
        self.lock_targets().retain(|target| target.job != job);
    }

    /// Records that a job counts it to `epoch` from now on.
    pub(crate) fn move_target(&self, job: JobId, epoch: u64) {
        let mut targets = self.lock_targets();
        let of_job = targets.iter_mut().filter(|target| target.job == job);
        of_job.for_each(|target| target.epoch = epoch);
    }

    pub(crate) fn done(&self) -> Option<&CompletedBatch> {
        self.done.get()
    }

    pub(crate) fn slots_remaining(&self) -> u32 {
        self.remaining.load(Ordering::Relaxed)
    }

    /// Returns `false` when every job that it was for has left. Its samples need not be prepared then.
    pub(crate) fn is_wanted(&self) -> bool {
        // Relaxed, because an old value only means that a sample is prepared in vain.
        self.wanted.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn one_delivery_less(&self) {
        self.wanted.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn note_large(&self) {
        // Relaxed: `slot_written` publishes it with the slot.
        self.has_large.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a sample was larger than its slot.
    pub(crate) fn has_large(&self) -> bool {
        self.has_large.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_bad(&self, slot: u32) {
        lock(&self.bad).push(slot);
    }

    /// Counts a slot as written. Returns `true` for the last one.
    ///
    /// Release publishes the writes of this worker. Acquire makes all writes of the other workers visible to the last
    /// one.
    pub(crate) fn slot_written(&self) -> bool {
        self.remaining.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Closes the gaps that failed samples left, and makes the minibatch ready. Called once, by the thread that wrote
    /// the last slot.
    pub(crate) fn finish(&self) {
        let unfinished = lock(&self.unfinished).take();
        let Some(mut unfinished) = unfinished else {
            return;
        };
        let mut bad = std::mem::take(&mut *lock(&self.bad));
        // Slots fail in any order, and `without_gaps` bisects.
        bad.sort_unstable();
        close_gaps(&mut unfinished, &bad);
        let slots = unfinished.slots() - bad.len() as u32;
        let _ = self.done.set(CompletedBatch {
            slots,
            lease: unfinished.finish(),
            bad,
        });
    }
}

fn close_gaps(buffer: &mut Unfinished, bad: &[u32]) {
    let Some(&first) = bad.first() else { return };
    let good = (first..buffer.slots()).filter(|slot| bad.binary_search(slot).is_err());
    // Ascending, so that no slot is overwritten before it is copied.
    for (to, from) in (first..).zip(good) {
        buffer.copy_slot(from, to);
    }
}

impl CompletedBatch {
    /// Returns the position (start, len) of slots `start..start + len` after failed samples were taken out.
    pub(crate) fn without_gaps(&self, start: u32, len: u32) -> (u32, u32) {
        let before = |slot: u32| self.bad.partition_point(|&b| b < slot) as u32;
        let (from, to) = (start - before(start), start + len - before(start + len));
        (from, to - from)
    }
}
