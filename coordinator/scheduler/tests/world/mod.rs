//! Jobs and a pool of buffers around a scheduler, as in the coordinator and its clients.
//!
//! A rank takes the parts of its next batch one by one. A batch in one buffer is held until the rank has the next one,
//! unless the rank holds its share already. A batch that straddles buffers is copied.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use coprep_scheduler::{
    Behind, Config, Delivery, Draw, DrawOrder, JobId, JobSpec, Minibatch, Resume, Scheduler,
};
use roaring::RoaringBitmap;

use crate::audit::{Audit, Back};

/// An event. `who` picks one of the jobs.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Join(JobSpec),
    /// All its ranks, or one of them, take batches.
    Step {
        who: u8,
        rank: Option<u8>,
        steps: u8,
    },
    Leave(u8),
    /// All its ranks lose the coordinator at once, and return with the samples that they were given.
    Rejoin(u8),
    Restart(u8),
    /// The job stops reading, or reads again. If it stops, others that had stopped read again.
    Pause(u8),
    /// The job stops reading for good.
    Stop(u8),
    /// The job's untaken batches are taken back. It counts as absent until it reads again.
    TakeBack(u8),
    /// A sample cannot be read from now on.
    Break(u32),
    /// Compares the scheduler's state of a job with the samples that it was really given.
    State(u8),
    /// Sets how many samples of its next epoch may be drawn before it begins.
    Ahead {
        who: u8,
        samples: u64,
    },
}

struct Job {
    spec: JobSpec,
    /// `true` if each rank must be given its samples in ascending order.
    ascends: bool,
    paused: bool,
    /// `true` if its batches were taken back, and it has not read since.
    absent: bool,
    /// Number of samples of an epoch that may be drawn for it before one of its ranks begins the epoch.
    ahead: u64,
    ranks: Vec<Rank>,
    /// The epoch in which it attached, or that it resumed.
    first_epoch: u64,
    /// The epoch that it resumed, and the steps that its foremost rank had taken in it.
    level: (u64, u64),
    /// By epoch: the draws that its first rank was given.
    draws: BTreeMap<u64, Vec<Draw>>,
    given: BTreeMap<u64, RoaringBitmap>,
}

#[derive(Default)]
struct Rank {
    queue: VecDeque<Part>,
    epoch: u64,
    /// Number of batches that it was given in its epoch.
    steps: u64,
    /// The epoch that it was given all of, and its steps, until it is given a batch of the next epoch.
    before: Option<(u64, u64)>,
    batch: Vec<Draw>,
    /// Samples of that batch that could not be read.
    failed: Vec<u32>,
    /// The epoch and the sample that it was given last.
    last: Option<(u64, u32)>,
    parts: u32,
    /// The buffer of the batch that its user works on.
    held: Option<u64>,
    /// `true` while it iterates its epoch.
    begun: bool,
    finished: u64,
}

struct Part {
    minibatch: u64,
    delivery: Delivery,
    draws: Vec<Draw>,
    /// By slot: samples that were assigned, including bad ones that others replaced.
    assigned: Vec<u32>,
}

/// A simulated coordinator with its clients; see the module.
pub(crate) struct World {
    scheduler: Scheduler,
    samples: u32,
    ascends: bool,
    audit: Audit,
    jobs: BTreeMap<JobId, Job>,
    /// Number of buffers: the first per rank, and the second in addition.
    pool: (u32, u32),
    /// Largest number of ranks that were present at a time.
    most_consumers: u32,
    /// Number of unreleased parts, by minibatch.
    used: BTreeMap<u64, u32>,
    made: u64,
    came: u64,
    broken: RoaringBitmap,
    /// Jobs that never leave, and never skip a part of an epoch.
    steadfast: BTreeSet<JobId>,
    /// `true` if the untaken batches of jobs that pause are taken back when another job lacks a buffer.
    relieves: bool,
}

const MOST_JOBS: usize = 6;

impl World {
    pub(crate) fn new(config: Config, pool: (u32, u32)) -> Self {
        World {
            samples: config.samples,
            ascends: config.order == DrawOrder::Ascending,
            audit: Audit::new(config.samples, config.slots, config.order),
            scheduler: Scheduler::new(config),
            jobs: BTreeMap::new(),
            pool,
            most_consumers: 0,
            used: BTreeMap::new(),
            made: 0,
            came: 0,
            broken: RoaringBitmap::new(),
            steadfast: BTreeSet::new(),
            relieves: false,
        }
    }

