//! The distance between the ranks of a job that come back from another stream.

use coprep_protocol::message::ResumePoint;
use coprep_scheduler::{self as scheduler, JobSpec};

use crate::Result;
use crate::error::invalid;
use crate::stream::engine::AttachedJob;

/// Largest number of steps between the ranks of a job that come back. Ranks without any synchronisation between them
/// are apart by the content of their queues.
const MOST_BEHIND: u32 = 4096;
/// The point from which a rank continues.
#[derive(Clone, Copy, Default)]
pub(in crate::stream) struct RankResume {
    epoch: u64,
    /// Number of batches that it was given in the epoch.
    batches: u64,
    /// `true` if it was given all of its part of the epoch.
    is_done: bool,
}

impl RankResume {
    pub(in crate::stream) fn of(resume: &ResumePoint) -> Self {
        RankResume {
            epoch: resume.epoch,
            batches: resume.batches,
            is_done: resume.is_done,
        }
    }
}

/// The distances between the ranks of a job in an epoch that they resume.
pub(in crate::stream) struct RankDistances {
    /// Number of batches that the foremost rank was given.
    pub(in crate::stream) most: u64,
    /// By rank: the number of batches that it must be given first.
    pub(in crate::stream) behind: Vec<u32>,
    /// Number of samples that ranks which left would have been given meanwhile.
    pub(in crate::stream) forfeited: u64,
    /// `true` if a rank was given all of its part.
    pub(in crate::stream) others_are_done: bool,
}

impl AttachedJob {
    /// Returns the ranks that are not attached. If the job has begun, these have left.
    pub(in crate::stream) fn gone(&self) -> Vec<u32> {
        let ranks = (0..).zip(&self.ranks);
        let gone = ranks.filter(|(_, consumer)| consumer.is_none());
        gone.map(|(rank, _)| rank).collect()
    }

    /// Returns the distances between its ranks in `epoch`, which they resume.
    ///
    /// # Errors
    /// When some ranks are too far behind.
    pub(in crate::stream) fn rank_distances(&self, epoch: u64) -> Result<RankDistances> {
        // A rank that resumes another epoch was given nothing of this one.
        let of_epoch = |r: &RankResume| Some(*r).filter(|r| r.epoch == epoch);
        let resumes = || self.resumes.iter().map(of_epoch);
        let given = || resumes().map(|r| r.map_or(0, |r| r.batches));
        let most = given().max().unwrap_or(0);
        let (mut behind, mut forfeited) = (Vec::new(), 0);
        for (rank, n) in (0..).zip(given()) {
            let missed = most - n;
            if self.membership.has_left(rank) {
                forfeited = u64::saturating_add(forfeited, missed);
                behind.push(0);
            } else {
                behind.push(u32::try_from(missed).unwrap_or(u32::MAX));
            }
        }
        if behind.iter().any(|&n| n > MOST_BEHIND) {
            return Err(invalid(format!(
                "the ranks of the job resume from steps that lie more than {MOST_BEHIND} apart"
            ))
            .with_remedy("load states that were taken at the same step"));
        }
        Ok(RankDistances {
            most,
            behind,
            forfeited: forfeited.saturating_mul(u64::from(self.batch_size)),
            others_are_done: resumes().flatten().any(|r| r.is_done),
        })
    }
}

/// Adds the samples that a rank was given to the samples that the job was given. Samples of an earlier epoch do not
/// matter.
pub(in crate::stream) fn merge_resume(forming: &mut JobSpec, resume: &scheduler::Resume) {
    match &mut forming.resume {
        Some(known) if known.epoch == resume.epoch => {
            known.delivered |= &resume.delivered;
            known.bad |= &resume.bad;
            // They are the same for all ranks. One that has come again may not know them.
            if known.carried.is_empty() {
                known.carried.clone_from(&resume.carried);
            }
        }
        Some(known) if known.epoch > resume.epoch => {}
        other => *other = Some(resume.clone()),
    }
}
