//! Models of the steps of each lock-free protocol: the hand-over, and a worker's task table. They cover every
//! interleaving and every value that weak memory allows.
//!
//! ```sh
//! cargo test -p coprep-shared-memory --features loom --test loom
//! ```
//!
//! Loom reports a lost wake-up as a deadlock, and a minibatch that is written while it is read as a causality
//! violation. The steps are the crate's own code; only the futex and the eventfd are models.
#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(unsafe_code, reason = "loom's cells, which check what is claimed")]

#[path = "common/model.rs"]
mod model;

use std::sync::Arc;

use coprep_shared_memory::handover::Item;
use coprep_shared_memory::handover::protocol::{
    DeliverHead, Futex, ItemSlot, Publisher, Releaser, ReplyHead, Taker, Words,
};
use coprep_shared_memory::task_table::Written;
use coprep_shared_memory::task_table::entry::TaskEntry;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use model::{Buffer, model};

/// The words of one consumer, in private memory.
struct Cells {
    deliver: DeliverHead,
    items: Vec<ItemSlot>,
    reply: ReplyHead,
    releases: Vec<AtomicU64>,
    futex: ModelFutex,
}

#[derive(Clone)]
struct SharedPlain(Arc<Cells>);

impl SharedPlain {
    fn new(capacity: usize) -> Self {
        SharedPlain(Arc::new(Cells {
            deliver: DeliverHead::default(),
            items: (0..capacity).map(|_| ItemSlot::default()).collect(),
            reply: ReplyHead::default(),
            releases: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            futex: ModelFutex::default(),
        }))
    }
}

impl Words for SharedPlain {
    fn deliver(&self) -> &DeliverHead {
        &self.0.deliver
    }
    fn items(&self) -> &[ItemSlot] {
        &self.0.items
    }
    fn reply(&self) -> &ReplyHead {
        &self.0.reply
    }
    fn releases(&self) -> &[AtomicU64] {
        &self.0.releases
    }
}

/// A model of the kernel's futex. It compares and enqueues under one lock, and wakes under the same lock.
#[derive(Default)]
struct ModelFutex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex for ModelFutex {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let queue = self.queue.lock().unwrap();
        if word.load(Ordering::SeqCst) == seen {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake(&self, _: &AtomicU32) {
        drop(self.queue.lock().unwrap());
        self.woken.notify_all();
    }
}

/// A model of an eventfd.
#[derive(Default)]
struct ModelBell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl ModelBell {
    fn ring(&self) {
        *self.rings.lock().unwrap() += 1;
        self.rung.notify_all();
    }

