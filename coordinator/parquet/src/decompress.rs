//! Decompresses pages, each within the size that its header tells.

use std::io::{Cursor, Read};

use flate2::read::MultiGzDecoder;
use lz4_flex::block::decompress_into;
use lz4_flex::frame::FrameDecoder;
use parquet::basic::CompressionCodec;

/// Appends the content of a page to `into`, which is exactly `size` bytes long. Takes no more memory, whatever the bytes
/// decompress to.
///
/// # Errors
/// If the content is damaged, or has another size. What is wrong, in words.
pub(crate) fn decompress(
    codec: CompressionCodec,
    stored: &[u8],
    into: &mut Vec<u8>,
    size: usize,
) -> Result<(), String> {
    let start = into.len();
    match codec {
        CompressionCodec::UNCOMPRESSED => into.extend_from_slice(stored),
        CompressionCodec::SNAPPY => snappy(stored, into, size)?,
        CompressionCodec::GZIP => bounded(MultiGzDecoder::new(stored), into, size)?,
        CompressionCodec::ZSTD => zstd(stored, into, size)?,
        CompressionCodec::LZ4 => lz4(stored, into, size)?,
        CompressionCodec::LZ4_RAW => lz4_block(stored, into, size)?,
        _ => return Err(format!("{codec:?} is not supported")),
    }
    let read = into.len() - start;
    if read == size {
        Ok(())
    } else {
        Err(format!(
            "a page has {read} bytes, and its header says {size}"
        ))
    }
}

fn snappy(stored: &[u8], into: &mut Vec<u8>, size: usize) -> Result<(), String> {
    let told = snap::raw::decompress_len(stored).map_err(|e| e.to_string())?;
    if told != size {
        return Err(format!(
            "a page has {told} bytes, and its header says {size}"
        ));
    }
    let room = grown(into, size);
    let mut decoder = snap::raw::Decoder::new();
    let read = decoder.decompress(stored, room);
    read.map(|_| ()).map_err(|e| e.to_string())
}

fn zstd(stored: &[u8], into: &mut Vec<u8>, size: usize) -> Result<(), String> {
    let start = into.len() as u64;
    into.reserve_exact(size);
    let mut at = Cursor::new(into);
    at.set_position(start);
    let decoder = zstd::bulk::Decompressor::new();
    // It writes into the room that there is, and reads no further.
    let read = decoder.and_then(|mut decoder| decoder.decompress_to_buffer(stored, &mut at));
    read.map(|_| ()).map_err(|e| e.to_string())
}

/// Decompresses what the format calls `LZ4`, which three programs have understood differently: blocks in the framing of
/// Hadoop, LZ4's own frames, or one block.
fn lz4(stored: &[u8], into: &mut Vec<u8>, size: usize) -> Result<(), String> {
    let start = into.len();
    if hadoop_blocks(stored, grown(into, size)).is_some() {
        return Ok(());
    }
    into.truncate(start);
    let frames = bounded(FrameDecoder::new(stored), into, size);
    if frames.is_ok() && into.len() == start + size {
        return Ok(());
    }
    into.truncate(start);
    lz4_block(stored, into, size)
}

/// Decompresses blocks with their lengths before them, decompressed and compressed. Returns `None` if these are none, or
/// do not fill the room exactly.
fn hadoop_blocks(mut stored: &[u8], mut into: &mut [u8]) -> Option<()> {
    while !stored.is_empty() {
        let (length, rest) = stored.split_first_chunk()?;
        let (stored_length, rest) = rest.split_first_chunk()?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, rest) = rest.split_at_checked(u32::from_be_bytes(*stored_length) as usize)?;
        let (room, room_left) = into.split_at_mut_checked(length)?;
        if decompress_into(block, room).ok()? != length {
            return None;
        }
        (stored, into) = (rest, room_left);
    }
    into.is_empty().then_some(())
}

fn lz4_block(stored: &[u8], into: &mut Vec<u8>, size: usize) -> Result<(), String> {
    let start = into.len();
    let read = decompress_into(stored, grown(into, size)).map_err(|e| e.to_string())?;
    into.truncate(start + read);
    Ok(())
}

