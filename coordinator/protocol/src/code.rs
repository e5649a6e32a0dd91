//! What the coordinator and the processes that run user code say to each other.
//!
//! A **zygote** is started per program. It imports what the program's datasets need, once, and forks **hosts**. A host
//! belongs to a stream. It loads the dataset and forks **workers**, so that what it has loaded lies in memory once. All
//! speak over Unix sockets, each message a length (`u32`) and as many bytes:
//!
//! * with the zygote: JSON, a few messages per stream ([`ZygoteRequest`], [`ZygoteEvent`]);
//! * with the host: JSON, a few messages in the life of a stream ([`HostRequest`], [`HostEvent`]);
//! * with a worker: fixed little-endian records, one message per chunk of samples ([`Order`], [`Report`]).
//!
//! The samples themselves never pass here: a worker writes them straight into the staging buffers. One that does not fit
//! its slot is written where the coordinator says ([`Report::TooLarge`], [`Told::Room`]).
//!
//! **Invariant.** What a process of user code says is checked like a stranger's word: lengths are bounded, records
//! validated, and numbers that make no sense end that process only.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::frame;

/// Longest message.
const MAX_LENGTH: usize = 64 << 20;
/// What is read at a time, at least.
const STEP: usize = 16 << 10;
/// Memory that is kept for messages.
const KEPT: usize = 1 << 20;

/// One end of a connection with a host or a worker.
pub struct Channel {
    socket: UnixStream,
    incoming: Incoming,
    descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Over a connected socket.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        Channel {
            socket,
            incoming: Incoming::default(),
            descriptors: Vec::new(),
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the other side is gone.
    pub fn send(&self, message: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(message);
        frame::send_with_descriptors(&self.socket, &bytes, descriptors).map_err(|e| match e {
            frame::FrameError::Io(e) => e,
            other => io::Error::other(other),
        })
    }

    /// The next message. None: not within `limit`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the other side is gone; a message that is too long.
    pub fn receive(&mut self, limit: Duration) -> io::Result<Option<Vec<u8>>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(message) = self.incoming.message()? {
                return Ok(Some(message));
            }
            if !self.is_readable(end.saturating_duration_since(Instant::now()))? {
                return Ok(None);
            }
            self.read()?;
        }
    }

    /// The oldest descriptor that came with the messages so far. It may be that of a message yet to be received,
    /// so take it for a message that has one.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        (!self.descriptors.is_empty()).then(|| self.descriptors.remove(0))
    }

    /// True when the other side has hung up.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let mut fds = [PollFd::new(
            std::os::fd::AsFd::as_fd(&self.socket),
            PollFlags::empty(),
        )];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
    }

    /// Ends the connection, both ways.
    pub fn hang_up(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn is_readable(&self, limit: Duration) -> io::Result<bool> {
        // Who waits in recvmsg is also woken when the other side has read what was sent to it.
        let mut fds = [PollFd::new(
            std::os::fd::AsFd::as_fd(&self.socket),
            PollFlags::POLLIN,
        )];
        // Rounded up: a rest of less than a millisecond is no reason to spin.
        let millis = limit.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        match poll(
            &mut fds,
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(n) => Ok(n > 0),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let room = self.incoming.room();
        match frame::receive_part(&self.socket, room, &mut self.descriptors) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.incoming.came(read);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            // It has gone without reading all that it was told.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Err(e) => Err(e),
        }
    }
}

