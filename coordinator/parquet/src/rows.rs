//! The rows of all files, and reading them by row groups.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use coprep_shared_memory::lock::lock;
use coprep_storage::{Error, Extent, HeldBlocks, ObjectTable};
use parquet::schema::types::ColumnDescPtr;
use xxhash_rust::xxh3::Xxh3;

use crate::chunk::{ChunkPlace, Images};
use crate::footer::FileFooter;

/// Most bytes of a column chunk, stored or decompressed. It is in memory as a whole, so that files with larger row groups
/// are refused. It is also the most that a sample may have.
pub const MOST_CHUNK: u64 = 1 << 30;
/// Row groups that are held if nobody says how many.
const HELD: usize = 4;

/// The rows with images in parquet files. A sample's id is its position in the order of (file, row).
#[derive(Debug)]
pub struct ParquetRows {
    files: Vec<FileRows>,
    groups: Vec<RowGroup>,
    /// Most bytes of a chunk, decompressed.
    most: u64,
    /// Bytes of all images, as the footers tell.
    image_bytes: u64,
    /// Row groups that were read last, decompressed.
    held: HeldBlocks<Images>,
    /// Why row groups cannot be decoded that were read before, so that they are not read again for each of their rows.
    damaged: Mutex<HashMap<u32, String>>,
}

/// A file.
#[derive(Debug)]
struct FileRows {
    /// Number of rows in the files before.
    before: u64,
    image: ColumnDescPtr,
}

/// A row group.
#[derive(Debug)]
struct RowGroup {
    /// Number of rows in this and all groups before.
    end: u64,
    file: u32,
    /// Position in the file.
    number: u32,
    image: ChunkPlace,
}

/// The reason why a row cannot be had.
#[derive(Clone, Debug)]
pub enum ReadFailure {
    /// The file cannot be read.
    Storage(Error),
    /// The row group cannot be decoded, or the row has no image. What it is, in words, with the file and the row group.
    Damaged(String),
}

impl From<Error> for ReadFailure {
    fn from(error: Error) -> Self {
        ReadFailure::Storage(error)
    }
}

impl ParquetRows {
    pub(crate) fn new(most: u64) -> Self {
        ParquetRows {
            files: Vec::new(),
            groups: Vec::new(),
            most,
            image_bytes: 0,
            held: HeldBlocks::new(HELD, image_bytes),
            damaged: Mutex::default(),
        }
    }

    /// Adds the next file.
    pub(crate) fn push(&mut self, footer: &FileFooter) {
        let file = self.files.len() as u32;
        // Files of a dataset have one schema, which then is in memory once.
        let last = self.files.last().map(|last| &last.image);
        let image = last.filter(|last| **last == footer.image);
        let image = image.unwrap_or(&footer.image).clone();
        let mut end = self.rows();
        self.files.push(FileRows { before: end, image });
        for group in &footer.groups {
            end += u64::from(group.image.rows);
            self.image_bytes += group.image_bytes;
            self.groups.push(RowGroup {
                end,
                file,
                number: group.number,
                image: group.image,
            });
        }
    }

    pub(crate) fn shrink(&mut self) {
        self.files.shrink_to_fit();
        self.groups.shrink_to_fit();
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.groups.last().map_or(0, |last| last.end)
    }

