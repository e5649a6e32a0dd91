//! A job's epochs: its ranks begin them, leave them early, meet at their borders, and ask for their state.

use std::time::Instant;

use coprep_protocol::id_set;
use coprep_protocol::message::{CarriedOver, Reply, ResumePoint};
use coprep_scheduler::{DrawOrder, JobId};

use crate::Result;
use crate::error::invalid;
use crate::stream::RankId;
use crate::stream::consumer::{Consumer, LeftAt, Pending};
use crate::stream::engine::{AttachedJob, Engine};
use crate::stream::numbers::Numbers;
use crate::stream::pace;

impl Engine {
    /// Returns the epoch of a consumer's job, and the number of samples in one of its epochs.
    pub(crate) fn position(&self, rank_id: RankId) -> Option<(u64, u32)> {
        if let Some(view) = self.scheduler.job(JobId(rank_id.job)) {
            return Some((view.epoch, view.samples));
        }
        let forming = self.jobs.get(&rank_id.job)?.forming.as_ref()?;
        let samples = forming
            .subset
            .as_ref()
            .map_or(self.scheduler.samples(), |s| s.len() as u32);
        Some((forming.resume.as_ref().map_or(0, |r| r.epoch), samples))
    }

    /// Records that a rank began an epoch. The caller has read all items that the rank took before
    /// ([`poll`](Engine::poll)).
    pub(crate) fn epoch_started(&mut self, rank_id: RankId, epoch: u64) {
        if let Some(consumer) = self.consumer(rank_id) {
            consumer.pace.begin(epoch, Instant::now());
            consumer.is_in_pass = true;
        }
        self.scheduler
            .epoch_started(JobId(rank_id.job), rank_id.rank, epoch);
        self.open_epoch(rank_id, epoch);
    }

