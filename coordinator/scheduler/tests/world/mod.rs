//! Jobs and a pool of buffers around a scheduler, as in the coordinator and its clients.
//!
//! A rank takes the parts of its next batch one by one. A batch in one buffer is held until the rank has the next one,
//! unless the rank holds its share already. A batch that straddles buffers is copied.

mod attaching;
mod buffers;
mod job;
mod reading;

use std::collections::{BTreeMap, BTreeSet};

use coprep_scheduler::{Config, Draw, DrawOrder, JobId, JobSpec, Scheduler};
use roaring::RoaringBitmap;

use crate::audit::Audit;
use job::Job;

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
    /// Aligns the ranks of a job with those of others.
    Align(u8),
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
            Op::Break(id) => {
                self.broken.insert(id);
                let jobs = self.jobs.values_mut();
                jobs.for_each(|job| job.ascends &= job.ranks.len() == 1);
            }
            Op::State(who) => self.on(who, World::compare_state),
            Op::Ahead { who, samples } => self.on(who, |w, id| w.set_ahead(id, samples)),
            Op::Align(who) => self.on(who, |w, id| w.scheduler.align_ranks(id)),
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
}
