//! The steps of an entry, wherever it lies. See [the module](super).

use crate::sync::{AtomicU32, AtomicU64, Ordering};

const QUEUED: u32 = 1;
const WITHDRAWN: u32 = 2;
const RUNNING: u32 = 3;
const COMMITTED: u32 = 4;
const REVOKED: u32 = 5;

/// One sample's entry. As long as a line of the cache, and on one, since mappings begin on a page.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct TaskEntry {
    word: AtomicU32,
    /// Not 0: what follows is told.
    is_written: AtomicU32,
    /// When it was begun, by the worker's clock.
    began: AtomicU64,
    wall: AtomicU64,
    cpu: AtomicU64,
    dataset: AtomicU64,
    kept_at: AtomicU64,
    kept_len: AtomicU64,
    blob: AtomicU64,
}

/// What a worker tells of a sample that it has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Nanoseconds it took.
    pub wall_ns: u64,
    /// Of this, on a processor.
    pub cpu_ns: u64,
    /// Of the whole, until the deterministic part was there.
    pub dataset_ns: u64,
    /// Where the value of its deterministic part lies in the scratch file, and its bytes, if it was to be kept.
    pub kept: (u64, u64),
    /// Bytes of it that are of no fixed size.
    pub blob: u64,
}

/// The worker's steps.
impl TaskEntry {
    /// Begins the sample at `now`. False: it was withdrawn, or never given.
    #[must_use]
    pub fn begin(&self, now: u64) -> bool {
        // Published by the swap.
        self.began.store(now, Ordering::Relaxed);
        self.change(QUEUED, RUNNING)
    }

    /// Takes the place that is offered. False: it was taken back.
    #[must_use]
    pub fn take(&self) -> bool {
        self.change(RUNNING, COMMITTED)
    }

    /// Says that the sample is written.
    pub fn write(&self, written: &Written) {
        self.wall.store(written.wall_ns, Ordering::Relaxed);
        self.cpu.store(written.cpu_ns, Ordering::Relaxed);
        self.dataset.store(written.dataset_ns, Ordering::Relaxed);
        self.kept_at.store(written.kept.0, Ordering::Relaxed);
        self.kept_len.store(written.kept.1, Ordering::Relaxed);
        self.blob.store(written.blob, Ordering::Relaxed);
        // Release: pairs with the acquire in `written`; what was written of the sample itself is visible, too.
        self.is_written.store(1, Ordering::Release);
    }
}

/// The coordinator's steps.
impl TaskEntry {
    /// Gives a sample by this entry. Nobody is at the sample that it was for before, and that is known by a message.
    pub fn give(&self) {
        // What was told of the sample before: the worker that begins this one sees it gone, by the release below.
        self.is_written.store(0, Ordering::Relaxed);
        // Release: pairs with the acquire in `begin`.
        self.word.store(QUEUED, Ordering::Release);
    }

    /// Withdraws the sample. True: the worker will not begin it.
    #[must_use]
    pub fn withdraw(&self) -> bool {
        self.change(QUEUED, WITHDRAWN)
    }

    /// Takes the place back. True: the worker, which is at the sample, does not write to the place that it was offered,
    /// unless it asks and is told to.
    #[must_use]
    pub fn take_back(&self) -> bool {
        self.change(RUNNING, REVOKED)
    }

    /// Returns whether the worker has taken the place.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.word.load(Ordering::Acquire) == COMMITTED
    }

    /// Returns when the worker began the sample, or `None` if it has not.
    #[must_use]
    pub fn began(&self) -> Option<u64> {
        // Acquire: pairs with the swap in `begin`, which follows the moment that it tells.
        let word = self.word.load(Ordering::Acquire);
        let has_begun = word != QUEUED && word != WITHDRAWN;
        has_begun.then(|| self.began.load(Ordering::Relaxed))
    }

    /// Returns what the worker tells of the sample, or `None` if it is not written.
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
