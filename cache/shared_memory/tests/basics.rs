//! Both sides in one process, without faults.

#![expect(unsafe_code, reason = "reads and writes what a view points to")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use coprep_shared_memory::handover::{Bell, Doorbell, Item, ItemKind, Receiver, Sender};
use coprep_shared_memory::staging::{Layout, Lease, StagingPool};
use coprep_shared_memory::view::{PinnableView, StagingView};

fn layout() -> Layout {
    Layout::new(&[5000, 8], 4, 3).unwrap()
}

fn fill(pool: &StagingPool, byte: u8) -> Lease {
    let (mut slots, unfinished) = pool.allocate().unwrap().split(4);
    for (i, slot) in slots.iter_mut().enumerate() {
        slot.field_mut(0).fill(byte + i as u8);
        slot.field_mut(1).fill(0xee);
    }
    drop(slots);
    unfinished.finish()
}

fn read(view: &StagingView, buffer: u32, field: usize) -> Vec<u8> {
    let bytes = view.layout().field_bytes(field);
    // SAFETY: the buffer is not written meanwhile, and the length is the field's.
    unsafe { std::slice::from_raw_parts(view.field(buffer, field).as_ptr(), bytes) }.to_vec()
}

#[test]
fn fields_and_buffers_start_on_pages() {
    let layout = layout();
    assert_eq!((layout.field_offset(0), layout.field_offset(1)), (0, 20480));
    assert_eq!(layout.stride(), 24576);
    assert_eq!(layout.total_bytes(), 3 * 24576);
}

#[test]
fn sizes_that_overflow_are_an_error() {
    assert!(Layout::new(&[usize::MAX / 2], 3, 1).is_err());
    assert!(Layout::new(&[1 << 40], 1 << 20, 1 << 20).is_err());
    assert!(Layout::new(&[], 1, 1).is_err());
    assert!(Layout::new(&[8], 0, 1).is_err());
    assert!(Layout::new(&[8, 0], 1, 1).is_err());
}

#[test]
fn a_buffer_is_free_again_when_its_last_lease_is_dropped() {
    let pool = StagingPool::create(layout()).unwrap();
    let lease = fill(&pool, 1);
    let other = lease.clone();
    assert_eq!(pool.free(), 2);
    drop(lease);
    assert_eq!(pool.free(), 2);
    drop(other);
    assert_eq!(pool.free(), 3);
}

#[test]
fn a_buffer_that_is_given_up_is_free_again_once_its_last_writer_is_gone() {
    let pool = StagingPool::create(layout()).unwrap();
    let (slots, unfinished) = pool.allocate().unwrap().split(4);
    drop(unfinished);
    assert_eq!(pool.free(), 2);
    drop(slots);
    assert_eq!(pool.free(), 3);
    drop(pool.allocate());
    assert_eq!(pool.free(), 3);
}

#[test]
fn the_buffer_that_was_used_last_is_taken_first() {
    let pool = StagingPool::create(layout()).unwrap();
    let (first, second) = (fill(&pool, 1), fill(&pool, 2));
    let (first_number, second_number) = (first.buffer(), second.buffer());
    drop(first);
    drop(second);
    assert_eq!(fill(&pool, 3).buffer(), second_number);
    let _again = fill(&pool, 3);
    assert_eq!(fill(&pool, 3).buffer(), first_number);
}

#[test]
fn there_are_no_more_buffers_than_there_are() {
    let pool = StagingPool::create(layout()).unwrap();
    let all: Vec<_> = (0..3).map(|_| pool.allocate().unwrap()).collect();
    assert!(pool.allocate().is_none());
    drop(all);
    assert!(pool.allocate().is_some());
}

#[test]
fn a_failed_sample_is_closed_over_in_every_field() {
    let pool = StagingPool::create(layout()).unwrap();
    let (mut slots, mut unfinished) = pool.allocate().unwrap().split(4);
    slots[3].field_mut(0).fill(9);
    slots[3].field_mut(1).fill(7);
    assert!(!unfinished.is_complete());
    drop(slots);
    unfinished.copy_slot(3, 1);
    let lease = unfinished.finish();
    assert!(lease.field(0)[5000..10000].iter().all(|&b| b == 9));
    assert!(lease.field(1)[8..16].iter().all(|&b| b == 7));
}

#[test]
#[should_panic(expected = "while a slot is being written")]
fn no_buffer_is_finished_under_a_writer() {
    let pool = StagingPool::create(layout()).unwrap();
    let (_slots, unfinished) = pool.allocate().unwrap().split(4);
    let _ = unfinished.finish();
}

