//! Rows of parquet files as samples.

use std::path::Path;

use coprep_parquet::ParquetRows;
use coprep_protocol::spec::ParquetFiles;
use coprep_storage::Stores;

use super::{Dataset, Labels, Places, spread};
use crate::error::{self, Error};

/// Opens parquet files: their sizes are looked up, and their footers and labels are read.
pub(super) fn rows(
    list: &ParquetFiles,
    stores: &Stores,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Dataset, Error> {
    let found = coprep_shards::find_files(&list.files, stores).map_err(Error::from_lower)?;
    let open = coprep_parquet::open(list, &found.objects, &found.sizes, goes_on);
    let open = open.map_err(Error::from_lower)?;
    let mut dataset = Dataset::rooted(Path::new(""));
    dataset.labels = match &open.labels[..] {
        [] => Labels::Zeros(open.rows.rows() as usize),
        labels => labels.iter().copied().collect(),
    };
    dataset.classes = open.classes;
    dataset.objects = found.objects;
    dataset.places = Places::Rows(open.rows);
    Ok(dataset)
}

/// Samples that lie in row groups, which are read and decompressed as a whole.
impl Dataset {
    /// Returns `true` if samples are rows of parquet files. A dataset holds some of the row groups that it read last.
    #[must_use]
    pub fn is_in_row_groups(&self) -> bool {
        matches!(self.places, Places::Rows(_))
    }

    /// Returns the bytes of all samples together, about, if they are rows of parquet files, whose footers tell.
    #[must_use]
    pub fn row_bytes(&self) -> Option<u64> {
        match &self.places {
            Places::Rows(rows) => Some(rows.image_bytes()),
            _ => None,
        }
    }

    /// Holds at least this many row groups from now on, those that were used last. Does nothing for other samples.
    pub fn hold_row_groups(&self, groups: usize) {
        if let Places::Rows(rows) = &self.places {
            rows.hold(groups);
        }
    }

    /// Returns the bytes of the row groups that are held, decompressed. 0 for other samples.
    #[must_use]
    pub fn held_row_group_bytes(&self) -> u64 {
        match &self.places {
            Places::Rows(rows) => rows.held_bytes(),
            _ => 0,
        }
    }

    /// Lets go of all row groups that are held, so that they are read again.
    pub fn release_row_groups(&self) {
        if let Places::Rows(rows) = &self.places {
            rows.release();
        }
    }

    /// Returns `count` samples, about, evenly spread over the dataset. Of row groups, which are read as a whole, `groups` at
    /// most have the samples.
    #[must_use]
    pub fn spread(&self, count: u32, groups: u32) -> Vec<u32> {
        if self.is_empty() {
            return Vec::new();
        }
        match &self.places {
            Places::Rows(rows) => spread::over_blocks(&rows.group_ends(), count, groups),
            _ => spread::evenly(self.len(), count),
        }
    }

    /// Passes a row's bytes to `take`.
    pub(super) fn of_row<Out>(
        &self,
        rows: &ParquetRows,
        id: u32,
        take: impl FnOnce(&[u8]) -> Out,
    ) -> Result<Out, Error> {
        rows.read(&self.objects, id, take).map_err(error::of_row)
    }
}

/// Copies an image into a buffer that must have its length.
pub(super) fn fill(into: &mut [u8], image: &[u8]) -> Result<(), Error> {
    if into.len() != image.len() {
        return Err(error::wrong_length("a row", image.len(), into.len()));
    }
    into.copy_from_slice(image);
    Ok(())
}