/// What was received and not yet taken.
#[derive(Default)]
pub struct Incoming {
    /// It lies in `from..to`.
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Incoming {
    /// Takes the next message. None: it has not come whole.
    ///
    /// # Errors
    /// When it says that it is too long.
    pub fn message(&mut self) -> io::Result<Option<Vec<u8>>> {
        let received = &self.buffer[self.from..self.to];
        let Some((&length, rest)) = received.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_LENGTH {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let message = rest.get(..length).map(<[u8]>::to_vec);
        if message.is_some() {
            self.from += 4 + length;
        }
        Ok(message)
    }

    /// Where more can be received. Memory is made only for a message that is longer than those before it, and not kept
    /// for a very long one.
    pub fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.to == 0 && self.buffer.len() > KEPT {
            self.buffer = Vec::new();
        }
        let needed = self.to + STEP;
        if self.buffer.len() < needed {
            let size = needed.max(self.buffer.len() * 2).max(2 * STEP);
            self.buffer.resize(size, 0);
        }
        &mut self.buffer[self.to..]
    }

    /// So many bytes came into that room.
    pub fn came(&mut self, bytes: usize) {
        self.to = (self.to + bytes).min(self.buffer.len());
    }
}

/// To a zygote.
#[derive(Serialize, Debug)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum ZygoteRequest<'a> {
    /// Import what hosts will need. Not answered: a host that cannot import it says why.
    Import {
        /// See [`UserCode::prelude`](crate::message::UserCode::prelude).
        prelude: &'a str,
    },
    /// Start a host; its end of the socket comes with the message. Answered by [`ZygoteEvent::Exited`] or
    /// [`ZygoteEvent::Failed`].
    Host {
        /// Its number, never used before.
        host: u32,
        /// What it will need: imported before it is forked.
        prelude: &'a str,
        /// It begins as a new process, and imports by itself whatever it needs.
        anew: bool,
    },
    /// End a host. Answered by [`ZygoteEvent::Exited`].
    Kill {
        /// Its number.
        host: u32,
    },
}

/// From a zygote.
#[derive(Deserialize, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum ZygoteEvent {
    /// A host has ended, and is no process any more.
    Exited {
        /// Its number.
        host: u32,
        /// As `wait(2)` says.
        status: i32,
    },
    /// A host could not be started.
    Failed {
        /// Its number.
        host: u32,
        /// For people: why.
        message: String,
    },
}

/// To a host.
#[derive(Serialize, Debug)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum HostRequest {
    /// Load the dataset from the descriptor. Answered by [`HostEvent::Loaded`].
    Load,
    /// Start a worker. Answered by [`HostEvent::Forked`].
    Fork {
        /// Its number, never used before.
        worker: u32,
        /// What it is called in its own eyes, 0 to `workers` - 1.
        id: u32,
        /// Workers there will be.
        workers: u32,
        /// Descriptors that come with it, of scratch files; before them, if there are samples to make, comes that of its
        /// worklist, [`ENTRIES`] long.
        scratch: u32,
        /// Whether that comes.
        worklist: bool,
    },
    /// Map the staging area, the descriptor, for the workers to come. Answered by [`HostEvent::Mapped`].
    Map {
        /// Staging buffers.
        buffers: u32,
        /// Samples of one.
        slots: u32,
        /// From one buffer to the next, bytes.
        stride: u64,
        /// From the start of a buffer to each field, bytes.
        offsets: Vec<u64>,
        /// Bytes of what is of no fixed size; 0: there is none.
        blob: u64,
        /// What a worker said of its sample, in hexadecimal digits.
        structure: String,
        /// Keys all random numbers.
        seed: u64,
    },
    /// Let go of the staging area: nobody needs it any more.
    Unmap,
    /// End a worker. Answered by [`HostEvent::Exited`].
    Kill {
        /// Its number.
        worker: u32,
    },
}

/// From a host.
#[derive(Deserialize, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum HostEvent {
    /// The dataset is there.
    Loaded {
        /// Its length.
        samples: u64,
    },
    /// A worker runs; its socket came with the message.
    Forked {
        /// Its number.
        worker: u32,
        /// Its process id.
        pid: u32,
    },
    /// The staging area is mapped.
    Mapped,
    /// A worker has ended, and is no process any more.
    Exited {
        /// Its number.
        worker: u32,
        /// For people: "was killed by signal 9", "exited with status 3".
        how: String,
    },
    /// A request could not be carried out.
    Failed {
        /// What, why, remedy.
        message: String,
    },
}

/// One sample that a worker is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Sample.
    pub id: u32,
    /// Staging buffer, and slot in it. None: the worker asks when it has made the sample ([`Report::Ready`]).
    pub place: Option<(u32, u32)>,
    /// The place is offered, by the sample's [`entry`]: the worker takes it, or asks if it was taken back.
    pub is_offered: bool,
    /// The value of the deterministic part is wanted for the cache.
    pub keep: bool,
    /// Keys its random numbers.
    pub visit: u64,
    /// Where the cached value of the deterministic part lies in the scratch file; of no bytes: it is not cached.
    pub cached: (u64, u64),
}

/// Chunks of samples that a worker may have at a time, each with a number below this, and a scratch file.
pub const CHUNKS: u32 = 2;
/// Most samples of a chunk.
pub const MOST: u32 = 64;
/// Of a worker's list of what it is to make.
pub const ENTRIES: u32 = CHUNKS * MOST;

