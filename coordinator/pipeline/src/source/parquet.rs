//! Rows of parquet files as samples.

use std::path::Path;

use coprep_protocol::spec::ParquetFiles;
use coprep_storage::Stores;

use super::{Dataset, Labels, Places};
use crate::error::Error;

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
