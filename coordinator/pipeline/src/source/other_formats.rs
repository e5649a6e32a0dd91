//! Formats of files that are given as tokens by mistake.
//!
//! Any bytes may be tokens. So a file counts as one of another format by two signs: its first bytes, and a second one
//! that tokens do not have by chance, such as a field of the header that only a few values are valid for.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::chunks::array;

/// A file of another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherFormat {
    /// A name with its article.
    pub(super) name: &'static str,
    /// The advice to a user who has such a file.
    pub(super) remedy: &'static str,
}

const ZIP: OtherFormat = OtherFormat {
    name: "a zip file, as .npz and .pt files are",
    remedy: "write its tokens by numpy.ndarray.tofile or as a one-dimensional .npy",
};
const GZIP: OtherFormat = OtherFormat {
    name: "a gzip file",
    remedy: "unpack it, because windows are read by themselves",
};
const ZSTD: OtherFormat = OtherFormat {
    name: "a Zstandard file",
    remedy: "unpack it, because windows are read by themselves",
};
const PARQUET: OtherFormat = OtherFormat {
    name: "a parquet file",
    remedy: "write its column of tokens by numpy.ndarray.tofile",
};
const MEGATRON_INDEX: OtherFormat = OtherFormat {
    name: "the index of a Megatron dataset",
    remedy: "give the .bin file beside it",
};
const LLM_C: OtherFormat = OtherFormat {
    name: "a file of llm.c, with a header of 1,024 bytes",
    remedy: "pass offset=1024",
};

/// Returns the format of a file of `size` bytes that begins with `head`, or `None` if it may be tokens. `tail` reads the
/// last bytes of the file, and is called for few files only.
pub(super) fn other_format<E>(
    head: &[u8],
    size: u64,
    tail: impl FnOnce(u32) -> Result<Vec<u8>, E>,
) -> Result<Option<OtherFormat>, E> {
    let found = match head {
        [b'P', b'K', 3, 4, rest @ ..] if is_zip_entry(rest) => Some(ZIP),
        [0x1f, 0x8b, 8, ..] if unpacks(head) => Some(GZIP),
        [0x28, 0xb5, 0x2f, 0xfd, rest @ ..] if has_zstd_block(rest, size) => Some(ZSTD),
        [b'M', b'M', b'I', b'D', b'I', b'D', b'X', 0, 0, rest @ ..] if has_version_1(rest) => {
            Some(MEGATRON_INDEX)
        }
        [b'P', b'A', b'R', b'1', ..] if size >= 12 && ends_as_parquet(&tail(8)?, size) => {
            Some(PARQUET)
        }
        _ if is_llm_c(head, size) => Some(LLM_C),
        _ => None,
    };
    Ok(found)
}

/// Returns `true` if the first entry of a zip file has a known version and a name.
fn is_zip_entry(after_magic: &[u8]) -> bool {
    let number = |at| array(after_magic, at).map(u16::from_le_bytes);
    let (Some(version), Some(length)) = (number(0), number(22)) else {
        return false;
    };
    let name = after_magic.get(26..26 + usize::from(length));
    let is_name = |name: &[u8]| !name.is_empty() && name.iter().all(|&byte| byte >= b' ');
    // Version 6.3 is the newest.
    version & 0xff <= 63 && name.is_some_and(is_name)
}

/// Returns `true` if the first byte of a gzip file can be decompressed.
fn unpacks(head: &[u8]) -> bool {
    GzDecoder::new(head)
        .read(&mut [0])
        .is_ok_and(|read| read == 1)
}

/// Returns `true` if the first block of a Zstandard frame is valid and lies in the file (RFC 8878, section 3.1.1).
fn has_zstd_block(after_magic: &[u8], size: u64) -> bool {
    const MOST_BLOCK: u32 = 128 << 10;
    const RUN: u32 = 1;
    const RESERVED: u32 = 3;
    let Some(&descriptor) = after_magic.first() else {
        return false;
    };
    let is_single = descriptor & 0x20 != 0;
    let window = usize::from(!is_single);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = [usize::from(is_single), 2, 4, 8][usize::from(descriptor >> 6)];
    let at = 1 + window + dictionary + content;
    let Some([a, b, c]) = array(after_magic, at) else {
        return false;
    };
    let block = u32::from_le_bytes([a, b, c, 0]);
    let (kind, length) = (block >> 1 & 3, block >> 3);
    let stored = if kind == RUN { 1 } else { u64::from(length) };
    let is_reserved = descriptor & 8 != 0 || kind == RESERVED;
    !is_reserved && length <= MOST_BLOCK && (4 + at + 3) as u64 + stored <= size
}

fn has_version_1(after_magic: &[u8]) -> bool {
    array(after_magic, 0).map(u64::from_le_bytes) == Some(1)
}

/// Returns `true` if a footer, its length and the magic number end the file.
fn ends_as_parquet(tail: &[u8], size: u64) -> bool {
    let length = array(tail, 0).map(u32::from_le_bytes);
    tail.ends_with(b"PAR1") && length.is_some_and(|length| u64::from(length) + 12 <= size)
}

/// Returns `true` if a file begins with the date that llm.c writes, and has as many tokens as its header says: of 2 bytes
/// for GPT-2, and of 4 for Llama 3.
fn is_llm_c(head: &[u8], size: u64) -> bool {
    let number = |at| array(head, at).map(u32::from_le_bytes);
    let item = match number(0) {
        Some(20_240_520) => 2,
        Some(20_240_801) => 4,
        _ => return false,
    };
    number(8).is_some_and(|tokens| 1024 + u64::from(tokens) * item == size)
}
