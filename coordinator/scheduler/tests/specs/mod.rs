//! The job that tests begin with.

use coprep_scheduler::JobSpec;

/// Returns a job of one rank that takes all samples.
pub(crate) fn spec(batch_size: u32) -> JobSpec {
    JobSpec {
        batch_size,
        world_size: 1,
        drop_last: false,
        subset: None,
        resume: None,
        cohort: None,
        skip_bad: false,
    }
}
