//! Files written by the library's writer: every codec and encoding, nested columns, and files that cannot be used.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use coprep_parquet::{MOST_CHUNK, OpenParquet, ReadFailure, open, open_within};
use coprep_protocol::spec::ParquetFiles;
use coprep_storage::{Error, ErrorKind, ObjectTable, local_identity};
use parquet::basic::{
    Compression, ConvertedType, Encoding, GzipLevel, Repetition, Type as PhysicalType, ZstdLevel,
};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::metadata::{
    ColumnChunkMetaData, KeyValue, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
    RowGroupMetaDataBuilder,
};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, Type as SchemaType};

const NESTED: &str = "message m { optional group image { optional binary bytes; optional binary path (STRING); } optional int64 label; }";
const HUGGING_FACE: &str =
    r#"{"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}"#;

/// An image of a row: bytes of its own, of a length of its own.
fn image(row: usize) -> Vec<u8> {
    let seed = row as u8;
    (0..200 + 13 * (row % 50))
        .map(|at| seed.wrapping_mul(31) ^ (at as u8))
        .collect()
}

fn write_images(group: &mut SerializedRowGroupWriter<'_, Vec<u8>>, images: &[Option<Vec<u8>>]) {
    let mut column = group.next_column().unwrap().unwrap();
    let levels: Vec<i16> = images
        .iter()
        .map(|i| if i.is_some() { 2 } else { 1 })
        .collect();
    let values: Vec<ByteArray> = images.iter().flatten().map(|i| i.clone().into()).collect();
    let typed = column.typed::<ByteArrayType>();
    typed.write_batch(&values, Some(&levels), None).unwrap();
    column.close().unwrap();
    let mut paths = group.next_column().unwrap().unwrap();
    let none = vec![1; images.len()];
    paths
        .typed::<ByteArrayType>()
        .write_batch(&[], Some(&none), None)
        .unwrap();
    paths.close().unwrap();
}

fn write_labels(group: &mut SerializedRowGroupWriter<'_, Vec<u8>>, labels: &[Option<i64>]) {
    let mut column = group.next_column().unwrap().unwrap();
    let levels: Vec<i16> = labels.iter().map(|l| i16::from(l.is_some())).collect();
    let values: Vec<i64> = labels.iter().flatten().copied().collect();
    let typed = column.typed::<Int64Type>();
    typed.write_batch(&values, Some(&levels), None).unwrap();
    column.close().unwrap();
}

/// Rows of a row group, with labels.
type Group = Vec<(Option<Vec<u8>>, Option<i64>)>;

/// Returns `groups` groups of `rows` rows, the label of each being its number modulo 7.
fn groups(groups: usize, rows: usize) -> Vec<Group> {
    let row = |row: usize| (Some(image(row)), Some(row as i64 % 7));
    let group = |group: usize| (group * rows..(group + 1) * rows).map(row).collect();
    (0..groups).map(group).collect()
}

/// Returns a file in the layout of Hugging Face.
fn written(properties: WriterPropertiesBuilder, groups: &[Group]) -> Vec<u8> {
    let metadata = vec![KeyValue::new(
        "huggingface".to_owned(),
        HUGGING_FACE.to_owned(),
    )];
    let properties = properties.set_key_value_metadata(Some(metadata)).build();
    let schema = Arc::new(parse_message_type(NESTED).unwrap());
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    for rows in groups {
        let mut group = file.next_row_group().unwrap();
        let (images, labels): (Vec<_>, Vec<_>) = rows.iter().cloned().unzip();
        write_images(&mut group, &images);
        write_labels(&mut group, &labels);
        group.close().unwrap();
    }
    file.into_inner().unwrap()
}

/// Returns the column that has the images.
fn bytes_column() -> ColumnPath {
    ColumnPath::new(vec!["image".to_owned(), "bytes".to_owned()])
}

