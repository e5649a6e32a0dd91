//! A worker's thread: keeps one worker process busy, and replaces it when it ends.
//!
//! It takes a few samples at a time, as many as take a few milliseconds, so that neither messages nor one slow
//! sample weigh much. A sample on which a worker ended is given to another worker once, alone; if that one ends too, it is
//! reported. Samples that were only on their way go back, with no mark.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::offers::{Offer, Offers};
use coprep_cache::sample_cache::{Form, Meta};
use coprep_protocol::code::{self, Channel, Made, OFFERS, Order, Raised, Report, Written};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::caches::Cache;
use crate::prepare::{Cost, Failure};
use crate::user_code::host::Forked;
use crate::user_code::{Begin, Crew, Outcome, Task, Trouble, failure};
use crate::{Error, Result};

/// A chunk is as many samples as take about this long on average.
const CHUNK: Duration = Duration::from_millis(2);
/// Or as many that are known to be quick as take together no more seconds than this: nobody waits longer behind them, or
/// for what is said of all of them at once.
const TOGETHER: f32 = 8e-3;
/// A worker says what it made after so long, or when a chunk is done. Longer where no sample of the chunk is slow.
const SOON: Duration = Duration::from_millis(1);
/// Most samples of a chunk.
const MOST: usize = 64;
/// Chunks that a worker is given at a time, where what it makes is quick: it need not wait for the next one.
const AHEAD: usize = OFFERS as usize;
/// How long a thread sleeps before it looks around.
const NAP: Duration = Duration::from_millis(100);
/// First and longest pause before a worker that ended is replaced.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// Workers that may end on one sample.
const ATTEMPTS: u32 = 2;
const NOT_GIVEN: &str = "said something of a sample that it does not have";

/// Samples of a chunk, at so many nanoseconds each; one, as long as that is not known.
pub(super) fn chunk(mean_ns: u64) -> usize {
    let fitting = (CHUNK.as_nanos() as u64).checked_div(mean_ns).unwrap_or(1);
    (fitting as usize).clamp(1, MOST)
}

/// A sample that is to be made, and what it went through.
pub(super) struct Job {
    pub(super) task: Box<dyn Task>,
    /// Workers that ended while they made it.
    attempts: u32,
    /// A worker ended on a chunk that had it: from now on it is made alone.
    alone: bool,
    /// See [`Task::quick`], when it was taken from the queue.
    quick: Option<f32>,
}

impl Job {
    pub(super) fn new(task: Box<dyn Task>) -> Self {
        Job {
            task,
            attempts: 0,
            alone: false,
            quick: None,
        }
    }
}

/// Buffer and slot.
type Place = (u32, u32);

/// See the module.
pub(super) struct Worker {
    crew: Arc<Crew>,
    id: u32,
    process: Option<Process>,
    /// What the process was given and has not yet made, oldest first.
    chunks: VecDeque<Chunk>,
    /// Taken from the queue, but not to be made with what came before it.
    aside: Option<Job>,
    pause: Duration,
    /// When the process last said something, or was given something after having nothing.
    heard: Instant,
    /// The crew was told that it has something to do.
    is_busy: bool,
}

struct Process {
    number: u32,
    pid: u32,
    channel: Channel,
    /// Where the values of deterministic parts pass: one file per chunk under way. None: nothing is cached.
    scratch: Vec<File>,
    /// By which places are offered, one for each chunk under way.
    offers: Arc<Offers>,
    next_scratch: usize,
}

struct Chunk {
    jobs: Vec<Option<Job>>,
    left: usize,
    scratch: usize,
    /// The place of its one sample, where that may yet become another.
    offered: Option<(Place, Offer)>,
    /// Nobody waits long behind it.
    is_quick: bool,
    /// When what is made is said.
    soon: Duration,
}

impl Worker {
    pub(super) fn new(crew: Arc<Crew>, id: u32) -> Self {
        Worker {
            crew,
            id,
            process: None,
            chunks: VecDeque::new(),
            aside: None,
            pause: PAUSES.0,
            heard: Instant::now(),
            is_busy: false,
        }
    }

    /// Until the crew is dismissed.
    pub(super) fn run(mut self) {
        while !self.crew.is_over() {
            if let Err(why) = self.turn() {
                self.lost(&why);
            }
            self.tell_whether_busy();
        }
        let chunks = std::mem::take(&mut self.chunks);
        let given = chunks.into_iter().flat_map(|c| c.jobs).flatten();
        given
            .chain(self.aside.take())
            .for_each(|job| job.task.finish(Outcome::Dropped));
    }

