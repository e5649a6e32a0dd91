//! Analysis of a dataset that is the script's own code. coprep sees neither its reads nor its operators, only how long
//! its workers wait and work for a sample.

use super::model::{Facts, JobWork, Prepare, Workers};
use super::report::{DatasetFacts, Report, Setting};
use super::script::{self, ScriptFindings};
use super::{About, FEW_SECONDS, Result, cpus, disturbed, labels, of_job, one, present, report};
use crate::args;
use crate::measure::usable;
use crate::progress::Steps;

/// Runs the script once more, with its samples prepared as usual. `alone` holds the findings with replayed batches.
pub(super) fn analyze(
    args: &args::AnalyzeArgs,
    alone: &ScriptFindings,
    steps: &mut Steps,
) -> Result<Report> {
    let seconds = args.seconds.max(FEW_SECONDS);
    steps.plan(vec![super::STARTING + seconds]);
    steps.step("the script as it is");
    let cpus = cpus(args).to_string();
    let arguments = ["--cache".into(), "0".into(), "--cpus".into(), cpus];
    let seen = script::watch(&args.command, &arguments, 0, seconds, steps)?;
    let facts = facts(alone, &seen);
    let setting = Setting {
        cache_bytes: 0,
        form: "off".into(),
        cpus: facts.prepare.cpus,
        // coprep does not know how many bytes user code reads, so a rate in bytes has nothing to replace.
        storage_bytes_per_s: None,
        ..present(args, Some(alone))
    };
    let mut about = about(alone, &seen);
    if args.storage_rate.is_some() || args.storage_latency.is_some() {
        about.warnings.push(
            "--storage-rate and --storage-latency are ignored: the script's own dataset reads its files itself, and \
             coprep cannot slow it down. The chart of storage shows what faster or slower storage would do."
                .into(),
        );
    }
    about
        .warnings
        .extend(disturbed(alone.cpus_of_others.max(seen.cpus_of_others)));
    report(args, about, facts, setting)
}

/// The overlap of [`Facts`] for user code: none, since the model adds the workers' waits beyond the processors' time.
const NO_OVERLAP: f64 = 1.0;
/// A time below the resolution of the clocks, against division by zero.
const NO_TIME: f64 = 1e-9;

/// Returns the seconds for which a worker waits, and works, per sample.
fn times(seen: &ScriptFindings) -> (f64, f64) {
    let totals = &seen.stream.totals;
    let prepared = totals.prepared.max(1) as f64;
    (totals.fetch_s / prepared, totals.prep_s / prepared)
}

/// Builds the facts of the model: the job's work from replayed batches, the workers' times from real ones.
fn facts(alone: &ScriptFindings, seen: &ScriptFindings) -> Facts {
    let stream = &seen.stream;
    let samples = f64::from(stream.samples);
    let workers = stream.worker_pids.len().max(1) as f64;
    let (waits, works) = times(seen);
    // The size of a staging slot stands for a sample's: no other size is known.
    let slots = f64::from(stream.buffers) * f64::from(stream.slots);
    let bytes = samples * stream.staging_bytes as f64 / slots.max(1.0);
    let processors = f64::from(usable());
    let prepare = Prepare {
        from_storage: works,
        from_encoded: works,
        from_decoded: works,
        cpus: workers.min(processors),
        alone: works,
    };
    Facts {
        samples,
        remainder: samples % f64::from(seen.batch_size),
        encoded_bytes: bytes,
        decoded_bytes: bytes,
        prepare,
        in_full: prepare,
        // The rate of workers that only wait. Its unit is arbitrary, since the bytes in storage are not known: only
        // ratios to it are used.
        storage: bytes * workers / (samples * waits.max(NO_TIME)),
        is_in_page_cache: false,
        overlap: NO_OVERLAP,
        workers: Some(Workers {
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

fn about(alone: &ScriptFindings, seen: &ScriptFindings) -> About {
    let stream = &seen.stream;
    let (waits, works) = times(seen);
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
        dataset: DatasetFacts {
            name: stream.dataset.clone(),
            samples: stream.samples.into(),
            encoded_bytes: 0,
            decoded_bytes: 0,
            mean_pixels: None,
        },
        pipeline: stream.pipeline.clone(),
        batch_size: seen.batch_size,
        measured,
        warnings: vec![
            "The dataset is the script's own code: its bytes in storage are not known, and what a cache would save is \
             not predicted. Processors stand for its workers (num_workers)."
                .into(),
        ],
    }
}
