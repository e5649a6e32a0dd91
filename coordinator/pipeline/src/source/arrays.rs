//! Opening of token files and of `.npy` files whose rows are samples: sizes and headers are read, and no sample.

use coprep_protocol::spec::{ArrayFiles, Dtype, Field, Tail, TokenFiles};
use coprep_shards::FoundFiles;
use coprep_storage::{Extent, Stores};

use super::labels::Labels;
use super::windows::Windows;
use super::{Dataset, Places, invalid};
use crate::array_pipeline::ArrayForm;
use crate::error::Error;
use crate::npy::{self, NpyHeader};

/// Bytes of the beginning of a `.npy` file that hold its header.
const NPY_HEAD: u64 = npy::MOST_HEADER as u64 + 16;

/// Opens files of tokens.
pub(super) fn tokens(list: &TokenFiles, stores: &Stores) -> Result<Dataset, Error> {
    list.check().map_err(invalid)?;
    let found = find(&list.files, stores)?;
    let item = list.dtype.size() as u64;
    let mut windows = Windows::new(list.window * item as u32, u64::from(list.stride) * item);
    for (path, &size) in list.files.iter().zip(&found.sizes) {
        let of_file = |error: Error| error.within(format!("the file {path}"));
        let tokens = token_count(list, size).map_err(of_file)?;
        let (count, last) = place(list, tokens).map_err(of_file)?;
        windows.push(list.offset, list.offset + last * item, count);
    }
    let form = ArrayForm {
        field: Field {
            name: "tokens".into(),
            dtype: list.out,
            shape: vec![list.window],
        },
        stored: list.dtype,
    };
    dataset(found, windows, form, &[])
}

/// Returns the number of tokens in a file of `size` bytes.
fn token_count(list: &TokenFiles, size: u64) -> Result<u64, Error> {
    let item = list.dtype.size() as u64;
    let Some(bytes) = size.checked_sub(list.offset) else {
        let what = format!("it has {size} bytes, fewer than offset={}", list.offset);
        return Err(invalid(what).with_remedy("check offset"));
    };
    if bytes % item != 0 {
        let what = format!(
            "it has {bytes} bytes of tokens, which is no multiple of the {item} bytes of {}",
            list.dtype.name()
        );
        return Err(invalid(what).with_remedy("check dtype, and offset if the file has a header"));
    }
    Ok(bytes / item)
}

/// Returns the number of windows among `tokens` tokens, and the first token of the last window.
fn place(list: &TokenFiles, tokens: u64) -> Result<(u64, u64), Error> {
    let stride = u64::from(list.stride);
    let Some(behind_first) = tokens.checked_sub(list.window.into()) else {
        let what = format!("it has {tokens} tokens, fewer than window={}", list.window);
        return Err(invalid(what).with_remedy("choose a smaller window, or leave the file out"));
    };
    Ok(match list.tail {
        Tail::Drop => {
            let strides = behind_first / stride;
            (strides + 1, strides * stride)
        }
        // The last window ends with the file, and may begin within the one before.
        Tail::Overlap => (behind_first.div_ceil(stride) + 1, behind_first),
    })
}

/// Opens `.npy` files whose rows are samples.
pub(super) fn rows(list: &ArrayFiles, stores: &Stores) -> Result<Dataset, Error> {
    let found = find(&list.files, stores)?;
    let mut opened: Option<(NpyHeader, Windows)> = None;
    for ((path, &size), head) in list.files.iter().zip(&found.sizes).zip(heads(&found)) {
        let of_file = |error: Error| error.within(format!("the array {path}"));
        let header = npy::header(&head?).map_err(of_file)?;
        let (first, windows) = match &mut opened {
            Some((first, windows)) => (&*first, windows),
            none => {
                let length = row_bytes(&header).map_err(of_file)?;
                let opened = none.insert((header.clone(), Windows::new(length, length.into())));
                (&opened.0, &mut opened.1)
            }
        };
        add_rows(windows, first, &header, size).map_err(of_file)?;
    }
    let Some((header, windows)) = opened else {
        return Err(invalid("the list of arrays is empty").with_remedy("give at least one file"));
    };
    let form = ArrayForm {
        field: Field {
            name: "array".into(),
            dtype: header.dtype,
            shape: header.shape[1..].to_vec(),
        },
        stored: header.dtype,
    };
    dataset(found, windows, form, &list.labels)
}

