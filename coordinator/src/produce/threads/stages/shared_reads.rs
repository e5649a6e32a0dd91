//! Files that one task reads, and that others wait for.
//!
//! Jobs that started at different times may need the same sample at the same time, in different minibatches. If memory
//! is going to hold the sample, only the first of these tasks reads the file. The others wait until that task has ended,
//! and usually find the sample in memory then. If they do not, the first of them reads the file.

use std::collections::HashMap;

use crate::produce::deadline_queue::Deadline;
use crate::produce::threads::slow::SourceFile;

/// The files that a task is reading, or has read and not yet prepared.
pub(super) struct SharedReads<T> {
    reads: HashMap<SourceFile, SharedRead<T>>,
}

struct SharedRead<T> {
    /// Tasks that wait for the one that reads.
    waiting: Vec<(Deadline, T)>,
    /// Time at which the first of them is due.
    earliest: Deadline,
    /// Time at which the sample is to be prepared, once it was read.
    prepared_at: Option<Deadline>,
}

impl<T> SharedReads<T> {
    pub(super) fn new() -> Self {
        SharedReads {
            reads: HashMap::new(),
        }
    }

    /// Records that a task begins to read the file.
    pub(super) fn begin(&mut self, file: SourceFile) {
        let read = SharedRead {
            waiting: Vec::new(),
            earliest: Deadline::MAX,
            prepared_at: None,
        };
        self.reads.insert(file, read);
    }

    /// Returns `true` if a task reads the file.
    pub(super) fn contains(&self, file: SourceFile) -> bool {
        self.reads.contains_key(&file)
    }

    /// Adds a task that waits for the one that reads its file. Returns `true` if that one was read, and is now to be
    /// prepared earlier than it was planned.
    pub(super) fn join(&mut self, file: SourceFile, due: Deadline, task: T) -> bool {
        let Some(read) = self.reads.get_mut(&file) else {
            unreachable!("a task joins only a read that is under way");
        };
        read.waiting.push((due, task));
        read.earliest = read.earliest.min(due);
        read.prepared_at.is_some_and(|planned| due < planned)
    }

    /// Records that the file was read. Returns the time at which the sample is to be prepared: at `planned`, or when
    /// the first task that waits for it is due.
    pub(super) fn fetched(&mut self, file: SourceFile, planned: Deadline) -> Deadline {
        let Some(read) = self.reads.get_mut(&file) else {
            return planned;
        };
        let due = planned.min(read.earliest);
        read.prepared_at = Some(due);
        due
    }

    /// Ends the read. Returns the tasks that waited for it, with their times.
    pub(super) fn end(&mut self, file: SourceFile) -> Vec<(Deadline, T)> {
        let read = self.reads.remove(&file);
        read.map_or_else(Vec::new, |read| read.waiting)
    }

    /// Returns the number of tasks that wait.
    pub(super) fn waiting(&self) -> usize {
        self.reads.values().map(|read| read.waiting.len()).sum()
    }
}
