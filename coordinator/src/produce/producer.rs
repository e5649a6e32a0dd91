//! The producer of a stream's samples.

use std::sync::Arc;

use coprep_protocol::spec::{Dtype, Field, NUMBER};

use crate::caches::DatasetCache;
use crate::observe::costs::Costs;
use crate::observe::stalls::StallClock;
use crate::produce::native::Recipe;
use crate::produce::processes::ProcessPool;
use crate::produce::threads::ThreadPool;

/// Producer of a stream's samples.
pub(crate) enum Producer {
    /// Threads of the coordinator, by a pipeline of the coordinator's own.
    Native(Arc<Recipe>),
    /// Processes of the jobs' own code.
    ProcessPool {
        process_pool: Arc<ProcessPool>,
        samples: u32,
        /// The fields that the workers write, without the index.
        fields: Vec<Field>,
        structure: Vec<u8>,
        /// `true` if the dataset is asked for the samples of a minibatch together.
        at_once: bool,
        store: Arc<UserCodeStore>,
    },
    /// The jobs themselves, which are given ids and visits.
    Jobs { samples: u32 },
}

/// The caches and the costs of the samples of user code. At most one of the caches is in use.
pub(crate) struct UserCodeStore {
    /// Cache of samples as the workers write them to a slot.
    pub(crate) prepared: Option<Arc<DatasetCache>>,
    /// Cache of values before the random part.
    pub(crate) kept: Option<Arc<DatasetCache>>,
    pub(crate) costs: Arc<Costs>,
}

impl UserCodeStore {
    pub(crate) fn cache(&self) -> Option<&Arc<DatasetCache>> {
        self.prepared.as_ref().or(self.kept.as_ref())
    }

    /// Returns the seconds that a sample will take a worker, as it is cached now, or `None` if it was never prepared.
    pub(crate) fn expected(&self, id: u32) -> Option<f32> {
        let meta = self.cache().and_then(|cache| cache.store.meta(id));
        self.costs.expected(id, meta.map(|meta| meta.form))
    }

    /// Returns `true` if the sample is cached as a worker wrote it.
    pub(crate) fn has_prepared(&self, id: u32) -> bool {
        let prepared = self.prepared.as_ref();
        prepared.is_some_and(|cache| cache.store.has(id))
    }
}

/// Name of the field that keys the random numbers of a sample that a job prepares itself.
const VISIT: &str = "visit";

/// Returns the last fields of a batch: the ids, and the samples' numbers in the epoch where these differ from the ids.
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

    /// Returns `true` if the samples of a minibatch are asked for together.
    pub(crate) fn is_at_once(&self) -> bool {
        matches!(self, Producer::ProcessPool { at_once: true, .. })
    }

    /// Returns the file of a sample; empty for user code.
    pub(crate) fn path(&self, id: u32) -> String {
        match self {
            Producer::Native(recipe) => recipe.dataset.path(id).display().to_string(),
            _ => String::new(),
        }
    }

    /// Returns the description of how a job builds batches from the fields; empty except for user code.
    pub(crate) fn structure(&self) -> &[u8] {
        match self {
            Producer::ProcessPool { structure, .. } => structure,
            _ => &[],
        }
    }

    /// Returns the fields that the producer writes.
    pub(crate) fn made(&self) -> Vec<Field> {
        match self {
            Producer::Native(recipe) => {
                let label = recipe.dataset.has_labels().then(|| scalar("label"));
                [recipe.pipeline.output()]
                    .into_iter()
                    .chain(label)
                    .collect()
            }
            Producer::ProcessPool { fields, .. } => fields.clone(),
            Producer::Jobs { .. } => vec![scalar(VISIT)],
        }
    }

    /// Returns the fields of a batch: first the fields that the producer writes, then the naming fields.
    pub(crate) fn fields(&self, numbers_are_ids: bool) -> Vec<Field> {
        let mut fields = self.made();
        fields.extend(naming_fields(numbers_are_ids));
        fields
    }

    /// Returns the bytes of the parts of shards and the row groups that are in memory for their samples.
    pub(crate) fn block_bytes(&self) -> u64 {
        match self {
            Producer::Native(recipe) => recipe.block_bytes(),
            _ => 0,
        }
    }

    /// Returns the measured costs, or `None` where the jobs prepare samples themselves, which is not measured.
    pub(crate) fn costs(&self) -> Option<&Arc<Costs>> {
        match self {
            Producer::Native(recipe) => Some(&recipe.costs),
            Producer::ProcessPool { store, .. } => Some(&store.costs),
            Producer::Jobs { .. } => None,
        }
    }

    /// Returns the seconds that a sample will take a worker, as it is cached now, or `None` if it was never prepared.
    pub(crate) fn expected(&self, id: u32) -> Option<f32> {
        match self {
            Producer::Native(recipe) => recipe.expected(id),
            Producer::ProcessPool { store, .. } => store.expected(id),
            Producer::Jobs { .. } => Some(0.0),
        }
    }

    pub(crate) fn cache(&self) -> Option<&Arc<DatasetCache>> {
        match self {
            Producer::Native(recipe) => recipe.cache.as_ref(),
            Producer::ProcessPool { store, .. } => store.cache(),
            Producer::Jobs { .. } => None,
        }
    }

    /// Returns the stall clock until now.
    pub(crate) fn stall_clock(&self, workers: &ThreadPool) -> StallClock {
        match self {
            Producer::ProcessPool {
                process_pool,
                store,
                ..
            } => {
                let stall_clock = process_pool.stall_clock();
                if store.prepared.is_none() {
                    return stall_clock;
                }
                // The coordinator's threads copy samples that are cached as they are delivered, without the process
                // pool.
                stall_clock.with(workers.stall_clock())
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
