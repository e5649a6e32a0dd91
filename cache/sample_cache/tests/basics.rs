//! Each policy in one process, without faults.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};

use coprep_cache::{Form, Lru, Meta, NoEviction, SampleCache};

const META: Meta = Meta {
    form: Form::Decoded,
    width: 3,
    height: 2,
    version: 7,
};

fn put(cache: &dyn SampleCache, id: u32, bytes: &[u8]) -> bool {
    let Some(mut room) = cache.reserve(id, bytes.len(), META) else {
        return false;
    };
    room.as_mut_slice().copy_from_slice(bytes);
    room.commit();
    true
}

fn caches() -> [Box<dyn SampleCache>; 2] {
    [
        Box::new(NoEviction::anonymous(1 << 16, 100).unwrap()),
        Box::new(Lru::new(1 << 16)),
    ]
}

#[test]
fn a_cache_gives_what_was_committed() {
    for cache in caches() {
        assert!(cache.get(5).is_none());
        assert!(put(&*cache, 5, b"five"));
        let hit = cache.get(5).unwrap();
        assert_eq!((&*hit, hit.meta()), (&b"five"[..], META));
        assert!(put(&*cache, 6, b""));
        assert_eq!(&*cache.get(6).unwrap(), b"");
        let usage = cache.usage();
        assert_eq!((usage.entries(), usage.bytes()), (2, 4));
    }
}

#[test]
fn what_is_dropped_without_commit_is_not_admitted() {
    for cache in caches() {
        drop(cache.reserve(1, 1000, META).unwrap());
        assert!(cache.get(1).is_none());
        assert_eq!(cache.usage().used, 0);
        assert!(put(&*cache, 1, b"again"));
    }
}

#[test]
fn one_writer_per_sample() {
    for cache in caches() {
        let first = cache.reserve(1, 8, META).unwrap();
        assert!(cache.reserve(1, 8, META).is_none());
        assert!(cache.get(1).is_none());
        first.commit();
        assert!(cache.reserve(1, 8, META).is_none());
    }
}

#[test]
fn no_eviction_keeps_what_it_has_when_full() {
    let cache = NoEviction::anonymous(1024, 100).unwrap();
    let admitted = (0..100)
        .filter(|&id| put(&cache, id, &[id as u8; 100]))
        .count();
    assert_eq!(admitted, 8);
    (0..8).for_each(|id| assert_eq!(&*cache.get(id).unwrap(), &[id as u8; 100]));
    assert_eq!(cache.usage().used, 1024);
    assert!(cache.reserve(100, 0, META).is_none());
}

#[test]
fn room_given_back_is_used_again() {
    let cache = NoEviction::anonymous(1024, 100).unwrap();
    let rooms: Vec<_> = (0..4)
        .map(|id| cache.reserve(id, 256, META).unwrap())
        .collect();
    assert!(cache.reserve(9, 1, META).is_none());
    drop(rooms);
    assert_eq!(cache.usage().used, 0);
    assert_eq!((10..99).filter(|&id| put(&cache, id, &[1; 256])).count(), 4);
}

#[test]
fn lru_lets_go_of_what_was_used_longest_ago() {
    let cache = Lru::new(300);
    (0..3).for_each(|id| assert!(put(&cache, id, &[id as u8; 100])));
    assert!(cache.get(0).is_some());
    assert!(put(&cache, 3, &[3; 150]));
    assert!(cache.get(0).is_some() && cache.get(3).is_some());
    assert!(cache.get(1).is_none() && cache.get(2).is_none());
    assert!(!put(&cache, 4, &[0; 301]));
    assert_eq!(cache.usage().bytes(), 250);
}

#[test]
fn more_than_there_is_memory_is_an_error() {
    let error = NoEviction::anonymous(1 << 50, 100).err().unwrap();
    assert!(error.kind().is_shortage(), "{error}");
    assert!(NoEviction::anonymous(u64::MAX, u32::MAX).is_err());
}

#[test]
fn a_removed_sample_is_cached_anew_and_who_reads_it_goes_on() {
    for cache in caches() {
        assert!(put(&*cache, 5, b"five"));
        let hit = cache.get(5).unwrap();
        cache.remove(5);
        cache.remove(6);
        assert!(cache.get(5).is_none() && !cache.has(5));
        assert!(put(&*cache, 5, b"FIVE"));
        assert_eq!(
            (&*hit, &*cache.get(5).unwrap()),
            (&b"five"[..], &b"FIVE"[..])
        );
        assert_eq!((cache.usage().entries(), cache.usage().bytes()), (1, 4));
    }
}

#[test]
fn the_room_of_removed_samples_is_used_again() {
    let cache = NoEviction::anonymous(1 << 12, 100).unwrap();
    let fill = || {
        (0..64)
            .map(|id| put(&cache, id, &[id as u8; 64]))
            .collect::<Vec<_>>()
    };
    assert_eq!(fill(), [true; 64]);
    // More often than the index has positions to spare.
    for round in 0..9 {
        (0..64).for_each(|id| cache.remove(id));
        assert_eq!(fill(), [true; 64], "round {round}");
        assert_eq!(cache.usage().used, 1 << 12);
    }
}

/// Readers compare what they read, while a writer removes and writes all samples again and again.
#[test]
fn nobody_reads_the_room_of_a_removed_sample_after_it_was_given_out() {
    let cache = NoEviction::anonymous(1 << 12, 64).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for id in 0..16 {
                        if let Some(hit) = cache.get(id) {
                            let first = hit[0];
                            std::thread::yield_now();
                            assert!(
                                first % 16 == id as u8 && hit.iter().all(|byte| *byte == first)
                            );
                        }
                    }
                }
            });
        }
        let (mut written, mut round) = (0, 0u32);
        while written < 500 {
            let id = round % 16;
            let byte = (round / 16 % 16 * 16 + id) as u8;
            written += u32::from(put(&cache, id, &[byte; 200]));
            cache.remove(id);
            round = round.wrapping_add(1);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
