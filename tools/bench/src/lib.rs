//! Compares how fast coprep and PyTorch's DataLoader prepare a folder of images on this machine.
//!
//! All loaders get the same samples, evenly drawn and in the page cache, and the same number of processors. Each job is
//! a process that takes batches and does nothing else. Only batches that come while all jobs run are counted.
//!
//! | module | purpose |
//! |---|---|
//! | `jobs` | starts jobs and measures them |
//! | `consumer` | a job of coprep |
//! | `torch` | a job of PyTorch |
//! | `report` | the results, as JSON and as text |

mod consumer;
mod jobs;
mod report;
mod torch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use coprep_coordinator::{Dataset, Slowness};
pub use coprep_measurement::Result;
use coprep_measurement::images::ImageOperators;
use coprep_measurement::plan::{MeasurementPlan, SampleSource, read_all};
use coprep_measurement::private::PrivateCoordinator;
use coprep_measurement::progress::Progress;
use coprep_measurement::quiet::NEGLIGIBLE_CPUS;
use coprep_measurement::{interrupt, usable_cpus};
use coprep_protocol::spec::{Op, PipelineSpec, Source};

pub use crate::consumer::run_job;
pub use crate::report::{BenchReport, render};

use crate::consumer::ConsumerOrder;
use crate::jobs::{Jobs, JointResult};
use crate::report::{BenchRow, BenchedLoader};
use crate::torch::{Python, TorchOrder};

/// The work that a comparison prepares, and the way in which it is measured.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The `coprep` program, which runs the coordinators of the measurements.
    pub program: PathBuf,
    /// Arguments with which that program calls [`run_job`].
    pub job_arguments: Vec<OsString>,
    /// The folder of images, with one subfolder per class.
    pub folder: PathBuf,
    /// The operators of the pipeline.
    pub operators: ImageOperators,
    /// Samples of a batch.
    pub batch_size: u32,
    /// Processors that prepare. `None` for all that this process may use.
    pub cpus: Option<u32>,
    /// Number of jobs at the same time. One job alone is measured too.
    pub jobs: u32,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// The Python whose torch and torchvision are compared. `None` for the first one that has them.
    pub python: Option<PathBuf>,
}

/// The parts that all measurements share.
struct Bench<'a> {
    options: &'a BenchOptions,
    plan: MeasurementPlan,
    dataset: Dataset,
    /// The samples that are measured.
    part: Vec<u32>,
}

/// A row of the report that is still to be measured.
#[derive(Clone, Copy)]
struct Measurement {
    loader: BenchedLoader,
    jobs: u32,
}

/// Takes all measurements. One that fails becomes a note of the report.
///
/// # Errors
/// If the folder cannot be read, if every measurement fails, or if a signal has come.
pub fn bench(options: &BenchOptions, progress: &mut dyn Progress) -> Result<BenchReport> {
    let plan = plan(options)?;
    let dataset = plan.dataset()?;
    let found = if dataset.is_remote() {
        Err("PyTorch's DataLoader is left out, because it reads no URLs.".to_owned())
    } else if dataset.is_sharded() {
        Err("PyTorch's DataLoader is left out, because it reads no tar shards.".to_owned())
    } else if dataset.is_in_row_groups() {
        Err("PyTorch's DataLoader is left out, because it reads no parquet files.".to_owned())
    } else {
        torch::find(options.python.as_deref())?
    };
    let wanted = measurements(options.jobs, found.is_ok());
    let times = wanted.iter().map(|m| m.seconds(options.seconds));
    progress.plan([1.0].into_iter().chain(times).collect());
    progress.step("how many samples are enough");
    let part = plan.choose_samples(&dataset, progress)?;
    let bench = Bench {
        options,
        plan,
        dataset,
        part,
    };
    let mut report = bench.report(&found);
    for measurement in wanted {
        progress.step(&measurement.name());
        let measured = bench.measure(measurement, found.as_ref().ok(), progress);
        // After Ctrl-C, the failure of a measurement is no result.
        interrupt::check()?;
        match measured {
            Ok(joint) => {
                report.rows.push(row(measurement, &joint));
                report.notes.extend(disturbed(measurement, &joint));
            }
            Err(why) => report.notes.push(format!("{}: {why}.", measurement.name())),
        }
    }
    report.compare();
    if report.rows.is_empty() {
        Err(report.notes.join(" ").into())
    } else {
        Ok(report)
    }
}

