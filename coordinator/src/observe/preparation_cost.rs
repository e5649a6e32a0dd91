//! The cost of one preparation of a sample.

use coprep_costs::{Features, MeasuredTimes};
use coprep_pipeline::PipelineRun;

/// The measured times of one preparation, and the facts that decide how well they predict other preparations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PreparationCost {
    pub(crate) times: MeasuredTimes,
    pub(crate) fetched_bytes: u64,
    pub(crate) features: Features,
    /// `true` if it was decoded in full into the cache, which takes longer than decoding for a slot.
    pub(crate) in_full: bool,
}

impl PreparationCost {
    /// Returns the cost of a preparation from a file of `bytes` bytes, or from pixels that were decoded before.
    pub(crate) fn of(run: &PipelineRun, bytes: usize) -> PreparationCost {
        let features = match run.pixels {
            0 => Features::default(),
            pixels => Features {
                bytes: bytes as u64,
                pixels,
            },
        };
        PreparationCost {
            features,
            ..PreparationCost::from(run.times)
        }
    }

    pub(crate) fn plus(self, other: PreparationCost) -> PreparationCost {
        PreparationCost {
            times: self.times.plus(other.times),
            fetched_bytes: self.fetched_bytes + other.fetched_bytes,
            features: if other.features == Features::default() {
                self.features
            } else {
                other.features
            },
            in_full: self.in_full || other.in_full,
        }
    }
}

impl From<MeasuredTimes> for PreparationCost {
    fn from(times: MeasuredTimes) -> Self {
        PreparationCost {
            times,
            ..PreparationCost::default()
        }
    }
}
