//! The hand-over between processes that are fast, die, or misbehave.
#![expect(
    unsafe_code,
    reason = "reads and writes what a view points to, and attacks"
)]
#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Peer, Random, TIMEOUT, receive, role, say, until_closed};
use coprep_shared_memory::ErrorKind;
use coprep_shared_memory::handover::{Bell, Doorbell, Item, ItemKind, Receiver, Sender};
use coprep_shared_memory::staging::{Layout, Lease, StagingPool};
use coprep_shared_memory::view::StagingView;
use memmap2::MmapOptions;

/// The entry point of the child process.
#[test]
fn child() {
    let Some((role, socket)) = role() else { return };
    match role.as_str() {
        "consumer" => consume(&socket),
        "hoarder" => hoard(&socket),
        "in place" => write_in_place(&socket),
        "attacker" => attack(&socket),
        "fork" => fork_a_view(&socket),
        other => panic!("no role {other}"),
    }
}

const ITEMS: u64 = 30_000;

fn layout() -> Layout {
    Layout::new(&[1000, 8], 8, 6).unwrap()
}

/// A coordinator with one consumer.
struct Coordinator {
    pool: StagingPool,
    sender: Sender,
    doorbell: Doorbell,
    bell: Bell,
    leases: HashMap<u64, Lease>,
}

impl Coordinator {
    fn new() -> Self {
        let doorbell = Doorbell::new().unwrap();
        Coordinator {
            pool: StagingPool::create(layout()).unwrap(),
            sender: Sender::create(16).unwrap(),
            bell: doorbell.bell().unwrap(),
            doorbell,
            leases: HashMap::new(),
        }
    }

    fn descriptors(&mut self) -> [OwnedFd; 4] {
        let (deliver, reply) = self.sender.fds().unwrap();
        [
            self.pool.reader_fd().unwrap(),
            deliver,
            reply,
            self.bell.fd().unwrap(),
        ]
    }

    fn try_publish(&mut self, tag: u64) -> bool {
        if self.sender.is_full() {
            return false;
        }
        let Some(filling) = self.pool.allocate() else {
            return false;
        };
        let (mut slots, unfinished) = filling.split(8);
        for slot in &mut slots {
            slot.field_mut(0).fill(pattern(tag));
            slot.field_mut(1).copy_from_slice(&tag.to_ne_bytes());
        }
        drop(slots);
        let lease = unfinished.finish();
        let seq = self.sender.publish(item(lease.buffer(), tag)).unwrap();
        self.leases.insert(seq, lease);
        true
    }

    /// Reads the consumer's steps. Returns true if a buffer came back.
    fn poll(&mut self) -> bool {
        let before = self.leases.len();
        self.sender.taken().unwrap();
        self.sender
            .poll_released(|seq| drop(self.leases.remove(&seq).unwrap()))
            .unwrap();
        self.leases.len() < before
    }

    fn poll_or_sleep(&mut self) {
        // Use a returned buffer before sleeping: the consumer may be waiting for it.
        if self.poll() {
            return;
        }
        self.sender.arm();
        if !self.sender.has_news() {
            // If a ring were lost, this wait would time out.
            assert!(self.doorbell.wait(TIMEOUT), "nobody rang");
        }
        self.sender.disarm();
        self.poll();
    }
}

fn item(buffer: u32, tag: u64) -> Item {
    Item {
        kind: ItemKind::Part as u32,
        buffer,
        start: 0,
        len: 8,
        flags: 0,
        pool: 0,
        epoch: 1,
        tag,
    }
}

fn pattern(tag: u64) -> u8 {
    (tag % 251) as u8
}

/// A consumer's view and receiver.
struct Consumer {
    view: StagingView,
    receiver: Receiver,
}

impl Consumer {
    fn new(socket: &UnixStream) -> Self {
        let [staging, deliver, reply, doorbell] = receive(socket);
        let view = StagingView::open(staging, layout()).unwrap();
        Consumer {
            view,
            receiver: Receiver::open(deliver, reply, doorbell).unwrap(),
        }
    }

    fn next(&self) -> (u64, Item) {
        let start = Instant::now();
        loop {
            if let Some(next) = self.receiver.try_next().unwrap() {
                next.1.check(&layout()).unwrap();
                return next;
            }
            self.receiver.wait(TIMEOUT);
            assert!(start.elapsed() < TIMEOUT, "nothing came");
        }
    }

    #[expect(clippy::mut_from_ref, reason = "one such slice at a time")]
    fn field(&self, buffer: u32, field: usize) -> &mut [u8] {
        let len = layout().field_bytes(field);
        // SAFETY: inside the mapping; this test uses one such slice at a time.
        unsafe { std::slice::from_raw_parts_mut(self.view.field(buffer, field).as_ptr(), len) }
    }

