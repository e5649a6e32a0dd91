//! A bounded queue of writes, and the thread that carries them out.
//!
//! Preparing a sample must not wait for the disk. So a sample that finds the queue full is not written, unless its owner
//! has nothing else to do: the disk is then slower than storage, and another epoch may find room in the queue.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use coprep_protocol::poll_interval::poll_every;
use coprep_shared_memory::lock::{lock, unpoisoned};

/// Bytes that may wait, beside the one write that is under way.
const MOST_BYTES: u64 = 64 << 20;
/// Longest sleep when nothing wakes a thread. Nothing depends on it: see [`poll_every`].
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Something to write.
pub(super) trait PendingWrite {
    /// Returns the bytes of memory that it takes while it waits.
    fn bytes(&self) -> u64;
    /// Writes it.
    fn write(self);
}

/// Behaviour of a push when the queue is full.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// Give the write up.
    Drop,
    /// Wait for room.
    Wait,
}

/// The queue. See the module.
pub(super) struct WriteQueue<W> {
    state: Mutex<QueueState<W>>,
    /// Signals that a write was added, or the end.
    more: Condvar,
    /// Signals that a write begins or is over.
    less: Condvar,
}

struct QueueState<W> {
    waiting: VecDeque<W>,
    /// Bytes of the writes that wait.
    bytes: u64,
    is_writing: bool,
    is_stopped: bool,
}

impl<W> Default for WriteQueue<W> {
    fn default() -> Self {
        WriteQueue {
            state: Mutex::new(QueueState {
                waiting: VecDeque::new(),
                bytes: 0,
                is_writing: false,
                is_stopped: false,
            }),
            more: Condvar::new(),
            less: Condvar::new(),
        }
    }
}

impl<W: PendingWrite> WriteQueue<W> {
    fn state(&self) -> MutexGuard<'_, QueueState<W>> {
        lock(&self.state)
    }

    /// Adds a write. Returns `false` if it was given up.
    pub(super) fn push(&self, write: W, when_full: WhenFull) -> bool {
        let bytes = write.bytes();
        let mut state = self.state();
        // A write that is larger than the whole queue goes into it when no other one waits.
        while state.bytes > 0 && state.bytes.saturating_add(bytes) > MOST_BYTES {
            if when_full == WhenFull::Drop || state.is_stopped {
                return false;
            }
            let waited = self.less.wait_timeout(state, poll_every(POLL_INTERVAL));
            state = unpoisoned(waited).0;
        }
        if state.is_stopped {
            return false;
        }
        state.bytes += bytes;
        state.waiting.push_back(write);
        drop(state);
        self.more.notify_one();
        true
    }

    /// Carries out writes until the queue is stopped and empty.
    pub(super) fn run(&self) {
        let mut state = self.state();
        loop {
            let Some(write) = state.waiting.pop_front() else {
                if state.is_stopped {
                    return;
                }
                let waited = self.more.wait_timeout(state, poll_every(POLL_INTERVAL));
                state = unpoisoned(waited).0;
                continue;
            };
            state.is_writing = true;
            state.bytes -= write.bytes();
            drop(state);
            // The next write takes the place of this one while it is carried out.
            self.less.notify_all();
            // One thread writes for all datasets, so it must outlive a panic over one sample.
            if catch_unwind(AssertUnwindSafe(|| write.write())).is_err() {
                tracing::error!(
                    "the thread that writes samples panicked: a defect of coprep, please report it"
                );
            }
            state = self.state();
            state.is_writing = false;
            self.less.notify_all();
        }
    }

    /// Waits until nothing waits to be written, or the patience is over.
    pub(super) fn wait_until_empty(&self, patience: Duration) {
        let began = Instant::now();
        let mut state = self.state();
        while (state.is_writing || !state.waiting.is_empty()) && began.elapsed() < patience {
            let waited = self.less.wait_timeout(state, poll_every(POLL_INTERVAL));
            state = unpoisoned(waited).0;
        }
    }

    /// Takes no further writes. Those that wait are carried out.
    pub(super) fn stop(&self) {
        self.state().is_stopped = true;
        self.more.notify_all();
        self.less.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    struct Write {
        bytes: u64,
        number: u32,
        /// The write goes on when something comes, or the other end is gone.
        gate: Option<Receiver<()>>,
        done: Sender<u32>,
    }

    impl PendingWrite for Write {
        fn bytes(&self) -> u64 {
            self.bytes
        }

        fn write(self) {
            if let Some(gate) = self.gate {
                let _ = gate.recv();
            }
            assert!(self.number != 13, "this number panics");
            let _ = self.done.send(self.number);
        }
    }

    fn write(number: u32, bytes: u64, done: &Sender<u32>) -> Write {
        Write {
            bytes,
            number,
            gate: None,
            done: done.clone(),
        }
    }

    #[test]
    fn a_full_queue_refuses_or_waits_and_loses_nothing_that_it_took() {
        let queue = Arc::new(WriteQueue::default());
        let (done, results) = channel();
        let (open, gate) = channel();
        let first = Write {
            gate: Some(gate),
            ..write(0, MOST_BYTES, &done)
        };
        assert!(queue.push(first, WhenFull::Drop));
        assert!(!queue.push(write(1, 1, &done), WhenFull::Drop));
        let writing = queue.clone();
        let writer = std::thread::spawn(move || writing.run());
        let (waiting, patient) = (queue.clone(), write(2, 1, &done));
        let waiter = std::thread::spawn(move || waiting.push(patient, WhenFull::Wait));
        // It has room as soon as the first write begins, which ends only later.
        assert!(waiter.join().unwrap());
        open.send(()).unwrap();
        // A panic ends one write.
        assert!(queue.push(write(13, 1, &done), WhenFull::Wait));
        assert!(queue.push(write(4, 1, &done), WhenFull::Wait));
        queue.wait_until_empty(Duration::from_secs(30));
        queue.stop();
        assert!(!queue.push(write(5, 1, &done), WhenFull::Wait));
        writer.join().unwrap();
        drop(done);
        assert_eq!(results.iter().collect::<Vec<_>>(), [0, 2, 4]);
    }

    #[test]
    fn what_waits_at_the_end_is_written() {
        let queue = WriteQueue::default();
        let (done, results) = channel();
        for number in 0..3 {
            assert!(queue.push(write(number, 9, &done), WhenFull::Drop));
        }
        queue.stop();
        queue.run();
        drop(done);
        assert_eq!(results.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
