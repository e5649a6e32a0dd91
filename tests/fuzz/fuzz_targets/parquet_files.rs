//! Fuzzes the opening of a parquet file with any content, and the reading of its rows.
//!
//! Neither may panic, or take more memory than the bound on a column chunk. The library `parquet` may panic over bytes
//! that are inconsistent, which `coprep-parquet` turns into an error.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use coprep_parquet::open_within;
use coprep_protocol::spec::ParquetFiles;
use coprep_storage::{ObjectTable, local_identity};
use libfuzzer_sys::fuzz_target;
use parquet::basic::{Compression, Encoding, GzipLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

/// Most bytes of a chunk.
const MOST: u64 = 1 << 20;
/// Rows that are read of each file. A footer may tell of millions.
const ROWS: u64 = 16;

fuzz_target!(init: begin(), |data: &[u8]| {
    let scratch = tempfile::tempdir().expect("a folder");
    let path = scratch.path().join("x.parquet");
    std::fs::write(&path, data).expect("a file");
    let identity = local_identity(&path).expect("it is there");
    let name = path.to_str().expect("it is text").to_owned();
    let mut objects = ObjectTable::local(Path::new(""));
    objects.push_shard(name.as_bytes(), identity.size, &identity.etag);
    objects.remember_replaced();
    let list = ParquetFiles {
        files: vec![name],
        image: "image".into(),
        label: Some("label".into()),
    };
    let Ok(opened) = open_within(&list, &objects, &[identity.size], MOST, &mut |_| true) else {
        return;
    };
    for id in 0..opened.rows.rows().min(ROWS) as u32 {
        let _ = opened.rows.name(id);
        let _ = opened.rows.read(&objects, id, <[u8]>::len);
    }
});

/// Leaves panics that are caught alone. The hook of libFuzzer would end the process before they are; a panic that is not
/// caught still ends it.
fn begin() {
    coprep_fuzz::seed(&seeds());
    let _hook = std::panic::take_hook();
}

/// Returns small files: uncompressed, by codecs that tell no size, and with the encodings that are refused.
fn seeds() -> Vec<Vec<u8>> {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::LZ4,
    ];
    let compressed = codecs.map(|codec| written(codec, None));
    let encodings = [Encoding::PLAIN, Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY];
    let encoded = encodings.map(|encoding| written(Compression::UNCOMPRESSED, Some(encoding)));
    [&compressed[..], &encoded].concat()
}

/// Returns a file whose images have an encoding, or lie in a dictionary.
fn written(codec: Compression, encoding: Option<Encoding>) -> Vec<u8> {
    let schema = "message m { optional group image { optional binary bytes; } optional int64 label; }";
    let schema = Arc::new(parse_message_type(schema).expect("it is a schema"));
    let mut properties = WriterProperties::builder().set_compression(codec);
    if let Some(encoding) = encoding {
        let images = ColumnPath::new(vec!["image".to_owned(), "bytes".to_owned()]);
        properties = properties.set_dictionary_enabled(false).set_column_encoding(images, encoding);
    }
    let properties = Arc::new(properties.build());
    let mut file = SerializedFileWriter::new(Vec::new(), schema, properties).expect("a writer");
    for first in [0, 2] {
        let mut group = file.next_row_group().expect("a row group");
        let mut images = group.next_column().expect("a column").expect("the first");
        let values: Vec<ByteArray> = (first..first + 2).map(|row| vec![row; 9].into()).collect();
        let levels = [2, 2];
        let typed = images.typed::<ByteArrayType>();
        typed.write_batch(&values, Some(&levels), None).expect("it is written");
        images.close().expect("it is closed");
        let mut labels = group.next_column().expect("a column").expect("the second");
        let values = [i64::from(first), 7];
        let typed = labels.typed::<Int64Type>();
        typed.write_batch(&values, Some(&[1, 1]), None).expect("it is written");
        labels.close().expect("it is closed");
        group.close().expect("it is closed");
    }
    file.into_inner().expect("it is written")
}
