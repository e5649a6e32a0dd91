//! `coprep analyze`: finds data stalls, and the changes that would help most.
//!
//! | module | purpose |
//! |---|---|
//! | [`images`] | analyses coprep's own pipelines |
//! | [`code`] | analyses a dataset that is the script's own code |
//! | [`storage`] | measures how fast storage reads |
//! | [`script`] | measures how fast a training script is without waits |
//! | [`model`] | predicts an epoch under other settings |
//! | [`whatif`] | chooses those settings, and the advice |
//! | [`report`] | holds the results; [`text`] and [`page`] show them |

mod axis;
mod chart;
mod code;
mod images;
mod labels;
mod machine;
mod model;
mod page;
mod report;
mod script;
mod storage;
mod text;
mod whatif;

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use model::Facts;
use report::{CurrentState, DatasetFacts, MeasuredNumber, Report, Setting};
use script::ScriptFindings;

use crate::args::{self, FormArg};
use crate::measure::quiet::LITTLE;
use crate::measure::{Result, usable};
use crate::progress::Steps;
use crate::show::is_coloured;
use crate::{interrupt, warm};

/// Makes a report, or reads a saved one, and shows it.
pub(crate) fn run(args: &args::AnalyzeArgs) -> crate::Outcome {
    let report = match &args.render {
        Some(saved) => read(saved)?,
        None => match &args.again {
            Some(saved) => again(args, read(saved)?)?,
            None => analyze(args)?,
        },
    };
    if let Some(file) = &args.html {
        std::fs::write(file, page::render(&report)?)
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text::render(&report, is_coloured()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a saved report.
fn read(file: &Path) -> std::result::Result<Report, String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string());
    text.and_then(|text| Report::read(&text))
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// Measures a script or a folder of images.
fn analyze(args: &args::AnalyzeArgs) -> Result<Report> {
    interrupt::heed()?;
    let mut steps = Steps::new();
    let report = match (&args.folder, args.command.is_empty()) {
        (_, false) => of_script(args, &mut steps),
        (Some(folder), true) => warm::pipeline(folder, &args.images.fixed, args.images.image_size)
            .and_then(|spec| images::analyze(args, spec, None, &mut steps)),
        (None, true) => {
            Err("nothing to analyse: name a folder of images, or a command after --".into())
        }
    };
    steps.finish();
    report.map_err(interrupt::reason)
}

/// Batches to wait for, per staging buffer, before replayed batches are measured: by then all were prepared once.
const ROUNDS: u64 = 2;
/// Approximate seconds until a script takes batches.
const STARTING: f64 = 5.0;
/// Shortest time in seconds for which a script is measured.
const FEW_SECONDS: f64 = 5.0;

/// Measures a script: first its own work, then its dataset.
fn of_script(args: &args::AnalyzeArgs, steps: &mut Steps) -> Result<Report> {
    steps.step("the script by itself, its batches handed over again and again");
    // Replayed batches need no preparation, so the script's time without waits is its own work.
    let arguments = ["--replay".into(), "--cpus".into(), cpus(args).to_string()];
    let seconds = args.seconds.max(FEW_SECONDS);
    let seen = script::watch(&args.command, &arguments, ROUNDS, seconds, steps)?;
    match seen.spec.clone() {
        Some(spec) => images::analyze(args, spec, Some(&seen), steps),
        None => code::analyze(args, &seen, steps),
    }
}

fn cpus(args: &args::AnalyzeArgs) -> u32 {
    args.images.cpus.map_or_else(usable, u32::from)
}

/// The parts of a report that are not predictions.
struct About {
    dataset: DatasetFacts,
    pipeline: String,
    batch_size: u32,
    measured: Vec<MeasuredNumber>,
    warnings: Vec<String>,
}

/// Predicts, and assembles the report.
fn report(
    args: &args::AnalyzeArgs,
    about: About,
    facts: Facts,
    setting: Setting,
) -> Result<Report> {
    let report = Report {
        format: report::FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        made: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: what(args),
        machine: machine::machine(Path::new(&about.dataset.name)),
        dataset: about.dataset,
        pipeline: about.pipeline,
        batch_size: about.batch_size,
        measured: about.measured,
        series: whatif::series(&facts, &setting),
        knee: whatif::knee(&facts, &setting),
        advice: whatif::advice(&facts, &setting),
        warnings: about.warnings,
        present: CurrentState {
            outcome: facts.predict(&setting),
            setting,
        },
        facts: Some(facts),
    };
    report.check()?;
    Ok(report)
}

/// Predicts for the settings of `args` from the measurements of another report.
fn again(args: &args::AnalyzeArgs, before: Report) -> Result<Report> {
    let facts = before.facts;
    let mut facts =
        facts.ok_or("this report does not say what it was predicted from: analyse anew")?;
    if let Some(time) = args.step_time {
        facts.job.seconds = time.as_secs_f64() / f64::from(before.batch_size);
    }
    let setting = changed(args, before.present.setting);
    let about = About {
        dataset: before.dataset,
        pipeline: before.pipeline,
        batch_size: before.batch_size,
        measured: before.measured,
        warnings: before.warnings,
    };
    Ok(Report {
        // The measurements are old ones, so their time, command and machine stay.
        made: before.made,
        command: before.command,
        machine: before.machine,
        ..report(args, about, facts, setting)?
    })
}

/// Returns the present setting, from which the others differ.
fn present(args: &args::AnalyzeArgs, seen: Option<&ScriptFindings>) -> Setting {
    let free = coprep_cache::memory::available().unwrap_or(0);
    let defaults = Setting {
        // The default of `coprep serve`.
        cache_bytes: free / 4,
        cpus: usable().into(),
        storage_bytes_per_s: None,
        jobs: 1,
        shared: true,
        form: form_name(FormArg::Auto).into(),
        gpu_speed: 1.0,
    };
    let setting = changed(args, defaults);
    Setting {
        // A script may start several jobs by itself.
        jobs: seen.map_or(setting.jobs, |seen| seen.jobs.max(setting.jobs)),
        ..setting
    }
}

/// Returns a setting with those of its values changed that `args` names.
fn changed(args: &args::AnalyzeArgs, before: Setting) -> Setting {
    Setting {
        cache_bytes: args.cache.unwrap_or(before.cache_bytes),
        cpus: args.images.cpus.map_or(before.cpus, f64::from),
        storage_bytes_per_s: args
            .storage_rate
            .map_or(before.storage_bytes_per_s, |rate| Some(rate as f64)),
        jobs: args.jobs.unwrap_or(before.jobs),
        shared: before.shared && !args.unshared,
        form: args.form.map_or(before.form, |form| form_name(form).into()),
        ..before
    }
}

fn form_name(form: FormArg) -> &'static str {
    match form {
        FormArg::Off => "off",
        FormArg::Encoded => "encoded",
        FormArg::Decoded => "decoded",
        FormArg::Auto => "auto",
    }
}

/// Returns the analysed folder or command, as one line.
fn what(args: &args::AnalyzeArgs) -> String {
    let words: Vec<String> = match &args.folder {
        Some(folder) if args.command.is_empty() => vec![folder.display().to_string()],
        _ => args
            .command
            .iter()
            .map(|w| w.to_string_lossy().into_owned())
            .collect(),
    };
    words.join(" ")
}

fn one(key: &str, name: &str, value: f64, unit: &str, how: String) -> MeasuredNumber {
    MeasuredNumber {
        key: key.into(),
        name: name.into(),
        value,
        unit: unit.into(),
        spread: None,
        how,
    }
}

/// Returns the measured work of a job without its waits.
fn of_job(seen: &ScriptFindings) -> Vec<MeasuredNumber> {
    let seconds = seen.seconds.max(f64::MIN_POSITIVE);
    vec![
        one(
            "ingestion_rate",
            "The job's own rate",
            1.0 / seconds,
            "samples/s",
            format!(
                "{} batches that lay ready, without preparation.",
                seen.batches
            ),
        ),
        one(
            "job_cpus",
            "Processors that a job uses itself",
            seen.cpu_seconds / seconds,
            "CPUs",
            "Its processor time over its wall time, in the same batches.".into(),
        ),
    ]
}

/// Returns a warning if other programs used the processors during the measurements, although these were repeated.
fn disturbed(cpus_of_others: f64) -> Option<String> {
    (cpus_of_others > LITTLE).then(|| {
        format!(
            "Other programs used up to {cpus_of_others:.1} processors during the measurements, also when these were \
             repeated: rates are lower, and what is predicted is less certain, than on a quiet machine. Analyse again \
             when it is quiet."
        )
    })
}

#[cfg(test)]
mod tests;