    /// Returns the bytes of all images together, about, as the footers tell.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// Returns the bytes of memory that the table takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.files.capacity() * size_of::<FileRows>()
            + self.groups.capacity() * size_of::<RowGroup>()
    }

    /// Returns the end of each row group, which is the first id of the next one.
    #[must_use]
    pub fn group_ends(&self) -> Arc<[u32]> {
        self.groups.iter().map(|group| group.end as u32).collect()
    }

    /// Returns the bytes that hold a row, which are those of all rows of its group.
    ///
    /// # Panics
    /// If `id` is not below [`ParquetRows::rows`].
    #[must_use]
    pub fn extent(&self, id: u32) -> Extent {
        self.groups[self.group_of(id)].extent()
    }

    /// Returns the name of a row within its file: its position there.
    ///
    /// # Panics
    /// If `id` is not below [`ParquetRows::rows`].
    #[must_use]
    pub fn name(&self, id: u32) -> String {
        let file = self.groups[self.group_of(id)].file;
        format!("row{}", u64::from(id) - self.files[file as usize].before)
    }

    /// Holds at least this many row groups from now on, those that were used last. Streams share the rows, so the largest
    /// number that one of them asked for counts.
    pub fn hold(&self, groups: usize) {
        self.held.hold(groups.max(self.held.most()));
    }

    /// Returns the bytes of the images in the row groups that are held.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// Lets go of all row groups that are held.
    pub fn release(&self) {
        self.held.clear();
    }

    /// Passes the image of a row to `take`. Its row group is read, and decompressed, unless it is held.
    ///
    /// # Errors
    /// If the group cannot be read or decoded, or the row has no image.
    ///
    /// # Panics
    /// If `id` is not below [`ParquetRows::rows`].
    pub fn read<Out>(
        &self,
        objects: &ObjectTable,
        id: u32,
        take: impl FnOnce(&[u8]) -> Out,
    ) -> Result<Out, ReadFailure> {
        let at = self.group_of(id);
        let images = self.held.get(at as u32, || self.read_group(objects, at))?;
        let first = at
            .checked_sub(1)
            .map_or(0, |before| self.groups[before].end);
        let row = (u64::from(id) - first) as usize;
        let Some(image) = images.get(row).and_then(Option::as_ref) else {
            let group = self.describe(objects, at);
            let what = format!("row {row} of {group} has no image: its value is null");
            return Err(ReadFailure::Damaged(what));
        };
        Ok(take(image.data()))
    }

    /// Adds the identity of all places to a hash.
    pub fn identify(&self, hash: &mut Xxh3) {
        for group in &self.groups {
            let numbers = [group.end, group.image.at, group.image.len.into()];
            numbers
                .iter()
                .for_each(|number| hash.update(&number.to_le_bytes()));
        }
    }

    fn group_of(&self, id: u32) -> usize {
        let at = self
            .groups
            .partition_point(|group| group.end <= u64::from(id));
        assert!(at < self.groups.len(), "row {id} of {}", self.rows());
        at
    }

    fn read_group(&self, objects: &ObjectTable, at: usize) -> Result<Images, ReadFailure> {
        let known = lock(&self.damaged).get(&(at as u32)).cloned();
        if let Some(what) = known {
            return Err(ReadFailure::Damaged(what));
        }
        let mut failed = String::new();
        // Twice: bytes that changed on their way are right then, and those that changed in the store are not.
        for _ in 0..2 {
            let mut bytes = Vec::new();
            let group = &self.groups[at];
            objects.read(group.extent(), &mut bytes)?;
            let column = &self.files[group.file as usize].image;
            match group.image.images(bytes.into(), column, self.most) {
                Ok(images) => return Ok(images),
                Err(why) => failed = why,
            }
            tracing::warn!(
                group = self.describe(objects, at),
                why = failed,
                "a row group cannot be decoded"
            );
        }
        let what = format!("{} cannot be decoded: {failed}", self.describe(objects, at));
        lock(&self.damaged).insert(at as u32, what.clone());
        Err(ReadFailure::Damaged(what))
    }

    fn describe(&self, objects: &ObjectTable, at: usize) -> String {
        let group = &self.groups[at];
        let file = objects.path(group.file);
        format!("row group {} of {}", group.number, file.display())
    }
}

fn image_bytes(images: &Images) -> u64 {
    images
        .iter()
        .flatten()
        .map(|image| image.len() as u64)
        .sum()
}

impl RowGroup {
    fn extent(&self) -> Extent {
        self.image.extent(self.file)
    }
}
