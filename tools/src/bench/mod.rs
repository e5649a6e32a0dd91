//! `coprep bench`: how fast coprep and PyTorch's DataLoader prepare a folder of images here.
//!
//! All loaders get the same samples, evenly drawn and in the page cache, and the same number of processors. Each job is
//! a process that takes batches and does nothing else. Only batches that come while all jobs run are counted.
//!
//! | module | purpose |
//! |---|---|
//! | [`jobs`] | starts jobs and measures them |
//! | [`consumer`] | a job of coprep |
//! | [`torch`] | a job of PyTorch |
//! | [`report`] | the results, as JSON and as text |

mod consumer;
mod jobs;
mod report;
pub(crate) mod torch;

use std::path::Path;
use std::process::ExitCode;

use coprep_coordinator::{Dataset, Slowness};
use coprep_protocol::message::CacheForm;
use coprep_protocol::spec::Op;

use crate::measure::private::Private;
use crate::measure::quiet::LITTLE;
use crate::measure::{self, From, MeasurementPlan, Result, usable};
use crate::progress::Steps;
use crate::show::is_coloured;
use crate::{args, interrupt, warm};
use jobs::{Jobs, Together};
use report::{BenchReport, BenchRow, BenchedLoader};
use torch::Python;

/// Measures all loaders and prints the report, or runs one of the jobs.
pub(crate) fn run(args: &args::BenchArgs) -> crate::Outcome {
    if args.consumer {
        return consumer::run(args);
    }
    interrupt::heed()?;
    let mut steps = Steps::new();
    let report = bench(args, &mut steps);
    steps.finish();
    let report = report.map_err(interrupt::reason)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report::render(&report, is_coloured()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The parts that all measurements share.
struct Bench<'a> {
    args: &'a args::BenchArgs,
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
fn bench(args: &args::BenchArgs, steps: &mut Steps) -> Result<BenchReport> {
    let plan = plan(args)?;
    let dataset = plan.dataset()?;
    let found = torch::find(args.python.as_deref())?;
    let wanted = measurements(args.jobs, found.is_ok());
    let times = wanted.iter().map(|m| m.seconds(args.seconds));
    steps.plan([1.0].into_iter().chain(times).collect());
    steps.step("how many samples are enough");
    let part = plan.part(&dataset, steps)?;
    let bench = Bench {
        args,
        plan,
        dataset,
        part,
    };
    let mut report = bench.report(&found);
    for measurement in wanted {
        steps.step(&measurement.name());
        let measured = bench.measure(measurement, found.as_ref().ok(), steps);
        // After Ctrl-C, the failure of a measurement is no result.
        interrupt::check()?;
        match measured {
            Ok(together) => {
                report.rows.push(row(measurement, &together));
                report.notes.extend(disturbed(measurement, &together));
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

/// Builds the pipeline that all loaders run, and the conditions of the measurements.
fn plan(args: &args::BenchArgs) -> Result<MeasurementPlan> {
    let mut spec = warm::pipeline(&args.folder, &args.images.fixed, args.images.image_size)?;
    spec.ops.push(Op::RandomHorizontalFlip { p: 0.5 });
    Ok(MeasurementPlan {
        spec,
        batch_size: args.images.batch_size,
        cpus: args.images.cpus.map_or_else(usable, u32::from),
        storage: Slowness::default(),
        seconds: args.seconds,
    })
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

/// Returns a note if other programs used the processors.
fn disturbed(measurement: Measurement, together: &Together) -> Option<String> {
    let others = together.cpus_of_others;
    (others > LITTLE).then(|| {
        format!(
            "{}: other work took {others:.1} processors meanwhile; measure again when the machine is quiet.",
            measurement.name()
        )
    })
}

fn row(measurement: Measurement, together: &Together) -> BenchRow {
    let rate = together.samples_per_s;
    BenchRow {
        loader: measurement.loader,
        jobs: measurement.jobs,
        images_per_s: rate,
        images_per_s_per_job: rate / f64::from(measurement.jobs),
        times_pytorch: None,
        cpu_s_per_1000: together.cpus / rate * 1e3,
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
            jobs: self.args.jobs,
            seconds: self.plan.seconds,
            pytorch: found.as_ref().ok().cloned(),
            rows: Vec::new(),
            notes: found.as_ref().err().cloned().into_iter().collect(),
        }
    }

    /// Returns the dataset's folder as an absolute path.
    fn root(&self) -> &Path {
        match &self.plan.spec.source {
            coprep_protocol::spec::Source::ImageFolder { root } => Path::new(root),
            _ => &self.args.folder,
        }
    }

    fn measure(
        &self,
        measurement: Measurement,
        python: Option<&Python>,
        steps: &mut Steps,
    ) -> Result<Together> {
        // Every loader must find all files in the page cache.
        measure::read_all(&self.dataset, &self.part, steps)?;
        let jobs = measurement.jobs;
        match (measurement.loader, python) {
            (BenchedLoader::Torch, Some(python)) => self.torch(python, jobs, steps),
            (BenchedLoader::Torch, None) => Err("no Python has it".into()),
            (BenchedLoader::Coprep, _) => self.coprep(From::PageCache, jobs, steps),
            (BenchedLoader::Encoded, _) => {
                self.coprep(From::Cache(CacheForm::Encoded), jobs, steps)
            }
            (BenchedLoader::Decoded, _) => {
                self.coprep(From::Cache(CacheForm::Decoded), jobs, steps)
            }
        }
    }

    /// Measures coprep, with a coordinator that only these jobs use.
    fn coprep(&self, from: From, jobs: u32, steps: &mut Steps) -> Result<Together> {
        let coordinator = Private::start(&["--cpus".into(), self.plan.cpus.to_string()])?;
        let program = std::env::current_exe()?;
        let command = || consumer::command(&program, &coordinator.place, self.args);
        let order = consumer::order(from.form(), &self.part);
        let mut jobs = Jobs::start(jobs, command, &order)?;
        jobs.begin(steps)?;
        let before = coordinator.status()?.pool.fetched;
        let together = jobs.measure(Some(coordinator.pid()), self.plan.seconds, steps)?;
        // If a cached sample had to be read again, the cache was too small to be measured.
        from.check(coordinator.status()?.pool.fetched - before)?;
        Ok(together)
    }

    /// Measures PyTorch's DataLoader. Each job has its own loader and workers.
    fn torch(&self, python: &Python, jobs: u32, steps: &mut Steps) -> Result<Together> {
        // All jobs together get as many processors as coprep.
        let workers = (self.plan.cpus / jobs).max(1);
        let order = torch::order(self.args, self.root(), self.paths(), workers);
        let mut jobs = Jobs::start(jobs, || python.command(), &order)?;
        jobs.begin(steps)?;
        jobs.measure(None, self.plan.seconds, steps)
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
    fn one_job_alone_is_measured_once() {
        assert_eq!(measurements(4, true).len(), 7);
        assert_eq!(measurements(4, false).len(), 5);
        assert_eq!(measurements(1, true).len(), 4);
    }
}
