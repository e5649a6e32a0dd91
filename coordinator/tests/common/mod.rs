//! What the tests of this crate have in common.

use coprep_protocol::message::{Attach, CacheRequest};
use coprep_protocol::spec::PipelineSpec;

/// Returns the request of a job of one rank that shuffles with seed 7 and names nothing else.
pub(crate) fn attach(pipeline: PipelineSpec, batch_size: u32) -> Attach {
    Attach {
        code: None,
        pipeline,
        seed: Some(7),
        seed_hint: None,
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
        departed: Vec::new(),
    }
}
