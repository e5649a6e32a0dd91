//! Samples that a pipeline of the coordinator's own prepares.

use std::sync::Arc;

use coprep_pipeline::SampleKey;
use coprep_storage::{DetachedRead, ReadBytes};

use crate::observe::preparation_cost::PreparationCost;
use crate::produce::deadline_queue::Deadline;
use crate::produce::failure::Failure;
use crate::produce::native::{Fetched, Recipe};
use crate::produce::threads::{PoolWork, Ready, SourceFile};
use crate::stream::Stream;
use crate::stream::sample::PendingSample;
use coprep_pipeline::Scratch;

/// The work of fetching and preparing one sample.
pub(super) struct PipelineWork {
    sample: PendingSample,
    recipe: Arc<Recipe>,
    fetched: Option<Fetched>,
}

impl PipelineWork {
    pub(super) fn new(sample: PendingSample, recipe: Arc<Recipe>) -> Self {
        PipelineWork {
            sample,
            recipe,
            fetched: None,
        }
    }

    /// Returns when to begin a sample whose data has been read. A sample of unknown cost is fetched as soon as it is
    /// drawn. Its header then predicts the cost, and with it the planned start.
    fn start_when_fetched(&self, expected: Option<f32>) -> Deadline {
        let PendingSample { plan, draw, .. } = &self.sample;
        let was_known = self.recipe.expected(draw.id).is_some();
        match plan.due.filter(|_| !was_known) {
            Some(due) => Stream::start_of_one(due, expected),
            None => plan.start,
        }
    }

    /// Prepares the sample, or the one that replaces it, or leaves a gap.
    fn fill(&mut self, scratch: &mut Scratch) {
        loop {
            match self.prepare(scratch) {
                Ok(cost) => return self.sample.prepared(&cost),
                Err(failure) => {
                    if !self.sample.replace(failure) {
                        return;
                    }
                }
            }
        }
    }

    fn prepare(&mut self, scratch: &mut Scratch) -> Result<PreparationCost, Failure> {
        let fetched = self.fetched.take();
        let PipelineWork { sample, recipe, .. } = self;
        let key = SampleKey {
            seed: sample.stream.config.seed,
            id: sample.draw.id,
            visit: sample.draw.key,
        };
        let cost = recipe.prepare(key, fetched, scratch, sample)?;
        if recipe.dataset.has_labels() {
            let label = recipe.dataset.label(key.id).to_ne_bytes();
            sample.slot().field_mut(1).copy_from_slice(&label);
        }
        Ok(cost)
    }
}

impl PoolWork for PipelineWork {
    fn needs_fetch(&self) -> bool {
        // A sample that nobody wants any more is ended without a read.
        let id = self.sample.draw.id;
        self.sample.drawn_for.is_wanted()
            && (self.recipe.cached_as(id).is_none() || self.recipe.is_to_look(id))
    }

    fn file(&self) -> Option<SourceFile> {
        Some(SourceFile {
            source: self.recipe.read_from,
            sample: self.sample.draw.id,
        })
    }

    fn is_to_cache(&self) -> bool {
        self.recipe.is_to_admit(self.sample.draw.id)
    }

    fn may_detach(&self) -> bool {
        self.recipe.may_detach(self.sample.draw.id)
    }

    fn expected_bytes(&self) -> Option<u64> {
        self.recipe.dataset.listed_len(self.sample.draw.id)
    }

    fn detached_read(&mut self) -> Option<DetachedRead> {
        if !self.needs_fetch() {
            return None;
        }
        let read = self.recipe.detached_read(self.sample.draw.id)?;
        self.sample.time_runs(true);
        Some(read)
    }

    fn is_intact(&self, arrived: &ReadBytes) -> bool {
        self.recipe.is_intact(self.sample.draw.id, arrived)
    }

    fn fetch(&mut self, arrived: Option<ReadBytes>) -> Ready {
        let id = self.sample.draw.id;
        let has_looked = self.recipe.look(id);
        // The sample may have been cached since the work was submitted.
        if self.needs_fetch() {
            self.sample.time_runs(true);
            let is_looking = self.sample.plan.due.is_some();
            let fetched = self.recipe.fetch_ahead(id, is_looking, arrived);
            // A failed read is repeated when the sample's turn comes, and reported then.
            self.fetched = fetched.ok();
        }
        self.sample.time_runs(false);
        let fetched = self.fetched.as_ref();
        let expected = fetched.and_then(|f| f.expected);
        Ready {
            due: self.start_when_fetched(expected),
            at_work: fetched.map_or(0.0, |f| f.at_work),
            bytes: fetched.map_or(0, |f| f.bytes),
            is_answered: has_looked || fetched.is_some_and(|f| f.bytes > 0),
            is_unread: fetched.is_none() && self.needs_fetch(),
        }
    }

    fn run(mut self: Box<Self>, scratch: &mut Scratch) {
        if self.sample.start() {
            self.fill(scratch);
        }
        self.sample.end();
    }
}
