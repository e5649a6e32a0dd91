//! Messages between the coordinator and the processes that run user code.
//!
//! One **zygote** is started per program. It imports the modules that the program's datasets need, once, and forks
//! **fork servers**. A fork server belongs to a stream. It loads the dataset and forks **workers**, so that the loaded
//! dataset lies in memory once. All of them use Unix sockets. Each message is its length (`u32`), followed by that many
//! bytes:
//!
//! * with the zygote: JSON, a few messages per stream ([`ZygoteRequest`], [`ZygoteEvent`]);
//! * with the fork server: JSON, a few messages in the life of a stream ([`ForkServerRequest`], [`ForkServerEvent`]);
//! * with a worker: fixed little-endian records, one message per chunk of samples ([`SampleRequest`],
//!   [`WorkerReport`]).
//!
//! Samples never pass through these sockets: a worker writes them straight into the staging buffers. If a sample does
//! not fit its slot, the coordinator tells the worker where to write it ([`WorkerReport::TooLarge`],
//! [`WorkerCommand::Room`]).
//!
//! **Invariant.** Messages from processes of user code are not trusted: lengths are bounded, records are validated, and
//! a malformed number ends that process only.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::frame;
use crate::polling::poll;

/// Longest message. A longer announced length is refused before any memory is allocated for it.
const MAX_LENGTH: usize = 64 << 20;
/// Free room that each read is given, at least.
const STEP: usize = 16 << 10;
/// Largest receive buffer that is kept while it is empty. A larger one is freed, since very long messages are rare.
const KEPT: usize = 1 << 20;

/// One end of a connection with a fork server or a worker.
pub struct Channel {
    socket: UnixStream,
    incoming: Incoming,
    descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Creates a channel over a connected socket.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        Channel {
            socket,
            incoming: Incoming::default(),
            descriptors: Vec::new(),
        }
    }

    /// Sends a message, with descriptors if there are any.
    ///
    /// # Errors
    /// When the other side is gone.
    pub fn send(&self, message: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(message);
        frame::send_with_descriptors(&self.socket, &bytes, descriptors)
    }

    /// Receives the next message. Returns `None` if none comes within `limit`, which no signal shortens.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the other side is gone; another error for a message that is too long.
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

    /// Takes the oldest descriptor that came with the messages so far. It may belong to a message that has not been
    /// received yet, so call this only for a message that has a descriptor.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        (!self.descriptors.is_empty()).then(|| self.descriptors.remove(0))
    }

    /// Returns `true` if the other side has hung up.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let mut fds = [PollFd::new(
            std::os::fd::AsFd::as_fd(&self.socket),
            PollFlags::empty(),
        )];
        poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|n| n > 0)
    }

    /// Closes the connection in both directions.
    pub fn hang_up(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn is_readable(&self, limit: Duration) -> io::Result<bool> {
        // The thread polls before it reads, because a thread that waits in recvmsg also wakes when the other side has
        // read data that was sent to it.
        let mut fds = [PollFd::new(
            std::os::fd::AsFd::as_fd(&self.socket),
            PollFlags::POLLIN,
        )];
        poll(&mut fds, Some(limit)).map(|n| n > 0)
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
            // The other side ended without reading everything that was sent to it.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Err(e) => Err(e),
        }
    }
}

