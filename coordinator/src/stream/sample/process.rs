//! Samples that a worker process makes by the jobs' own code.

use std::sync::Arc;

use coprep_costs::MeasuredTimes;
use coprep_protocol::code::{SampleRequest, Together};
use coprep_protocol::message::CacheForm;
use coprep_shared_memory::task_table::TaskHandle;

use crate::caches::DatasetCache;
use crate::observe::preparation_cost::PreparationCost;
use crate::produce::processes::{Begin, LargeRoom, Task, TaskEstimate, TaskOutcome};
use crate::produce::producer::UserCodeStore;
use crate::stream::sample::prepared_cache::Restored;
use crate::stream::sample::{Destination, PendingSample};

/// The work of making one sample in a worker process.
pub(super) struct ProcessWork {
    sample: PendingSample,
    store: Arc<UserCodeStore>,
}

impl ProcessWork {
    pub(super) fn new(sample: PendingSample, store: Arc<UserCodeStore>) -> Self {
        ProcessWork { sample, store }
    }

    /// Returns the visit that keys the sample's random numbers. A prepared sample has the same one in all visits that
    /// it is used for.
    fn visit(&self) -> u64 {
        let PendingSample { stream, draw, .. } = &self.sample;
        let key = &stream.config.key;
        match (key.cache, u64::from(key.reuse)) {
            (CacheForm::Prepared, 0) => 0,
            // Draws cannot have this, because a prepared sample is used as often as it is drawn.
            (CacheForm::Prepared, times) => draw.visit / times * times,
            _ => draw.key,
        }
    }

    /// Records that a worker has written the slot.
    fn made(&mut self, times: MeasuredTimes, blob: u64) {
        let cost = PreparationCost::from(times);
        self.store.costs.record(self.sample.draw.id, &cost);
        if let Some(cache) = &self.store.prepared {
            self.sample.keep_prepared(cache, blob);
        }
        self.sample.prepared(&cost);
    }
}

impl Task for ProcessWork {
    fn begin(&mut self) -> Begin {
        if !self.sample.is_started() {
            return Begin::Over(TaskOutcome::Unwanted);
        }
        if let Some(ends) = self.sample.known_end() {
            // The batch was drawn before the end of its epoch was known. The reader need not be asked.
            return Begin::Over(TaskOutcome::Failed(ends));
        }
        // The sample may have been made meanwhile, for an earlier minibatch.
        match self.sample.restore(self.store.prepared.as_deref()) {
            Restored::Whole(times) => Begin::Over(TaskOutcome::Found(times)),
            Restored::NoRoom(LargeRoom::Unwanted) => Begin::Over(TaskOutcome::Unwanted),
            // A worker can wait until there is room for it.
            Restored::Absent | Restored::NoRoom(_) => Begin::Make,
        }
    }

    fn request(&self) -> SampleRequest {
        SampleRequest {
            id: self.sample.draw.id,
            slot: match &self.sample.destination {
                Destination::Bound(bound_slot) => {
                    Some((bound_slot.batch.buffer, bound_slot.slot.slot()))
                }
                _ => None,
            },
            is_offered: false,
            keep: false,
            visit: self.visit(),
            cached: (0, 0),
        }
    }

    fn together(&self) -> Option<&Arc<Together>> {
        self.sample.drawn_for.together.as_ref()
    }

    fn lasting_id(&self) -> Option<u32> {
        (!self.sample.is_iterated()).then_some(self.sample.draw.id)
    }

    fn estimate(&self) -> TaskEstimate {
        let id = self.sample.draw.id;
        let seconds = self.store.expected(id);
        let budget = self.store.costs.budget();
        let is_kept = |cache: &DatasetCache| !cache.store.has(id) && cache.may_admit(id);
        TaskEstimate {
            seconds,
            is_quick: seconds.zip(budget).is_some_and(|(s, budget)| s <= budget),
            is_kept: self.store.cache().is_some_and(|cache| is_kept(cache)),
        }
    }

    fn offer(&mut self, given: &TaskHandle) -> Option<(u32, u32)> {
        match self.sample.destination {
            Destination::LateBound(binding) => self.sample.stream.offer(binding, given.clone()),
            _ => None,
        }
    }

    fn put_back(&mut self) {
        self.sample.time_runs(false);
        self.sample.forget_large();
    }

    fn bind(&mut self, is_about_to_write: bool) -> (u32, u32) {
        if is_about_to_write {
            self.sample.claim();
        }
        let bound_slot = self.sample.bound_slot();
        (bound_slot.batch.buffer, bound_slot.slot.slot())
    }

    fn room(&mut self, bytes: u64) -> LargeRoom {
        self.sample.room_for(bytes)
    }

    fn finish(mut self: Box<Self>, outcome: TaskOutcome) {
        match outcome {
            TaskOutcome::Made { times, blob } => {
                self.sample.readers_go_on();
                self.made(times, blob);
                self.sample.end();
            }
            TaskOutcome::Found(times) => {
                self.sample.prepared(&times.into());
                self.sample.end();
            }
            TaskOutcome::Failed(failure) if self.sample.is_beyond_end(&failure) => {
                self.sample.end();
            }
            TaskOutcome::Failed(failure) => self.sample.fail(failure),
            TaskOutcome::EndedWorkers(failure) => {
                self.sample.readers_ended();
                self.sample.fail(failure);
            }
            TaskOutcome::Unwanted => self.sample.end(),
            TaskOutcome::Dropped => self.sample.abandon(),
        }
    }
}
