//! A worker process's end of its socket: takes orders, one at a time, and reports what was made of them.
//!
//! What [`coprep_protocol::code`] says is read and written here and not in Python, since it is done once per sample:
//! code that is run that seldom is in no processor's cache, and costs in Python ten times what it does in a loop.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use coprep_cache::worklist::{Worklist, Written};
use coprep_protocol::code::{ENTRIES, Incoming, Order, Progress, Told, entry};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use nix::time::{ClockId, clock_gettime};
use pyo3::exceptions::{PyConnectionResetError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Time off the processor that is less than this part of all time is not looked into.
const HARDLY: u64 = 32;

/// See the module. For one thread.
#[pyclass]
pub(crate) struct WorkerLink {
    socket: RawFd,
    /// None: there are no samples to make.
    worklist: Option<Worklist>,
    /// Of the stream.
    seed: u64,
    incoming: Incoming,
    /// Messages that came before an answer.
    early: VecDeque<Vec<u8>>,
    chunk: Chunk,
    /// The sample that is being made.
    now: Clocks,
    /// Of samples that are written and were not yet reported, nanoseconds: all, and off the processor.
    wall: u64,
    off: u64,
    queue: RunQueue,
}

#[derive(Default)]
struct Chunk {
    number: u32,
    /// Where what came in its scratch file ends.
    end: u64,
    orders: Vec<Order>,
    /// Of the orders, those that were looked at.
    seen: usize,
    /// One was begun.
    is_begun: bool,
    /// The coordinator knows that it is at its end.
    is_ended: bool,
}

struct Clocks {
    began: Instant,
    cpu: Duration,
    /// The deterministic part was there.
    made: Option<Instant>,
}

impl Clocks {
    fn start() -> Self {
        Clocks {
            began: Instant::now(),
            cpu: thread_cpu(),
            made: None,
        }
    }

    /// Does not count so much time: it was spent waiting for others.
    fn leave_out(&mut self, time: Duration) {
        self.began += time;
        self.made = self.made.map(|made| made + time);
    }
}

/// Of a message: its length.
const LENGTH: usize = 4;
#[pymethods]
impl WorkerLink {
    /// `socket`: its descriptor. `worklist`: that of the worklist, if there is one. Both stay the caller's. `seed`: of the
    /// stream.
    #[new]
    fn new(socket: RawFd, worklist: Option<RawFd>, seed: u64) -> PyResult<Self> {
        Ok(WorkerLink {
            socket,
            worklist: worklist.map(open_worklist).transpose()?,
            seed,
            incoming: Incoming::default(),
            early: VecDeque::new(),
            chunk: Chunk {
                is_ended: true,
                ..Chunk::default()
            },
            now: Clocks::start(),
            wall: 0,
            off: 0,
            queue: RunQueue::new(),
        })
    }

    /// The next sample to make, whose clocks run from now on; or a message that says something else; None: the
    /// coordinator is gone.
    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            while let Some(&order) = self.chunk.orders.get(self.chunk.seen) {
                self.chunk.seen += 1;
                if self.list()?.begin(self.entry()) {
                    self.now = Clocks::start();
                    let is_first = !std::mem::replace(&mut self.chunk.is_begun, true);
                    return self.told(py, is_first, &order).map(Some);
                }
            }
            if !self.chunk.is_ended {
                self.report(py, true)?;
            }
            let Some(message) = self.message(py)? else {
                return Ok(None);
            };
            match Told::parse(&message).map_err(PyValueError::new_err)? {
                Told::Make(number, orders) => {
                    let ends = orders.iter().map(|o| o.cached.0 + o.cached.1);
                    self.chunk = Chunk {
                        number,
                        end: ends.max().unwrap_or(0),
                        orders,
                        ..Chunk::default()
                    };
                }
                _ => return Ok(Some(PyBytes::new(py, &message).into_any())),
            }
        }
    }

    /// Of the chunk: its scratch file, and where what came in it ends.
    fn scratch(&self) -> (u32, u64) {
        (self.chunk.number, self.chunk.end)
    }

    /// The deterministic part of the sample is there.
    fn made(&mut self) {
        self.now.made = Some(Instant::now());
    }

    /// Buffer and slot of a sample that is made: as late as this, so that a slow one holds no minibatch up. None: the
    /// coordinator is gone.
    fn place(&mut self, py: Python<'_>) -> PyResult<Option<(u32, u32)>> {
        if let Some(place) = self.offered() {
            return Ok(Some(place));
        }
        self.report(py, false)?;
        self.say(py, b'W', &[])?;
        while let Some(message) = self.receive(py)? {
            match Told::parse(&message).map_err(PyValueError::new_err)? {
                Told::Place(buffer, slot) => return Ok(Some((buffer, slot))),
                _ => self.early.push_back(message),
            }
        }
        Ok(None)
    }

    /// The sample is written. `at`, `size`: where in the scratch file its deterministic part lies, if it was kept. `blob`:
    /// bytes of it that are of no fixed size.
    fn done(&mut self, py: Python<'_>, at: u64, size: u64, blob: u64) -> PyResult<()> {
        let now = Instant::now();
        let wall = nanos(now - self.now.began);
        let cpu = nanos(thread_cpu().saturating_sub(self.now.cpu));
        let made = self.now.made.unwrap_or(now);
        let written = Written {
            wall_ns: wall,
            cpu_ns: cpu,
            dataset_ns: nanos(made - self.now.began),
            kept: (at, size),
            blob,
        };
        self.list()?.write(self.entry(), &written);
        self.wall += wall;
        self.off += wall.saturating_sub(cpu);
        match self.chunk.seen == self.chunk.orders.len() {
            true => self.report(py, true),
            false => Ok(()),
        }
    }

    /// The sample raised: what, as JSON.
    fn raised(&mut self, py: Python<'_>, what: &[u8]) -> PyResult<()> {
        self.report(py, false)?;
        self.say(py, b'E', what)
    }

    /// Asks where to write a sample of `size` bytes, which is larger than its slot, and waits until there is room. Returns
    /// the place in the staging area, or None: it is not to be written, and the next one follows.
    fn room(&mut self, py: Python<'_>, size: u64) -> PyResult<Option<u64>> {
        self.report(py, false)?;
        self.say(py, b'L', &size.to_le_bytes())?;
        let asked = Instant::now();
        while let Some(message) = self.receive(py)? {
            match Told::parse(&message).map_err(PyValueError::new_err)? {
                Told::Room(at) => {
                    self.now.leave_out(asked.elapsed());
                    return Ok(at);
                }
                _ => self.early.push_back(message),
            }
        }
        Err(PyConnectionResetError::new_err("the coordinator is gone"))
    }

    /// Answers a message.
    fn answer(&self, py: Python<'_>, message: &[u8]) -> PyResult<()> {
        self.send(py, &framed(&[message]))
    }
}

