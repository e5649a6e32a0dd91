//! The time that one preparation of a sample took.

use std::time::Duration;

use coprep_costs::{ExpectedCost, Features, MeasuredTimes};
use coprep_pipeline::StageDurations;

/// The cost of one preparation: wall time by stage, and the thread's CPU time of all stages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PreparationCost {
    pub(crate) fetch: Duration,
    pub(crate) decode: Duration,
    pub(crate) fixed: Duration,
    pub(crate) random: Duration,
    pub(crate) cpu: Duration,
    pub(crate) fetched_bytes: u64,
    pub(crate) features: Features,
    /// `true` if it was decoded in full into the cache, which takes longer than decoding for a slot.
    pub(crate) in_full: bool,
}

impl PreparationCost {
    /// Returns the time of decoding and operators.
    pub(crate) fn prep(&self) -> Duration {
        self.decode + self.fixed + self.random
    }

    pub(crate) fn total(&self) -> Duration {
        self.fetch + self.prep()
    }

    pub(crate) fn seconds(&self) -> ExpectedCost {
        ExpectedCost {
            fetch: self.fetch.as_secs_f32(),
            decode: self.decode.as_secs_f32(),
            fixed: self.fixed.as_secs_f32(),
            random: self.random.as_secs_f32(),
            cpu: self.cpu.as_secs_f32(),
        }
    }

    /// Returns the cost of a preparation from a file of `bytes` bytes, or from pixels that were decoded before.
    pub(crate) fn of(stages: &StageDurations, bytes: usize) -> PreparationCost {
        let features = match stages.pixels {
            0 => Features::default(),
            pixels => Features {
                bytes: bytes as u64,
                pixels,
            },
        };
        PreparationCost {
            decode: stages.decode,
            fixed: stages.fixed,
            random: stages.random,
            features,
            ..PreparationCost::default()
        }
    }

    pub(crate) fn plus(self, other: PreparationCost) -> PreparationCost {
        PreparationCost {
            fetch: self.fetch + other.fetch,
            decode: self.decode + other.decode,
            fixed: self.fixed + other.fixed,
            random: self.random + other.random,
            cpu: self.cpu + other.cpu,
            fetched_bytes: self.fetched_bytes + other.fetched_bytes,
            features: if other.features == Features::default() {
                self.features
            } else {
                other.features
            },
            in_full: self.in_full || other.in_full,
        }
    }

    pub(super) fn measured(&self) -> MeasuredTimes {
        // A stage that took no time did not run.
        let ran = |time: Duration| (!time.is_zero()).then_some(time.as_secs_f32());
        MeasuredTimes {
            fetch: ran(self.fetch),
            decode: ran(self.decode),
            fixed: ran(self.fixed),
            random: ran(self.random),
            cpu: ran(self.cpu),
        }
    }
}