    fn tell_whether_busy(&mut self) {
        let is_busy = !self.chunks.is_empty();
        if is_busy != self.is_busy {
            self.is_busy = is_busy;
            self.crew.turns(is_busy);
        }
    }

    /// Gives the process something to do, or hears what it did. Err: why it must be replaced.
    fn turn(&mut self) -> std::result::Result<(), String> {
        if self.chunks.len() < self.ahead() {
            let jobs = self.take();
            if !jobs.is_empty() {
                return self.give(jobs);
            }
        }
        if self.chunks.is_empty() {
            return Ok(());
        }
        let Some(process) = &mut self.process else {
            return Err("is gone".into());
        };
        match process.channel.receive(NAP) {
            Ok(Some(message)) => {
                self.heard = Instant::now();
                self.report(Report::parse(&message)?)
            }
            Ok(None) if self.heard.elapsed() > self.crew.patience => Err(format!(
                "took longer than {} s",
                self.crew.patience.as_secs_f64()
            )),
            Ok(None) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(String::new()),
            Err(e) => Err(e.to_string()),
        }
    }

    fn ahead(&self) -> usize {
        match self.chunks.iter().all(|chunk| chunk.is_quick) {
            true => AHEAD,
            false => 1,
        }
    }

    /// The next samples to make. Waits for the first if nothing else is under way.
    fn take(&mut self) -> Vec<Job> {
        let wait = if self.chunks.is_empty() {
            NAP
        } else {
            Duration::ZERO
        };
        let first = self.aside.take().or_else(|| self.crew.next(wait));
        let jobs = first.map_or_else(Vec::new, |first| self.gather(first));
        let mut to_make = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            match job.task.begin() {
                Begin::Make => to_make.push(job),
                Begin::Over(outcome) => job.task.finish(outcome),
            }
        }
        to_make
    }

    /// A chunk that begins with this one, of what is waiting.
    fn gather(&mut self, mut first: Job) -> Vec<Job> {
        first.quick = first.task.quick();
        let share = if first.alone { 1 } else { self.crew.share() };
        let most = self.crew.chunk();
        let mut together = first.quick;
        let mut jobs = vec![first];
        while jobs.len() < share.min(MOST) && (jobs.len() < most || together.is_some()) {
            let Some(mut job) = self.crew.next(Duration::ZERO) else {
                break;
            };
            job.quick = job.task.quick();
            let longer = together.zip(job.quick).map(|(a, b)| a + b);
            together = longer.filter(|&seconds| seconds <= TOGETHER);
            if job.alone || (jobs.len() >= most && together.is_none()) {
                self.aside = Some(job);
                break;
            }
            jobs.push(job);
        }
        jobs
    }

    fn give(&mut self, jobs: Vec<Job>) -> std::result::Result<(), String> {
        let is_known_quick = jobs.iter().all(|job| job.quick.is_some());
        // Noted before anything can fail: what is lost is given to another.
        self.chunks.push_back(Chunk {
            is_quick: is_known_quick || self.crew.chunk() > 1,
            soon: match is_known_quick {
                true => Duration::from_secs_f32(TOGETHER),
                false => SOON,
            },
            left: jobs.len(),
            jobs: jobs.into_iter().map(Some).collect(),
            scratch: 0,
            offered: None,
        });
        let idle = self.chunks.len() == 1;
        if idle && self.process.as_ref().is_some_and(|p| p.channel.is_lost()) {
            // It ended while it had nothing to do: no sample's fault.
            self.process = None;
        }
        if self.process.is_none() {
            match self.start() {
                Ok(process) => self.process = Some(process),
                Err(e) => {
                    self.give_back();
                    self.crew.end(Trouble::Host(e.to_string()));
                    return Ok(());
                }
            }
        }
        if idle {
            self.heard = Instant::now();
        }
        let (Some(process), Some(chunk)) = (&mut self.process, self.chunks.back_mut()) else {
            return Ok(());
        };
        chunk.scratch = process.next_scratch;
        process.next_scratch = (process.next_scratch + 1) % AHEAD;
        match &mut chunk.jobs[..] {
            [Some(job)] if !chunk.is_quick => {
                let offer = Offer::new(&process.offers, chunk.scratch as u32);
                let place = job.task.offer(offer.clone());
                chunk.offered = place.map(|place| (place, offer));
            }
            // To ask where takes time too: a quick sample is told at once.
            jobs => jobs
                .iter_mut()
                .flatten()
                .for_each(|job| _ = job.task.bind(true)),
        }
        let message = process.orders(chunk, self.crew.cache.as_deref())?;
        process
            .channel
            .send(&message, &[])
            .map_err(|_| String::new())
    }

    fn start(&self) -> Result<Process> {
        let scratch = match &self.crew.cache {
            Some(_) => (0..AHEAD).map(|_| scratch_file()).collect::<Result<_>>()?,
            None => Vec::new(),
        };
        let descriptors: Vec<RawFd> = scratch.iter().map(File::as_raw_fd).collect();
        let offers = Offers::create(OFFERS)?;
        let (host, workers) = (&self.crew.host, self.crew.workers);
        let Forked {
            number,
            pid,
            socket,
        } = host.fork(self.id, workers, Some(offers.as_fd()), &descriptors)?;
        tracing::debug!(worker = self.id, pid, "a worker of user code starts");
        Ok(Process {
            number,
            pid,
            channel: Channel::new(socket),
            scratch,
            offers,
            next_scratch: 0,
        })
    }

    // What the process says.

    fn report(&mut self, report: Report) -> std::result::Result<(), String> {
        self.pause = PAUSES.0;
        match report {
            Report::Done(made) => made
                .samples
                .iter()
                .try_for_each(|w| self.written(w, &made))?,
            Report::Ready(index) => self.tell_where(index)?,
            Report::Raised(index, raised) => self.raised(index, raised)?,
            Report::TooLarge(index, bytes) => {
                let job = self.job(index)?;
                job.task.finish(Outcome::Dropped);
                self.crew.end(Trouble::TooLarge(bytes));
            }
            Report::Probed(_) => return Err("said what it was not asked".into()),
        }
        if self.chunks.front().is_some_and(|chunk| chunk.left == 0) {
            self.chunks.pop_front();
        }
        Ok(())
    }

    /// Takes it from the chunk: whoever does must end it. What is not taken is given to another worker if this one fails.
    fn job(&mut self, index: u32) -> std::result::Result<Job, String> {
        let chunk = self.chunks.front_mut();
        let place = chunk.and_then(|c| {
            c.left = c.left.saturating_sub(1);
            c.jobs.get_mut(index as usize)
        });
        place.and_then(Option::take).ok_or_else(|| NOT_GIVEN.into())
    }

    /// A sample is made, and about to be written.
    fn tell_where(&mut self, index: u32) -> std::result::Result<(), String> {
        let chunk = self.chunks.front_mut();
        let job = chunk.and_then(|c| c.jobs.get_mut(index as usize)?.as_mut());
        let (Some(job), Some(process)) = (job, &mut self.process) else {
            return Err(NOT_GIVEN.into());
        };
        let (buffer, slot) = job.task.bind(true);
        let message = code::place(buffer, slot);
        let told = process.channel.send(&message, &[]);
        // As good as done: what comes next need not wait until it is.
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.is_quick = chunk.left == 1;
            chunk.offered = None;
        }
        told.map_err(|_| String::new())
    }

    fn written(&mut self, written: &Written, with: &Made) -> std::result::Result<(), String> {
        let wall = Duration::from_nanos(written.wall_ns);
        let cpu = Duration::from_nanos(written.cpu_ns).min(wall);
        let dataset = Duration::from_nanos(written.dataset_ns).min(wall);
        let offered = self.chunks.front().and_then(|c| c.offered.as_ref());
        if offered.is_some_and(|(_, offer)| !offer.is_taken()) {
            return Err("wrote to a place that it did not take".into());
        }
        if written.kept.1 > 0 {
            self.keep(written, dataset)?;
        }
        let job = self.job(written.index)?;
        // Time off the processor, and not for want of one, is taken to be the dataset's, which reads.
        let fetch = (wall - cpu).mul_f64(with.waited_for_nothing()).min(dataset);
        let cost = Cost {
            fetch,
            decode: dataset - fetch,
            random: wall - dataset,
            cpu,
            ..Cost::default()
        };
        self.crew.took(&cost);
        job.task.finish(Outcome::Made(cost));
        Ok(())
    }

    /// Admits the value of a deterministic part to the cache: the one copy on its way there, so that no
    /// process of user code can write the cache.
    fn keep(&self, written: &Written, dataset: Duration) -> std::result::Result<(), String> {
        let (at, len) = written.kept;
        let scratch = self.chunks.front().zip(self.process.as_ref());
        let (Some((chunk, process)), Some(cache)) = (scratch, &self.crew.cache) else {
            return Ok(());
        };
        let Some(Some(job)) = chunk.jobs.get(written.index as usize) else {
            return Err(NOT_GIVEN.into());
        };
        let id = job.task.order().id;
        let Some(file) = process.scratch.get(chunk.scratch) else {
            return Ok(());
        };
        let form = Form::Decoded;
        let len = usize::try_from(len).map_err(|e| e.to_string())?;
        let offer = [(form, len, dataset.as_secs_f32())];
        if cache.forms.is_some() && cache.choose(id, &offer).is_none() {
            return Ok(());
        }
        if let Some(mut place) = cache.store.reserve(id, len, Meta::of(form)) {
            file.read_exact_at(place.as_mut_slice(), at)
                .map_err(|e| format!("said where a value lies, and it is not there: {e}"))?;
            place.commit();
        }
        Ok(())
    }

    fn raised(&mut self, index: u32, raised: Raised) -> std::result::Result<(), String> {
        let failure = failure(raised, self.name())?;
        let job = self.job(index)?;
        job.task.finish(Outcome::Failed(failure));
        Ok(())
    }

    fn name(&self) -> String {
        let pid = self.process.as_ref().map_or(0, |process| process.pid);
        format!("{} (process {pid})", self.id)
    }

    // What happens when it ends.

    /// The process is to be replaced. `why` is empty when it ended by itself.
    fn lost(&mut self, why: &str) {
        if self.crew.is_over() {
            return;
        }
        let name = self.name();
        let Some(Process { number, pid, .. }) = self.process.take() else {
            return self.blame(&name, why);
        };
        // It must be gone before anybody else is given the slots that it may be writing.
        let host = &self.crew.host;
        let exited = match why {
            "" => host.exited(number, Duration::from_secs(2)),
            _ => None,
        };
        let exited = exited.or_else(|| host.kill(number));
        let Some(exited) = exited else {
            self.give_back();
            let why = self.crew.host.ended().unwrap_or_default();
            return self.crew.end(Trouble::Host(format!("it {why}")));
        };
        let how = if why.is_empty() { exited } else { why.into() };
        tracing::warn!(
            worker = self.id,
            pid,
            how,
            "a worker of user code is replaced"
        );
        self.blame(&name, &how);
        if !self.crew.is_over() {
            std::thread::sleep(self.pause);
        }
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    /// The oldest sample that was not reported may be at fault, if it was alone for sure.
    fn blame(&mut self, name: &str, how: &str) {
        let chunks = std::mem::take(&mut self.chunks);
        let mut jobs = chunks.into_iter().flat_map(|c| c.jobs).flatten().peekable();
        let Some(mut first) = jobs.next() else { return };
        if first.alone || jobs.peek().is_none() {
            first.attempts += 1;
        }
        first.alone = true;
        if first.attempts >= ATTEMPTS {
            let message = format!(
                "the worker that made it {how}, and so did another before: run it in the job with num_workers=0 to \
                 see what it does"
            );
            let failure = Failure {
                worker: name.into(),
                ..Failure::new("dataset", message)
            };
            first.task.finish(Outcome::Failed(failure));
        } else {
            self.crew.again(first);
        }
        for mut job in jobs {
            job.alone = true;
            self.crew.again(job);
        }
    }

    /// The crew is at its end: nobody makes what is left.
    fn give_back(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let jobs = chunks.into_iter().flat_map(|c| c.jobs).flatten();
        jobs.for_each(|job| job.task.finish(Outcome::Dropped));
    }
}

