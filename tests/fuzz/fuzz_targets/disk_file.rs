//! Fuzzes the opening of a file of the disk cache with any content that a crash, a damaged disk, or another process of
//! the same user may have left there.
//!
//! The cache must never panic, and never give other bytes than those that the checksum of an entry vouches for. What
//! is written afterwards must be there for the next process, whatever else the file had.
//!
//! An input says how the header is made, then how each position of the index is made, then the bytes of the payloads.
//! Besides raw bytes there are bytes with a right checksum, which mutation alone would not find.
#![no_main]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use coprep_cache::index::{ENTRY, EntryBytes, HEADER, IndexEntry, SegmentHeader, payload_checksum};
use coprep_cache::layout::SegmentLayout;
use coprep_cache::{Form, index};
use coprep_disk_cache::{DiskCache, DiskFolder, DiskOptions, Lookup};
use coprep_fuzz::Bytes;
use libfuzzer_sys::fuzz_target;

const OPTIONS: DiskOptions = DiskOptions {
    fingerprint: 7,
    samples: 16,
    capacity: 4096,
    most: 1 << 20,
    longest: 1000,
};

fuzz_target!(init: coprep_fuzz::seed(&seeds()), |data: &[u8]| {
    let (bytes, vouched) = file(&mut Bytes(data));
    write(&bytes);
    let folder = DiskFolder::open(&path()).expect("the folder is ours");
    let open = || {
        DiskCache::open(&folder, &OPTIONS)
            .expect("a file that cannot be used is made anew")
            .0
    };
    let cache = open();
    let before = found(&cache);
    for (id, bytes) in &before {
        let is_vouched = vouched.iter().any(|(of, checksum)| {
            of == id && *checksum == payload_checksum(bytes)
        });
        assert!(is_vouched, "sample {id} is nobody's");
    }
    let mut all = before;
    for id in 0..OPTIONS.samples {
        let bytes = vec![id as u8; 70 + id as usize];
        if cache.write(id, 0, &bytes).expect("room was reserved") {
            assert!(all.insert(id, bytes).is_none());
        }
    }
    assert_eq!(found(&cache), all);
    let usage = cache.usage();
    assert!(usage.used <= usage.capacity && usage.entries == all.len() as u64);
    drop(cache);
    assert_eq!(found(&open()), all);
});

fn path() -> PathBuf {
    std::env::temp_dir().join(format!("coprep-fuzz-{}", std::process::id()))
}

fn write(bytes: &[u8]) {
    drop(DiskFolder::open(&path()));
    let path = path().join(format!("{:032x}.samples", OPTIONS.fingerprint));
    let _ = fs::remove_file(&path);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(path);
    file.and_then(|mut file| file.write_all(bytes))
        .expect("room in the folder of temporary files");
}

/// Returns a file, and the samples for which an entry of it may vouch, with the checksums of their bytes.
fn file(input: &mut Bytes) -> (Vec<u8>, Vec<(u32, u64)>) {
    let layout = SegmentLayout::new(OPTIONS.capacity, OPTIONS.samples).expect("a small one");
    let mut bytes = vec![0; layout.bytes];
    let kind = input.byte() % 8;
    let header = match kind {
        0 => input.take(),
        1 => SegmentHeader {
            fingerprint: [OPTIONS.fingerprint as u64, input.byte().into()],
            capacity: input.small(),
            bytes: input.small(),
            samples: input.byte().into(),
            positions: input.byte().into(),
        }
        .to_bytes()
        .expect("memory"),
        _ => layout.header(OPTIONS.fingerprint).to_bytes().expect("memory"),
    };
    bytes[..HEADER].copy_from_slice(&header);
    let count = u32::from(input.byte()) % (layout.positions + 1);
    let recipes: Vec<(u8, EntryBytes)> = (0..count).map(|_| (input.byte(), input.take())).collect();
    let payloads = input.some(OPTIONS.capacity as usize);
    bytes[layout.payloads_at..][..payloads.len()].copy_from_slice(payloads);
    let mut vouched = Vec::new();
    for (position, (kind, recipe)) in (0u32..).zip(recipes) {
        let of_entry = match kind % 3 {
            0 => recipe,
            1 => index::DROPPED,
            _ => entry(&mut Bytes(&recipe), &bytes[layout.payloads_at..])
                .to_bytes(index::seed(OPTIONS.fingerprint))
                .expect("memory"),
        };
        bytes[layout.offset(position)..][..ENTRY].copy_from_slice(&of_entry);
        let entry = IndexEntry::from_bytes(&of_entry, index::seed(OPTIONS.fingerprint));
        vouched.extend(entry.map(|entry| (entry.id, entry.payload_checksum)));
    }
    if kind == 2 {
        bytes.truncate(input.small() as usize);
    }
    (bytes, vouched)
}

/// Returns an entry that may be right.
fn entry(recipe: &mut Bytes, payloads: &[u8]) -> IndexEntry {
    let (id, offset, len) = (recipe.byte() % 20, recipe.byte() % 70, recipe.small() % 1100);
    let offset = u64::from(offset) * index::ALIGNMENT;
    let payload = payloads.get(offset as usize..);
    let payload = payload.and_then(|from| from.get(..len as usize));
    IndexEntry {
        offset,
        len,
        payload_checksum: payload.map_or(0, payload_checksum) ^ u64::from(recipe.byte() % 4 == 3),
        version: u64::from(recipe.byte() % 8 == 7),
        id: id.into(),
        width: 0,
        height: 0,
        form: if recipe.byte() % 8 == 7 { Form::Decoded } else { Form::Encoded },
    }
}

fn found(cache: &DiskCache) -> BTreeMap<u32, Vec<u8>> {
    let mut bytes = Vec::new();
    let mut read = |id| (cache.read(id, 0, &mut bytes) == Lookup::Hit).then(|| bytes.clone());
    (0..OPTIONS.samples)
        .filter_map(|id| Some((id, read(id)?)))
        .collect()
}

fn seeds() -> Vec<Vec<u8>> {
    // The file has two samples, then room.
    let whole = |header: u8| {
        let mut input = vec![header, 2];
        for [id, offset] in [[3, 0], [5, 2]] {
            input.extend([2, id, offset, 100, 0, 1, 0]);
            input.resize(input.len() + ENTRY - 6, 0);
        }
        input.extend((0..=255).map(|b: u8| b ^ 0x55));
        input
    };
    vec![whole(3), whole(2), whole(1), vec![0], vec![3, 9]]
}
