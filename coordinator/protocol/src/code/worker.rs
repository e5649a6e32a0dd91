//! The messages with a worker: the samples that it must make, where it writes them, and its reports. Both ends encode
//! and decode them here.

use serde::Deserialize;

/// A sample that a worker has to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRequest {
    /// Id of the sample.
    pub id: u32,
    /// Staging buffer and slot for the sample. `None` if the worker has to ask when it has made the sample
    /// ([`WorkerReport::Ready`]).
    pub slot: Option<(u32, u32)>,
    /// `true` if the slot is only offered, through the sample's [`entry`] of the task table. The worker takes the
    /// slot there, or asks for one if it was withdrawn.
    pub is_offered: bool,
    /// `true` if the value of the deterministic part is wanted for the cache.
    pub keep: bool,
    /// Visit number, which with the id determines the sample's random numbers.
    pub visit: u64,
    /// Offset and length of the cached value of the deterministic part in the scratch file. A length of 0 means that it
    /// is not cached.
    pub cached: (u64, u64),
}

/// Samples that the dataset is asked for in one call, where it can be asked so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// Ids of the samples of a minibatch, in their order. Empty if each sample is asked for by itself.
    pub ids: Vec<u32>,
    /// Visit number of the first one, which with its id determines the random numbers of the call.
    pub visit: u64,
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

/// Marks a slot that is not known yet.
const NO_SLOT: (u32, u32) = (u32::MAX, u32::MAX);
/// Bytes of an encoded [`SampleRequest`].
const SAMPLE_REQUEST: usize = 40;

/// The message that tells a worker to make the samples of a chunk, except any that is withdrawn later.
pub struct ChunkRequest(Vec<u8>);

impl ChunkRequest {
    /// Creates the message for chunk number `chunk`, which has room for `samples` samples. `together` are the samples
    /// that they are asked for with, this chunk's or others'.
    #[must_use]
    pub fn new(chunk: u32, samples: usize, together: Option<&Together>) -> Self {
        let nothing = Together::default();
        let Together { ids, visit } = together.unwrap_or(&nothing);
        let mut bytes = Vec::with_capacity(17 + 4 * ids.len() + SAMPLE_REQUEST * samples);
        bytes.push(b'S');
        bytes.extend(chunk.to_le_bytes());
        bytes.extend((ids.len() as u32).to_le_bytes());
        bytes.extend(visit.to_le_bytes());
        ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        ChunkRequest(bytes)
    }

    /// Encodes the next sample.
    pub fn push(&mut self, request: &SampleRequest) {
        let (buffer, slot) = request.slot.unwrap_or(NO_SLOT);
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
pub fn slot(buffer: u32, slot: u32) -> Vec<u8> {
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

/// Marks an answer without a slot in the staging area.
const NO_ROOM: u64 = u64::MAX;

/// A message to a worker, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerCommand {
    /// [`ChunkRequest`]: number of the chunk, the samples that are asked for together, and the samples to make.
    Make(u32, Together, Vec<SampleRequest>),
    /// [`slot`]: buffer and slot for a sample that was made.
    Slot(u32, u32),
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
                let (head, rest) = rest.split_first_chunk::<16>().ok_or("too short")?;
                let bytes = (word(head, 4) as usize).checked_mul(4);
                let (ids, rest) = bytes
                    .and_then(|bytes| rest.split_at_checked(bytes))
                    .ok_or("too short")?;
                let (records, []) = rest.as_chunks::<SAMPLE_REQUEST>() else {
                    return Err("orders of another length".into());
                };
                let together = Together {
                    ids: ids
                        .as_chunks()
                        .0
                        .iter()
                        .map(|id| u32::from_le_bytes(*id))
                        .collect(),
                    visit: long(head, 8),
                };
                let orders = records.iter().map(order).collect();
                Ok(WorkerCommand::Make(word(head, 0), together, orders))
            }
            b'B' if rest.len() == 8 => Ok(WorkerCommand::Slot(word(rest, 0), word(rest, 4))),
            b'B' => Err("a slot of another length".into()),
            b'R' if rest.len() == 8 => Ok(WorkerCommand::Room(
                Some(long(rest, 0)).filter(|&at| at != NO_ROOM),
            )),
            b'R' => Err("a room of another length".into()),
            _ => Ok(WorkerCommand::Other),
        }
    }
}

fn order(record: &[u8; SAMPLE_REQUEST]) -> SampleRequest {
    let slot = (word(record, 4), word(record, 8));
    SampleRequest {
        id: word(record, 0),
        slot: (slot != NO_SLOT).then_some(slot),
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

/// Returns a request to make samples only to be compared, by the random numbers of the seed that the worker was started
/// with.
///
/// `times`: number of times to make each of them.
#[must_use]
pub fn remake(ids: &[u32], times: u8) -> Vec<u8> {
    let mut bytes = vec![b'C', times];
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
    /// Answer to a [`remake`].
    Remade(Remade),
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

/// Samples that were made only to be compared.
#[derive(Deserialize, Clone, Debug, PartialEq)]
pub struct Remade {
    /// A digest for each sample, or `None` if it cannot be compared, or is another each time.
    pub digests: Vec<Option<String>>,
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
    /// `true` if the dataset can be asked for the samples of a minibatch together.
    #[serde(default)]
    pub at_once: bool,
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
            b'C' => serde_json::from_slice(rest)
                .map(WorkerReport::Remade)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_reads_what_it_is_told() {
        let first = SampleRequest {
            id: 7,
            slot: Some((1, 2)),
            is_offered: false,
            keep: true,
            visit: u64::MAX,
            cached: (64, 1 << 40),
        };
        let second = SampleRequest {
            slot: None,
            keep: false,
            ..first
        };
        let third = SampleRequest {
            is_offered: true,
            ..first
        };
        let told = |message: &[u8]| WorkerCommand::parse(message);
        let all = vec![first, second, third];
        let together = Together {
            ids: vec![7, 7, u32::MAX],
            visit: 1 << 40,
        };
        for (together, number) in [(None, 3), (Some(together), 0)] {
            let mut request = ChunkRequest::new(number, all.len(), together.as_ref());
            all.iter().for_each(|sample| request.push(sample));
            let read = WorkerCommand::Make(number, together.unwrap_or_default(), all.clone());
            assert_eq!(told(request.as_bytes()), Ok(read));
        }
        assert_eq!(told(&slot(5, 6)), Ok(WorkerCommand::Slot(5, 6)));
        assert_eq!(told(&probe(&[1], 1, false, true)), Ok(WorkerCommand::Other));
        assert_eq!(told(&remake(&[1], 2)), Ok(WorkerCommand::Other));
        for at in [Some(0), Some(1 << 40), None] {
            assert_eq!(told(&room(at)), Ok(WorkerCommand::Room(at)));
        }
        let lying = b"S\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0";
        for message in [
            &b""[..],
            b"S",
            b"S\0\0\0",
            b"S\0\0\0\0\0",
            lying,
            b"B\0\0",
            b"R\0",
        ] {
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
    }
}
