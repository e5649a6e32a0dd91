//! The index of a no-eviction cache. It lies next to the payloads, so that another process can take the cache over.
//!
//! ```text
//! segment: | header, one page | index: entries of 56 bytes | payloads, each on a multiple of 64 bytes |
//! ```
//!
//! All numbers are little endian. Index positions are zero at first. They are filled from the start, each after its
//! payload. An entry is an rkyv archive with two checksums: one of the archive, because rkyv's validation is not a
//! checksum, and one of the payload.
//!
//! An entry is dropped if it or its payload differs from the bytes that were written. The position and the room of a
//! dropped entry are used again. So whatever a killed process, a bug or a bit flip leaves in a segment, each entry is
//! either found as it was written or dropped.

use std::collections::{BTreeMap, HashSet};

use rkyv::{Archive, Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::meta::{Form, Meta};

/// The first page of a segment, which describes the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Archive, Serialize, Deserialize)]
pub struct SegmentHeader {
    /// Fingerprint of the inputs that determine the payloads, lower half first.
    pub fingerprint: [u64; 2],
    /// Bytes for payloads.
    pub capacity: u64,
    /// Bytes of the segment.
    pub bytes: u64,
    /// Number of samples. Every id is less.
    pub samples: u32,
    /// Number of entries that the index has room for.
    pub positions: u32,
}

/// Identifies a segment and the version of its format.
const MAGIC: [u8; 8] = *b"CPRPseg2";
const HEADER_ARCHIVE: usize = size_of::<ArchivedSegmentHeader>();
/// Bytes of a header: magic, archive, checksum.
pub const HEADER: usize = 8 + HEADER_ARCHIVE + 8;

/// A header in its binary format.
pub type HeaderBytes = [u8; HEADER];

impl SegmentHeader {
    /// Encodes the header. Returns `None` only if memory is short.
    #[must_use]
    pub fn to_bytes(&self) -> Option<HeaderBytes> {
        let archive = rkyv::to_bytes::<rkyv::rancor::Error>(self).ok()?;
        let archive = archive.get(..HEADER_ARCHIVE)?;
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..8 + HEADER_ARCHIVE].copy_from_slice(archive);
        bytes[8 + HEADER_ARCHIVE..].copy_from_slice(&xxh3_64(archive).to_le_bytes());
        Some(bytes)
    }

    /// Decodes a copy of a segment's first bytes. Returns `None` if they are not a header of this version.
    #[must_use]
    pub fn from_bytes(bytes: &HeaderBytes) -> Option<Self> {
        let archive = &bytes[8..8 + HEADER_ARCHIVE];
        let checksum = xxh3_64(archive).to_le_bytes();
        if bytes[..8] != MAGIC || bytes[8 + HEADER_ARCHIVE..] != checksum {
            return None;
        }
        let archive = AlignedArchive::<HEADER_ARCHIVE>(archive.try_into().ok()?);
        rkyv::from_bytes::<SegmentHeader, rkyv::rancor::Error>(&archive.0).ok()
    }
}

/// Returns the seed of an index's checksums. It differs between datasets, so an entry of another dataset is not valid
/// here.
#[must_use]
pub fn seed(fingerprint: u128) -> u64 {
    fingerprint as u64 ^ (fingerprint >> 64) as u64
}

/// Alignment of payloads, in bytes.
pub const ALIGNMENT: u64 = 64;

/// The index entry of one sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Archive, Serialize, Deserialize)]
pub struct IndexEntry {
    /// Offset of the payload from the start of all payloads.
    pub offset: u64,
    /// Bytes of the payload.
    pub len: u64,
    /// xxh3 checksum of the payload.
    pub payload_checksum: u64,
    /// Version of the file that the sample was made from, or 0.
    pub version: u64,
    /// Id of the sample.
    pub id: u32,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Degree of preparation.
    pub form: Form,
}

/// Bytes of an archived entry.
const ARCHIVE: usize = size_of::<ArchivedIndexEntry>();
/// Bytes of an entry in the index: the archive and its checksum.
pub const ENTRY: usize = ARCHIVE + 8;

/// An entry of the index in its binary format.
pub type EntryBytes = [u8; ENTRY];

/// The bytes of a position that was never written.
pub const EMPTY: EntryBytes = [0; ENTRY];

/// The bytes of a position whose entry was dropped. Even if they are written only in part over an entry, the result is
/// not a valid entry.
pub const DROPPED: EntryBytes = [255; ENTRY];

#[repr(C, align(16))]
struct AlignedArchive<const N: usize>([u8; N]);

impl IndexEntry {
    /// Returns the description of the sample's bytes.
    #[must_use]
    pub fn meta(&self) -> Meta {
        Meta {
            form: self.form,
            width: self.width,
            height: self.height,
            version: self.version,
        }
    }

