//! Samples that could not be prepared, and the notices that jobs get of them.
//!
//! A job either raises them as errors or skips them. A job that skips is told the numbers that a batch lacks. It is
//! told once of each sample that is left out of its epochs, whichever job the sample failed for. So the count is the
//! same in every run: the samples of the job's set that have failed so far.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use coprep_protocol::message::SampleError;
use coprep_scheduler::JobId;
use fail::fail_point;
use roaring::RoaringBitmap;

use crate::connection::reply_queue;
use crate::produce::failure::Failure;
use crate::stream::Drawn;
use crate::stream::batch::PendingBatch;
use crate::stream::consumer::FailureNotice;
use crate::stream::engine::{AttachedJob, Engine};

/// Number of failures whose text is kept for jobs that attach later.
const KEPT_FAILURES: usize = 256;
/// Longest such text, in bytes. Its end is kept, because the end of a traceback says most.
const KEPT_TEXT: usize = 2000;

/// Bytes of errors that may wait to be sent to the jobs of a stream. Beyond it, errors travel without their exception
/// and with only `MOST_TEXT` bytes of their text.
const MOST_UNSENT: usize = 64 << 20;
const MOST_TEXT: usize = 4096;

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
    /// Returns the samples that are left out of a job's epochs because they could not be prepared.
    pub(super) fn left_out(&self, id: JobId) -> RoaringBitmap {
        if self.numbers.are_ids() {
            return self.scheduler.left_out(id);
        }
        match self.jobs.get(&id.0) {
            Some(job) if job.skip_errors => self.failed.clone(),
            _ => RoaringBitmap::new(),
        }
    }

    /// Handles a sample that could not be prepared. Tells the jobs that want to know, and returns another sample for
    /// its place. Where numbers are ids, this is one that all jobs of the minibatch still need, if there is any. Where
    /// samples are drawn with replacement, it is drawn for the same number: the jobs are given that number all the
    /// same, and it stands for another sample in the next epoch.
    pub(crate) fn sample_failed(
        &mut self,
        batch: &Arc<PendingBatch>,
        slot: u32,
        draw: Drawn,
        path: String,
        failure: Failure,
    ) -> Option<Drawn> {
        fail_point!("sample-failed-locked");
        if failure.is_unavailable {
            self.storage_failed(batch, slot, draw, path, failure);
            return None;
        }
        let is_first = self.failed.insert(draw.id);
        if is_first {
            // Without a parent span, because the thread may be serving another job.
            tracing::warn!(
                parent: None,
                stream = self.stream,
                sample = draw.id,
                path,
                stage = failure.stage,
                error = failure.message,
                "a sample failed"
            );
        }
        let tag = self.new_tag();
        let error = self.bounded(failure.of_sample(tag, draw.id, path));
        self.tell_error(batch, slot, draw.number, &error);
        if self.numbers.are_ids() {
            self.scheduler.mark_bad(draw.number);
        }
        if is_first {
            self.tell_skipped(&error);
        }
        if !self.numbers.are_ids() {
            return self.numbers.redraw(&draw, &self.failed);
        }
        let other = self.scheduler.replace(&batch.targets(), draw.number);
        other.map(|other| self.numbers.sample(other))
    }

    /// Tells the jobs of a minibatch that the storage of one of its samples has failed. Nothing is known about the sample,
    /// so jobs that skip bad samples get the error too, and the sample stays in later epochs.
    fn storage_failed(
        &mut self,
        batch: &Arc<PendingBatch>,
        slot: u32,
        draw: Drawn,
        path: String,
        failure: Failure,
    ) {
        tracing::error!(
            parent: None,
            stream = self.stream,
            sample = draw.id,
            path,
            error = failure.message,
            "storage has failed"
        );
        let tag = self.new_tag();
        let error = self.bounded(failure.of_sample(tag, draw.id, path));
        self.tell_error_unless(batch, slot, draw.number, &error, |_| false);
    }

    /// Returns a tag that no notice has had.
    fn new_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Shortens an error if many large ones already wait to be sent.
    fn bounded(&mut self, mut error: SampleError) -> Arc<SampleError> {
        // An error that was sent to all its jobs is dropped, and counts no more.
        self.unsent.retain(|error| error.strong_count() > 0);
        let unsent = self.unsent.iter().filter_map(Weak::upgrade);
        if unsent.map(|e| reply_queue::size(&e)).sum::<usize>() > MOST_UNSENT {
            error.exception.clear();
            let end = error.message.floor_char_boundary(MOST_TEXT);
            error.message.truncate(end);
            error
                .message
                .push_str(" ... [cut by coprep: many large errors wait to be read]");
        }
        let error = Arc::new(error);
        self.unsent.push(Arc::downgrade(&error));
        error
    }

    /// Tells the jobs of a minibatch that one of its samples failed. A job that skips errors gets its number, other
    /// jobs an error.
    fn tell_error(
        &mut self,
        batch: &Arc<PendingBatch>,
        slot: u32,
        number: u32,
        error: &Arc<SampleError>,
    ) {
        self.tell_error_unless(batch, slot, number, error, |job| job.skip_errors);
    }

    /// Tells the jobs of a minibatch that one of its samples failed. A job for which `skips` is true gets its number,
    /// other jobs an error.
    fn tell_error_unless(
        &mut self,
        batch: &Arc<PendingBatch>,
        slot: u32,
        number: u32,
        error: &Arc<SampleError>,
        skips: impl Fn(&AttachedJob) -> bool,
    ) {
        for target in batch.targets() {
            let Some(job) = self.jobs.get_mut(&target.job.0) else {
                continue;
            };
            let skips = skips(job);
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
    fn tell_skipped(&mut self, error: &SampleError) {
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
