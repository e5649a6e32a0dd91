//! Opening of token files and of `.npy` files whose rows are samples: sizes and headers are read, and no sample.

use coprep_protocol::spec::{ArrayFiles, Dtype, Field, Tail, TokenFiles};
use coprep_shards::FoundFiles;
use coprep_storage::{Extent, Stores};

use super::labels::Labels;
use super::other_formats::other_format;
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
    let places = token_places(list, &found)?;
    for ((path, &size), (begin, end)) in list.files.iter().zip(&found.sizes).zip(places) {
        let of_file = |error: Error| error.within(format!("the file {path}"));
        let tokens = token_count(list, begin, end.unwrap_or(size)).map_err(of_file)?;
        let (count, last) = place(list, tokens).map_err(of_file)?;
        windows.push(begin, begin + last * item, count);
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

/// Returns where the tokens of each file begin, and where they end if that is not the end of the file. Where no offset
/// is given, the beginning of each file is looked at.
fn token_places(list: &TokenFiles, found: &FoundFiles) -> Result<Vec<(u64, Option<u64>)>, Error> {
    if let Some(offset) = list.offset {
        return Ok(vec![(offset, None); list.files.len()]);
    }
    let look = |(number, head): (usize, Result<Vec<u8>, Error>)| {
        let place = look_for_tokens(list, found, number, &head?);
        place.map_err(|error| error.within(format!("the file {}", list.files[number])))
    };
    heads(found).enumerate().map(look).collect()
}

/// Tells where the tokens of a file lie that begins with `head`: in a `.npy` file behind its header.
///
/// # Errors
/// If it is a file of another format.
fn look_for_tokens(
    list: &TokenFiles,
    found: &FoundFiles,
    number: usize,
    head: &[u8],
) -> Result<(u64, Option<u64>), Error> {
    let size = found.sizes[number];
    if npy::is_npy(head) {
        let header = npy::header(head)?;
        let end = end_of_tokens(list, &header, size)?;
        return Ok((header.data_at as u64, Some(end)));
    }
    let tail = |length: u32| {
        let extent = Extent {
            object: number as u32,
            at: size - u64::from(length),
            len: Some(length),
        };
        let mut tails = found.objects.read_part_heads(&[extent], length.into());
        tails.remove(0).map_err(Error::from_lower)
    };
    match other_format(head, size, tail)? {
        None => Ok((0, None)),
        Some(other) => Err(
            invalid(format!("it is {}", other.name)).with_remedy(format!(
                "{}; offset=0 reads the bytes as they are",
                other.remedy
            )),
        ),
    }
}

/// Returns the end of the tokens in a `.npy` file, which must be one-dimensional and of the given type.
fn end_of_tokens(list: &TokenFiles, header: &NpyHeader, size: u64) -> Result<u64, Error> {
    let NpyHeader { dtype, shape, .. } = header;
    let what = format!("it is an array of {} of shape {shape:?}", dtype.name());
    if !npy::has_one_dimension(shape) {
        return Err(invalid(what).with_remedy(
            "tokens have one dimension: read rows by coprep.Arrays; offset=0 reads the bytes as they are",
        ));
    }
    if *dtype != list.dtype {
        let what = format!("{what}, and dtype={:?}", list.dtype.name());
        return Err(invalid(what).with_remedy(format!("pass dtype={:?}", dtype.name())));
    }
    let end = (header.data_at as u64).saturating_add(array_bytes(*dtype, shape));
    if end > size {
        let what = format!("{what}, of which {} bytes lack", end - size);
        return Err(invalid(what).with_remedy("write the file anew: it is cut short"));
    }
    Ok(end)
}

/// Returns the number of tokens between two offsets of a file.
fn token_count(list: &TokenFiles, begin: u64, end: u64) -> Result<u64, Error> {
    let item = list.dtype.size() as u64;
    let Some(bytes) = end.checked_sub(begin) else {
        let what = format!("it has {end} bytes, fewer than offset={begin}");
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
    // Bytes behind the array are left out, as by `numpy.load`.
    if begin.saturating_add(bytes) > size {
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
