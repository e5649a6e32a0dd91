//! Requests to attach: their checks, and their translation for the scheduler.

use std::sync::Arc;

use coprep_protocol::id_set;
use coprep_protocol::message::{Attach, CarriedOver, MOST_CARRIED, MOST_EPOCHS, ResumePoint};
use coprep_scheduler::{self as scheduler, JobSpec};
use roaring::RoaringBitmap;

use crate::Result;
use crate::error::invalid;
use crate::stream::engine::{Engine, orders};

/// Largest number of ranks of a job.
pub(super) const MOST_RANKS: u32 = 4096;
/// Largest number of tokens that a rank presents.
const MOST_TOKENS: usize = 8;

impl Engine {
    /// Checks a request to attach against the stream.
    pub(super) fn check(&self, request: &Attach) -> Result<()> {
        if request.world_size == 0 || request.rank >= request.world_size {
            return Err(invalid(format!(
                "rank {} of world_size {}",
                request.rank, request.world_size
            ))
            .with_remedy("ranks count from 0 to world_size - 1"));
        }
        if request.tokens.len() > MOST_TOKENS {
            return Err(invalid(format!(
                "a rank presents {} tokens, and {MOST_TOKENS} are enough",
                request.tokens.len()
            )));
        }
        if request.world_size > MOST_RANKS {
            return Err(invalid(format!(
                "world_size {} is more than {MOST_RANKS}",
                request.world_size
            )));
        }
        orders::check(request)?;
        if request.subset.is_some() && !self.numbers.are_ids() {
            return Err(invalid("a subset, and draws with replacement")
                .with_remedy("give the samples that are not of the subset a weight of 0"));
        }
        let here = self.dataset_samples;
        if let Some(there) = request.dataset_samples.filter(|&there| there != here) {
            return Err(match request.resume {
                Some(_) => invalid(format!(
                    "the state was taken of a dataset of {there} samples, and this one has {here}"
                ))
                .with_remedy("it cannot be resumed with another dataset"),
                None => invalid(format!(
                    "subset is a boolean mask of {there} elements, and the dataset has {here} samples"
                ))
                .with_remedy("it must have one element for each"),
            });
        }
        Ok(())
    }
}

/// Checks that the ranks of one job ask for the same, except for the samples that they were given.
pub(super) fn agree(first: &JobSpec, other: &JobSpec) -> Result<()> {
    let differs = [
        ("batch_size", first.batch_size != other.batch_size),
        ("drop_last", first.drop_last != other.drop_last),
        ("subset", first.subset != other.subset),
        ("cohort", first.cohort != other.cohort),
        ("on_error", first.skip_bad != other.skip_bad),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(invalid(format!(
            "the ranks of a job must have the same {what}, and this one has another than the first"
        ))
        .with_remedy("if they are ranks of different jobs, give each job a group of its own")),
        None => Ok(()),
    }
}

/// Translates a request to attach for the scheduler.
pub(super) fn job_spec(request: &Attach) -> Result<JobSpec> {
    Ok(JobSpec {
        batch_size: request.batch_size,
        world_size: request.world_size,
        drop_last: request.drop_last,
        subset: request
            .subset
            .as_ref()
            .map(|s| bitmap(s, "subset"))
            .transpose()?,
        resume: request.resume.as_ref().map(resume_of).transpose()?,
        cohort: request.cohort.as_ref().map(|c| scheduler::Cohort {
            name: c.name.clone(),
            size: c.size,
        }),
        skip_bad: request.skip_errors,
    })
}

pub(super) fn resume_of(given: &ResumePoint) -> Result<scheduler::Resume> {
    if given.epoch >= MOST_EPOCHS {
        let why = format!("a state of epoch {}: no job comes so far", given.epoch);
        return Err(invalid(why));
    }
    Ok(scheduler::Resume {
        epoch: given.epoch,
        delivered: bitmap(&given.delivered, "delivered")?,
        bad: if given.skipped.is_empty() {
            RoaringBitmap::new()
        } else {
            bitmap(&given.skipped, "skipped")?
        },
        carried: carried_of(&given.carried)?,
    })
}

fn carried_of(given: &[CarriedOver]) -> Result<Vec<scheduler::CarriedOver>> {
    let is_wrong = |group: &CarriedOver| group.epoch.max(group.before) >= MOST_EPOCHS;
    if given.len() > MOST_CARRIED || given.iter().any(is_wrong) {
        return Err(invalid("a state of an epoch that continues no other one"));
    }
    let group = |group: &CarriedOver| {
        Ok(scheduler::CarriedOver {
            epoch: group.epoch,
            before: group.before,
            ids: Arc::new(bitmap(&group.ids, "carried")?),
        })
    };
    given.iter().map(group).collect()
}

/// Reads a bitmap in Roaring's own format, which is checked while it is read.
fn bitmap(bytes: &[u8], what: &str) -> Result<RoaringBitmap> {
    id_set::deserialize(bytes).map_err(|e| invalid(format!("malformed {what}")).because(e))
}
