//! Streams whose samples are made by the jobs' own code, in worker processes that all jobs of the stream share.
//!
//! * [`zygote`]: the process that has imported the modules that a program's datasets need, and that forks fork servers.
//! * [`fork_server`]: the process that has loaded the dataset and forks workers.
//! * [`worker`]: a thread per worker process, which keeps it busy and replaces it when it ends.
//! * [`deadly`]: the samples that end their workers.
//!
//! The coordinator knows the command that starts that code, and the protocol of the processes that it starts
//! ([`coprep_protocol::code`]). It does not know the code's language.
//!
//! **Invariants.** A task ends exactly once: it is made, fails or is dropped, whatever happens to processes. A slot is
//! given to another worker only when the process that may write it no longer exists.

mod deadly;
mod fork_server;
mod worker;
mod zygote;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use coprep_cache::staging::Layout;
use coprep_cache::task_table::TaskHandle;
use coprep_costs::MeasuredTimes;
use coprep_protocol::code::{self, Channel, Probed, Raised, SampleRequest, WorkerReport};
use coprep_protocol::lock::lock;
use coprep_protocol::message::UserCode;
use coprep_protocol::spec::{BLOB, Dtype, Field};
use crossbeam::utils::CachePadded;

use crate::caches::DatasetCache;
use crate::observe::stalls::{BusyClock, StallClock};
use crate::produce::deadline_queue::{Deadline, DeadlineQueue};
use crate::produce::native::Failure;
use crate::produce::processes::deadly::DeadlySamples;
use crate::produce::processes::fork_server::{ForkServer, Forked};
use crate::produce::processes::worker::{PoolTask, Worker};
pub(crate) use crate::produce::processes::zygote::Zygote;
use crate::{Error, Result};

/// One sample that is to be made.
pub(crate) trait Task: Send {
    /// Tells the task that a worker is about to make it.
    fn begin(&mut self) -> Begin;
    /// Returns the sample to make, and its slot if that is known before the sample is made.
    fn request(&self) -> SampleRequest;
    /// Returns the sample if this id means the same sample whenever it is drawn. Returns `None` if the id counts the
    /// batches of an iteration, which are others in each epoch.
    fn lasting_id(&self) -> Option<u32>;
    /// Returns the expected effort, as far as it is known now.
    fn outlook(&self) -> Outlook;
    /// Tells the task that a worker has it and will begin it. Returns the buffer and slot as long as the slot is
    /// offered. Returns `None` if the slot is known already, or is better decided when the sample is made.
    fn offer(&mut self, given: &TaskHandle) -> Option<(u32, u32)>;
    /// Tells the task that no worker has it any more, so that it waits again.
    fn put_back(&mut self);
    /// Returns the buffer and slot, and decides on them now if that was not done before. `is_about_to_write`: the
    /// sample is made.
    fn bind(&mut self, is_about_to_write: bool) -> (u32, u32);
    /// Reserves `bytes` bytes for a sample that is larger than its slot, or waits a moment for them.
    fn room(&mut self, bytes: u64) -> LargeRoom;
    /// Ends the task.
    fn finish(self: Box<Self>, outcome: TaskOutcome);
}

/// The effort that a task is expected to take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outlook {
    /// Expected time of a worker, or `None` if nothing is known.
    pub(crate) seconds: Option<f32>,
    /// `true` if the expected time is known and no longer than that of most samples.
    pub(crate) is_quick: bool,
    /// `true` if the sample may be cached.
    pub(crate) is_kept: bool,
}

/// Answer of a task that a worker is about to begin.
pub(crate) enum Begin {
    /// The worker makes it.
    Make,
    /// There is nothing to make, because the task has this outcome already.
    Over(TaskOutcome),
}

/// Place for a sample that is larger than its slot.
pub(crate) enum LargeRoom {
    /// The sample is written from this byte of the staging area on.
    At(u64),
    /// The sample waits until others have released some bytes.
    Wait,
    /// Nobody wants the sample any more.
    Unwanted,
    /// No bytes can be reserved.
    Failed(Failure),
}