    /// Encodes the entry for the segment with this `seed`. Returns `None` only if memory is short.
    #[must_use]
    pub fn to_bytes(&self, seed: u64) -> Option<EntryBytes> {
        let archive = rkyv::to_bytes::<rkyv::rancor::Error>(self).ok()?;
        let mut bytes = EMPTY;
        bytes[..ARCHIVE].copy_from_slice(archive.get(..ARCHIVE)?);
        let checksum = checksum(&bytes[..ARCHIVE], seed);
        bytes[ARCHIVE..].copy_from_slice(&checksum.to_le_bytes());
        Some(bytes)
    }

    /// Decodes a copy of the bytes at a position. Returns `None` if the position does not hold an entry as it was
    /// written.
    #[must_use]
    pub fn from_bytes(bytes: &EntryBytes, seed: u64) -> Option<Self> {
        let (archive, written) = bytes.split_at(ARCHIVE);
        if checksum(archive, seed).to_le_bytes() != written {
            return None;
        }
        let archive = AlignedArchive::<ARCHIVE>(archive.try_into().ok()?);
        rkyv::from_bytes::<IndexEntry, rkyv::rancor::Error>(&archive.0).ok()
    }

    /// Returns the end of the payload with its alignment, or `None` if the number overflows.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(extent_len(self.len)?)
    }
}

/// Returns the bytes that a payload of `len` bytes takes with its alignment, or `None` if the number overflows.
#[must_use]
pub fn extent_len(len: u64) -> Option<u64> {
    // An empty payload takes room too. Otherwise it would share its offset with the next payload, and offsets identify
    // entries in `drop_conflicts`.
    len.max(1).checked_next_multiple_of(ALIGNMENT)
}

/// Returns the checksum of an archive. It is never 0, which is the checksum field of [`EMPTY`].
fn checksum(archive: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(archive, seed).max(1)
}

/// Returns the checksum of a payload.
#[must_use]
pub fn payload_checksum(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// The contents of an index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scan {
    /// Valid entries with their positions, sorted by offset. No two overlap, and no two have the same id.
    pub entries: Vec<(u32, IndexEntry)>,
    /// Positions that hold anything else, except entries dropped earlier.
    pub dropped: Vec<u32>,
    /// Positions whose entry was dropped earlier.
    pub vacant: Vec<u32>,
    /// Number of positions from the start up to and including the last one written.
    pub positions: u32,
    /// End of the last payload.
    pub end: u64,
}

/// Limits that a valid entry respects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Number of samples. Every id is less.
    pub samples: u32,
    /// Largest end of a payload.
    pub capacity: u64,
    /// Seed of this segment's checksums, so that an entry of another segment is not taken for one of this.
    pub seed: u64,
}

/// Reads an index and checks checksums, bounds, ids and overlaps. `entries` are copies of the bytes at all positions,
/// in order.
#[must_use]
pub fn scan(entries: impl Iterator<Item = EntryBytes>, bounds: &Bounds) -> Scan {
    let mut scan = Scan::default();
    // Do not stop at the first empty position: if a fault has zeroed one position, the entries after it must still be
    // found.
    for (position, bytes) in (0u32..).zip(entries) {
        if bytes == EMPTY {
            continue;
        }
        scan.positions = position + 1;
        if bytes == DROPPED {
            scan.vacant.push(position);
            continue;
        }
        match IndexEntry::from_bytes(&bytes, bounds.seed).filter(|entry| bounds.admit(entry)) {
            Some(entry) => scan.entries.push((position, entry)),
            None => scan.dropped.push(position),
        }
    }
    scan.drop_conflicts();
    scan
}

impl Bounds {
    /// Returns `true` if an entry respects these limits.
    #[must_use]
    pub fn admit(&self, entry: &IndexEntry) -> bool {
        entry.id < self.samples
            && entry.offset.is_multiple_of(ALIGNMENT)
            && entry.end().is_some_and(|end| end <= self.capacity)
    }
}

impl Scan {
    /// Among entries that overlap or share an id, keeps the one at the last position. There are none unless the segment
    /// was damaged, because an entry is dropped before its room or its id is given out again.
    fn drop_conflicts(&mut self) {
        let mut ids = HashSet::new();
        let mut extents = BTreeMap::new();
        for (position, entry) in std::mem::take(&mut self.entries).into_iter().rev() {
            let end = entry.end().unwrap_or(u64::MAX);
            if is_free(&extents, entry.offset, end) && ids.insert(entry.id) {
                extents.insert(entry.offset, (end, position, entry));
            } else {
                self.dropped.push(position);
            }
        }
        self.end = extents.last_key_value().map_or(0, |(_, &(end, ..))| end);
        self.entries = extents
            .into_values()
            .map(|(_, position, entry)| (position, entry))
            .collect();
    }
}

fn is_free(extents: &BTreeMap<u64, (u64, u32, IndexEntry)>, start: u64, end: u64) -> bool {
    // The extents do not overlap, so the last one that begins before `end` also ends last.
    let before = extents.range(..end).next_back();
    before.is_none_or(|(_, &(end_before, ..))| end_before <= start)
}
