//! The steps of a task's entry, independent of where the entry lies. See [the module](super).

use crate::sync::{AtomicU32, AtomicU64, Ordering};

const QUEUED: u32 = 1;
const WITHDRAWN: u32 = 2;
const RUNNING: u32 = 3;
const COMMITTED: u32 = 4;
const REVOKED: u32 = 5;

/// The entry of one sample. It is as long as a cache line and lies on one, because mappings begin on a page.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct TaskEntry {
    word: AtomicU32,
    /// Not 0 once the worker has filled in the fields below.
    is_written: AtomicU32,
    /// Time at which the worker began the sample, by the worker's clock.
    began: AtomicU64,
    wall: AtomicU64,
    cpu: AtomicU64,
    dataset: AtomicU64,
    kept_at: AtomicU64,
    kept_len: AtomicU64,
    blob: AtomicU64,
}

/// A worker's report on a sample that it has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Nanoseconds that the sample took.
    pub wall_ns: u64,
    /// Nanoseconds of `wall_ns` spent on a processor.
    pub cpu_ns: u64,
    /// Nanoseconds of `wall_ns` until the deterministic part was done.
    pub dataset_ns: u64,
    /// Offset and length in the scratch file of the value of the sample's deterministic part, if it was to be kept.
    pub kept: (u64, u64),
    /// Bytes of the sample that have no fixed size.
    pub blob: u64,
}

/// The worker's steps.
impl TaskEntry {
    /// Begins the sample at `now`. Returns false if the sample was withdrawn or never queued.
    #[must_use]
    pub fn begin(&self, now: u64) -> bool {
        // The swap below publishes this store.
        self.began.store(now, Ordering::Relaxed);
        self.change(QUEUED, RUNNING)
    }

    /// Claims the slot that is offered. Returns false if the coordinator took it back.
    #[must_use]
    pub fn commit(&self) -> bool {
        self.change(RUNNING, COMMITTED)
    }

    /// Reports that the sample is written.
    pub fn write(&self, written: &Written) {
        self.wall.store(written.wall_ns, Ordering::Relaxed);
        self.cpu.store(written.cpu_ns, Ordering::Relaxed);
        self.dataset.store(written.dataset_ns, Ordering::Relaxed);
        self.kept_at.store(written.kept.0, Ordering::Relaxed);
        self.kept_len.store(written.kept.1, Ordering::Relaxed);
        self.blob.store(written.blob, Ordering::Relaxed);
        // Release: pairs with the acquire in `written`, and makes the bytes of the sample itself visible too.
        self.is_written.store(1, Ordering::Release);
    }
}

/// The coordinator's steps.
impl TaskEntry {
    /// Queues a sample in this entry. A message has already told that nobody works on the entry's previous sample.
    pub fn give(&self) {
        // Clears the previous sample's report. The release below makes this visible to the worker that begins the new
        // sample.
        self.is_written.store(0, Ordering::Relaxed);
        // Release: pairs with the acquire in `begin`.
        self.word.store(QUEUED, Ordering::Release);
    }

    /// Withdraws the sample. Returns true if the worker will not begin it.
    #[must_use]
    pub fn withdraw(&self) -> bool {
        self.change(QUEUED, WITHDRAWN)
    }

    /// Takes the offered slot back from a running sample. Returns true on success: then the worker does not write to
    /// the slot unless it asks and is told to.
    #[must_use]
    pub fn take_back(&self) -> bool {
        self.change(RUNNING, REVOKED)
    }

    /// Returns `true` if the worker has claimed the slot.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.word.load(Ordering::Acquire) == COMMITTED
    }

    /// Returns the time at which the worker began the sample, or `None` if it has not.
    #[must_use]
    pub fn began(&self) -> Option<u64> {
        // Acquire: pairs with the swap in `begin`, which comes after the store of the time.
        let word = self.word.load(Ordering::Acquire);
        let has_begun = word != QUEUED && word != WITHDRAWN;
        has_begun.then(|| self.began.load(Ordering::Relaxed))
    }

    /// Returns the worker's report on the sample, or `None` if it is not written.
    #[must_use]
    pub fn written(&self) -> Option<Written> {
        // Acquire: pairs with the release in `write`.
        (self.is_written.load(Ordering::Acquire) != 0).then(|| Written {
            wall_ns: self.wall.load(Ordering::Relaxed),
            cpu_ns: self.cpu.load(Ordering::Relaxed),
            dataset_ns: self.dataset.load(Ordering::Relaxed),
            kept: (
                self.kept_at.load(Ordering::Relaxed),
                self.kept_len.load(Ordering::Relaxed),
            ),
            blob: self.blob.load(Ordering::Relaxed),
        })
    }
}

impl TaskEntry {
    fn change(&self, from: u32, to: u32) -> bool {
        // Release: publishes the time in `began`. Acquire: pairs with the release in `give` and in the other's swap.
        let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
        let swapped = self.word.compare_exchange(from, to, won, lost);
        swapped.is_ok()
    }

    #[cfg(test)]
    pub(super) fn set_word(&self, word: u32) {
        self.word.store(word, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn set_began(&self, began: u64) {
        self.began.store(began, Ordering::Relaxed);
    }
}
