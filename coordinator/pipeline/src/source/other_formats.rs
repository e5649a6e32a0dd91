//! Formats of files that are given as tokens by mistake.
//!
//! Any bytes may be tokens. So a file counts as one of another format by six or more first bytes that are given, or by fewer
//! ones and a second sign that tokens do not have by chance, such as a field of the header that only a few values are valid
//! for.

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

const MEGATRON_INDEX: OtherFormat = OtherFormat {
    name: "the index of a Megatron dataset",
    remedy: "give the .bin file beside it",
};
const LLM_C: OtherFormat = OtherFormat {
    name: "a file of llm.c, with a header of 1,024 bytes",
    remedy: "pass offset=1024",
};

const ARROW: &str = "an Arrow or Feather file";
const PICKLE: &str = "a pickle, as .pkl and old .pt files are";

/// Returns a format of packed files.
const fn packed(name: &'static str) -> OtherFormat {
    let remedy = "unpack it, because windows are read by themselves";
    OtherFormat { name, remedy }
}

/// Returns a format of files that hold tokens in a column or an array.
const fn container(name: &'static str) -> OtherFormat {
    let remedy = "write its tokens by numpy.ndarray.tofile or as a one-dimensional .npy";
    OtherFormat { name, remedy }
}

/// Returns the format of a file of `size` bytes that begins with `head`, or `None` if it may be tokens. `tail` reads the
/// last bytes of the file, and is called for few files only.
pub(super) fn other_format<E>(
    head: &[u8],
    size: u64,
    tail: impl Fn(u32) -> Result<Vec<u8>, E>,
) -> Result<Option<OtherFormat>, E> {
    if let Some(found) = format_of_head(head, size) {
        return Ok(Some(found));
    }
    let found = match head {
        [b'P', b'A', b'R', b'1', ..] if has_footer(b"PAR1", size, &tail)? => "a parquet file",
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] if has_footer(b"ARROW1", size, &tail)? => ARROW,
        [b'F', b'E', b'A', b'1', ..] if has_footer(b"FEA1", size, &tail)? => ARROW,
        [0x80, 2..=5, rest @ ..] if begins_as_pickle(rest, size) && tail(1)? == b"." => PICKLE,
        _ => return Ok(None),
    };
    Ok(Some(container(found)))
}

