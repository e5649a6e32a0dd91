//! A worker process's end of its socket, which takes requests for samples one at a time and reports the results.
//!
//! Messages of [`coprep_protocol::code`] are decoded and encoded here instead of in Python, because this happens once
//! per sample. Code that runs so rarely is not in the processor's cache, and in Python it takes ten times as long as in
//! a loop.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use coprep_protocol::code::{
    ENTRIES, Incoming, SampleRequest, Together, WorkerCommand, WorkerProgress, entry,
};
use coprep_shared_memory::task_table::{TaskTable, Written};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use nix::time::{ClockId, clock_gettime};
use pyo3::exceptions::{PyConnectionResetError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Inverse of the share of the time that a thread must have been off its processor for the reason to be looked up.
const SMALLEST_SHARE_OFF: u64 = 32;

/// The state of a worker's connection. It is used by one thread.
#[pyclass]
pub(crate) struct WorkerLink {
    socket: RawFd,
    /// Table of the samples to make, or `None` if the worker makes none.
    task_table: Option<TaskTable>,
    /// Seed of the stream.
    seed: u64,
    incoming: Incoming,
    /// Messages that came while the worker waited for an answer. They are handled after it.
    deferred: VecDeque<Vec<u8>>,
    chunk: CurrentChunk,
    /// Clocks of the sample that is being made.
    clocks: SampleClocks,
    /// Time of a call that has made several samples.
    shared: SharedTime,
    /// Nanoseconds that it took to make the samples that are written but not reported yet.
    unreported_wall: u64,
    /// Part of `unreported_wall` in which this thread was off the processor.
    unreported_off: u64,
    run_queue: RunQueue,
}

/// A sample to make, for Python.
#[pyclass(frozen, get_all, module = "coprep._coprep")]
pub(crate) struct SampleTask {
    /// `True` for the first sample of its chunk.
    is_first: bool,
    /// Sample id, which is the position in the dataset.
    id: u32,
    /// Buffer and slot to write to. `None` if `WorkerLink.wait_for_slot` has to ask for them.
    slot: Option<(u32, u32)>,
    /// `True` if the deterministic part is to be kept in the scratch file, for the cache.
    keep: bool,
    /// Key of the sample's random numbers.
    key: u64,
    /// Offset of the cached deterministic part in the scratch file.
    cached_at: u64,
    /// Bytes of the cached deterministic part. 0 if it is not cached.
    cached_size: u64,
    /// Number of the visit of this sample, which the random numbers depend on.
    visit: u64,
}

/// The samples that the coordinator has requested in one message.
#[derive(Default)]
struct CurrentChunk {
    number: u32,
    /// End of the cached values that came in the chunk's scratch file.
    end: u64,
    requests: Vec<SampleRequest>,
    /// The samples that the dataset is asked for together.
    together: Together,
    /// Number of requests that were looked at.
    seen: usize,
    /// `true` once a sample of the chunk was begun.
    is_begun: bool,
    /// `true` once the coordinator knows that the chunk is finished.
    is_ended: bool,
}

struct SampleClocks {
    began: Instant,
    cpu: Duration,
    /// Time at which the deterministic part was made.
    made: Option<Instant>,
}

impl SampleClocks {
    fn start() -> Self {
        SampleClocks {
            began: Instant::now(),
            cpu: thread_cpu(),
            made: None,
        }
    }

    /// Adds time of a processor and off it, which was spent for the sample before it began.
    fn add(&mut self, wall: Duration, cpu: Duration) {
        self.began = self.began.checked_sub(wall).unwrap_or(self.began);
        self.cpu = self.cpu.saturating_sub(cpu);
    }

    /// Leaves out a time that was spent waiting for others.
    fn leave_out(&mut self, time: Duration) {
        self.began += time;
        self.made = self.made.map(|made| made + time);
    }
}

/// The time of a call that has made several samples, as far as it was not counted with one of them.
#[derive(Default)]
struct SharedTime {
    /// Number of samples that it is to be counted with.
    samples: u32,
    /// The part of each sample.
    wall: Duration,
    cpu: Duration,
}

/// Bytes of the length before each message.
const LENGTH: usize = 4;

#[pymethods]
impl WorkerLink {
    /// Creates the link of a worker. `socket` is the descriptor of its socket. `task_table` is that of its task table,
    /// if it makes samples. The caller keeps both. `seed` is that of the stream.
    #[new]
    fn new(socket: RawFd, task_table: Option<RawFd>, seed: u64) -> PyResult<Self> {
        Ok(WorkerLink {
            socket,
            task_table: task_table.map(open_task_table).transpose()?,
            seed,
            incoming: Incoming::default(),
            deferred: VecDeque::new(),
            chunk: CurrentChunk {
                is_ended: true,
                ..CurrentChunk::default()
            },
            clocks: SampleClocks::start(),
            shared: SharedTime::default(),
            unreported_wall: 0,
            unreported_off: 0,
            run_queue: RunQueue::new(),
        })
    }

    /// Returns the next sample to make, whose clocks start now, or a message of another kind, or `None` if the
    /// coordinator is gone.
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            while let Some(&request) = self.chunk.requests.get(self.chunk.seen) {
                self.chunk.seen += 1;
                // `begin` fails for a sample that the coordinator has revoked.
                if self.task_table()?.begin(self.entry()) {
                    self.clocks = SampleClocks::start();
                    if let Some(left) = self.shared.samples.checked_sub(1) {
                        self.shared.samples = left;
                        self.clocks.add(self.shared.wall, self.shared.cpu);
                    }
                    let is_first = !std::mem::replace(&mut self.chunk.is_begun, true);
                    let task = self.sample_task(is_first, &request);
                    return Ok(Some(Bound::new(py, task)?.into_any()));
                }
            }
            // The last sample was revoked or has raised, so `report_done` has not reported the end of the chunk.
            if !self.chunk.is_ended {
                self.report_progress(py, true)?;
            }
            let Some(message) = self.next_message(py)? else {
                return Ok(None);
            };
            match WorkerCommand::parse(&message).map_err(PyValueError::new_err)? {
                WorkerCommand::Make(number, together, requests) => {
                    if together != self.chunk.together {
                        self.shared = SharedTime::default();
                    }
                    let ends = requests.iter().map(|r| r.cached.0 + r.cached.1);
                    self.chunk = CurrentChunk {
                        number,
                        end: ends.max().unwrap_or(0),
                        requests,
                        together,
                        ..CurrentChunk::default()
                    };
                }
                _ => return Ok(Some(PyBytes::new(py, &message).into_any())),
            }
        }
    }

    /// Returns the number of the chunk's scratch file, and the end of the cached values in it.
    fn scratch(&self) -> (u32, u64) {
        (self.chunk.number, self.chunk.end)
    }

    /// Returns the ids of the samples that the dataset is asked for together with those of the chunk, and the key of
    /// their random numbers. There are no ids if it is asked for each sample by itself.
    fn together(&self) -> (Vec<u32>, u64) {
        let Together { ids, visit } = &self.chunk.together;
        let first = ids.first().copied().unwrap_or(0);
        let key = sample_key(self.seed, u64::from(first), *visit);
        (ids.clone(), key)
    }

    /// Notes that the time of this sample until now was spent on `samples` samples, this one among them.
    fn share_time(&mut self, samples: u32) {
        let (wall, cpu) = (
            self.clocks.began.elapsed(),
            thread_cpu().saturating_sub(self.clocks.cpu),
        );
        let samples = samples.max(1);
        self.shared = SharedTime {
            samples: samples - 1,
            wall: wall / samples,
            cpu: cpu / samples,
        };
        self.clocks = SampleClocks::start();
        self.clocks.add(self.shared.wall, self.shared.cpu);
    }

    /// Notes that the deterministic part of the sample is made.
    fn note_made(&mut self) {
        self.clocks.made = Some(Instant::now());
    }

    /// Returns buffer and slot for a sample that is made, or `None` if the coordinator is gone. The worker asks for
    /// them only now, so that a slow sample delays no minibatch.
    fn wait_for_slot(&mut self, py: Python<'_>) -> PyResult<Option<(u32, u32)>> {
        if let Some(slot) = self.take_offer() {
            return Ok(Some(slot));
        }
        // The wait may be long, so the samples before this one are reported first.
        self.report_progress(py, false)?;
        self.send_about_sample(py, b'W', &[])?;
        // The next chunk may come before the answer. It is kept for later.
        while let Some(message) = self.receive(py)? {
            match WorkerCommand::parse(&message).map_err(PyValueError::new_err)? {
                WorkerCommand::Slot(buffer, slot) => return Ok(Some((buffer, slot))),
                _ => self.deferred.push_back(message),
            }
        }
        Ok(None)
    }

    /// Reports that the sample is written. `at` and `size` tell where in the scratch file its deterministic part lies,
    /// if that was kept. `blob` is the number of its bytes of no fixed size.
    fn report_done(&mut self, py: Python<'_>, at: u64, size: u64, blob: u64) -> PyResult<()> {
        let now = Instant::now();
        let wall = nanos(now - self.clocks.began);
        let cpu = nanos(thread_cpu().saturating_sub(self.clocks.cpu));
        let made = self.clocks.made.unwrap_or(now);
        let written = Written {
            wall_ns: wall,
            cpu_ns: cpu,
            dataset_ns: nanos(made - self.clocks.began),
            kept: (at, size),
            blob,
        };
        self.task_table()?.write(self.entry(), &written);
        self.unreported_wall += wall;
        self.unreported_off += wall.saturating_sub(cpu);
        // The coordinator finds the sample in the task table, so one message for the whole chunk is enough.
        if self.chunk.seen == self.chunk.requests.len() {
            self.report_progress(py, true)
        } else {
            Ok(())
        }
    }

    /// Reports that the sample raised `exception`, which is JSON.
    fn report_raised(&mut self, py: Python<'_>, exception: &[u8]) -> PyResult<()> {
        self.report_progress(py, false)?;
        self.send_about_sample(py, b'E', exception)
    }

    /// Asks where to write a sample of `size` bytes, which is larger than its slot, and waits until there is room.
    /// Returns the offset in the staging area, or `None` if the sample is not to be written and the next one follows.
    fn wait_for_room(&mut self, py: Python<'_>, size: u64) -> PyResult<Option<u64>> {
        self.report_progress(py, false)?;
        self.send_about_sample(py, b'L', &size.to_le_bytes())?;
        let asked = Instant::now();
        while let Some(message) = self.receive(py)? {
            match WorkerCommand::parse(&message).map_err(PyValueError::new_err)? {
                WorkerCommand::Room(at) => {
                    self.clocks.leave_out(asked.elapsed());
                    return Ok(at);
                }
                _ => self.deferred.push_back(message),
            }
        }
        Err(PyConnectionResetError::new_err("the coordinator is gone"))
    }

    /// Sends an answer to a message.
    fn answer(&self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        self.send(py, &framed(&[message]))
    }
}

