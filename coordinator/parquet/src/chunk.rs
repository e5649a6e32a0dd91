//! Decodes column chunks that are in memory.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use coprep_storage::Extent;
use parquet::basic::CompressionCodec;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};
use parquet::schema::types::ColumnDescPtr;

use crate::columns::is_unsigned;
use crate::fault::guarded;

/// The place of a column chunk in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) codec: CompressionCodec,
    /// Number of values, null ones included.
    pub(crate) rows: u32,
}

/// A value of a column, or `None` for null.
pub(crate) type Images = Vec<Option<ByteArray>>;

impl ChunkPlace {
    /// Returns the bytes of the chunk in a file.
    pub(crate) fn extent(&self, file: u32) -> Extent {
        Extent {
            object: file,
            at: self.at,
            len: Some(self.len),
        }
    }

    /// Decodes a chunk of binary values. They refer to the decompressed pages. These may take `most` bytes together.
    pub(crate) fn images(
        &self,
        chunk: Bytes,
        column: &ColumnDescPtr,
        most: u64,
    ) -> std::result::Result<Images, String> {
        let values = guarded(|| match self.reader(chunk, column, most)? {
            ColumnReader::ByteArrayColumnReader(reader) => Values::read(reader, column, self.rows),
            _ => Err(ParquetError::General("it is no binary column".into())),
        })?;
        values.spread(|value| value)
    }

    /// Decodes a chunk of integers.
    pub(crate) fn labels(
        &self,
        chunk: Bytes,
        column: &ColumnDescPtr,
        most: u64,
    ) -> std::result::Result<Vec<Option<i64>>, String> {
        let is_unsigned = is_unsigned(column);
        let widened = move |value: i32| {
            if is_unsigned {
                i64::from(value.cast_unsigned())
            } else {
                i64::from(value)
            }
        };
        guarded(|| {
            let spread = match self.reader(chunk, column, most)? {
                ColumnReader::Int64ColumnReader(reader) => {
                    let values = Values::read(reader, column, self.rows)?;
                    if is_unsigned && values.values.iter().any(|&value| value < 0) {
                        return Err(ParquetError::General("a number exceeds 2^63 - 1".into()));
                    }
                    values.spread(|value| value)
                }
                ColumnReader::Int32ColumnReader(reader) => {
                    Values::read(reader, column, self.rows)?.spread(widened)
                }
                ColumnReader::BoolColumnReader(reader) => {
                    Values::read(reader, column, self.rows)?.spread(i64::from)
                }
                _ => Err("it is no column of integers".into()),
            };
            spread.map_err(ParquetError::General)
        })
    }

    fn reader(&self, chunk: Bytes, column: &ColumnDescPtr, most: u64) -> Result<ColumnReader> {
        // The chunk is alone in memory, so that its pages begin at 0.
        let meta = ColumnChunkMetaData::builder(column.clone())
            .set_compression_codec(self.codec)
            .set_total_compressed_size(chunk.len() as i64)
            .set_data_page_offset(0)
            .build()?;
        let chunk = Arc::new(BoundedChunk { chunk, most });
        let inner = SerializedPageReader::new(chunk, &meta, self.rows as usize, None)?;
        let pages = BoundedPages { inner, left: most };
        Ok(get_column_reader(column.clone(), Box::new(pages)))
    }
}

/// The values of a chunk, and which rows have one.
struct Values<T> {
    values: Vec<T>,
    /// For each row, whether it has a value. Empty if all have.
    levels: Vec<i16>,
    max_level: i16,
    rows: usize,
}

impl<T> Values<T> {
    fn read<D: DataType<T = T>>(
        mut reader: ColumnReaderImpl<D>,
        column: &ColumnDescPtr,
        rows: u32,
    ) -> Result<Values<T>>
    where
        T: parquet::data_type::AsBytes,
    {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let rows = rows as usize;
        let (read, ..) = reader.read_records(rows, Some(&mut levels), None, &mut values)?;
        if read != rows {
            return Err(ParquetError::General(format!(
                "it has {read} rows, and its footer says {rows}"
            )));
        }
        Ok(Values {
            values,
            levels,
            max_level: column.max_def_level(),
            rows,
        })
    }

