//! Explanations for a consumer that has waited too long: the cause of the wait, and its duration.

use coprep_protocol::message::Awaited;
use coprep_scheduler::JobId;

use crate::stream::engine::{AttachedJob, Engine};
use crate::stream::{RankId, StreamConfig};

/// Returns one paragraph for a person.
pub(crate) fn explain(
    engine: &Engine,
    rank_id: RankId,
    free: u32,
    config: &StreamConfig,
) -> String {
    let Some(job) = engine.jobs.get(&rank_id.job) else {
        return "the job is not attached any more".into();
    };
    if job.forming.is_some() {
        return missing_ranks(job);
    }
    let mut lines = Vec::new();
    if let Some(text) = engine.scheduler.cohort_waits(JobId(rank_id.job)) {
        lines.push(text);
    }
    lines.push(preparation(engine));
    lines.push(format!("{free} staging buffers are free"));
    lines.extend(holders(engine));
    format!(
        "stream {} ({}): {}",
        config.id,
        config.dataset_name,
        lines.join("; ")
    )
}

/// Returns the cause of a wait if others cause it: a rank of the job, or its cohort.
pub(crate) fn who_is_awaited(engine: &Engine, rank_id: RankId) -> Option<Awaited> {
    let job = engine.jobs.get(&rank_id.job)?;
    let (what, remedy) = if job.forming.is_some() {
        (
            format!("{} not attached", ranks(job, |rank| job.awaits(rank))),
            ALL_RANKS,
        )
    } else if is_leaving(job, rank_id) {
        let consumer = |rank: usize| job.ranks[rank].as_ref();
        let stays = |rank| consumer(rank).is_some_and(|c| c.leaves.is_none());
        (
            format!("{} not left the epoch", ranks(job, stays)),
            ALL_LEAVE,
        )
    } else {
        (engine.scheduler.cohort_waits(JobId(rank_id.job))?, COHORT)
    };
    Some(Awaited {
        what,
        for_ms: 0,
        remedy: remedy.into(),
    })
}

impl Engine {
    /// Returns `true` if a job of this group waits for some of its ranks.
    pub(in crate::stream) fn awaits_ranks_of(&self, group: &str) -> bool {
        let mut jobs = self.jobs.values();
        jobs.any(|job| job.group == group && job.forming.is_some() && job.ranks.len() > 1)
    }
}

const ALL_RANKS: &str =
    "a loader that only one rank uses needs rank=0, world_size=1; else let all ranks iterate";
const ALL_LEAVE: &str = "let all ranks leave an epoch early (break) at the same batch, or none";
const COHORT: &str = "start all jobs of the cohort and let all of them iterate, or give cohort_size the number of \
                      those there are";

fn is_leaving(job: &AttachedJob, rank_id: RankId) -> bool {
    let rank = job.ranks.get(rank_id.rank as usize);
    rank.and_then(Option::as_ref)
        .is_some_and(|consumer| consumer.leaves.is_some())
}

/// Names the ranks of a job that `which` selects, as in `rank 1 of 2 of this job has`.
fn ranks(job: &AttachedJob, which: impl Fn(usize) -> bool) -> String {
    let numbers = numbers(job, which);
    let (noun, verb) = match numbers.len() {
        1 => ("rank", "has"),
        _ => ("ranks", "have"),
    };
    let of = job.ranks.len();
    format!("{noun} {} of {of} of this job {verb}", numbers.join(", "))
}

fn numbers(job: &AttachedJob, which: impl Fn(usize) -> bool) -> Vec<String> {
    let those = (0..job.ranks.len()).filter(|&rank| which(rank));
    those.map(|rank| rank.to_string()).collect()
}

fn missing_ranks(job: &AttachedJob) -> String {
    let missing = numbers(job, |rank| job.awaits(rank));
    format!(
        "waiting for rank {} of {} to attach",
        missing.join(", "),
        job.ranks.len()
    )
}

fn preparation(engine: &Engine) -> String {
    match engine.in_preparation.first() {
        None => "nothing is being prepared".into(),
        Some(oldest) => format!(
            "{} minibatches are being prepared, the oldest for {:.1} s with {} samples to go",
            engine.in_preparation.len(),
            oldest.drawn.elapsed().as_secs_f64(),
            oldest.slots_remaining()
        ),
    }
}

fn holders(engine: &Engine) -> Vec<String> {
    let held = |job: &AttachedJob| {
        job.ranks
            .iter()
            .flatten()
            .map(|c| c.buffers_held())
            .sum::<u32>()
    };
    let lines = engine.jobs.iter().filter(|(_, job)| held(job) > 0);
    lines
        .map(|(id, job)| format!("job {id} ({}) holds {}", job.name, held(job)))
        .collect()
}
