//! Named segments, as the next coordinator finds them.
#![expect(
    unsafe_code,
    reason = "the common part takes descriptors from the kernel"
)]
#![expect(clippy::unwrap_used, reason = "a test")]

// Each test binary uses only a part of the shared module.
#[path = "../../shared_memory/tests/common/mod.rs"]
#[expect(dead_code, reason = "shared with the tests of the hand-over")]
mod common;

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Peer, Random, role, say, until_closed};
use coprep_cache::index::{IndexEntry, payload_checksum};
use coprep_cache::{
    ErrorKind, Form, Meta, NoEviction, Result, SampleCache, TakeOver, list_named, remove_named,
};
use coprep_shared_memory::mapping::page_size;

const META: Meta = Meta {
    form: Form::Encoded,
    width: 3,
    height: 2,
    version: 7,
};
const SAMPLES: u32 = 100;
const CAPACITY: u64 = 1 << 16;
const FINGERPRINT: u128 = 5;
/// Offset of the index, and bytes of an entry: see `coprep_cache::index`.
const INDEX_AT: u64 = 4096;
const ENTRY: u64 = 56;

/// A named segment that is removed at the end of the test.
struct Segment {
    name: String,
}

impl Segment {
    fn of(test: &str) -> Self {
        Segment {
            name: format!("test-{}-{test}", std::process::id()),
        }
    }

    fn open_as(&self, capacity: u64, samples: u32, key: u128) -> Result<(NoEviction, TakeOver)> {
        NoEviction::named(&self.name, capacity, samples, key)
    }

    fn open(&self) -> (NoEviction, TakeOver) {
        self.open_as(CAPACITY, SAMPLES, FINGERPRINT).unwrap()
    }

    /// Creates a segment that holds samples 0 to 4.
    fn filled(test: &str) -> Self {
        let segment = Segment::of(test);
        let (cache, found) = segment.open();
        assert_eq!(found, TakeOver::default());
        (0..5).for_each(|id| assert!(put(&cache, id)));
        segment
    }

    fn path(&self) -> PathBuf {
        let user = nix::unistd::geteuid();
        PathBuf::from(format!("/dev/shm/coprep-{user}-{}", self.name))
    }

    fn file(&self) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path())
            .unwrap()
    }

    /// Returns the inodes of the files that this process maps and that have, or had, the name of the segment.
    fn mapped(&self) -> Vec<u64> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let path = self.path();
        let inode = |line: &str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let is_it = fields.get(5).is_some_and(|file| Path::new(file) == path);
            is_it.then(|| fields[4].parse().unwrap())
        };
        maps.lines().filter_map(inode).collect()
    }

    fn flip(&self, at: u64) {
        let mut byte = [0];
        self.file().read_exact_at(&mut byte, at).unwrap();
        self.file().write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let _ = remove_named(&self.name);
    }
}

fn payload(id: u32) -> Vec<u8> {
    (0..100 + id).map(|i| (i * 7 + id) as u8).collect()
}

fn put(cache: &NoEviction, id: u32) -> bool {
    let payload = payload(id);
    let Some(mut room) = cache.reserve(id, payload.len(), META) else {
        return false;
    };
    room.as_mut_slice().copy_from_slice(&payload);
    room.commit();
    true
}

/// Returns the ids of the samples in the cache, after a check of each.
fn ids(cache: &NoEviction) -> Vec<u32> {
    let there = |id: &u32| {
        cache.get(*id).is_some_and(|hit| {
            assert_eq!((&*hit, hit.meta()), (&*payload(*id), META));
            true
        })
    };
    (0..SAMPLES).filter(there).collect()
}

/// The entry point of the child processes.
#[test]
fn child() {
    let Some((role, socket)) = role() else { return };
    match role.split(' ').collect::<Vec<_>>()[..] {
        [name] => fill_until_killed(name, &socket),
        ["compete", name, witness, seed] => {
            compete(name, Path::new(witness), seed.parse().unwrap(), &socket);
        }
        ["short", name] => open_without_address_space(name, &socket),
        _ => panic!("no such role: {role}"),
    }
}

