//! The index of a no-eviction cache: what is written next to the payloads, so that another process can take
//! the cache over.
//!
//! ```text
//! segment: | header, one page | index: entries of 48 bytes | payloads, each on a multiple of 64 bytes |
//! ```
//!
//! All numbers are little endian. A place of the index is zero until an entry is written there, each after its
//! payload, from the start. An entry that is not what it was, or whose payload is not, is dropped; a dropped place, and
//! the room of the payload, are used again. An entry is an rkyv archive
//! with a checksum of its own (validation is no checksum) and one of its payload. Whatever a death, a bug
//! or a bit flip leaves there, an entry is either found as it was written or dropped.

use std::collections::{BTreeMap, HashSet};

use rkyv::{Archive, Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::Meta;

/// What a segment is, in its first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Archive, Serialize, Deserialize)]
pub struct SegmentHeader {
    /// What makes the payloads what they are; the lower half first.
    pub fingerprint: [u64; 2],
    /// Bytes of payloads.
    pub capacity: u64,
    /// Bytes of the segment.
    pub bytes: u64,
    /// Ids are less.
    pub samples: u32,
    /// Places of the index.
    pub places: u32,
}

/// Tells a segment, and the version of its format.
const MAGIC: [u8; 8] = *b"CPRPseg1";
const HEADER_ARCHIVE: usize = size_of::<ArchivedSegmentHeader>();
/// Bytes of a header: magic, archive, checksum.
pub const HEADER: usize = 8 + HEADER_ARCHIVE + 8;

/// A header as it lies in a segment.
pub type HeaderBytes = [u8; HEADER];

impl SegmentHeader {
    /// As it lies in a segment. None only if memory is short.
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

    /// From a copy of a segment's first bytes; None if it is not one of this version.
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

/// How far a sample in the cache is prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Archive, Serialize, Deserialize)]
#[repr(u8)]
pub enum Form {
    /// As fetched.
    Encoded = 0,
    /// After decoding and the deterministic operators.
    Decoded = 1,
    /// After everything: as it lies in a staging buffer.
    Prepared = 2,
}

impl Form {
    /// How many forms there are.
    pub const COUNT: usize = 3;
}

/// Payloads start on multiples of this.
pub const ALIGNMENT: u64 = 64;

/// One sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Archive, Serialize, Deserialize)]
pub struct IndexEntry {
    /// From the start of the payloads to its payload.
    pub offset: u64,
    /// Bytes of the payload.
    pub len: u64,
    /// xxh3 of the payload.
    pub payload_checksum: u64,
    /// Sample.
    pub id: u32,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// How far it is prepared.
    pub form: Form,
}

/// Bytes of the archive of an entry.
const ARCHIVE: usize = size_of::<ArchivedIndexEntry>();
/// Bytes of an entry in the index: the archive, and its checksum.
pub const ENTRY: usize = ARCHIVE + 8;

/// An entry as it lies in the index.
pub type EntryLocation = [u8; ENTRY];

/// A place where nothing was ever written.
pub const EMPTY: EntryLocation = [0; ENTRY];

/// A place whose entry was dropped. Written over it in part, it is no entry either.
pub const DROPPED: EntryLocation = [255; ENTRY];

#[repr(C, align(16))]
struct AlignedArchive<const N: usize>([u8; N]);

impl IndexEntry {
    /// What to store it as.
    #[must_use]
    pub fn meta(&self) -> Meta {
        Meta {
            form: self.form,
            width: self.width,
            height: self.height,
        }
    }

    /// As it lies in the index of the segment with this `seed`. None only if memory is short.
    #[must_use]
    pub fn to_place(&self, seed: u64) -> Option<EntryLocation> {
        let archive = rkyv::to_bytes::<rkyv::rancor::Error>(self).ok()?;
        let mut place = EMPTY;
        place[..ARCHIVE].copy_from_slice(archive.get(..ARCHIVE)?);
        let checksum = checksum(&place[..ARCHIVE], seed);
        place[ARCHIVE..].copy_from_slice(&checksum.to_le_bytes());
        Some(place)
    }

    /// From a copy of a place; None if it is not what was once written there.
    #[must_use]
    pub fn from_place(place: &EntryLocation, seed: u64) -> Option<Self> {
        let (archive, written) = place.split_at(ARCHIVE);
        if checksum(archive, seed).to_le_bytes() != written {
            return None;
        }
        let archive = AlignedArchive::<ARCHIVE>(archive.try_into().ok()?);
        rkyv::from_bytes::<IndexEntry, rkyv::rancor::Error>(&archive.0).ok()
    }

    /// Where the payload ends, alignment included; None if nowhere.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(extent_len(self.len)?)
    }
}

/// Bytes that a payload of `len` bytes takes.
#[must_use]
pub fn extent_len(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(ALIGNMENT)
}

/// The checksum of an archive. Never that of [`EMPTY`], whose checksum is zero.
fn checksum(archive: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(archive, seed).max(1)
}

/// The checksum of a payload.
#[must_use]
pub fn payload_checksum(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// What an index says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scan {
    /// Valid entries with their places, by offset. No two overlap, no two have the same id.
    pub entries: Vec<(u32, IndexEntry)>,
    /// Places that hold something else, but for those dropped before.
    pub dropped: Vec<u32>,
    /// Places whose entry was dropped before.
    pub vacant: Vec<u32>,
    /// Places that were written, from the start.
    pub places: u32,
    /// Where the last payload ends.
    pub end: u64,
}

/// What an index must satisfy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Ids are less.
    pub samples: u32,
    /// Payloads end here at the latest.
    pub capacity: u64,
    /// The segment's own, so that no entry of another one is taken for one of this.
    pub seed: u64,
}

