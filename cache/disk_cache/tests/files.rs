//! Tests files of a disk cache from outside: what is written is found, and nothing else ever is.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use coprep_disk_cache::{DiskCache, DiskFolder, DiskOptions, ErrorKind, Lookup, TakeOver};
use proptest::prelude::*;
use tempfile::TempDir;

const FINGERPRINT: u128 = 0xfeed;

fn options() -> DiskOptions {
    DiskOptions {
        fingerprint: FINGERPRINT,
        samples: 32,
        capacity: 4096,
        most: 1 << 20,
        longest: 2000,
    }
}

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Place { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn folder(&self) -> DiskFolder {
        DiskFolder::open(&self.path()).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.path().join(format!("{FINGERPRINT:032x}.samples"))
    }

    fn open(&self) -> (DiskCache, TakeOver) {
        DiskCache::open(&self.folder(), &options()).unwrap()
    }

    fn change(&self, at: u64, change: impl Fn(&mut u8)) {
        let file = OpenOptions::new().read(true).write(true).open(self.file());
        let (file, mut byte) = (file.unwrap(), [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        change(&mut byte[0]);
        file.write_all_at(&byte, at).unwrap();
    }
}

fn sample(id: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32 * 7 + id * 31) as u8).collect()
}

fn read(cache: &DiskCache, id: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![1; 3];
    (cache.read(id, 0, &mut bytes) == Lookup::Hit).then_some(bytes)
}

fn found(cache: &DiskCache) -> BTreeMap<u32, Vec<u8>> {
    (0..options().samples)
        .filter_map(|id| Some((id, read(cache, id)?)))
        .collect()
}

#[test]
fn what_is_written_is_found_now_and_by_the_next_process() {
    let place = Place::new();
    let (cache, first) = place.open();
    assert_eq!(first, TakeOver::default());
    for (id, len) in [(3, 100), (0, 0), (31, 2000)] {
        assert!(cache.has_room(id, len as u64));
        assert!(cache.write(id, 0, &sample(id, len)).unwrap());
        assert!(
            !cache.write(id, 0, &sample(id, len)).unwrap(),
            "it is there"
        );
    }
    let written = found(&cache);
    assert_eq!(written.len(), 3);
    let mut into = vec![0; 100];
    assert_eq!(cache.read_into(3, 0, &mut into), Lookup::Hit);
    assert_eq!(into, sample(3, 100));
    assert_eq!(cache.read(4, 0, &mut into), Lookup::Absent);
    drop(cache);
    let (again, taken) = place.open();
    assert_eq!(
        (taken.entries, taken.dropped, taken.replaced),
        (3, 0, false)
    );
    assert_eq!(found(&again), written);
    assert_eq!(again.usage().entries, 3);
}

#[test]
fn a_file_never_holds_more_than_its_capacity_and_never_evicts() {
    let place = Place::new();
    let (cache, _) = place.open();
    let wrote = |id: &u32| cache.write(*id, 0, &sample(*id, 512)).unwrap();
    let kept: Vec<u32> = (0..32).filter(wrote).collect();
    assert_eq!(kept, (0..8).collect::<Vec<_>>());
    assert_eq!(cache.usage().used, cache.usage().capacity);
    assert!(!cache.has_room(20, 1));
    assert_eq!(found(&cache).into_keys().collect::<Vec<_>>(), kept);
}

#[test]
fn damaged_samples_of_a_full_file_all_find_their_room_again() {
    let place = Place::new();
    let (cache, _) = place.open();
    // A large sample comes first in the file, and is written again last.
    let lengths = [(0, 1024), (1, 64), (2, 512), (3, 128), (4, 1984), (5, 384)];
    for (id, len) in lengths {
        assert!(cache.write(id, 0, &sample(id, len)).unwrap());
    }
    assert_eq!(cache.usage().used, 4096);
    let start = fs::metadata(place.file()).unwrap().len() - 4096;
    for at in [0, 1088, 1728] {
        place.change(start + at, |byte| *byte = !*byte);
    }
    let dropped: Vec<u32> = (0..6).filter(|&id| read(&cache, id).is_none()).collect();
    assert_eq!(dropped, [0, 2, 4]);
    for id in [2, 0, 4] {
        let (_, len) = lengths[id as usize];
        assert!(cache.write(id, 0, &sample(id, len)).unwrap(), "sample {id}");
    }
    assert_eq!(found(&cache).len(), 6);
}

