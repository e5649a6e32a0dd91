//! The coordinator's side: minibatches are drawn into free buffers, prepared, published and taken back.

use std::collections::BTreeMap;

use coprep_scheduler::{JobId, Minibatch};

use crate::world::World;
use crate::world::job::{Job, Part};

impl World {
    /// Returns `true` if a rank of a job, or of its cohort, has begun the epoch of a minibatch, or the minibatch is among
    /// the first samples that one of them may have drawn before. `before` has, by job, the number of samples that were
    /// drawn of its epoch before.
    pub(super) fn is_wanted(&self, minibatch: &Minibatch, before: &BTreeMap<JobId, u64>) -> bool {
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
            let position = before[&target.job];
            let may_be_ahead =
                |id: &JobId| before[id] == position && position + drawn <= self.jobs[id].ahead;
            fellows(&target.job).any(|id| may_be_ahead(id) || has_begun(id, target.epoch))
        })
    }

    /// Returns the number of samples drawn of each job's epoch.
    pub(super) fn positions(&self) -> BTreeMap<JobId, u64> {
        let view = |&id: &JobId| Some((id, self.scheduler.job(id)?));
        let views = self.jobs.keys().filter_map(view);
        views
            .map(|(id, view)| (id, u64::from(view.samples - view.need)))
            .collect()
    }

    pub(super) fn consumers(&self) -> u32 {
        self.jobs.values().map(|job| job.spec.world_size).sum()
    }

    /// Returns the number of buffers. A pool keeps its size when jobs leave.
    pub(super) fn buffers(&self) -> u32 {
        self.pool.0 * self.most_consumers + self.pool.1
    }

    /// Returns the number of batches that a rank may hold, as the coordinator allots them.
    pub(super) fn share(&self) -> u32 {
        match (self.consumers(), self.buffers()) {
            (n, all) if all >= 2 * n + 2 => 2,
            (n, all) if all >= n + 2 => 1,
            _ => 0,
        }
    }

    pub(super) fn release(&mut self, minibatch: u64) {
        let parts = self.used.get_mut(&minibatch).expect("a buffer in use");
        *parts -= 1;
        if *parts == 0 {
            self.used.remove(&minibatch);
        }
    }

    /// Draws all minibatches that can be drawn. Returns `true` if there was one.
    pub(super) fn pump(&mut self) -> bool {
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
    pub(super) fn make_room(&mut self) -> bool {
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

    pub(super) fn take_back(&mut self, id: JobId) {
        let void = self.scheduler.take_back(id);
        assert!(!self.scheduler.can_take_back(id));
        self.scheduler.set_absent(id, true);
        self.job(id).absent = true;
        self.withdraw(id, void);
    }

    /// Removes the last parts of each rank's queue, which are void.
    pub(super) fn withdraw(&mut self, id: JobId, void: Vec<u32>) {
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
    pub(super) fn prepare(&mut self, minibatch: &mut Minibatch) -> Vec<Vec<u32>> {
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

    pub(super) fn publish(&mut self, minibatch: Minibatch, assigned: &[Vec<u32>]) {
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
}
