//! The members of a tar file, found by their headers.
//!
//! [`MemberScan`] is a state machine without I/O: it is shown a window of the archive, and names the range of bytes that
//! it needs next. So the contents of members are read only where somebody wants them. Headers are interpreted by the
//! crate `tar`; the chain of headers is followed here, because that crate reads archives from their beginning only.
//!
//! The rules are those of Python's `tarfile`: the archive ends at the first block of zeros or with its last whole
//! member; links, folders and devices have no data, whatever their size field says.

use std::ops::Range;

use coprep_protocol::shard_list::DECOMPRESS;
use tar::{EntryType, Header, PaxExtensions};
use xxhash_rust::xxh3::xxh3_64;

use crate::fault::ShardFault;

/// Size of a block. Headers are one block, and data end with zeros up to the next block.
pub(crate) const BLOCK: u64 = 512;
/// Size of a record. An archive without members has one, of zeros.
const RECORD: u64 = 20 * BLOCK;
/// Most bytes of a long name or a pax header. Real ones have less than a hundredth of this.
const MOST_EXTENSION: u64 = 1 << 20;
/// Byte of the header of a sparse file that says whether its map goes on in the next block, and that byte in such a block.
const SPARSE_CONTINUES: usize = 482;
const SPARSE_GOES_ON: usize = 504;
/// First bytes of compressed files, with the name of the method.
const COMPRESSED: [(&[u8], &str); 5] = [
    (&[0x1f, 0x8b], "gzip"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    (b"BZh", "bzip2"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "xz"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4"),
];

/// A regular file in a tar file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Name with its folders.
    pub(crate) name: Vec<u8>,
    /// Bytes of its content within the archive.
    pub(crate) content: Range<u64>,
    /// XXH3 of its header, or [`UNKNOWN_HEADER`].
    pub(crate) header: u64,
    /// `true` if the content lies in pieces, without the zeros between them.
    pub(crate) is_sparse: bool,
}

/// The hash of a header that was not read.
pub(crate) const UNKNOWN_HEADER: u64 = 0;

/// The bytes of an archive that were read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'a> {
    /// Offset of the first byte.
    pub(crate) at: u64,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Window<'a> {
    /// Returns the bytes of a range, or `None` if they are not all in the window.
    pub(crate) fn get(&self, range: &Range<u64>) -> Option<&'a [u8]> {
        let start = usize::try_from(range.start.checked_sub(self.at)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.at)?).ok()?;
        self.bytes.get(start..end)
    }
}

/// The outcome of a step.
#[derive(Debug)]
pub(crate) enum ScanStep {
    /// The next regular file.
    Member(Member),
    /// Bytes that are needed and not in the window.
    Need(Range<u64>),
    /// The archive has no further member.
    End {
        /// `true` if a block of zeros says so. Otherwise the archive just ends.
        is_marked: bool,
    },
}

/// The map of a sparse file.
enum SparseMap {
    /// It takes this many bytes behind the header.
    Whole { length: u64 },
    /// Bytes that are needed to find its end.
    Need(Range<u64>),
}

/// The position within the chain of headers; see the module.
#[derive(Debug)]
pub(crate) struct MemberScan {
    /// Length of the archive.
    size: u64,
    /// Offset of the next header.
    at: u64,
    /// Fields of the next member that extension headers have set.
    next: NextMember,
}

#[derive(Debug, Default)]
struct NextMember {
    gnu_name: Option<Vec<u8>>,
    pax_name: Option<Vec<u8>>,
    /// The name of a sparse file. Its header and its `path` have another one.
    sparse_name: Option<Vec<u8>>,
    pax_size: Option<u64>,
    is_sparse: bool,
}

impl NextMember {
    /// Returns `true` if a member must follow.
    fn is_announced(&self) -> bool {
        self.gnu_name.is_some()
            || self.pax_name.is_some()
            || self.pax_size.is_some()
            || self.is_sparse
    }
}

