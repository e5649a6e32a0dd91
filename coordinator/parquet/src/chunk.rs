//! Decodes column chunks that are in memory.

use bytes::Bytes;
use coprep_storage::Extent;
use parquet::basic::CompressionCodec;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::ColumnDescPtr;

use crate::columns::{is_unsigned, narrowed};
use crate::fault::guarded;
use crate::pages::BoundedPages;

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
        guarded(|| {
            let spread = match self.reader(chunk, column, most)? {
                ColumnReader::Int64ColumnReader(reader) => {
                    let values = Values::read(reader, column, self.rows)?;
                    if is_unsigned(column) && values.values.iter().any(|&value| value < 0) {
                        return Err(ParquetError::General("a number exceeds 2^63 - 1".into()));
                    }
                    values.spread(|value| value)
                }
                ColumnReader::Int32ColumnReader(reader) => {
                    Values::read(reader, column, self.rows)?.spread(|value| narrowed(value, column))
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
        let pages = BoundedPages::of(chunk, column, self.codec, self.rows, most)?;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::basic::Type;
    use parquet::schema::types::{ColumnDescriptor, ColumnPath, Type as SchemaType};

    use super::*;

    /// Returns a number of a header.
    fn number(value: u64) -> Vec<u8> {
        let (mut bytes, mut rest) = (vec![0x15], value << 1);
        while rest > 0x7f {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
        bytes
    }

    /// Returns a page: its type, the size that it claims, the field of its own header, and the numbers in that.
    fn page((kind, claimed): (u64, u64), field: u8, numbers: &[u64], content: &[u8]) -> Vec<u8> {
        let own: Vec<u8> = numbers.iter().flat_map(|&value| number(value)).collect();
        let lengths = [number(kind), number(claimed), number(content.len() as u64)].concat();
        // Fields are counted from the one before, the third. A zero ends a struct.
        let begin = [(field - 3) << 4 | 0xc];
        [&lengths, &begin[..], &own, &[0, 0], content].concat()
    }

    fn dictionary(values: u64, claimed: u64, content: &[u8]) -> Vec<u8> {
        page((2, claimed), 7, &[values, 0], content)
    }

    fn data(values: u64, encoding: u64, content: &[u8]) -> Vec<u8> {
        page(
            (0, content.len() as u64),
            5,
            &[values, encoding, 3, 3],
            content,
        )
    }

    fn refused(codec: CompressionCodec, chunk: Vec<u8>) -> String {
        let place = ChunkPlace {
            at: 0,
            len: chunk.len() as u32,
            codec,
            rows: 3,
        };
        let column = SchemaType::primitive_type_builder("image", Type::BYTE_ARRAY);
        let column = Arc::new(column.build().expect("it is a type"));
        let column = ColumnDescriptor::new(column, 0, 0, ColumnPath::from("image"));
        let images = place.images(chunk.into(), &Arc::new(column), 1 << 20);
        images.expect_err("it is refused")
    }

    #[test]
    fn a_dictionary_that_claims_more_values_than_its_bytes_hold_is_refused() {
        let plain = CompressionCodec::UNCOMPRESSED;
        for values in [3, (1 << 31) - 1] {
            let text = refused(plain, dictionary(values, 8, &[0; 8]));
            let said = format!("its dictionary claims to have {values} values in 8 bytes");
            assert!(text.contains(&said), "{text}");
        }
        let content = snap::raw::Encoder::new().compress_vec(&[0; 1 << 20]);
        let content = content.expect("it is written");
        // Two values, and no page with rows behind them.
        let text = refused(CompressionCodec::SNAPPY, dictionary(2, 1 << 20, &content));
        assert!(text.contains("it has 0 rows"), "{text}");
    }

    #[test]
    fn pages_that_claim_more_than_the_bound_together_are_refused_before_they_are_decompressed() {
        let content = snap::raw::Encoder::new().compress_vec(&[0; 8]);
        let content = content.expect("it is written");
        let text = refused(
            CompressionCodec::SNAPPY,
            dictionary(2, (1 << 20) + 1, &content),
        );
        assert!(text.contains("its pages are too large"), "{text}");
        let text = refused(CompressionCodec::SNAPPY, dictionary(2, 1 << 20, &content));
        assert!(
            text.contains("a page has 8 bytes, and its header says 1048576"),
            "{text}"
        );
    }

    #[test]
    fn a_count_of_values_that_is_not_that_of_the_page_takes_no_memory() {
        // Blocks of 128 values, 4 in each, and 2^38 values.
        let count = [&[0x80, 1, 4][..], &[0x80; 5], &[8, 0], &[0; 20]].concat();
        for encoding in [6, 7] {
            let text = refused(CompressionCodec::UNCOMPRESSED, data(3, encoding, &count));
            assert!(text.contains("which is not read"), "{text}");
        }
    }
}
