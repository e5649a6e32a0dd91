//! Samples that are read together: neighbours in a tar shard, or in another large object, of which one request brings
//! many.
//!
//! The samples of a dataset are cut into blocks ([`Dataset::block_ends`]). The first sample of a block that is needed
//! brings all of it into memory, and threads that need others meanwhile wait for it. The blocks that were used last stay
//! in memory: half as many again as a window has, since samples of blocks that have left it are still being prepared.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex};

use coprep_pipeline::{Dataset, Error};
use coprep_scheduler::Windows;
use coprep_shared_memory::lock::{lock, unpoisoned};
use lru::LruCache;

/// The blocks of a stream's dataset.
pub(crate) struct BlockReads {
    windows: Windows,
    state: Mutex<Blocks>,
    changed: Condvar,
}

struct Blocks {
    held: LruCache<u32, Arc<Vec<u8>>>,
    reading: HashSet<u32>,
}

/// Most bytes of a block. A request of this size takes most of its time for the bytes, and not for the answer to begin.
const BLOCK_BYTES: u64 = 8 << 20;
/// Number of blocks that are held beyond those of the window: samples that were drawn from a block that has left the
/// window are still being prepared.
const BEYOND_WINDOW: u32 = 4;

impl BlockReads {
    /// Cuts a dataset into blocks, of which as many are in use at a time as hold `window` samples on average. Returns
    /// `None` if each sample is an object.
    pub(crate) fn of(dataset: &Dataset, window: u32) -> Option<Self> {
        let ends = dataset.block_ends(BLOCK_BYTES)?;
        let of_one = f64::from(dataset.len()) / ends.len() as f64;
        let open = (f64::from(window) / of_one).ceil() as u32;
        let most = open.saturating_add(open / 2 + BEYOND_WINDOW);
        let most = NonZeroUsize::new(most as usize).unwrap_or(NonZeroUsize::MIN);
        Some(BlockReads {
            windows: Windows {
                block_ends: ends,
                open,
            },
            state: Mutex::new(Blocks {
                held: LruCache::new(most),
                reading: HashSet::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// Returns the windows from which samples are to be drawn, so that few blocks are in use at a time.
    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Passes the bytes of a sample to `take`, which are read with those of its block if they are not in memory. Returns
    /// `false` if they are not those that were indexed, and does not pass them: the sample must be read by itself.
    pub(crate) fn take_sample(
        &self,
        dataset: &Dataset,
        id: u32,
        take: impl FnOnce(&[u8]),
    ) -> Result<bool, Error> {
        let ends = &self.windows.block_ends;
        let block = ends.partition_point(|&end| end <= id);
        let first = block.checked_sub(1).map_or(0, |before| ends[before]);
        let bytes = self.block(block as u32, || {
            let mut bytes = Vec::new();
            dataset.fetch_block(first..ends[block], &mut bytes)?;
            Ok(bytes)
        })?;
        let bytes = &bytes[dataset.place_in_block(first, id)];
        let is_intact = dataset.is_intact(id, bytes);
        if is_intact {
            take(bytes);
        }
        Ok(is_intact)
    }

    fn block(
        &self,
        block: u32,
        read: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Arc<Vec<u8>>, Error> {
        let mut state = lock(&self.state);
        loop {
            if let Some(bytes) = state.held.get(&block) {
                return Ok(bytes.clone());
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
        let bytes = Arc::new(read()?);
        lock(&self.state).held.put(block, bytes.clone());
        drop(reading);
        Ok(bytes)
    }
}

/// A block that a thread reads.
struct Reading<'a> {
    blocks: &'a BlockReads,
    block: u32,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        lock(&self.blocks.state).reading.remove(&self.block);
        self.blocks.changed.notify_all();
    }
}