/// Describes the work that all loaders prepare, and the conditions of the measurements.
fn plan(options: &BenchOptions) -> Result<MeasurementPlan> {
    Ok(MeasurementPlan {
        program: options.program.clone(),
        spec: pipeline(&options.operators, &options.folder)?,
        batch_size: options.batch_size,
        cpus: options.cpus.unwrap_or_else(usable_cpus),
        storage: Slowness::default(),
        seconds: options.seconds,
    })
}

/// Builds the pipeline that all loaders run.
fn pipeline(operators: &ImageOperators, folder: &Path) -> Result<PipelineSpec> {
    let mut spec = operators.pipeline(folder)?;
    // PyTorch's jobs flip too, in `torch_loader.py`.
    spec.ops.push(Op::RandomHorizontalFlip { p: 0.5 });
    Ok(spec)
}

/// Returns the measurements to take, each once.
fn measurements(jobs: u32, with_torch: bool) -> Vec<Measurement> {
    let one = [
        BenchedLoader::Coprep,
        BenchedLoader::Encoded,
        BenchedLoader::Decoded,
    ]
    .map(|l| (l, 1));
    let all = [
        (BenchedLoader::Coprep, jobs),
        (BenchedLoader::Decoded, jobs),
    ];
    let torch = [(BenchedLoader::Torch, 1), (BenchedLoader::Torch, jobs)];
    let mut wanted: Vec<(BenchedLoader, u32)> = one.into_iter().chain(all).collect();
    wanted.extend(torch.into_iter().filter(|_| with_torch));
    let mut seen = Vec::new();
    // For a single job, some pairs come twice.
    wanted.retain(|pair| !seen.contains(pair) && (seen.push(*pair), true).1);
    let measurement = |(loader, jobs)| Measurement { loader, jobs };
    wanted.into_iter().map(measurement).collect()
}

/// Returns the workers of each of PyTorch's jobs. All jobs together get as many workers as coprep has threads. Where
/// that number cannot be divided, they get more rather than fewer, so that no processor is idle for lack of workers.
fn workers_of_a_job(cpus: u32, jobs: u32) -> u32 {
    cpus.div_ceil(jobs.max(1))
}

/// Returns a note if other programs used the processors.
fn disturbed(measurement: Measurement, joint: &JointResult) -> Option<String> {
    let others = joint.cpus_of_others;
    (others > NEGLIGIBLE_CPUS).then(|| {
        format!(
            "{}: other work took {others:.1} processors meanwhile; measure again when the machine is quiet.",
            measurement.name()
        )
    })
}

fn row(measurement: Measurement, joint: &JointResult) -> BenchRow {
    let rate = joint.samples_per_s;
    BenchRow {
        loader: measurement.loader,
        jobs: measurement.jobs,
        images_per_s: rate,
        images_per_s_per_job: rate / f64::from(measurement.jobs),
        times_pytorch: None,
        cpu_s_per_1000: joint.cpus / rate * 1e3,
    }
}

impl Measurement {
    fn name(self) -> String {
        match self.jobs {
            1 => format!("{}, 1 job", self.loader.name()),
            n => format!("{}, {n} jobs", self.loader.name()),
        }
    }

    /// Returns the approximate seconds of the measurement.
    fn seconds(self, seconds: f64) -> f64 {
        match self.loader {
            // Importing torch takes some seconds of a processor, for each job.
            BenchedLoader::Torch => seconds + 4.0 + 2.0 * f64::from(self.jobs),
            _ => 1.5 * seconds + 0.5,
        }
    }
}