/// Bytes that were received but not taken yet.
#[derive(Default)]
pub struct Incoming {
    /// Memory for the bytes; they lie in `from..to`.
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Incoming {
    /// Takes the next message. Returns `None` if it has not arrived completely.
    ///
    /// # Errors
    /// When the announced length is above the limit.
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

    /// Returns free room for receiving more. Memory is allocated only for a message that is longer than those before
    /// it, and is not kept for a very long one.
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

    /// Notes that `bytes` bytes were received into the room.
    pub fn came(&mut self, bytes: usize) {
        self.to = (self.to + bytes).min(self.buffer.len());
    }
}

/// A request to a zygote.
#[derive(Serialize, Debug)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ZygoteRequest<'a> {
    /// Import the modules that fork servers will need. There is no answer: a fork server that cannot import them
    /// reports why.
    Import {
        /// See [`UserCode::prelude`](crate::message::UserCode::prelude).
        prelude: &'a str,
    },
    /// Start a fork server. Its end of its socket comes with the message. Answered by [`ZygoteEvent::Exited`] or
    /// [`ZygoteEvent::Failed`].
    ForkServer {
        /// Number of the fork server, never used before.
        number: u32,
        /// Modules that the fork server will need, imported before it is forked.
        prelude: &'a str,
        /// `true` if the fork server begins as a new process that imports its modules by itself.
        anew: bool,
    },
    /// End a fork server. Answered by [`ZygoteEvent::Exited`].
    Kill {
        /// Number of the fork server.
        number: u32,
    },
}

/// An event reported by a zygote.
#[derive(Deserialize, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum ZygoteEvent {
    /// A fork server has ended and was reaped.
    Exited {
        /// Number of the fork server.
        number: u32,
        /// Exit status in the form of `wait(2)`.
        status: i32,
    },
    /// A fork server could not be started.
    Failed {
        /// Number of the fork server.
        number: u32,
        /// Reason, for people.
        message: String,
    },
}

/// A request to a fork server.
#[derive(Serialize, Debug)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum ForkServerRequest {
    /// Load the dataset from the descriptor. Answered by [`ForkServerEvent::Loaded`].
    Load,
    /// Start a worker. Answered by [`ForkServerEvent::Forked`].
    Fork {
        /// Number of the worker, never used before.
        worker: u32,
        /// Id that user code sees in the worker, 0 to `workers` - 1.
        id: u32,
        /// Number of workers that there will be.
        workers: u32,
        /// Number of descriptors of scratch files that come with the message. If the worker makes samples, the
        /// descriptor of its task table of [`ENTRIES`] entries comes before them.
        scratch: u32,
        /// `true` if the task table's descriptor comes.
        task_table: bool,
    },
    /// Map the staging area, whose descriptor comes with the message, for workers that are started later. Answered by
    /// [`ForkServerEvent::Mapped`].
    Map {
        /// Number of staging buffers.
        buffers: u32,
        /// Samples of one buffer.
        slots: u32,
        /// Bytes from one buffer to the next.
        stride: u64,
        /// Bytes from the start of a buffer to each field.
        offsets: Vec<u64>,
        /// Bytes of the field for values of no fixed size; 0 if there is no such field.
        blob: u64,
        /// Structure that a worker reported for its sample, in hexadecimal digits.
        structure: String,
        /// Seed from which all random numbers are derived.
        seed: u64,
    },
    /// Unmap the staging area: no worker needs it any more.
    Unmap,
    /// End a worker. Answered by [`ForkServerEvent::Exited`].
    Kill {
        /// Number of the worker.
        worker: u32,
    },
}

/// An event reported by a fork server.
#[derive(Deserialize, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum ForkServerEvent {
    /// The dataset has been loaded.
    Loaded {
        /// Length of the dataset.
        samples: u64,
    },
    /// A worker runs. Its socket came with the message.
    Forked {
        /// Number of the worker.
        worker: u32,
        /// Process id of the worker.
        pid: u32,
    },
    /// The staging area is mapped.
    Mapped,
    /// A worker has ended and was reaped.
    Exited {
        /// Number of the worker.
        worker: u32,
        /// Way in which it ended, for people: "was killed by signal 9", "exited with status 3".
        how: String,
    },
    /// A request could not be carried out.
    Failed {
        /// Number of the worker that the request was about, if it was about one.
        worker: Option<u32>,
        /// What failed, why, and the remedy.
        message: String,
    },
}

