//! Reads the footer of a file: its row groups, and where the chunks of two columns lie.

use std::sync::Mutex;

use bytes::Bytes;
use coprep_protocol::spec::ParquetFiles;
use coprep_shared_memory::lock::lock;
use coprep_storage::{Error, Extent, ObjectTable};
use parquet::basic::CompressionCodec;
use parquet::file::metadata::{
    ColumnChunkMetaData, FooterTail, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::schema::types::ColumnDescPtr;

use crate::chunk::ChunkPlace;
use crate::columns::{class_names, image_column, label_column, only_label};
use crate::fault::{FileFault, guarded};
use crate::pages::{MOST_ROWS, is_read};

/// Bytes that are read first, which hold most footers. A request takes as long as its answer begins, so that fewer bytes
/// would save nothing.
const TAIL: u64 = 64 << 10;
/// Bytes at the end of a file: the length of the footer, and the magic number.
const END: usize = 8;
/// Largest footer that is read. With three columns, that of 10,000 row groups takes 3 MB, and 63 MB with images of 3 kB,
/// which pyarrow puts into statistics. The library takes up to 1.6 GB for a hostile one of 30 MiB.
const MOST_FOOTER: u64 = 64 << 20;
/// Footers from this size on are read one after another, because 64 files may be opened at once.
const HUGE_FOOTER: u64 = 8 << 20;
/// Footers from this size on are parsed one after another. Those of real files are smaller, or parsed within milliseconds.
const LARGE_FOOTER: u64 = 256 << 10;
/// Rows that a file may have beyond its bytes. A few bytes can say that millions of rows have no image, or the same one,
/// and each row takes memory for its label as long as the dataset is open.
const FREE_ROWS: u64 = 1 << 16;

/// The facts about a file that its footer tells.
pub(crate) struct FileFooter {
    pub(crate) image: ColumnDescPtr,
    pub(crate) label: Option<ColumnDescPtr>,
    /// The row groups that have rows.
    pub(crate) groups: Vec<GroupFooter>,
    pub(crate) classes: Option<Vec<String>>,
}

/// A row group.
pub(crate) struct GroupFooter {
    /// Position in the file, counted from 0.
    pub(crate) number: u32,
    pub(crate) image: ChunkPlace,
    /// Bytes of the images, decompressed.
    pub(crate) image_bytes: u64,
    pub(crate) labels: GroupLabels,
}

/// The labels of a row group.
pub(crate) enum GroupLabels {
    /// No labels are used.
    None,
    /// All rows have this label, by the statistics of the chunk.
    Only(i64),
    /// They lie here.
    At(ChunkPlace),
    /// They lie in this chunk, which was read with the footer.
    Read(ChunkPlace, Bytes),
}

/// A file whose footer is read.
pub(crate) struct FooterReader<'a> {
    pub(crate) objects: &'a ObjectTable,
    pub(crate) file: u32,
    pub(crate) size: u64,
    pub(crate) columns: &'a ParquetFiles,
    /// Most bytes of a chunk.
    pub(crate) most: u64,
    /// Held while a large footer is read or parsed.
    pub(crate) large: &'a Mutex<()>,
}

/// The last bytes of a file.
struct Tail {
    at: u64,
    bytes: Bytes,
}

