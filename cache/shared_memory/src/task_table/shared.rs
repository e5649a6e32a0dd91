//! A task table in shared memory.
#![expect(unsafe_code, reason = "says which types may lie in shared memory")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::error::{Result, invalid};
use crate::mapping::{self, Mapping, Region, SharedPlain};
use crate::task_table::entry::{TaskEntry, Written};

/// Name of the memory in error messages.
const WHAT: &str = "the task table of a worker";

// SAFETY: it has no bytes.
unsafe impl SharedPlain for () {}
// SAFETY: atomics, and padding.
unsafe impl SharedPlain for TaskEntry {}

/// The task table that a coordinator shares with one worker. See the module.
pub struct TaskTable {
    region: Region<(), TaskEntry>,
    file: OwnedFd,
}

impl TaskTable {
    /// Creates a table of `entries` entries, for the coordinator.
    ///
    /// # Errors
    /// If memory or descriptors are short.
    pub fn create(entries: u32) -> Result<Arc<Self>> {
        let bytes = bytes(entries)?;
        let file = mapping::memory_file(WHAT, "coprep-task-table", bytes as u64)?;
        // Only the size is sealed, because the worker writes the table too.
        mapping::seal(WHAT, &file, mapping::size_seals())?;
        Self::over(file, entries).map(Arc::new)
    }

    /// Opens the table behind the descriptor that the worker was passed.
    ///
    /// # Errors
    /// If the descriptor is not a table of `entries` entries.
    pub fn open(file: OwnedFd, entries: u32) -> Result<Self> {
        mapping::check_file(WHAT, &file, bytes(entries)?)?;
        Self::over(file, entries)
    }

    fn over(file: OwnedFd, entries: u32) -> Result<Self> {
        let mapping = Mapping::writable(WHAT, &file, bytes(entries)?)?;
        let region = Region::new(WHAT, mapping, entries as usize)?;
        Ok(TaskTable { region, file })
    }

    /// Begins a sample, for the worker. Returns false if the sample was withdrawn or never queued.
    #[must_use]
    pub fn begin(&self, entry: u32) -> bool {
        let row = self.region.row().get(entry as usize);
        row.is_some_and(|row| row.begin(now()))
    }

    /// Claims the slot that is offered, for the worker. Returns false if the coordinator took it back.
    #[must_use]
    pub fn commit(&self, entry: u32) -> bool {
        let row = self.region.row().get(entry as usize);
        row.is_some_and(|row| row.commit())
    }

    /// Reports that the sample is written, for the worker.
    pub fn write(&self, entry: u32, written: &Written) {
        if let Some(row) = self.region.row().get(entry as usize) {
            row.write(written);
        }
    }
}

impl AsFd for TaskTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The coordinator's handle on one sample that was assigned to a worker.
#[derive(Clone)]
pub struct TaskHandle {
    table: Arc<TaskTable>,
    entry: u32,
}

impl TaskHandle {
    /// Queues a sample in this entry. Nobody works on the entry's previous sample any more.
    ///
    /// # Panics
    /// If there is no such entry.
    #[must_use]
    pub fn new(table: &Arc<TaskTable>, entry: u32) -> Self {
        let handle = TaskHandle {
            table: table.clone(),
            entry,
        };
        handle.row().give();
        handle
    }

    /// Withdraws the sample. Returns true if the worker will not begin it.
    #[must_use]
    pub fn withdraw(&self) -> bool {
        self.row().withdraw()
    }

    /// Takes the offered slot back. Returns true on success: then the worker does not write to the slot unless it asks
    /// and is told to.
    #[must_use]
    pub fn take_back(&self) -> bool {
        self.row().take_back()
    }

    /// Returns `true` if the worker has claimed the slot.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.row().is_taken()
    }

    /// Returns the time since the worker began the sample, or `None` if it has not.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let began = self.row().began()?;
        // The worker's time is not trusted: a time in the future counts as now.
        Some(Duration::from_nanos(now().saturating_sub(began)))
    }

    /// Returns the worker's report on the sample, or `None` if it is not written.
    #[must_use]
    pub fn written(&self) -> Option<Written> {
        self.row().written()
    }

    fn row(&self) -> &TaskEntry {
        &self.table.region.row()[self.entry as usize]
    }
}

/// Returns the monotonic time in nanoseconds. All processes of the machine see the same clock.
fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| Duration::from(t).as_nanos() as u64)
}

