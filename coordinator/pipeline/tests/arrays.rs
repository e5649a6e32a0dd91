//! Windows of tokens, rows of arrays, and `.npy` files: which bytes are a sample, and which files are refused.

use std::path::Path;

use coprep_pipeline::{Dataset, Error, ErrorKind, Pipeline, SampleKey, Scratch};
use coprep_protocol::spec::{ArrayFiles, Dtype, FileList, Op, Source, Tail, TokenFiles};

const TOKENS: TokenFiles = TokenFiles {
    files: Vec::new(),
    dtype: Dtype::U16,
    out: Dtype::U16,
    window: 4,
    stride: 3,
    offset: None,
    tail: Tail::Drop,
};

/// Writes the tokens 0, 1, 2 ... after a header.
fn write_tokens(path: &Path, header: usize, count: u16) -> String {
    let tokens = (0..count).flat_map(u16::to_le_bytes);
    let bytes: Vec<u8> = vec![0xff; header].into_iter().chain(tokens).collect();
    std::fs::write(path, bytes).expect("the folder is writable");
    path.display().to_string()
}

/// Writes an array of float32 in NumPy's format, version 1. The elements are 0, 1, 2 ...
fn write_npy(path: &Path, shape: &str, count: u16) -> String {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..count).flat_map(|x| f32::from(x).to_le_bytes()));
    std::fs::write(path, bytes).expect("the folder is writable");
    path.display().to_string()
}

/// Prepares a sample as a stream does.
fn prepare(dataset: &Dataset, ops: &[Op], id: u32) -> Result<Vec<u8>, Error> {
    let pipeline = Pipeline::for_dataset(ops, dataset)?;
    let mut encoded = Vec::new();
    dataset.fetch(id, &mut encoded)?;
    let mut slot = vec![0; pipeline.output().sample_bytes()];
    let key = SampleKey::default();
    pipeline.prepare_encoded(&encoded, key, &mut Scratch::new(), || &mut slot)?;
    Ok(slot)
}

fn windows(list: TokenFiles) -> Vec<Vec<u16>> {
    let dataset = Dataset::open(&Source::Tokens(list)).expect("it opens");
    let window = |id| {
        let bytes = prepare(&dataset, &[], id).expect("it is read");
        let (tokens, _) = bytes.as_chunks::<2>();
        tokens
            .iter()
            .map(|&token| u16::from_le_bytes(token))
            .collect()
    };
    (0..dataset.len()).map(window).collect()
}

#[test]
fn windows_begin_at_each_stride_and_the_tail_follows_its_rule() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let files = vec![
        write_tokens(&folder.path().join("a"), 6, 12),
        write_tokens(&folder.path().join("b"), 6, 4),
    ];
    let list = TokenFiles {
        files,
        offset: Some(6),
        ..TOKENS
    };
    let whole = [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9], [0, 1, 2, 3]];
    assert_eq!(windows(list.clone()), whole);
    let tail = Tail::Overlap;
    let overlapping = [&whole[..3], &[[8, 9, 10, 11]], &whole[3..]].concat();
    assert_eq!(windows(TokenFiles { tail, ..list }), overlapping);
}

#[test]
fn a_window_costs_no_memory() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("large");
    let file = std::fs::File::create(&path).expect("the folder is writable");
    file.set_len(2_000_006).expect("holes take no room");
    let list = TokenFiles {
        files: vec![path.display().to_string()],
        stride: 1,
        ..TOKENS
    };
    let dataset = Dataset::open(&Source::Tokens(list)).expect("it opens");
    assert_eq!(dataset.len(), 1_000_000);
    let bytes = dataset.memory_bytes();
    assert!(bytes < 10_000, "{bytes} bytes");
    let name = dataset.path(999_999).display().to_string();
    assert!(name.ends_with("large#bytes1999998-2000006"), "{name}");
}

#[test]
fn a_file_of_tokens_that_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let file = write_tokens(&folder.path().join("a"), 1, 12);
    let open = |list: TokenFiles, part: &str| {
        let files = vec![file.clone()];
        let error = Dataset::open(&Source::Tokens(TokenFiles { files, ..list }));
        let message = error.expect_err("it is refused").to_string();
        assert!(
            message.contains(part) && message.contains(&file),
            "{message}"
        );
    };
    open(TOKENS, "no multiple of the 2 bytes of uint16");
    let (offset, window) = (Some(1), 13);
    open(
        TokenFiles {
            offset,
            window,
            ..TOKENS
        },
        "12 tokens, fewer than window=13",
    );
    open(
        TokenFiles {
            offset: Some(99),
            ..TOKENS
        },
        "fewer than offset=99",
    );
}

