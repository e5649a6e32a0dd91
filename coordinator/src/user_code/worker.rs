//! A worker's thread: keeps one worker process busy, and replaces it when it ends.
//!
//! It takes a few samples at a time, as many as take a few milliseconds, and the next few before those are made: so
//! messages weigh little, and the worker need not wait for them. Where one of them turns out to be slow, those behind it are
//! withdrawn, for another worker to make; what is written is seen without a word ([`coprep_cache::worklist`]).
//!
//! A worker that made a sample which is larger than its slot asks where to write it. While there is no memory for that it
//! waits, and what it was given besides is withdrawn.
//!
//! A sample on which a worker ended is given to another worker once, alone; if that one ends too, it has failed, and fails
//! at once when it is drawn again ([`deadly`](super::deadly)). Samples that were only on their way go back, with no mark.

mod room;

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::sample_cache::{Form, Meta};
use coprep_cache::worklist::{Given, Worklist, Written};
use coprep_protocol::code::{
    self, CHUNKS, Channel, ENTRIES, MOST, Order, Progress, Raised, Report,
};
use coprep_protocol::nap::nap;
use fail::fail_point;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::caches::Cache;
use crate::due_queue::Moment;
use crate::prepare::{Cost, Failure};
use crate::user_code::deadly::Verdict;
use crate::user_code::host::Forked;
use crate::user_code::worker::room::Want;
use crate::user_code::{Begin, Crew, Outcome, Outlook, Task, Trouble, failure};
use crate::{Error, Result};

/// A chunk is as many samples as are expected to take together no longer than this. Who is behind one that takes longer is
/// withdrawn.
const TOGETHER: Duration = Duration::from_millis(12);
/// Samples that nothing is known of go one by one unless as many as this take no longer: each may be slow, and in relaxed
/// order who is to take its place must be found soon.
const UNKNOWN: f32 = 4.0;
/// Or than this, where what is made is cached: who draws a sample that is on its way, for another epoch, makes it again.
const TO_BE_KEPT: Duration = Duration::from_millis(2);
/// After so long without a word the thread looks whether one takes longer.
const LOOK: Duration = Duration::from_millis(18);
/// How long a thread sleeps before it looks around though nothing woke it, which nothing needs: see [`nap`].
const NAP: Duration = Duration::from_millis(100);
/// First and longest pause before a worker that ended is replaced.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// Time of a stage that ran, and took none that could be measured.
const LEAST_WAIT: Duration = Duration::from_nanos(1);
/// Workers that may end on one sample.
const ATTEMPTS: u32 = 2;
const PANICKED: &str =
    "was ended because its thread panicked, a defect of coprep: please report it";
const NOT_GIVEN: &str = "said something of a sample that it does not have";

/// Samples of a chunk, at so many seconds each.
pub(super) fn chunk(seconds: f32) -> usize {
    // What is beyond all bounds is the largest number.
    let fitting = (TOGETHER.as_secs_f32() / seconds) as usize;
    fitting.clamp(1, MOST as usize)
}

/// A sample that is to be made, and what it went through.
pub(super) struct Job {
    pub(super) task: Box<dyn Task>,
    /// When it was to be begun.
    pub(super) due: Moment,
    /// Workers that ended while they made it.
    attempts: u32,
    /// A worker ended on a chunk that had it: from now on it is made alone.
    alone: bool,
    /// When it was taken from the queue.
    outlook: Outlook,
}

impl Job {
    pub(super) fn new(task: Box<dyn Task>, due: Moment) -> Self {
        Job {
            task,
            due,
            attempts: 0,
            alone: false,
            outlook: Outlook::default(),
        }
    }