/// Reads the beginning of each file, many at once from a store.
fn heads(found: &FoundFiles) -> impl Iterator<Item = Result<Vec<u8>, Error>> {
    let head = |(object, &size): (usize, &u64)| Extent {
        object: object as u32,
        at: 0,
        len: Some(size.min(NPY_HEAD) as u32),
    };
    let parts: Vec<Extent> = found.sizes.iter().enumerate().map(head).collect();
    let heads = found.objects.read_part_heads(&parts, NPY_HEAD);
    heads
        .into_iter()
        .map(|head| head.map_err(Error::from_lower))
}

/// Returns the bytes of a row.
fn row_bytes(header: &NpyHeader) -> Result<u32, Error> {
    let Some((_, row)) = header.shape.split_first() else {
        return Err(invalid("it is a single number, and has no rows").with_remedy("leave it out"));
    };
    let bytes = array_bytes(header.dtype, row);
    match u32::try_from(bytes) {
        Ok(0) => Err(invalid("its rows have no elements").with_remedy("leave it out")),
        Ok(length) if u64::from(length) <= crate::MOST_BYTES => Ok(length),
        _ => Err(invalid(format!(
            "its rows have more than {} bytes, the most that a sample may have",
            crate::MOST_BYTES
        ))
        .with_remedy("write the array with its samples along the first axis")),
    }
}

fn array_bytes(dtype: Dtype, shape: &[u32]) -> u64 {
    let lengths = shape.iter().map(|&length| u64::from(length));
    lengths.fold(dtype.size() as u64, u64::saturating_mul)
}

/// Adds the rows of a file, whose type and row shape must be those of the first file.
fn add_rows(
    windows: &mut Windows,
    first: &NpyHeader,
    header: &NpyHeader,
    size: u64,
) -> Result<(), Error> {
    let shown = |header: &NpyHeader| format!("{} of shape {:?}", header.dtype.name(), header.shape);
    if header.dtype != first.dtype || header.shape.get(1..) != first.shape.get(1..) {
        let what = format!("it holds {}, and the first {}", shown(header), shown(first));
        return Err(invalid(what).with_remedy(
            "all files need one type and one shape of rows: read the others by a loader of their own",
        ));
    }
    let begin = header.data_at as u64;
    let bytes = array_bytes(header.dtype, &header.shape);
    if begin.checked_add(bytes) != Some(size) {
        let what = format!(
            "its header tells of {bytes} bytes of {}, and there are {}",
            shown(header),
            size.saturating_sub(begin)
        );
        return Err(invalid(what).with_remedy("write the file anew: it is cut short or damaged"));
    }
    let count = u64::from(header.shape[0]);
    let last = begin + count.saturating_sub(1) * windows.length();
    windows.push(begin, last, count);
    Ok(())
}

fn find(files: &[String], stores: &Stores) -> Result<FoundFiles, Error> {
    coprep_shards::find_files(files, stores).map_err(Error::from_lower)
}

/// Puts a dataset together. Without `labels` its samples have none.
fn dataset(
    found: FoundFiles,
    windows: Windows,
    form: ArrayForm,
    labels: &[i64],
) -> Result<Dataset, Error> {
    let samples = windows.len();
    if samples == 0 {
        return Err(
            invalid("the files hold no sample").with_remedy("give files with at least one row")
        );
    }
    // Labels are counted by `usize`, and the number of samples is checked against 32 bits afterwards.
    let labels = match labels {
        [] => Labels::Zeros(samples as usize),
        labels if labels.len() as u64 == samples => labels.iter().copied().collect(),
        labels => {
            let what = format!("{samples} rows and {} labels", labels.len());
            return Err(invalid(what).with_remedy("give one label per row, or none"));
        }
    };
    let mut dataset = Dataset::rooted(std::path::Path::new(""));
    dataset.labels = labels;
    dataset.objects = found.objects;
    dataset.places = Places::Windows(windows);
    dataset.array_form = Some(form);
    Ok(dataset)
}