/// Files in a folder of their own.
struct Files {
    folder: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    fn of(contents: &[Vec<u8>]) -> Files {
        let folder = tempfile::tempdir().unwrap();
        let path = |(number, content): (usize, &Vec<u8>)| {
            let path = folder.path().join(format!("x{number}.parquet"));
            std::fs::write(&path, content).unwrap();
            path
        };
        let paths = contents.iter().enumerate().map(path).collect();
        Files { folder, paths }
    }

    fn objects(&self) -> (ObjectTable, Vec<u64>) {
        let mut objects = ObjectTable::local(Path::new(""));
        let mut sizes = Vec::new();
        for path in &self.paths {
            let identity = local_identity(path).unwrap();
            objects.push_shard(
                path.to_str().unwrap().as_bytes(),
                identity.size,
                &identity.etag,
            );
            sizes.push(identity.size);
        }
        objects.remember_replaced();
        (objects, sizes)
    }

    fn list(&self, image: &str, label: Option<&str>) -> ParquetFiles {
        let names = self
            .paths
            .iter()
            .map(|path| path.to_str().unwrap().to_owned());
        ParquetFiles {
            files: names.collect(),
            image: image.to_owned(),
            label: label.map(str::to_owned),
        }
    }

    fn open(&self, image: &str, label: Option<&str>) -> Result<(OpenParquet, ObjectTable), Error> {
        let (objects, sizes) = self.objects();
        let opened = open(&self.list(image, label), &objects, &sizes, &mut |_| true)?;
        Ok((opened, objects))
    }

    fn refused(&self, image: &str, label: Option<&str>) -> String {
        let refused = self.open(image, label).expect_err("it is refused");
        assert_eq!(*refused.kind(), ErrorKind::Invalid);
        let text = refused.to_string();
        assert!(
            text.contains(self.folder.path().to_str().unwrap()),
            "{text}"
        );
        text
    }
}

fn read(opened: &OpenParquet, objects: &ObjectTable, id: u32) -> Result<Vec<u8>, ReadFailure> {
    opened.rows.read(objects, id, <[u8]>::to_vec)
}

fn damage_of(failure: ReadFailure) -> String {
    match failure {
        ReadFailure::Damaged(what) => what,
        ReadFailure::Storage(error) => panic!("{error}"),
    }
}

fn codecs() -> [Compression; 6] {
    [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ]
}

#[test]
fn rows_of_every_codec_and_encoding_are_those_that_were_written() {
    let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
    let (mut contents, mut total) = (Vec::new(), 0);
    for codec in codecs() {
        for version in versions {
            for dictionary in [true, false] {
                let properties = WriterProperties::builder()
                    .set_compression(codec)
                    .set_writer_version(version)
                    .set_dictionary_enabled(dictionary)
                    .set_column_encoding(bytes_column(), Encoding::PLAIN)
                    // Several pages in a chunk.
                    .set_data_page_size_limit(2000)
                    .set_write_batch_size(8);
                contents.push(written(properties, &groups(3, 20)));
                total += 60;
            }
        }
    }
    let files = Files::of(&contents);
    let (opened, objects) = files.open("image", Some("label")).unwrap();
    assert_eq!(opened.rows.rows(), total);
    assert_eq!(opened.classes, ["cat", "dog"]);
    for id in 0..total as u32 {
        let row = id as usize % 60;
        assert_eq!(
            read(&opened, &objects, id).unwrap(),
            image(row),
            "sample {id}"
        );
        assert_eq!(opened.labels[id as usize], row as i64 % 7);
    }
    assert_eq!(opened.rows.name(61), "row1");
    let ends = opened.rows.group_ends();
    assert_eq!(ends[..4], [20, 40, 60, 80]);
    assert!(opened.rows.memory_bytes() as u64 <= 40 * total);
}

#[test]
fn a_column_is_named_by_its_path_and_labels_may_be_left_out() {
    let files = Files::of(&[written(WriterProperties::builder(), &groups(1, 5))]);
    let (opened, objects) = files.open("image.bytes", None).unwrap();
    assert_eq!(read(&opened, &objects, 4).unwrap(), image(4));
    assert!(opened.labels.is_empty() && opened.classes.is_empty());
}

