//! The ends of epochs of a dataset that can only be iterated.
//!
//! Its samples are batches that a reader counts. The number of batches is known only when a reader says that there are
//! no more. The methods here do nothing for other datasets.

use coprep_protocol::code::Raised;

use crate::produce::failure::Failure;
use crate::stream::Numbers;
use crate::stream::late_binding::BoundSlot;
use crate::stream::sample::PendingSample;

impl PendingSample {
    pub(super) fn is_iterated(&self) -> bool {
        matches!(self.stream.config.numbers, Numbers::Batches)
    }

    /// Returns the failure of a batch behind the end of its epoch, if that end is known by now.
    pub(super) fn known_end(&self) -> Option<Failure> {
        if !self.is_iterated() {
            return None;
        }
        let batches = self.stream.engine().end_of(self.draw.visit);
        let batches = batches.filter(|&batches| self.draw.number >= batches)?;
        Some(Failure::new(Raised::END, batches.to_string()))
    }

    /// Returns `true` if the failure says that there is no such batch, because its epoch ended before it. That leaves a
    /// gap without a report: the end of the epoch is announced separately.
    pub(super) fn is_beyond_end(&mut self, failure: &Failure) -> bool {
        let batches = (failure.stage == Raised::END).then(|| failure.message.parse().ok());
        let Some(batches) = batches.flatten().filter(|_| self.is_iterated()) else {
            return false;
        };
        let BoundSlot {
            batch,
            position,
            slot,
        } = self.bound_slot();
        slot.forget_large();
        batch.mark_bad(*position);
        self.end_epoch(self.draw.number.min(batches));
        true
    }

    /// Records that the epoch has `batches` batches.
    fn end_epoch(&mut self, batches: u32) {
        let stream = &self.stream;
        let batch = &self.destination.bound_slot(stream).batch;
        // Members come and leave under this lock.
        let mut engine = stream.engine();
        // A cohort that has left may have been followed by another, which iterates this epoch anew. That one may end
        // elsewhere, and the first end that is told stands.
        if batch.is_wanted() {
            engine.end_epoch(self.draw.visit, batches);
        }
    }

    /// Records that a batch was made, so that readers get past the batches that ended some.
    pub(super) fn readers_go_on(&self) {
        if self.is_iterated() {
            self.stream.engine().forget_ended_readers();
        }
    }