#[test]
fn a_consumer_sees_what_was_written() {
    let pool = StagingPool::create(layout()).unwrap();
    let lease = fill(&pool, 10);
    let view = StagingView::open(pool.reader_fd().unwrap(), layout()).unwrap();
    assert_eq!(read(&view, lease.buffer(), 0), lease.field(0));
    assert_eq!(lease.field(0)[3 * 5000], 13);
    assert_eq!(read(&view, lease.buffer(), 1), [0xee; 32]);
}

#[test]
fn a_view_of_another_size_is_refused() {
    let pool = StagingPool::create(layout()).unwrap();
    let larger = Layout::new(&[5000, 8], 4, 4).unwrap();
    assert!(StagingView::open(pool.reader_fd().unwrap(), larger).is_err());
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    assert!(StagingView::open(file.into(), layout()).is_err());
}

#[test]
fn what_a_view_keeps_stays_as_it_is_when_the_buffer_is_used_again() {
    let pool = StagingPool::create(layout()).unwrap();
    let [one, other] =
        [(), ()].map(|()| StagingView::open(pool.reader_fd().unwrap(), layout()).unwrap());
    let lease = fill(&pool, 1);
    let buffer = lease.buffer();
    let before = read(&one, buffer, 0);
    one.keep(buffer);
    drop(lease);
    let leases: Vec<Lease> = (0..3).map(|_| fill(&pool, 100)).collect();
    assert!(leases.iter().any(|lease| lease.buffer() == buffer));
    assert_eq!(read(&one, buffer, 0), before);
    assert_eq!(read(&other, buffer, 0)[0], 100, "only for this view");
    one.drop_private_pages(buffer).unwrap();
    assert_eq!(read(&one, buffer, 0)[0], 100, "until it is let go");
}

#[test]
fn what_one_view_writes_no_other_sees_and_the_next_use_neither() {
    let pool = StagingPool::create(layout()).unwrap();
    let lease = fill(&pool, 10);
    let buffer = lease.buffer();
    let view = StagingView::open(pool.reader_fd().unwrap(), layout()).unwrap();
    let other = StagingView::open(pool.reader_fd().unwrap(), layout()).unwrap();
    assert_eq!(view.drop_private_pages(buffer).unwrap(), 0);
    // SAFETY: inside the field.
    unsafe { view.field(buffer, 0).as_ptr().add(4096).write(99) };
    assert_eq!(read(&view, buffer, 0)[4096], 99);
    assert_eq!(read(&other, buffer, 0)[4096], 10);
    assert_eq!(lease.field(0)[4096], 10);
    assert_eq!(other.drop_private_pages(buffer).unwrap(), 0);
    assert_eq!(view.drop_private_pages(buffer).unwrap(), 1);
    assert_eq!(read(&view, buffer, 0)[4096], 10);
}

#[test]
fn dropping_one_buffer_leaves_its_neighbour() {
    let pool = StagingPool::create(layout()).unwrap();
    let view = StagingView::open(pool.reader_fd().unwrap(), layout()).unwrap();
    for buffer in 0..3 {
        // SAFETY: inside the fields.
        unsafe {
            view.field(buffer, 0)
                .as_ptr()
                .write_bytes(7, layout().field_bytes(0));
            view.field(buffer, 1)
                .as_ptr()
                .write_bytes(8, layout().field_bytes(1));
        }
    }
    assert_eq!(view.drop_private_pages(1).unwrap(), 6);
    assert_eq!(read(&view, 1, 0)[0], 0);
    for buffer in [0, 2] {
        assert!(read(&view, buffer, 0).iter().all(|&b| b == 7));
        assert!(read(&view, buffer, 1).iter().all(|&b| b == 8));
    }
}

/// Both ends of a hand-over of four items, and the doorbell between them.
struct Handover {
    sender: Sender,
    receiver: Receiver,
    doorbell: Doorbell,
    /// The consumer's rings wake nobody once this is dropped.
    bell: Bell,
}

fn handover() -> Handover {
    let mut sender = Sender::create(4).unwrap();
    let doorbell = Doorbell::new().unwrap();
    let bell = doorbell.bell().unwrap();
    let (deliver, reply) = sender.fds().unwrap();
    let receiver = Receiver::open(deliver, reply, bell.fd().unwrap()).unwrap();
    Handover {
        sender,
        receiver,
        doorbell,
        bell,
    }
}

fn part(tag: u64) -> Item {
    Item {
        kind: ItemKind::Part as u32,
        buffer: 1,
        start: 2,
        len: 2,
        flags: 3,
        pool: 4,
        epoch: u64::MAX,
        tag,
    }
}

