//! Finds the data stalls of a training job, and the changes that would help most.
//!
//! [`analyze`] measures a script or a folder of images, and predicts an epoch under other settings. [`predict_anew`]
//! predicts for other settings from the measurements of an earlier [`Report`]. [`render_text`] and [`render_page`] show
//! a report.
//!
//! | module | purpose |
//! |---|---|
//! | `options` | the subject of the measurements, and the setting for which an epoch is predicted |
//! | `images` | analyses coprep's own pipelines |
//! | `code` | analyses a dataset that is the script's own code |
//! | `storage` | measures how fast storage reads |
//! | `script` | measures how fast a training script is without waits |
//! | `forecast` | an epoch and its setting |
//! | `model` | predicts an epoch under other settings |
//! | `whatif` | chooses those settings, and the advice |
//! | `report` | holds the results, which `assemble` puts together; `text` and `page` show them |

mod assemble;
mod axis;
mod chart;
mod code;
mod forecast;
mod images;
mod labels;
mod machine;
mod model;
mod options;
mod page;
mod report;
mod script;
mod storage;
mod text;
mod whatif;

pub use coprep_measurement::Result;
use coprep_measurement::progress::Progress;

pub use crate::options::{AnalysisOptions, Assumptions, Subject};
pub use crate::page::render as render_page;
pub use crate::report::Report;
pub use crate::text::render as render_text;

use crate::assemble::About;

/// Measures a script or a folder of images, and predicts its epochs.
///
/// # Errors
/// If the subject cannot be measured. The error is a text for the user.
pub fn analyze(options: &AnalysisOptions, progress: &mut dyn Progress) -> Result<Report> {
    match &options.subject {
        Subject::Script(command) => of_script(options, command, progress),
        Subject::Images {
            folder,
            operators,
            batch_size,
        } => {
            let spec = operators.pipeline(folder)?;
            images::analyze(options, spec, *batch_size, None, progress)
        }
    }
}

/// Batches to wait for, per staging buffer, before replayed batches are measured: by then all were prepared once.
const ROUNDS: u64 = 2;

/// Measures a script: first its own work, then its dataset.
fn of_script(
    options: &AnalysisOptions,
    command: &[std::ffi::OsString],
    progress: &mut dyn Progress,
) -> Result<Report> {
    progress.step("the script by itself, its batches handed over again and again");
    // Replayed batches need no preparation, so the script's time without waits is its own work.
    let cpus = options.cpus().to_string();
    let run = script::Run {
        program: &options.program,
        command,
        serve: &["--replay".into(), "--cpus".into(), cpus],
        rounds: ROUNDS,
        seconds: options.seconds.max(script::FEWEST_SECONDS),
    };
    let alone = run.measure(progress)?;
    match alone.spec.clone() {
        Some(spec) => images::analyze(options, spec, alone.batch_size, Some(&alone), progress),
        None => code::analyze(options, command, &alone, progress),
    }
}

/// Predicts for a changed setting from the measurements of an earlier report.
///
/// # Errors
/// If the earlier report does not have its measurements.
pub fn predict_anew(before: Report, assumptions: &Assumptions) -> Result<Report> {
    let facts = before.facts;
    let mut facts =
        facts.ok_or("this report does not say what it was predicted from: analyse anew")?;
    if let Some(time) = assumptions.step_time {
        facts.job.seconds = time.as_secs_f64() / f64::from(before.batch_size);
    }
    let setting = assemble::changed(assumptions, before.present.setting);
    let about = About {
        command: before.command,
        dataset: before.dataset,
        pipeline: before.pipeline,
        batch_size: before.batch_size,
        measured: before.measured,
        warnings: before.warnings,
    };
    Ok(Report {
        // The measurements are old ones, so their time and machine stay.
        made: before.made,
        machine: before.machine,
        ..assemble::report(about, facts, setting)?
    })
}