    fn wait(&self) {
        let mut rings = self.rings.lock().unwrap();
        while *rings == 0 {
            rings = self.rung.wait(rings).unwrap();
        }
        *rings = 0;
    }
}

fn item(tag: u64) -> Item {
    Item {
        kind: 1,
        buffer: 7,
        start: tag as u32,
        len: 9,
        flags: 0,
        pool: 0,
        epoch: tag + 5,
        tag,
    }
}

/// Takes the next item, and sleeps until it is published.
fn next(taker: &Taker, words: &SharedPlain, bell: Option<&ModelBell>) -> (u64, Item) {
    loop {
        if let Some((seq, item, ring)) = taker.take(words) {
            if let (true, Some(bell)) = (ring, bell) {
                bell.ring();
            }
            return (seq, item);
        }
        taker.wait(words, &words.0.futex, || {
            bell.into_iter().for_each(ModelBell::ring)
        });
    }
}

fn release(releaser: &mut Releaser, words: &SharedPlain, seq: u64, bell: Option<&ModelBell>) {
    if let (true, Some(bell)) = (releaser.release(words, seq), bell) {
        bell.ring();
    }
}

#[test]
fn an_item_that_was_looked_at_is_the_one_that_is_taken_later() {
    model(3, || {
        let words = SharedPlain::new(2);
        let mut publisher = Publisher::new(words.clone());
        publisher.publish(&item(0), &words.0.futex).unwrap();
        let consumer = thread::spawn({
            let words = words.clone();
            move || {
                let taker = Taker;
                let seen = [taker.peek(&words, 0), taker.peek(&words, 1)];
                while let Some((seq, taken, _)) = taker.take(&words) {
                    let before = seen.iter().flatten().find(|(number, _)| *number == seq);
                    assert!(before.is_none_or(|(_, before)| *before == taken));
                }
            }
        });
        // The entries of the items that are taken back are used again.
        publisher.take_back().unwrap();
        for tag in 1..3 {
            let _ = publisher.publish(&item(tag), &words.0.futex);
        }
        consumer.join().unwrap();
    });
}

#[test]
fn a_consumer_that_sleeps_is_woken_for_every_item_and_finds_it_whole() {
    model(3, || {
        let words = SharedPlain::new(2);
        let consumer = thread::spawn({
            let words = words.clone();
            move || {
                let taker = Taker;
                for seq in 0..2 {
                    assert_eq!(next(&taker, &words, None), (seq, item(seq)));
                }
            }
        });
        let mut publisher = Publisher::new(words.clone());
        for seq in 0..2 {
            assert_eq!(publisher.publish(&item(seq), &words.0.futex), Ok(seq));
        }
        consumer.join().unwrap();
        assert_eq!(publisher.taken(), Ok(2));
    });
}

#[test]
fn an_honest_consumer_is_never_accused() {
    model(3, || {
        let words = SharedPlain::new(2);
        let mut publisher = Publisher::new(words.clone());
        for seq in 0..2 {
            publisher.publish(&item(seq), &words.0.futex).unwrap();
        }
        let consumer = thread::spawn({
            let words = words.clone();
            move || {
                let (taker, mut releaser) = (Taker, Releaser::default());
                (0..2).for_each(|_| assert!(taker.take(&words).is_some()));
                releaser.release(&words, 1);
                releaser.release(&words, 0);
            }
        });
        let mut released = Vec::new();
        publisher.poll_released(|seq| released.push(seq)).unwrap();
        publisher.taken().unwrap();
        consumer.join().unwrap();
        publisher.poll_released(|seq| released.push(seq)).unwrap();
        assert_eq!((released, publisher.taken()), (vec![1, 0], Ok(2)));
    });
}

#[test]
fn a_coordinator_that_sleeps_hears_of_every_release() {
    model(3, || {
        let (words, bell) = (SharedPlain::new(1), Arc::new(ModelBell::default()));
        let mut publisher = Publisher::new(words.clone());
        publisher.publish(&item(0), &words.0.futex).unwrap();
        let consumer = thread::spawn({
            let (words, bell) = (words.clone(), bell.clone());
            move || {
                let (seq, _) = next(&Taker, &words, Some(&bell));
                release(&mut Releaser::default(), &words, seq, Some(&bell));
            }
        });
        until_released(&mut [publisher], &bell, 1);
        consumer.join().unwrap();
    });
}

/// The coordinator's loop: poll, arm, look again, sleep, disarm.
fn until_released(publishers: &mut [Publisher<SharedPlain>], bell: &ModelBell, wanted: usize) {
    let mut released = 0;
    loop {
        for publisher in publishers.iter_mut() {
            publisher.taken().unwrap();
            publisher.poll_released(|_| released += 1).unwrap();
        }
        if released == wanted {
            return;
        }
        publishers.iter().for_each(Publisher::arm);
        if !publishers.iter().any(Publisher::has_news) {
            bell.wait();
        }
        publishers.iter().for_each(Publisher::disarm);
    }
}

#[test]
fn one_doorbell_serves_two_consumers() {
    model(2, || {
        let bell = Arc::new(ModelBell::default());
        let words = [SharedPlain::new(1), SharedPlain::new(1)];
        let mut publishers = words.clone().map(Publisher::new);
        for (publisher, words) in publishers.iter_mut().zip(&words) {
            publisher.publish(&item(0), &words.0.futex).unwrap();
        }
        let consumers = words.map(|words| {
            let bell = bell.clone();
            thread::spawn(move || {
                // The item was published before the model began; only the release is under test.
                let (seq, _, _) = Taker.take(&words).unwrap();
                release(&mut Releaser::default(), &words, seq, Some(&bell));
            })
        });
        until_released(&mut publishers, &bell, 2);
        consumers.into_iter().for_each(|c| c.join().unwrap());
    });
}

#[test]
fn a_buffer_is_written_again_only_when_its_reader_is_done() {
    model(2, || {
        let (words, bell, buffer) = (
            SharedPlain::new(1),
            Arc::new(ModelBell::default()),
            Buffer::new(),
        );
        let consumer = thread::spawn({
            let (words, bell, buffer) = (words.clone(), bell.clone(), buffer.clone());
            move || {
                let (taker, mut releaser) = (Taker, Releaser::default());
                for expected in 0..2 {
                    let (seq, found) = next(&taker, &words, Some(&bell));
                    assert_eq!((seq, found), (expected, item(expected)));
                    assert_eq!(buffer.read(), 100 + expected);
                    release(&mut releaser, &words, seq, Some(&bell));
                }
            }
        });
        let mut publishers = [Publisher::new(words.clone())];
        for seq in 0..2 {
            buffer.write(100 + seq);
            publishers[0].publish(&item(seq), &words.0.futex).unwrap();
            until_released(&mut publishers, &bell, 1);
        }
        consumer.join().unwrap();
    });
}

#[test]
fn a_buffer_of_two_consumers_is_written_again_only_when_both_are_done() {
    model(2, || {
        let (bell, buffer) = (Arc::new(ModelBell::default()), Buffer::new());
        let words = [SharedPlain::new(1), SharedPlain::new(1)];
        let mut publishers = words.clone().map(Publisher::new);
        buffer.write(100);
        for (publisher, words) in publishers.iter_mut().zip(&words) {
            publisher.publish(&item(0), &words.0.futex).unwrap();
        }
        let consumers = words.map(|words| {
            let (bell, buffer) = (bell.clone(), buffer.clone());
            thread::spawn(move || {
                let (seq, _, _) = Taker.take(&words).unwrap();
                assert_eq!(buffer.read(), 100);
                release(&mut Releaser::default(), &words, seq, Some(&bell));
            })
        });
        until_released(&mut publishers, &bell, 2);
        buffer.write(101);
        consumers.into_iter().for_each(|c| c.join().unwrap());
    });
}

#[test]
fn the_rings_wrap_around_while_older_items_are_held() {
    model(2, || {
        let (words, bell) = (SharedPlain::new(2), Arc::new(ModelBell::default()));
        let mut publishers = [Publisher::new(words.clone())];
        for seq in 0..2 {
            publishers[0].publish(&item(seq), &words.0.futex).unwrap();
        }
        let consumer = thread::spawn({
            let (words, bell) = (words.clone(), bell.clone());
            move || {
                let (taker, mut releaser) = (Taker, Releaser::default());
                let (first, _) = next(&taker, &words, Some(&bell));
                let (second, _) = next(&taker, &words, Some(&bell));
                release(&mut releaser, &words, second, Some(&bell));
                let (third, found) = next(&taker, &words, Some(&bell));
                assert_eq!(found, item(2));
                release(&mut releaser, &words, third, Some(&bell));
                release(&mut releaser, &words, first, Some(&bell));
            }
        });
        until_released(&mut publishers, &bell, 1);
        publishers[0].publish(&item(2), &words.0.futex).unwrap();
        until_released(&mut publishers, &bell, 2);
        consumer.join().unwrap();
    });
}

#[test]
fn every_item_is_taken_or_taken_back_and_none_is_both() {
    model(3, || {
        let (words, bell) = (SharedPlain::new(2), Arc::new(ModelBell::default()));
        let mut publisher = Publisher::new(words.clone());
        for seq in 0..2 {
            publisher.publish(&item(seq), &words.0.futex).unwrap();
        }
        let consumer = thread::spawn({
            let (words, bell) = (words.clone(), bell.clone());
            move || {
                let (taker, mut releaser, mut taken) = (Taker, Releaser::default(), Vec::new());
                // Item 2 is published after `take_back`, so it is never taken back.
                while taken.last() != Some(&2) {
                    let (seq, found) = next(&taker, &words, Some(&bell));
                    assert_eq!(found, item(seq), "whole, and the one that it took");
                    taken.push(seq);
                    release(&mut releaser, &words, seq, Some(&bell));
                }
                taken
            }
        });
        let first = publisher.take_back().unwrap();
        let mut released = Vec::new();
        // The ring has room for two items. The items taken back make room at once.
        while publisher.is_full() {
            publisher.arm();
            if !publisher.has_news() {
                bell.wait();
            }
            publisher.disarm();
            publisher.poll_released(|seq| released.push(seq)).unwrap();
        }
        assert_eq!(publisher.publish(&item(2), &words.0.futex), Ok(2));
        let taken = consumer.join().unwrap();
        assert_eq!(taken, (0..first).chain([2]).collect::<Vec<_>>());
        publisher.poll_released(|seq| released.push(seq)).unwrap();
        assert_eq!((released, publisher.in_flight()), (taken, 0));
    });
}

#[test]
fn an_absent_consumer_that_reads_again_is_heard() {
    model(3, || {
        let (words, bell) = (SharedPlain::new(2), Arc::new(ModelBell::default()));
        let mut publisher = Publisher::new(words.clone());
        publisher.publish(&item(0), &words.0.futex).unwrap();
        let consumer = thread::spawn({
            let (words, bell) = (words.clone(), bell.clone());
            move || while next(&Taker, &words, Some(&bell)).0 < 1 {}
        });
        publisher.take_back().unwrap();
        publisher.set_absent(true);
        // The consumer may have gone to sleep before this or not: either we see it, or it rings.
        while !publisher.is_waiting() {
            bell.wait();
        }
        publisher.set_absent(false);
        publisher.publish(&item(1), &words.0.futex).unwrap();
        consumer.join().unwrap();
    });
}

/// A new consumer is armed before it is told its location, whatever the coordinator's driver does meanwhile.
#[test]
fn a_consumer_that_joins_while_the_coordinator_sleeps_is_heard() {
    model(2, || {
        let (words, bell) = (SharedPlain::new(1), Arc::new(ModelBell::default()));
        let publishers = Arc::new(Mutex::new(Vec::new()));
        let session = thread::spawn({
            let (words, bell, publishers) = (words.clone(), bell.clone(), publishers.clone());
            move || {
                let mut publisher = Publisher::new(words.clone());
                publisher.arm();
                publisher.publish(&item(0), &words.0.futex).unwrap();
                publishers.lock().unwrap().push(publisher);
                let (seq, _) = next(&Taker, &words, Some(&bell));
                release(&mut Releaser::default(), &words, seq, Some(&bell));
            }
        });
        let mut released = 0;
        let mut look = |publishers: &mut Vec<Publisher<SharedPlain>>| {
            for publisher in publishers.iter_mut() {
                publisher.taken().unwrap();
                publisher.poll_released(|_| released += 1).unwrap();
            }
            released == 1
        };
        loop {
            let mut there = publishers.lock().unwrap();
            there.iter().for_each(Publisher::arm);
            let is_over = look(&mut there);
            drop(there);
            if is_over {
                break;
            }
            bell.wait();
            publishers
                .lock()
                .unwrap()
                .iter()
                .for_each(Publisher::disarm);
        }
        session.join().unwrap();
    });
}

/// A buffer becomes free on another thread than the driver's. Either the driver sees it in its last look, or the driver
/// is rung for (`Doorbell::set_idle`, `StagingPool::on_free`).
#[test]
fn a_buffer_that_becomes_free_while_the_coordinator_goes_to_sleep_is_seen() {
    model(3, || {
        let (bell, is_idle) = (Arc::new(ModelBell::default()), Arc::new(AtomicU32::new(0)));
        let free = Arc::new(Mutex::new(0));
        let worker = thread::spawn({
            let (bell, is_idle, free) = (bell.clone(), is_idle.clone(), free.clone());
            move || {
                *free.lock().unwrap() += 1;
                if is_idle.load(Ordering::SeqCst) != 0 {
                    bell.ring();
                }
            }
        });
        loop {
            is_idle.store(1, Ordering::SeqCst);
            if *free.lock().unwrap() > 0 {
                break;
            }
            bell.wait();
            is_idle.store(0, Ordering::SeqCst);
        }
        worker.join().unwrap();
    });
}

// Models of a worker's task table.

fn told(value: u64) -> Written {
    Written {
        wall_ns: value,
        cpu_ns: value + 1,
        dataset_ns: value + 2,
        kept: (value + 3, value + 4),
        blob: value + 5,
    }
}

/// Exactly one side prepares the sample, and the coordinator sees the bytes that the worker wrote.
#[test]
fn a_sample_is_made_by_the_worker_or_withdrawn_and_made_elsewhere() {
    model(3, || {
        let (entry, slot) = (Arc::new(TaskEntry::default()), Buffer::new());
        entry.give();
        let worker = thread::spawn({
            let (entry, slot) = (entry.clone(), slot.clone());
            move || {
                let is_ours = entry.begin(7);
                if is_ours {
                    slot.write(1);
                    entry.write(&told(10));
                }
                is_ours
            }
        });
        let is_withdrawn = entry.withdraw();
        if is_withdrawn {
            slot.write(2);
            assert_eq!((entry.began(), entry.written()), (None, None));
        } else {
            assert_eq!(entry.began(), Some(7));
            if let Some(written) = entry.written() {
                assert_eq!((written, slot.read()), (told(10), 1));
            }
        }
        assert_ne!(worker.join().unwrap(), is_withdrawn);
        assert_eq!(entry.written(), (!is_withdrawn).then(|| told(10)));
    });
}

/// The slot of a sample is written by the worker, or taken back and given to another sample.
#[test]
fn a_place_that_is_offered_is_had_by_one_of_both() {
    model(3, || {
        let (entry, slot) = (Arc::new(TaskEntry::default()), Buffer::new());
        entry.give();
        let worker = thread::spawn({
            let (entry, slot) = (entry.clone(), slot.clone());
            move || {
                assert!(entry.begin(7), "nobody withdraws it");
                let is_ours = entry.commit();
                if is_ours {
                    slot.write(1);
                    entry.write(&told(10));
                }
                is_ours
            }
        });
        // This fails before the worker has begun: the slot may not be the worker's yet.
        let is_back = entry.take_back();
        if is_back {
            slot.write(2);
            assert!(!entry.is_taken() && entry.began() == Some(7));
        }
        let is_taken = worker.join().unwrap();
        assert!(is_back != is_taken && entry.is_taken() == is_taken);
    });
}

/// The coordinator learns by a message that the worker has finished a chunk, and queues new samples in its entries.
#[test]
fn what_was_told_of_an_earlier_sample_is_not_believed_of_a_later_one() {
    model(2, || {
        let entry = Arc::new(TaskEntry::default());
        let (given, ended) = (
            Arc::new(ModelBell::default()),
            Arc::new(ModelBell::default()),
        );
        let worker = thread::spawn({
            let (entry, given, ended) = (entry.clone(), given.clone(), ended.clone());
            move || {
                let mut made = Vec::new();
                for round in 1..=2 {
                    given.wait();
                    if entry.begin(round) {
                        entry.write(&told(round * 10));
                        made.push(round);
                    }
                    ended.ring();
                }
                made
            }
        });
        let mut expected = Vec::new();
        for round in 1..=2 {
            entry.give();
            given.ring();
            let is_withdrawn = entry.withdraw();
            // The worker may be running now, so the report is of this round or there is none.
            assert!(
                entry
                    .written()
                    .is_none_or(|told_of| told_of == told(round * 10))
            );
            assert!(entry.began().is_none_or(|began| began == round));
            ended.wait();
            assert_eq!(entry.written(), (!is_withdrawn).then(|| told(round * 10)));
            if !is_withdrawn {
                expected.push(round);
            }
        }
        assert_eq!(worker.join().unwrap(), expected);
    });
}
