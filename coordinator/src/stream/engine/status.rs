//! The status of a stream's jobs, and the waits of its consumers.

use std::time::Instant;

use coprep_protocol::message::{JobStatus, Stalls};
use coprep_scheduler::JobId;
use coprep_shared_memory::handover::Account;

use crate::stream::consumer::Consumer;
use crate::stream::engine::{AttachedJob, Engine};

impl Engine {
    /// Returns the waits of all jobs since the stream was opened, by cause.
    pub(crate) fn stalls(&self) -> Stalls {
        let here = self
            .jobs
            .values()
            .flat_map(|job| job.ranks.iter().flatten());
        let here = stalls(here.map(|c| c.sender.account()));
        let gone = &self.stalls_of_gone;
        Stalls {
            fetch_s: gone.fetch_s + here.fetch_s,
            prep_s: gone.prep_s + here.prep_s,
            others_s: gone.others_s + here.others_s,
            open_s: here.open_s,
        }
    }

    pub(crate) fn status(&self) -> Vec<JobStatus> {
        self.jobs
            .iter()
            .map(|(&id, job)| self.job_status(id, job))
            .collect()
    }

    fn job_status(&self, id: u64, job: &AttachedJob) -> JobStatus {
        let view = self.scheduler.job(JobId(id));
        let consumers = || job.ranks.iter().flatten();
        let accounts = || consumers().map(|c| c.sender.account());
        let idle = consumers()
            .map(|c| c.last_taken)
            .max()
            .unwrap_or_else(Instant::now)
            .elapsed();
        JobStatus {
            id,
            name: job.name.clone(),
            pids: consumers().map(|c| c.pid).collect(),
            batch_size: job.batch_size,
            epoch: view.as_ref().map_or(0, |v| v.epoch),
            need: view.as_ref().map_or(0, |v| v.need),
            samples: view.as_ref().map_or(0, |v| v.samples),
            delivered: job.delivered,
            queued: (0..job.ranks.len() as u32)
                .map(|r| view.as_ref().map_or(0, |v| v.queued(r)))
                .sum(),
            held: consumers().map(Consumer::buffers_held).sum(),
            skipped: self.left_out(JobId(id)).len(),
            idle_s: idle.as_secs_f64(),
            // Clients write these numbers, so the sum must not overflow.
            batches: accounts().map(|a| a.batches).fold(0, u64::saturating_add),
            age_s: job.came.elapsed().as_secs_f64(),
            stalls: stalls(accounts()),
        }
    }
}

/// Sums the waits that consumers report.
fn stalls(accounts: impl Iterator<Item = Account>) -> Stalls {
    let mut sum = Stalls::default();
    accounts.for_each(|account| add_stalls(&mut sum, &account));
    sum
}

pub(super) fn add_stalls(sum: &mut Stalls, account: &Account) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    sum.fetch_s += seconds(account.fetch_ns);
    sum.prep_s += seconds(account.prep_ns);
    sum.others_s += seconds(account.others_ns);
    sum.open_s += seconds(account.open_ns);
}