/// The entry of a sample: its chunk, and which of that it is.
#[must_use]
pub fn entry(chunk: u32, index: u32) -> u32 {
    chunk.saturating_mul(MOST).saturating_add(index)
}

/// Instead of a buffer and a slot that are not yet known.
const NO_PLACE: (u32, u32) = (u32::MAX, u32::MAX);
/// Bytes of an order.
const ORDER: usize = 40;

/// Message to a worker: make these samples, but for those that are withdrawn. `chunk`: the number of the chunk.
#[must_use]
pub fn orders(chunk: u32, orders: &[Order]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(5 + ORDER * orders.len());
    bytes.push(b'S');
    bytes.extend(chunk.to_le_bytes());
    for order in orders {
        let (buffer, slot) = order.place.unwrap_or(NO_PLACE);
        let flags = u32::from(order.keep) | u32::from(order.is_offered) << 1;
        let words = [order.id, buffer, slot, flags];
        words.iter().for_each(|w| bytes.extend(w.to_le_bytes()));
        let longs = [order.visit, order.cached.0, order.cached.1];
        longs.iter().for_each(|w| bytes.extend(w.to_le_bytes()));
    }
    bytes
}

/// Message to a worker, the answer to [`Report::Ready`]: write it here.
#[must_use]
pub fn place(buffer: u32, slot: u32) -> Vec<u8> {
    let mut bytes = vec![b'B'];
    bytes.extend(buffer.to_le_bytes());
    bytes.extend(slot.to_le_bytes());
    bytes
}

/// Message to a worker, the answer to [`Report::TooLarge`]: the sample is to be written from byte `at` of the staging area
/// on. `None`: not at all, and the worker goes on with the next.
#[must_use]
pub fn room(at: Option<u64>) -> Vec<u8> {
    let mut bytes = vec![b'R'];
    bytes.extend(at.unwrap_or(NO_ROOM).to_le_bytes());
    bytes
}

/// Instead of a place in the staging area.
const NO_ROOM: u64 = u64::MAX;

/// What a worker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// [`orders`]: which chunk, and what to make.
    Make(u32, Vec<Order>),
    /// [`place`]: where to write what was made.
    Place(u32, u32),
    /// [`room`]: where to write what is larger than its slot.
    Room(Option<u64>),
    /// Something else, such as a [`probe`].
    Other,
}

impl Told {
    /// From a message.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn parse(message: &[u8]) -> Result<Told, String> {
        let (&kind, rest) = message.split_first().ok_or("an empty message")?;
        match kind {
            b'S' => {
                let (chunk, rest) = rest.split_first_chunk().ok_or("too short")?;
                let (records, []) = rest.as_chunks::<ORDER>() else {
                    return Err("orders of another length".into());
                };
                let orders = records.iter().map(order).collect();
                Ok(Told::Make(u32::from_le_bytes(*chunk), orders))
            }
            b'B' if rest.len() == 8 => Ok(Told::Place(word(rest, 0), word(rest, 4))),
            b'B' => Err("a place of another length".into()),
            b'R' if rest.len() == 8 => {
                Ok(Told::Room(Some(long(rest, 0)).filter(|&at| at != NO_ROOM)))
            }
            b'R' => Err("a room of another length".into()),
            _ => Ok(Told::Other),
        }
    }
}

fn order(record: &[u8; ORDER]) -> Order {
    let place = (word(record, 4), word(record, 8));
    Order {
        id: word(record, 0),
        place: (place != NO_PLACE).then_some(place),
        is_offered: word(record, 12) & 2 != 0,
        keep: word(record, 12) & 1 != 0,
        visit: long(record, 16),
        cached: (long(record, 24), long(record, 32)),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..].first_chunk().copied().unwrap_or_default())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..].first_chunk().copied().unwrap_or_default())
}

/// Message to a worker: make these samples, without writing them, until `enough` have succeeded, and say what they are
/// like. `split`: the size of the deterministic part too. `may_look_at_more`: where they are of no fixed size, a few more
/// of them, if that is quick.
#[must_use]
pub fn probe(ids: &[u32], enough: u8, split: bool, may_look_at_more: bool) -> Vec<u8> {
    let flags = u8::from(split) | u8::from(may_look_at_more) << 1;
    let mut bytes = vec![b'P', flags, enough];
    ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
    bytes
}