impl WorkerLink {
    fn list(&self) -> PyResult<&Worklist> {
        let missing = || PyValueError::new_err("samples to make, and no worklist");
        self.worklist.as_ref().ok_or_else(missing)
    }

    /// Of the sample that is being made, within its chunk.
    fn index(&self) -> u32 {
        self.chunk.seen.saturating_sub(1) as u32
    }

    /// Of the sample that is being made.
    fn entry(&self) -> u32 {
        entry(self.chunk.number, self.index())
    }

    /// The place that is offered for the sample that is being made, unless it was taken back.
    fn offered(&self) -> Option<(u32, u32)> {
        let order = self.chunk.orders.get(self.index() as usize)?;
        let is_ours = order.is_offered && self.worklist.as_ref()?.take(self.entry());
        order.place.filter(|_| is_ours)
    }

    /// As Python is told: whether it is the first of its chunk, sample, buffer and slot if they are known for sure, whether to
    /// keep it, key of its random numbers, where its cached part lies, bytes of that, and its visit.
    fn told<'py>(
        &self,
        py: Python<'py>,
        is_first: bool,
        order: &Order,
    ) -> PyResult<Bound<'py, PyAny>> {
        let key = sample_key(self.seed, u64::from(order.id), order.visit);
        let (at, size) = order.cached;
        let place = order.place.filter(|_| !order.is_offered);
        let visit = order.visit;
        let told = (is_first, order.id, place, order.keep, key, at, size, visit);
        Ok(told.into_pyobject(py)?.into_any())
    }

    /// That more is written, or that the chunk is at its end.
    fn report(&mut self, py: Python<'_>, ends_chunk: bool) -> PyResult<()> {
        if self.wall == 0 && !ends_chunk {
            return Ok(());
        }
        let progress = Progress {
            ends_chunk,
            queued_ns: self.queue.since(self.wall, self.off),
            off_ns: self.off,
        };
        self.send(py, &framed(&[&progress.message()]))?;
        (self.wall, self.off) = (0, 0);
        self.chunk.is_ended = ends_chunk;
        Ok(())
    }

    /// Something of the sample that is being made.
    fn say(&self, py: Python<'_>, kind: u8, what: &[u8]) -> PyResult<()> {
        self.send(py, &framed(&[&[kind], &self.index().to_le_bytes(), what]))
    }

    fn message(&mut self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        match self.early.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.receive(py),
        }
    }

    /// None: the coordinator is gone.
    fn receive(&mut self, py: Python<'_>) -> PyResult<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.incoming.message()? {
                return Ok(Some(message));
            }
            let (socket, room) = (self.socket, self.incoming.room());
            match py.detach(|| recv(socket, room, MsgFlags::empty())) {
                Ok(0) | Err(Errno::ECONNRESET) => return Ok(None),
                Ok(read) => self.incoming.came(read),
                Err(Errno::EINTR) => py.check_signals()?,
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
    }

    fn send(&self, py: Python<'_>, mut bytes: &[u8]) -> PyResult<()> {
        while !bytes.is_empty() {
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

/// By a descriptor of its own.
fn open_worklist(file: RawFd) -> PyResult<Worklist> {
    let path = format!("/proc/self/fd/{file}");
    let file = File::options().read(true).write(true).open(path)?;
    Worklist::open(file.into(), ENTRIES).map_err(|e| PyOSError::new_err(e.to_string()))
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Lets this process keep the memory that its samples leave: see [`coprep_cache::allocator`].
#[pyfunction]
pub(crate) fn keep_freed_memory() {
    coprep_cache::allocator::keep_freed_memory();
}

/// 64 well-mixed bits (SplitMix64, Steele et al. 2014) of three numbers: the seed of a stream, a sample, its visit.
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

/// How long this thread was ready to run and had no processor.
struct RunQueue {
    /// None: a kernel without it.
    file: Option<File>,
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

    /// Nanoseconds since the last call, of `wall` of which the thread was off the processor for `off`. Where that is
    /// hardly anything, it is taken for that: to ask takes longer than a message.
    fn since(&mut self, wall: u64, off: u64) -> u64 {
        if off.saturating_mul(HARDLY) < wall {
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