    fn check(&self, item: &Item) {
        let (bytes, tags) = (self.field(item.buffer, 0), self.field(item.buffer, 1));
        assert!(
            bytes.iter().all(|&b| b == pattern(item.tag)),
            "item {} holds {:?}",
            item.tag,
            &bytes[..8]
        );
        assert!(
            tags.chunks(8).all(|tag| tag == item.tag.to_ne_bytes()),
            "item {}",
            item.tag
        );
    }
}

fn consume(socket: &UnixStream) {
    let consumer = Consumer::new(socket);
    let (mut random, mut held) = (Random(7), Vec::new());
    for tag in 0..ITEMS {
        let (seq, item) = consumer.next();
        assert_eq!((seq, item.tag), (tag, tag));
        consumer.check(&item);
        held.push((seq, item));
        while held.len() > random.below(4) as usize {
            let (seq, item) = held.swap_remove(random.below(held.len() as u64) as usize);
            consumer.check(&item);
            if random.below(3) == 0 {
                consumer.field(item.buffer, 0).fill(255);
            }
            consumer.view.drop_private_pages(item.buffer).unwrap();
            consumer.receiver.release(seq).unwrap();
        }
        if random.below(500) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for (seq, item) in held {
        consumer.check(&item);
        consumer.receiver.release(seq).unwrap();
    }
    until_closed(socket);
}

#[test]
fn every_minibatch_arrives_once_in_order_and_whole() {
    let mut coordinator = Coordinator::new();
    let mut consumer = Peer::start("consumer");
    consumer.send(&coordinator.descriptors());
    let mut tag = 0;
    while tag < ITEMS {
        if coordinator.try_publish(tag) {
            tag += 1
        } else {
            coordinator.poll_or_sleep()
        }
    }
    while !coordinator.leases.is_empty() {
        coordinator.poll_or_sleep();
    }
    assert_eq!(coordinator.pool.free(), 6);
    consumer.ends_well();
}

fn hoard(socket: &UnixStream) {
    let consumer = Consumer::new(socket);
    let held: Vec<_> = (0..3).map(|_| consumer.next()).collect();
    say(socket, held.len() as u64);
    until_closed(socket);
    panic!("was to be killed");
}

#[test]
fn a_killed_consumer_releases_its_minibatches() {
    let mut coordinator = Coordinator::new();
    let mut consumer = Peer::start("hoarder");
    consumer.send(&coordinator.descriptors());
    (0..5).for_each(|tag| assert!(coordinator.try_publish(tag)));
    assert_eq!(consumer.hear(), 3);
    consumer.kill();
    assert_eq!(coordinator.sender.taken().unwrap(), 3);
    assert_eq!(coordinator.pool.free(), 1);
    // The coordinator drops both when the socket closes.
    drop(coordinator.sender);
    drop(coordinator.leases);
    assert_eq!(coordinator.pool.free(), 6);
}

fn write_in_place(socket: &UnixStream) {
    let consumer = Consumer::new(socket);
    let (seq, item) = consumer.next();
    consumer
        .field(item.buffer, 0)
        .iter_mut()
        .for_each(|b| *b = b.wrapping_add(100));
    assert_eq!(consumer.field(item.buffer, 0)[7], pattern(item.tag) + 100);
    say(socket, 1);
    common::hear(socket);
    let (other, same_buffer_later) = {
        assert_eq!(consumer.view.drop_private_pages(item.buffer).unwrap(), 2);
        consumer.receiver.release(seq).unwrap();
        consumer.next()
    };
    assert_eq!(same_buffer_later.buffer, item.buffer);
    consumer.check(&same_buffer_later);
    consumer.receiver.release(other).unwrap();
    until_closed(socket);
}

#[test]
fn what_a_consumer_writes_in_place_nobody_sees_and_it_is_gone_with_the_release() {
    let mut coordinator = Coordinator::new();
    // The test holds all other buffers, so that the same one is used over and over.
    let others: Vec<_> = (0..5)
        .map(|_| coordinator.pool.allocate().unwrap())
        .collect();
    let mut consumer = Peer::start("in place");
    consumer.send(&coordinator.descriptors());
    let bystander = StagingView::open(coordinator.pool.reader_fd().unwrap(), layout()).unwrap();
    coordinator.try_publish(3);
    consumer.hear();
    let buffer = coordinator.leases[&0].buffer();
    // SAFETY: inside the field; nobody writes it.
    let seen = unsafe { bystander.field(buffer, 0).as_ptr().add(7).read() };
    assert_eq!(seen, pattern(3));
    assert_eq!(coordinator.leases[&0].field(0)[7], pattern(3));
    say(&consumer.socket, 1);
    while !coordinator.try_publish(4) {
        coordinator.poll_or_sleep();
    }
    while !coordinator.leases.is_empty() {
        coordinator.poll_or_sleep();
    }
    drop(others);
    consumer.ends_well();
}

/// Tries everything that a process of the same user can do with the descriptors that it was given.
fn attack(socket: &UnixStream) {
    let [staging, deliver, _reply, _doorbell] = receive(socket);
    for fd in [&staging, &deliver] {
        cannot_write(fd);
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let reopened = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path);
        if let Ok(file) = reopened {
            cannot_write(&file.into());
        }
    }
    until_closed(socket);
}