impl WorkerLink {
    fn task_table(&self) -> PyResult<&TaskTable> {
        let missing = || {
            PyValueError::new_err(
                "the coordinator requests samples of a worker without a task table",
            )
        };
        self.task_table.as_ref().ok_or_else(missing)
    }

    /// Returns the index, within its chunk, of the sample that is being made.
    fn index(&self) -> u32 {
        self.chunk.seen.saturating_sub(1) as u32
    }

    /// Returns the entry, in the task table, of the sample that is being made.
    fn entry(&self) -> u32 {
        entry(self.chunk.number, self.index())
    }

    /// Takes the slot that is offered for the sample that is being made, unless the offer was withdrawn.
    fn take_offer(&self) -> Option<(u32, u32)> {
        let request = self.chunk.requests.get(self.index() as usize)?;
        let is_ours = request.is_offered && self.task_table.as_ref()?.commit(self.entry());
        request.slot.filter(|_| is_ours)
    }

    fn sample_task(&self, is_first: bool, request: &SampleRequest) -> SampleTask {
        let (cached_at, cached_size) = request.cached;
        SampleTask {
            is_first,
            id: request.id,
            // A slot that is only offered may be withdrawn while the sample is made.
            slot: request.slot.filter(|_| !request.is_offered),
            keep: request.keep,
            key: sample_key(self.seed, u64::from(request.id), request.visit),
            cached_at,
            cached_size,
            visit: request.visit,
        }
    }

