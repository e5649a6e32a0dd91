//! Analysis of a dataset that is the script's own code. coprep sees neither its reads nor its operators, only how long
//! its workers wait and work for a sample.

use std::ffi::OsString;

use coprep_measurement::progress::Progress;
use coprep_measurement::{Result, usable_cpus};

use crate::assemble::{About, disturbed, of_job, one, present_setting, report};
use crate::forecast::Setting;
use crate::labels;
use crate::model::{Facts, JobWork, Prepare, WorkerProcesses};
use crate::options::AnalysisOptions;
use crate::report::{DatasetFacts, Report};
use crate::script::{FEWEST_SECONDS, Run, ScriptFindings};

/// Approximate seconds until a script takes batches.
const STARTING: f64 = 5.0;

/// Runs the script once more, with its samples prepared as usual. `alone` holds the findings with replayed batches.
pub(crate) fn analyze(
    options: &AnalysisOptions,
    command: &[OsString],
    alone: &ScriptFindings,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let seconds = options.seconds.max(FEWEST_SECONDS);
    progress.plan(vec![STARTING + seconds]);
    progress.step("the script as it is");
    let cpus = options.cpus().to_string();
    let run = Run {
        program: &options.program,
        command,
        serve: &["--cache".into(), "0".into(), "--cpus".into(), cpus],
        // Nothing is replayed, so no round must pass first.
        rounds: 0,
        seconds,
    };
    let usual = run.measure(progress)?;
    let facts = facts(alone, &usual);
    let setting = Setting {
        cache_bytes: 0,
        form: "off".into(),
        cpus: facts.prepare.cpus,
        // coprep does not know how many bytes user code reads, so a rate in bytes has nothing to replace.
        storage_bytes_per_s: None,
        ..present_setting(&options.assumptions, Some(alone))
    };
    let mut about = about(options.subject.describe(), alone, &usual);
    let assumed = &options.assumptions;
    if assumed.storage_bytes_per_s.is_some() || assumed.storage_latency.is_some() {
        about.warnings.push(
            "--storage-rate and --storage-latency are ignored: the script's own dataset reads its files itself, and \
             coprep cannot slow it down. The chart of storage shows what faster or slower storage would do."
                .into(),
        );
    }
    about
        .warnings
        .extend(disturbed(alone.cpus_of_others.max(usual.cpus_of_others)));
    report(about, facts, setting)
}

/// The overlap of [`Facts`] for user code: none, since the model adds the workers' waits beyond the processors' time.
const NO_OVERLAP: f64 = 1.0;
/// A time below the resolution of the clocks, against division by zero.
const NO_TIME: f64 = 1e-9;

/// Returns the seconds for which a worker waits, and works, per sample.
fn times(usual: &ScriptFindings) -> (f64, f64) {
    let totals = &usual.stream.totals;
    let prepared = totals.prepared.max(1) as f64;
    (totals.fetch_s / prepared, totals.prep_s / prepared)
}

/// Builds the facts of the model: the job's work from replayed batches, the workers' times from real ones.
fn facts(alone: &ScriptFindings, usual: &ScriptFindings) -> Facts {
    let stream = &usual.stream;
    let samples = f64::from(stream.samples);
    let workers = stream.worker_pids.len().max(1) as f64;
    let (waits, works) = times(usual);
    // The size of a staging slot stands for a sample's: no other size is known.
    let slots = f64::from(stream.buffers) * f64::from(stream.slots);
    let bytes = samples * stream.staging_bytes as f64 / slots.max(1.0);
    let processors = f64::from(usable_cpus());
    let prepare = Prepare {
        from_storage: works,
        from_encoded: works,
        from_decoded: works,
        cpus: workers.min(processors),
        alone: works,
    };
    Facts {
        samples,
        remainder: samples % f64::from(usual.batch_size),
        encoded_bytes: bytes,
        decoded_bytes: bytes,
        prepare,
        in_full: prepare,
        // The rate of workers that only wait. Its unit is arbitrary, since the bytes in storage are not known: only
        // ratios to it are used.
        storage: bytes * workers / (samples * waits.max(NO_TIME)),
        is_in_page_cache: false,
        overlap: NO_OVERLAP,
        workers: Some(WorkerProcesses {
            count: workers,
            waits,
        }),
        has_forms: false,
        processors,
        job: JobWork {
            seconds: alone.seconds,
            cpu_seconds: alone.cpu_seconds,
        },
    }
}

fn about(command: String, alone: &ScriptFindings, usual: &ScriptFindings) -> About {
    let stream = &usual.stream;
    let (waits, works) = times(usual);
    let mean = format!(
        "Mean of {} samples, by {} workers.",
        labels::number(stream.totals.prepared as f64),
        stream.worker_pids.len()
    );
    let off = format!("{mean} Off the processor, and not for want of one.");
    let mut measured = of_job(alone);
    measured.extend([
        one("fetch_s", "A worker waits for one sample", waits, "s", off),
        one("prep_s", "A worker works at one sample", works, "s", mean),
    ]);
    About {
        command,
        dataset: DatasetFacts {
            name: stream.dataset.clone(),
            samples: stream.samples.into(),
            encoded_bytes: 0,
            decoded_bytes: 0,
            mean_pixels: None,
        },
        pipeline: stream.pipeline.clone(),
        batch_size: usual.batch_size,
        measured,
        warnings: vec![
            "The dataset is the script's own code: its bytes in storage are not known, and what a cache would save is \
             not predicted. Processors stand for its workers (num_workers)."
                .into(),
        ],
    }
}