    /// Creates a world in which the untaken batches of jobs that pause are taken back.
    pub(crate) fn relieving(config: Config, pool: (u32, u32)) -> Self {
        World {
            relieves: true,
            ..World::new(config, pool)
        }
    }

    pub(crate) fn keep(&mut self, jobs: &[JobId]) {
        self.steadfast.extend(jobs);
    }

    pub(crate) fn draws_of(&self, id: JobId) -> &BTreeMap<u64, Vec<Draw>> {
        &self.jobs[&id].draws
    }

    /// Returns the samples that cannot be read.
    pub(crate) fn broken(&self) -> &RoaringBitmap {
        &self.broken
    }

    pub(crate) fn apply(&mut self, op: Op) {
        match op {
            Op::Join(spec) if self.jobs.len() < MOST_JOBS => {
                self.join(spec);
            }
            Op::Join(_) => {}
            Op::Step { who, rank, steps } => self.on(who, |w, id| w.steps(id, rank, steps)),
            Op::Leave(who) => self.on(who, |w, id| w.leave(id)),
            Op::Rejoin(who) => self.on(who, World::rejoin),
            Op::Restart(who) => self.on(who, World::restart),
            Op::Pause(who) => self.on(who, World::pause),
            Op::Stop(who) => self.on(who, |w, id| w.job(id).paused = true),
            Op::TakeBack(who) => self.on(who, World::take_back),
            Op::Break(id) => drop(self.broken.insert(id)),
            Op::State(who) => self.on(who, World::compare_state),
            Op::Ahead { who, samples } => self.on(who, |w, id| w.set_ahead(id, samples)),
        }
        self.pump();
    }

    fn on(&mut self, who: u8, what: impl FnOnce(&mut Self, JobId)) {
        let at = usize::from(who) % self.jobs.len().max(1);
        if let Some(&id) = self.jobs.keys().nth(at) {
            what(self, id);
        }
    }

    fn job(&mut self, id: JobId) -> &mut Job {
        self.jobs.get_mut(&id).expect("a job that is here")
    }

    // Attaching and detaching.

    /// Attaches a job. Returns its number if it is admitted.
    pub(crate) fn join(&mut self, mut spec: JobSpec) -> Option<JobId> {
        if let Some(subset) = &mut spec.subset {
            *subset &= (0..self.samples).collect::<RoaringBitmap>();
        }
        self.came += 1;
        let id = JobId(self.came);
        self.attach(id, spec).then_some(id)
    }

    fn attach(&mut self, id: JobId, spec: JobSpec) -> bool {
        let level = vec![Back::default(); spec.world_size as usize];
        self.attach_behind(id, spec, &level)
    }

    fn attach_behind(&mut self, id: JobId, spec: JobSpec, back: &[Back]) -> bool {
        let batches: Vec<u32> = back.iter().map(|rank| rank.behind).collect();
        let behind = Behind {
            batches: &batches,
            others_are_done: back.iter().any(|rank| rank.is_done),
            forfeited: 0,
        };
        if self
            .scheduler
            .attach_behind(id, spec.clone(), behind)
            .is_err()
        {
            return false;
        }
        self.scheduler.set_ahead(id, 0);
        let first_epoch = spec.resume.as_ref().map_or(0, |resume| resume.epoch);
        let epoch = self.scheduler.job(id).expect("just attached").epoch;
        self.audit.joined(id, &spec, epoch, back);
        let begins = || Rank {
            epoch,
            ..Rank::default()
        };
        let ranks = (0..spec.world_size).map(|_| begins()).collect();
        let mut job = Job {
            spec,
            ascends: self.ascends,
            paused: false,
            absent: false,
            ahead: 0,
            first_epoch,
            level: (0, 0),
            ranks,
            draws: BTreeMap::new(),
            given: BTreeMap::new(),
        };
        if let Some(resume) = job.spec.resume.take().filter(|r| r.epoch == epoch) {
            job.given.insert(epoch, resume.delivered);
        }
        self.jobs.insert(id, job);
        self.most_consumers = self.most_consumers.max(self.consumers());
        true
    }

    /// Removes a job, and returns its last state.
    fn remove(&mut self, id: JobId) -> Job {
        self.scheduler.detach(id);
        self.audit.left(id);
        let mut job = self.jobs.remove(&id).expect("a job that is here");
        for rank in &mut job.ranks {
            let held = rank
                .queue
                .drain(..)
                .map(|part| part.minibatch)
                .chain(rank.held.take());
            held.for_each(|minibatch| self.release(minibatch));
        }
        job
    }

