//! Blocks of samples that are read together.

use std::ops::Range;
use std::sync::Arc;

use coprep_storage::Extent;

use super::{Dataset, Places};
use crate::error::{self, Error};

/// Samples that are neighbours in an object, such as a tar shard, which one request brings together.
impl Dataset {
    /// Cuts the samples into blocks of neighbours. A block takes at most `most` bytes of its object, or it is one sample;
    /// in a parquet file it is a row group.
    /// Returns the end of each block, which is the first id of the next one, or `None` if each sample is an object.
    #[must_use]
    pub fn block_ends(&self, most: u64) -> Option<Arc<[u32]>> {
        if let Places::Rows(rows) = &self.places {
            return Some(rows.group_ends());
        }
        if !self.has_parts() {
            return None;
        }
        let mut ends = Vec::new();
        let mut first = self.extent(0);
        for id in 1..self.len() {
            let extent = self.extent(id);
            let end = extent.at + u64::from(extent.len.unwrap_or(0));
            if extent.object != first.object || end - first.at > most {
                ends.push(id);
                first = extent;
            }
        }
        ends.push(self.len());
        Some(ends.into())
    }

    /// Reads the samples of a block, and what lies between them. Afterwards `into` holds exactly these bytes.
    ///
    /// # Errors
    ///
    /// As [`Dataset::fetch`].
    ///
    /// # Panics
    ///
    /// If `ids` is empty, or not a block of [`Dataset::block_ends`].
    pub fn fetch_block(&self, ids: Range<u32>, into: &mut Vec<u8>) -> Result<(), Error> {
        let Extent { object, at, .. } = self.extent(ids.start);
        let len = self.place_in_block(ids.start, ids.end - 1).end;
        let extent = Extent {
            object,
            at,
            // A block is a sample, or shorter than 4 GiB.
            len: Some(len as u32),
        };
        self.objects.read(extent, into).map_err(error::of_storage)
    }

    /// Returns `true` if these bytes of a sample are those that were indexed, or nothing is known about them.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn is_intact(&self, id: u32, bytes: &[u8]) -> bool {
        match &self.places {
            Places::Shards(shards) => shards.is_intact(id, bytes),
            _ => true,
        }
    }

    /// Returns where the bytes of a sample lie in the block that begins with sample `first`.
    ///
    /// # Panics
    ///
    /// If the sample is not in that block.
    #[must_use]
    pub fn place_in_block(&self, first: u32, id: u32) -> Range<usize> {
        let extent = self.extent(id);
        let start = (extent.at - self.extent(first).at) as usize;
        start..start + extent.len.unwrap_or(0) as usize
    }
}