/// Reads an index: checksums, bounds, ids, overlaps. `places` are copies, in order.
#[must_use]
pub fn scan(places: impl Iterator<Item = EntryLocation>, bounds: &Bounds) -> Scan {
    let mut scan = Scan::default();
    // To the very end, not to the first empty place: a place that a flaw emptied hides nothing after it.
    for (number, place) in (0u32..).zip(places) {
        if place == EMPTY {
            continue;
        }
        scan.places = number + 1;
        if place == DROPPED {
            scan.vacant.push(number);
            continue;
        }
        match IndexEntry::from_place(&place, bounds.seed).filter(|entry| bounds.admit(entry)) {
            Some(entry) => scan.entries.push((number, entry)),
            None => scan.dropped.push(number),
        }
    }
    scan.drop_conflicts();
    scan
}

impl Bounds {
    pub(super) fn admit(&self, entry: &IndexEntry) -> bool {
        entry.id < self.samples
            && entry.offset.is_multiple_of(ALIGNMENT)
            && entry.end().is_some_and(|end| end <= self.capacity)
    }
}

impl Scan {
    /// Of entries that overlap or have one id, the one of the last place stays. There are none unless somebody damaged
    /// the segment: an entry is dropped before its room, or another entry of its id, is given out.
    fn drop_conflicts(&mut self) {
        let mut ids = HashSet::new();
        let mut extents = BTreeMap::new();
        for (place, entry) in std::mem::take(&mut self.entries).into_iter().rev() {
            let end = entry.end().unwrap_or(u64::MAX);
            if is_free(&extents, entry.offset, end) && ids.insert(entry.id) {
                extents.insert(entry.offset, (end, place, entry));
            } else {
                self.dropped.push(place);
            }
        }
        self.end = extents.last_key_value().map_or(0, |(_, &(end, ..))| end);
        self.entries = extents
            .into_values()
            .map(|(_, place, entry)| (place, entry))
            .collect();
    }
}

fn is_free(extents: &BTreeMap<u64, (u64, u32, IndexEntry)>, start: u64, end: u64) -> bool {
    let before = extents.range(..end).next_back();
    before.is_none_or(|(_, &(end_before, ..))| end_before <= start)
}
