//! A model of discrete events in virtual time: jobs that read, one preparation after the other, and a pool of buffers.
//!
//! Preparation is a first-in-first-out server that needs `prep` for a full minibatch. A rank takes the parts of its
//! next batch as they become ready. A batch in one buffer keeps the buffer until the step that uses it is over. A batch
//! that straddles buffers is copied. The scheduler is asked after every event, while fewer than two minibatches await
//! preparation.
//!
//! An epoch begins when the step on the last batch of the epoch before is over. The samples drawn before that are
//! bounded as in the coordinator (`coordinator/src/stream/pace.rs`), with jobs that cross every border at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use coprep_scheduler::{Config, Delivery, DrawOrder, JobId, JobSpec, Resume, Scheduler, Windows};
use roaring::RoaringBitmap;

use crate::audit::Audit;
use crate::random::Random;

/// Largest number of minibatches in a queue, as in the coordinator.
pub(crate) const DEPTH: u32 = 16;

/// Random variation of the time of steps, for a mean of 1.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Jitter {
    /// Uniform, within a tenth of the mean.
    Little,
    /// Log-normal with this sigma.
    LogNormal(f64),
}

impl Jitter {
    /// Returns the time of a step, for a mean of 1.
    fn step(self, random: &mut Random) -> f64 {
        match self {
            Jitter::Little => random.between(0.9, 1.1),
            Jitter::LogNormal(sigma) => (sigma * random.normal() - sigma * sigma / 2.0).exp(),
        }
    }
}

/// A job of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) spec: JobSpec,
    /// Mean time of a step.
    pub(crate) step: f64,
    pub(crate) jitter: Jitter,
    pub(crate) start: f64,
    /// Time of its death, and the pause until it returns, if it does.
    pub(crate) dies: Option<(f64, Option<f64>)>,
    /// It reads nothing from the first time to the second.
    pub(crate) pauses: Option<(f64, f64)>,
    /// Number of batches after which it leaves each of its epochs, if it does. Only for jobs of one rank.
    pub(crate) leaves: Option<u32>,
}

/// Time without reading after which a job's untaken batches are taken back, if another job lacks a buffer.
const READ_TIMEOUT: f64 = 5.0;

impl Plan {
    pub(crate) fn new(batch_size: u32, step: f64) -> Self {
        let spec = JobSpec {
            batch_size,
            world_size: 1,
            drop_last: false,
            subset: None,
            resume: None,
            cohort: None,
            skip_bad: false,
        };
        Plan {
            spec,
            step,
            jitter: Jitter::Little,
            start: 0.0,
            dies: None,
            pauses: None,
            leaves: None,
        }
    }

    fn pauses_at(&self, now: f64) -> bool {
        self.pauses
            .is_some_and(|(from, to)| (from..to).contains(&now))
    }

    fn has_paused_long(&self, now: f64) -> bool {
        self.pauses_at(now) && self.pauses_at(now - READ_TIMEOUT)
    }
}

/// The parameters of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) samples: u32,
    pub(crate) slots: u32,
    /// Time to prepare a full minibatch.
    pub(crate) prep: f64,
    /// Number of staging buffers.
    pub(crate) buffers: u32,
    pub(crate) horizon: f64,
    pub(crate) seed: u64,
    pub(crate) depth: u32,
    pub(crate) order: DrawOrder,
    pub(crate) windows: Option<Windows>,
    pub(crate) plans: Vec<Plan>,
}

/// The result of one job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Number of samples that it was given.
    pub(crate) samples: u64,
    /// Ids of its batches by epoch, if they are recorded.
    pub(crate) batches: Vec<Vec<Vec<u32>>>,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Result {
    pub(crate) jobs: Vec<Outcome>,
    /// Number of samples prepared.
    pub(crate) prepared: u64,
    pub(crate) minibatches: u64,
    /// The samples in the order in which they were drawn, if batches are recorded.
    pub(crate) drawn: Vec<u32>,
    /// Largest number of minibatches prepared one after the other while a job had nothing to read, divided by the
    /// number of consumers (which is the number of jobs where each has one rank).
    pub(crate) waits: f64,
    /// Number of jobs that still waited when no event was left.
    pub(crate) stuck: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Prepared(u64),
    StepDone {
        job: usize,
        life: u32,
        rank: usize,
    },
    Start(usize),
    Die(usize),
    /// Its untaken batches may be taken back, or it reads again.
    Pause(usize),
}

