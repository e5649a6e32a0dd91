//! Forfeited samples: a rank that left its job would have been given them, so nobody is.

use roaring::RoaringBitmap;

use crate::draw::{self, DrawKey};
use crate::job::Job;
use crate::{Behind, DrawOrder, Error, JobSpec, Resume, Scheduler};

/// Salt of the draw of forfeited samples, so that it differs from the draws of the samples that are given.
const FORFEITED: u64 = 0x666f_7266_6569_7431;

impl Scheduler {
    /// Makes a job whose epoch lacks the forfeited samples. Nothing is forfeited if the rest could not be assigned to
    /// the ranks.
    pub(crate) fn job_behind(&self, spec: &JobSpec, behind: Behind<'_>) -> Result<Job, Error> {
        if behind.forfeited > 0 {
            let rest = self.without_forfeited(spec, behind.forfeited);
            if let Ok(job) = Job::new(&rest, behind, &self.all, &self.known) {
                return Ok(job);
            }
        }
        Job::new(spec, behind, &self.all, &self.known)
    }

    fn without_forfeited(&self, spec: &JobSpec, count: u64) -> JobSpec {
        let mut resume = spec.resume.clone().unwrap_or_default();
        let mut left = spec.subset.as_ref().unwrap_or(&self.all) - &resume.delivered;
        if spec.skip_bad {
            left -= &self.known.bad | &resume.bad;
        }
        resume.delivered |= self.forfeited(&left, count, &resume);
        JobSpec {
            resume: Some(resume),
            ..spec.clone()
        }
    }

    fn forfeited(&self, left: &RoaringBitmap, count: u64, resume: &Resume) -> RoaringBitmap {
        let key = DrawKey {
            seed: self.config.seed,
            epoch: resume.epoch,
            position: resume.delivered.len(),
            salt: FORFEITED,
        };
        match self.config.order {
            DrawOrder::Random => draw::any_of(left, count, key),
            // A rank's ids must ascend, so the lowest ones are forfeited.
            DrawOrder::Ascending | DrawOrder::AscendingInCommon => {
                left.iter().take(count as usize).collect()
            }
        }
    }
}