    fn leave(&mut self, id: JobId) {
        if !self.steadfast.contains(&id) {
            self.remove(id);
        }
    }

    /// Lets a job return as clients and coordinator do it. Each rank presents its epoch, or the epoch before if it was
    /// given nothing of its own. The job resumes the latest one, and ranks that were given less of it are made level.
    fn rejoin(&mut self, id: JobId) {
        let bad = self.scheduler.left_out(id);
        let before = self.remove(id);
        let presented: Vec<(u64, u64)> = before.ranks.iter().map(Rank::presented).collect();
        let (epoch, most) = *presented.iter().max().expect("a rank");
        let steps = |&(e, steps): &(u64, u64)| if e == epoch { steps } else { 0 };
        let back = before.ranks.iter().zip(&presented);
        let back: Vec<Back> = back
            .map(|(rank, progress)| Back {
                behind: (most - steps(progress)) as u32,
                is_done: rank.before.is_some_and(|(e, _)| e == epoch),
            })
            .collect();
        let delivered = before.given.get(&epoch).cloned().unwrap_or_default();
        let resume = Some(Resume {
            epoch,
            delivered,
            bad,
        });
        let spec = JobSpec {
            resume,
            ..before.spec.clone()
        };
        let admitted = self.attach_behind(id, spec, &back);
        assert!(admitted || !self.broken.is_empty(), "it may not come back");
        if admitted {
            self.job(id).level = (epoch, most);
            self.go_on(id, before);
        }
    }

    /// Puts the ranks where they were, with empty queues.
    fn go_on(&mut self, id: JobId, before: Job) {
        let job = self.job(id);
        let now = job.ranks[0].epoch;
        (job.draws, job.given) = (before.draws, before.given);
        for (rank, old) in job.ranks.iter_mut().zip(before.ranks) {
            // Only a rank that lacks nothing may find the job in a later epoch than its own.
            assert!(
                now <= old.epoch || old.steps == 0,
                "the rest of epoch {} is lost",
                old.epoch
            );
            (rank.epoch, rank.steps) = (now.max(old.epoch), old.steps);
            (rank.before, rank.finished, rank.last) = (old.before, old.finished, old.last);
        }
    }

    fn restart(&mut self, id: JobId) {
        let job = self.job(id);
        let epoch = job.ranks[0].epoch;
        if job.ranks.iter().any(|r| !r.begun || r.epoch != epoch) || self.steadfast.contains(&id) {
            return;
        }
        self.scheduler.restart_epoch(id);
        let next = self.scheduler.job(id).expect("it is here").epoch;
        assert_eq!(next, epoch + 1);
        self.audit.restarted(id, next);
        for rank in 0..self.job(id).ranks.len() {
            let new = Rank {
                epoch: next,
                begun: true,
                ..Rank::default()
            };
            let mut old = std::mem::replace(&mut self.job(id).ranks[rank], new);
            let held = old
                .queue
                .drain(..)
                .map(|part| part.minibatch)
                .chain(old.held.take());
            held.for_each(|minibatch| self.release(minibatch));
            self.scheduler.epoch_started(id, rank as u32, next);
        }
    }

    /// Pauses a job, or lets it read again. Only one job of one rank may pause at a time. Where batches are taken back,
    /// any jobs whose ranks are level may pause, because the deliveries between ranks that are apart are not taken
    /// back.
    fn pause(&mut self, id: JobId) {
        let paused = self.job(id).paused;
        if self.relieves {
            let is_level = self.job(id).is_level();
            self.job(id).paused = !paused && is_level;
            return;
        }
        let pauses = !paused && self.job(id).spec.world_size == 1;
        self.everybody_reads();
        self.job(id).paused = pauses;
    }

    /// Pauses all jobs except one.
    pub(crate) fn all_others_stop(&mut self, who: u8) {
        self.jobs.values_mut().for_each(|job| job.paused = true);
        self.on(who, |world, id| world.job(id).paused = false);
    }

    fn set_ahead(&mut self, id: JobId, samples: u64) {
        self.scheduler.set_ahead(id, samples);
        self.job(id).ahead = samples;
    }