impl Bench<'_> {
    fn report(&self, found: &std::result::Result<Python, String>) -> BenchReport {
        BenchReport {
            format: report::FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            folder: self.root().display().to_string(),
            samples: self.part.len() as u32,
            of_samples: self.dataset.len(),
            pipeline: coprep_coordinator::describe(&self.plan.spec),
            batch_size: self.plan.batch_size,
            cpus: self.plan.cpus,
            jobs: self.options.jobs,
            seconds: self.plan.seconds,
            pytorch: found.as_ref().ok().cloned(),
            rows: Vec::new(),
            notes: found.as_ref().err().cloned().into_iter().collect(),
        }
    }

    /// Returns the dataset's folder as an absolute path.
    fn root(&self) -> &Path {
        match &self.plan.spec.source {
            Source::ImageFolder { root } => Path::new(root),
            _ => &self.options.folder,
        }
    }

    fn measure(
        &self,
        measurement: Measurement,
        python: Option<&Python>,
        progress: &mut dyn Progress,
    ) -> Result<JointResult> {
        // Every loader must find all files in the page cache.
        read_all(&self.dataset, &self.part, progress)?;
        let jobs = measurement.jobs;
        match (measurement.loader, python) {
            (BenchedLoader::Torch, Some(python)) => self.torch(python, jobs, progress),
            (BenchedLoader::Torch, None) => Err("no Python has it".into()),
            (BenchedLoader::Coprep, _) => self.coprep(SampleSource::PageCache, jobs, progress),
            (BenchedLoader::Encoded, _) => self.coprep(SampleSource::Encoded, jobs, progress),
            (BenchedLoader::Decoded, _) => self.coprep(SampleSource::Decoded, jobs, progress),
        }
    }

    /// Measures coprep, with a coordinator that only these jobs use.
    fn coprep(
        &self,
        source: SampleSource,
        jobs: u32,
        progress: &mut dyn Progress,
    ) -> Result<JointResult> {
        let program = &self.options.program;
        let serve = ["--cpus".into(), self.plan.cpus.to_string()];
        let coordinator = PrivateCoordinator::start(program, &serve)?;
        let command = || {
            let mut command = Command::new(program);
            command
                .args(&self.options.job_arguments)
                .env("COPREP_SOCKET", &coordinator.paths.socket);
            command
        };
        let order = ConsumerOrder {
            folder: self.root().into(),
            operators: self.options.operators,
            batch_size: self.plan.batch_size,
            seconds: self.plan.seconds,
            source,
            ids: self.part.clone(),
        };
        let mut jobs = Jobs::start(jobs, command, &order)?;
        jobs.begin(progress)?;
        let before = coordinator.status()?.pool.fetched;
        let joint = jobs.measure(Some(coordinator.pid()), self.plan.seconds, progress)?;
        // If a cached sample had to be read again, the cache was too small to be measured.
        source.check(coordinator.status()?.pool.fetched - before)?;
        Ok(joint)
    }

    /// Measures PyTorch's DataLoader. Each job has its own loader and workers.
    fn torch(
        &self,
        python: &Python,
        jobs: u32,
        progress: &mut dyn Progress,
    ) -> Result<JointResult> {
        let order = TorchOrder {
            root: self.root(),
            paths: self.paths(),
            operators: self.options.operators,
            batch_size: self.plan.batch_size,
            workers: workers_of_a_job(self.plan.cpus, jobs),
            seconds: self.plan.seconds,
        };
        let mut jobs = Jobs::start(jobs, || python.command(), &order)?;
        jobs.begin(progress)?;
        jobs.measure(None, self.plan.seconds, progress)
    }

    fn paths(&self) -> Vec<String> {
        let path = |&id| self.dataset.path(id).to_string_lossy().into_owned();
        self.part.iter().map(path).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_of_pytorch_have_no_fewer_workers_than_coprep() {
        let pairs = [(8, 1), (8, 2), (8, 3), (2, 3), (1, 1)];
        let workers = pairs.map(|(cpus, jobs)| workers_of_a_job(cpus, jobs));
        assert_eq!(workers, [8, 4, 3, 1, 1]);
    }

    #[test]
    fn one_job_alone_is_measured_once() {
        assert_eq!(measurements(4, true).len(), 7);
        assert_eq!(measurements(4, false).len(), 5);
        assert_eq!(measurements(1, true).len(), 4);
    }
}
