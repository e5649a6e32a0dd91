//! Fuzzes the take-over of a named segment with any content that a death, a bug, or another process of the same user
//! may have left there.
//!
//! The cache must never panic or touch a byte out of bounds. It must find exactly the samples that a reader of the
//! format finds. Added samples must be there at the next take-over, and the samples that were found must be unchanged.
//!
//! An input says how the header is made and which capacity it states, then how each position of the index is made, then
//! the bytes of the payloads. Besides raw bytes there are bytes with a right checksum, which mutation alone would not
//! find.
#![no_main]

use std::collections::{BTreeMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use coprep_cache::ErrorKind;
use coprep_cache::index::{
    ALIGNMENT, Bounds, DROPPED, EMPTY, EntryBytes, HEADER, IndexEntry, Scan, SegmentHeader,
    payload_checksum, scan,
};
use coprep_cache::{Form, Meta, NoEviction, SampleCache, remove_named};
use coprep_fuzz::Bytes;
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const SAMPLES: u32 = 16;
const CAPACITY: usize = 4096;
const FINGERPRINT: u128 = 7;
const SEED: u64 = 7;
const BLOCKS: usize = CAPACITY / ALIGNMENT as usize;
const ENTRY_BYTES: usize = size_of::<EntryBytes>();
const INDEX_AT: usize = 4096;
const PAYLOADS_AT: usize = 8192;
const SEGMENT: usize = PAYLOADS_AT + CAPACITY;

type Found = BTreeMap<u32, Vec<u8>>;

fuzz_target!(init: coprep_fuzz::seed(&seeds()), |data: &[u8]| {
    let segment = Segment::from_input(&mut Bytes(data));
    let expected = segment.check_scan();
    segment.write();
    let first = open();
    if segment.is_ours {
        assert_eq!(first.as_ref().map(found), Some(segment.intact(&expected)));
    }
    if let Some(cache) = first {
        let before = found(&cache);
        let added = add(&cache);
        let mut all = found(&cache);
        assert!(before.iter().all(|(id, bytes)| all.get(id) == Some(bytes)));
        drop(cache);
        let second = open().expect("what was in use can be opened");
        let again = found(&second);
        all.retain(|id, _| before.contains_key(id) || added.contains(id));
        assert!(all.iter().all(|(id, bytes)| again.get(id) == Some(bytes)));
    }
    remove_named(&name()).expect("it is not in use any more");
});

struct Segment {
    bytes: Vec<u8>,
    /// Capacity in units of 64 bytes. The index has one position for each unit.
    blocks: usize,
    /// `true` if the header is one that must be taken over.
    is_ours: bool,
}

impl Segment {
    fn from_input(input: &mut Bytes) -> Self {
        let (kind, blocks) = (input.byte() % 8, input.byte() as usize % BLOCKS + 1);
        let recipes = input.byte() as usize % (BLOCKS + 1);
        let mut bytes = vec![0; SEGMENT];
        let header = match kind {
            0 => input.take(),
            1 => SegmentHeader {
                fingerprint: [FINGERPRINT as u64, input.byte().into()],
                capacity: input.small(),
                bytes: input.small(),
                samples: input.byte().into(),
                positions: input.byte().into(),
            }
            .to_bytes()
            .expect("memory"),
            _ => header(blocks).to_bytes().expect("memory"),
        };
        bytes[..HEADER].copy_from_slice(&header);
        let recipes: Vec<_> = (0..recipes)
            .map(|_| (input.byte(), input.take::<ENTRY_BYTES>()))
            .collect();
        let payloads = input.some(CAPACITY);
        bytes[PAYLOADS_AT..][..payloads.len()].copy_from_slice(payloads);
        for (number, (kind, recipe)) in recipes.into_iter().enumerate() {
            let bytes_of_entry = entry_bytes(kind, recipe, &bytes[PAYLOADS_AT..]);
            bytes[INDEX_AT + number * ENTRY_BYTES..][..ENTRY_BYTES]
                .copy_from_slice(&bytes_of_entry);
        }
        if kind == 2 {
            bytes.resize(input.small() as usize, 1);
        }
        Segment {
            bytes,
            blocks,
            is_ours: kind > 2,
        }
    }

    fn entries(&self) -> impl Iterator<Item = EntryBytes> {
        let index = self.bytes.get(INDEX_AT..PAYLOADS_AT).unwrap_or_default();
        index
            .as_chunks::<ENTRY_BYTES>()
            .0
            .iter()
            .take(self.blocks)
            .copied()
    }

    /// Scans the index, and checks that each entry is within its bounds and has a right checksum.
    fn check_scan(&self) -> Scan {
        let bounds = Bounds {
            samples: SAMPLES,
            capacity: self.blocks as u64 * ALIGNMENT,
            seed: SEED,
        };
        let found = scan(self.entries(), &bounds);
        let written = self
            .entries()
            .filter(|entry| ![EMPTY, DROPPED].contains(entry))
            .count();
        assert_eq!(found.entries.len() + found.dropped.len(), written);
        let (mut end, mut ids) = (0, HashSet::new());
        for (number, entry) in &found.entries {
            assert!(
                *number < found.positions && entry.offset % ALIGNMENT == 0 && entry.offset >= end
            );
            let bytes = self
                .entries()
                .nth(*number as usize)
                .expect("a position of the index");
            assert_eq!(checksum(&bytes).to_le_bytes(), bytes[ENTRY_BYTES - 8..]);
            assert!(entry.id < SAMPLES && ids.insert(entry.id));
            end = entry.end().expect("an end");
        }
        assert!(end == found.end && end <= bounds.capacity);
        found
    }

    /// Returns the samples whose payload has the right checksum.
    fn intact(&self, scan: &Scan) -> Found {
        let payload = |e: &IndexEntry| {
            self.bytes[PAYLOADS_AT + e.offset as usize..][..e.len as usize].to_vec()
        };
        let entries = scan.entries.iter().map(|(_, e)| (e, payload(e)));
        let intact = entries.filter(|(e, bytes)| payload_checksum(bytes) == e.payload_checksum);
        intact.map(|(e, bytes)| (e.id, bytes)).collect()
    }

    fn write(&self) {
        let path = format!("/dev/shm/coprep-{}-{}", nix::unistd::geteuid(), name());
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        file.and_then(|mut file| file.write_all(&self.bytes))
            .expect("room in /dev/shm");
    }
}

fn name() -> String {
    format!("fuzz-{}", std::process::id())
}

/// Returns a valid header, of a segment that may have less capacity than is requested.
fn header(blocks: usize) -> SegmentHeader {
    SegmentHeader {
        fingerprint: [FINGERPRINT as u64, 0],
        capacity: blocks as u64 * ALIGNMENT,
        bytes: SEGMENT as u64,
        samples: SAMPLES,
        positions: blocks as u32,
    }
}

fn entry_bytes(kind: u8, recipe: EntryBytes, payloads: &[u8]) -> EntryBytes {
    let mut bytes = recipe;
    match kind % 4 {
        0 => EMPTY,
        1 => recipe,
        2 => {
            let checksum = checksum(&bytes);
            bytes[ENTRY_BYTES - 8..].copy_from_slice(&checksum.to_le_bytes());
            bytes
        }
        _ => entry(&mut Bytes(&recipe), payloads)
            .to_bytes(SEED)
            .expect("memory"),
    }
}

/// Returns an entry that may be right.
fn entry(recipe: &mut Bytes, payloads: &[u8]) -> IndexEntry {
    let (id, offset, len) = (recipe.byte() % 20, recipe.byte() % 70, recipe.byte());
    let mut entry = IndexEntry {
        offset: u64::from(offset) * ALIGNMENT,
        len: len.into(),
        payload_checksum: 0,
        version: len.into(),
        id: id.into(),
        width: recipe.byte().into(),
        height: recipe.byte().into(),
        form: if recipe.byte() % 2 == 0 {
            Form::Encoded
        } else {
            Form::Decoded
        },
    };
    let payload = payloads
        .get(entry.offset as usize..)
        .and_then(|from| from.get(..len.into()));
    entry.payload_checksum =
        payload.map_or(0, payload_checksum) ^ u64::from(recipe.byte() % 4 == 3);
    entry
}

fn checksum(bytes: &EntryBytes) -> u64 {
    xxh3_64_with_seed(&bytes[..ENTRY_BYTES - 8], SEED).max(1)
}

/// Opens the segment, or returns `None` if it is refused.
fn open() -> Option<NoEviction> {
    match NoEviction::named(&name(), CAPACITY as u64, SAMPLES, FINGERPRINT) {
        Ok((cache, _)) => Some(cache),
        Err(e) => {
            assert!(!matches!(e.kind(), ErrorKind::InUse), "{e}");
            None
        }
    }
}

fn found(cache: &NoEviction) -> Found {
    (0..SAMPLES)
        .filter_map(|id| Some((id, cache.get(id)?.to_vec())))
        .collect()
}

/// Adds every missing sample that finds room, and returns their ids.
fn add(cache: &NoEviction) -> HashSet<u32> {
    let meta = Meta {
        form: Form::Decoded,
        width: 1,
        height: 2,
        version: 3,
    };
    let add = |id: &u32| {
        let Some(mut room) = cache.reserve(*id, 70 + *id as usize, meta) else {
            return false;
        };
        room.as_mut_slice().fill(*id as u8);
        room.commit();
        let hit = cache.get(*id).expect("what was committed is found");
        assert!(hit.len() == 70 + *id as usize && hit.iter().all(|&b| b == *id as u8));
        true
    };
    (0..SAMPLES).filter(add).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    // The segment has two samples, then room.
    let whole = |header: u8| {
        let mut input = vec![header, 63, 2];
        for [id, offset] in [[3, 0], [5, 2]] {
            input.extend([3, id, offset, 100, 8, 9, 1, 0]);
            input.resize(input.len() + ENTRY_BYTES - 7, 0);
        }
        input.extend((0..=255).map(|b: u8| b ^ 0x55));
        input
    };
    vec![whole(3), whole(2), whole(1), vec![0], vec![3, 9]]
}