impl MemberScan {
    /// Returns a scan from the beginning of an archive of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        MemberScan {
            size,
            at: 0,
            next: NextMember::default(),
        }
    }

    /// Returns the offset of the next header.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Goes on to the next regular file, as far as the window reaches.
    pub(crate) fn step(&mut self, window: &Window<'_>) -> Result<ScanStep, ShardFault> {
        loop {
            // Archives without blocks of zeros at their end exist, and other programs read them.
            if self.at == self.size && self.at > 0 {
                return self.end(false);
            }
            let header = self.range(BLOCK, "a header")?;
            let Some(bytes) = window.get(&header) else {
                return Ok(ScanStep::Need(header));
            };
            if self.at == 0 {
                refuse_compressed(bytes)?;
            }
            if bytes.iter().all(|&byte| byte == 0) {
                return self.end(true);
            }
            let found = ParsedHeader::of(bytes).map_err(|why| self.broken(&why))?;
            let size = self.next.pax_size.unwrap_or(found.size);
            match found.kind {
                HeaderKind::File => return self.file(&found, 0, size).map(ScanStep::Member),
                HeaderKind::Extension(extension) => {
                    // A size in a pax header is that of the file, and not of the headers before the file.
                    let Some(content) = self.extension(found.size, window)? else {
                        return Ok(ScanStep::Need(self.range(BLOCK + found.size, "a header")?));
                    };
                    self.note(extension, content)?;
                    self.skip(found.size)?;
                }
                HeaderKind::Sparse => match self.sparse_map(bytes, window)? {
                    SparseMap::Whole { length } => {
                        self.next.is_sparse = true;
                        return self.file(&found, length, size).map(ScanStep::Member);
                    }
                    SparseMap::Need(range) => return Ok(ScanStep::Need(range)),
                },
                HeaderKind::WithoutData => self.skip_member(0)?,
                HeaderKind::Other => self.skip_member(size)?,
            }
        }
    }

    fn end(&self, is_marked: bool) -> Result<ScanStep, ShardFault> {
        if self.next.is_announced() {
            return Err(self.cut_off("the file that its last header announces"));
        }
        if self.at == 0 && self.size > RECORD {
            let what = "it begins with zeros, and is longer than an empty archive".to_owned();
            return Err(ShardFault::new(what).with_remedy("write or upload it again"));
        }
        Ok(ScanStep::End { is_marked })
    }

    /// Returns the range of the next `length` bytes, which are `what`.
    fn range(&self, length: u64, what: &str) -> Result<Range<u64>, ShardFault> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.size);
        let end = end.ok_or_else(|| self.cut_off(what))?;
        Ok(self.at..end)
    }

    fn cut_off(&self, what: &str) -> ShardFault {
        let what = format!(
            "it is cut off: {what} at byte {} reaches beyond its end, at byte {}",
            self.at, self.size
        );
        ShardFault::new(what).with_remedy("write or upload it again")
    }

    fn broken(&self, why: &str) -> ShardFault {
        let what = format!("its header at byte {} is broken: {why}", self.at);
        ShardFault::new(what)
            .with_remedy("check that it is a tar file, and write or upload it again")
    }

    /// Goes on behind a file, whose data lie `before` bytes behind its header.
    fn file(&mut self, found: &ParsedHeader, before: u64, size: u64) -> Result<Member, ShardFault> {
        let next = std::mem::take(&mut self.next);
        // As in `tarfile`, a pax header overrules.
        let name = next.sparse_name.or(next.pax_name).or(next.gnu_name);
        let name = name.unwrap_or_else(|| found.name.clone());
        let length = before.saturating_add(size);
        let whole = self.range(
            BLOCK.saturating_add(length),
            &String::from_utf8_lossy(&name),
        )?;
        let content = whole.start + BLOCK + before..whole.end;
        self.skip(length)?;
        Ok(Member {
            name,
            content,
            header: found.hash,
            is_sparse: next.is_sparse,
        })
    }

    /// Finds the end of the map of a sparse file in GNU's format, which goes on in blocks behind the header.
    fn sparse_map(&self, header: &[u8], window: &Window<'_>) -> Result<SparseMap, ShardFault> {
        let (mut is_continued, mut length) = (header[SPARSE_CONTINUES] != 0, 0);
        while is_continued {
            if length >= MOST_EXTENSION {
                return Err(self.broken("the map of a sparse file does not end"));
            }
            let whole = self.range(2 * BLOCK + length, "the map of a sparse file")?;
            let Some(block) = window.get(&(whole.end - BLOCK..whole.end)) else {
                return Ok(SparseMap::Need(whole));
            };
            is_continued = block[SPARSE_GOES_ON] != 0;
            length += BLOCK;
        }
        Ok(SparseMap::Whole { length })
    }

    /// Goes beyond a header and `size` bytes of data. An archive may end within the zeros that fill the last block.
    fn skip(&mut self, size: u64) -> Result<(), ShardFault> {
        let whole = self.range(BLOCK.saturating_add(size), "a member")?;
        let next = whole.end.checked_next_multiple_of(BLOCK);
        self.at = next.map_or(self.size, |next| next.min(self.size));
        Ok(())
    }

    fn skip_member(&mut self, size: u64) -> Result<(), ShardFault> {
        self.next = NextMember::default();
        self.skip(size)
    }

    /// Returns the content of an extension header, or `None` if it is not in the window.
    fn extension<'a>(
        &self,
        size: u64,
        window: &Window<'a>,
    ) -> Result<Option<&'a [u8]>, ShardFault> {
        if size > MOST_EXTENSION {
            return Err(self.broken(&format!("an extension of {size} bytes is not plausible")));
        }
        let whole = self.range(BLOCK + size, "a header")?;
        Ok(window.get(&(whole.start + BLOCK..whole.end)))
    }

    fn note(&mut self, extension: Extension, content: &[u8]) -> Result<(), ShardFault> {
        match extension {
            Extension::GnuName => {
                let end = content.iter().position(|&byte| byte == 0);
                self.next.gnu_name = Some(content[..end.unwrap_or(content.len())].to_vec());
            }
            Extension::Pax => self.note_pax(content)?,
            Extension::Ignored => {}
        }
        Ok(())
    }

    fn note_pax(&mut self, content: &[u8]) -> Result<(), ShardFault> {
        for record in PaxExtensions::new(content) {
            let record = record.map_err(|e| self.broken(&e.to_string()))?;
            match record.key_bytes() {
                b"path" => self.next.pax_name = Some(record.value_bytes().to_vec()),
                b"GNU.sparse.name" => {
                    self.next.sparse_name = Some(record.value_bytes().to_vec());
                    self.next.is_sparse = true;
                }
                b"size" => {
                    let size = record.value().ok().and_then(|text| text.parse().ok());
                    let size = size.ok_or_else(|| self.broken("its size is no number"))?;
                    self.next.pax_size = Some(size);
                }
                key if key.starts_with(b"GNU.sparse.") => self.next.is_sparse = true,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A header, as far as it matters here.
struct ParsedHeader {
    kind: HeaderKind,
    name: Vec<u8>,
    size: u64,
    /// XXH3 of the block.
    hash: u64,
}

enum HeaderKind {
    File,
    Extension(Extension),
    Sparse,
    /// Links, folders, devices and pipes.
    WithoutData,
    Other,
}

#[derive(Clone, Copy)]
enum Extension {
    /// The name of the next member.
    GnuName,
    /// Records about the next member.
    Pax,
    /// The target of a link, or records about all members.
    Ignored,
}

impl ParsedHeader {
    /// Parses a block.
    fn of(block: &[u8]) -> Result<ParsedHeader, String> {
        let header = Header::from_byte_slice(block);
        let sum = number(&block[148..156]).ok_or("its checksum is no number")?;
        if !checksums(block).contains(&sum) {
            return Err("its checksum is wrong".into());
        }
        let name = header.path_bytes().into_owned();
        let kind = match header.entry_type() {
            // The format of 1979 had no type for folders. Later ones do, and cut long names, perhaps behind a slash.
            EntryType::Regular if block[156] == 0 && name.ends_with(b"/") => {
                HeaderKind::WithoutData
            }
            EntryType::Regular | EntryType::Continuous => HeaderKind::File,
            EntryType::GNULongName => HeaderKind::Extension(Extension::GnuName),
            EntryType::XHeader => HeaderKind::Extension(Extension::Pax),
            // The letter that Solaris writes.
            kind if kind.as_byte() == b'X' => HeaderKind::Extension(Extension::Pax),
            EntryType::GNULongLink | EntryType::XGlobalHeader => {
                HeaderKind::Extension(Extension::Ignored)
            }
            EntryType::GNUSparse => HeaderKind::Sparse,
            EntryType::Link
            | EntryType::Symlink
            | EntryType::Char
            | EntryType::Block
            | EntryType::Directory
            | EntryType::Fifo => HeaderKind::WithoutData,
            _ => HeaderKind::Other,
        };
        Ok(ParsedHeader {
            kind,
            name,
            size: number(&block[124..136]).ok_or("its size is no number")?,
            hash: xxh3_64(block),
        })
    }
}

/// Returns the sums of a header's bytes, with those of the checksum taken for spaces: without signs, and with signs as some
/// old programs added them. Sums with signs may be negative, and then match no number.
fn checksums(block: &[u8]) -> [u64; 2] {
    let bytes = block[..148].iter().chain(&block[156..]);
    let spaces = 8 * i64::from(b' ');
    let unsigned: i64 = bytes.clone().map(|&byte| i64::from(byte)).sum();
    let signed: i64 = bytes.map(|&byte| i64::from(byte.cast_signed())).sum();
    [unsigned, signed].map(|sum| u64::try_from(sum + spaces).unwrap_or(u64::MAX))
}

/// Returns the number in a field of a header, as `tarfile` reads it: in octal digits, in bytes behind one of 128, or 0 if
/// the field is empty.
fn number(field: &[u8]) -> Option<u64> {
    if let [0x80, bytes @ ..] = field {
        let add = |sum: u64, &byte: &u8| sum.checked_mul(256)?.checked_add(byte.into());
        return bytes.iter().try_fold(0, add);
    }
    let digits = field.split(|&byte| byte == 0).next()?.trim_ascii();
    if digits.is_empty() {
        return Some(0);
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// Returns the hash of a block if it is a header of a file with `length` bytes. Used to check an index that others have
/// made.
pub(crate) fn header_of(block: &[u8], length: u64) -> Option<u64> {
    let header = ParsedHeader::of(block).ok()?;
    let fits = matches!(header.kind, HeaderKind::File) && header.size == length;
    fits.then_some(header.hash)
}

fn refuse_compressed(start: &[u8]) -> Result<(), ShardFault> {
    let found = COMPRESSED
        .iter()
        .find(|(magic, _)| start.starts_with(magic));
    match found {
        Some((_, method)) => {
            let what = format!("it is compressed by {method}");
            Err(ShardFault::new(what).with_remedy(DECOMPRESS))
        }
        None => Ok(()),
    }
}
