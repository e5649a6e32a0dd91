//! Opens files: reads their footers and labels, many at once.

use std::sync::Mutex;

use bytes::Bytes;
use coprep_protocol::spec::ParquetFiles;
use coprep_storage::{Error, ErrorKind, ObjectTable, in_parallel};

use crate::chunk::ChunkPlace;
use crate::fault::FileFault;
use crate::footer::{FileFooter, FooterReader, GroupLabels};
use crate::rows::{MOST_CHUNK, ParquetRows};

/// Files that are open.
#[derive(Debug)]
pub struct OpenParquet {
    /// The rows. A row is read with all of its row group.
    pub rows: ParquetRows,
    /// The label of each row. Empty if no label is used.
    pub labels: Vec<i64>,
    /// The names of the classes, by label, if a footer has them as Hugging Face's `datasets` writes them.
    pub classes: Vec<String>,
}

/// Opens parquet files, whose places and sizes are known. `goes_on` is told the number of files that are open, and ends
/// the opening by `false`.
///
/// # Errors
/// If a file is cut off, encrypted, or no parquet file; if it lacks a column, or the column has another type; if a row
/// group is larger than [`MOST_CHUNK`], or compressed or encoded in a way that is not supported; if a label is null; if
/// there is no row, or more than 2^32 - 1; if a store does not answer.
pub fn open(
    list: &ParquetFiles,
    objects: &ObjectTable,
    sizes: &[u64],
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<OpenParquet, Error> {
    open_within(list, objects, sizes, MOST_CHUNK, goes_on)
}

/// Opens parquet files as [`open`] does, with a chunk of at most `most` bytes.
///
/// # Errors
/// As [`open`].
pub fn open_within(
    list: &ParquetFiles,
    objects: &ObjectTable,
    sizes: &[u64],
    most: u64,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<OpenParquet, Error> {
    let large = Mutex::new(());
    let footer = |file: usize| {
        let reader = FooterReader {
            objects,
            file: file as u32,
            size: sizes[file],
            columns: list,
            most,
            large: &large,
        };
        reader.read()
    };
    let footers = all_of(sizes.len(), objects.is_remote(), &footer, goes_on)?;
    let mut rows = ParquetRows::new(most);
    footers.iter().for_each(|footer| rows.push(footer));
    rows.shrink();
    if rows.rows() == 0 {
        return Err(FileFault::new("it has no rows", "name files with rows").of(&list.name()));
    }
    // Ids of samples are 32-bit numbers. Labels of more rows would be read in vain.
    if u32::try_from(rows.rows()).is_err() {
        let what = format!("it has {} rows, more than {}", rows.rows(), u32::MAX);
        return Err(FileFault::new(what, "name fewer files").of(&list.name()));
    }
    let labels = LabelReader {
        objects,
        most,
        footers: &footers,
    };
    let labels = labels.all(goes_on)?;
    let classes = footers.into_iter().find_map(|footer| footer.classes);
    Ok(OpenParquet {
        rows,
        labels,
        classes: classes.unwrap_or_default(),
    })
}

/// Files whose labels are read.
struct LabelReader<'a> {
    objects: &'a ObjectTable,
    most: u64,
    footers: &'a [FileFooter],
}

impl LabelReader<'_> {
    /// Returns the labels of all rows, or none if no label is used.
    fn all(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<Vec<i64>, Error> {
        let groups = self.footers.iter().enumerate();
        let groups: Vec<(usize, usize)> = groups
            .flat_map(|(file, footer)| (0..footer.groups.len()).map(move |group| (file, group)))
            .collect();
        let files = self.footers.len() as u64;
        let mut labels = Vec::new();
        let read = |at: usize| self.group(groups[at].0, groups[at].1);
        let is_awaited = &mut |_| goes_on(files);
        for group in all_of(groups.len(), self.objects.is_remote(), &read, is_awaited)? {
            labels.extend(group);
        }
        labels.shrink_to_fit();
        Ok(labels)
    }

    fn group(&self, file: usize, at: usize) -> Result<Vec<i64>, Error> {
        let footer = &self.footers[file];
        let group = &footer.groups[at];
        let (place, chunk) = match &group.labels {
            GroupLabels::None => return Ok(Vec::new()),
            GroupLabels::Only(label) => return Ok(vec![*label; group.image.rows as usize]),
            GroupLabels::Read(place, chunk) => (place, chunk.clone()),
            GroupLabels::At(place) => (place, self.read(file, place)?),
        };
        self.decode(footer, place, chunk).map_err(|fault| {
            let path = self.objects.path(file as u32);
            let part = format!("row group {}", group.number);
            fault.within(&part).of(&path.to_string_lossy())
        })
    }

    fn read(&self, file: usize, place: &ChunkPlace) -> Result<Bytes, Error> {
        let mut bytes = Vec::new();
        self.objects
            .read_at_opening(place.extent(file as u32), &mut bytes)?;
        Ok(bytes.into())
    }

    fn decode(
        &self,
        footer: &FileFooter,
        place: &ChunkPlace,
        chunk: Bytes,
    ) -> Result<Vec<i64>, FileFault> {
        let unreadable =
            |why: String| FileFault::damaged(format!("its labels cannot be decoded ({why})"));
        let column = footer.label.as_ref();
        let column = column.ok_or_else(|| unreadable("they have no column".into()))?;
        let labels = place.labels(chunk, column, self.most).map_err(unreadable)?;
        let null = labels.iter().position(Option::is_none);
        if let Some(row) = null {
            return Err(FileFault::new(
                format!("the label of its row {row} is null"),
                "fill it in, leave the row out, or use label=None for no labels",
            ));
        }
        Ok(labels.into_iter().flatten().collect())
    }
}

/// Does `count` pieces of work at once. Returns their results in order, or the error of the first that failed. `goes_on` is
/// told the number of those that are done, and ends the work by `false`.
fn all_of<T: Send>(
    count: usize,
    is_remote: bool,
    work: &(dyn Fn(usize) -> Result<T, Error> + Sync),
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<T>, Error> {
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let (mut failed, mut is_awaited): (Option<(usize, Error)>, bool) = (None, true);
    let mut finished = 0;
    in_parallel(count, is_remote, work, &mut |piece, result| {
        match result {
            Ok(result) => results[piece] = Some(result),
            // Of several bad files, the first is named, in whatever order they were found.
            Err(error) if failed.as_ref().is_none_or(|(first, _)| piece < *first) => {
                failed = Some((piece, error));
            }
            Err(_) => {}
        }
        finished += 1;
        is_awaited = is_awaited && goes_on(finished);
        is_awaited && failed.is_none()
    });
    if let Some((_, error)) = failed {
        return Err(error);
    }
    if !is_awaited {
        let what = "nobody waits for the files any more";
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    Ok(results.into_iter().flatten().collect())
}
