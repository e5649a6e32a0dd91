//! What a worker is to make, as far as it and the coordinator must agree on it at any moment.
//!
//! Messages say what to make, many samples at a time, and that some are made. In between, both may want to change their
//! mind, or to know more: an entry for each sample tells, without waking anybody.
//!
//! * The coordinator *withdraws* a sample that the worker has not begun: it waits behind one that turns out to be slow.
//! * It sees for how long the worker is at a sample, and which are written that no message told of yet.
//! * In relaxed order a sample's place is given to another if the sample turns out to be slow. So the place is *offered*:
//!   who comes first has it, the worker, once it is about to write, or the coordinator, which needs it for another sample.
//!
//! One word decides, by one compare-and-swap: a message to ask would wake a thread for every sample, and the worker would
//! wait for the answer.
//!
//! | word | from | by | then |
//! |---|---|---|---|
//! | `GIVEN` | any | coordinator; nobody is at the sample that the entry was for before | it may be begun or withdrawn |
//! | `WITHDRAWN` | `GIVEN` | coordinator | the worker passes it over |
//! | `BEGUN` | `GIVEN` | worker | it makes the sample; if its place is offered, either may take that |
//! | `TAKEN` | `BEGUN` | worker | the worker writes; the place stays the sample's |
//! | `BACK` | `BEGUN` | coordinator | the worker asks by a message |
//!
//! The memory is shared with one worker process. The coordinator trusts nothing in it: a worker that writes nonsense keeps
//! a place that it had, or asks for one, and says of its own samples that they took long, or are written.
#![expect(unsafe_code, reason = "says which types may lie in shared memory")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};
use crate::mapping::{self, Mapping, Region, Shared};

const WHAT: &str = "what a worker is to make";
const GIVEN: u32 = 1;
const WITHDRAWN: u32 = 2;
const BEGUN: u32 = 3;
const TAKEN: u32 = 4;
const BACK: u32 = 5;

/// Of one sample. As long as a line of the cache, and on one, since mappings begin on a page.
#[derive(Default)]
#[repr(C, align(64))]
struct Entry {
    word: AtomicU32,
    /// Not 0: what follows is told.
    is_written: AtomicU32,
    /// When it was begun, nanoseconds of the clock that counts since the machine started.
    began: AtomicU64,
    wall: AtomicU64,
    cpu: AtomicU64,
    dataset: AtomicU64,
    kept_at: AtomicU64,
    kept_len: AtomicU64,
}

// SAFETY: it has no bytes.
unsafe impl Shared for () {}
// SAFETY: atomics, and padding.
unsafe impl Shared for Entry {}

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
}

/// The entries that a coordinator shares with one worker. See the module.
pub struct Worklist {
    region: Region<(), Entry>,
    file: OwnedFd,
}

impl Worklist {
    /// The coordinator's side, with so many entries.
    ///
    /// # Errors
    /// If there is no memory, or no descriptor left.
    pub fn create(entries: u32) -> Result<Arc<Self>> {
        let bytes = bytes(entries)?;
        let file = mapping::memory_file(WHAT, "coprep-worklist", bytes as u64)?;
        mapping::seal(WHAT, &file, mapping::size_seals())?;
        Self::over(file, entries).map(Arc::new)
    }

    /// The worker's side, from the descriptor that it was passed.
    ///
    /// # Errors
    /// If it is not that of as many entries.
    pub fn open(file: OwnedFd, entries: u32) -> Result<Self> {
        mapping::check_file(WHAT, &file, bytes(entries)?)?;
        Self::over(file, entries)
    }

    fn over(file: OwnedFd, entries: u32) -> Result<Self> {
        let mapping = Mapping::writable(WHAT, &file, bytes(entries)?)?;
        let region = Region::new(WHAT, mapping, entries as usize)?;
        Ok(Worklist { region, file })
    }