/// Outcome of a task.
pub(crate) enum TaskOutcome {
    /// A worker has written the sample to its slot. `blob` counts the bytes of its parts that have no fixed size.
    Made { times: MeasuredTimes, blob: u64 },
    /// The sample was found, and lies in its slot.
    Found(MeasuredTimes),
    /// The sample cannot be made.
    Failed(Failure),
    /// The task has ended the largest allowed number of workers.
    EndedWorkers(Failure),
    /// Nobody wants the sample.
    Unwanted,
    /// Nobody makes the sample, because the process pool has ended.
    Dropped,
}

/// Reason why a process pool ended before its stream.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// Its fork server ended.
    ForkServer(String),
    /// A thread panicked.
    Defect(&'static str),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::ForkServer(why) => write!(f, "the host of its user code: {why}"),
            Trouble::Defect(what) => {
                write!(f, "{what}: a defect of coprep, please report it")
            }
        }
    }
}

/// User code that is loaded, but makes nothing yet.
pub(crate) struct Loaded {
    fork_server: Arc<ForkServer>,
    pub(crate) samples: u32,
    /// Fields and sizes of its samples.
    pub(crate) shape: SampleShape,
}

/// Fields and sizes of the samples of a dataset.
#[derive(Clone, Debug)]
pub(crate) struct SampleShape {
    /// Fields, the blob among them, without the index.
    pub(crate) fields: Vec<Field>,
    /// Bytes that the parts without a fixed size take in most samples.
    typical_blob: u64,
    /// Bytes of the packed deterministic part.
    pub(crate) kept: u64,
    /// How the job makes batches of the fields.
    pub(crate) structure: Vec<u8>,
}

impl SampleShape {
    /// Returns the room in a slot for the parts of a sample that have no fixed size.
    fn blob(&self) -> u64 {
        let blob = self.fields.iter().find(|f| f.name == BLOB);
        blob.map_or(0, |f| f.sample_bytes() as u64)
    }

    /// Returns `true` if samples have parts without a fixed size.
    pub(crate) fn is_uneven(&self) -> bool {
        self.blob() > 0
    }

    /// Returns the bytes of a sample in a slot that are the same for all samples.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let fixed = self.fields.iter().filter(|f| f.name != BLOB);
        fixed.map(|f| f.sample_bytes() as u64).sum()
    }

    /// Returns the bytes that most samples take in the cache in their prepared form.
    pub(crate) fn prepared_bytes(&self) -> u64 {
        self.fixed_bytes() + self.typical_blob.max(self.blob())
    }
}

/// Factor by which the room for a blob in a slot exceeds the bytes of a typical blob.
const BLOB_MARGIN: u64 = 2;
/// Least room for a blob. If the blob is too large for the slot, this room says where the blob lies.
const LEAST_BLOB: u64 = 64;
/// Largest packed exception that is passed on. Longer ones are passed on as text.
const MOST_EXCEPTION: usize = 1 << 20;

/// The samples of a dataset that are inspected when it is loaded, and the purpose.
pub(crate) struct Probing<F> {
    /// Returns the ids of the samples to inspect, given the number of samples.
    pub(crate) ids: F,
    /// `true` if there is a deterministic part to be cached.
    pub(crate) split: bool,
    /// Most room that a slot may have for a blob.
    pub(crate) most_blob: u64,
}