/// Returns a `.npy` file of the tokens 0 to 11, of which the header says what is given.
fn npy_tokens(descr: &str, fortran: &str, shape: &str) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let length = (text.len() as u16).to_le_bytes();
    let tokens: Vec<u8> = (0..12u16).flat_map(u16::to_le_bytes).collect();
    [b"\x93NUMPY\x01\0", &length[..], text.as_bytes(), &tokens].concat()
}

#[test]
fn a_one_dimensional_npy_file_is_read_as_its_tokens() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("a.npy");
    let whole = [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]];
    for (fortran, shape) in [
        ("False", "(12,)"),
        ("True", "(12,)"),
        ("False", "(12, 1, 1)"),
        ("True", "(1, 12)"),
        // The two tokens behind the array are left out.
        ("False", "(10,)"),
    ] {
        std::fs::write(&path, npy_tokens("<u2", fortran, shape)).expect("the folder is writable");
        let files = vec![path.display().to_string()];
        assert_eq!(windows(TokenFiles { files, ..TOKENS }), whole, "{shape}");
    }
}

#[test]
fn a_file_of_another_format_is_no_tokens() {
    use std::io::Write;
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("a.bin");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&[7; 100]).expect("memory is writable");
    let zip = b"PK\x03\x04\x2d\0\0\0\0\0\0\0!\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x09\0\0\0arr_0.npy";
    let llm_c = |date: u32, version: u32, item: usize| {
        let head = [date, version, 100].map(u32::to_le_bytes).concat();
        [&head[..], &[0; 1012], &vec![9; 100 * item]].concat()
    };
    let mut tar = [0; 1024];
    tar[..5].copy_from_slice(b"x.bin");
    tar[148..156].copy_from_slice(b"002556\0 ");
    tar[257..265].copy_from_slice(b"ustar\x0000");
    for (file, part) in [
        (
            npy_tokens("<u2", "False", "(3, 4)"),
            "read rows by coprep.Arrays",
        ),
        (npy_tokens("<u4", "False", "(6,)"), "pass dtype=\"uint32\""),
        (npy_tokens("<u2", "False", "(13,)"), "2 bytes lack"),
        (npy_tokens("<f8", "False", "(3,)"), "float64"),
        (npy_tokens(">u2", "False", "(12,)"), "big-endian"),
        (zip.to_vec(), "a zip file"),
        (gzip.finish().expect("memory is writable"), "a gzip file"),
        (
            b"\x28\xb5\x2f\xfd\x20\x04\x21\0\0abcd".to_vec(),
            "a Zstandard file",
        ),
        (b"PAR1........\x04\0\0\0PAR1".to_vec(), "a parquet file"),
        (
            b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08...".to_vec(),
            "give the .bin file",
        ),
        (tar.to_vec(), "a tar file"),
        (
            b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F\x02\0!\x01\x16".to_vec(),
            "an xz file",
        ),
        (b"BZh91AY&SY~\xfb6\xb9".to_vec(), "a bzip2 file"),
        (b"BZh9\x17rE8P\x90\0\0\0\0".to_vec(), "a bzip2 file"),
        (
            b"\x04\"M\x18h@\x07\0\0\0\0\0\0\0\xb0\x07\0\0\x80.......\0\0\0\0".to_vec(),
            "an LZ4 file",
        ),
        (
            b"\x04\"M\x18d@\xa7\x07\0\0\x80.......\0\0\0\0....".to_vec(),
            "an LZ4 file",
        ),
        (
            b"ARROW1\0\0....\x04\0\0\0ARROW1".to_vec(),
            "an Arrow or Feather file",
        ),
        (
            b"FEA1....\x04\0\0\0FEA1".to_vec(),
            "an Arrow or Feather file",
        ),
        (
            b"\xff\xff\xff\xff\x18\0\0\0\x10\0\0\0\0\0\x0a\0\x0c\0\x06\0\x05\0\x08\0\x0a\0\0\0\0\x01\x04\0".to_vec(),
            "an Arrow or Feather file",
        ),
        (
            b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0".to_vec(),
            "an HDF5 file",
        ),
        (
            b"\x89HDF\r\n\x1a\n\x03\x08\x08\0".to_vec(),
            "an HDF5 file",
        ),
        (b"\x80\x02]q\0(K\0K\x01e.".to_vec(), "a pickle"),
        (
            b"\x80\x03cnumpy._core.multiarray\n_reconstruct\nq\0.".to_vec(),
            "a pickle",
        ),
        (
            b"\x80\x04\x95\x0a\0\0\0\0\0\0\0C\x06abcdef\x94.".to_vec(),
            "a pickle",
        ),
        (
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.....".to_vec(),
            "a pickle",
        ),
        (
            b"\x40\0\0\0\0\0\0\0{\"tokens\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[0,4]}}     ....".to_vec(),
            "a safetensors file",
        ),
        (llm_c(20_240_520, 1, 2), "pass offset=1024"),
        (llm_c(20_240_801, 7, 4), "pass offset=1024"),
    ] {
        std::fs::write(&path, &file).expect("the folder is writable");
        let list = TokenFiles {
            files: vec![path.display().to_string()],
            dtype: Dtype::U16,
            ..TOKENS
        };
        let error = Dataset::open(&Source::Tokens(list.clone())).expect_err("it is refused");
        let message = error.to_string();
        assert!(
            message.contains(part) && message.contains("a.bin"),
            "{message}"
        );
        // The bytes are read as they are if that is asked for.
        let (dtype, out, offset) = (Dtype::U8, Dtype::U8, Some(0));
        let asked = TokenFiles {
            dtype,
            out,
            offset,
            ..list
        };
        let bytes = Dataset::open(&Source::Tokens(asked)).expect("any bytes may be tokens");
        assert_eq!(bytes.len() as usize, (file.len() - 4) / 3 + 1);
        // So they are if they begin with the magic number and have no second sign of the format.
        let magic = [&file[..4], &[0xff; 30]].concat();
        std::fs::write(&path, magic).expect("the folder is writable");
        let files = vec![path.display().to_string()];
        assert_eq!(windows(TokenFiles { files, ..TOKENS }).len(), 5, "{part}");
    }
}

