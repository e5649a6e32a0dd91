//! Pending work, ordered by planned start time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use coprep_shared_memory::lock::{lock, unpoisoned};

/// A time in nanoseconds since the first call of [`Deadline::now`] in this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Deadline(u64);

impl Deadline {
    /// Later than every planned time.
    pub(crate) const MAX: Deadline = Deadline(u64::MAX);

    pub(crate) fn now() -> Self {
        static START: OnceLock<Instant> = OnceLock::new();
        Deadline(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }

    /// Converts from seconds. NaN and negative numbers become 0, and numbers that are too large become
    /// [`Deadline::MAX`].
    pub(crate) fn at(seconds: f64) -> Self {
        Deadline((seconds * 1e9) as u64)
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

/// Pending items, the earliest first. Items of equal time keep the order in which they came.
pub(crate) struct DeadlineHeap<T> {
    waiting: BinaryHeap<Reverse<HeapEntry<T>>>,
    came: u64,
}

struct HeapEntry<T> {
    key: (Deadline, u64),
    item: T,
}

impl<T> DeadlineHeap<T> {
    pub(crate) fn new() -> Self {
        DeadlineHeap {
            waiting: BinaryHeap::new(),
            came: 0,
        }
    }

    pub(crate) fn push(&mut self, due: Deadline, item: T) {
        // The counter keeps items of equal time in the order in which they came.
        let key = (due, self.came);
        self.came += 1;
        self.waiting.push(Reverse(HeapEntry { key, item }));
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.waiting.pop().map(|Reverse(entry)| entry.item)
    }

    /// Takes the items that `is_taken` selects out of the heap. Returns them in order.
    pub(crate) fn extract(&mut self, is_taken: impl Fn(&T) -> bool) -> Vec<(Deadline, T)> {
        let all = std::mem::take(&mut self.waiting).into_vec();
        let (mut taken, rest): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|Reverse(entry)| is_taken(&entry.item));
        self.waiting = rest.into();
        taken.sort_unstable_by_key(|Reverse(entry)| entry.key);
        let items = taken.into_iter();
        items
            .map(|Reverse(entry)| (entry.key.0, entry.item))
            .collect()
    }

    /// Returns the time of the first item.
    pub(crate) fn first(&self) -> Option<Deadline> {
        self.waiting.peek().map(|Reverse(entry)| entry.key.0)
    }

    /// Returns the first item.
    pub(crate) fn peek(&self) -> Option<&T> {
        self.waiting.peek().map(|Reverse(entry)| &entry.item)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A queue of pending work that threads share.
pub(crate) struct DeadlineQueue<T> {
    state: Mutex<QueueState<T>>,
    more: Condvar,
}

struct QueueState<T> {
    waiting: DeadlineHeap<T>,
    /// Number of threads that wait in [`DeadlineQueue::pop`].
    idle: usize,
    /// `true` after [`DeadlineQueue::close`]: no thread waits any more.
    is_closed: bool,
}

impl<T> DeadlineQueue<T> {
    pub(crate) fn new() -> Self {
        DeadlineQueue {
            state: Mutex::new(QueueState {
                waiting: DeadlineHeap::new(),
                idle: 0,
                is_closed: false,
            }),
            more: Condvar::new(),
        }
    }

    pub(crate) fn push(&self, due: Deadline, item: T) {
        let mut state = self.state();
        state.waiting.push(due, item);
        // If no thread waits, a notification would be a system call for nothing.
        let somebody_waits = state.idle > 0;
        drop(state);
        if somebody_waits {
            self.more.notify_one();
        }
    }

    /// Wakes all threads that wait. From now on no thread waits for more items.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.more.notify_all();
    }

    pub(crate) fn try_pop(&self) -> Option<T> {
        self.state().waiting.pop()
    }

    /// Takes the first item. Waits up to `wait` if there is none.
    pub(crate) fn pop(&self, wait: Duration) -> Option<T> {
        self.wait_for_item(wait).waiting.pop()
    }

    /// Takes the first item, and all others of its group if it has one. Waits up to `wait` if there is none.
    pub(crate) fn pop_group<G: PartialEq>(
        &self,
        wait: Duration,
        group: impl Fn(&T) -> Option<G>,
    ) -> Vec<T> {
        let waiting = &mut self.wait_for_item(wait).waiting;
        let Some(first) = waiting.pop() else {
            return Vec::new();
        };
        let others = match group(&first) {
            Some(of_first) => waiting.extract(|other| group(other).as_ref() == Some(&of_first)),
            None => Vec::new(),
        };
        let others = others.into_iter().map(|(_, item)| item);
        std::iter::once(first).chain(others).collect()
    }

    fn wait_for_item(&self, wait: Duration) -> MutexGuard<'_, QueueState<T>> {
        let mut state = self.state();
        if state.waiting.is_empty() && !wait.is_zero() {
            state.idle += 1;
            let waited = self
                .more
                .wait_timeout_while(state, wait, |s| s.waiting.is_empty() && !s.is_closed);
            (state, _) = unpoisoned(waited);
            state.idle -= 1;
        }
        state
    }

    pub(crate) fn len(&self) -> usize {
        self.state().waiting.len()
    }

    fn state(&self) -> MutexGuard<'_, QueueState<T>> {
        lock(&self.state)
    }
}

impl<T> PartialEq for HeapEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for HeapEntry<T> {}

impl<T> PartialOrd for HeapEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for HeapEntry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_equals_in_the_order_they_came() {
        let queue = DeadlineQueue::new();
        let at = |ns| Deadline(ns);
        for (due, item) in [(5, 'c'), (1, 'a'), (5, 'd'), (u64::MAX, 'z'), (2, 'b')] {
            queue.push(at(due), item);
        }
        let order: String = std::iter::from_fn(|| queue.try_pop()).collect();
        assert_eq!(order, "abcdz");
        for (due, item) in [(5, 'c'), (1, 'A'), (5, 'd'), (4, 'B')] {
            queue.push(at(due), item);
        }
        let capitals = |item: &char| item.is_uppercase().then_some(());
        let taken = || queue.pop_group(Duration::ZERO, capitals);
        let all = [taken(), taken(), taken(), taken()];
        assert_eq!(all, [vec!['A', 'B'], vec!['c'], vec!['d'], vec![]]);
        assert!(queue.pop(Duration::ZERO).is_none());
    }

    #[test]
    fn items_that_are_extracted_keep_their_order_and_so_do_the_others() {
        let mut heap = DeadlineHeap::new();
        for (due, item) in [(5, 'c'), (1, 'A'), (5, 'D'), (2, 'b'), (5, 'E')] {
            heap.push(Deadline(due), item);
        }
        let taken = heap.extract(char::is_ascii_uppercase);
        assert_eq!(
            taken,
            [(1, 'A'), (5, 'D'), (5, 'E')].map(|(due, item)| (Deadline(due), item))
        );
        let rest: String = std::iter::from_fn(|| heap.pop()).collect();
        assert_eq!(rest, "bc");
    }

    #[test]
    fn a_moment_takes_whatever_a_prediction_says() {
        assert_eq!(Deadline::at(f64::NAN), Deadline::default());
        assert_eq!(Deadline::at(-1.0), Deadline::default());
        assert_eq!(Deadline::at(f64::INFINITY), Deadline::MAX);
        assert_eq!(Deadline::at(1.5).seconds(), 1.5);
    }
}