#[test]
fn items_come_in_order_and_whole() {
    let Handover {
        mut sender,
        receiver,
        ..
    } = handover();
    assert_eq!(receiver.try_next().unwrap(), None);
    for tag in 0..3 {
        assert_eq!(sender.publish(part(tag)).unwrap(), tag);
    }
    for tag in 0..3 {
        assert_eq!(receiver.try_next().unwrap(), Some((tag, part(tag))));
    }
    assert_eq!(sender.taken().unwrap(), 3);
    assert_eq!(receiver.held(), 3);
}

#[test]
fn releases_come_in_any_order_once_each() {
    let Handover {
        mut sender,
        receiver,
        ..
    } = handover();
    for round in 0..100 {
        for tag in 0..4 {
            sender.publish(part(tag)).unwrap();
        }
        assert!(sender.is_full() && sender.publish(part(0)).is_err());
        (0..4).for_each(|_| assert!(receiver.try_next().unwrap().is_some()));
        for k in [2, 0, 3, 1] {
            receiver.release(round * 4 + k).unwrap();
            assert!(receiver.release(round * 4 + k).is_err());
        }
        let mut released = Vec::new();
        sender
            .poll_released(|seq| released.push(seq - round * 4))
            .unwrap();
        assert_eq!(released, [2, 0, 3, 1]);
        assert_eq!(sender.in_flight(), 0);
    }
}

#[test]
fn a_consumer_rings_only_for_a_coordinator_that_sleeps() {
    let Handover {
        mut sender,
        receiver,
        doorbell,
        bell: _bell,
    } = handover();
    sender.disarm();
    sender.publish(part(0)).unwrap();
    sender.publish(part(1)).unwrap();
    receiver.try_next().unwrap();
    assert!(!doorbell.wait(Duration::ZERO));
    sender.arm();
    assert!(sender.has_news());
    sender.taken().unwrap();
    assert!(!sender.has_news());
    receiver.release(0).unwrap();
    assert!(doorbell.wait(Duration::ZERO));
    sender.disarm();
    receiver.try_next().unwrap();
    assert!(!doorbell.wait(Duration::ZERO));
}

#[test]
fn a_consumer_that_joins_a_sleeping_coordinator_rings() {
    let Handover {
        mut sender,
        receiver,
        doorbell,
        bell: _bell,
    } = handover();
    sender.publish(part(0)).unwrap();
    receiver.try_next().unwrap();
    assert!(doorbell.wait(Duration::ZERO));
}

#[test]
fn a_wait_ends_when_its_time_is_up_or_something_comes() {
    let Handover {
        mut sender,
        receiver,
        ..
    } = handover();
    assert!(!receiver.wait(Duration::from_millis(5)));
    let waiting = std::thread::spawn(move || receiver.wait(Duration::from_secs(20)));
    std::thread::sleep(Duration::from_millis(20));
    sender.publish(part(0)).unwrap();
    assert!(waiting.join().unwrap());
}

#[test]
fn what_is_taken_back_is_neither_seen_nor_released() {
    let Handover {
        mut sender,
        receiver,
        bell: _bell,
        ..
    } = handover();
    for tag in 0..3 {
        sender.publish(part(tag)).unwrap();
    }
    assert_eq!(receiver.try_next().unwrap(), Some((0, part(0))));
    assert_eq!(
        sender.take_back().unwrap(),
        1,
        "the first is the consumer's"
    );
    assert_eq!(receiver.try_next().unwrap(), None);
    assert!(!receiver.wait(Duration::ZERO));
    assert_eq!((sender.taken().unwrap(), sender.in_flight()), (3, 1));
    assert_eq!(sender.take_back().unwrap(), 3, "there is nothing");
    // Three of the four slots are free again, and the ring goes on as before.
    for round in 0..20 {
        let first = 3 + 3 * round;
        for seq in first..first + 3 {
            assert_eq!(sender.publish(part(seq)).unwrap(), seq);
        }
        assert!(sender.is_full());
        assert_eq!(receiver.try_next().unwrap(), Some((first, part(first))));
        assert_eq!(sender.take_back().unwrap(), first + 1);
        receiver.release(first).unwrap();
        assert!(receiver.release(first + 1).is_err());
        let mut released = Vec::new();
        sender.poll_released(|seq| released.push(seq)).unwrap();
        assert_eq!(released, [first]);
    }
    assert_eq!((receiver.held(), sender.in_flight()), (1, 1));
}