/// A sample that a worker has to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRequest {
    /// Id of the sample.
    pub id: u32,
    /// Staging buffer and slot for the sample. `None` if the worker has to ask when it has made the sample
    /// ([`WorkerReport::Ready`]).
    pub place: Option<(u32, u32)>,
    /// `true` if the place is only offered, through the sample's [`entry`] of the task table. The worker takes the
    /// place there, or asks for one if it was withdrawn.
    pub is_offered: bool,
    /// `true` if the value of the deterministic part is wanted for the cache.
    pub keep: bool,
    /// Visit number, which with the id determines the sample's random numbers.
    pub visit: u64,
    /// Offset and length of the cached value of the deterministic part in the scratch file. A length of 0 means that it
    /// is not cached.
    pub cached: (u64, u64),
}

/// Chunks of samples that a worker may hold at a time. Each has a number below this, and a scratch file of its own.
pub const CHUNKS: u32 = 2;
/// Most samples in a chunk.
pub const MOST: u32 = 64;
/// Entries of a worker's task table: one for each sample of each chunk.
pub const ENTRIES: u32 = CHUNKS * MOST;

/// Returns the entry of a sample in the task table, from its chunk and its index in the chunk.
#[must_use]
pub fn entry(chunk: u32, index: u32) -> u32 {
    chunk.saturating_mul(MOST).saturating_add(index)
}

/// Marks a place that is not known yet.
const NO_PLACE: (u32, u32) = (u32::MAX, u32::MAX);
/// Bytes of an encoded [`SampleRequest`].
const SAMPLE_REQUEST: usize = 40;

/// The message that tells a worker to make the samples of a chunk, except any that is withdrawn later.
pub struct ChunkRequest(Vec<u8>);

impl ChunkRequest {
    /// Creates the message for chunk number `chunk`, which has room for `samples` samples.
    #[must_use]
    pub fn new(chunk: u32, samples: usize) -> Self {
        let mut bytes = Vec::with_capacity(5 + SAMPLE_REQUEST * samples);
        bytes.push(b'S');
        bytes.extend(chunk.to_le_bytes());
        ChunkRequest(bytes)
    }

    /// Encodes the next sample.
    pub fn push(&mut self, request: &SampleRequest) {
        let (buffer, slot) = request.place.unwrap_or(NO_PLACE);
        let flags = u32::from(request.keep) | u32::from(request.is_offered) << 1;
        let words = [request.id, buffer, slot, flags];
        words.iter().for_each(|w| self.0.extend(w.to_le_bytes()));
        let longs = [request.visit, request.cached.0, request.cached.1];
        longs.iter().for_each(|w| self.0.extend(w.to_le_bytes()));
    }

    /// Returns the message's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Encodes the answer to [`WorkerReport::Ready`], which tells a worker where to write the sample.
#[must_use]
pub fn place(buffer: u32, slot: u32) -> Vec<u8> {
    let mut bytes = vec![b'B'];
    bytes.extend(buffer.to_le_bytes());
    bytes.extend(slot.to_le_bytes());
    bytes
}

/// Encodes the answer to [`WorkerReport::TooLarge`], which tells a worker to write the sample from byte `at` of the
/// staging area on. With `None`, the worker drops the sample and goes on with the next.
#[must_use]
pub fn room(at: Option<u64>) -> Vec<u8> {
    let mut bytes = vec![b'R'];
    bytes.extend(at.unwrap_or(NO_ROOM).to_le_bytes());
    bytes
}

/// Marks an answer without a place in the staging area.
const NO_ROOM: u64 = u64::MAX;

/// A message to a worker, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerCommand {
    /// [`ChunkRequest`]: number of the chunk, and the samples to make.
    Make(u32, Vec<SampleRequest>),
    /// [`place`]: buffer and slot for a sample that was made.
    Place(u32, u32),
    /// [`room`]: where to write a sample that is larger than its slot, or `None` to drop it.
    Room(Option<u64>),
    /// Any other message, such as a [`probe`].
    Other,
}