    /// Returns `true` if a rank has begun the epoch of a minibatch, or the minibatch is among the first samples that
    /// may be drawn before. `before` has, by target, the number of samples drawn of its epoch before.
    fn is_wanted(&self, minibatch: &Minibatch, before: &BTreeMap<JobId, u64>) -> bool {
        let drawn = minibatch.samples.len() as u64;
        let has_begun = |id: &JobId, epoch: u64| {
            let ranks = &self.jobs[id].ranks;
            // The first epoch, and an epoch that is resumed, count as begun.
            let first = self.jobs[id].first_epoch;
            epoch <= first
                || ranks
                    .iter()
                    .any(|r| r.epoch > epoch || (r.begun && r.epoch == epoch))
        };
        let fellows = |id: &JobId| {
            let cohort = self.jobs[id].spec.cohort.clone();
            let id = *id;
            self.jobs
                .iter()
                .filter(move |(other, job)| {
                    **other == id || (cohort.is_some() && job.spec.cohort == cohort)
                })
                .map(|(other, _)| other)
        };
        minibatch.targets.iter().any(|target| {
            before[&target.job] + drawn <= self.jobs[&target.job].ahead
                || fellows(&target.job).any(|id| has_begun(id, target.epoch))
        })
    }

    /// Returns the number of samples drawn of each job's epoch.
    fn positions(&self) -> BTreeMap<JobId, u64> {
        let view = |&id: &JobId| Some((id, self.scheduler.job(id)?));
        let views = self.jobs.keys().filter_map(view);
        views
            .map(|(id, view)| (id, u64::from(view.samples - view.need)))
            .collect()
    }

    // Buffers.

    fn consumers(&self) -> u32 {
        self.jobs.values().map(|job| job.spec.world_size).sum()
    }

    /// Returns the number of buffers. A pool keeps its size when jobs leave.
    fn buffers(&self) -> u32 {
        self.pool.0 * self.most_consumers + self.pool.1
    }

    /// Returns the number of batches that a rank may hold, as the coordinator allots them.
    fn share(&self) -> u32 {
        match (self.consumers(), self.buffers()) {
            (n, all) if all >= 2 * n + 2 => 2,
            (n, all) if all >= n + 2 => 1,
            _ => 0,
        }
    }

    fn release(&mut self, minibatch: u64) {
        let parts = self.used.get_mut(&minibatch).expect("a buffer in use");
        *parts -= 1;
        if *parts == 0 {
            self.used.remove(&minibatch);
        }
    }

    /// Draws all minibatches that can be drawn. Returns `true` if there was one.
    fn pump(&mut self) -> bool {
        let mut any = false;
        loop {
            let free = self.buffers().saturating_sub(self.used.len() as u32);
            let before = self.positions();
            let Some(mut minibatch) = self.scheduler.next(free) else {
                if self.relieves && self.make_room() {
                    continue;
                }
                return any;
            };
            assert!(free > 0);
            assert!(
                self.is_wanted(&minibatch, &before),
                "for nobody: {:?}",
                minibatch.targets
            );
            self.audit.drawn(&minibatch);
            let assigned = self.prepare(&mut minibatch);
            self.publish(minibatch, &assigned);
            any = true;
        }
    }

    /// Takes batches back as the coordinator does. Unlike the coordinator, the world knows which jobs pause.
    fn make_room(&mut self) -> bool {
        if !self.scheduler.lacks_buffers() {
            return false;
        }
        let pauses = |(id, job): (&JobId, &Job)| {
            (job.paused && self.scheduler.can_take_back(*id)).then_some(*id)
        };
        let paused = self.jobs.iter().find_map(pauses);
        paused.is_some_and(|id| {
            self.take_back(id);
            true
        })
    }

    fn take_back(&mut self, id: JobId) {
        let void = self.scheduler.take_back(id);
        assert!(!self.scheduler.can_take_back(id));
        self.scheduler.set_absent(id, true);
        self.job(id).absent = true;
        let mut parts = Vec::new();
        for (rank, void) in self.job(id).ranks.iter_mut().zip(void) {
            let stays = rank.queue.len() - void as usize;
            parts.extend(rank.queue.split_off(stays));
        }
        parts.sort_by_key(|part| std::cmp::Reverse((part.minibatch, part.delivery.start)));
        for part in &parts {
            self.release(part.minibatch);
        }
        let void: Vec<_> = parts
            .into_iter()
            .map(|p| (p.delivery, p.assigned))
            .collect();
        self.audit.taken_back(id, &void);
    }