#[test]
fn a_sample_that_is_too_long_or_has_no_number_is_not_written() {
    let (cache, _) = Place::new().open();
    assert!(!cache.write(0, 0, &sample(0, 2001)).unwrap());
    assert!(!cache.write(32, 0, &sample(0, 1)).unwrap());
}

#[test]
fn room_is_reserved_for_the_whole_file() {
    let place = Place::new();
    let (cache, _) = place.open();
    let found = fs::metadata(place.file()).unwrap();
    assert_eq!(found.len(), cache.file_bytes());
    assert!(found.blocks() * 512 >= found.len());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let folder = fs::metadata(place.path()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
}

/// The last record is torn at every byte: its payload, and then its entry, were written up to there.
#[test]
fn a_write_that_was_cut_at_any_byte_leaves_the_others_and_its_room() {
    let (first, last) = (sample(1, 60), sample(2, 64));
    let place = Place::new();
    let (cache, _) = place.open();
    cache.write(1, 0, &first).unwrap();
    let before = fs::read(place.file()).unwrap();
    cache.write(2, 0, &last).unwrap();
    let after = fs::read(place.file()).unwrap();
    drop(cache);
    let changed = |at: &usize| before[*at] != after[*at];
    // Payloads come after the index in the file, and before it in time.
    let index_end = after.len() - 4096;
    let (entry, payload): (Vec<usize>, Vec<usize>) = (0..after.len())
        .filter(changed)
        .partition(|&at| at < index_end);
    assert!(entry.len() > 10 && payload.len() > 50);
    let in_order = [payload, entry].concat();
    for written in 0..in_order.len() {
        let mut torn = before.clone();
        for &at in &in_order[..written] {
            torn[at] = after[at];
        }
        fs::write(place.file(), &torn).unwrap();
        let (cache, _) = place.open();
        assert_eq!(found(&cache), BTreeMap::from([(1, first.clone())]));
        // Its room is used again.
        assert!(cache.write(2, 0, &last).unwrap());
        assert!(cache.write(3, 0, &sample(3, 2000)).unwrap());
        assert_eq!(read(&cache, 2).as_ref(), Some(&last));
    }
}

/// Power was lost: the entry is on the disk, and a part of the payload is not.
#[test]
fn an_entry_without_its_whole_payload_is_dropped_at_its_first_read() {
    let place = Place::new();
    let (cache, _) = place.open();
    cache.write(1, 0, &sample(1, 500)).unwrap();
    cache.write(2, 0, &sample(2, 500)).unwrap();
    drop(cache);
    let at = fs::metadata(place.file()).unwrap().len() - 4096;
    place.change(at + 499, |byte| *byte = !*byte);
    let (cache, taken) = place.open();
    assert_eq!(taken.entries, 2);
    let mut bytes = Vec::new();
    assert_eq!(cache.read(1, 0, &mut bytes), Lookup::Dropped);
    assert_eq!(
        cache.read(1, 0, &mut bytes),
        Lookup::Absent,
        "it is dropped once"
    );
    assert_eq!(found(&cache).into_keys().collect::<Vec<_>>(), [2]);
    assert!(cache.write(1, 0, &sample(1, 500)).unwrap());
    drop(cache);
    let (cache, taken) = place.open();
    assert_eq!((taken.entries, taken.dropped), (2, 0));
    assert_eq!(read(&cache, 1), Some(sample(1, 500)));
}

#[test]
fn a_flipped_bit_anywhere_never_gives_other_bytes() {
    let place = Place::new();
    let (cache, _) = place.open();
    let written: BTreeMap<u32, Vec<u8>> = (0..4).map(|id| (id, sample(id, 70))).collect();
    for (id, bytes) in &written {
        cache.write(*id, 0, bytes).unwrap();
    }
    drop(cache);
    let whole = fs::read(place.file()).unwrap();
    let interesting = (0..200)
        .chain(4096..4096 + 200)
        .chain(whole.len() - 4096..whole.len() - 3500);
    for at in interesting {
        for bit in [0, 3, 7] {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            fs::write(place.file(), &flipped).unwrap();
            let (cache, _) = place.open();
            for (id, bytes) in found(&cache) {
                assert_eq!(written.get(&id), Some(&bytes), "byte {at}, bit {bit}");
            }
        }
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_used_is_a_miss() {
    let place = Place::new();
    let (cache, _) = place.open();
    cache.write(1, 0, &sample(1, 500)).unwrap();
    OpenOptions::new()
        .write(true)
        .open(place.file())
        .unwrap()
        .set_len(100)
        .unwrap();
    assert_eq!(cache.read(1, 0, &mut Vec::new()), Lookup::Dropped);
    assert_eq!(found(&cache), BTreeMap::new());
}

#[test]
fn a_buffer_of_another_length_is_not_filled() {
    let place = Place::new();
    let (cache, _) = place.open();
    cache.write(1, 0, &sample(1, 500)).unwrap();
    assert_eq!(cache.read_into(1, 0, &mut [0; 499]), Lookup::Dropped);
    assert!(!cache.has(1));
}

#[test]
fn a_file_of_anything_else_is_made_anew() {
    let place = Place::new();
    let (cache, _) = place.open();
    cache.write(1, 0, &sample(1, 500)).unwrap();
    drop(cache);
    let whole = fs::read(place.file()).unwrap();
    let mut without_header = whole.clone();
    without_header[..8].fill(0);
    for content in [
        &[][..],
        &whole[..100],
        &whole[..whole.len() - 1],
        &without_header,
    ] {
        fs::write(place.file(), content).unwrap();
        let (cache, taken) = place.open();
        assert!(taken.replaced && cache.usage().entries == 0);
        assert!(cache.write(1, 0, &sample(1, 500)).unwrap());
    }
    // Another number of samples, and a file that is larger than all files may be.
    for other in [
        DiskOptions {
            samples: 33,
            ..options()
        },
        DiskOptions {
            most: 1000,
            capacity: 64,
            ..options()
        },
    ] {
        place.open();
        let (_, taken) = DiskCache::open(&place.folder(), &other).unwrap();
        assert!(taken.replaced, "{other:?}");
    }
}

#[test]
fn files_of_others_are_refused() {
    let place = Place::new();
    let refused = |place: &Place| {
        let error = DiskCache::open(&place.folder(), &options())
            .map(drop)
            .unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NotOurs, "{error}");
        error.to_string()
    };
    place.open();
    fs::set_permissions(place.file(), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(refused(&place).contains("mode 640"));
    fs::rename(place.file(), place.path().join("other")).unwrap();
    symlink("other", place.file()).unwrap();
    assert!(refused(&place).contains("symbolic link"));
    fs::remove_file(place.file()).unwrap();
    let target = place.folder.path().join("target");
    fs::create_dir(&target).unwrap();
    let error = |path: &Path| DiskFolder::open(path).map(drop).unwrap_err();
    let shared = error(&target);
    assert!(shared.to_string().contains("chmod go="), "{shared}");
    symlink(place.path(), place.folder.path().join("link")).unwrap();
    let linked = error(&place.folder.path().join("link"));
    assert_eq!(*linked.kind(), ErrorKind::NotOurs, "{linked}");
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(place.path(), Some(12345), None).unwrap();
        let other = error(&place.path()).to_string();
        assert!(other.contains("it belongs to user 12345"), "{other}");
    }
}

#[test]
fn a_folder_is_had_by_one_process() {
    let place = Place::new();
    let first = place.folder();
    let second = DiskFolder::open(&place.path()).map(drop).unwrap_err();
    assert_eq!(*second.kind(), ErrorKind::InUse);
    assert!(
        second.to_string().contains("a folder of its own"),
        "{second}"
    );
    drop(first);
    place.folder();
}

#[test]
fn too_little_room_names_the_folder_both_sizes_and_the_remedy() {
    // A file system in memory has an exact end.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("cache");
    let cache = DiskFolder::open(&path).unwrap();
    let error = cache.try_room(1 << 50).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shortage);
    let text = error.to_string();
    for part in [
        &*path.to_string_lossy(),
        "1024.0 TiB",
        "are free in its file system",
        "--disk-bytes",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let large = DiskOptions {
        capacity: 1 << 50,
        most: u64::MAX,
        ..options()
    };
    assert!(DiskCache::open(&cache, &large).is_err());
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "nothing is left");
    cache.try_room(1 << 20).unwrap();
}

#[test]
fn files_are_listed_and_removed_by_their_fingerprints() {
    let place = Place::new();
    place.open();
    fs::write(place.path().join("notes.txt"), "not a dataset").unwrap();
    fs::write(place.path().join("0FEED.samples"), "another spelling").unwrap();
    let folder = place.folder();
    let files = folder.files().unwrap();
    let listed: Vec<_> = files.iter().map(|f| (f.fingerprint, f.bytes)).collect();
    let bytes = fs::metadata(place.file()).unwrap().len();
    assert_eq!(listed, [(FINGERPRINT, bytes)]);
    assert_eq!(folder.remove(FINGERPRINT).unwrap(), bytes);
    assert_eq!(folder.remove(FINGERPRINT).unwrap(), 0);
    assert_eq!(folder.files().unwrap(), []);
}

#[test]
fn threads_that_read_and_drop_at_once_see_only_what_was_written() {
    let place = Place::new();
    let (cache, _) = place.open();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (cache, place) = (&cache, &place);
            scope.spawn(move || {
                for round in 0..300u64 {
                    let id = ((thread * 7 + round * 3) % 12) as u32;
                    let _ = cache.write(id, 0, &sample(id, 400)).unwrap();
                    if let Some(bytes) = read(cache, id) {
                        assert_eq!(bytes, sample(id, 400));
                    }
                    if round % 20 == thread {
                        let end = fs::metadata(place.file()).unwrap().len();
                        place.change(end - 4096 + (round * 131) % 4000, |byte| *byte ^= 8);
                    }
                }
            });
        }
    });
    let usage = cache.usage();
    assert!(usage.used <= usage.capacity);
    let here = found(&cache);
    assert!(here.iter().all(|(id, bytes)| *bytes == sample(*id, 400)));
    drop(cache);
    assert_eq!(found(&place.open().0), here);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u32, usize),
    Damage(u32),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u32..32, 0usize..700).prop_map(|(id, len)| Step::Write(id, len)),
        2 => (0u32..4096).prop_map(Step::Damage),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_writes_damages_and_restarts_gives_what_was_written(steps in steps()) {
        let place = Place::new();
        let mut cache = place.open().0;
        let mut written: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Write(id, len) => {
                    if cache.write(id, 0, &sample(id + 100, len)).unwrap() {
                        written.insert(id, sample(id + 100, len));
                    }
                }
                Step::Damage(at) => {
                    let end = fs::metadata(place.file()).unwrap().len();
                    place.change(end - 4096 + u64::from(at), |byte| *byte ^= 1);
                }
                Step::Restart => {
                    drop(cache);
                    cache = place.open().0;
                }
            }
            let here = found(&cache);
            prop_assert!(here.iter().all(|(id, bytes)| written.get(id) == Some(bytes)));
            // Only damaged samples are missing, and they may be written again.
            written.retain(|id, _| here.contains_key(id));
            let usage = cache.usage();
            let blocks: u64 = here.values().map(|b| (b.len() as u64).max(1).next_multiple_of(64)).sum();
            prop_assert_eq!((usage.used, usage.entries), (blocks, here.len() as u64));
        }
    }
}
