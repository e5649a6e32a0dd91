//! Fuzzes the coordinator's side of the hand-over with a consumer that writes anything at any time to all memory that
//! it may write: its *reply* region and its bell.
//!
//! The coordinator must never panic or block. It must not accept the release of an item that is not held. At most it
//! ends that session, and another consumer still takes every item once and in order.
#![no_main]

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use coprep_fuzz::Bytes;
use coprep_shared_memory::ErrorKind;
use coprep_shared_memory::handover::{Bell, Doorbell, Item, ItemKind, Receiver, Sender};
use libfuzzer_sys::fuzz_target;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};

const CAPACITY: u32 = 4;
/// Bytes of a *reply* region that mean something: four lines of 128 bytes, and the ring.
const REPLY: u64 = 4 * 128 + 8 * CAPACITY as u64;

fuzz_target!(init: coprep_fuzz::seed(&seeds()), |data: &[u8]| {
    let mut input = Bytes(data);
    let doorbell = Doorbell::new().expect("descriptors");
    let mut hostile = Hostile::new(&doorbell);
    let mut honest = Honest::new(&doorbell);
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0 => hostile.publish(),
            1 | 2 => hostile.scribble(&mut input),
            3 => hostile.abuse_bell(input.byte()),
            4 => {
                if !hostile.poll() {
                    hostile = Hostile::new(&doorbell);
                }
            }
            5 => honest.publish(),
            6 => honest.take_and_release(input.byte()),
            _ => {
                doorbell.wait(Duration::ZERO);
                honest.rings(&doorbell);
            }
        }
    }
    honest.finish();
});

struct Hostile {
    sender: Sender,
    reply: File,
    bell: OwnedFd,
    _bell: Bell,
    /// Sequence numbers of items that are published and not released.
    held: HashSet<u64>,
    published: u64,
    taken: u64,
}

impl Hostile {
    fn new(doorbell: &Doorbell) -> Self {
        let mut sender = Sender::create(CAPACITY).expect("memory");
        let (_, reply) = sender.fds().expect("descriptors");
        let bell = doorbell.bell().expect("descriptors");
        Hostile {
            sender,
            reply: reply.into(),
            bell: bell.fd().expect("descriptors"),
            _bell: bell,
            held: HashSet::new(),
            published: 0,
            taken: 0,
        }
    }

    fn publish(&mut self) {
        assert_eq!(self.sender.is_full(), self.held.len() == CAPACITY as usize);
        match self.sender.publish(item(self.published)) {
            Ok(seq) => assert!(seq == self.published && self.held.insert(seq)),
            Err(_) => return assert_eq!(self.held.len(), CAPACITY as usize),
        }
        self.published += 1;
    }

    /// Writes a word, mostly one that could be right, or punches a hole.
    fn scribble(&self, input: &mut Bytes<'_>) {
        let at = input.small() % REPLY;
        let word = match input.byte() % 4 {
            0 => u64::from_le_bytes(input.take()),
            1 => self.published.wrapping_sub(input.byte().into()),
            _ => input.byte().into(),
        };
        let written = match input.byte() % 16 {
            0 => fallocate(
                &self.reply,
                FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE,
                0,
                4096,
            )
            .map_err(std::io::Error::from),
            1..8 => self
                .reply
                .write_all_at(&(word as u32).to_le_bytes(), at & !3),
            _ => self.reply.write_all_at(&word.to_le_bytes(), at & !7),
        };
        written.expect("it may be written");
    }

    /// Reads or writes the bell. The descriptor is made non-blocking first, since it is blocking from time to time.
    fn abuse_bell(&self, how: u8) {
        let flags = |flags| {
            let _ = fcntl(&self.bell, FcntlArg::F_SETFL(flags));
        };
        flags(OFlag::O_NONBLOCK);
        let _ = match how % 3 {
            0 => nix::unistd::read(&self.bell, &mut [0; 8]),
            1 => nix::unistd::write(&self.bell, &(u64::MAX - 1).to_ne_bytes()),
            _ => nix::unistd::write(&self.bell, &1u64.to_ne_bytes()),
        };
        if how % 2 == 0 {
            flags(OFlag::empty());
        }
    }

