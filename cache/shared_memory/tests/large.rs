//! Values that are larger than their slots, with both sides in one process.

#![expect(unsafe_code, reason = "reads and writes what a view points to")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::os::fd::AsFd;
use std::time::Duration;

use coprep_shared_memory::staging::{Layout, SlotMut, StagingPool};
use coprep_shared_memory::view::{LargeMap, LargeValue, StagingView};

const LIMIT: u64 = 8 << 20;
const BIG: usize = 3 << 20;

fn layout() -> Layout {
    let layout = Layout::new(&[100, 8], 2, 3).unwrap();
    layout.with_large(0, LIMIT).unwrap()
}

fn both() -> (StagingPool, StagingView) {
    let pool = StagingPool::create(layout()).unwrap();
    let view = StagingView::open(pool.reader_fd().unwrap(), layout()).unwrap();
    (pool, view)
}

fn write(slot: &mut SlotMut, bytes: usize, byte: u8) {
    let at = slot.reserve_large(bytes as u64, false).unwrap();
    assert!(at.is_some());
    slot.large_mut().unwrap().fill(byte);
}

fn bytes(map: &LargeMap) -> &[u8] {
    // SAFETY: mapped for reading as long as `map` is borrowed; nobody writes it meanwhile.
    unsafe { std::slice::from_raw_parts(map.start().as_ptr(), map.len()) }
}

/// Writes the whole value, like a training loop that works in place.
fn overwrite(map: &mut LargeMap, byte: u8) {
    // SAFETY: mapped for writing, and nobody else looks at it, since the map is borrowed exclusively.
    unsafe { map.start().write_bytes(byte, map.len()) };
}

fn only(view: &StagingView, buffer: u32) -> LargeValue {
    let mut found = view.large_values(buffer, 0..2).unwrap();
    assert_eq!(found.len(), 1);
    found.pop().unwrap()
}

#[test]
fn a_large_value_arrives_and_the_next_one_takes_its_place() {
    let (pool, view) = both();
    for round in 0..3u8 {
        let (mut slots, unfinished) = pool.allocate().unwrap().split(2);
        slots[0].field_mut(0).fill(round + 1);
        write(&mut slots[1], BIG, round);
        drop(slots);
        let lease = unfinished.finish();
        let value = only(&view, lease.buffer());
        assert_eq!((value.slot, value.len()), (1, BIG));
        let mut map = view.map_large(&value).unwrap();
        assert!(bytes(&map).iter().all(|&b| b == round));
        overwrite(&mut map, 77);
        assert!(bytes(&map).iter().all(|&b| b == 77));
        let other = view.map_large(&value).unwrap();
        assert!(bytes(&other).iter().all(|&b| b == round));
        drop((map, lease));
        assert_eq!(pool.free(), 3);
    }
    let buffers = layout().total_bytes() as u64;
    assert_eq!(pool.reserved_bytes() - buffers, 4 << 20, "it is used again");
}

#[test]
fn a_slot_that_had_a_large_value_has_none_once_its_buffer_was_released() {
    let (pool, view) = both();
    let (mut slots, unfinished) = pool.allocate().unwrap().split(2);
    write(&mut slots[0], BIG, 1);
    drop((slots, unfinished));
    let (slots, unfinished) = pool.allocate().unwrap().split(2);
    drop(slots);
    let lease = unfinished.finish();
    assert_eq!(view.large_values(lease.buffer(), 0..2).unwrap(), []);
}

#[test]
fn a_slot_that_is_written_anew_has_what_was_written_last() {
    let (pool, view) = both();
    let (mut slots, unfinished) = pool.allocate().unwrap().split(2);
    write(&mut slots[0], BIG, 1);
    write(&mut slots[0], 5000, 2);
    write(&mut slots[1], BIG, 3);
    slots[1].forget_large();
    drop(slots);
    let lease = unfinished.finish();
    let map = view.map_large(&only(&view, lease.buffer())).unwrap();
    assert_eq!(bytes(&map), [2; 5000]);
}

#[test]
fn a_failed_sample_is_closed_over_by_a_large_one() {
    let (pool, view) = both();
    let (mut slots, mut unfinished) = pool.allocate().unwrap().split(2);
    write(&mut slots[1], BIG, 9);
    drop(slots);
    unfinished.copy_slot(1, 0);
    let lease = unfinished.finish();
    let found = view.large_values(lease.buffer(), 0..1).unwrap();
    let map = view.map_large(&found[0]).unwrap();
    assert!(bytes(&map).iter().all(|&b| b == 9));
    drop((map, lease));
    let (slots, unfinished) = pool.allocate().unwrap().split(2);
    drop(slots);
    let lease = unfinished.finish();
    let found = view.large_values(lease.buffer(), 0..2).unwrap();
    assert_eq!(found, [], "nothing of it is left in either slot");
}

#[test]
fn what_a_consumer_keeps_stays_when_the_memory_is_another_s() {
    let (pool, view) = both();
    let (mut slots, unfinished) = pool.allocate().unwrap().split(2);
    write(&mut slots[0], BIG, 4);
    drop(slots);
    let lease = unfinished.finish();
    let map = view.map_large(&only(&view, lease.buffer())).unwrap();
    map.keep();
    drop(lease);
    let (mut slots, _unfinished) = pool.allocate().unwrap().split(2);
    write(&mut slots[0], BIG, 5);
    assert!(bytes(&map).iter().all(|&b| b == 4));
}

