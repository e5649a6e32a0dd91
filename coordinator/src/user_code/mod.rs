//! Streams whose samples are made by the jobs' own code, in worker processes that all jobs of the stream share.
//!
//! * [`zygote`]: the process that has imported what the datasets of a program need and forks hosts.
//! * [`host`]: the process that has loaded the dataset and forks workers.
//! * [`worker`]: a thread per worker process, which keeps it busy and replaces it when it ends.
//! * [`deadly`]: the samples that end their workers.
//!
//! The coordinator knows of that code a command, and how to speak with what it starts
//! ([`coprep_protocol::code`]): which language it is in, it does not know.
//!
//! **Invariants.** A task ends exactly once, made, failed or dropped, whatever becomes of processes. A slot is given to
//! another worker only when the one that may write it is no process any more.

mod deadly;
mod host;
mod worker;
mod zygote;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use coprep_cache::staging::Layout;
use coprep_cache::worklist::Given;
use coprep_protocol::code::{self, Channel, Order, Probed, Raised, Report};
use coprep_protocol::message::UserCode;
use coprep_protocol::spec::{BLOB, Dtype, Field};
use crossbeam::utils::CachePadded;

use crate::caches::Cache;
use crate::due_queue::{DueQueue, Moment};
use crate::prepare::{Cost, Failure};
use crate::stalls::{BusyClock, Lacks};
use crate::user_code::deadly::DeadlySamples;
use crate::user_code::host::{Forked, Host};
use crate::user_code::worker::{Job, Worker};
pub(crate) use crate::user_code::zygote::Zygote;
use crate::{Error, Result};

/// One sample that is to be made.
pub(crate) trait Task: Send {
    /// A worker is about to make it.
    fn begin(&mut self) -> Begin;
    /// What to make, and where, if that is known before it is made.
    fn order(&self) -> Order;
    /// Returns the sample if this id means the same one whenever it is drawn. `None`: it counts the batches of an iteration,
    /// which are others in each epoch.
    fn lasting_id(&self) -> Option<u32>;
    /// What it will take, as it is now.
    fn outlook(&self) -> Outlook;
    /// A worker has it, and will begin it. Where, buffer and slot, as long as the place is offered. None: that is known, or
    /// better decided when it is made.
    fn offer(&mut self, given: &Given) -> Option<(u32, u32)>;
    /// No worker has it any more: it waits.
    fn put_back(&mut self);
    /// Where: buffer and slot. Decided now, if it was not before. `is_about_to_write`: it is made.
    fn bind(&mut self, is_about_to_write: bool) -> (u32, u32);
    /// Has `bytes` bytes reserved for a sample that is larger than its slot, or waits for a moment.
    fn room(&mut self, bytes: u64) -> Room;
    /// Ends it.
    fn finish(self: Box<Self>, outcome: Outcome);
}

/// What a task will take a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outlook {
    /// None: nothing is known.
    pub(crate) seconds: Option<f32>,
    /// That is known, and no longer than most take.
    pub(crate) is_quick: bool,
    /// What is made may be cached.
    pub(crate) is_kept: bool,
}

/// What is to be done for a task.
pub(crate) enum Begin {
    /// Make it.
    Make,
    /// Nothing: this is what became of it.
    Over(Outcome),
}

/// Where a sample is written that is larger than its slot.
pub(crate) enum Room {
    /// From this byte of the staging area on.
    At(u64),
    /// It must wait until others have let go of some.
    Wait,
    /// Nobody wants the sample any more.
    Unwanted,
    /// There is none to be had.
    Failed(Failure),
}

/// What became of a task.
pub(crate) enum Outcome {
    /// A worker has written it to its slot; so many bytes of it are of no fixed size.
    Made { cost: Cost, blob: u64 },
    /// It was found, and lies in its slot.
    Found(Cost),
    /// It cannot be made.
    Failed(Failure),
    /// As many workers have ended on it as may.
    EndedWorkers(Failure),
    /// Nobody wants it.
    Unwanted,
    /// Nobody makes it: the crew is at its end.
    Dropped,
}

/// Why a crew came to its end before its stream.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// Its host ended.
    Host(String),
    /// A thread panicked.
    Defect(&'static str),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Host(why) => write!(f, "the host of its user code: {why}"),
            Trouble::Defect(what) => {
                write!(f, "{what}: a defect of coprep, please report it")
            }
        }
    }
}

/// User code that is loaded, but makes nothing yet.
pub(crate) struct Loaded {
    host: Arc<Host>,
    pub(crate) samples: u32,
    /// What its samples are like.
    pub(crate) shape: Shape,
}

