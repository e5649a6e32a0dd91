//! A job's epochs: its ranks begin them, leave them early, meet at their borders, and ask for their state.

use std::time::Instant;

use coprep_protocol::id_set;
use coprep_protocol::message::ResumePoint;
use coprep_scheduler::JobId;

use crate::Result;
use crate::error::invalid;
use crate::stream::RankId;
use crate::stream::consumer::{Consumer, Pending};
use crate::stream::engine::{AttachedJob, Engine};
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

    pub(crate) fn restart_epoch(&mut self, rank_id: RankId, epoch: u64) {
        if let Some(consumer) = self.consumer(rank_id) {
            consumer.leaves = Some(epoch);
        }
        self.answer_who_left_before(rank_id.job);
        self.restart_if_all_ask(rank_id.job);
    }

    /// Begins the next epoch if all ranks that are here have left the one before.
    pub(in crate::stream) fn restart_if_all_ask(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let is_running = job.forming.is_none() && !job.is_over;
        if !is_running || job.ranks.iter().flatten().any(|c| c.leaves.is_none()) {
            return;
        }
        self.scheduler.restart_epoch(JobId(id));
        // Some minibatches of the next epoch may be in preparation already, and the epoch begins anew. Their samples
        // must neither be exchanged for those of the new minibatches nor be replaced by samples of the epoch.
        let begun = self.in_preparation.iter();
        begun.for_each(|batch| batch.remove_target(JobId(id)));
        let view = self.scheduler.job(JobId(id));
        let epoch = view.map_or(0, |view| view.epoch);
        job.set_absent(false);
        for consumer in job.ranks.iter_mut().flatten() {
            consumer.void();
            consumer.pace.leave();
            consumer.tell_restarted(epoch, consumer.next_seq());
        }
    }

    /// Returns the job's state once every rank has been given `batches` batches of `epoch`.
    ///
    /// # Errors
    /// When that state is not known any more.
    pub(crate) fn state(&self, rank_id: RankId, epoch: u64, batches: u64) -> Result<ResumePoint> {
        let level = self.jobs.get(&rank_id.job).map_or((0, 0), |job| job.level);
        let since = if level.0 == epoch {
            batches.saturating_sub(level.1)
        } else {
            batches
        };
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
        })
    }

    /// Answers the ranks that ask to leave an epoch before the one in which the job goes on. All ranks had left it, and
    /// these lost their connections before they were told.
    pub(in crate::stream) fn answer_who_left_before(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.forming.is_none()) else {
            return;
        };
        let (epoch, _) = job.level;
        for consumer in job.ranks.iter_mut().flatten() {
            if consumer.leaves.is_some_and(|left| left < epoch) {
                // All items that were published on this connection belong to the epoch that begins.
                consumer.tell_restarted(epoch, 0);
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