#[test]
fn an_absent_consumer_rings_when_it_waits() {
    let Handover {
        mut sender,
        receiver,
        doorbell,
        bell: _bell,
    } = handover();
    sender.publish(part(0)).unwrap();
    sender.take_back().unwrap();
    sender.set_absent(true);
    assert!(!sender.is_waiting() && !sender.has_news());
    assert!(!doorbell.wait(Duration::ZERO), "it computes");
    let waiting = std::thread::spawn(move || receiver.wait(Duration::from_secs(20)));
    assert!(doorbell.wait(Duration::from_secs(20)));
    assert!(sender.is_waiting() && sender.has_news());
    sender.set_absent(false);
    sender.publish(part(1)).unwrap();
    assert!(!sender.is_waiting(), "there is something to take");
    assert!(waiting.join().unwrap());
}

#[test]
fn the_share_arrives() {
    let Handover {
        sender, receiver, ..
    } = handover();
    assert_eq!(receiver.share(), 0);
    sender.set_share(17);
    assert_eq!(receiver.share(), 17);
}

#[test]
fn an_item_outside_the_staging_area_is_refused() {
    assert!(part(0).check(&layout()).is_ok());
    assert!(
        Item {
            buffer: 3,
            ..part(0)
        }
        .check(&layout())
        .is_err()
    );
    assert!(
        Item {
            start: 3,
            ..part(0)
        }
        .check(&layout())
        .is_err()
    );
    assert!(
        Item {
            start: u32::MAX,
            ..part(0)
        }
        .check(&layout())
        .is_err()
    );
    assert!(Item { kind: 9, ..part(0) }.check(&layout()).is_err());
}

#[test]
fn more_than_there_is_memory_is_an_error() {
    let huge = Layout::new(&[1 << 40], 64, 64).unwrap();
    let error = StagingPool::create(huge).err().unwrap();
    assert!(error.kind().is_shortage(), "{error}");
}

fn pinnable(pool: &StagingPool, layout: Layout) -> PinnableView {
    PinnableView::open(&pool.reader_fd().unwrap(), layout).unwrap()
}

#[test]
fn a_pinnable_view_shows_what_is_written_after_it_was_mapped() {
    let pool = StagingPool::create(layout()).unwrap();
    let view = pinnable(&pool, layout());
    for byte in [1, 50] {
        let lease = fill(&pool, byte);
        let range = view.slots(lease.buffer(), 0, 1..3);
        assert_eq!(range.len(), 2 * 5000);
        // SAFETY: in the area, and the lease keeps the buffer from being written.
        let seen = unsafe {
            std::slice::from_raw_parts(view.start().add(range.start).as_ptr(), range.len())
        };
        let expected = [vec![byte + 1; 5000], vec![byte + 2; 5000]].concat();
        assert_eq!(seen, expected);
    }
}

/// Returns the access that `/proc/self/maps` shows for the mapping at an address, such as `r--s`.
fn access(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let bound = |text| usize::from_str_radix(text, 16).unwrap();
        (bound(from)..bound(to)).contains(&address)
    });
    line.unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn a_pinnable_view_is_shared_and_cannot_be_written_whatever_its_size() {
    // The second area is larger than a huge page, so that it is mapped on such a boundary.
    for layout in [layout(), Layout::new(&[1 << 20], 4, 2).unwrap()] {
        let pool = StagingPool::create(layout.clone()).unwrap();
        let view = pinnable(&pool, layout);
        assert_eq!(access(view.start().as_ptr() as usize), "r--s");
    }
}

#[test]
fn a_pinnable_view_of_fewer_bytes_than_the_layout_says_is_refused() {
    let pool = StagingPool::create(layout()).unwrap();
    let larger = Layout::new(&[5000, 8], 4, 4).unwrap();
    assert!(PinnableView::open(&pool.reader_fd().unwrap(), larger).is_err());
}

#[test]
fn an_item_is_seen_before_it_is_taken_unless_it_was_taken_back() {
    let Handover {
        mut sender,
        receiver,
        ..
    } = handover();
    let seen = || [0, 1, 2].map(|ahead| receiver.peek(ahead).map(|(seq, item)| (seq, item.tag)));
    assert_eq!(seen(), [None; 3]);
    sender.publish(part(10)).unwrap();
    sender.publish(part(11)).unwrap();
    assert_eq!(seen(), [Some((0, 10)), Some((1, 11)), None]);
    let (seq, item) = receiver.try_next().unwrap().unwrap();
    assert_eq!((seq, item.tag), (0, 10));
    assert_eq!(seen(), [Some((1, 11)), None, None]);
    assert_eq!(sender.take_back().unwrap(), 1);
    assert_eq!(seen(), [None; 3]);
    sender.publish(part(12)).unwrap();
    assert_eq!(seen(), [Some((2, 12)), None, None]);
}