/// Appends what a decoder gives, which may be `size` bytes.
fn bounded(mut decoder: impl Read, into: &mut Vec<u8>, size: usize) -> Result<(), String> {
    into.reserve_exact(size);
    let read = decoder.by_ref().take(size as u64).read_to_end(into);
    // The decoder compares its checksum only when it is asked for more than there is.
    match read.and_then(|_| decoder.read(&mut [0])) {
        Ok(0) => Ok(()),
        Ok(_) => Err(format!(
            "a page has more bytes than the {size} that its header says"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Appends zeros, and returns them.
fn grown(into: &mut Vec<u8>, size: usize) -> &mut [u8] {
    let start = into.len();
    into.resize(start + size, 0);
    &mut into[start..]
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::GzEncoder;
    use lz4_flex::frame::FrameEncoder;

    use super::*;

    const SIZE: usize = 40_000;

    fn content() -> Vec<u8> {
        (0..SIZE).map(|at| (at / 100) as u8).collect()
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(content).expect("it is written");
        encoder.finish().expect("it is written")
    }

    fn lz4_frame(content: &[u8]) -> Vec<u8> {
        let mut encoder = FrameEncoder::new(Vec::new());
        encoder.write_all(content).expect("it is written");
        encoder.finish().expect("it is written")
    }

    fn hadoop(content: &[u8], block_length: usize) -> Vec<u8> {
        let block = |plain: &[u8]| {
            let stored = lz4_flex::block::compress(plain);
            let lengths = [plain.len() as u32, stored.len() as u32].map(u32::to_be_bytes);
            [&lengths.concat()[..], &stored].concat()
        };
        content.chunks(block_length).flat_map(block).collect()
    }

    /// Returns the content by every codec and framing.
    fn stored(content: &[u8]) -> Vec<(CompressionCodec, Vec<u8>)> {
        let raw = lz4_flex::block::compress(content);
        let snappy = snap::raw::Encoder::new().compress_vec(content);
        vec![
            (CompressionCodec::SNAPPY, snappy.expect("it is written")),
            (CompressionCodec::GZIP, gzip(content)),
            // Several members, one after another, are one content.
            (
                CompressionCodec::GZIP,
                [gzip(&content[..7]), gzip(&content[7..])].concat(),
            ),
            (
                CompressionCodec::ZSTD,
                zstd::bulk::compress(content, 1).expect("it is written"),
            ),
            (CompressionCodec::LZ4, hadoop(content, content.len())),
            (CompressionCodec::LZ4, hadoop(content, 1000)),
            (CompressionCodec::LZ4, lz4_frame(content)),
            (CompressionCodec::LZ4, raw.clone()),
            (CompressionCodec::LZ4_RAW, raw),
        ]
    }

    #[test]
    fn every_codec_and_framing_is_read_behind_what_was_there() {
        let content = content();
        for (codec, stored) in stored(&content) {
            let mut into = b"levels".to_vec();
            decompress(codec, &stored, &mut into, SIZE).expect("it is whole");
            assert_eq!(into[..6], *b"levels");
            assert!(into[6..] == content, "{codec:?}");
        }
    }

    #[test]
    fn content_of_another_size_is_refused_without_memory_for_it() {
        for (codec, stored) in stored(&content()) {
            for size in [1, SIZE - 1, SIZE + 1] {
                let mut into = Vec::new();
                let refused = decompress(codec, &stored, &mut into, size);
                assert!(refused.is_err(), "{codec:?} {size}");
                assert!(
                    into.capacity() < size + 100,
                    "{codec:?} {size}: {}",
                    into.capacity()
                );
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_take_no_more_memory_than_their_size(
            bytes in proptest::collection::vec(0u8.., 0..300),
            kind in 0usize..9,
            at in 0usize..60,
            size in 0usize..3000,
        ) {
            let (codec, mut stored) = stored(&content()).swap_remove(kind);
            let end = (at + bytes.len()).min(stored.len());
            let at = at.min(end);
            stored[at..end].copy_from_slice(&bytes[..end - at]);
            let mut into = Vec::new();
            let _ = decompress(codec, &stored, &mut into, size);
            proptest::prop_assert!(into.capacity() < size + 100);
        }
    }
}
