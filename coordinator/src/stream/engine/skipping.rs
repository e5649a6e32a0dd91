//! Samples that could not be prepared, and the notices that jobs get of them.
//!
//! A job either raises them as errors or skips them. A job that skips is told the numbers that a batch lacks. It is
//! told once of each sample that is left out of its epochs, whichever job the sample failed for. So the count is the
//! same in every run: the samples of the job's set that have failed so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use coprep_protocol::message::SampleError;
use coprep_scheduler::JobId;
use roaring::RoaringBitmap;

use crate::stream::batch::PendingBatch;
use crate::stream::consumer::FailureNotice;
use crate::stream::engine::Engine;

/// Number of failures whose text is kept for jobs that attach later.
const KEPT_FAILURES: usize = 256;
/// Longest such text, in bytes. Its end is kept, because the end of a traceback says most.
const KEPT_TEXT: usize = 2000;

/// The first failure of each bad sample, for messages to people.
#[derive(Default)]
pub(crate) struct Failures(BTreeMap<u32, SampleError>);

impl Failures {
    /// Keeps a failure, shortened to the parts that a warning needs. Returns the shortened failure.
    fn keep(&mut self, error: &SampleError) -> SampleError {
        let brief = SampleError {
            message: tail(&error.message, KEPT_TEXT).to_owned(),
            exception: Vec::new(),
            ..error.clone()
        };
        if self.0.len() < KEPT_FAILURES {
            self.0.insert(brief.id, brief.clone());
        }
        brief
    }

    /// Returns a failure of one of these samples.
    fn of_one(&self, ids: &RoaringBitmap, tag: u64) -> Option<SampleError> {
        let known = ids.iter().find_map(|id| self.0.get(&id));
        let unknown = || {
            ids.min().map(|id| SampleError {
                tag,
                id,
                path: String::new(),
                stage: "prepare".into(),
                message: "it failed before this job came: the coordinator's log says how".into(),
                worker: String::new(),
                exception: Vec::new(),
            })
        };
        known
            .map(|error| SampleError {
                tag,
                ..error.clone()
            })
            .or_else(unknown)
    }
}

fn tail(text: &str, most: usize) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(most));
    &text[start..]
}

impl Engine {
    /// Tells the jobs of a minibatch that one of its samples failed. A job that skips errors gets its number, other
    /// jobs an error.
    pub(in crate::stream) fn tell_error(
        &mut self,
        batch: &Arc<PendingBatch>,
        slot: u32,
        number: u32,
        error: &Arc<SampleError>,
    ) {
        for target in batch.targets() {
            let Some(job) = self.jobs.get_mut(&target.job.0) else {
                continue;
            };
            let skips = job.skip_errors;
            let failed = || {
                if skips {
                    FailureNotice::LeftOut { number }
                } else {
                    FailureNotice::Raised {
                        number,
                        error: error.clone(),
                        is_told: false,
                    }
                }
            };
            let mut ranks = job.ranks.iter_mut().flatten();
            ranks.any(|consumer| consumer.insert_error(batch, slot, failed()));
        }
    }

    /// Tells all jobs that skip errors of a sample that has just failed for the first time.
    pub(in crate::stream) fn tell_skipped(&mut self, error: &SampleError) {
        let brief = self.failures.keep(error);
        let ids = RoaringBitmap::from([error.id]);
        let leave_out = |id: &u64| self.left_out(JobId(*id)).contains(error.id);
        let told: Vec<u64> = self.jobs.keys().copied().filter(leave_out).collect();
        for id in told {
            if let Some(job) = self.jobs.get_mut(&id) {
                for consumer in job.ranks.iter_mut().flatten() {
                    consumer.insert_skipped(&ids, &brief);
                }
            }
        }
    }

    /// Tells a job that starts of the samples that failed before it attached.
    pub(in crate::stream) fn tell_skipped_before(&mut self, id: u64) {
        let ids = self.left_out(JobId(id));
        let tag = self.new_tag();
        let (Some(example), Some(job)) = (self.failures.of_one(&ids, tag), self.jobs.get_mut(&id))
        else {
            return;
        };
        for consumer in job.ranks.iter_mut().flatten() {
            consumer.insert_skipped(&ids, &example);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(id: u32, message: &str) -> SampleError {
        SampleError {
            tag: 1,
            id,
            path: format!("{id}.jpg"),
            stage: "decode".into(),
            message: message.into(),
            worker: String::new(),
            exception: vec![1, 2],
        }
    }

    #[test]
    fn a_job_that_comes_later_is_told_a_failure_of_its_own_samples() {
        let mut failures = Failures::default();
        failures.keep(&failure(3, "no JPEG"));
        failures.keep(&failure(5, "cut off"));
        let told = failures.of_one(&[5, 9].into(), 7).expect("one is known");
        assert_eq!(
            (told.id, told.tag, told.message.as_str()),
            (5, 7, "cut off")
        );
        assert!(told.exception.is_empty());
        let told = failures.of_one(&[8, 9].into(), 7).expect("its id is known");
        assert_eq!(told.id, 8);
        assert_eq!(failures.of_one(&RoaringBitmap::new(), 7), None);
    }

    #[test]
    fn of_many_failures_and_long_texts_only_so_much_is_kept() {
        let mut failures = Failures::default();
        for id in 0..2000 {
            failures.keep(&failure(id, &"ä".repeat(5000)));
        }
        assert_eq!(failures.0.len(), KEPT_FAILURES);
        assert!(
            failures
                .0
                .values()
                .all(|error| error.message.len() <= KEPT_TEXT)
        );
    }
}