fn fill_until_killed(name: &str, socket: &UnixStream) {
    let segment = Segment { name: name.into() };
    let (cache, _) = segment.open();
    (0..5).for_each(|id| assert!(put(&cache, id)));
    // The parent kills this process while the sample is half written.
    let mut room = cache.reserve(9, 1000, META).unwrap();
    room.as_mut_slice().fill(1);
    say(socket, 5);
    until_closed(socket);
}

/// Opens and removes a segment for a second, in competition with other processes. Tells the parent how often it held
/// the segment.
fn compete(name: &str, witness: &Path, seed: u64, socket: &UnixStream) {
    let segment = Segment { name: name.into() };
    let mut random = Random(seed);
    let (start, mut held) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(1) {
        match segment.open_as(CAPACITY, SAMPLES, FINGERPRINT) {
            Ok((cache, found)) => {
                held += 1;
                check_held(&segment, &cache, found, witness, random.below(200));
            }
            Err(e) => assert!(matches!(e.kind(), ErrorKind::InUse), "{e}"),
        }
        if random.below(2) == 0
            && let Err(e) = remove_named(name)
        {
            assert!(matches!(e.kind(), ErrorKind::InUse), "{e}");
        }
    }
    say(socket, held);
}

/// Checks that no other process holds the segment, and that what this process holds has the name.
fn check_held(
    segment: &Segment,
    cache: &NoEviction,
    found: TakeOver,
    witness: &Path,
    microseconds: u64,
) {
    let witness = File::open(witness).unwrap();
    witness.try_lock().unwrap();
    // No process is killed, so no segment is left incomplete.
    assert_eq!((found.replaced, found.dropped), (false, 0));
    assert_eq!(ids(cache).len() as u64, found.entries);
    put(cache, found.entries as u32);
    std::thread::sleep(Duration::from_micros(microseconds));
    let named = fs::metadata(segment.path()).map(|file| file.ino());
    assert_eq!(segment.mapped(), [named.unwrap()]);
}

/// Asks for a segment that is larger than the address space that is left to this process.
fn open_without_address_space(name: &str, socket: &UnixStream) {
    let segment = Segment { name: name.into() };
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let limit = pages * page_size() as u64 + (16 << 20);
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_AS, limit, limit).unwrap();
    let refused = segment.open_as(32 << 20, SAMPLES, FINGERPRINT).map(drop);
    let error = refused.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Os), "{error}");
    assert!(!segment.path().exists());
    say(socket, 1);
}

#[test]
fn a_killed_coordinator_leaves_its_samples_to_the_next() {
    let segment = Segment::of("killed");
    let mut coordinator = Peer::start(&segment.name);
    assert_eq!(coordinator.hear(), 5);
    let refused = segment.open_as(CAPACITY, SAMPLES, FINGERPRINT).map(drop);
    assert!(matches!(refused.unwrap_err().kind(), ErrorKind::InUse));
    assert!(!remove_named(&segment.name).unwrap_or(false));
    coordinator.kill();
    let (cache, found) = segment.open();
    assert_eq!((found.entries, found.dropped), (5, 0));
    assert_eq!(ids(&cache), [0, 1, 2, 3, 4]);
    assert!(put(&cache, 9));
    assert_eq!(ids(&cache), [0, 1, 2, 3, 4, 9]);
}

#[test]
fn processes_that_create_and_remove_a_segment_at_once_never_hold_two_of_a_name() {
    let segment = Segment::of("competition");
    let witness = tempfile::NamedTempFile::new().unwrap();
    let start = |seed| {
        let (name, witness) = (&segment.name, witness.path().display());
        Peer::start(&format!("compete {name} {witness} {seed}"))
    };
    let mut processes: Vec<_> = (0..4).map(start).collect();
    let held: u64 = processes.iter_mut().map(Peer::hear).sum();
    processes.iter_mut().for_each(Peer::ends_well);
    assert!(held > 0);
    remove_named(&segment.name).unwrap();
    let files = fs::read_dir("/dev/shm").unwrap();
    let left: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|file| file.contains(&segment.name))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_segment_that_cannot_be_mapped_is_not_left_behind() {
    let segment = Segment::of("short");
    let mut process = Peer::start(&format!("short {}", segment.name));
    assert_eq!(process.hear(), 1);
    process.ends_well();
}