    /// Tells the scheduler which epochs the ranks of a job began while it waited for others. Nothing of an epoch is
    /// prepared before that is known.
    pub(in crate::stream) fn note_begun_epochs(&mut self, id: u64) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        for (rank, consumer) in (0..).zip(&job.ranks) {
            let epoch = consumer.as_ref().and_then(|c| c.pace.epoch());
            if let Some(epoch) = epoch {
                self.scheduler.epoch_started(JobId(id), rank, epoch);
            }
        }
    }

    /// Bounds, for each job, how much is prepared of an epoch that no rank has begun.
    pub(in crate::stream) fn bound_what_is_ahead(&mut self) {
        for (&id, job) in &self.jobs {
            self.scheduler.set_ahead(JobId(id), job.ahead());
        }
    }

    pub(crate) fn restart_epoch(&mut self, rank_id: RankId, left: LeftAt) {
        if let Some(consumer) = self.consumer(rank_id) {
            consumer.leaves = Some(left);
        }
        self.answer_who_left_before(rank_id.job);
        self.restart_if_all_ask(rank_id.job);
    }

    /// Begins the next epoch if all ranks that are here have left the one before.
    pub(in crate::stream) fn restart_if_all_ask(&mut self, id: u64) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let is_running = job.forming.is_none() && !job.is_over;
        if !is_running || job.ranks.iter().flatten().any(|c| c.leaves.is_none()) {
            return;
        }
        let goes_on = self.leave_epoch(id);
        if !goes_on {
            self.void(id);
        }
        let carried = self.carried_over(id);
        let view = self.scheduler.job(JobId(id));
        let epoch = view.map_or(0, |view| view.epoch);
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.set_absent(false);
        for consumer in job.ranks.iter_mut().flatten() {
            consumer.pace.leave();
            let restarted = Reply::Restarted {
                epoch,
                first_seq: consumer.next_seq(),
                goes_on,
                carried: carried.clone(),
            };
            consumer.tell_restarted(&restarted);
        }
    }

    /// Returns the point at which all ranks of a job leave their epoch, if the next one can continue it: the order of
    /// samples is random, and the ranks are level.
    fn left_at(&self, id: u64) -> Option<LeftAt> {
        let is_random = matches!(self.numbers, Numbers::Draws(_))
            || self.scheduler.order() == DrawOrder::Random;
        let ranks = self.jobs.get(&id)?.ranks.iter().flatten();
        let mut left = ranks.filter_map(|consumer| consumer.leaves);
        let first = left.next().filter(|_| is_random)?;
        left.all(|other| other == first).then_some(first)
    }

    /// Begins the next epoch. Returns `true` if it goes on with the items that are assigned and not taken, except those
    /// of the end of the epoch that was left. Otherwise all of them are void.
    fn leave_epoch(&mut self, id: u64) -> bool {
        let Some(left) = self.left_at(id) else {
            self.scheduler.restart_epoch(JobId(id));
            return false;
        };
        self.withdraw(id);
        let batches = self.since_attached(id, left.epoch, left.batches);
        let Some(void) = self.scheduler.leave_epoch(JobId(id), left.epoch, batches) else {
            return false;
        };
        let epoch = left.epoch + 1;
        self.void_last(id, &void);
        let begun = self.in_preparation.iter();
        begun.for_each(|batch| batch.move_target(JobId(id), epoch));
        if let Some(job) = self.jobs.get_mut(&id) {
            let ranks = job.ranks.iter_mut().flatten();
            ranks.for_each(|consumer| consumer.go_on_in(epoch));
        }
        true
    }

    /// Voids all items that are assigned to a job and not taken.
    fn void(&mut self, id: u64) {
        // Some minibatches of the next epoch may be in preparation already, and the epoch begins anew. Their samples
        // must neither be exchanged for those of the new minibatches nor be replaced by samples of the epoch.
        let begun = self.in_preparation.iter();
        begun.for_each(|batch| batch.remove_target(JobId(id)));
        if let Some(job) = self.jobs.get_mut(&id) {
            job.ranks.iter_mut().flatten().for_each(Consumer::void);
        }
    }

    /// Returns the number of batches since the job attached, if a rank was given `batches` batches of `epoch`.
    fn since_attached(&self, id: u64, epoch: u64, batches: u64) -> u64 {
        let level = self.jobs.get(&id).map_or((0, 0), |job| job.level);
        if level.0 == epoch {
            batches.saturating_sub(level.1)
        } else {
            batches
        }
    }

    /// Returns the samples that come first in a job's epoch.
    fn carried_over(&self, id: u64) -> Vec<CarriedOver> {
        let carried = self.scheduler.carried_over(JobId(id)).iter();
        let carried = carried.map(|group| CarriedOver {
            epoch: group.epoch,
            before: group.before,
            ids: id_set::serialize(&group.ids),
        });
        carried.collect()
    }

    /// Returns the job's state once every rank has been given `batches` batches of `epoch`.
    ///
    /// # Errors
    /// When that state is not known any more.
    pub(crate) fn state(&self, rank_id: RankId, epoch: u64, batches: u64) -> Result<ResumePoint> {
        let since = self.since_attached(rank_id.job, epoch, batches);
        let state = self.scheduler.state(JobId(rank_id.job), epoch, since);
        let state = state.ok_or_else(|| {
            invalid(format!(
                "the state after {batches} batches of epoch {epoch} is not known any more"
            ))
            .with_remedy("ask for it on every rank at the same step")
        })?;
        Ok(ResumePoint {
            epoch: state.epoch,
            delivered: id_set::serialize(&state.delivered),
            batches,
            is_done: false,
            skipped: Vec::new(),
            carried: Vec::new(),
        })
    }

    /// Answers the ranks that ask to leave an epoch before the one in which the job goes on. All ranks had left it, and
    /// these lost their connections before they were told.
    pub(in crate::stream) fn answer_who_left_before(&mut self, id: u64) {
        let carried = self.carried_over(id);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.forming.is_none()) else {
            return;
        };
        let (epoch, _) = job.level;
        // All items that were published on this connection belong to the epoch that begins.
        let restarted = Reply::Restarted {
            epoch,
            first_seq: 0,
            goes_on: false,
            carried,
        };
        for consumer in job.ranks.iter_mut().flatten() {
            if consumer.leaves.is_some_and(|left| left.epoch < epoch) {
                consumer.tell_restarted(&restarted);
            }
        }
    }

    /// Tells the ranks that `epoch`, which they resume, is over, if nothing was left of it: all ranks but the last were
    /// told that they are in it when they attached.
    pub(in crate::stream) fn end_resumed_epoch(&mut self, id: u64, epoch: u64) {
        let is_over = self
            .scheduler
            .job(JobId(id))
            .is_some_and(|view| view.epoch > epoch);
        let Some(job) = self.jobs.get_mut(&id).filter(|_| is_over) else {
            return;
        };
        for consumer in job.ranks.iter_mut().flatten() {
            consumer.pending.push_back(Pending::EpochEnd { epoch });
        }
    }
}

impl AttachedJob {
    /// Returns the last epoch whose minibatches may be published.
    ///
    /// No rank is given a minibatch of an epoch before every rank that is here has taken all of the one before. So if
    /// the coordinator dies, a rank that is in the earlier epoch lacks nothing of it ([`Engine::join_ranks`] goes on
    /// with the later one). Minibatches that are assigned are ready in the meantime. A job of one rank need not wait
    /// for itself.
    pub(in crate::stream) fn last_epoch(&self) -> u64 {
        let ranks = self.ranks.iter().flatten();
        let oldest = ranks.filter_map(Consumer::oldest_epoch).min();
        oldest.filter(|_| self.ranks.len() > 1).unwrap_or(u64::MAX)
    }

    fn ahead(&self) -> u64 {
        let paces = self.ranks.iter().flatten().map(|c| &c.pace);
        pace::ahead(paces, self.round)
    }
}
