//! Requests and looks that the tests of this crate have in common.
#![allow(dead_code, reason = "each test uses some of them")]

use coprep_client::Batch;
use coprep_protocol::message::{Attach, CacheRequest};
use coprep_protocol::spec::{PipelineSpec, Source, UserDataset};

/// Returns a pipeline of ids and visits only: the jobs make the samples.
pub(crate) fn numbers(samples: u32) -> PipelineSpec {
    PipelineSpec {
        source: Source::UserCode(UserDataset {
            name: "Numbers".into(),
            samples: Some(samples),
            dataset: Vec::new(),
            rest: Vec::new(),
            split: false,
            in_job: true,
            is_iterated: false,
        }),
        ops: Vec::new(),
    }
}

/// Returns the ids of a batch.
#[expect(unsafe_code, reason = "an array of a batch is known by its address")]
pub(crate) fn ids(batch: &Batch) -> Vec<u32> {
    let arrays = batch.arrays();
    let index = arrays.iter().find(|array| array.name == "index").unwrap();
    let first = index.address() as *const i64;
    // SAFETY: the array has so many elements of this type, and lives until the end of this function.
    let values = (0..index.shape[0]).map(|i| unsafe { first.add(i).read_unaligned() });
    values.map(|id| u32::try_from(id).unwrap()).collect()
}

/// Returns the request of a job of one rank that shuffles with seed 7 and names nothing else.
pub(crate) fn attach(pipeline: PipelineSpec, batch_size: u32) -> Attach {
    Attach {
        code: None,
        pipeline,
        seed: Some(7),
        seed_hint: None,
        draws: None,
        is_told: false,
        knows_order_of: None,
        shuffle: true,
        relaxed: false,
        cache: CacheRequest::default(),
        batch_size,
        drop_last: false,
        rank: 0,
        world_size: 1,
        group: String::new(),
        subset: None,
        resume: None,
        dataset_samples: None,
        cohort: None,
        skip_errors: false,
        tokens: Vec::new(),
        told: None,
        departed: Vec::new(),
        has_begun: false,
    }
}
