//! What makes the samples of a stream.

use std::sync::Arc;

use coprep_protocol::spec::{Dtype, Field, NUMBER};

use crate::caches::DatasetCache;
use crate::observe::costs::Costs;
use crate::observe::stalls::StallClock;
use crate::produce::native::Recipe;
use crate::produce::processes::ProcessPool;
use crate::produce::threads::ThreadPool;

/// See the module.
pub(crate) enum Producer {
    /// Threads of the coordinator, by a pipeline of its own.
    Native(Recipe),
    /// Processes of the jobs' own code.
    ProcessPool {
        process_pool: Arc<ProcessPool>,
        samples: u32,
        /// Without the index.
        fields: Vec<Field>,
        structure: Vec<u8>,
        /// What the workers have made, as it lies in a slot.
        prepared: Option<Arc<DatasetCache>>,
        /// What is cached before the random part.
        kept: Option<Arc<DatasetCache>>,
        costs: Arc<Costs>,
    },
    /// The jobs themselves: they are given ids and visits.
    Jobs { samples: u32 },
}

/// Field that keys the random numbers of a sample that a job makes itself.
const VISIT: &str = "visit";

/// Returns the last fields of a batch: ids, and numbers of the epoch where these are not the ids.
pub(crate) fn naming_fields(numbers_are_ids: bool) -> Vec<Field> {
    let mut fields = vec![scalar("index")];
    if !numbers_are_ids {
        fields.push(scalar(NUMBER));
    }
    fields
}

fn scalar(name: &str) -> Field {
    Field {
        name: name.into(),
        dtype: Dtype::I64,
        shape: Vec::new(),
    }
}

impl Producer {
    pub(crate) fn samples(&self) -> u32 {
        match self {
            Producer::Native(recipe) => recipe.dataset.len(),
            Producer::ProcessPool { samples, .. } | Producer::Jobs { samples } => *samples,
        }
    }

    pub(crate) fn classes(&self) -> &[String] {
        match self {
            Producer::Native(recipe) => recipe.dataset.classes(),
            _ => &[],
        }
    }

    /// File of a sample; empty for user code.
    pub(crate) fn path(&self, id: u32) -> String {
        match self {
            Producer::Native(recipe) => recipe.dataset.path(id).display().to_string(),
            _ => String::new(),
        }
    }

    /// How a job makes batches of the fields.
    pub(crate) fn structure(&self) -> &[u8] {
        match self {
            Producer::ProcessPool { structure, .. } => structure,
            _ => &[],
        }
    }

    /// Fields that it makes.
    pub(crate) fn made(&self) -> Vec<Field> {
        match self {
            Producer::Native(recipe) => vec![recipe.pipeline.output(), scalar("label")],
            Producer::ProcessPool { fields, .. } => fields.clone(),
            Producer::Jobs { .. } => vec![scalar(VISIT)],
        }
    }

    /// Fields of a batch: those that it makes, then what the samples are.
    pub(crate) fn fields(&self, numbers_are_ids: bool) -> Vec<Field> {
        let mut fields = self.made();
        fields.extend(naming_fields(numbers_are_ids));
        fields
    }

    /// None: what the jobs make is not measured.
    pub(crate) fn costs(&self) -> Option<&Arc<Costs>> {
        match self {
            Producer::Native(recipe) => Some(&recipe.costs),
            Producer::ProcessPool { costs, .. } => Some(costs),
            Producer::Jobs { .. } => None,
        }
    }

    /// Seconds that a sample will take a worker, as it is cached now. None: it was never made.
    pub(crate) fn expected(&self, id: u32) -> Option<f32> {
        match self {
            Producer::Native(recipe) => recipe.costs.expected(id, recipe.cached_as(id)),
            Producer::ProcessPool {
                costs,
                prepared,
                kept,
                ..
            } => {
                let cache = prepared.as_ref().or(kept.as_ref());
                costs.expected(id, cache.and_then(|c| c.store.form(id)))
            }
            Producer::Jobs { .. } => Some(0.0),
        }
    }

    pub(crate) fn cache(&self) -> Option<&Arc<DatasetCache>> {
        match self {
            Producer::Native(recipe) => recipe.cache.as_ref(),
            Producer::ProcessPool { prepared, kept, .. } => prepared.as_ref().or(kept.as_ref()),
            Producer::Jobs { .. } => None,
        }
    }

    /// What was lacking until now.
    pub(crate) fn stall_clock(&self, workers: &ThreadPool) -> StallClock {
        match self {
            Producer::ProcessPool {
                process_pool,
                prepared: None,
                ..
            } => process_pool.stall_clock(),
            // What is cached as it is delivered needs no crew.
            Producer::ProcessPool { process_pool, .. } => {
                process_pool.stall_clock().with(workers.stall_clock())
            }
            Producer::Native(_) | Producer::Jobs { .. } => workers.stall_clock(),
        }
    }

    pub(crate) fn process_pool(&self) -> Option<&Arc<ProcessPool>> {
        match self {
            Producer::ProcessPool { process_pool, .. } => Some(process_pool),
            _ => None,
        }
    }
}