#[test]
fn a_segment_that_is_there_keeps_its_capacity() {
    let segment = Segment::filled("capacity");
    for asked in [0, CAPACITY / 4, CAPACITY * 4, 1 << 50] {
        let (cache, found) = segment.open_as(asked, SAMPLES, FINGERPRINT).unwrap();
        assert_eq!((found.entries, found.replaced), (5, false), "{asked} asked");
        assert_eq!(cache.usage().capacity, CAPACITY);
        assert_eq!(ids(&cache), [0, 1, 2, 3, 4]);
    }
    let (cache, _) = segment.open_as(64, SAMPLES, FINGERPRINT).unwrap();
    // The segment keeps more than the 64 bytes requested now, so there is room.
    assert!(put(&cache, 5));
}

#[test]
fn a_segment_of_another_dataset_is_an_error_and_left_alone() {
    let segment = Segment::filled("dataset");
    for (samples, key) in [(SAMPLES, FINGERPRINT + 1), (SAMPLES + 1, FINGERPRINT)] {
        let refused = segment.open_as(CAPACITY, samples, key).map(drop);
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OtherData), "{error}");
    }
    assert_eq!(ids(&segment.open().0), [0, 1, 2, 3, 4]);
}

#[test]
fn a_flipped_bit_costs_the_sample_it_is_in_and_no_other() {
    let segment = Segment::filled("flipped");
    segment.flip(INDEX_AT + ENTRY + 3);
    let (cache, found) = segment.open();
    assert_eq!((found.entries, found.dropped), (4, 1));
    assert_eq!(ids(&cache), [0, 2, 3, 4]);
    drop(cache);
    // The payloads come after 170 index entries, and that of sample 0 is the first.
    let payloads_at = (INDEX_AT + 170 * ENTRY).next_multiple_of(4096);
    segment.flip(payloads_at + 50);
    let (cache, found) = segment.open();
    assert_eq!(found.entries, 4);
    assert_eq!(ids(&cache), [2, 3, 4]);
    assert_eq!(cache.usage().entries(), 3);
    assert!(put(&cache, 0) && put(&cache, 1));
    drop(cache);
    assert_eq!(ids(&segment.open().0), [0, 1, 2, 3, 4]);
}

#[test]
fn what_a_take_over_drops_does_not_come_back() {
    let segment = Segment::of("conflicts");
    drop(segment.open());
    let seed = FINGERPRINT as u64;
    let write = |position: u64, id, offset, len, payload_checksum| {
        let form = Form::Encoded;
        let (width, height, version) = (1, 1, 0);
        #[rustfmt::skip]
        let entry = IndexEntry { offset, len, payload_checksum, version, id, width, height, form };
        let at = INDEX_AT + position * ENTRY;
        let bytes = entry.to_bytes(seed).unwrap();
        segment.file().write_all_at(&bytes, at).unwrap();
    };
    // All payloads are zeros. The second entry overlaps both others, and the last one has a wrong checksum.
    write(0, 0, 0, 64, payload_checksum(&[0; 64]));
    write(1, 1, 0, 128, payload_checksum(&[0; 128]));
    write(2, 2, 64, 64, 1);
    let (cache, found) = segment.open();
    assert_eq!((found.entries, found.dropped), (2, 1));
    assert!(cache.get(0).is_some() && cache.get(1).is_none() && cache.get(2).is_none());
    assert!(put(&cache, 2));
    drop(cache);
    // The entry with the damaged payload was dropped when the damage was found.
    let (cache, found) = segment.open();
    assert_eq!((found.entries, found.dropped), (2, 0));
    assert!(cache.get(0).is_some() && cache.get(1).is_none() && cache.get(2).is_some());
    drop(cache);
    assert_eq!(segment.open().1.dropped, 0);
}

/// Returns the offset of the payloads in a segment for this many samples.
fn payloads_at(samples: u64) -> u64 {
    (INDEX_AT + (samples + samples / 16 + 64) * ENTRY).next_multiple_of(4096)
}

