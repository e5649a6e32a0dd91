//! `coprep analyze`: makes a report, or reads a saved one, and shows it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use coprep_analyze::{AnalysisOptions, Assumptions, Report, Subject};
use coprep_measurement::interrupt;
use coprep_terminal::is_coloured;

use crate::Outcome;
use crate::args::AnalyzeArgs;
use crate::output::{print, print_line};
use crate::progress::Steps;

/// Makes or reads the report, and shows it as a page, as JSON or as text.
pub(crate) fn run(args: &AnalyzeArgs) -> Outcome {
    let report = match (&args.render, &args.again) {
        (Some(saved), _) => read(saved)?,
        (None, Some(saved)) => coprep_analyze::predict_anew(read(saved)?, &assumptions(args))?,
        (None, None) => measure(args)?,
    };
    if let Some(file) = &args.html {
        std::fs::write(file, coprep_analyze::render_page(&report)?)
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if args.json {
        print_line(serde_json::to_string_pretty(&report)?)?;
    } else {
        print(coprep_analyze::render_text(&report, is_coloured()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a saved report.
fn read(file: &Path) -> Result<Report, String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string());
    text.and_then(|text| Report::read(&text))
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// Measures a script or a folder of images.
fn measure(args: &AnalyzeArgs) -> Outcome<Report> {
    interrupt::catch_signals()?;
    let options = AnalysisOptions {
        program: std::env::current_exe()?,
        subject: subject(args)?,
        assumptions: assumptions(args),
        seconds: args.seconds,
    };
    let mut steps = Steps::new();
    let report = coprep_analyze::analyze(&options, &mut steps);
    steps.finish();
    report.map_err(interrupt::reason)
}

fn subject(args: &AnalyzeArgs) -> Result<Subject, &'static str> {
    match &args.folder {
        _ if !args.command.is_empty() => Ok(Subject::Script(args.command.clone())),
        Some(folder) => Ok(Subject::Images {
            folder: PathBuf::from(folder),
            operators: args.images.operators(),
            batch_size: args.images.batch_size,
        }),
        None => Err("nothing to analyse: name a folder of images, or a command after --"),
    }
}

fn assumptions(args: &AnalyzeArgs) -> Assumptions {
    Assumptions {
        cpus: args.images.cpus.map(u32::from),
        cache_bytes: args.cache,
        form: args.form.map(Into::into),
        jobs: args.jobs,
        unshared: args.unshared,
        step_time: args.step_time,
        storage_bytes_per_s: args.storage_rate,
        storage_latency: args.storage_latency,
    }
}