/// What samples are like.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Fields, the blob among them, without the index.
    pub(crate) fields: Vec<Field>,
    /// Bytes that most samples take of what is of no fixed size.
    typical_blob: u64,
    /// Bytes of the packed deterministic part.
    pub(crate) kept: u64,
    /// How the job makes batches of the fields.
    pub(crate) structure: Vec<u8>,
}

impl Shape {
    /// Room in a slot for what is of no fixed size.
    fn blob(&self) -> u64 {
        let blob = self.fields.iter().find(|f| f.name == BLOB);
        blob.map_or(0, |f| f.sample_bytes() as u64)
    }

    /// Returns true for samples of no fixed size.
    pub(crate) fn is_uneven(&self) -> bool {
        self.blob() > 0
    }

    /// Bytes of a sample in a slot that are the same for all samples.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let fixed = self.fields.iter().filter(|f| f.name != BLOB);
        fixed.map(|f| f.sample_bytes() as u64).sum()
    }

    /// Bytes of a sample as it is cached when it is prepared, of most samples.
    pub(crate) fn prepared_bytes(&self) -> u64 {
        self.fixed_bytes() + self.typical_blob.max(self.blob())
    }
}

/// Slots have this much more room for a blob than most samples take.
const BLOB_MARGIN: u64 = 2;
/// Least room for a blob: a slot says there where a larger one lies.
const LEAST_BLOB: u64 = 64;
/// Longest exception, as it was packed, that is passed on; longer ones are told as text.
const MOST_EXCEPTION: usize = 1 << 20;

/// Which samples of a dataset are looked at when it is loaded, and for what.
pub(crate) struct Probing<F> {
    /// Returns the samples, given how many there are.
    pub(crate) ids: F,
    /// There is a deterministic part to be cached.
    pub(crate) split: bool,
    /// Most room that a slot may have for a blob.
    pub(crate) most_blob: u64,
}