fn bytes(entries: u32) -> Result<usize> {
    let bytes = Region::<(), TaskEntry>::bytes(entries as usize);
    bytes.ok_or_else(|| invalid(WHAT, "too many"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Arc<TaskTable>, TaskTable) {
        let ours = TaskTable::create(2).unwrap();
        let file = ours.as_fd().try_clone_to_owned().unwrap();
        let theirs = TaskTable::open(file, 2).unwrap();
        (ours, theirs)
    }

    /// Runs both sides at once, a thousand times, and checks that exactly one of them succeeds.
    fn race(
        prepare: impl Fn(&TaskHandle, &TaskTable),
        ours: impl Fn(&TaskHandle) -> bool,
        theirs: impl Fn(&TaskTable) -> bool + Sync,
    ) {
        let (table, worker) = both();
        for _ in 0..1000 {
            let handle = TaskHandle::new(&table, 1);
            prepare(&handle, &worker);
            let (a, b) = std::thread::scope(|scope| {
                let thread = scope.spawn(|| theirs(&worker));
                (ours(&handle), thread.join().unwrap())
            });
            assert!(a != b);
        }
    }

    #[test]
    fn what_is_offered_is_had_by_one_of_both() {
        let (ours, theirs) = both();
        assert!(!theirs.begin(0) && !theirs.commit(0), "not queued");
        let handle = TaskHandle::new(&ours, 0);
        assert!(!theirs.commit(0) && !handle.take_back(), "not running");
        assert!(theirs.begin(0) && !handle.is_taken() && theirs.commit(0) && handle.is_taken());
        assert!(!handle.take_back() && !theirs.commit(0) && !theirs.commit(1));
        let handle = TaskHandle::new(&ours, 0);
        assert!(theirs.begin(0) && handle.take_back() && !handle.is_taken());
        assert!(!theirs.commit(0) && !handle.take_back() && !handle.is_taken());
    }

    #[test]
    fn what_is_withdrawn_is_not_begun_and_what_is_begun_not_withdrawn() {
        let (ours, theirs) = both();
        let handle = TaskHandle::new(&ours, 0);
        assert!(handle.withdraw() && !theirs.begin(0) && !handle.withdraw());
        assert_eq!(handle.age(), None);
        let handle = TaskHandle::new(&ours, 0);
        assert!(theirs.begin(0) && !handle.withdraw() && !theirs.begin(0));
    }

    #[test]
    fn who_comes_at_once_never_both_have_it() {
        race(|_, _| (), TaskHandle::withdraw, |worker| worker.begin(1));
        let begin = |_: &TaskHandle, worker: &TaskTable| assert!(worker.begin(1));
        race(begin, TaskHandle::take_back, |worker| worker.commit(1));
    }

    #[test]
    fn its_time_runs_from_when_it_is_begun() {
        let (ours, theirs) = both();
        let handle = TaskHandle::new(&ours, 1);
        assert_eq!(handle.age(), None);
        assert!(theirs.begin(1));
        let age = handle.age().unwrap();
        assert!(age < Duration::from_secs(60) && handle.age().unwrap() >= age);
        // A clock that is ahead, and one that never ran.
        let row = &theirs.region.row()[1];
        row.set_began(u64::MAX);
        assert_eq!(handle.age(), Some(Duration::ZERO));
        row.set_began(0);
        assert!(handle.age().unwrap() >= age);
    }

    #[test]
    fn what_is_told_of_a_sample_is_that_of_this_one() {
        let (ours, theirs) = both();
        let handle = TaskHandle::new(&ours, 0);
        let told = Written {
            wall_ns: 5,
            cpu_ns: 4,
            dataset_ns: 3,
            kept: (64, u64::MAX),
            blob: 9,
        };
        assert!(theirs.begin(0) && handle.written().is_none());
        theirs.write(0, &told);
        assert_eq!(handle.written(), Some(told));
        assert_eq!(TaskHandle::new(&ours, 1).written(), None);
        assert_eq!(TaskHandle::new(&ours, 0).written(), None);
        theirs.write(2, &told);
    }

    #[test]
    fn an_untrusted_word_counts_for_nothing_but_itself() {
        let (ours, theirs) = both();
        let handle = TaskHandle::new(&ours, 0);
        theirs.region.row()[0].set_word(77);
        assert!(!handle.take_back() && !handle.is_taken() && !handle.withdraw());
        assert!(
            !theirs.commit(2) && !theirs.begin(2),
            "there is no such entry"
        );
        assert!(TaskTable::open(ours.as_fd().try_clone_to_owned().unwrap(), 1 << 20).is_err());
    }
}