    /// Worker: begins a sample. False: it was withdrawn, or never given.
    #[must_use]
    pub fn begin(&self, entry: u32) -> bool {
        let Some(row) = self.region.row().get(entry as usize) else {
            return false;
        };
        row.began.store(now(), Ordering::Relaxed);
        row.change(GIVEN, BEGUN)
    }

    /// Worker: takes the place that is offered. False: it was taken back.
    #[must_use]
    pub fn take(&self, entry: u32) -> bool {
        let row = self.region.row().get(entry as usize);
        row.is_some_and(|row| row.change(BEGUN, TAKEN))
    }

    /// Worker: the sample is written.
    pub fn write(&self, entry: u32, written: &Written) {
        if let Some(row) = self.region.row().get(entry as usize) {
            row.wall.store(written.wall_ns, Ordering::Relaxed);
            row.cpu.store(written.cpu_ns, Ordering::Relaxed);
            row.dataset.store(written.dataset_ns, Ordering::Relaxed);
            row.kept_at.store(written.kept.0, Ordering::Relaxed);
            row.kept_len.store(written.kept.1, Ordering::Relaxed);
            // Release: what was written of the sample itself, too.
            row.is_written.store(1, Ordering::Release);
        }
    }
}

impl AsFd for Worklist {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The coordinator's hand on one sample that a worker was given.
#[derive(Clone)]
pub struct Given {
    list: Arc<Worklist>,
    entry: u32,
}

impl Given {
    /// Gives a sample by this entry, which was for another before that is done with.
    ///
    /// # Panics
    /// If there is no such entry.
    #[must_use]
    pub fn new(list: &Arc<Worklist>, entry: u32) -> Self {
        let given = Given {
            list: list.clone(),
            entry,
        };
        let row = given.row();
        row.is_written.store(0, Ordering::Relaxed);
        row.word.store(GIVEN, Ordering::Release);
        given
    }

    /// True: the worker will not begin it.
    #[must_use]
    pub fn withdraw(&self) -> bool {
        self.row().change(GIVEN, WITHDRAWN)
    }

    /// True: the worker, which is at the sample, does not write to the place that it was offered, unless it asks and is
    /// told to.
    #[must_use]
    pub fn take_back(&self) -> bool {
        self.row().change(BEGUN, BACK)
    }

    /// The worker has taken the place.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.row().word.load(Ordering::Acquire) == TAKEN
    }

    /// Since when the worker is at it. None: it has not begun.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let row = self.row();
        let word = row.word.load(Ordering::Acquire);
        let began = row.began.load(Ordering::Relaxed);
        let has_begun = word != GIVEN && word != WITHDRAWN;
        has_begun.then(|| Duration::from_nanos(now().saturating_sub(began)))
    }

    /// What the worker tells of it. None: it is not written.
    #[must_use]
    pub fn written(&self) -> Option<Written> {
        let row = self.row();
        (row.is_written.load(Ordering::Acquire) != 0).then(|| Written {
            wall_ns: row.wall.load(Ordering::Relaxed),
            cpu_ns: row.cpu.load(Ordering::Relaxed),
            dataset_ns: row.dataset.load(Ordering::Relaxed),
            kept: (
                row.kept_at.load(Ordering::Relaxed),
                row.kept_len.load(Ordering::Relaxed),
            ),
        })
    }

    fn row(&self) -> &Entry {
        &self.list.region.row()[self.entry as usize]
    }
}

impl Entry {
    fn change(&self, from: u32, to: u32) -> bool {
        let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
        let swapped = self.word.compare_exchange(from, to, won, lost);
        swapped.is_ok()
    }
}

/// The same in all processes.
fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| Duration::from(t).as_nanos() as u64)
}

