//! A predicted epoch, and the setting that it is predicted for.

use serde::{Deserialize, Serialize};

/// Settings that can be varied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// Bytes that the caches may take; 0 for no cache.
    pub(crate) cache_bytes: u64,
    /// Processors that prepare.
    pub(crate) cpus: f64,
    /// Bytes per second of storage; `None` for the measured rate.
    pub(crate) storage_bytes_per_s: Option<f64>,
    /// Jobs at the same time.
    pub(crate) jobs: u32,
    /// `true` if they share one preparation.
    pub(crate) shared: bool,
    /// Form of cached samples: `off`, `encoded`, `decoded`, `prepared`, `auto`.
    pub(crate) form: String,
    /// Speed of the job's own work: 1 as measured, 2 twice as fast.
    pub(crate) gpu_speed: f64,
}

/// The time of one job's epoch, and its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EpochForecast {
    /// Seconds of an epoch, the sum of the three parts.
    pub(crate) epoch_s: f64,
    /// Samples per second that one job takes.
    pub(crate) samples_per_s: f64,
    /// Seconds for which the job does its own work.
    pub(crate) compute_s: f64,
    /// Seconds for which the job waits for storage.
    pub(crate) fetch_stall_s: f64,
    /// Seconds for which the job waits for decode and operators.
    pub(crate) prep_stall_s: f64,
    /// The resource that limits the epoch: more of it would make the epoch shorter.
    pub(crate) bottleneck: Bottleneck,
}

/// The resource that limits an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bottleneck {
    Storage,
    Processors,
    Job,
}

/// A part of an epoch, in the order of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EpochPart {
    Compute,
    FetchStall,
    PrepStall,
}

impl EpochPart {
    pub(crate) const ALL: [EpochPart; 3] = [
        EpochPart::Compute,
        EpochPart::FetchStall,
        EpochPart::PrepStall,
    ];
}

impl EpochForecast {
    /// Returns the seconds of one part.
    pub(crate) fn of(&self, part: EpochPart) -> f64 {
        match part {
            EpochPart::Compute => self.compute_s,
            EpochPart::FetchStall => self.fetch_stall_s,
            EpochPart::PrepStall => self.prep_stall_s,
        }
    }

    /// Returns the parts with the seconds from and to which each reaches when they are stacked.
    pub(crate) fn stack(&self) -> [(EpochPart, f64, f64); 3] {
        let mut from = 0.0;
        EpochPart::ALL.map(|part| {
            let bottom = from;
            from += self.of(part);
            (part, bottom, from)
        })
    }

    /// Checks that the parts add up to the epoch, and that all numbers are finite and not negative.
    ///
    /// # Errors
    /// Returns a sentence about the first violation.
    pub(crate) fn check(&self) -> Result<(), String> {
        let numbers = [
            self.epoch_s,
            self.samples_per_s,
            self.compute_s,
            self.fetch_stall_s,
            self.prep_stall_s,
        ];
        if !numbers.iter().all(|n| n.is_finite() && *n >= 0.0) {
            return Err("a number is negative or not finite".into());
        }
        let sum: f64 = EpochPart::ALL.iter().map(|part| self.of(*part)).sum();
        if (sum - self.epoch_s).abs() > 1e-3 * self.epoch_s.max(1e-6) {
            return Err(format!(
                "its parts are {sum} s together, and epoch_s is {}",
                self.epoch_s
            ));
        }
        Ok(())
    }
}