#[test]
fn rows_of_arrays_are_samples() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let files = vec![
        write_npy(&folder.path().join("a.npy"), "(3, 2)", 6),
        write_npy(&folder.path().join("b.npy"), "(0, 2)", 1),
        write_npy(&folder.path().join("c.npy"), "(1, 2)", 2),
    ];
    let labels = vec![5, 6, 7, 8];
    let list = ArrayFiles { files, labels };
    let dataset = Dataset::open(&Source::Arrays(list.clone())).expect("it opens");
    let row = |id| prepare(&dataset, &[], id).expect("it is read");
    let expected = |row: [f32; 2]| row.map(f32::to_le_bytes).concat();
    assert_eq!(dataset.len(), 4);
    for (id, values) in [(0, [0.0, 1.0]), (2, [4.0, 5.0]), (3, [0.0, 1.0])] {
        assert_eq!(
            (row(id), dataset.label(id)),
            (expected(values), i64::from(id) + 5)
        );
    }
    assert!(dataset.has_labels());
    let labels = vec![1];
    let error = Dataset::open(&Source::Arrays(ArrayFiles { labels, ..list }));
    let message = error.expect_err("it is refused").to_string();
    assert!(message.contains("4 rows and 1 labels"), "{message}");
}

#[test]
fn arrays_that_differ_or_are_cut_short_are_refused() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let good = write_npy(&path("good.npy"), "(3, 2)", 6);
    for (name, shape, count, part) in [
        ("wide.npy", "(2, 3)", 6, "one shape of rows"),
        ("short.npy", "(3, 2)", 5, "cut short"),
        ("scalar.npy", "()", 1, "one shape of rows"),
    ] {
        let files = vec![good.clone(), write_npy(&path(name), shape, count)];
        let list = ArrayFiles {
            files,
            ..ArrayFiles::default()
        };
        let error = Dataset::open(&Source::Arrays(list)).expect_err("it is refused");
        let message = error.to_string();
        assert!(
            message.contains(part) && message.contains(name),
            "{message}"
        );
    }
}

#[test]
fn each_npy_file_is_a_sample_of_the_form_of_the_first() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let paths = vec![
        write_npy(&path("a.npy"), "(3, 2)", 6),
        write_npy(&path("b.npy"), "(2, 3)", 6),
        write_npy(&path("c.npy"), "(3, 2)", 5),
        // One element more than the header tells, which is left out.
        write_npy(&path("d.npy"), "(3, 2)", 7),
    ];
    let labels = Vec::new();
    let dataset = Dataset::open(&Source::Files(FileList { paths, labels })).expect("it opens");
    let ops = [Op::DecodeNpy];
    let output = Pipeline::for_dataset(&ops, &dataset)
        .expect("valid")
        .output();
    assert_eq!((output.dtype, output.shape), (Dtype::F32, vec![3, 2]));
    let expected: Vec<u8> = (0..6u16).flat_map(|x| f32::from(x).to_le_bytes()).collect();
    assert_eq!(prepare(&dataset, &ops, 3).expect("it is read"), expected);
    let kind = |id| {
        prepare(&dataset, &ops, id)
            .expect_err("it is refused")
            .into_kind()
    };
    assert_eq!(
        (kind(1), kind(2)),
        (ErrorKind::OtherShape, ErrorKind::Damaged)
    );
}