    /// Replaces samples that cannot be read. Returns all samples that were assigned, by slot.
    fn prepare(&mut self, minibatch: &mut Minibatch) -> Vec<Vec<u32>> {
        let mut assigned = Vec::new();
        for draw in &mut minibatch.samples {
            let mut ids = vec![draw.id];
            while self.broken.contains(draw.id) {
                self.scheduler.mark_bad(draw.id);
                self.audit.marked_bad(draw.id);
                let Some(other) = self.scheduler.replace(&minibatch.targets, draw.id) else {
                    break;
                };
                self.audit.replaced(&minibatch.targets, other.id);
                *draw = other;
                ids.push(other.id);
            }
            assigned.push(ids);
        }
        assigned
    }

    fn publish(&mut self, minibatch: Minibatch, assigned: &[Vec<u32>]) {
        self.made += 1;
        self.used
            .insert(self.made, minibatch.deliveries.len() as u32);
        for delivery in minibatch.deliveries {
            let slots = delivery.start as usize..(delivery.start + delivery.len) as usize;
            let part = Part {
                minibatch: self.made,
                delivery,
                draws: minibatch.samples[slots.clone()].to_vec(),
                assigned: assigned[slots].concat(),
            };
            self.job(delivery.job).ranks[delivery.rank as usize]
                .queue
                .push_back(part);
        }
    }

    // Reading.

    pub(crate) fn steps(&mut self, id: JobId, rank: Option<u8>, steps: u8) {
        let ranks = self.job(id).ranks.len();
        let one = rank.map(|rank| usize::from(rank) % ranks);
        for _ in 0..steps {
            for rank in (0..ranks).filter(|&rank| one.is_none_or(|one| one == rank)) {
                self.step(id, rank);
                self.pump();
            }
        }
    }

    /// One rank begins its epoch, and takes the parts of a batch that are ready. Returns `true` if it did any of this.
    fn step(&mut self, id: JobId, rank: usize) -> bool {
        let job = self.job(id);
        if job.paused {
            return false;
        }
        let mut any = std::mem::take(&mut job.absent);
        let last_epoch = job.last_epoch();
        let reader = &mut job.ranks[rank];
        if !reader.begun {
            reader.begun = true;
            let epoch = reader.epoch;
            self.scheduler.epoch_started(id, rank as u32, epoch);
            any = true;
        }
        self.scheduler.set_absent(id, false);
        while let Some(part) = self.job(id).ranks[rank].next(last_epoch) {
            any = true;
            self.scheduler.taken(id, rank as u32, 1);
            if self.take(id, rank, part) {
                break;
            }
        }
        any
    }

    /// Takes a part. Returns `true` if that completes a batch.
    fn take(&mut self, id: JobId, rank: usize, part: Part) -> bool {
        let (share, broken) = (self.share(), self.broken.clone());
        let job = self.job(id);
        let reader = &mut job.ranks[rank];
        // Its client was told of the samples that cannot be read. They count as given when their batch is given.
        let failed = part.assigned.iter().filter(|id| broken.contains(**id));
        reader.failed.extend(failed);
        assert_eq!(part.delivery.epoch, reader.epoch);
        reader
            .batch
            .extend(part.draws.into_iter().filter(|d| !broken.contains(d.id)));
        reader.parts += 1;
        let whole = part.delivery.ends_batch && reader.parts == 1;
        let views = whole && u32::from(reader.held.is_some()) < share;
        let mut released = Vec::new();
        if part.delivery.ends_batch {
            let now = views.then_some(part.minibatch);
            released.extend(std::mem::replace(&mut reader.held, now));
            job.give(rank, part.delivery.ends_epoch);
        }
        released.extend((!views).then_some(part.minibatch));
        released
            .into_iter()
            .for_each(|minibatch| self.release(minibatch));
        part.delivery.ends_batch
    }

    // The promises.

    fn compare_state(&mut self, id: JobId) {
        let job = &self.jobs[&id];
        let Rank { epoch, steps, .. } = job.ranks[0];
        if !job.is_level() {
            return;
        }
        let (level_epoch, level) = job.level;
        let batches = if epoch == level_epoch {
            steps - level
        } else {
            steps
        };
        let state = self
            .scheduler
            .state(id, epoch, batches)
            .expect("it was taken just now");
        assert_eq!(state.epoch, epoch);
        let given = job.given.get(&epoch).cloned().unwrap_or_default() - &self.broken;
        let dropped = |left: &RoaringBitmap| job.spec.drop_last && left.is_empty();
        assert!(
            given.is_subset(&state.delivered) || dropped(&state.delivered),
            "{state:?} {given:?}"
        );
        let more = state.delivered - given - &self.broken;
        assert!(more.is_empty(), "not given: {more:?}");
    }