struct Rank {
    queue: VecDeque<(u64, Delivery)>,
    held: Option<u64>,
    parts: u32,
    batch: Vec<u32>,
    busy: bool,
    epoch: u64,
    /// Number of batches of its epoch.
    steps: u32,
    /// `true` while it works on the last batch of its epoch.
    is_at_border: bool,
    random: Random,
}

struct Job {
    plan: Plan,
    life: u32,
    here: bool,
    ranks: Vec<Rank>,
    given: BTreeMap<u64, RoaringBitmap>,
    /// Number of samples that it was assigned in this life.
    assigned: u64,
    /// `true` if it has crossed the border of an epoch in this life.
    has_crossed: bool,
    passed_over: u32,
    /// Largest number of consumers that were present during the present wait.
    company: usize,
    outcome: Outcome,
}

struct Buffer {
    ids: Vec<u32>,
    parts: u32,
    ready: bool,
}

/// The state of a simulation; see the module.
pub(crate) struct Model {
    setup: Setup,
    scheduler: Scheduler,
    audit: Audit,
    now: f64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    jobs: Vec<Job>,
    buffers: BTreeMap<u64, Buffer>,
    made: u64,
    /// Time when everything that is drawn will be prepared.
    prepared_at: f64,
    record: bool,
    result: Result,
}

/// Ticks per unit of time. Times are kept in whole ticks, so that they can be ordered.
const TICKS: f64 = 1e9;

/// Runs a simulation.
pub(crate) fn run(setup: &Setup) -> Result {
    Model::new(setup, false).run()
}

/// Runs a simulation, and records all batches of all jobs.
pub(crate) fn run_and_record(setup: &Setup) -> Result {
    Model::new(setup, true).run()
}

impl Model {
    fn new(setup: &Setup, record: bool) -> Self {
        let config = Config {
            samples: setup.samples,
            slots: setup.slots,
            depth: setup.depth,
            // The coordinator has the same bound.
            low_water: 2,
            seed: setup.seed,
            order: setup.order,
            is_told: false,
            windows: setup.windows.clone(),
        };
        let mut model = Model {
            scheduler: Scheduler::new(config),
            audit: Audit::new(setup.samples, setup.slots, setup.order),
            now: 0.0,
            events: BinaryHeap::new(),
            count: 0,
            jobs: Vec::new(),
            buffers: BTreeMap::new(),
            made: 0,
            prepared_at: 0.0,
            record,
            result: Result::default(),
            setup: setup.clone(),
        };
        for (at, plan) in setup.plans.iter().enumerate() {
            model.at(plan.start, Event::Start(at));
            if let Some((time, _)) = plan.dies {
                model.at(time, Event::Die(at));
            }
            if let Some((from, to)) = plan.pauses {
                model.at(from + READ_TIMEOUT, Event::Pause(at));
                model.at(to, Event::Pause(at));
            }
            model.jobs.push(Job {
                plan: plan.clone(),
                life: 0,
                here: false,
                ranks: Vec::new(),
                given: BTreeMap::new(),
                assigned: 0,
                has_crossed: false,
                passed_over: 0,
                company: 0,
                outcome: Outcome::default(),
            });
        }
        model
    }

    fn at(&mut self, time: f64, event: Event) {
        self.count += 1;
        self.events
            .push(Reverse(((time * TICKS) as u64, self.count, event)));
    }