    /// Reports that more samples are written, or that the chunk is finished.
    fn report_progress(&mut self, py: Python<'_>, ends_chunk: bool) -> PyResult<()> {
        if self.unreported_wall == 0 && !ends_chunk {
            return Ok(());
        }
        let (wall, off) = (self.unreported_wall, self.unreported_off);
        let progress = WorkerProgress {
            ends_chunk,
            queued_ns: self.run_queue.queued_since_last(wall, off),
            off_ns: off,
        };
        self.send(py, &framed(&[&progress.message()]))?;
        (self.unreported_wall, self.unreported_off) = (0, 0);
        self.chunk.is_ended = ends_chunk;
        Ok(())
    }

    /// Sends a message about the sample that is being made.
    fn send_about_sample(&self, py: Python<'_>, kind: u8, content: &[u8]) -> PyResult<()> {
        let index = self.index().to_le_bytes();
        self.send(py, &framed(&[&[kind], &index, content]))
    }

    /// Returns the next message, one that was deferred first, or `None` if the coordinator is gone.
    fn next_message(&mut self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        match self.deferred.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.receive(py),
        }
    }

    /// Receives the next message, or returns `None` if the coordinator is gone.
    fn receive(&mut self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.incoming.message()? {
                return Ok(Some(message));
            }
            let (socket, room) = (self.socket, self.incoming.room());
            match py.detach(|| recv(socket, room, MsgFlags::empty())) {
                // The kernel reports a reset if the coordinator ended with data unread.
                Ok(0) | Err(Errno::ECONNRESET) => return Ok(None),
                Ok(read) => self.incoming.came(read),
                Err(Errno::EINTR) => py.check_signals()?,
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
    }

    fn send(&self, py: Python<'_>, mut bytes: &[u8]) -> PyResult<()> {
        while !bytes.is_empty() {
            // User code may have restored SIGPIPE, which would then end the process without a word.
            match py.detach(|| send(self.socket, bytes, MsgFlags::MSG_NOSIGNAL)) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::EINTR) => py.check_signals()?,
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        Ok(())
    }
}

fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = Vec::with_capacity(LENGTH + length);
    bytes.extend((length as u32).to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// Opens the task table by a descriptor of its own, so that the caller's stays open.
fn open_task_table(file: RawFd) -> PyResult<TaskTable> {
    let path = format!("/proc/self/fd/{file}");
    let file = File::options().read(true).write(true).open(path)?;
    TaskTable::open(file.into(), ENTRIES).map_err(|e| PyOSError::new_err(e.to_string()))
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Returns the CPU time of this thread.
fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Lets this process keep the memory that its samples free: see [`coprep_shared_memory::allocator`].
#[pyfunction]
pub(crate) fn keep_freed_memory() {
    coprep_shared_memory::allocator::keep_freed_memory();
}

/// Mixes the seed of a stream, a sample and its visit into 64 bits (SplitMix64, Steele et al. 2014).
#[pyfunction]
pub(crate) fn sample_key(seed: u64, sample: u64, visit: u64) -> u64 {
    [sample, visit].into_iter().fold(seed, |state, word| {
        let state = state ^ word.wrapping_mul(0xD134_2543_DE82_EF95);
        let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        state ^ (state >> 31)
    })
}

/// Measures the time in which this thread was ready to run and had no processor.
struct RunQueue {
    /// The kernel's scheduler statistics of the thread, or `None` if the kernel has none.
    file: Option<File>,
    /// Nanoseconds in the queue at the last call.
    before: u64,
}

impl RunQueue {
    fn new() -> Self {
        let thread = nix::unistd::gettid();
        let file = File::open(format!("/proc/self/task/{thread}/schedstat")).ok();
        let mut queue = RunQueue { file, before: 0 };
        queue.before = queue.read();
        queue
    }

    /// Returns the nanoseconds in the queue since the last call. In that time, the thread was off the processor for
    /// `off` of `wall`. If `off` is very small, it is returned itself, because reading the file takes longer than
    /// sending a message.
    fn queued_since_last(&mut self, wall: u64, off: u64) -> u64 {
        if off.saturating_mul(SMALLEST_SHARE_OFF) < wall {
            self.before = self.before.saturating_add(off);
            return off;
        }
        let before = self.before;
        self.before = self.read();
        self.before.saturating_sub(before)
    }

    fn read(&self) -> u64 {
        let mut text = [0; 64];
        let read = self
            .file
            .as_ref()
            .and_then(|f| f.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or("");
        let queued = text.split_whitespace().nth(1);
        queued.and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}