impl FooterReader<'_> {
    pub(crate) fn read(&self) -> Result<FileFooter, Error> {
        let of_file = |fault: FileFault| fault.of(&self.objects.path(self.file).to_string_lossy());
        let mut tail = self.last(TAIL.min(self.size))?;
        let needed = self.footer_bytes(&tail.bytes).map_err(of_file)?;
        let turn = (needed > HUGE_FOOTER).then(|| lock(self.large));
        if needed > tail.bytes.len() as u64 {
            tail = self.last(needed)?;
        }
        let is_large = needed > LARGE_FOOTER;
        let _turn = turn.or_else(|| is_large.then(|| lock(self.large)));
        self.parse(&tail).map_err(of_file)
    }

    fn last(&self, len: u64) -> Result<Tail, Error> {
        let at = self.size - len;
        let mut bytes = Vec::new();
        let extent = Extent {
            object: self.file,
            at,
            len: Some(len as u32),
        };
        self.objects.read_at_opening(extent, &mut bytes)?;
        Ok(Tail {
            at,
            bytes: bytes.into(),
        })
    }

    /// Returns the bytes of the footer with its end.
    fn footer_bytes(&self, tail: &[u8]) -> Result<u64, FileFault> {
        let end = tail.last_chunk::<END>();
        let end = end.and_then(|end| FooterTail::try_new(end).ok());
        let Some(end) = end else {
            return Err(FileFault::damaged(
                "it does not end as a parquet file does: it is cut off, or something else",
            ));
        };
        if end.is_encrypted_footer() {
            return Err(FileFault::new(
                "it is encrypted",
                "decrypt it: encrypted parquet files are not read",
            ));
        }
        let bytes = end.metadata_length() as u64 + END as u64;
        if bytes > self.size {
            return Err(FileFault::damaged("it is shorter than its own footer"));
        }
        if bytes > MOST_FOOTER {
            let what = format!("its footer has {bytes} bytes, more than {MOST_FOOTER}");
            return Err(FileFault::new(what, "write several files"));
        }
        Ok(bytes)
    }

    fn parse(&self, tail: &Tail) -> Result<FileFooter, FileFault> {
        let bytes = self.footer_bytes(&tail.bytes)? as usize;
        let end = tail.bytes.len() - END;
        let footer = &tail.bytes[tail.bytes.len() - bytes..end];
        let meta = guarded(|| ParquetMetaDataReader::decode_metadata(footer))
            .map_err(|why| FileFault::damaged(format!("its footer cannot be read ({why})")))?;
        let schema = meta.file_metadata().schema_descr();
        let image = image_column(schema, &self.columns.image)?;
        let label = self.columns.label.as_ref();
        let label_at = label.map(|name| label_column(schema, name)).transpose()?;
        let mut groups = Vec::with_capacity(meta.num_row_groups());
        for (number, group) in meta.row_groups().iter().enumerate() {
            let found = self.group(number as u32, group, (image, label_at), tail);
            let found = found.map_err(|fault| fault.within(&format!("row group {number}")))?;
            groups.extend(found);
        }
        self.check_rows(&groups)?;
        Ok(FileFooter {
            image: schema.column(image),
            label: label_at.map(|at| schema.column(at)),
            groups,
            classes: self.classes(&meta),
        })
    }

    /// Returns an error if the file claims to have more rows than its bytes can be images of.
    fn check_rows(&self, groups: &[GroupFooter]) -> Result<(), FileFault> {
        let rows: u64 = groups.iter().map(|group| u64::from(group.image.rows)).sum();
        if rows <= self.size + FREE_ROWS {
            return Ok(());
        }
        Err(FileFault::damaged(format!(
            "it claims to have {rows} rows in {} bytes",
            self.size
        )))
    }

    fn classes(&self, meta: &ParquetMetaData) -> Option<Vec<String>> {
        let label = self.columns.label.as_ref()?;
        class_names(meta.file_metadata().key_value_metadata(), label)
    }

    /// Returns what is needed of a row group, or `None` if it has no rows.
    fn group(
        &self,
        number: u32,
        group: &RowGroupMetaData,
        (image, label): (usize, Option<usize>),
        tail: &Tail,
    ) -> Result<Option<GroupFooter>, FileFault> {
        let rows = group.num_rows();
        if rows < 0 {
            return Err(FileFault::damaged(format!("it has {rows} rows")));
        }
        if rows > i64::from(MOST_ROWS) {
            let what = format!("it has {rows} rows, more than {MOST_ROWS}");
            return Err(FileFault::new(what, SMALLER_GROUPS));
        }
        // The chunks of such a group may have no bytes, which `place` would refuse.
        if rows == 0 {
            return Ok(None);
        }
        // A damaged footer may list fewer chunks than the schema has columns.
        let chunk = |at: usize| {
            let chunk = group.columns().get(at);
            chunk.ok_or_else(|| FileFault::damaged("it has fewer chunks than columns"))
        };
        let labels = match label {
            None => GroupLabels::None,
            Some(at) => self.labels(chunk(at)?, rows, tail)?,
        };
        let image = chunk(image)?;
        refuse_encodings(image)?;
        Ok(Some(GroupFooter {
            number,
            image: self.place(image, rows)?,
            image_bytes: image.uncompressed_size().unsigned_abs(),
            labels,
        }))
    }

    fn labels(
        &self,
        chunk: &ColumnChunkMetaData,
        rows: i64,
        tail: &Tail,
    ) -> Result<GroupLabels, FileFault> {
        let place = self.place(chunk, rows)?;
        // Where rows are sorted by class, most groups have one label, and no chunk has to be read for it.
        if let Some(only) = only_label(chunk.statistics(), chunk.column_descr()) {
            return Ok(GroupLabels::Only(only));
        }
        let start = place.at.checked_sub(tail.at).map(|start| start as usize);
        let read = start.filter(|start| start + place.len as usize <= tail.bytes.len());
        Ok(match read {
            // A copy, so that the tail is not held for it.
            Some(start) => {
                let bytes = &tail.bytes[start..start + place.len as usize];
                GroupLabels::Read(place, Bytes::copy_from_slice(bytes))
            }
            None => GroupLabels::At(place),
        })
    }

    /// Returns the place of a chunk, which must lie within the file.
    fn place(&self, chunk: &ColumnChunkMetaData, rows: i64) -> Result<ChunkPlace, FileFault> {
        let column = chunk.column_path().string();
        if chunk.file_path().is_some_and(|path| !path.is_empty()) {
            let what = format!("its column {column} lies in another file");
            return Err(FileFault::new(
                what,
                "name that file, or write all columns into one",
            ));
        }
        if !is_decompressed(chunk.compression_codec()) {
            let what = format!(
                "its column {column} is compressed by {:?}, which is not supported",
                chunk.compression_codec()
            );
            return Err(FileFault::new(
                what,
                "write it uncompressed, or by snappy, zstd, gzip or lz4",
            ));
        }
        // A dictionary page lies before all pages with values. Some older writers say 0 where there is none: no page lies
        // there, because a file begins with its magic number.
        let dictionary_at = chunk.dictionary_page_offset().filter(|&at| at != 0);
        let at = dictionary_at.unwrap_or(chunk.data_page_offset());
        let (len, decompressed) = (chunk.compressed_size(), chunk.uncompressed_size());
        let largest = len.max(decompressed);
        if largest > 0 && largest.unsigned_abs() > self.most {
            let what = format!(
                "its column {column} has {largest} bytes in it, more than {}",
                self.most
            );
            return Err(FileFault::new(what, SMALLER_GROUPS));
        }
        let is_inside = at >= 0
            && len > 0
            && decompressed >= 0
            && at
                .checked_add(len)
                .is_some_and(|end| end.unsigned_abs() <= self.size);
        // Columns of lists are refused, so a chunk has one value for each row.
        if !is_inside || chunk.num_values() != rows {
            let what = format!("the place or the length of its column {column} makes no sense");
            return Err(FileFault::damaged(what));
        }
        Ok(ChunkPlace {
            at: at.unsigned_abs(),
            len: u32::try_from(len).unwrap_or(u32::MAX),
            codec: chunk.compression_codec(),
            rows: rows as u32,
        })
    }
}

/// Remedy for a row group that is too large to be read at once.
const SMALLER_GROUPS: &str =
    "write the file with smaller row groups, such as row_group_size=100 in pyarrow";

/// Returns an error if a chunk of images has pages of an encoding that is not read.
fn refuse_encodings(chunk: &ColumnChunkMetaData) -> Result<(), FileFault> {
    let Some(encoding) = chunk.encodings().find(|&encoding| !is_read(encoding)) else {
        return Ok(());
    };
    let column = chunk.column_path().string();
    let what =
        format!("its column {column} is written with the encoding {encoding}, which is not read");
    Err(FileFault::new(
        what,
        "write the column with PLAIN or dictionary encoding, as pyarrow and Spark do by themselves, and DuckDB with \
         parquet_version v1",
    ))
}

/// Returns `true` if chunks that were compressed in this way can be read.
fn is_decompressed(codec: CompressionCodec) -> bool {
    use CompressionCodec as Codec;
    matches!(
        codec,
        Codec::UNCOMPRESSED
            | Codec::SNAPPY
            | Codec::GZIP
            | Codec::LZ4
            | Codec::LZ4_RAW
            | Codec::ZSTD
    )
}