#[test]
fn what_was_handed_over_stays_as_it_is_once_the_pool_is_retired() {
    let (pool, view) = both();
    let (mut slots, unfinished) = pool.allocate().unwrap().split(2);
    slots[0].field_mut(0).fill(1);
    write(&mut slots[1], BIG, 6);
    drop(slots);
    let lease = unfinished.finish();
    let (mut late, _unfinished) = pool.allocate().unwrap().split(2);
    write(&mut late[0], BIG, 7);
    pool.retire();
    // The connection ends, but neither the consumer nor the workers have noticed yet.
    let buffer = lease.buffer();
    drop(lease);
    assert!(pool.is_retired() && pool.allocate().is_none());
    for beyond_limit in [false, true] {
        let given = late[1].reserve_large(BIG as u64, beyond_limit).unwrap();
        assert_eq!(given, None);
    }
    late[0].large_mut().unwrap().fill(8);
    late[0].forget_large();
    let map = view.map_large(&only(&view, buffer)).unwrap();
    assert!(bytes(&map).iter().all(|&b| b == 6));
}

#[test]
fn a_slot_that_gives_up_keeps_nobody_waiting() {
    let (pool, _view) = both();
    let (mut slots, unfinished) = pool.allocate().unwrap().split(2);
    write(&mut slots[0], LIMIT as usize, 1);
    drop(slots);
    let _lease = unfinished.finish();
    let (mut first, _first) = pool.allocate().unwrap().split(2);
    let (mut second, _second) = pool.allocate().unwrap().split(2);
    let waits = |slot: &mut SlotMut| slot.reserve_large(BIG as u64, false).unwrap().is_none();
    assert!(waits(&mut second[0]) && second[0].waits_longest());
    assert!(waits(&mut first[0]) && !second[0].waits_longest());
    first[0].forget_large();
    assert!(second[0].waits_longest());
    // The buffer's other slot is not written yet, so the buffer is still the one that was begun first.
    let gone = first.pop();
    assert!(waits(&mut first[0]) && !second[0].waits_longest());
    drop(first);
    assert!(second[0].waits_longest());
    drop(gone);
}

#[test]
fn memory_is_reserved_before_anybody_is_told_of_it() {
    let (pool, _view) = both();
    let file = pool.reader_fd().unwrap();
    let blocks = || nix::sys::stat::fstat(file.as_fd()).unwrap().st_blocks as u64 * 512;
    assert_eq!(
        blocks(),
        pool.reserved_bytes(),
        "the large area takes nothing yet"
    );
    let (mut slots, _unfinished) = pool.allocate().unwrap().split(2);
    assert!(slots[0].reserve_large(5 << 20, false).unwrap().is_some());
    assert_eq!(blocks(), pool.reserved_bytes());
}

#[test]
fn who_waits_for_memory_is_woken_when_a_buffer_is_released() {
    let (pool, _view) = both();
    let (mut slots, unfinished) = pool.allocate().unwrap().split(2);
    write(&mut slots[0], LIMIT as usize, 1);
    drop(slots);
    let lease = unfinished.finish();
    let (mut slots, _unfinished) = pool.allocate().unwrap().split(2);
    assert_eq!(slots[0].reserve_large(BIG as u64, false).unwrap(), None);
    assert!(slots[0].large_mut().is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            drop(lease);
        });
        while slots[0].reserve_large(BIG as u64, false).unwrap().is_none() {
            // Only the release can end this wait, since the runner lets no test take as long.
            pool.wait_for_large(Duration::from_secs(600));
        }
    });
    assert_eq!(pool.reserved_bytes() - layout().total_bytes() as u64, LIMIT);
}

#[test]
fn a_place_outside_of_the_large_area_is_refused() {
    let (pool, view) = both();
    let (mut slots, unfinished) = pool.allocate().unwrap().split(2);
    write(&mut slots[0], 5000, 1);
    let marker: Vec<u8> = slots[0].field_mut(0)[..24].to_vec();
    let lies = [
        (8, 0u64),
        (8, u64::MAX - 4095),
        (8, 4097),
        (16, u64::MAX),
        (16, 1 << 62),
        (16, 1 << 25),
    ];
    for (at, number) in lies {
        let slot = slots[0].field_mut(0);
        slot[..24].copy_from_slice(&marker);
        slot[at..at + 8].copy_from_slice(&number.to_ne_bytes());
        assert!(
            view.large_values(unfinished.buffer(), 0..2).is_err(),
            "{at} {number}"
        );
    }
}

#[test]
fn a_view_of_more_buffers_than_there_are_is_refused_though_the_file_is_long_enough() {
    let (pool, _view) = both();
    let more = Layout::new(&[100, 8], 2, 300)
        .unwrap()
        .with_large(0, LIMIT)
        .unwrap();
    assert!(StagingView::open(pool.reader_fd().unwrap(), more).is_err());
}

#[test]
fn a_layout_without_large_values_has_none() {
    let small = Layout::new(&[8], 1, 1).unwrap();
    assert!(
        small.clone().with_large(0, LIMIT).is_err(),
        "no room in its slots"
    );
    assert!(small.clone().with_large(1, LIMIT).is_err());
    let pool = StagingPool::create(small).unwrap();
    let (mut slots, _unfinished) = pool.allocate().unwrap().split(1);
    assert!(slots[0].reserve_large(1 << 20, true).is_err());
}
