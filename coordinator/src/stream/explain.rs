//! Who is awaited, for what, since when: for a consumer that has waited too long.

use crate::stream::engine::{Engine, Job};
use crate::stream::{Blueprint, Seat};

/// One paragraph for a person.
pub(crate) fn explain(engine: &Engine, seat: Seat, free: u32, blueprint: &Blueprint) -> String {
    let Some(job) = engine.jobs.get(&seat.job) else {
        return "the job is not attached any more".into();
    };
    if job.forming.is_some() {
        return missing_ranks(job);
    }
    let mut lines = Vec::new();
    if let Some(text) = engine
        .scheduler
        .cohort_waits(coprep_scheduler::JobId(seat.job))
    {
        lines.push(text);
    }
    lines.push(preparation(engine));
    lines.push(format!("{free} staging buffers are free"));
    lines.extend(holders(engine));
    format!(
        "stream {} ({}): {}",
        blueprint.id,
        blueprint.dataset_name,
        lines.join("; ")
    )
}

fn missing_ranks(job: &Job) -> String {
    let missing: Vec<String> = (0..job.ranks.len())
        .filter(|&r| job.ranks[r].is_none())
        .map(|r| r.to_string())
        .collect();
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
    let held = |job: &Job| {
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
