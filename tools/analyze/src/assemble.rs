//! Assembles a report from measurements and predictions. The analyses of images and of user code share it.

use std::path::Path;
use std::time::SystemTime;

use coprep_measurement::quiet::NEGLIGIBLE_CPUS;
use coprep_measurement::{Result, usable_cpus};
use coprep_protocol::message::CacheForm;

use crate::forecast::Setting;
use crate::machine::machine;
use crate::model::Facts;
use crate::options::Assumptions;
use crate::report::{CurrentState, DatasetFacts, FORMAT, MeasuredNumber, Report};
use crate::script::ScriptFindings;
use crate::whatif;

/// The parts of a report that are not predictions.
pub(crate) struct About {
    /// The analysed folder or command, as one line.
    pub(crate) command: String,
    pub(crate) dataset: DatasetFacts,
    pub(crate) pipeline: String,
    pub(crate) batch_size: u32,
    pub(crate) measured: Vec<MeasuredNumber>,
    pub(crate) warnings: Vec<String>,
}

/// Predicts, and assembles the report.
pub(crate) fn report(about: About, facts: Facts, setting: Setting) -> Result<Report> {
    let report = Report {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        made: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: about.command,
        machine: machine(Path::new(&about.dataset.name)),
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

/// Returns the present setting, from which the others differ. `script` holds the findings about the script, if there is
/// one.
pub(crate) fn present_setting(
    assumptions: &Assumptions,
    script: Option<&ScriptFindings>,
) -> Setting {
    let free = coprep_shared_memory::memory::available().unwrap_or(0);
    let defaults = Setting {
        // The default of `coprep serve`.
        cache_bytes: free / 4,
        cpus: usable_cpus().into(),
        storage_bytes_per_s: None,
        jobs: 1,
        shared: true,
        form: form_name(CacheForm::Auto).into(),
        gpu_speed: 1.0,
    };
    let setting = changed(assumptions, defaults);
    Setting {
        // A script may start several jobs by itself.
        jobs: script.map_or(setting.jobs, |script| script.jobs.max(setting.jobs)),
        ..setting
    }
}

/// Returns a setting with the changes that the assumptions name.
pub(crate) fn changed(assumptions: &Assumptions, before: Setting) -> Setting {
    Setting {
        cache_bytes: assumptions.cache_bytes.unwrap_or(before.cache_bytes),
        cpus: assumptions.cpus.map_or(before.cpus, f64::from),
        storage_bytes_per_s: assumptions
            .storage_bytes_per_s
            .map_or(before.storage_bytes_per_s, |rate| Some(rate as f64)),
        jobs: assumptions.jobs.unwrap_or(before.jobs),
        shared: before.shared && !assumptions.unshared,
        form: assumptions
            .form
            .map_or(before.form, |form| form_name(form).into()),
        ..before
    }
}

fn form_name(form: CacheForm) -> &'static str {
    match form {
        CacheForm::Off => "off",
        CacheForm::Encoded => "encoded",
        CacheForm::Decoded => "decoded",
        CacheForm::Prepared => "prepared",
        CacheForm::Auto => "auto",
    }
}

/// Builds a measured number without repetitions.
pub(crate) fn one(key: &str, name: &str, value: f64, unit: &str, how: String) -> MeasuredNumber {
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
pub(crate) fn of_job(script: &ScriptFindings) -> Vec<MeasuredNumber> {
    let seconds = script.seconds.max(f64::MIN_POSITIVE);
    vec![
        one(
            "ingestion_rate",
            "The job's own rate",
            1.0 / seconds,
            "samples/s",
            format!(
                "{} batches that lay ready, without preparation.",
                script.batches
            ),
        ),
        one(
            "job_cpus",
            "Processors that a job uses itself",
            script.cpu_seconds / seconds,
            "CPUs",
            "Its processor time over its wall time, in the same batches.".into(),
        ),
    ]
}

/// Returns a warning if other programs used the processors during the measurements, although these were repeated.
pub(crate) fn disturbed(cpus_of_others: f64) -> Option<String> {
    (cpus_of_others > NEGLIGIBLE_CPUS).then(|| {
        format!(
            "Other programs used up to {cpus_of_others:.1} processors during the measurements, also when these were \
             repeated: rates are lower, and what is predicted is less certain, than on a quiet machine. Analyse again \
             when it is quiet."
        )
    })
}