/// What a worker says of the chunk it works on, the oldest that it was given and has not ended; indices count within it.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// Some are written: which, its list tells.
    Written(Progress),
    /// This one is made: where is it to be written?
    Ready(u32),
    /// This one raised.
    Raised(u32, Raised),
    /// This one does not fit its slot: so many bytes. The worker waits for the answer, [`room`].
    TooLarge(u32, u64),
    /// Answer to a probe.
    Probed(Box<Probed>),
}

/// How far a worker came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// It is done with the chunk.
    pub ends_chunk: bool,
    /// Since it last said this: nanoseconds in which it was ready to run, and had no processor.
    pub queued_ns: u64,
    /// Of the samples that it wrote since: nanoseconds off a processor.
    pub off_ns: u64,
}

impl Progress {
    /// Part of the time off a processor, 0 to 1, that was not for want of one.
    #[must_use]
    pub fn waited_for_nothing(&self) -> f64 {
        match self.off_ns {
            0 => 0.0,
            off => off.saturating_sub(self.queued_ns) as f64 / off as f64,
        }
    }

    /// As a message.
    #[must_use]
    pub fn message(&self) -> [u8; PROGRESS] {
        let mut bytes = [b'D'; PROGRESS];
        bytes[1] = self.ends_chunk.into();
        bytes[2..10].copy_from_slice(&self.queued_ns.to_le_bytes());
        bytes[10..].copy_from_slice(&self.off_ns.to_le_bytes());
        bytes
    }
}

/// Bytes of a message of [`Progress`].
pub const PROGRESS: usize = 18;

/// An exception of user code.
#[derive(Deserialize, Clone, Debug, PartialEq, Default)]
pub struct Raised {
    /// Sample.
    #[serde(default)]
    pub id: u32,
    /// `dataset`, `transform`, or [`Raised::END`].
    pub stage: String,
    /// Type, text and traceback.
    pub message: String,
    /// For the job, in hexadecimal digits.
    pub exception: String,
}

impl Raised {
    /// The stage that is no failure: a dataset that is iterated has no such sample in this epoch, since the epoch has only so
    /// many as the message says, in decimal digits.
    pub const END: &str = "end";
}

/// What a sample is like.
#[derive(Deserialize, Clone, Debug, PartialEq)]
pub struct Probed {
    /// Name, type, shape of each field.
    #[serde(default)]
    pub fields: Vec<(String, String, Vec<u32>)>,
    /// Bytes of what is of no fixed size: so many as most of the samples that were looked at take.
    #[serde(default)]
    pub blob: u64,
    /// Bytes of the value of the deterministic part.
    #[serde(default)]
    pub kept: u64,
    /// For the job, in hexadecimal digits.
    #[serde(default)]
    pub structure: String,
    /// Nothing could be made: why.
    pub raised: Option<Raised>,
}

impl Report {
    /// From a message.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn parse(message: &[u8]) -> Result<Report, String> {
        let (&kind, rest) = message.split_first().ok_or("an empty message")?;
        let json = |e: serde_json::Error| e.to_string();
        match kind {
            b'D' if rest.len() == PROGRESS - 1 => Ok(Report::Written(Progress {
                ends_chunk: rest[0] != 0,
                queued_ns: long(rest, 1),
                off_ns: long(rest, 9),
            })),
            b'P' => serde_json::from_slice(rest)
                .map(Report::Probed)
                .map_err(json),
            b'E' | b'L' | b'W' => {
                let (index, rest) = rest.split_first_chunk::<4>().ok_or("too short")?;
                let index = u32::from_le_bytes(*index);
                if kind == b'W' {
                    return Ok(Report::Ready(index));
                }
                if kind == b'E' {
                    let raised = serde_json::from_slice(rest).map_err(json)?;
                    return Ok(Report::Raised(index, raised));
                }
                let bytes = rest.first_chunk::<8>().ok_or("too short")?;
                Ok(Report::TooLarge(index, u64::from_le_bytes(*bytes)))
            }
            other => Err(format!("a message of kind {other}")),
        }
    }
}