fn bytes(entries: u32) -> Result<usize> {
    let bytes = Region::<(), Entry>::bytes(entries as usize);
    bytes.ok_or_else(|| Error::invalid(WHAT, "too many"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Arc<Worklist>, Worklist) {
        let ours = Worklist::create(2).unwrap();
        let file = ours.as_fd().try_clone_to_owned().unwrap();
        let theirs = Worklist::open(file, 2).unwrap();
        (ours, theirs)
    }

    /// Of two that come at once exactly one succeeds, every time.
    fn race(
        prepare: impl Fn(&Given, &Worklist),
        ours: impl Fn(&Given) -> bool,
        theirs: impl Fn(&Worklist) -> bool + Sync,
    ) {
        let (list, worker) = both();
        for _ in 0..1000 {
            let given = Given::new(&list, 1);
            prepare(&given, &worker);
            let (a, b) = std::thread::scope(|scope| {
                let thread = scope.spawn(|| theirs(&worker));
                (ours(&given), thread.join().unwrap())
            });
            assert!(a != b);
        }
    }

    #[test]
    fn what_is_offered_is_had_by_one_of_both() {
        let (ours, theirs) = both();
        assert!(!theirs.begin(0) && !theirs.take(0), "not given");
        let given = Given::new(&ours, 0);
        assert!(!theirs.take(0) && !given.take_back(), "not begun");
        assert!(theirs.begin(0) && !given.is_taken() && theirs.take(0) && given.is_taken());
        assert!(!given.take_back() && !theirs.take(0) && !theirs.take(1));
        let given = Given::new(&ours, 0);
        assert!(theirs.begin(0) && given.take_back() && !given.is_taken());
        assert!(!theirs.take(0) && !given.take_back() && !given.is_taken());
    }

    #[test]
    fn what_is_withdrawn_is_not_begun_and_what_is_begun_not_withdrawn() {
        let (ours, theirs) = both();
        let given = Given::new(&ours, 0);
        assert!(given.withdraw() && !theirs.begin(0) && !given.withdraw());
        assert_eq!(given.age(), None);
        let given = Given::new(&ours, 0);
        assert!(theirs.begin(0) && !given.withdraw() && !theirs.begin(0));
    }

    #[test]
    fn who_comes_at_once_never_both_have_it() {
        race(|_, _| (), Given::withdraw, |worker| worker.begin(1));
        let begin = |_: &Given, worker: &Worklist| assert!(worker.begin(1));
        race(begin, Given::take_back, |worker| worker.take(1));
    }

    #[test]
    fn its_time_runs_from_when_it_is_begun() {
        let (ours, theirs) = both();
        let given = Given::new(&ours, 1);
        assert_eq!(given.age(), None);
        assert!(theirs.begin(1));
        let age = given.age().unwrap();
        assert!(age < Duration::from_secs(60) && given.age().unwrap() >= age);
        // A clock that is ahead, and one that never ran.
        let row = &theirs.region.row()[1];
        row.began.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(given.age(), Some(Duration::ZERO));
        row.began.store(0, Ordering::Relaxed);
        assert!(given.age().unwrap() >= age);
    }

    #[test]
    fn what_is_told_of_a_sample_is_that_of_this_one() {
        let (ours, theirs) = both();
        let given = Given::new(&ours, 0);
        let told = Written {
            wall_ns: 5,
            cpu_ns: 4,
            dataset_ns: 3,
            kept: (64, u64::MAX),
        };
        assert!(theirs.begin(0) && given.written().is_none());
        theirs.write(0, &told);
        assert_eq!(given.written(), Some(told));
        assert_eq!(Given::new(&ours, 1).written(), None);
        assert_eq!(Given::new(&ours, 0).written(), None);
        theirs.write(2, &told);
    }

    #[test]
    fn a_stranger_s_word_counts_for_nothing_but_itself() {
        let (ours, theirs) = both();
        let given = Given::new(&ours, 0);
        theirs.region.row()[0].word.store(77, Ordering::Relaxed);
        assert!(!given.take_back() && !given.is_taken() && !given.withdraw());
        assert!(
            !theirs.take(2) && !theirs.begin(2),
            "there is no such entry"
        );
        assert!(Worklist::open(ours.as_fd().try_clone_to_owned().unwrap(), 1 << 20).is_err());
    }
}
