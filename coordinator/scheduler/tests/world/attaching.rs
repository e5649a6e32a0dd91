//! Jobs that attach, leave, return, restart and pause.

use std::collections::BTreeMap;

use coprep_scheduler::{Behind, JobId, JobSpec, Resume};
use roaring::RoaringBitmap;

use crate::audit::Back;
use crate::world::World;
use crate::world::job::{Job, Rank};

impl World {
    /// Attaches a job. Returns its number if it is admitted.
    pub(crate) fn join(&mut self, mut spec: JobSpec) -> Option<JobId> {
        if let Some(subset) = &mut spec.subset {
            *subset &= (0..self.samples).collect::<RoaringBitmap>();
        }
        self.came += 1;
        let id = JobId(self.came);
        self.attach(id, spec).then_some(id)
    }

    pub(super) fn attach(&mut self, id: JobId, spec: JobSpec) -> bool {
        let level = vec![Back::default(); spec.world_size as usize];
        self.attach_behind(id, spec, &level)
    }

    pub(super) fn attach_behind(&mut self, id: JobId, spec: JobSpec, back: &[Back]) -> bool {
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
        // Where samples are lost, or ranks were not level, a rank may have to take samples of another.
        let is_even = self.broken.is_empty() && back.iter().all(|rank| rank.behind == 0);
        let begins = || Rank {
            epoch,
            ..Rank::default()
        };
        let ranks = (0..spec.world_size).map(|_| begins()).collect();
        let mut job = Job {
            ascends: self.ascends && (spec.world_size == 1 || is_even),
            spec,
            paused: false,
            absent: false,
            ahead: 0,
            first_epoch,
            level: (0, 0),
            ranks,
            draws: BTreeMap::new(),
            given: BTreeMap::new(),
            carried: (0, Vec::new()),
        };
        if let Some(resume) = job.spec.resume.take().filter(|r| r.epoch == epoch) {
            job.given.insert(epoch, resume.delivered);
        }
        self.jobs.insert(id, job);
        self.most_consumers = self.most_consumers.max(self.consumers());
        true
    }

    /// Removes a job, and returns its last state.
    pub(super) fn remove(&mut self, id: JobId) -> Job {
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

    pub(super) fn leave(&mut self, id: JobId) {
        if !self.steadfast.contains(&id) {
            self.remove(id);
        }
    }

    /// Lets a job return as clients and coordinator do it. Each rank presents its epoch, or the epoch before if it was
    /// given nothing of its own. The job resumes the latest one, and ranks that were given less of it are made level.
    pub(super) fn rejoin(&mut self, id: JobId) {
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
            carried: if before.carried.0 == epoch {
                before.carried.1.clone()
            } else {
                Vec::new()
            },
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
    pub(super) fn go_on(&mut self, id: JobId, before: Job) {
        let job = self.job(id);
        let now = job.ranks[0].epoch;
        (job.draws, job.given) = (before.draws, before.given);
        job.carried = before.carried;
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

    pub(super) fn restart(&mut self, id: JobId) {
        let job = self.job(id);
        let epoch = job.ranks[0].epoch;
        if job.ranks.iter().any(|r| !r.begun || r.epoch != epoch) || self.steadfast.contains(&id) {
            return;
        }
        if self.continues(id) {
            return;
        }
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

    /// Lets a job leave its epoch. Returns `true` if the next one goes on with the parts that wait for its ranks.
    fn continues(&mut self, id: JobId) -> bool {
        let job = self.job(id);
        let Rank { epoch, steps, .. } = job.ranks[0];
        if self.ascends || !self.jobs[&id].is_level() {
            self.scheduler.restart_epoch(id);
            return false;
        }
        let level = self.jobs[&id].level;
        let since = if level.0 == epoch {
            steps - level.1
        } else {
            steps
        };
        let left = self.scheduler.leave_epoch(id, epoch, since);
        let carried = self.scheduler.carried_over(id).to_vec();
        self.job(id).carried = (epoch + 1, carried);
        let Some(void) = left else { return false };
        self.withdraw(id, void);
        let job = self.job(id);
        let given = job.given.get(&epoch).cloned().unwrap_or_default();
        for rank in &mut job.ranks {
            (rank.epoch, rank.steps, rank.before) = (epoch + 1, 0, None);
            for part in &mut rank.queue {
                assert_eq!(part.delivery.epoch, epoch);
                part.delivery.epoch += 1;
            }
        }
        // The samples that failed are given, too.
        self.audit.continued(id, &given, since as usize);
        for rank in 0..self.job(id).ranks.len() {
            self.scheduler.epoch_started(id, rank as u32, epoch + 1);
        }
        true
    }

    /// Pauses a job, or lets it read again. Only one job of one rank may pause at a time. Where batches are taken back,
    /// any jobs whose ranks are level may pause, because the deliveries between ranks that are apart are not taken
    /// back.
    pub(super) fn pause(&mut self, id: JobId) {
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

    pub(super) fn set_ahead(&mut self, id: JobId, samples: u64) {
        self.scheduler.set_ahead(id, samples);
        self.job(id).ahead = samples;
    }
}