#[test]
fn a_segment_of_which_most_is_damaged_is_filled_again() {
    const MANY: u32 = 400;
    let segment = Segment::of("damaged");
    let open = || segment.open_as(1 << 18, MANY, FINGERPRINT).unwrap();
    let fill = |cache: &NoEviction| {
        for id in 0..MANY {
            put(cache, id);
        }
    };
    let there = |cache: &NoEviction| {
        let is_whole = |id: &u32| cache.get(*id).is_some_and(|hit| *hit == *payload(*id));
        (0..MANY).filter(is_whole).count()
    };
    let (cache, _) = open();
    fill(&cache);
    let filled = (there(&cache), cache.usage());
    assert_eq!(filled.0, MANY as usize, "all have room");
    drop(cache);
    let (from, to) = (INDEX_AT, payloads_at(MANY.into()) + filled.1.used);
    for round in 0..3 {
        // A flip does damage only where an entry or a payload lies.
        (from..to)
            .step_by(47)
            .for_each(|at| segment.flip(at + round));
        let (cache, found) = open();
        let intact = there(&cache);
        assert!(intact < MANY as usize / 4, "{intact} of {found:?}");
        assert_eq!(cache.usage().entries(), intact as u64);
        fill(&cache);
        assert_eq!((there(&cache), cache.usage()), filled);
        drop(cache);
        let (cache, found) = open();
        assert_eq!((found.entries, found.dropped), (MANY.into(), 0));
        assert_eq!((there(&cache), cache.usage()), filled);
    }
}

#[test]
fn threads_that_find_the_same_damage_at_once_give_its_room_back_once() {
    let segment = Segment::of("at-once");
    for round in 0..50 {
        let (cache, _) = segment.open();
        for id in 0..SAMPLES {
            put(&cache, id);
        }
        let used = cache.usage();
        drop(cache);
        for id in 0..u64::from(SAMPLES) {
            segment.flip(payloads_at(SAMPLES.into()) + id * 128 + round % 64);
        }
        let (cache, _) = segment.open();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for id in (0..SAMPLES).chain(0..SAMPLES) {
                        put(&cache, id);
                        let hit = cache.get(id);
                        assert!(hit.is_none_or(|hit| *hit == *payload(id)));
                    }
                });
            }
        });
        assert_eq!(ids(&cache), (0..SAMPLES).collect::<Vec<_>>());
        // Room is free once no thread can look at it any more.
        let since = Instant::now();
        while cache.usage() != used {
            assert!(
                since.elapsed() < Duration::from_secs(30),
                "{:?} {used:?}",
                cache.usage()
            );
            crossbeam::epoch::pin().flush();
        }
    }
}

#[test]
fn a_segment_that_is_not_whole_is_made_anew() {
    let segment = Segment::filled("broken");
    let whole = segment.file().metadata().unwrap().len();
    let breaks: [&dyn Fn(); 4] = [
        &|| segment.flip(0),
        &|| segment.flip(20),
        &|| segment.file().set_len(whole - 4096).unwrap(),
        &|| segment.file().set_len(0).unwrap(),
    ];
    for (number, break_it) in breaks.into_iter().enumerate() {
        break_it();
        let (cache, found) = segment.open();
        assert!(found.replaced && found.entries == 0, "{number}");
        assert!(put(&cache, 3));
        assert_eq!(ids(&cache), [3]);
    }
}

#[test]
fn a_file_that_others_may_read_is_refused() {
    let segment = Segment::filled("mode");
    let mode = |mode| segment.file().set_permissions(Permissions::from_mode(mode));
    mode(0o644).unwrap();
    let refused = segment.open_as(CAPACITY, SAMPLES, FINGERPRINT).map(drop);
    assert!(matches!(refused.unwrap_err().kind(), ErrorKind::NotOurs));
    mode(0o600).unwrap();
    assert_eq!(segment.open().1.entries, 5);
}

#[test]
fn segments_are_listed_and_removed() {
    let segment = Segment::filled("listed");
    let listed = || {
        let all = list_named().unwrap();
        all.into_iter().find(|found| found.name == segment.name)
    };
    let idle = listed().unwrap();
    assert!(!idle.in_use && idle.bytes >= CAPACITY);
    let (cache, _) = segment.open();
    assert!(listed().unwrap().in_use);
    assert!(remove_named(&segment.name).is_err());
    drop(cache);
    assert!(remove_named(&segment.name).unwrap());
    assert_eq!(listed(), None);
    assert!(!remove_named(&segment.name).unwrap());
}
