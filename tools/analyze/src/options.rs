//! The options of an analysis.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use coprep_measurement::images::ImageOperators;
use coprep_measurement::usable_cpus;
use coprep_protocol::message::CacheForm;

/// The subject of an analysis, and the setting for which an epoch is predicted.
#[derive(Clone, Debug)]
pub struct AnalysisOptions {
    /// The `coprep` program, which runs the coordinators of the measurements.
    pub program: PathBuf,
    /// The script or the folder to measure.
    pub subject: Subject,
    /// The setting that differs from the defaults.
    pub assumptions: Assumptions,
    /// Seconds of each measurement.
    pub seconds: f64,
}

/// The thing that an analysis measures.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A folder of images, prepared by coprep's own operators.
    Images {
        /// The folder, with one subfolder per class.
        folder: PathBuf,
        /// The operators of the pipeline.
        operators: ImageOperators,
        /// Samples of a batch.
        batch_size: u32,
    },
    /// A training script with its arguments. It uses coprep, and runs unchanged for some seconds.
    Script(Vec<OsString>),
}

/// Assumptions about the present setting. `None` leaves a value at its default, or as it was in an earlier report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assumptions {
    /// Processors that prepare. Measurements use as many.
    pub cpus: Option<u32>,
    /// Bytes that the caches may take.
    pub cache_bytes: Option<u64>,
    /// Form of cached samples.
    pub form: Option<CacheForm>,
    /// Jobs at the same time.
    pub jobs: Option<u32>,
    /// `true` if each job has its own loader.
    pub unshared: bool,
    /// Time for which a job computes on each batch. The measured time of a script wins over it.
    pub step_time: Option<Duration>,
    /// Bytes per second that storage reads at most.
    pub storage_bytes_per_s: Option<u64>,
    /// Time that each read of a file takes longer.
    pub storage_latency: Option<Duration>,
}

impl AnalysisOptions {
    /// Returns the number of processors that prepare during the measurements.
    pub(crate) fn cpus(&self) -> u32 {
        self.assumptions.cpus.unwrap_or_else(usable_cpus)
    }
}

impl Subject {
    /// Returns the folder or the command, as one line.
    pub(crate) fn describe(&self) -> String {
        match self {
            Subject::Images { folder, .. } => folder.display().to_string(),
            Subject::Script(command) => {
                let words = command.iter().map(|word| word.to_string_lossy());
                words.collect::<Vec<_>>().join(" ")
            }
        }
    }
}