/// Returns the format of a file as its beginning tells.
fn format_of_head(head: &[u8], size: u64) -> Option<OtherFormat> {
    let found = match head {
        [b'P', b'K', 3, 4, rest @ ..] if is_zip_entry(rest) => {
            container("a zip file, as .npz and .pt files are")
        }
        [0x1f, 0x8b, 8, ..] if unpacks(head) => packed("a gzip file"),
        [0x28, 0xb5, 0x2f, 0xfd, rest @ ..] if has_zstd_block(rest, size) => {
            packed("a Zstandard file")
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => packed("an xz file"),
        [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..] if is_bzip2_block(rest) => {
            packed("a bzip2 file")
        }
        [4, 0x22, 0x4d, 0x18, rest @ ..] if has_lz4_block(rest, size) => packed("an LZ4 file"),
        _ if is_tar(head) => packed("a tar file"),
        [0xff, 0xff, 0xff, 0xff, rest @ ..] if is_arrow_schema(rest, size) => container(ARROW),
        [0x89, b'H', b'D', b'F', b'\r', b'\n', 0x1a, b'\n', ..] => container("an HDF5 file"),
        [0x80, 2, rest @ ..] if rest.starts_with(TORCH_MAGIC) => container(PICKLE),
        _ if is_safetensors(head, size) => container("a safetensors file"),
        [b'M', b'M', b'I', b'D', b'I', b'D', b'X', 0, 0, rest @ ..] if has_version_1(rest) => {
            MEGATRON_INDEX
        }
        _ if is_llm_c(head, size) => LLM_C,
        _ => return None,
    };
    Some(found)
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

/// Returns `true` if a block of bzip2 follows, which begins with the digits of pi, or the end of an empty file, with those
/// of its square root.
fn is_bzip2_block(after_magic: &[u8]) -> bool {
    let magic = array(after_magic, 0);
    [*b"1AY&SY", *b"\x17rE8P\x90"].map(Some).contains(&magic)
}

/// Returns `true` if the first block of an LZ4 frame is valid and lies in the file (LZ4 Frame Format, version 1.6).
fn has_lz4_block(after_magic: &[u8], size: u64) -> bool {
    let &[flags, sizes, ..] = after_magic else {
        return false;
    };
    let is_version_1 = flags & 0b1100_0010 == 0b0100_0000;
    let is_block_size = sizes & 0b1000_1111 == 0 && sizes >> 4 >= 4;
    let content = if flags & 0b1000 != 0 { 8 } else { 0 };
    let dictionary = if flags & 1 != 0 { 4 } else { 0 };
    let at = 3 + content + dictionary;
    let Some(block) = array(after_magic, at).map(u32::from_le_bytes) else {
        return false;
    };
    // The upper bit says that the block is stored as it is.
    let length = block & 0x7fff_ffff;
    is_version_1
        && is_block_size
        && length <= 1 << (8 + 2 * (sizes >> 4))
        && (4 + at + 4) as u64 + u64::from(length) <= size
}

/// Returns `true` if the first 512 bytes are a header of tar whose checksum is right.
fn is_tar(head: &[u8]) -> bool {
    let Some(header) = head.first_chunk::<512>() else {
        return false;
    };
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    // The checksum itself counts as eight spaces.
    let stored = &header[148..156];
    let right = sum(header) - sum(stored) + sum(&[b' '; 8]);
    let stored = std::str::from_utf8(stored).unwrap_or_default();
    let stored = u32::from_str_radix(stored.trim_matches([' ', '\0']), 8);
    header[257..].starts_with(b"ustar") && stored == Ok(right)
}

/// Returns `true` if a message of an Arrow stream is a schema: the length of a flatbuffer, the offset of its table, and in
/// the table the offset of its list of fields, of which the second is the kind of the message.
fn is_arrow_schema(message: &[u8], size: u64) -> bool {
    const SCHEMA: u8 = 1;
    let number = |at| array(message, at).map(u32::from_le_bytes);
    let kind = || {
        let table = 4 + number(4)? as usize;
        let fields = (table as u32).wrapping_sub(number(table)?) as usize;
        match array(message, fields)? {
            // The list has two to five fields, after its length and that of the table.
            [8..=14, 0, _, 0, _, 0, at, 0] => message.get(table + usize::from(at)),
            _ => None,
        }
    };
    let fits = |length| length > 0 && length % 8 == 0 && 8 + u64::from(length) <= size;
    number(0).is_some_and(fits) && kind() == Some(&SCHEMA)
}

/// The number that `torch.save` wrote, as a pickle of its own, before it wrote zip files.
const TORCH_MAGIC: &[u8] = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";

/// Returns `true` if the bytes behind the version are those of a pickle. From version 4 on they are a frame, which lies in
/// the file. Earlier pickles begin with a list, a dict, or the module of a class.
fn begins_as_pickle(after_version: &[u8], size: u64) -> bool {
    let is_in_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    match after_version {
        [0x95, rest @ ..] => {
            let frame = array(rest, 0).map(u64::from_le_bytes);
            frame.is_some_and(|length| length.saturating_add(11) <= size)
        }
        [b']' | b'}', b'q', 0, ..] => true,
        [b'c', name @ ..] => {
            name.iter().find(|byte| !is_in_name(byte)) == Some(&b'\n') && name[0] != b'\n'
        }
        _ => false,
    }
}

/// Returns `true` if the length at the beginning is that of a header in JSON that names the type of an array.
fn is_safetensors(head: &[u8], size: u64) -> bool {
    const TYPE: &[u8] = b"\"dtype\"";
    let length = array(head, 0).map(u64::from_le_bytes);
    let fits = length.is_some_and(|length| length.saturating_add(8) <= size);
    let json = head.get(8..).unwrap_or_default();
    fits && json.starts_with(b"{\"") && json.windows(TYPE.len()).any(|part| part == TYPE)
}

fn has_version_1(after_magic: &[u8]) -> bool {
    array(after_magic, 0).map(u64::from_le_bytes) == Some(1)
}

/// Returns `true` if a footer, its length and the magic number end a file, as in parquet and Arrow.
fn has_footer<E>(
    magic: &[u8],
    size: u64,
    tail: impl Fn(u32) -> Result<Vec<u8>, E>,
) -> Result<bool, E> {
    let end = magic.len() + 4;
    let without_footer = (magic.len() + end) as u64;
    if size < without_footer {
        return Ok(false);
    }
    let tail = tail(end as u32)?;
    let footer = array(&tail, 0).map(u32::from_le_bytes);
    let fits = footer.is_some_and(|length| u64::from(length) + without_footer <= size);
    Ok(fits && tail.ends_with(magic))
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