    pub(crate) fn everybody_reads(&mut self) {
        self.jobs.values_mut().for_each(|job| job.paused = false);
    }

    /// Checks that every job that need not wait for others finishes an epoch within a bounded number of rounds.
    pub(crate) fn everybody_finishes_an_epoch(&mut self) {
        let ids: Vec<JobId> = self
            .jobs
            .keys()
            .copied()
            .filter(|&id| self.gets_on(id))
            .collect();
        let due: Vec<(JobId, u64)> = ids
            .iter()
            .map(|&id| (id, self.jobs[&id].finished() + 1))
            .collect();
        // A member of a cohort first waits for the members that are behind it.
        let epochs = self
            .jobs
            .values()
            .flat_map(|job| job.ranks.iter().map(|r| r.epoch));
        let gap = epochs.clone().max().unwrap_or(0) - epochs.min().unwrap_or(0);
        let bound = (gap + 3) * u64::from(self.samples + 10) * (self.jobs.len() as u64 + 1);
        for _ in 0..bound {
            if due.iter().all(|(id, due)| self.jobs[id].finished() >= *due) {
                return;
            }
            let mut progress = self.pump();
            for &id in &ids {
                for rank in 0..self.jobs[&id].ranks.len() {
                    progress |= self.step(id, rank);
                }
            }
            assert!(
                progress,
                "a deadlock: {} of {} buffers in use",
                self.used.len(),
                self.buffers()
            );
        }
        panic!("somebody starves");
    }

    fn gets_on(&self, id: JobId) -> bool {
        let job = &self.jobs[&id];
        let Some(cohort) = &job.spec.cohort else {
            return !job.paused;
        };
        let mut fellows = self
            .jobs
            .values()
            .filter(|j| j.spec.cohort.as_ref() == Some(cohort));
        let waits = self.scheduler.cohort_waits(id);
        fellows.all(|j| !j.paused) && waits.is_none_or(|why| !why.contains("are here"))
    }
}

impl Rank {
    fn presented(&self) -> (u64, u64) {
        self.before.unwrap_or((self.epoch, self.steps))
    }

    fn next(&mut self, last_epoch: u64) -> Option<Part> {
        let there = self.queue.front()?.delivery.epoch <= last_epoch;
        if there { self.queue.pop_front() } else { None }
    }
}

impl Job {
    /// Returns the last epoch whose batches may be handed over. Every rank must have taken all of an epoch before the
    /// next one.
    fn last_epoch(&self) -> u64 {
        let fronts = self.ranks.iter().filter_map(|rank| rank.queue.front());
        fronts
            .map(|part| part.delivery.epoch)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Returns `true` if all its ranks were given equally much.
    fn is_level(&self) -> bool {
        let progress = |r: &Rank| (r.epoch, r.steps);
        self.ranks
            .iter()
            .all(|r| progress(r) == progress(&self.ranks[0]))
    }

    fn finished(&self) -> u64 {
        self.ranks.iter().map(|r| r.finished).min().expect("a rank")
    }

    /// Gives a complete batch to the user of a rank.
    fn give(&mut self, rank: usize, ends_epoch: bool) {
        let reader = &mut self.ranks[rank];
        reader.parts = 0;
        reader.steps += 1;
        reader.before = None;
        let batch = std::mem::take(&mut reader.batch);
        if self.ascends {
            for id in batch.iter().map(|draw| draw.id) {
                let before = reader.last.replace((reader.epoch, id));
                assert!(before < Some((reader.epoch, id)), "{id} after {before:?}");
            }
        }
        let given = self.given.entry(reader.epoch).or_default();
        given.extend(std::mem::take(&mut reader.failed));
        for draw in &batch {
            assert!(given.insert(draw.id), "{} was given twice", draw.id);
        }
        if rank == 0 {
            self.draws.entry(reader.epoch).or_default().extend(batch);
        }
        if ends_epoch {
            reader.finished += 1;
            reader.begun = false;
            reader.before = Some((reader.epoch, reader.steps));
            reader.epoch += 1;
            reader.steps = 0;
        }
    }
}
