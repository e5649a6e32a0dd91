//! The clients' side: ranks take parts of batches, and the promises that are checked as they do.

use coprep_scheduler::JobId;
use roaring::RoaringBitmap;

use crate::world::World;
use crate::world::job::{Part, Rank};

impl World {
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
    pub(super) fn step(&mut self, id: JobId, rank: usize) -> bool {
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
    pub(super) fn take(&mut self, id: JobId, rank: usize, part: Part) -> bool {
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

    pub(super) fn compare_state(&mut self, id: JobId) {
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

    pub(super) fn gets_on(&self, id: JobId) -> bool {
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