impl Process {
    /// The message for a chunk. Cached values go to the scratch file.
    fn orders(&self, chunk: &Chunk, cache: Option<&Cache>) -> std::result::Result<Vec<u8>, String> {
        let mut at = 0;
        let mut orders = Vec::with_capacity(chunk.jobs.len());
        for job in chunk.jobs.iter().flatten() {
            let mut order = job.task.order();
            if let Some((place, _)) = &chunk.offered {
                (order.place, order.is_offered) = (Some(*place), true);
            }
            if let (Some(cache), Some(file)) = (cache, self.scratch.get(chunk.scratch)) {
                fill(&mut order, cache, file, &mut at).map_err(|e| e.to_string())?;
            }
            orders.push(order);
        }
        Ok(code::orders(chunk.scratch as u32, chunk.soon, &orders))
    }
}

/// Copies the cached value to the scratch file, or asks for the value.
fn fill(order: &mut Order, cache: &Cache, file: &File, at: &mut u64) -> std::io::Result<()> {
    match cache.store.get(order.id) {
        Some(hit) => {
            cache.count_hit();
            file.write_all_at(&hit, *at)?;
            order.cached = (*at, hit.len() as u64);
            *at = (*at + hit.len() as u64).next_multiple_of(64);
        }
        None => {
            cache.count_miss();
            order.keep = cache.may_admit(order.id);
        }
    }
    Ok(())
}

fn scratch_file() -> Result<File> {
    let file: OwnedFd = memfd_create("coprep-scratch", MFdFlags::MFD_CLOEXEC)
        .map_err(|e| Error::io("cannot create memory for a worker", e))?;
    Ok(File::from(file))
}