impl Loaded {
    /// Loads a dataset, as long as somebody awaits it, and looks at some of its samples. `anew`: in a process that has
    /// imported nothing before.
    pub(crate) fn load(
        zygote: &Arc<Zygote>,
        code: &UserCode,
        dataset: &OwnedFd,
        anew: bool,
        is_awaited: impl Fn() -> bool,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Loaded> {
        let (host, _) = Host::start(zygote, code, dataset, anew, is_awaited)?;
        Self::look(host, code, probing)
    }

    /// The same with a host that has loaded it before.
    pub(crate) fn again(
        mut resting: Resting,
        code: &UserCode,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Loaded> {
        let host = resting.host.take();
        let host = host.ok_or_else(|| Error::Code("the dataset's process is gone".into()))?;
        Self::look(host, code, probing)
    }

    fn look(
        host: Arc<Host>,
        code: &UserCode,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Loaded> {
        let Probing {
            ids,
            split,
            most_blob,
        } = probing;
        let samples = host.samples().unwrap_or(0);
        let patience = Duration::from_millis(code.patience_ms);
        let looked = u32::try_from(samples)
            .map_err(|_| Error::Invalid(format!("{samples} samples are more than 4,294,967,295")))
            .and_then(|samples| Ok((samples, look(&host, &ids(samples), split, patience)?)))
            .and_then(|(samples, probed)| Ok((samples, shape(probed, most_blob)?)));
        match looked {
            Ok((samples, shape)) => Ok(Loaded {
                host,
                samples,
                shape,
            }),
            Err(e) => {
                host.close();
                Err(e)
            }
        }
    }

    /// Gives the staging area to the workers to come.
    pub(crate) fn map(&self, layout: &Layout, seed: u64, file: BorrowedFd<'_>) -> Result<()> {
        self.host.map(layout, &self.shape, seed, file)
    }

    /// Ends what was loaded for nothing.
    pub(crate) fn discard(self) {
        self.host.close();
    }
}

/// Samples that are looked at where there is a deterministic part to be cached: its size is estimated from them.
const SPLIT_LOOKS: u8 = 4;
/// Workers that may end on the first samples.
const LOOKERS: usize = 4;

/// Asks a worker of its own what a sample is like: user code never runs in the host.
fn look(host: &Host, ids: &[u32], split: bool, patience: Duration) -> Result<Probed> {
    let enough = if split { SPLIT_LOOKS } else { 1 };
    let looked = look_once(host, ids, split, enough, true, patience);
    // A sample that ends its worker, or takes for ever, is reported when it is due. What the others are like,
    // another one shows. It is looked at alone: which of several ended the worker is not known.
    for skipped in 1..LOOKERS.min(ids.len()) {
        if !matches!(looked, Err(Error::Code(_))) {
            break;
        }
        match look_once(host, &ids[skipped..], split, 1, false, patience) {
            // The first worker's error is the one that is told.
            Err(Error::Code(_)) => {}
            // A host that was killed meanwhile is started anew.
            other => return other,
        }
    }
    looked
}

/// Looks at `enough` of the samples `ids`, the first ones that do not fail; and at a few more if it may, they are of no
/// fixed size, and it is quick.
fn look_once(
    host: &Host,
    ids: &[u32],
    split: bool,
    enough: u8,
    may_look_at_more: bool,
    patience: Duration,
) -> Result<Probed> {
    let Forked { number, socket, .. } = host.fork(0, 1, None, &[])?;
    let mut channel = Channel::new(socket);
    let gone = |e: std::io::Error| {
        let how = host.exited(number, Duration::from_secs(2));
        // Workers end with their host. That it ended may be known before how its workers did, or after.
        if let Some(killed) = host.ended_while("to make the first samples") {
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
        .send(&code::probe(ids, enough, split, may_look_at_more), &[])
        .map_err(gone)?;
    let limit = patience.saturating_mul(enough.into());
    let message = channel.receive(limit).map_err(gone)?.ok_or_else(|| {
        host.kill(number);
        Error::Code(format!(
            "the first samples took longer than {} s: give a longer timeout, or run with num_workers=0 to see why",
            limit.as_secs_f64()
        ))
    })?;
    match Report::parse(&message).map_err(Error::Code)? {
        Report::Probed(probed) => Ok(*probed),
        other => Err(Error::Code(format!("the first worker said {other:?}"))),
    }
}

fn shape(probed: Probed, most_blob: u64) -> Result<Shape> {
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
    Ok(Shape {
        fields,
        typical_blob: probed.blob,
        kept: probed.kept,
        structure: code::unhex(&probed.structure).map_err(Error::Code)?,
    })
}

/// Returns the room that slots have for blobs, most of which take `typical` bytes. Where that is more than a slot may have,
/// all of them lie elsewhere, and room for them in slots would be of no use.
fn blob_room(typical: u64, most: u64) -> u32 {
    let most = most.min(u64::from(u32::MAX / 2));
    let room = if typical > most {
        0
    } else {
        typical.saturating_mul(BLOB_MARGIN).min(most)
    };
    room.max(LEAST_BLOB).next_multiple_of(LEAST_BLOB) as u32
}

/// What the exception of a sample comes to.
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

/// A host that has loaded a dataset and has nothing to do.
pub(crate) struct Resting {
    /// None: it was taken.
    host: Option<Arc<Host>>,
    since: Instant,
}

impl Resting {
    /// For how long.
    pub(crate) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.host
            .as_ref()
            .is_some_and(|host| host.ended().is_none())
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        if let Some(host) = &self.host {
            host.close();
        }
    }
}

/// The workers of a stream.
pub(crate) struct Crew {
    host: Arc<Host>,
    workers: u32,
    /// Longest time without a word from a worker that has something to do.
    patience: Duration,
    /// Where deterministic parts are kept.
    cache: Option<Arc<Cache>>,
    queue: DueQueue<Job>,
    /// Workers that wait for memory.
    stuck: AtomicU32,
    deadly: DeadlySamples,
    /// Written with every sample: on a line of the cache of its own.
    typical: CachePadded<Typical>,
    /// None: it does not attribute.
    clock: Option<Mutex<BusyClock>>,
    over: OnceLock<Option<Trouble>>,
    /// Called when it comes to its end by itself.
    on_trouble: OnceLock<Box<dyn Fn(Trouble) + Send + Sync>>,
}

/// Chunks of samples that may wait per worker before the next minibatch is drawn.
const WAITING: u32 = 2;

impl Crew {
    /// Starts the threads; each starts its process when there is something to do.
    pub(crate) fn start(
        loaded: Loaded,
        workers: u32,
        patience: Duration,
        cache: Option<Arc<Cache>>,
        attributes: bool,
    ) -> Result<Arc<Crew>> {
        let crew = Arc::new(Crew {
            host: loaded.host,
            workers,
            patience,
            cache,
            queue: DueQueue::new(),
            stuck: AtomicU32::new(0),
            deadly: DeadlySamples::default(),
            typical: CachePadded::default(),
            clock: attributes.then(|| Mutex::new(BusyClock::new(Instant::now()))),
            over: OnceLock::new(),
            on_trouble: OnceLock::new(),
        });
        for number in 0..workers {
            let worker = Worker::new(crew.clone(), number);
            let started = std::thread::Builder::new()
                .name(format!("code-{number}"))
                .spawn(move || worker.run());
            if let Err(e) = started {
                drop(crew.dismiss());
                return Err(Error::io("cannot start a thread", e));
            }
        }
        Ok(crew)
    }

    /// Says whom to tell when it comes to its end by itself.
    pub(crate) fn on_trouble(&self, tell: impl Fn(Trouble) + Send + Sync + 'static) {
        let _ = self.on_trouble.set(Box::new(tell));
    }

    /// A sample to make, to be begun at `due` or as soon as a worker is free.
    pub(crate) fn submit(&self, due: Moment, task: Box<dyn Task>) {
        if self.is_over() {
            return task.finish(Outcome::Dropped);
        }
        self.queue.push(due, Job::new(task, due));
        if self.is_over() {
            self.drain();
        }
    }

    /// Below so many waiting samples the next minibatch is drawn.
    pub(crate) fn few_waiting(&self) -> u32 {
        WAITING * self.workers * self.chunk() as u32
    }

    pub(crate) fn workers(&self) -> u32 {
        self.workers
    }

    /// What was lacking until now.
    pub(crate) fn lacks(&self) -> Lacks {
        let clock = self.clock();
        clock.map_or_else(Lacks::default, |mut clock| clock.look(Instant::now()))
    }

    fn clock(&self) -> Option<MutexGuard<'_, BusyClock>> {
        let clock = self.clock.as_ref()?;
        Some(clock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns how many workers have a sample to make.
    pub(crate) fn busy(&self) -> u32 {
        self.clock().map_or(0, |clock| clock.busy())
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.host.pids()
    }

    /// Ends threads and workers. Gives the host, which has the dataset in memory, if all was well.
    pub(crate) fn dismiss(&self) -> Option<Resting> {
        let well = self.over.set(None).is_ok() && self.host.ended().is_none();
        self.drain();
        if !well {
            self.host.close();
            return None;
        }
        self.host.rest();
        Some(Resting {
            host: Some(self.host.clone()),
            since: Instant::now(),
        })
    }

    /// It cannot go on: whoever waits is told.
    fn end(&self, trouble: Trouble) {
        if self.over.set(Some(trouble.clone())).is_err() {
            return;
        }
        self.host.close();
        self.drain();
        if let Some(tell) = self.on_trouble.get() {
            tell(trouble);
        }
    }

    fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// Ends what nobody will make, and wakes the threads that wait for something to make.
    fn drain(&self) {
        self.queue.close();
        let queued = std::iter::from_fn(|| self.queue.try_pop());
        queued.for_each(|job| job.task.finish(Outcome::Dropped));
    }

    // For the workers' threads.

    fn next(&self, wait: Duration) -> Option<Job> {
        self.queue.pop(wait)
    }

    /// Puts a sample back that another worker may as well make, behind those that are due before it.
    fn in_turn(&self, job: Job) {
        self.queue.push(job.due, job);
        if self.is_over() {
            self.drain();
        }
    }

    /// Before everything else: its minibatch has waited longest.
    fn again(&self, job: Job) {
        self.queue.push(Moment::default(), job);
        if self.is_over() {
            self.drain();
        }
    }

    /// Samples that make up a chunk, at most.
    fn chunk(&self) -> usize {
        self.typical.seconds().map_or(1, worker::chunk)
    }

    /// A worker begins, or ceases, to wait for memory.
    fn waits_for_room(&self, waits: bool) {
        if waits {
            self.stuck.fetch_add(1, Ordering::Relaxed);
        } else {
            self.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns true if every worker waits for memory.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck() >= self.workers
    }

    /// Returns how many workers wait for memory.
    pub(crate) fn stuck(&self) -> u32 {
        self.stuck.load(Ordering::Relaxed)
    }

    /// As many as leave as many for each of the others.
    fn share(&self) -> usize {
        self.queue.len() / self.workers as usize + 1
    }

    /// A worker has something to do, or nothing more.
    fn turns(&self, is_busy: bool) {
        if let Some(mut clock) = self.clock() {
            clock.turns(Instant::now(), is_busy);
        }
    }

    fn took(&self, cost: &Cost) {
        if let Some(mut clock) = self.clock() {
            clock.took(cost.fetch, cost.prep());
        }
        self.typical.observe(cost.total().as_secs_f32());
    }
}

/// Seconds that a sample takes: the geometric mean of the last hundred or so, which a few slow ones hardly change. A race
/// loses one of them.
#[derive(Default)]
struct Typical {
    seen: AtomicU32,
    /// Bits of the logarithm.
    logarithm: AtomicU32,
}

impl Typical {
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

    /// None: none has been made.
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
        // The first one loads what all need.
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
