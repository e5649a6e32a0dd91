//! The origin of a sample, which decides the kind of work that brings the sample into its slot.

use std::sync::Arc;

use crate::produce::deadline_queue::Deadline;
use crate::produce::native::Recipe;
use crate::produce::processes::ProcessPool;
use crate::produce::producer::{Producer, UserCodeStore};
use crate::stream::Stream;
use crate::stream::sample::PendingSample;
use crate::stream::sample::cached::CopyWork;
use crate::stream::sample::pipeline::PipelineWork;
use crate::stream::sample::process::ProcessWork;
use crate::stream::sample::unprepared::{ReplayWork, VisitWork};

/// The origin of a sample. It is decided when the sample is handed to its producer, and again only if that could not
/// deliver it.
enum Origin<'a> {
    /// The slot still has a sample, which is handed over again.
    Slot,
    /// A pipeline of the coordinator's own, which knows whether the sample is in its cache.
    Pipeline(&'a Arc<Recipe>),
    /// The cache of samples as worker processes wrote them.
    PreparedCache(&'a Arc<ProcessPool>, &'a Arc<UserCodeStore>),
    /// A worker process.
    Process(&'a Arc<ProcessPool>, &'a Arc<UserCodeStore>),
    /// The job itself, which is given only the sample's id and visit.
    Job,
}

impl<'a> Origin<'a> {
    fn of(sample: &PendingSample, producer: &'a Producer) -> Self {
        if sample.plan.is_there {
            return Origin::Slot;
        }
        match producer {
            Producer::Native(recipe) => Origin::Pipeline(recipe),
            Producer::ProcessPool {
                process_pool,
                store,
                ..
            } => {
                if store.has_prepared(sample.draw.id) {
                    Origin::PreparedCache(process_pool, store)
                } else {
                    Origin::Process(process_pool, store)
                }
            }
            Producer::Jobs { .. } => Origin::Job,
        }
    }
}

impl Stream {
    /// Hands a sample to its producer, which begins it at `start`.
    pub(in crate::stream) fn assign(&self, start: Deadline, sample: PendingSample) {
        let threads = &self.workers;
        match Origin::of(&sample, &self.config.producer) {
            Origin::Slot => threads.submit(start, Box::new(ReplayWork(sample))),
            Origin::Pipeline(recipe) => {
                let work = PipelineWork::new(sample, recipe.clone());
                threads.submit(start, Box::new(work));
            }
            Origin::PreparedCache(process_pool, store) => {
                let work = CopyWork {
                    sample,
                    process_pool: process_pool.clone(),
                    store: store.clone(),
                };
                threads.submit(start, Box::new(work));
            }
            Origin::Process(process_pool, store) => {
                let work = ProcessWork::new(sample, store.clone());
                process_pool.submit(start, Box::new(work));
            }
            Origin::Job => threads.submit(start, Box::new(VisitWork(sample))),
        }
    }
}
