//! The pages of a column chunk, within a bound on their memory.
//!
//! The library `parquet` finds the pages. It is told that they are not compressed, and so gives them as they are stored;
//! they are decompressed here. It would take memory for all that a page decompresses to before it compared that with the
//! page's header, and for as many values as a header tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use parquet::basic::{CompressionCodec, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};
use parquet::schema::types::ColumnDescPtr;

use crate::decompress::decompress;

/// Most rows of a row group, and most values of a dictionary. An image has thousands of bytes, so that this is far beyond
/// what is sensible, and a value takes 40 bytes of memory while its group is used.
pub(crate) const MOST_ROWS: u32 = 1 << 22;
/// Fewest bytes of a value in a dictionary page: the length of a binary value, or a number.
const LEAST_VALUE: usize = 4;

/// Returns `true` if values of this encoding are read.
pub(crate) fn is_read(encoding: Encoding) -> bool {
    // The library takes memory for as many values as a page with one of these claims to have. With prefixes, a page of a
    // megabyte can also hold millions of values of a megabyte. Images have no use for either: no writer chooses them by
    // itself for files that others shall read.
    !matches!(
        encoding,
        Encoding::DELTA_BYTE_ARRAY | Encoding::DELTA_LENGTH_BYTE_ARRAY
    )
}

/// Pages of a chunk, which may have `left` more bytes together.
pub(crate) struct BoundedPages {
    stored: SerializedPageReader<StoredChunk>,
    /// The same chunk as in `stored`, which notes the size of the page that was found last.
    chunk: Arc<StoredChunk>,
    codec: CompressionCodec,
    left: u64,
}

impl BoundedPages {
    /// Returns the pages of a chunk with `rows` values. They may have `most` bytes together, decompressed.
    pub(crate) fn of(
        bytes: Bytes,
        column: &ColumnDescPtr,
        codec: CompressionCodec,
        rows: u32,
        most: u64,
    ) -> Result<Self> {
        // The chunk is alone in memory, so that its pages begin at 0.
        let meta = ColumnChunkMetaData::builder(column.clone())
            .set_compression_codec(CompressionCodec::UNCOMPRESSED)
            .set_total_compressed_size(bytes.len() as i64)
            .set_data_page_offset(0)
            .build()?;
        let chunk = Arc::new(StoredChunk {
            bytes,
            page_size: AtomicU64::new(0),
        });
        let stored = SerializedPageReader::new(chunk.clone(), &meta, rows as usize, None)?;
        Ok(BoundedPages {
            stored,
            chunk,
            codec,
            left: most,
        })
    }

    /// Decompresses the page that was found last.
    fn decompress(&mut self, page: &mut Page) -> Result<()> {
        let (buf, levels, is_compressed) = match page {
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => (buf, 0, true),
            // Its levels lie before the values, and are never compressed.
            Page::DataPageV2 {
                buf,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed,
                ..
            } => {
                let levels = u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len);
                (buf, levels, *is_compressed)
            }
        };
        // Such a page is a part of the chunk, and takes no memory of its own.
        if self.codec == CompressionCodec::UNCOMPRESSED || !is_compressed {
            return Ok(());
        }
        let size = self.chunk.page_size.load(Ordering::Relaxed);
        let left = self.left.checked_sub(size);
        self.left = left.ok_or_else(|| ParquetError::General("its pages are too large".into()))?;
        let (size, levels) = (size as usize, levels as usize);
        if levels > size || levels > buf.len() {
            let what = "the levels of a page are longer than the page";
            return Err(ParquetError::General(what.into()));
        }
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(&buf[..levels]);
        // A page without values may have no bytes, which would be no frame of its codec.
        if size > levels {
            decompress(self.codec, &buf[levels..], &mut bytes, size - levels)
                .map_err(ParquetError::General)?;
        }
        *buf = bytes.into();
        Ok(())
    }
}

/// Returns an error if the library would take too much memory for a page.
fn check(page: &Page) -> Result<()> {
    match page {
        Page::DictionaryPage {
            buf, num_values, ..
        } if *num_values > MOST_ROWS || *num_values as usize > buf.len() / LEAST_VALUE => {
            let (values, bytes) = (num_values, buf.len());
            let what = format!("its dictionary claims to have {values} values in {bytes} bytes");
            Err(ParquetError::General(what))
        }
        Page::DictionaryPage { .. } => Ok(()),
        Page::DataPage { encoding, .. } | Page::DataPageV2 { encoding, .. } => {
            if is_read(*encoding) {
                return Ok(());
            }
            let what = format!("a page has the encoding {encoding}, which is not read");
            Err(ParquetError::General(what))
        }
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(mut page) = self.stored.get_next_page()? else {
            return Ok(None);
        };
        self.decompress(&mut page)?;
        check(&page)?;
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.stored.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.stored.skip_next_page()
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// A chunk in memory, as it is stored.
struct StoredChunk {
    bytes: Bytes,
    /// Decompressed size of the page whose header was read last. The library keeps it to itself.
    page_size: AtomicU64,
}

impl Length for StoredChunk {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl ChunkReader for StoredChunk {
    type T = bytes::buf::Reader<Bytes>;

    /// Called at the header of each page, before the library asks for the bytes of that page.
    fn get_read(&self, start: u64) -> Result<Self::T> {
        let rest = usize::try_from(start)
            .ok()
            .filter(|&at| at <= self.bytes.len());
        let rest = rest.map(|at| self.bytes.slice(at..));
        let rest = rest.ok_or_else(|| ParquetError::EOF("a page lies behind its chunk".into()))?;
        let size = page_size(&rest);
        let size = size.ok_or_else(|| ParquetError::General("a page has no header".into()))?;
        self.page_size.store(size, Ordering::Relaxed);
        Ok(rest.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let end = start
            .checked_add(length)
            .filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| ParquetError::EOF("a page lies behind its chunk".into()))?;
        Ok(self.bytes.slice(start..end))
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