    fn run(mut self) -> Result {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time as f64 / TICKS;
            if self.now > self.setup.horizon {
                break;
            }
            self.happens(event);
            self.draw();
        }
        // Jobs can only be stuck if the events ran out. At the horizon something was still to come.
        if self.now <= self.setup.horizon {
            self.result.stuck = (0..self.jobs.len())
                .filter(|&job| self.is_stuck(job))
                .count();
        }
        self.result.minibatches = self.made;
        self.result.jobs = self.jobs.into_iter().map(|job| job.outcome).collect();
        self.result
    }

    /// Returns `true` if the job waits, and nothing will ever happen to it.
    fn is_stuck(&self, at: usize) -> bool {
        let job = &self.jobs[at];
        let idle = job.here && job.ranks.iter().all(|r| !r.busy);
        idle && self.scheduler.cohort_waits(JobId(at as u64)).is_none()
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Prepared(minibatch) => self.prepared(minibatch),
            Event::StepDone { job, life, rank }
                if self.jobs[job].life == life && self.jobs[job].here =>
            {
                if let Some(held) = self.jobs[job].ranks[rank].held.take() {
                    self.release(held);
                }
                self.jobs[job].ranks[rank].busy = false;
                self.cross_border(job, rank);
                self.leave_epoch(job);
                self.read(job, rank);
            }
            // The job has died since the step began.
            Event::StepDone { .. } => {}
            Event::Start(job) => self.start(job),
            Event::Die(job) => self.die(job),
            Event::Pause(job) => self.wake(job),
        }
    }

    /// Begins the next epoch if the rank was given all of the present one.
    fn cross_border(&mut self, at: usize, rank: usize) {
        let reader = &mut self.jobs[at].ranks[rank];
        if std::mem::take(&mut reader.is_at_border) {
            reader.epoch += 1;
            reader.steps = 0;
            let epoch = reader.epoch;
            self.jobs[at].has_crossed = true;
            let id = JobId(at as u64);
            self.scheduler.epoch_started(id, rank as u32, epoch);
            self.bound_what_is_ahead(at);
        }
    }

    /// Leaves the epoch of a job if it has come so far. The next one continues it.
    fn leave_epoch(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        let reader = &mut job.ranks[0];
        if job.plan.leaves != Some(reader.steps) {
            return;
        }
        let (id, epoch) = (JobId(at as u64), reader.epoch);
        let steps = std::mem::take(&mut reader.steps);
        reader.epoch += 1;
        // The coordinator begins its count of what is ahead anew, too.
        (job.assigned, job.has_crossed) = (0, false);
        let void = self.scheduler.leave_epoch(id, epoch, steps.into());
        if let Some(void) = &void {
            self.withdraw(at, void);
            let given = self.jobs[at].given.get(&epoch).cloned().unwrap_or_default();
            self.audit.continued(id, &given, steps as usize);
        } else {
            let all = vec![self.jobs[at].ranks[0].queue.len() as u32];
            self.withdraw(at, &all);
            self.audit.restarted(id, epoch + 1);
        }
        let reader = &mut self.jobs[at].ranks[0];
        for (_, part) in &mut reader.queue {
            part.epoch += 1;
        }
        self.bound_what_is_ahead(at);
    }

    fn bound_what_is_ahead(&mut self, at: usize) {
        let (job, id) = (&self.jobs[at], JobId(at as u64));
        let epoch = self.scheduler.job(id).map_or(0, |view| view.samples);
        let spec = &job.plan.spec;
        let round = u64::from((spec.batch_size * spec.world_size).min(epoch).max(1));
        let most = if job.has_crossed {
            // The coordinator too lets a fiftieth be prepared in vain.
            job.assigned / 50
        } else {
            0
        };
        self.scheduler.set_ahead(id, most - most % round);
    }

    fn wake(&mut self, at: usize) {
        if self.jobs[at].plan.pauses_at(self.now) {
            return;
        }
        self.scheduler.set_absent(JobId(at as u64), false);
        for rank in 0..self.jobs[at].ranks.len() {
            if !self.jobs[at].ranks[rank].busy {
                self.read(at, rank);
            }
        }
    }

    // Attaching and detaching.

    fn start(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        job.life += 1;
        let resume = job.given.last_key_value();
        let resume = resume.map(|(&epoch, given)| Resume {
            epoch,
            delivered: given.clone(),
            ..Resume::default()
        });
        let spec = JobSpec {
            resume,
            ..job.plan.spec.clone()
        };
        let id = JobId(at as u64);
        if self.scheduler.attach(id, spec.clone()).is_err() {
            return;
        }
        let epoch = self.scheduler.job(id).map_or(0, |view| view.epoch);
        self.audit.joined(id, &spec, epoch, &[]);
        (0..spec.world_size).for_each(|rank| self.scheduler.epoch_started(id, rank, epoch));
        let seed = self.setup.seed ^ (u64::from(job.life) << 32);
        let ranks = 0..u64::from(spec.world_size);
        job.ranks = ranks
            .map(|rank| Rank {
                queue: VecDeque::new(),
                held: None,
                parts: 0,
                batch: Vec::new(),
                busy: false,
                epoch,
                steps: 0,
                is_at_border: false,
                random: Random::new(seed + 1000 * at as u64 + rank),
            })
            .collect();
        job.here = true;
        job.passed_over = 0;
        (job.assigned, job.has_crossed) = (0, false);
        self.bound_what_is_ahead(at);
    }

    fn die(&mut self, at: usize) {
        let Some((time, again)) = self.jobs[at].plan.dies else {
            return;
        };
        if !self.jobs[at].here {
            return;
        }
        self.jobs[at].here = false;
        self.scheduler.detach(JobId(at as u64));
        self.audit.left(JobId(at as u64));
        let ranks = std::mem::take(&mut self.jobs[at].ranks);
        for rank in ranks {
            let used = rank
                .queue
                .into_iter()
                .map(|(minibatch, _)| minibatch)
                .chain(rank.held);
            used.for_each(|minibatch| self.release(minibatch));
        }
        if let Some(pause) = again {
            self.at(time + pause, Event::Start(at));
        }
    }

    // Buffers.

    fn draw(&mut self) {
        loop {
            // Decide late: one minibatch is in preparation, and one more waits.
            if self.buffers.values().filter(|b| !b.ready).count() >= 2 {
                return;
            }
            let free = self.setup.buffers - self.buffers.len() as u32;
            let Some(minibatch) = self.scheduler.next(free) else {
                if self.make_room() {
                    continue;
                }
                return;
            };
            self.audit.drawn(&minibatch);
            let work =
                self.setup.prep * minibatch.samples.len() as f64 / f64::from(self.setup.slots);
            self.prepared_at = self.prepared_at.max(self.now) + work;
            self.made += 1;
            self.result.prepared += minibatch.samples.len() as u64;
            self.at(self.prepared_at, Event::Prepared(self.made));
            if self.record {
                self.result
                    .drawn
                    .extend(minibatch.samples.iter().map(|s| s.id));
            }
            let buffer = Buffer {
                ids: minibatch.samples.iter().map(|s| s.id).collect(),
                parts: minibatch.deliveries.len() as u32,
                ready: false,
            };
            self.buffers.insert(self.made, buffer);
            for delivery in minibatch.deliveries {
                let at = delivery.job.0 as usize;
                let job = &mut self.jobs[at];
                job.assigned += u64::from(delivery.len);
                job.ranks[delivery.rank as usize]
                    .queue
                    .push_back((self.made, delivery));
                self.bound_what_is_ahead(at);
            }
        }
    }

    /// Takes back the untaken batches of a job that has paused for long. Returns `true` if there was one.
    fn make_room(&mut self) -> bool {
        if !self.scheduler.lacks_buffers() {
            return false;
        }
        let can = |&at: &usize| {
            self.jobs[at].plan.has_paused_long(self.now)
                && self.scheduler.can_take_back(JobId(at as u64))
        };
        let Some(at) = (0..self.jobs.len()).find(can) else {
            return false;
        };
        let id = JobId(at as u64);
        let void = self.scheduler.take_back(id);
        self.scheduler.set_absent(id, true);
        self.withdraw(at, &void);
        true
    }

    /// Removes the last parts of each rank's queue, which are void.
    fn withdraw(&mut self, at: usize, void: &[u32]) {
        let id = JobId(at as u64);
        let mut parts = Vec::new();
        for (rank, void) in self.jobs[at].ranks.iter_mut().zip(void) {
            let stays = rank.queue.len() - *void as usize;
            parts.extend(rank.queue.split_off(stays));
        }
        parts.sort_by_key(|(minibatch, part)| Reverse((*minibatch, part.start)));
        let ids = |(minibatch, part): &(u64, Delivery)| {
            let slots = part.start as usize..(part.start + part.len) as usize;
            (*part, self.buffers[minibatch].ids[slots].to_vec())
        };
        let void: Vec<_> = parts.iter().map(ids).collect();
        self.audit.taken_back(id, &void);
        parts
            .iter()
            .for_each(|(minibatch, _)| self.release(*minibatch));
    }

    /// Updates the waits of jobs that have nothing to read while a minibatch is prepared.
    fn note_waits(&mut self) {
        let here = self.jobs.iter().filter(|job| job.here);
        let here: usize = here.map(|job| job.ranks.len()).sum();
        for job in self.jobs.iter_mut().filter(|job| job.here) {
            // Members of a cohort wait for each other, which does not count.
            if job.plan.spec.cohort.is_some() || job.ranks.iter().any(|rank| rank.busy) {
                (job.passed_over, job.company) = (0, 0);
                continue;
            }
            job.passed_over += 1;
            job.company = job.company.max(here);
            let wait = f64::from(job.passed_over) / job.company as f64;
            self.result.waits = self.result.waits.max(wait);
        }
    }

    fn release(&mut self, minibatch: u64) {
        let Some(buffer) = self.buffers.get_mut(&minibatch) else {
            return;
        };
        buffer.parts -= 1;
        self.forget(minibatch);
    }

    /// Frees a buffer that is written, and whose parts are all released.
    fn forget(&mut self, minibatch: u64) {
        if self
            .buffers
            .get(&minibatch)
            .is_some_and(|b| b.ready && b.parts == 0)
        {
            self.buffers.remove(&minibatch);
        }
    }

    fn prepared(&mut self, minibatch: u64) {
        if let Some(buffer) = self.buffers.get_mut(&minibatch) {
            buffer.ready = true;
        }
        self.forget(minibatch);
        for job in 0..self.jobs.len() {
            for rank in 0..self.jobs[job].ranks.len() {
                if !self.jobs[job].ranks[rank].busy {
                    self.read(job, rank);
                }
            }
        }
        self.note_waits();
    }

    // Reading.

    /// Takes the parts that are ready, until a batch is complete.
    fn read(&mut self, at: usize, rank: usize) {
        while !self.jobs[at].plan.pauses_at(self.now) {
            let reader = &mut self.jobs[at].ranks[rank];
            let Some((minibatch, delivery)) = reader.queue.front().cloned() else {
                return;
            };
            if !self.buffers[&minibatch].ready {
                return;
            }
            assert_eq!(reader.epoch, delivery.epoch);
            reader.queue.pop_front();
            self.scheduler.taken(delivery.job, delivery.rank, 1);
            let ids = &self.buffers[&minibatch].ids;
            reader
                .batch
                .extend(&ids[delivery.start as usize..(delivery.start + delivery.len) as usize]);
            reader.parts += 1;
            if !delivery.ends_batch {
                self.release(minibatch);
                continue;
            }
            if reader.parts == 1 {
                reader.held = Some(minibatch);
            } else {
                self.release(minibatch);
            }
            return self.step(at, rank, delivery);
        }
    }

    fn step(&mut self, at: usize, rank: usize, delivery: Delivery) {
        let job = &mut self.jobs[at];
        let reader = &mut job.ranks[rank];
        reader.parts = 0;
        reader.busy = true;
        reader.steps += 1;
        reader.is_at_border = delivery.ends_epoch;
        let batch = std::mem::take(&mut reader.batch);
        let time = job.plan.step * job.plan.jitter.step(&mut reader.random);
        job.outcome.samples += batch.len() as u64;
        let given = job.given.entry(delivery.epoch).or_default();
        for &id in &batch {
            assert!(given.insert(id), "sample {id} twice");
        }
        while job.given.len() > 2 {
            job.given.pop_first();
        }
        if self.record {
            let epochs = &mut job.outcome.batches;
            epochs.resize(epochs.len().max(delivery.epoch as usize + 1), Vec::new());
            epochs[delivery.epoch as usize].push(batch);
        }
        let event = Event::StepDone {
            job: at,
            life: job.life,
            rank,
        };
        self.at(self.now + time, event);
    }
}