/// Hexadecimal digits of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes of hexadecimal digits.
///
/// # Errors
/// What is no such digit.
pub fn unhex(digits: &str) -> Result<Vec<u8>, String> {
    let digit = |c: u8| (c as char).to_digit(16).ok_or("not a hexadecimal digit");
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else {
        return Err("an odd number of digits".into());
    };
    let byte = |&[high, low]: &[u8; 2]| Ok((digit(high)? * 16 + digit(low)?) as u8);
    pairs
        .iter()
        .map(byte)
        .collect::<Result<_, &str>>()
        .map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_whatever_their_length() {
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        let (here, mut there) = (Channel::new(here), Channel::new(there));
        let long = vec![7u8; 3 * STEP + 1];
        let sender = std::thread::spawn(move || {
            for message in [&b"a"[..], b"", &long] {
                here.send(message, &[]).expect("sent");
            }
        });
        let limit = Duration::from_secs(5);
        let mut next = || there.receive(limit).expect("received").expect("in time");
        assert_eq!(next(), b"a");
        assert_eq!(next(), b"");
        assert_eq!(next().len(), 3 * STEP + 1);
        sender.join().expect("no panic");
        let end = there.receive(limit).expect_err("the other side is gone");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        assert!(there.is_lost());
    }

    #[test]
    fn who_goes_without_reading_all_is_heard_to_the_end() {
        let (here, there) = UnixStream::pair().expect("a pair of sockets");
        let (mut here, there) = (Channel::new(here), Channel::new(there));
        here.send(b"never read", &[]).expect("sent");
        there.send(b"last words", &[]).expect("sent");
        drop(there);
        let limit = Duration::from_secs(5);
        assert_eq!(
            here.receive(limit).expect("received").expect("in time"),
            b"last words"
        );
        let end = here.receive(limit).expect_err("the other side is gone");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_worker_reads_what_it_is_told() {
        let first = Order {
            id: 7,
            place: Some((1, 2)),
            is_offered: false,
            keep: true,
            visit: u64::MAX,
            cached: (64, 1 << 40),
        };
        let second = Order {
            place: None,
            keep: false,
            ..first
        };
        let third = Order {
            is_offered: true,
            ..first
        };
        let told = |message: &[u8]| Told::parse(message);
        let all = vec![first, second, third];
        assert_eq!(told(&orders(3, &all)), Ok(Told::Make(3, all)));
        assert_eq!(told(&place(5, 6)), Ok(Told::Place(5, 6)));
        assert_eq!(told(&probe(&[1], 1, false, true)), Ok(Told::Other));
        for at in [Some(0), Some(1 << 40), None] {
            assert_eq!(told(&room(at)), Ok(Told::Room(at)));
        }
        for message in [&b""[..], b"S", b"S\0\0\0", b"S\0\0\0\0\0", b"B\0\0", b"R\0"] {
            assert!(told(message).is_err(), "{message:?}");
        }
    }

    #[test]
    fn how_far_a_worker_came_is_read_as_it_was_said() {
        let mut progress = Progress {
            ends_chunk: true,
            queued_ns: 9,
            off_ns: u64::MAX,
        };
        let read = Report::parse(&progress.message());
        assert_eq!(read, Ok(Report::Written(progress)));
        let parts = [(0, 0, 0.0), (9, 4, 0.0), (3, 4, 0.25), (0, 4, 1.0)];
        for (queued, off, part) in parts {
            (progress.queued_ns, progress.off_ns) = (queued, off);
            assert_eq!(progress.waited_for_nothing(), part);
        }
    }

    #[test]
    fn every_sample_has_an_entry_of_its_own() {
        let entries = (0..CHUNKS).flat_map(|chunk| (0..MOST).map(move |index| entry(chunk, index)));
        assert!(entries.eq(0..ENTRIES));
        assert!(entry(u32::MAX, u32::MAX) >= ENTRIES);
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        for message in [
            &b""[..],
            b"X",
            b"D",
            b"D\0\0\0\0\0\0\0\x001",
            &[b'D'; PROGRESS + 1],
            b"E",
            b"E\0\0\0\0{",
            b"L\0\0\0\0\0",
            b"W\0\0",
            b"P[]",
        ] {
            assert!(Report::parse(message).is_err(), "{message:?}");
        }
        assert_eq!(unhex("00fF"), Ok(vec![0, 255]));
        assert!(unhex("0").is_err() && unhex("0g").is_err());
    }

    #[test]
    fn a_length_that_is_too_long_is_refused_before_it_is_read() {
        let (mut here, there) = UnixStream::pair().expect("a pair of sockets");
        io::Write::write_all(&mut here, &u32::MAX.to_le_bytes()).expect("written");
        let mut there = Channel::new(there);
        assert!(there.receive(Duration::from_secs(5)).is_err());
    }
}
