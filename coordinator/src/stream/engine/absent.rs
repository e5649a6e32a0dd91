//! Buffers for every consumer: items queued for jobs that do not read are taken back, and the buffers that jobs hold
//! are bounded.
//!
//! A job that pauses keeps the batches that it holds, and no more (`docs/explanation/scheduler.md`, "Jobs that stop reading").

use std::time::{Duration, Instant};

use coprep_scheduler::JobId;

use crate::stream::consumer::Consumer;
use crate::stream::engine::{AttachedJob, Engine, end, note_taken};

/// While a job lacks buffers: the shortest time until the next check, and the time if there is no candidate to take
/// buffers from.
pub(crate) const SOON: Duration = Duration::from_millis(10);
const AGAIN: Duration = Duration::from_millis(500);

impl Engine {
    /// If a job lacks buffers, takes back the untaken items of the job that has not read for longest. Returns `true` if
    /// it did. If not, [`next_check`](Self::next_check) is set.
    ///
    /// Nothing is taken from a job that reads, that waits, or that has only the batches it holds: a batch that is held
    /// stays where it is.
    pub(crate) fn make_room(&mut self) -> bool {
        self.next_check = None;
        if !self.scheduler.lacks_buffers() {
            return false;
        }
        let scheduler = &self.scheduler;
        let jobs = self.jobs.iter();
        let jobs = jobs.filter(|(id, _)| scheduler.can_take_back(JobId(**id)));
        let left = jobs.filter_map(|(&id, job)| Some((job.time_until_absent()?, id)));
        let (due, later): (Vec<_>, Vec<_>) = left.partition(|(left, _)| left.is_zero());
        let idle = |id: &u64| self.jobs.get(id).and_then(AttachedJob::last_taken);
        if let Some(id) = due.into_iter().map(|(_, id)| id).min_by_key(idle) {
            self.take_back(id);
            return true;
        }
        let soonest = later.into_iter().map(|(left, _)| left).min();
        let wait = soonest.unwrap_or(AGAIN).max(SOON);
        self.next_check = Some(Instant::now() + wait);
        false
    }

    /// Takes back the items that a job was given and has not taken. Nothing is made for it until it reads again.
    fn take_back(&mut self, id: u64) {
        self.withdraw(id);
        let void = self.scheduler.take_back(JobId(id));
        self.void_last(id, &void);
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        tracing::debug!(parent: None, stream = self.stream, job = id, "a job does not read: what it had queued is taken back");
        // Marked first: a consumer that begins to wait then sees the mark and rings, or is seen to wait below.
        job.set_absent(true);
        let mut ranks = job.ranks.iter().flatten();
        let is_absent = !ranks.any(|consumer| consumer.sender.is_waiting());
        job.set_absent(is_absent);
        self.scheduler.set_absent(JobId(id), is_absent);
    }

    /// Withdraws the items that were published for a job and that it has not taken. They wait to be published again.
    pub(super) fn withdraw(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        for (rank, consumer) in job.ranks.iter_mut().enumerate() {
            let Some(consumer) = consumer else { continue };
            match consumer.take_back() {
                Ok(progress) => note_taken(&mut self.scheduler, id, rank, &progress),
                Err(violation) => end(consumer, &violation),
            }
        }
    }

    /// Drops the last deliveries of each rank of a job.
    pub(super) fn void_last(&mut self, id: u64, void: &[u32]) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        for (consumer, &deliveries) in job.ranks.iter_mut().zip(void) {
            if let Some(consumer) = consumer {
                consumer.void_last(deliveries, JobId(id));
            }
        }
    }

    /// Sets each consumer's share of the buffers. Beyond its share, a consumer must copy its batches.
    ///
    /// A job that waits for a batch while it holds one needs two buffers, and the rest of the pool must be able to
    /// circulate. If a consumer holds more than its share, because there were fewer consumers when it took them, the
    /// others have to do without these.
    pub(crate) fn share_buffers(&mut self, buffers: u32) {
        let held: Vec<u32> = self.consumers().map(|c| c.buffers_in_hand()).collect();
        let share = share_of(buffers, &held);
        self.is_share_short = share < share_of(buffers, &vec![0; held.len()]);
        self.consumers().for_each(|c| c.sender.set_share(share));
    }

    /// Recomputes the shares if they are short, because buffers beyond a share may have been released.
    pub(crate) fn share_again(&mut self, buffers: u32) {
        if self.is_share_short {
            self.share_buffers(buffers);
        }
    }
}

impl AttachedJob {
    /// Returns how much longer the job may leave its items unread, or `None` if it reads or waits.
    fn time_until_absent(&self) -> Option<Duration> {
        let ranks = || self.ranks.iter().flatten();
        let waits = |c: &Consumer| c.sender.is_absent() || c.waits();
        if self.forming.is_some() || ranks().any(waits) {
            return None;
        }
        ranks().filter_map(Consumer::time_until_absent).max()
    }

    /// Returns the time when a rank last took something.
    fn last_taken(&self) -> Option<Instant> {
        self.ranks.iter().flatten().map(|c| c.last_taken).max()
    }

    pub(in crate::stream) fn set_absent(&mut self, is_absent: bool) {
        let ranks = self.ranks.iter_mut().flatten();
        ranks.for_each(|consumer| consumer.sender.set_absent(is_absent));
    }
}

/// Returns how many of the buffers each consumer may hold. `held` is the number that each holds already.
fn share_of(buffers: u32, held: &[u32]) -> u32 {
    let consumers = held.len() as u32;
    let in_use = |share: u32| held.iter().map(|&h| h.max(share)).sum::<u32>();
    // Two buffers are left for consumers that hold their share. Where there are many, one more is left for each
    // consumer's next batch.
    let ample = (3..=8)
        .rev()
        .find(|&share| in_use(share) + consumers + 2 <= buffers);
    let scarce = || (1..=2).rev().find(|&share| in_use(share) + 2 <= buffers);
    ample.or_else(scarce).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_buffers_for_whoever_comes() {
        for buffers in 12..=64 {
            for consumers in 1..=buffers {
                let share = share_of(buffers, &vec![0; consumers as usize]);
                assert!(share <= 8);
                assert!(share == 0 || share * consumers + 2 <= buffers);
            }
        }
        assert_eq!(share_of(12, &[0; 4]), 2);
        assert_eq!(share_of(12, &[0; 6]), 1);
        assert_eq!(share_of(12, &[0; 11]), 0);
        assert_eq!(share_of(64, &[0; 2]), 8);
    }

    #[test]
    fn what_others_hold_beyond_their_share_is_not_shared_out_again() {
        // A consumer that is alone may take eight of twelve. Then others attach.
        assert_eq!(share_of(12, &[]), 8);
        assert_eq!(share_of(12, &[8, 0]), 2);
        assert_eq!(share_of(12, &[8, 2, 0]), 0);
        assert_eq!(share_of(12, &[4, 2, 0]), 2, "when it has let go of some");
    }
}