impl Loaded {
    /// Loads a dataset, as long as somebody waits for it, and inspects some of its samples. `anew`: the process has
    /// imported nothing before.
    pub(crate) fn load(
        zygote: &Arc<Zygote>,
        code: &UserCode,
        dataset: &OwnedFd,
        anew: bool,
        is_awaited: impl Fn() -> bool,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Loaded> {
        let (fork_server, _) = ForkServer::start(zygote, code, dataset, anew, is_awaited)?;
        Self::inspect(fork_server, code, probing)
    }

    /// Does the same with a fork server that has loaded the dataset before.
    pub(crate) fn from_idle(
        mut idle: IdleForkServer,
        code: &UserCode,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Loaded> {
        let fork_server = idle.fork_server.take();
        let fork_server =
            fork_server.ok_or_else(|| Error::Code("the dataset's process is gone".into()))?;
        Self::inspect(fork_server, code, probing)
    }

    fn inspect(
        fork_server: Arc<ForkServer>,
        code: &UserCode,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Loaded> {
        let Probing {
            ids,
            split,
            most_blob,
        } = probing;
        let samples = fork_server.samples().unwrap_or(0);
        let timeout = Duration::from_millis(code.patience_ms);
        let inspected = u32::try_from(samples)
            .map_err(|_| Error::Invalid(format!("{samples} samples are more than 4,294,967,295")))
            .and_then(|samples| {
                Ok((
                    samples,
                    inspect(&fork_server, &ids(samples), split, timeout)?,
                ))
            })
            .and_then(|(samples, probed)| Ok((samples, shape(probed, most_blob)?)));
        match inspected {
            Ok((samples, shape)) => Ok(Loaded {
                fork_server,
                samples,
                shape,
            }),
            Err(e) => {
                fork_server.close();
                Err(e)
            }
        }
    }

    /// Gives the staging area to the workers that are forked later.
    pub(crate) fn map(&self, layout: &Layout, seed: u64, file: BorrowedFd<'_>) -> Result<()> {
        self.fork_server.map(layout, &self.shape, seed, file)
    }

    /// Ends the fork server of a dataset that nobody uses.
    pub(crate) fn discard(self) {
        self.fork_server.close();
    }
}

/// Number of samples that are inspected where there is a deterministic part to be cached. Its size is estimated from
/// them.
const SPLIT_INSPECTED: u8 = 4;
/// Number of workers that may end on the first samples.
const MOST_INSPECTORS: usize = 4;

/// Asks a worker of its own about the fields and sizes of a sample. User code never runs in the fork server.
fn inspect(
    fork_server: &ForkServer,
    ids: &[u32],
    split: bool,
    timeout: Duration,
) -> Result<Probed> {
    let enough = if split { SPLIT_INSPECTED } else { 1 };
    let inspected = inspect_once(fork_server, ids, split, enough, true, timeout);
    // A sample that ends its worker, or takes for ever, is reported when it is due. Another sample shows the fields of
    // the others. It is inspected alone, because with several it is unknown which one ended the worker.
    for skipped in 1..MOST_INSPECTORS.min(ids.len()) {
        if !matches!(inspected, Err(Error::Code(_))) {
            break;
        }
        match inspect_once(fork_server, &ids[skipped..], split, 1, false, timeout) {
            // The first worker's error is the one that is reported.
            Err(Error::Code(_)) => {}
            // A fork server that was killed meanwhile is started anew.
            other => return other,
        }
    }
    inspected
}

/// Inspects `enough` of the samples `ids`: the first ones that do not fail. Inspects a few more if that is allowed, the
/// samples have no fixed size, and they are quick.
fn inspect_once(
    fork_server: &ForkServer,
    ids: &[u32],
    split: bool,
    enough: u8,
    may_inspect_more: bool,
    timeout: Duration,
) -> Result<Probed> {
    let Forked { number, socket, .. } = fork_server.fork(0, 1, None, &[])?;
    let mut channel = Channel::new(socket);
    let gone = |e: std::io::Error| {
        let how = fork_server.exited(number, Duration::from_secs(2));
        // Workers end with their fork server. Its end may become known before or after that of its workers.
        if let Some(killed) = fork_server.ended_while("to make the first samples") {
            return killed;
        }
        match how {
            Some(how) => Error::Code(format!(
                "the worker that made the first samples {how}: run with num_workers=0 to see what it does"
            )),
            None => Error::io("the first worker does not answer", e),
        }
    };
    channel
        .send(&code::probe(ids, enough, split, may_inspect_more), &[])
        .map_err(gone)?;
    let limit = timeout.saturating_mul(enough.into());
    let message = channel.receive(limit).map_err(gone)?.ok_or_else(|| {
        fork_server.kill(number);
        Error::Code(format!(
            "the first samples took longer than {} s: give a longer timeout, or run with num_workers=0 to see why",
            limit.as_secs_f64()
        ))
    })?;
    match WorkerReport::parse(&message).map_err(Error::Code)? {
        WorkerReport::Probed(probed) => Ok(*probed),
        other => Err(Error::Code(format!("the first worker said {other:?}"))),
    }
}

fn shape(probed: Probed, most_blob: u64) -> Result<SampleShape> {
    if let Some(raised) = probed.raised {
        let id = raised.id;
        let failure = failure(raised, "0".into()).map_err(Error::Code)?;
        return Err(Error::Sample(Box::new(failure.of_sample(
            0,
            id,
            String::new(),
        ))));
    }
    let field = |(name, dtype, shape): (String, String, Vec<u32>)| {
        let dtype = Dtype::of_name(&dtype)
            .ok_or_else(|| Error::Code(format!("a field of the unknown type {dtype}")))?;
        Ok(Field { name, dtype, shape })
    };
    let mut fields = probed
        .fields
        .into_iter()
        .map(field)
        .collect::<Result<Vec<_>>>()?;
    if probed.blob > 0 {
        fields.push(Field {
            name: BLOB.into(),
            dtype: Dtype::U8,
            shape: vec![blob_room(probed.blob, most_blob)],
        });
    }
    Ok(SampleShape {
        fields,
        typical_blob: probed.blob,
        kept: probed.kept,
        structure: code::unhex(&probed.structure).map_err(Error::Code)?,
    })
}

/// Returns the room that slots have for blobs, most of which take `typical` bytes. If that is more than a slot may
/// have, all blobs lie elsewhere, and room for them in slots would be of no use.
fn blob_room(typical: u64, most: u64) -> u32 {
    let most = most.min(u64::from(u32::MAX / 2));
    let room = if typical > most {
        0
    } else {
        typical.saturating_mul(BLOB_MARGIN).min(most)
    };
    room.max(LEAST_BLOB).next_multiple_of(LEAST_BLOB) as u32
}

/// Converts the exception of a sample.
///
/// # Errors
/// If its hexadecimal text is malformed.
fn failure(raised: Raised, worker: String) -> std::result::Result<Failure, String> {
    let mut exception = code::unhex(&raised.exception)?;
    if exception.len() > MOST_EXCEPTION {
        exception.clear();
    }
    let stage = match raised.stage.as_str() {
        "transform" => "transform",
        Raised::END => Raised::END,
        _ => "dataset",
    };
    Ok(Failure {
        worker,
        exception,
        ..Failure::new(stage, raised.message)
    })
}

/// A fork server that has loaded a dataset and has nothing to do.
pub(crate) struct IdleForkServer {
    /// The fork server, or `None` once it was taken.
    fork_server: Option<Arc<ForkServer>>,
    since: Instant,
}

impl IdleForkServer {
    /// Returns how long the fork server has been idle.
    pub(crate) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.fork_server
            .as_ref()
            .is_some_and(|fork_server| fork_server.ended().is_none())
    }
}

impl Drop for IdleForkServer {
    fn drop(&mut self) {
        if let Some(fork_server) = &self.fork_server {
            fork_server.close();
        }
    }
}

/// The worker processes of a stream.
pub(crate) struct ProcessPool {
    fork_server: Arc<ForkServer>,
    workers: u32,
    /// Longest time without a message from a worker that has something to do.
    timeout: Duration,
    /// Cache of the deterministic parts.
    cache: Option<Arc<DatasetCache>>,
    queue: DeadlineQueue<PoolTask>,
    /// Number of workers that wait for memory.
    stuck: AtomicU32,
    deadly: DeadlySamples,
    /// Typical time of a sample. It is written with every sample, so it has a cache line of its own.
    typical: CachePadded<Typical>,
    /// Measures how busy the workers are, or `None` if stalls are not attributed.
    clock: Option<Mutex<BusyClock>>,
    over: OnceLock<Option<Trouble>>,
    /// Called when the pool ends by itself.
    on_trouble: OnceLock<Box<dyn Fn(Trouble) + Send + Sync>>,
}

/// Chunks of samples that may wait per worker before the next minibatch is drawn.
const WAITING: u32 = 2;

impl ProcessPool {
    /// Starts the threads. Each thread starts its process when there is something to do.
    pub(crate) fn start(
        loaded: Loaded,
        workers: u32,
        timeout: Duration,
        cache: Option<Arc<DatasetCache>>,
        attributes: bool,
    ) -> Result<Arc<ProcessPool>> {
        let process_pool = Arc::new(ProcessPool {
            fork_server: loaded.fork_server,
            workers,
            timeout,
            cache,
            queue: DeadlineQueue::new(),
            stuck: AtomicU32::new(0),
            deadly: DeadlySamples::default(),
            typical: CachePadded::default(),
            clock: attributes.then(|| Mutex::new(BusyClock::new(Instant::now()))),
            over: OnceLock::new(),
            on_trouble: OnceLock::new(),
        });
        for number in 0..workers {
            let worker = Worker::new(process_pool.clone(), number);
            let started = std::thread::Builder::new()
                .name(format!("code-{number}"))
                .spawn(move || worker.run());
            if let Err(e) = started {
                drop(process_pool.dismiss());
                return Err(Error::io("cannot start a thread", e));
            }
        }
        Ok(process_pool)
    }

    /// Sets the function that is called when the pool ends by itself.
    pub(crate) fn on_trouble(&self, tell: impl Fn(Trouble) + Send + Sync + 'static) {
        let _ = self.on_trouble.set(Box::new(tell));
    }

    /// Queues a sample to make. It is begun at `due`, or as soon as a worker is free.
    pub(crate) fn submit(&self, due: Deadline, task: Box<dyn Task>) {
        if self.is_over() {
            return task.finish(TaskOutcome::Dropped);
        }
        self.queue.push(due, PoolTask::new(task, due));
        // The pool may have ended since the check above, and drained its queue before this task came.
        if self.is_over() {
            self.drain();
        }
    }

    /// Returns the number of waiting samples below which the next minibatch is drawn.
    pub(crate) fn few_waiting(&self) -> u32 {
        WAITING * self.workers * self.chunk() as u32
    }

    pub(crate) fn workers(&self) -> u32 {
        self.workers
    }

    /// Returns the stalls until now.
    pub(crate) fn stall_clock(&self) -> StallClock {
        let clock = self.clock();
        clock.map_or_else(StallClock::default, |mut clock| {
            clock.advance_clock(Instant::now())
        })
    }

    fn clock(&self) -> Option<MutexGuard<'_, BusyClock>> {
        let clock = self.clock.as_ref()?;
        Some(lock(clock))
    }

    /// Returns how many workers have a sample to make.
    pub(crate) fn busy(&self) -> u32 {
        self.clock().map_or(0, |clock| clock.busy())
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.fork_server.pids()
    }

    /// Ends threads and workers. Returns the fork server, which has the dataset in memory, unless the pool had failed.
    pub(crate) fn dismiss(&self) -> Option<IdleForkServer> {
        // This fails if the pool has ended by itself, or its fork server has.
        let well = self.over.set(None).is_ok() && self.fork_server.ended().is_none();
        self.drain();
        if !well {
            self.fork_server.close();
            return None;
        }
        self.fork_server.become_idle();
        Some(IdleForkServer {
            fork_server: Some(self.fork_server.clone()),
            since: Instant::now(),
        })
    }

    /// Ends a pool that cannot go on, and reports the reason.
    fn end(&self, trouble: Trouble) {
        if self.over.set(Some(trouble.clone())).is_err() {
            return;
        }
        self.fork_server.close();
        self.drain();
        if let Some(tell) = self.on_trouble.get() {
            tell(trouble);
        }
    }

    fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// Drops the queued tasks, and wakes the threads that wait for a task.
    fn drain(&self) {
        self.queue.close();
        let queued = std::iter::from_fn(|| self.queue.try_pop());
        queued.for_each(|task| task.work.finish(TaskOutcome::Dropped));
    }

    // For the workers' threads.

    fn next(&self, wait: Duration) -> Option<PoolTask> {
        self.queue.pop(wait)
    }

    /// Puts back a sample that any worker may make, behind the samples that are due before it.
    fn requeue(&self, task: PoolTask) {
        self.queue.push(task.due, task);
        if self.is_over() {
            self.drain();
        }
    }

    /// Puts back a sample before all others, because its minibatch has waited longest.
    fn requeue_first(&self, task: PoolTask) {
        self.queue.push(Deadline::default(), task);
        if self.is_over() {
            self.drain();
        }
    }

    /// Returns the largest number of samples in a chunk.
    fn chunk(&self) -> usize {
        self.typical.seconds().map_or(1, worker::chunk)
    }

    /// Records that a worker begins, or ceases, to wait for memory.
    fn waits_for_room(&self, waits: bool) {
        if waits {
            self.stuck.fetch_add(1, Ordering::Relaxed);
        } else {
            self.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns `true` if every worker waits for memory.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck() >= self.workers
    }

    /// Returns how many workers wait for memory.
    pub(crate) fn stuck(&self) -> u32 {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Returns how many samples one worker may take and leave as many for each of the others.
    fn share(&self) -> usize {
        self.queue.len() / self.workers as usize + 1
    }

    /// Records that a worker has something to do, or nothing more.
    fn turns(&self, is_busy: bool) {
        if let Some(mut clock) = self.clock() {
            clock.turns(Instant::now(), is_busy);
        }
    }

    fn took(&self, times: &MeasuredTimes) {
        if let Some(mut clock) = self.clock() {
            clock.took(times);
        }
        self.typical.observe(times.total());
    }
}

/// Typical time of a sample in seconds: the geometric mean of about the last hundred, which a few slow ones hardly
/// change. If two threads write at once, one of the two samples is lost.
#[derive(Default)]
struct Typical {
    seen: AtomicU32,
    /// Bits of the logarithm.
    logarithm: AtomicU32,
}

impl Typical {
    // The mean of the first samples is exact. From this number on older samples fade out.
    const MOST_SEEN: u32 = 64;

    fn observe(&self, seconds: f32) {
        let seen = self.seen.load(Ordering::Relaxed);
        let before = f32::from_bits(self.logarithm.load(Ordering::Relaxed));
        let now = seconds.max(f32::MIN_POSITIVE).ln();
        let after = before + (now - before) / (seen + 1) as f32;
        self.logarithm.store(after.to_bits(), Ordering::Relaxed);
        let seen = (seen + 1).min(Self::MOST_SEEN);
        self.seen.store(seen, Ordering::Relaxed);
    }

    /// Returns the typical time, or `None` if no sample has been made.
    fn seconds(&self) -> Option<f32> {
        let logarithm = f32::from_bits(self.logarithm.load(Ordering::Relaxed));
        (self.seen.load(Ordering::Relaxed) > 0).then(|| logarithm.exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typical_is_what_most_take() {
        let typical = Typical::default();
        assert_eq!(typical.seconds(), None);
        // The first sample also loads things that all others need.
        typical.observe(2.0);
        for number in 0..1000 {
            typical.observe(if number % 20 == 7 { 0.4 } else { 0.002 });
        }
        let seconds = typical.seconds().unwrap();
        assert!((0.002..0.003).contains(&seconds), "{seconds}");
        for _ in 0..1000 {
            typical.observe(0.02);
        }
        assert!((typical.seconds().unwrap() - 0.02).abs() < 1e-4);
        typical.observe(0.0);
        assert!(typical.seconds().unwrap().is_finite());
    }

    #[test]
    fn slots_have_room_for_most_blobs_or_for_none() {
        let rooms = [1, 100, 3000, 5000, 6001, u64::MAX].map(|typical| blob_room(typical, 6000));
        assert_eq!(rooms, [64, 256, 6016, 6016, 64, 64]);
    }

    #[test]
    fn a_chunk_is_as_many_as_take_a_few_milliseconds() {
        let chunks = [0.0, 1e-6, 1e-3, 2.3e-3, 5e-3, 1.0].map(worker::chunk);
        assert_eq!(chunks, [64, 64, 12, 5, 2, 1]);
    }
}