impl WorkerCommand {
    /// Decodes a message.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn parse(message: &[u8]) -> Result<WorkerCommand, String> {
        let (&kind, rest) = message.split_first().ok_or("an empty message")?;
        match kind {
            b'S' => {
                let (chunk, rest) = rest.split_first_chunk().ok_or("too short")?;
                let (records, []) = rest.as_chunks::<SAMPLE_REQUEST>() else {
                    return Err("orders of another length".into());
                };
                let orders = records.iter().map(order).collect();
                Ok(WorkerCommand::Make(u32::from_le_bytes(*chunk), orders))
            }
            b'B' if rest.len() == 8 => Ok(WorkerCommand::Place(word(rest, 0), word(rest, 4))),
            b'B' => Err("a place of another length".into()),
            b'R' if rest.len() == 8 => Ok(WorkerCommand::Room(
                Some(long(rest, 0)).filter(|&at| at != NO_ROOM),
            )),
            b'R' => Err("a room of another length".into()),
            _ => Ok(WorkerCommand::Other),
        }
    }
}

fn order(record: &[u8; SAMPLE_REQUEST]) -> SampleRequest {
    let place = (word(record, 4), word(record, 8));
    SampleRequest {
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

/// Encodes the message that asks a worker to make samples without writing them, until `enough` have succeeded, and to
/// describe them. With `split`, the worker also measures the deterministic part. With `may_look_at_more`, it makes a
/// few more of them if they have no fixed size and that is quick.
#[must_use]
pub fn probe(ids: &[u32], enough: u8, split: bool, may_look_at_more: bool) -> Vec<u8> {
    let flags = u8::from(split) | u8::from(may_look_at_more) << 1;
    let mut bytes = vec![b'P', flags, enough];
    ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
    bytes
}

/// A report of a worker about the chunk that it works on, which is the oldest that it was given and has not finished.
/// Indices count within that chunk.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerReport {
    /// Some samples are written. The task table tells which.
    Written(WorkerProgress),
    /// The sample of this index is made, and the worker asks where to write it.
    Ready(u32),
    /// The sample of this index raised an exception.
    Raised(u32, Raised),
    /// The sample of this index does not fit its slot; the second number is its length in bytes. The worker waits for
    /// the answer, [`room`].
    TooLarge(u32, u64),
    /// Answer to a [`probe`].
    Probed(Box<Probed>),
}

/// Progress of a worker since its last report of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerProgress {
    /// `true` if the worker has finished the chunk.
    pub ends_chunk: bool,
    /// Nanoseconds, since the last report, in which the worker was ready to run but had no processor.
    pub queued_ns: u64,
    /// Nanoseconds off a processor while it made the samples that it wrote since the last report.
    pub off_ns: u64,
}

impl WorkerProgress {
    /// Returns the share of the time off a processor, 0 to 1, in which the worker was not waiting for a processor.
    #[must_use]
    pub fn waited_for_nothing(&self) -> f64 {
        match self.off_ns {
            0 => 0.0,
            off => off.saturating_sub(self.queued_ns) as f64 / off as f64,
        }
    }

    /// Encodes the report as a message.
    #[must_use]
    pub fn message(&self) -> [u8; PROGRESS] {
        let mut bytes = [b'D'; PROGRESS];
        bytes[1] = self.ends_chunk.into();
        bytes[2..10].copy_from_slice(&self.queued_ns.to_le_bytes());
        bytes[10..].copy_from_slice(&self.off_ns.to_le_bytes());
        bytes
    }
}

/// Bytes of a [`WorkerProgress`] message.
pub const PROGRESS: usize = 18;

/// An exception of user code.
#[derive(Deserialize, Clone, Debug, PartialEq, Default)]
pub struct Raised {
    /// Id of the sample.
    #[serde(default)]
    pub id: u32,
    /// `dataset`, `transform`, or [`Raised::END`].
    pub stage: String,
    /// Type, text and traceback of the exception.
    pub message: String,
    /// The exception packed for the job, in hexadecimal digits.
    pub exception: String,
}

impl Raised {
    /// The stage which says that the epoch of an iterable dataset has no such batch. It is no failure. The message is
    /// the number of batches that the epoch has, in decimal digits.
    pub const END: &str = "end";
}