    /// How long a chunk with it may be.
    fn longest(&self) -> Duration {
        match self.outlook.is_kept {
            true => TO_BE_KEPT,
            false => TOGETHER,
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
    pause: Duration,
    /// When the process was last seen to have done something, or was given something after having nothing.
    heard: Instant,
    /// Of the time off the processor, the part that was not for want of one, as the process said last.
    waits: f64,
    /// The crew was told that it has something to do.
    is_busy: bool,
    /// What the process waits for.
    want: Option<Want>,
}

struct Process {
    number: u32,
    pid: u32,
    channel: Channel,
    /// Where the values of deterministic parts pass: one file per chunk under way. None: nothing is cached.
    scratch: Vec<File>,
    worklist: Arc<Worklist>,
    next_chunk: u32,
}

struct Chunk {
    number: u32,
    /// None: it is ended, or withdrawn.
    jobs: Vec<Option<Job>>,
    left: usize,
    /// Of each job, once the process is there.
    hands: Vec<Hand>,
    /// Nobody waits long behind it.
    is_quick: bool,
}

/// The thread's hand on a sample that the process was given.
struct Hand {
    given: Given,
    /// Its place, where that may yet become another: the process takes it, or is told.
    offered: Option<Place>,
    is_told: bool,
}

impl Worker {
    pub(super) fn new(crew: Arc<Crew>, id: u32) -> Self {
        Worker {
            crew,
            id,
            process: None,
            chunks: VecDeque::new(),
            pause: PAUSES.0,
            heard: Instant::now(),
            waits: 0.0,
            is_busy: false,
            want: None,
        }
    }

    /// Until the crew is dismissed.
    pub(super) fn run(mut self) {
        let worked = catch_unwind(AssertUnwindSafe(|| self.work()));
        if worked.is_err() {
            let what = "the thread of a worker process panicked";
            self.crew.end(Trouble::Defect(what));
        }
        self.give_back();
    }

    fn work(&mut self) {
        while !self.crew.is_over() {
            let turned = catch_unwind(AssertUnwindSafe(|| self.turn()));
            // What the process was given, and may still write, is as after any other end of it.
            let turned = turned.unwrap_or_else(|_| Err(PANICKED.into()));
            if let Err(why) = turned {
                self.lost(&why);
            }
            self.tell_whether_busy();
        }
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
        if self.want.is_some() {
            return self.make_room();
        }
        if self.chunks.len() < self.ahead() {
            let jobs = self.take();
            if !jobs.is_empty() {
                return self.give(jobs);
            }
        }
        if self.chunks.is_empty() {
            return Ok(());
        }
        fail_point!("crew-turn");
        let given: usize = self.chunks.iter().map(|chunk| chunk.left).sum();
        let Some(process) = &mut self.process else {
            return Err("is gone".into());
        };
        let patience = self.crew.patience.saturating_sub(self.heard.elapsed());
        // What is behind a slow sample must be found soon; one that is alone is only waited for.
        let wait = if given > 1 { LOOK } else { nap(NAP) };
        match process.channel.receive(wait.min(patience)) {
            Ok(Some(message)) => {
                self.heard = Instant::now();
                self.report(Report::parse(&message)?)
            }
            Ok(None) => {
                self.look()?;
                match self.heard.elapsed() >= self.crew.patience {
                    true => Err(format!(
                        "took longer than {} s",
                        self.crew.patience.as_secs_f64()
                    )),
                    false => Ok(()),
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(String::new()),
            Err(e) => Err(e.to_string()),
        }
    }

    fn ahead(&self) -> usize {
        match self.chunks.iter().all(|chunk| chunk.is_quick) {
            true => CHUNKS as usize,
            false => 1,
        }
    }

    /// The next samples to make. Waits for the first if nothing else is under way.
    fn take(&mut self) -> Vec<Job> {
        let wait = if self.chunks.is_empty() {
            nap(NAP)
        } else {
            Duration::ZERO
        };
        let first = self.crew.next(wait);
        let jobs = first.map_or_else(Vec::new, |first| self.gather(first));
        let mut to_make = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            let begun = catch_unwind(AssertUnwindSafe(|| {
                fail_point!("crew-begin");
                job.task.begin()
            }));
            match begun {
                Ok(Begin::Make) => match self.verdict(&job) {
                    Verdict::Try => to_make.push(job),
                    Verdict::TryOnce => {
                        job.attempts = job.attempts.max(ATTEMPTS - 1);
                        to_make.push(job);
                    }
                    Verdict::Fail(failure) => job.task.finish(Outcome::Failed(failure)),
                },
                Ok(Begin::Over(outcome)) => job.task.finish(outcome),
                // Dropped, it ends by itself; the others of the chunk go on.
                Err(_) => tracing::error!("{PANICKED}"),
            }
        }
        to_make
    }

    fn verdict(&self, job: &Job) -> Verdict {
        let id = job.task.lasting_id();
        id.map_or(Verdict::Try, |id| self.crew.deadly.verdict(id))
    }

    /// A chunk that begins with this one, of what is waiting.
    fn gather(&self, mut first: Job) -> Vec<Job> {
        let typical = self.crew.typical.seconds();
        let seconds = |job: &Job| {
            let unknown = typical.filter(|&s| UNKNOWN * s <= job.longest().as_secs_f32());
            job.outlook.seconds.or(unknown)
        };
        first.outlook = first.task.outlook();
        let most = first.longest().as_secs_f32();
        let share = if first.alone { 1 } else { self.crew.share() };
        let mut together = seconds(&first);
        let mut jobs = vec![first];
        while jobs.len() < share.min(MOST as usize)
            && let Some(so_far) = together.filter(|&sum| sum < most)
            && let Some(mut job) = self.crew.next(Duration::ZERO)
        {
            job.outlook = job.task.outlook();
            together = seconds(&job).map(|more| so_far + more);
            if job.alone || together.is_none_or(|sum| sum > most) {
                // Not kept: who comes first may have it.
                self.crew.in_turn(job);
                break;
            }
            jobs.push(job);
        }
        jobs
    }

    fn give(&mut self, jobs: Vec<Job>) -> std::result::Result<(), String> {
        let typical = self.crew.typical.seconds();
        let is_quick = |job: &Job| match job.outlook.seconds {
            Some(_) => job.outlook.is_quick,
            None => typical.is_some_and(|s| UNKNOWN * s <= job.longest().as_secs_f32()),
        };
        // Noted before anything can fail: what is lost is given to another.
        self.chunks.push_back(Chunk {
            number: 0,
            is_quick: jobs.iter().all(is_quick),
            left: jobs.len(),
            jobs: jobs.into_iter().map(Some).collect(),
            hands: Vec::new(),
        });
        let idle = self.chunks.len() == 1;
        if idle && let Some(process) = self.process.take_if(|p| p.channel.is_lost()) {
            // It ended while it had nothing to do: no sample's fault.
            if self.reap(process.number, "").is_none() {
                self.end_crew();
                return Ok(());
            }
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
        chunk.number = process.next_chunk;
        process.next_chunk = (process.next_chunk + 1) % CHUNKS;
        for (job, index) in chunk.jobs.iter_mut().flatten().zip(0..) {
            let given = Given::new(&process.worklist, code::entry(chunk.number, index));
            let offered = match job.outlook.is_quick {
                // Nothing can be ready before it.
                true => {
                    job.task.bind(true);
                    None
                }
                false => job.task.offer(&given),
            };
            chunk.hands.push(Hand {
                given,
                offered,
                is_told: false,
            });
        }
        let message = process.orders(chunk, self.crew.cache.as_deref())?;
        process
            .channel
            .send(&message, &[])
            .map_err(|_| String::new())
    }

    fn start(&self) -> Result<Process> {
        let scratch = match &self.crew.cache {
            Some(_) => (0..CHUNKS).map(|_| scratch_file()).collect::<Result<_>>()?,
            None => Vec::new(),
        };
        let descriptors: Vec<RawFd> = scratch.iter().map(File::as_raw_fd).collect();
        let worklist = Worklist::create(ENTRIES)?;
        let (host, workers) = (&self.crew.host, self.crew.workers);
        let Forked {
            number,
            pid,
            socket,
        } = host.fork(self.id, workers, Some(worklist.as_fd()), &descriptors)?;
        tracing::debug!(worker = self.id, pid, "a worker of user code starts");
        Ok(Process {
            number,
            pid,
            channel: Channel::new(socket),
            scratch,
            worklist,
            next_chunk: 0,
        })
    }

    // What the process says.

    fn report(&mut self, report: Report) -> std::result::Result<(), String> {
        self.pause = PAUSES.0;
        match report {
            Report::Written(progress) => self.advanced(progress)?,
            Report::Ready(index) => self.tell_where(index)?,
            Report::Raised(index, raised) => self.raised(index, raised)?,
            Report::TooLarge(index, bytes) => self.wants_room(index, bytes)?,
            Report::Probed(_) => return Err("said what it was not asked".into()),
        }
        Ok(())
    }

    fn advanced(&mut self, progress: Progress) -> std::result::Result<(), String> {
        self.waits = progress.waited_for_nothing();
        self.take_written()?;
        if progress.ends_chunk {
            // Not before: until then it may look at the entries of this chunk.
            match self.chunks.pop_front() {
                Some(chunk) if chunk.left == 0 => {}
                Some(chunk) => {
                    self.chunks.push_front(chunk);
                    return Err("ended a chunk before all of its samples".into());
                }
                None => return Err(NOT_GIVEN.into()),
            }
        }
        Ok(())
    }

    /// Ends the samples that are written.
    fn take_written(&mut self) -> std::result::Result<(), String> {
        let hands = self.chunks.front().map_or(0, |chunk| chunk.hands.len());
        for index in 0..hands {
            let chunk = self.chunks.front();
            let is_there = chunk.is_some_and(|c| c.jobs[index].is_some());
            let written = chunk.and_then(|c| c.hands[index].given.written());
            if let Some(written) = written.filter(|_| is_there) {
                self.written(index as u32, &written)?;
                self.heard = Instant::now();
            }
        }
        Ok(())
    }

    /// It has said nothing for a while. What waits behind a sample that takes long is for another worker.
    fn look(&mut self) -> std::result::Result<(), String> {
        self.take_written()?;
        let Some(chunk) = self.chunks.front() else {
            return Ok(());
        };
        let mut left = (chunk.jobs.iter().zip(&chunk.hands)).filter(|(job, _)| job.is_some());
        let age = left.find_map(|(_, hand)| hand.given.age());
        if age.is_none_or(|age| age < TOGETHER) {
            return Ok(());
        }
        let crew = self.crew.clone();
        self.withdraw(|job| crew.again(job));
        Ok(())
    }

    /// Takes back what the process has not begun, and gives it to `another`.
    fn withdraw(&mut self, another: impl Fn(Job)) {
        // Nor is more given to it.
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.is_quick = false;
        }
        for chunk in &mut self.chunks {
            for (place, hand) in chunk.jobs.iter_mut().zip(&chunk.hands) {
                if let Some(mut job) = place.take_if(|_| hand.given.withdraw()) {
                    chunk.left -= 1;
                    job.task.put_back();
                    another(job);
                }
            }
        }
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
        if let Some(chunk) = self.chunks.front_mut() {
            // As good as done: what comes next need not wait until it is.
            chunk.is_quick |= chunk.left == 1;
            if let Some(hand) = chunk.hands.get_mut(index as usize) {
                hand.is_told = true;
            }
        }
        told.map_err(|_| String::new())
    }

    fn written(&mut self, index: u32, written: &Written) -> std::result::Result<(), String> {
        let wall = Duration::from_nanos(written.wall_ns);
        let cpu = Duration::from_nanos(written.cpu_ns).min(wall);
        let dataset = Duration::from_nanos(written.dataset_ns).min(wall);
        self.check_taken(index, "wrote to a place that it did not take")?;
        if written.kept.1 > 0 {
            self.keep(index, written.kept, dataset)?;
        }
        let job = self.job(index)?;
        // Time off the processor, and not for want of one, is taken to be the dataset's, which reads.
        let fetch = (wall - cpu).mul_f64(self.waits).min(dataset);
        let cost = Cost {
            // Where nothing was waited for, that was measured, too: what it waited before is not what it waits.
            fetch: fetch.max(LEAST_WAIT),
            decode: dataset - fetch,
            random: wall - dataset,
            cpu,
            ..Cost::default()
        };
        self.crew.took(&cost);
        let blob = written.blob;
        job.task.finish(Outcome::Made { cost, blob });
        Ok(())
    }

    /// Fails if the process was offered a place for the sample, and has not taken it.
    fn check_taken(&self, index: u32, what: &str) -> std::result::Result<(), String> {
        let chunk = self.chunks.front();
        let hand = chunk.and_then(|c| c.hands.get(index as usize));
        if hand.is_some_and(|h| h.offered.is_some() && !h.is_told && !h.given.is_taken()) {
            return Err(what.into());
        }
        Ok(())
    }

    /// Admits the value of a deterministic part to the cache: the one copy on its way there, so that no
    /// process of user code can write the cache.
    fn keep(
        &self,
        index: u32,
        (at, len): (u64, u64),
        dataset: Duration,
    ) -> std::result::Result<(), String> {
        let scratch = self.chunks.front().zip(self.process.as_ref());
        let (Some((chunk, process)), Some(cache)) = (scratch, &self.crew.cache) else {
            return Ok(());
        };
        let Some(Some(job)) = chunk.jobs.get(index as usize) else {
            return Err(NOT_GIVEN.into());
        };
        let id = job.task.order().id;
        let Some(file) = process.scratch.get(chunk.number as usize) else {
            return Ok(());
        };
        let form = Form::Decoded;
        // Before room is made for it: its length is the process's word.
        let there = file.metadata().map_err(|e| e.to_string())?.len();
        if at.checked_add(len).is_none_or(|end| end > there) {
            return Err("said where a value lies, and it is not there".into());
        }
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
        self.forget_want();
        if self.crew.is_over() {
            return;
        }
        let name = self.name();
        let Some(Process { number, pid, .. }) = self.process.take() else {
            return self.blame(&name, why);
        };
        let Some(exited) = self.reap(number, why) else {
            return self.end_crew();
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

    /// Ends a process, and returns how it ended once it is no process any more. `why` is empty if it ends by itself. `None`: its
    /// host is gone.
    ///
    /// It must be gone before anybody else is given the slots that it may be writing. And a dataset that can only be iterated
    /// must not be iterated twice at the same time. A stream of one has one worker, whose next process is started after this.
    /// PyTorch's workers of the process before are gone as well. They have its socket too, so that it is not lost before they
    /// have ended. Where the process is killed here, the kernel sends them SIGKILL (`end_with_parent` in `_worker.py`) before
    /// it says that their parent has ended.
    fn reap(&self, number: u32, why: &str) -> Option<String> {
        let host = &self.crew.host;
        let exited = match why {
            "" => host.exited(number, Duration::from_secs(2)),
            _ => None,
        };
        exited.or_else(|| host.kill(number))
    }

    /// Ends the crew, since its host is gone.
    fn end_crew(&mut self) {
        self.give_back();
        let why = self.crew.host.ended().unwrap_or_default();
        self.crew.end(Trouble::Host(format!("it {why}")));
    }

    /// The sample that it was at may be at fault; if it had begun none, the oldest.
    fn blame(&mut self, name: &str, how: &str) {
        // It is no process any more: what it wrote is written, and a word that makes no sense changes nothing.
        let _ = self.take_written();
        let is_at = |chunk: &Chunk, index: usize| {
            let age = chunk.hands.get(index).map(|hand| hand.given.age());
            chunk.jobs[index].is_some() && age.flatten().is_some()
        };
        let begun = self.chunks.front().and_then(|chunk| {
            let mut indices = 0..chunk.jobs.len();
            indices.find(|&index| is_at(chunk, index))
        });
        let mut jobs: Vec<Option<Job>> = std::mem::take(&mut self.chunks)
            .into_iter()
            .flat_map(|chunk| chunk.jobs)
            .collect();
        let at_fault = begun.or_else(|| jobs.iter().position(Option::is_some));
        if let Some(mut job) = at_fault.and_then(|index| jobs[index].take()) {
            job.attempts += 1;
            job.alone = true;
            if job.attempts >= ATTEMPTS {
                let message = format!(
                    "the worker that made it {how}, and so did another before: run it in the job with num_workers=0 \
                     to see what it does"
                );
                let failure = Failure {
                    worker: name.into(),
                    ..Failure::new("dataset", message)
                };
                if let Some(id) = job.task.lasting_id() {
                    self.crew.deadly.add(id, failure.clone());
                }
                job.task.finish(Outcome::EndedWorkers(failure));
            } else {
                job.task.put_back();
                self.crew.again(job);
            }
        }
        for mut job in jobs.into_iter().flatten() {
            job.task.put_back();
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
        for (job, hand) in chunk.jobs.iter().flatten().zip(&chunk.hands) {
            let mut order = job.task.order();
            if hand.offered.is_some() {
                (order.place, order.is_offered) = (hand.offered, true);
            }
            if let (Some(cache), Some(file)) = (cache, self.scratch.get(chunk.number as usize)) {
                fill(&mut order, cache, file, &mut at).map_err(|e| e.to_string())?;
            }
            orders.push(order);
        }
        Ok(code::orders(chunk.number, &orders))
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