    /// Returns a value or `None` for each row.
    fn spread<Out>(
        self,
        convert: impl Fn(T) -> Out,
    ) -> std::result::Result<Vec<Option<Out>>, String> {
        let mut values = self.values.into_iter().map(convert);
        // A column whose values are required stores no levels.
        let spread: Vec<Option<Out>> = if self.max_level == 0 {
            values.map(Some).collect()
        } else {
            let has_value = |level: &i16| *level == self.max_level;
            let levels = self.levels.iter();
            levels
                .map(|level| has_value(level).then(|| values.next()).flatten())
                .collect()
        };
        if spread.len() == self.rows {
            Ok(spread)
        } else {
            Err("its values are not as many as its rows".into())
        }
    }
}

/// A chunk in memory, whose pages may not claim to be larger than `most` bytes.
struct BoundedChunk {
    chunk: Bytes,
    most: u64,
}

impl Length for BoundedChunk {
    fn len(&self) -> u64 {
        self.chunk.len() as u64
    }
}

impl ChunkReader for BoundedChunk {
    type T = bytes::buf::Reader<Bytes>;

    /// Called at the header of each page. The library takes as much memory as a header says before it decompresses the
    /// page, so the size is looked at here.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let rest = usize::try_from(start)
            .ok()
            .filter(|&at| at <= self.chunk.len());
        let rest = rest.map(|at| self.chunk.slice(at..));
        let rest = rest.ok_or_else(|| ParquetError::EOF("a page lies behind its chunk".into()))?;
        match page_size(&rest) {
            Some(size) if size <= self.most => Ok(rest.reader()),
            Some(size) => Err(ParquetError::General(format!(
                "a page claims to have {size} bytes"
            ))),
            None => Err(ParquetError::General("a page has no header".into())),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let end = start
            .checked_add(length)
            .filter(|&end| end <= self.chunk.len());
        let end = end.ok_or_else(|| ParquetError::EOF("a page lies behind its chunk".into()))?;
        Ok(self.chunk.slice(start..end))
    }
}

/// Returns the decompressed size in the header of a page: a struct in Thrift's compact protocol, whose first fields are
/// the numbers of the page's type and of this size.
fn page_size(header: &[u8]) -> Option<u64> {
    /// The field after the one before, a 32-bit integer.
    const NEXT_I32: u8 = 0x15;
    let mut bytes = header.iter().copied();
    let mut number = || -> Option<u64> {
        if bytes.next()? != NEXT_I32 {
            return None;
        }
        let mut value = 0u64;
        // Five groups of seven bits hold any number of 32 bits. A longer one is no size.
        for shift in (0..35).step_by(7) {
            let byte = bytes.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    };
    let _type = number()?;
    // Zigzag: even numbers are not negative. A negative size is refused by the library.
    Some(number()? >> 1)
}

/// Pages of a chunk, which may have `left` more bytes together.
struct BoundedPages {
    inner: SerializedPageReader<BoundedChunk>,
    left: u64,
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        let bytes = page.as_ref().map_or(0, |page| page.buffer().len() as u64);
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| ParquetError::General("its pages are too large".into()))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_page_is_read_from_its_header() {
        // Type 0, and 300 as a zigzag number of two bytes.
        assert_eq!(page_size(&[0x15, 0, 0x15, 0xd8, 0x04, 0x15]), Some(300));
        assert_eq!(
            page_size(&[0x15, 0, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f]),
            Some((1 << 31) - 1)
        );
        for cut in [
            &[][..],
            &[0x15],
            &[0x15, 0, 0x15, 0x80],
            &[0x05, 0, 0x15, 2],
        ] {
            assert_eq!(page_size(cut), None, "{cut:?}");
        }
        let endless = [0x15, 0, 0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(page_size(&endless), None);
    }
}