/// Description of a dataset's samples, from a probe.
#[derive(Deserialize, Clone, Debug, PartialEq)]
pub struct Probed {
    /// Name, type and shape of each field.
    #[serde(default)]
    pub fields: Vec<(String, String, Vec<u32>)>,
    /// Bytes for values of no fixed size, enough for most of the samples that were looked at.
    #[serde(default)]
    pub blob: u64,
    /// Bytes of the value of the deterministic part.
    #[serde(default)]
    pub kept: u64,
    /// Structure of a sample, packed for the job, in hexadecimal digits.
    #[serde(default)]
    pub structure: String,
    /// The exception, if no sample could be made.
    pub raised: Option<Raised>,
}

impl WorkerReport {
    /// Decodes a message.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn parse(message: &[u8]) -> Result<WorkerReport, String> {
        let (&kind, rest) = message.split_first().ok_or("an empty message")?;
        let json = |e: serde_json::Error| e.to_string();
        match kind {
            b'D' if rest.len() == PROGRESS - 1 => Ok(WorkerReport::Written(WorkerProgress {
                ends_chunk: rest[0] != 0,
                queued_ns: long(rest, 1),
                off_ns: long(rest, 9),
            })),
            b'P' => serde_json::from_slice(rest)
                .map(WorkerReport::Probed)
                .map_err(json),
            b'E' | b'L' | b'W' => {
                let (index, rest) = rest.split_first_chunk::<4>().ok_or("too short")?;
                let index = u32::from_le_bytes(*index);
                if kind == b'W' {
                    return Ok(WorkerReport::Ready(index));
                }
                if kind == b'E' {
                    let raised = serde_json::from_slice(rest).map_err(json)?;
                    return Ok(WorkerReport::Raised(index, raised));
                }
                let bytes = rest.first_chunk::<8>().ok_or("too short")?;
                Ok(WorkerReport::TooLarge(index, u64::from_le_bytes(*bytes)))
            }
            other => Err(format!("a message of kind {other}")),
        }
    }
}

/// Returns the hexadecimal digits of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the bytes that hexadecimal digits stand for.
///
/// # Errors
/// When a character is not a hexadecimal digit, or the number of digits is odd.
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
        let first = SampleRequest {
            id: 7,
            place: Some((1, 2)),
            is_offered: false,
            keep: true,
            visit: u64::MAX,
            cached: (64, 1 << 40),
        };
        let second = SampleRequest {
            place: None,
            keep: false,
            ..first
        };
        let third = SampleRequest {
            is_offered: true,
            ..first
        };
        let told = |message: &[u8]| WorkerCommand::parse(message);
        let all = vec![first, second, third];
        let mut request = ChunkRequest::new(3, all.len());
        all.iter().for_each(|sample| request.push(sample));
        assert_eq!(told(request.as_bytes()), Ok(WorkerCommand::Make(3, all)));
        assert_eq!(told(&place(5, 6)), Ok(WorkerCommand::Place(5, 6)));
        assert_eq!(told(&probe(&[1], 1, false, true)), Ok(WorkerCommand::Other));
        for at in [Some(0), Some(1 << 40), None] {
            assert_eq!(told(&room(at)), Ok(WorkerCommand::Room(at)));
        }
        for message in [&b""[..], b"S", b"S\0\0\0", b"S\0\0\0\0\0", b"B\0\0", b"R\0"] {
            assert!(told(message).is_err(), "{message:?}");
        }
    }

    #[test]
    fn how_far_a_worker_came_is_read_as_it_was_said() {
        let mut progress = WorkerProgress {
            ends_chunk: true,
            queued_ns: 9,
            off_ns: u64::MAX,
        };
        let read = WorkerReport::parse(&progress.message());
        assert_eq!(read, Ok(WorkerReport::Written(progress)));
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
            assert!(WorkerReport::parse(message).is_err(), "{message:?}");
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