#[test]
fn labels_of_a_group_with_one_class_are_those_of_the_statistics() {
    let one: Group = (0..9).map(|row| (Some(image(row)), Some(3))).collect();
    let content = written(WriterProperties::builder(), &[one]);
    let (opened, _) = Files::of(&[content]).open("image", Some("label")).unwrap();
    assert_eq!(opened.labels, [3; 9]);
}

#[test]
fn a_null_is_an_error_of_its_row_and_the_others_are_read() {
    let mut rows = groups(2, 4);
    rows[1][2].0 = None;
    let files = Files::of(&[written(WriterProperties::builder(), &rows)]);
    let (opened, objects) = files.open("image", None).unwrap();
    let what = damage_of(read(&opened, &objects, 6).unwrap_err());
    assert!(
        what.starts_with("row 2 of row group 1 of ") && what.ends_with("is null"),
        "{what}"
    );
    assert_eq!(read(&opened, &objects, 7).unwrap(), image(7));
    rows[0][3].1 = None;
    let files = Files::of(&[written(WriterProperties::builder(), &rows)]);
    let text = files.refused("image", Some("label"));
    assert!(
        text.contains("row group 0: the label of its row 3 is null"),
        "{text}"
    );
}

#[test]
fn files_that_cannot_be_used_are_named_with_a_remedy() {
    let content = written(WriterProperties::builder(), &groups(2, 30));
    let mut encrypted = content.clone();
    let end = encrypted.len();
    encrypted[end - 4..].copy_from_slice(b"PARE");
    for (content, image, label, part) in [
        (
            b"".to_vec(),
            "image",
            None,
            "does not end as a parquet file does",
        ),
        (
            content[..end - 9].to_vec(),
            "image",
            None,
            "does not end as a parquet file does",
        ),
        (
            content[end - 100..].to_vec(),
            "image",
            None,
            "shorter than its own footer",
        ),
        (encrypted, "image", None, "is encrypted"),
        (
            content.clone(),
            "picture",
            None,
            "no column picture for image=, but image.bytes, image.path, label",
        ),
        (
            content.clone(),
            "image",
            Some("class"),
            "no column class for label=",
        ),
        (
            content.clone(),
            "label",
            None,
            "holds int64, and images are binary",
        ),
        (content.clone(), "image.path", None, "holds text"),
        (
            content.clone(),
            "image",
            Some("image.bytes"),
            "labels are integers",
        ),
        (
            written(WriterProperties::builder(), &[]),
            "image",
            None,
            "has no rows",
        ),
    ] {
        let text = Files::of(&[content]).refused(image, label);
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn dates_and_times_of_older_writers_are_no_labels() {
    for converted in [
        ConvertedType::DATE,
        ConvertedType::TIME_MILLIS,
        ConvertedType::TIME_MICROS,
        ConvertedType::TIMESTAMP_MILLIS,
        ConvertedType::TIMESTAMP_MICROS,
    ] {
        let physical = match converted {
            ConvertedType::DATE | ConvertedType::TIME_MILLIS => PhysicalType::INT32,
            _ => PhysicalType::INT64,
        };
        let label =
            SchemaType::primitive_type_builder("label", physical).with_converted_type(converted);
        let image = SchemaType::primitive_type_builder("image", PhysicalType::BYTE_ARRAY);
        let fields = vec![
            Arc::new(image.build().unwrap()),
            Arc::new(label.build().unwrap()),
        ];
        let schema = SchemaType::group_type_builder("m").with_fields(fields);
        let schema = Arc::new(schema.build().unwrap());
        let properties = Arc::new(WriterProperties::builder().build());
        let file = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
        let text = Files::of(&[file.into_inner().unwrap()]).refused("image", Some("label"));
        let said = format!("holds {converted:?}, and labels are integers").to_lowercase();
        assert!(text.contains(&said), "{said}: {text}");
    }
}

/// Returns the labels of a file whose column of labels has a type, and these numbers stored in 32 bits.
fn labels_of_type(converted: ConvertedType, stored: &[i32]) -> Vec<i64> {
    let field = |name, physical, converted| {
        let field = SchemaType::primitive_type_builder(name, physical)
            .with_converted_type(converted)
            .with_repetition(Repetition::REQUIRED);
        Arc::new(field.build().unwrap())
    };
    let fields = vec![
        field("image", PhysicalType::BYTE_ARRAY, ConvertedType::NONE),
        field("label", PhysicalType::INT32, converted),
    ];
    let schema = SchemaType::group_type_builder("m").with_fields(fields);
    let schema = Arc::new(schema.build().unwrap());
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let images = vec![ByteArray::from("x"); stored.len()];
    let typed = column.typed::<ByteArrayType>();
    typed.write_batch(&images, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let typed = column.typed::<Int32Type>();
    typed.write_batch(stored, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    let files = Files::of(&[file.into_inner().unwrap()]);
    files.open("image", Some("label")).unwrap().0.labels
}

#[test]
fn a_label_beyond_its_type_has_the_lower_bits_as_in_pyarrow() {
    let stored = [0x0f00_0001, 0x1234_5678, 0xff, -1, 7];
    for (converted, expected) in [
        (ConvertedType::UINT_8, [1, 0x78, 255, 255, 7]),
        (ConvertedType::UINT_16, [1, 0x5678, 255, 65_535, 7]),
        (ConvertedType::INT_8, [1, 0x78, -1, -1, 7]),
        (ConvertedType::INT_16, [1, 0x5678, 255, -1, 7]),
        (
            ConvertedType::UINT_32,
            [0x0f00_0001, 0x1234_5678, 255, 0xffff_ffff, 7],
        ),
        (ConvertedType::NONE, [0x0f00_0001, 0x1234_5678, 255, -1, 7]),
    ] {
        assert_eq!(labels_of_type(converted, &stored), expected, "{converted}");
        // Statistics tell the label of a group with one class.
        let only = labels_of_type(converted, &stored[..1]);
        assert_eq!(only, expected[..1], "{converted}");
    }
}

/// Returns a file whose only row group is described by another footer.
fn with_footer(
    content: &[u8],
    change: impl Fn(RowGroupMetaDataBuilder, Vec<ColumnChunkMetaData>) -> RowGroupMetaData,
) -> Vec<u8> {
    with_groups(content, |group| {
        let columns = group.columns().to_vec();
        vec![change(group.into_builder(), columns)]
    })
}

/// Returns a file whose footer has other row groups, which are made of the first one.
fn with_groups(
    content: &[u8],
    groups: impl Fn(RowGroupMetaData) -> Vec<RowGroupMetaData>,
) -> Vec<u8> {
    let content = bytes::Bytes::copy_from_slice(content);
    let meta = ParquetMetaDataReader::new()
        .parse_and_finish(&content)
        .unwrap();
    let groups = groups(meta.row_group(0).clone());
    let meta = meta.into_builder().set_row_groups(groups).build();
    let end: [u8; 8] = *content.last_chunk().unwrap();
    let footer = u32::from_le_bytes(*end.first_chunk().unwrap()) as usize + end.len();
    let mut changed = content[..content.len() - footer].to_vec();
    ParquetMetaDataWriter::new(&mut changed, &meta)
        .finish()
        .unwrap();
    changed
}

#[test]
fn a_negative_number_of_rows_is_damage() {
    let content = written(WriterProperties::builder(), &groups(1, 30));
    let damaged = with_footer(&content, |group, _| group.set_num_rows(-1).build().unwrap());
    let text = Files::of(&[damaged]).refused("image", None);
    assert!(
        text.contains("row group 0: it has -1 rows") && !text.contains("smaller row groups"),
        "{text}"
    );
}

#[test]
fn a_dictionary_page_at_0_is_none() {
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    let content = written(properties, &groups(1, 30));
    let with_zero = with_footer(&content, |group, columns| {
        let zero = |column: ColumnChunkMetaData| {
            let column = column.into_builder();
            column.set_dictionary_page_offset(Some(0)).build().unwrap()
        };
        let columns = columns.into_iter().map(zero).collect();
        group.set_column_metadata(columns).build().unwrap()
    });
    let (opened, objects) = Files::of(&[with_zero])
        .open("image", Some("label"))
        .unwrap();
    assert_eq!(read(&opened, &objects, 3).unwrap(), image(3));
}

#[test]
fn encodings_that_are_not_read_are_named_with_the_column() {
    for encoding in [
        Encoding::DELTA_BYTE_ARRAY,
        Encoding::DELTA_LENGTH_BYTE_ARRAY,
    ] {
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_column_encoding(bytes_column(), encoding);
        let content = written(properties, &groups(1, 5));
        let text = Files::of(std::slice::from_ref(&content)).refused("image", None);
        let said =
            format!("row group 0: its column image.bytes is written with the encoding {encoding}");
        assert!(
            text.contains(&said) && text.contains("PLAIN or dictionary encoding"),
            "{text}"
        );
        // A footer may be silent about it.
        let silent = with_footer(&content, |group, columns| {
            let plain = |column: ColumnChunkMetaData| {
                let mask =
                    parquet::basic::EncodingMask::new_from_encodings([Encoding::PLAIN].iter());
                let column = column.into_builder().set_encodings_mask(mask);
                column.build().unwrap()
            };
            let columns = columns.into_iter().map(plain).collect();
            group.set_column_metadata(columns).build().unwrap()
        });
        let (opened, objects) = Files::of(&[silent]).open("image", None).unwrap();
        let what = damage_of(read(&opened, &objects, 0).unwrap_err());
        assert!(what.contains(&format!("the encoding {encoding}")), "{what}");
    }
}

/// Returns `count` row groups that each claim to have `rows` rows, in the place of one.
fn repeated(group: &RowGroupMetaData, count: usize, rows: i64) -> Vec<RowGroupMetaData> {
    let of_rows = |column: &ColumnChunkMetaData| {
        let column = column.clone().into_builder().set_num_values(rows);
        column.build().unwrap()
    };
    let columns = group.columns().iter().map(of_rows).collect();
    let group = group.clone().into_builder().set_num_rows(rows);
    let group = group.set_column_metadata(columns).build().unwrap();
    vec![group; count]
}

/// Returns a file whose rows all have the label 3, as its statistics tell.
fn of_one_class() -> Vec<u8> {
    let rows: Group = (0..9).map(|row| (Some(image(row)), Some(3))).collect();
    written(WriterProperties::builder(), &[rows])
}

#[test]
fn a_file_with_more_rows_than_bytes_is_refused_before_labels_take_memory() {
    let content = with_groups(&of_one_class(), |group| repeated(&group, 300, 1 << 22));
    let text = Files::of(&[content]).refused("image", Some("label"));
    assert!(
        text.contains("it claims to have 1258291200 rows in"),
        "{text}"
    );
}

#[test]
fn more_rows_than_ids_are_refused_before_labels_take_memory() {
    let content = with_groups(&of_one_class(), |group| repeated(&group, 1025, 1 << 22));
    let files = Files::of(std::slice::from_ref(&content));
    let footer = u32::from_le_bytes(content[content.len() - 8..][..4].try_into().unwrap());
    // A hole before the footer, which takes no room on a disk.
    let file = std::fs::File::options().write(true).open(&files.paths[0]);
    let (file, footer) = (file.unwrap(), footer as usize + 8);
    let end = &content[content.len() - footer..];
    std::os::unix::fs::FileExt::write_all_at(&file, end, 5 << 30).unwrap();
    let text = files.refused("image", Some("label"));
    assert!(
        text.contains("it has 4299161600 rows, more than 4294967295"),
        "{text}"
    );
}

#[test]
fn a_file_of_ten_thousand_row_groups_is_opened() {
    let content = with_groups(&of_one_class(), |group| repeated(&group, 10_000, 9));
    let files = Files::of(std::slice::from_ref(&content));
    let (opened, objects) = files.open("image", Some("label")).unwrap();
    assert_eq!(opened.labels, vec![3; 90_000]);
    assert_eq!(read(&opened, &objects, 89_999).unwrap(), image(8));
}

#[test]
fn a_footer_that_is_too_large_is_refused_before_it_is_read() {
    let files = Files::of(&[Vec::new()]);
    let file = std::fs::File::options().write(true).open(&files.paths[0]);
    let file = file.unwrap();
    file.set_len(1 << 30).unwrap();
    let end = [&(1u32 << 29).to_le_bytes()[..], b"PAR1"].concat();
    std::os::unix::fs::FileExt::write_all_at(&file, &end, (1 << 30) - 8).unwrap();
    let text = files.refused("image", None);
    assert!(
        text.contains("its footer has 536870920 bytes, more than"),
        "{text}"
    );
}

#[test]
fn a_row_group_that_is_too_large_is_refused_before_memory_is_taken() {
    let files = Files::of(&[written(WriterProperties::builder(), &groups(1, 40))]);
    let (objects, sizes) = files.objects();
    let list = files.list("image", None);
    let refused = open_within(&list, &objects, &sizes, 10_000, &mut |_| true);
    let text = refused.expect_err("it is refused").to_string();
    assert!(
        text.contains("row group 0") && text.contains("smaller row groups"),
        "{text}"
    );
    assert!(open_within(&list, &objects, &sizes, MOST_CHUNK, &mut |_| true).is_ok());
}

#[test]
fn a_damaged_page_is_an_error_of_its_group_and_is_not_read_for_each_row() {
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let mut content = written(properties, &groups(2, 10));
    // The first page of the first group begins behind the magic number.
    content[4..60].fill(0xff);
    let files = Files::of(&[content]);
    let (opened, objects) = files.open("image", None).unwrap();
    for id in 0..10 {
        let what = damage_of(read(&opened, &objects, id).unwrap_err());
        assert!(
            what.starts_with("row group 0 of ") && what.contains("cannot be decoded"),
            "{what}"
        );
        // It stays the same error after the file has gone.
        if id == 0 {
            assert_eq!(read(&opened, &objects, 10).unwrap(), image(10));
            std::fs::remove_file(&files.paths[0]).unwrap();
        }
    }
}

#[test]
fn a_file_that_was_replaced_is_an_error_of_storage() {
    let content = written(WriterProperties::builder(), &groups(2, 10));
    let files = Files::of(std::slice::from_ref(&content));
    let (opened, objects) = files.open("image", None).unwrap();
    std::fs::write(&files.paths[0], &content[1..]).unwrap();
    let failure = read(&opened, &objects, 0).unwrap_err();
    assert!(matches!(failure, ReadFailure::Storage(e) if *e.kind() == ErrorKind::Changed));
}

#[test]
fn opening_ends_when_nobody_waits() {
    let content = written(WriterProperties::builder(), &groups(1, 2));
    let files = Files::of(&[content.clone(), content]);
    let (objects, sizes) = files.objects();
    let opened = open(&files.list("image", None), &objects, &sizes, &mut |_| false);
    assert!(opened.unwrap_err().to_string().contains("nobody waits"));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

    #[test]
    fn no_damage_makes_it_panic(
        damage in proptest::collection::vec((0usize..1 << 20, 0u8..), 1..8),
        codec in 0usize..6,
    ) {
        let codec = codecs()[codec];
        let mut content = written(WriterProperties::builder().set_compression(codec), &groups(2, 4));
        let len = content.len();
        damage.iter().for_each(|(at, byte)| content[at % len] ^= byte);
        let files = Files::of(&[content]);
        let (objects, sizes) = files.objects();
        let list = files.list("image", Some("label"));
        let opened = open_within(&list, &objects, &sizes, 1 << 20, &mut |_| true);
        if let Ok(opened) = opened {
            // A damaged footer may tell of many rows.
            for id in 0..opened.rows.rows().min(20) as u32 {
                let _ = read(&opened, &objects, id);
            }
        }
    }
}
