//! Samples that are read together: neighbours in a tar shard, or in another large object, of which one request brings
//! many.
//!
//! The samples of a dataset are cut into blocks ([`Dataset::block_ends`]). The first sample of a block that is needed
//! brings all of it into memory, and threads that need others meanwhile wait for it. The blocks that were used last stay
//! in memory: half as many again as a window has, since samples of blocks that have left it are still being prepared.
//!
//! The blocks of parquet files are row groups. Their dataset reads and holds them itself, decompressed.

use std::sync::Arc;

use coprep_pipeline::{Dataset, Error};
use coprep_scheduler::Windows;
use coprep_storage::HeldBlocks;

/// The blocks of a stream's dataset.
pub(crate) struct BlockReads {
    /// The end of each block, which is the first id of the next one.
    ends: Arc<[u32]>,
    /// Number of blocks that are in use at a time.
    open: u32,
    /// `None` if the dataset holds its blocks itself.
    held: Option<HeldBlocks<Vec<u8>>>,
}

/// Most bytes of a block. A request of this size takes most of its time for the bytes, and not for the answer to begin.
const BLOCK_BYTES: u64 = 8 << 20;
/// Number of blocks that are held beyond those of the window: samples that were drawn from a block that has left the
/// window are still being prepared.
const BEYOND_WINDOW: u32 = 4;
/// The same for row groups, which may be large, and are then few for the samples that are being prepared.
const GROUPS_BEYOND_WINDOW: u32 = 2;
/// Number of samples, about, that are drawn before those before them are prepared.
const DRAWN_AHEAD: u32 = 1024;
/// Bytes of the row groups that random orders draw from if a job does not say from how many samples.
const DEFAULT_WINDOW_BYTES: u64 = 512 << 20;

impl BlockReads {
    /// Cuts a dataset into blocks, of which as many are in use at a time as hold `window` samples on average. Returns
    /// `None` if each sample is an object.
    pub(crate) fn of(dataset: &Dataset, window: u32) -> Option<Self> {
        let ends = dataset.block_ends(BLOCK_BYTES)?;
        let of_one = f64::from(dataset.len()) / ends.len() as f64;
        let open = (f64::from(window) / of_one).ceil() as u32;
        let held = if dataset.is_in_row_groups() {
            let ahead = (f64::from(DRAWN_AHEAD) / of_one) as u32;
            dataset.hold_row_groups(most(open, GROUPS_BEYOND_WINDOW + ahead));
            None
        } else {
            let bytes = |block: &Vec<u8>| block.capacity() as u64;
            Some(HeldBlocks::new(most(open, BEYOND_WINDOW), bytes))
        };
        Some(BlockReads { ends, open, held })
    }

    /// Returns the blocks of samples that can be read together only, in an order that a job did not limit to a window.
    /// Returns `None` if they can be read one by one.
    pub(crate) fn by_default(dataset: &Dataset, is_in_order: bool) -> Option<Self> {
        let bytes = dataset.row_bytes()?;
        let window = if is_in_order {
            1
        } else {
            let mean = (bytes / u64::from(dataset.len().max(1))).max(1);
            u32::try_from(DEFAULT_WINDOW_BYTES / mean).unwrap_or(u32::MAX)
        };
        BlockReads::of(dataset, window.min(dataset.len()))
    }

    /// Returns the windows from which samples are to be drawn, so that few blocks are in use at a time. `None` if all
    /// blocks are: a window of everything would only take time at each draw.
    pub(crate) fn windows(&self) -> Option<Windows> {
        let is_all = self.open as usize >= self.ends.len();
        (!is_all).then(|| Windows {
            block_ends: self.ends.clone(),
            open: self.open,
        })
    }

    /// Returns the bytes of the blocks that are in memory.
    pub(crate) fn held_bytes(&self, dataset: &Dataset) -> u64 {
        match &self.held {
            Some(held) => held.bytes(),
            None => dataset.held_row_group_bytes(),
        }
    }

    /// Passes the bytes of a sample to `take`, which are read with those of its block if they are not in memory. Returns
    /// `false` if they are not those that were indexed, or the dataset holds them, and does not pass them: the sample
    /// must be read by itself.
    pub(crate) fn take_sample(
        &self,
        dataset: &Dataset,
        id: u32,
        take: impl FnOnce(&[u8]),
    ) -> Result<bool, Error> {
        let Some(held) = &self.held else {
            return Ok(false);
        };
        let ends = &self.ends;
        let block = ends.partition_point(|&end| end <= id);
        let first = block.checked_sub(1).map_or(0, |before| ends[before]);
        let bytes = held.get(block as u32, || {
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
}

/// Returns the number of blocks to hold.
fn most(open: u32, beyond: u32) -> usize {
    open.saturating_add(open / 2).saturating_add(beyond) as usize
}