    /// Checks the coordinator's view of this consumer. Returns `false` if its session ends.
    fn poll(&mut self) -> bool {
        // The consumer may have written anything, so any result is right. Only a panic is not.
        let _ = (self.sender.has_news(), self.sender.account());
        let taken = match self.sender.taken() {
            Ok(taken) => taken,
            Err(e) => return protocol_violation(&e),
        };
        assert!((self.taken..=self.published).contains(&taken));
        self.taken = taken;
        let held = &mut self.held;
        let released = self
            .sender
            .poll_released(|seq| assert!(held.remove(&seq), "{seq}"));
        assert_eq!(self.sender.in_flight(), self.held.len());
        released.map_or_else(|e| protocol_violation(&e), |()| true)
    }
}

fn protocol_violation(error: &coprep_shared_memory::Error) -> bool {
    assert!(
        matches!(error.kind(), ErrorKind::ProtocolViolation),
        "{error}"
    );
    false
}

struct Honest {
    sender: Sender,
    receiver: Receiver,
    _bell: Bell,
    published: u64,
    taken: u64,
    held: VecDeque<u64>,
}

impl Honest {
    fn new(doorbell: &Doorbell) -> Self {
        let mut sender = Sender::create(CAPACITY).expect("memory");
        let (deliver, reply) = sender.fds().expect("descriptors");
        let bell = doorbell.bell().expect("descriptors");
        let receiver = Receiver::open(deliver, reply, bell.fd().expect("descriptors"));
        Honest {
            sender,
            receiver: receiver.expect("regions"),
            _bell: bell,
            published: 0,
            taken: 0,
            held: VecDeque::new(),
        }
    }

    fn publish(&mut self) {
        self.sender.poll_released(|_| ()).expect("it is honest");
        if self.sender.publish(item(self.published)).is_ok() {
            self.published += 1;
        }
    }

    fn take_and_release(&mut self, how: u8) {
        let next = self.receiver.try_next().expect("items of a known kind");
        let expected = (self.taken < self.published).then(|| (self.taken, item(self.taken)));
        assert_eq!(next, expected);
        if let Some((seq, _)) = next {
            self.taken += 1;
            self.held.push_back(seq);
        }
        let released = match how % 3 {
            0 => self.held.pop_front(),
            1 => self.held.pop_back(),
            _ => None,
        };
        if let Some(seq) = released {
            self.receiver.release(seq).expect("it is held");
        }
    }

    /// Checks that the doorbell rings for this consumer, whatever the hostile one does to its own bell.
    fn rings(&mut self, doorbell: &Doorbell) {
        self.sender.arm();
        if let Some(seq) = self.held.pop_front() {
            self.receiver.release(seq).expect("it is held");
            assert!(doorbell.wait(Duration::ZERO));
        }
        self.sender.disarm();
    }

    fn finish(mut self) {
        while self.taken < self.published || !self.held.is_empty() {
            self.take_and_release(0);
        }
        self.sender.poll_released(|_| ()).expect("it is honest");
        assert_eq!(self.sender.in_flight(), 0);
        assert_eq!(self.sender.taken().ok(), Some(self.published));
    }
}

fn item(tag: u64) -> Item {
    Item {
        kind: ItemKind::Part as u32,
        buffer: 1,
        start: 2,
        len: 3,
        flags: 0,
        pool: 0,
        epoch: tag + 1,
        tag,
    }
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        // The first consumer's items are published, taken and released in order.
        vec![0, 0, 1, 0, 0, 1, 0, 1, 4, 5, 6, 0, 1, 128, 0, 1, 0, 1, 4, 7],
        vec![5, 5, 6, 0, 6, 1, 3, 1, 7, 3, 0, 7, 5, 6, 2, 7],
    ]
}