fn cannot_write(fd: &OwnedFd) {
    use nix::fcntl::{FallocateFlags, fallocate};
    assert!(nix::sys::uio::pwrite(fd, b"x", 0).is_err());
    assert!(nix::unistd::ftruncate(fd, 0).is_err());
    assert!(nix::unistd::ftruncate(fd, 1 << 30).is_err());
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    assert!(fallocate(fd, punch, 0, 4096).is_err());
    assert!(
        MmapOptions::new()
            .len(4096)
            .map_raw(fd.as_raw_fd())
            .is_err()
    );
    let readable = MmapOptions::new()
        .len(4096)
        .map_raw_read_only(fd.as_raw_fd())
        .unwrap();
    let made_writable = {
        let start = std::ptr::NonNull::new(readable.as_mut_ptr().cast()).unwrap();
        let both = nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE;
        // SAFETY: the mapping is ours, and is not written through.
        unsafe { nix::sys::mman::mprotect(start, 4096, both) }
    };
    assert!(made_writable.is_err());
}

#[test]
fn a_consumer_cannot_write_what_others_read() {
    let mut coordinator = Coordinator::new();
    coordinator.try_publish(5);
    let mut attacker = Peer::start("attacker");
    attacker.send(&coordinator.descriptors());
    attacker.ends_well();
    assert!(
        coordinator.leases[&0]
            .field(0)
            .iter()
            .all(|&b| b == pattern(5))
    );
}

#[test]
fn a_consumer_cannot_shrink_what_the_coordinator_reads() {
    let mut coordinator = Coordinator::new();
    let [_, _, reply, _] = coordinator.descriptors();
    assert!(nix::unistd::ftruncate(&reply, 0).is_err());
    assert!(nix::unistd::ftruncate(&reply, 1 << 20).is_err());
}

#[test]
fn invalid_values_in_the_reply_region_end_the_session_and_nothing_else() {
    let (mut random, mut accused) = (Random(1), 0);
    for _ in 0..300 {
        let mut coordinator = Coordinator::new();
        let (_, reply) = coordinator.sender.fds().unwrap();
        let reply = MmapOptions::new().map_raw(reply.as_raw_fd()).unwrap();
        (0..4).for_each(|tag| assert!(coordinator.try_publish(tag)));
        for _ in 0..random.below(4) + 1 {
            let word = [0, 128, 256, 384, 392, 400][random.below(6) as usize];
            let value =
                [0, 1, 2, 4, 5, u32::MAX, random.below(1 << 32) as u32][random.below(7) as usize];
            // SAFETY: aligned, and inside the mapping.
            unsafe {
                reply
                    .as_mut_ptr()
                    .add(word)
                    .cast::<u32>()
                    .write_volatile(value)
            };
            let leases = &mut coordinator.leases;
            let polled = if random.below(2) == 0 {
                coordinator.sender.taken()
            } else {
                coordinator.sender.take_back()
            };
            let polled = polled.map(drop);
            let polled = polled.and_then(|()| {
                coordinator
                    .sender
                    .poll_released(|seq| assert!(leases.remove(&seq).is_some(), "{seq} twice"))
            });
            if let Err(e) = polled {
                assert!(matches!(e.kind(), ErrorKind::ProtocolViolation), "{e}");
                accused += 1;
                break;
            }
        }
        let pool = coordinator.pool.clone();
        drop(coordinator);
        assert_eq!(pool.free(), 6);
    }
    assert!(accused > 100, "{accused}");
}

fn fork_a_view(socket: &UnixStream) {
    let consumer = Consumer::new(socket);
    consumer.field(0, 0).fill(1);
    // SAFETY: the child makes plain system calls and ends at once.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            consumer.field(1, 0).fill(1);
            let dropped = [0, 1, 2].map(|buffer| consumer.view.drop_private_pages(buffer).ok());
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(dropped != [Some(2), Some(2), Some(0)])) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let ended = nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    assert_eq!(consumer.view.drop_private_pages(1).unwrap(), 0);
    assert_eq!(consumer.view.drop_private_pages(0).unwrap(), 2);
}

#[test]
fn a_forked_child_drops_its_own_pages_and_not_its_parents() {
    let mut coordinator = Coordinator::new();
    let mut consumer = Peer::start("fork");
    consumer.send(&coordinator.descriptors());
    consumer.ends_well();
}
