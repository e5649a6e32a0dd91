//! Blocks that were read by large requests, of which a bounded number is held for the samples in them.
//!
//! The first thread that needs a block reads it, and the others that need it meanwhile wait. The blocks that were used
//! last stay.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex};

use coprep_shared_memory::lock::{lock, unpoisoned};
use lru::LruCache;

/// Blocks by their number; see the module.
pub struct HeldBlocks<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    size: fn(&T) -> u64,
}

struct State<T> {
    held: LruCache<u32, Held<T>>,
    reading: HashSet<u32>,
}

/// A block with its size.
struct Held<T> {
    block: Arc<T>,
    bytes: u64,
}

impl<T> HeldBlocks<T> {
    /// Returns an empty store that holds at most `most` blocks, or one if it is 0. `size` tells the bytes of a block.
    #[must_use]
    pub fn new(most: usize, size: fn(&T) -> u64) -> Self {
        HeldBlocks {
            state: Mutex::new(State {
                held: LruCache::new(at_least_one(most)),
                reading: HashSet::new(),
            }),
            changed: Condvar::new(),
            size,
        }
    }

    /// Returns the bytes of all blocks that are held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        lock(&self.state)
            .held
            .iter()
            .map(|(_, held)| held.bytes)
            .sum()
    }

    /// Returns the number of blocks that are held at most.
    #[must_use]
    pub fn most(&self) -> usize {
        lock(&self.state).held.cap().get()
    }

    /// Changes the number of blocks that are held at most.
    pub fn hold(&self, most: usize) {
        lock(&self.state).held.resize(at_least_one(most));
    }

    /// Lets go of all blocks.
    pub fn clear(&self) {
        lock(&self.state).held.clear();
    }

    /// Returns a block, which `read` makes if it is not held.
    ///
    /// # Errors
    /// That of `read`. Threads that waited for the block then read it themselves, one after another.
    pub fn get<E>(&self, block: u32, read: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let mut state = lock(&self.state);
        loop {
            if let Some(held) = state.held.get(&block) {
                return Ok(held.block.clone());
            }
            if state.reading.insert(block) {
                break;
            }
            state = unpoisoned(self.changed.wait(state));
        }
        drop(state);
        // If this thread fails, or panics, one of those that wait reads the block.
        let reading = Reading {
            blocks: self,
            block,
        };
        let made = Arc::new(read()?);
        let held = Held {
            block: made.clone(),
            bytes: (self.size)(&made),
        };
        lock(&self.state).held.put(block, held);
        drop(reading);
        Ok(made)
    }
}

impl<T> fmt::Debug for HeldBlocks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldBlocks of {}", lock(&self.state).held.len())
    }
}

fn at_least_one(most: usize) -> NonZeroUsize {
    NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN)
}

/// A block that a thread reads.
struct Reading<'a, T> {
    blocks: &'a HeldBlocks<T>,
    block: u32,
}

impl<T> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        lock(&self.blocks.state).reading.remove(&self.block);
        self.blocks.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_block_is_read_once_for_all_threads_that_need_it() {
        let (blocks, reads) = (HeldBlocks::new(2, |_| 1), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let got =
                        blocks.get(7, || Ok::<u32, ()>(reads.fetch_add(1, Ordering::Relaxed)));
                    assert_eq!(got.map(|block| *block), Ok(0));
                });
            }
        });
        assert_eq!(reads.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_failure_is_that_of_its_thread_and_the_blocks_used_last_stay() {
        let blocks = HeldBlocks::new(2, |made| u64::from(*made));
        assert_eq!(blocks.get(1, || Err::<u32, _>("gone")).err(), Some("gone"));
        let get = |block, made| blocks.get(block, || Ok::<u32, ()>(made)).map(|b| *b);
        assert_eq!(
            (get(1, 10), get(2, 20), get(1, 11)),
            (Ok(10), Ok(20), Ok(10))
        );
        // The third block takes the place of the second.
        assert_eq!(
            (get(3, 30), get(1, 12), get(2, 21)),
            (Ok(30), Ok(10), Ok(21))
        );
        assert_eq!(blocks.bytes(), 10 + 21);
        blocks.hold(1);
        assert_eq!((get(2, 22), get(1, 13)), (Ok(21), Ok(13)));
        assert_eq!(blocks.bytes(), 13);
        blocks.clear();
        assert_eq!(blocks.bytes(), 0);
    }
}