    /// Handles a batch that has ended the largest allowed number of readers. If another batch did so, too, and none was
    /// made since, no reader gets past this batch, and the epoch ends. Otherwise each later batch would end two more
    /// readers, and there might be no last one.
    pub(super) fn readers_ended(&mut self) {
        if !self.is_iterated() {
            return;
        }
        let (epoch, number) = (self.draw.visit, self.draw.number);
        let other = self.stream.engine().ended_readers(epoch, number);
        if let Some(other) = other {
            // Both are reported, in whichever order they were tried.
            self.end_epoch(number.max(other).saturating_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coprep_costs::MeasuredTimes;
    use coprep_protocol::message::CacheForm;
    use coprep_scheduler::{Cohort, Draw, JobId, JobSpec};
    use coprep_shared_memory::staging::{Filling, StagingPool};

    use super::*;
    use crate::observe::costs::AllCosts;
    use crate::produce::deadline_queue::Deadline;
    use crate::produce::processes::{Begin, Task, TaskOutcome};
    use crate::produce::producer::{Producer, UserCodeStore};
    use crate::produce::threads::ThreadPool;
    use crate::stream::batch::PendingBatch;
    use crate::stream::sample::process::ProcessWork;
    use crate::stream::sample::{Destination, PreparationPlan};
    use crate::stream::{Stream, StreamConfig, StreamKey, layout};

    const MEMBER: JobId = JobId(1);

    /// A stream of an iterated dataset whose only member is in epoch 0. The test keeps all of its buffers, so that
    /// nothing is drawn.
    struct Iterated {
        stream: Arc<Stream>,
        buffers: Vec<Filling>,
        kept: Vec<Arc<PendingBatch>>,
    }

    fn iterated() -> Iterated {
        let producer = Producer::Jobs { samples: 1 };
        let fields = producer.fields(Numbers::Batches.are_ids());
        let pool = StagingPool::create(layout(&fields, 1, None, 1 << 20).unwrap()).unwrap();
        let buffers = std::iter::from_fn(|| pool.allocate()).collect();
        let key = StreamKey {
            pipeline: 1,
            stores: 0,
            shuffle: false,
            shuffle_window: 0,
            cache: CacheForm::Off,
            lru: false,
            reuse: 0,
            relaxed: false,
            draws: 0,
            told: 1,
        };
        let config = StreamConfig {
            id: 1,
            key,
            takes_any_form: false,
            seed: 7,
            numbers: Numbers::Batches,
            producer,
            identity: None,
            dataset_name: String::new(),
            pipeline_text: String::new(),
            spec: None,
            is_replayed: false,
            windows: None,
        };
        let workers = Arc::new(ThreadPool::start(Some(1), false).unwrap());
        let stream = Stream::open(config, pool, workers).unwrap();
        let spec = JobSpec {
            batch_size: 1,
            world_size: 1,
            drop_last: false,
            subset: None,
            resume: None,
            cohort: Some(Cohort {
                name: "c".into(),
                size: 1,
            }),
            skip_bad: false,
        };
        let mut engine = stream.engine();
        engine.scheduler.attach(MEMBER, spec).unwrap();
        engine.scheduler.open_epoch(0);
        drop(engine);
        Iterated {
            stream,
            buffers,
            kept: Vec::new(),
        }
    }

    impl Iterated {
        /// Returns the work for a batch of epoch 0 that `members` members wait for.
        fn batch(&mut self, number: u32, members: u32) -> Box<ProcessWork> {
            let (slots, unfinished) = self.buffers.pop().unwrap().split(1);
            let batch = Arc::new(PendingBatch::new(1, Vec::new(), 1, members, unfinished));
            self.kept.push(batch.clone());
            let bound_slot = BoundSlot {
                batch: batch.clone(),
                slot: slots.into_iter().next().unwrap(),
                position: 0,
            };
            let draw = Numbers::Batches.sample(Draw {
                id: number,
                visit: 0,
            });
            let plan = PreparationPlan {
                start: Deadline::default(),
                due: None,
                is_there: false,
            };
            let sample = PendingSample::new(
                self.stream.clone(),
                Destination::Bound(bound_slot),
                batch,
                draw,
                plan,
            );
            let store = UserCodeStore {
                prepared: None,
                kept: None,
                costs: AllCosts::new(false).of(1, 1),
            };
            Box::new(ProcessWork::new(sample, Arc::new(store)))
        }

        /// Returns the end of epoch 0, as far as it is known, and the number of samples that the scheduler takes it to
        /// have.
        fn length(&self) -> (Option<u32>, u32) {
            let engine = self.stream.engine();
            let view = engine.scheduler.job(MEMBER).unwrap();
            (engine.end_of(0), view.samples)
        }
    }

    fn ends_at(batches: u32) -> TaskOutcome {
        TaskOutcome::Failed(Failure::new(Raised::END, batches.to_string()))
    }

    #[test]
    fn an_end_that_nobody_waits_for_any_more_ends_no_epoch_of_another_cohort() {
        let mut iterated = iterated();
        let open = iterated.length();
        assert_eq!(open.0, None);
        // This batch was drawn for a cohort that has left, which was in epoch 0 as well.
        iterated.batch(3, 0).finish(ends_at(3));
        assert_eq!(iterated.length(), open);
        iterated.batch(7, 1).finish(ends_at(5));
        assert_eq!(iterated.length(), (Some(5), 5));
    }

    #[test]
    fn an_epoch_ends_behind_two_batches_that_ended_their_readers_and_none_is_asked_for_what_comes_then()
     {
        let mut iterated = iterated();
        let open = iterated.length();
        let mut behind = iterated.batch(6, 1);
        assert!(matches!(behind.begin(), Begin::Make));
        assert_eq!(behind.lasting_id(), None);
        let ends_readers = |iterated: &mut Iterated, number| {
            let why = Failure::new("dataset", "the worker that made it was killed".into());
            let batch = iterated.batch(number, 1);
            batch.finish(TaskOutcome::EndedWorkers(why));
            iterated.length()
        };
        assert_eq!(ends_readers(&mut iterated, 2), open);
        iterated.batch(3, 1).finish(TaskOutcome::Made {
            times: MeasuredTimes::default(),
            blob: 0,
        });
        let came_past = "a reader came past the other one";
        assert_eq!(ends_readers(&mut iterated, 5), open, "{came_past}");
        assert_eq!(ends_readers(&mut iterated, 4), (Some(6), 6));
        let begun = behind.begin();
        assert!(matches!(begun, Begin::Over(TaskOutcome::Failed(end)) if end.stage == Raised::END));
        behind.finish(ends_at(6));
    }
}
