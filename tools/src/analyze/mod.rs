//! `coprep analyze`: where the data stalls are, and what would help.
//!
//! | module | what it does |
//! |---|---|
//! | [`measure`] | rates of storage and processors |
//! | [`script`] | how fast a training script is by itself |
//! | [`private`] | the coordinator that both use |
//! | [`model`] | what an epoch takes under other circumstances |
//! | [`whatif`] | those circumstances, and what to change |
//! | [`report`] | all of it; [`text`] and [`page`] show it |

mod axis;
mod chart;
mod machine;
mod measure;
mod model;
mod page;
mod private;
mod report;
mod script;
mod text;
mod whatif;
mod words;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use coprep_coordinator::Slowness;
use coprep_protocol::message::CacheForm;

use measure::{From, Plan, Rate, Sizes, Storage};
use model::{Facts, Job, Prepare};
use report::{Dataset, Measured, Present, Report, Setting};
use script::Seen;

use crate::args::{self, Form};
use crate::progress::Progress;
use crate::warm;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) fn run(args: &args::Analyze) -> crate::Outcome {
    let report = match &args.render {
        Some(saved) => read(saved)?,
        None => analyze(args)?,
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

fn read(file: &Path) -> std::result::Result<Report, String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string());
    text.and_then(|text| Report::read(&text))
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// As <https://no-color.org> has it.
fn is_coloured() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    !refused && std::io::stdout().is_terminal()
}

/// Everything that was measured.
struct Measurements {
    sizes: Sizes,
    storage: Storage,
    from_storage: Rate,
    alone: Rate,
    in_full: Rate,
    encoded: Rate,
    decoded: Rate,
    /// Samples that were looked at.
    part: u32,
}

fn analyze(args: &args::Analyze) -> Result<Report> {
    let mut progress = Progress::new("");
    let cpus = args.cpus.map_or_else(machine::usable, u32::from);
    let seen = match args.command.is_empty() {
        true => None,
        false => Some(watch(args, cpus, &mut progress)?),
    };
    let spec = match (&seen, &args.folder) {
        (Some(seen), _) => seen.spec.clone().ok_or(
            "this script's dataset is code of its own, and how that reads and prepares cannot be told apart yet: \
             `coprep top` shows what it waits for",
        )?,
        (None, Some(folder)) => warm::pipeline(&warm::Described {
            folder,
            resize: args.resize,
            center_crop: args.center_crop,
            exif: args.exif,
            random_crop: args.image_size,
        })?,
        (None, None) => {
            return Err("nothing to analyse: name a folder of images, or a command after --".into());
        }
    };
    let plan = Plan {
        batch_size: seen.as_ref().map_or(args.batch_size, |s| s.batch_size),
        spec,
        cpus,
        storage: Slowness {
            bytes_per_s: args.storage_rate,
            latency: args.storage_latency.unwrap_or_default(),
        },
        seconds: args.seconds,
    };
    let dataset = plan.dataset()?;
    let found = measure(&plan, &dataset, &mut progress)?;
    progress.finish();
    let facts = facts(args, &plan, f64::from(dataset.len()), &found, seen.as_ref());
    let setting = present(args, &plan, seen.as_ref());
    let report = Report {
        format: report::FORMAT,
        version: env!("CARGO_PKG_VERSION").into(),
        made: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: what(args),
        machine: machine::machine(args.folder.as_deref()),
        dataset: Dataset {
            name: dataset
                .path(0)
                .parent()
                .and_then(Path::parent)
                .map_or_else(String::new, |p| p.display().to_string()),
            samples: dataset.len().into(),
            encoded_bytes: found.sizes.encoded as u64,
            decoded_bytes: found.sizes.decoded as u64,
            mean_pixels: Some(found.sizes.pixels),
        },
        pipeline: coprep_coordinator::describe(&plan.spec),
        batch_size: plan.batch_size,
        measured: measured(&found, seen.as_ref(), &facts),
        series: whatif::series(&facts, &setting),
        knee: whatif::knee(&facts, &setting),
        advice: whatif::advice(&facts, &setting),
        warnings: warnings(&found, &facts, &plan),
        present: Present {
            outcome: facts.predict(&setting),
            setting,
        },
    };
    report.check()?;
    Ok(report)
}

fn watch(args: &args::Analyze, cpus: u32, progress: &mut Progress) -> Result<Seen> {
    progress.step("the script by itself, its batches handed over again and again");
    let arguments = ["--replay".into(), "--cpus".into(), cpus.to_string()];
    script::watch(&args.command, &arguments, args.seconds.max(5.0), progress)
}

fn measure(
    plan: &Plan,
    dataset: &coprep_coordinator::Dataset,
    progress: &mut Progress,
) -> Result<Measurements> {
    progress.step("how many samples are enough");
    let part = plan.part(dataset.len())?;
    let sizes = measure::sizes(dataset, &part, &plan.spec)?;
    progress.step("storage, samples that the page cache has forgotten");
    let storage = measure::storage(dataset, &part, plan.seconds, progress)?;
    let mut rate = |what: &str, spec, from, cpus| {
        progress.step(what);
        plan.prepare_by(spec, from, &part, cpus, plan.seconds)
    };
    let (spec, in_full) = (&plan.spec, &plan.in_full());
    Ok(Measurements {
        sizes,
        storage,
        from_storage: rate(
            "preparing, from the page cache",
            spec,
            From::PageCache,
            plan.cpus,
        )?,
        alone: match plan.cpus {
            1 => rate("preparing, once more", spec, From::PageCache, 1)?,
            _ => rate("preparing with one processor", spec, From::PageCache, 1)?,
        },
        in_full: match in_full == spec {
            true => rate(
                "preparing, decoded in full, once more",
                in_full,
                From::PageCache,
                plan.cpus,
            )?,
            false => rate(
                "preparing, decoded in full",
                in_full,
                From::PageCache,
                plan.cpus,
            )?,
        },
        encoded: rate(
            "preparing, all cached encoded",
            spec,
            From::Cache(CacheForm::Encoded),
            plan.cpus,
        )?,
        decoded: rate(
            "preparing, all cached decoded",
            spec,
            From::Cache(CacheForm::Decoded),
            plan.cpus,
        )?,
        part: part.len() as u32,
    })
}

fn facts(
    args: &args::Analyze,
    plan: &Plan,
    samples: f64,
    found: &Measurements,
    seen: Option<&Seen>,
) -> Facts {
    let prepare = Prepare {
        from_storage: found.from_storage.cost(),
        from_encoded: found.encoded.cost(),
        from_decoded: found.decoded.cost(),
        cpus: found.from_storage.cpus,
        alone: found.alone.cost(),
    };
    let more = (found.in_full.cost() - prepare.from_storage).max(0.0);
    let in_full = Prepare {
        from_storage: prepare.from_storage + more,
        from_encoded: prepare.from_encoded + more,
        alone: prepare.alone * (1.0 + more / prepare.from_storage),
        ..prepare
    };
    let job = match (seen, args.step_time) {
        (Some(seen), _) => Job {
            seconds: seen.seconds,
            cpu_seconds: seen.cpu_seconds,
        },
        (None, time) => Job {
            seconds: time.map_or(0.0, |time| time.as_secs_f64()) / f64::from(plan.batch_size),
            cpu_seconds: 0.0,
        },
    };
    let free = coprep_cache::memory::available().unwrap_or(0) as f64;
    Facts {
        samples,
        encoded_bytes: found.sizes.encoded,
        decoded_bytes: found.sizes.decoded,
        prepare,
        in_full,
        storage: found.storage.bytes_per_s,
        is_in_page_cache: plan.storage.is_none() && found.sizes.encoded < free / 2.0,
        processors: machine::usable().into(),
        job,
    }
}

fn present(args: &args::Analyze, plan: &Plan, seen: Option<&Seen>) -> Setting {
    let free = coprep_cache::memory::available().unwrap_or(0);
    Setting {
        cache_bytes: args.cache.unwrap_or(free / 4),
        cpus: plan.cpus.into(),
        storage_bytes_per_s: None,
        jobs: seen.map_or(args.jobs, |seen| seen.jobs.max(args.jobs)),
        shared: !args.unshared,
        form: match args.form {
            Form::Off => "off",
            Form::Encoded => "encoded",
            Form::Decoded => "decoded",
            Form::Auto => "auto",
        }
        .into(),
        gpu_speed: 1.0,
    }
}

fn what(args: &args::Analyze) -> String {
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

fn measured(found: &Measurements, seen: Option<&Seen>, facts: &Facts) -> Vec<Measured> {
    let one = |key: &str, name: &str, value: f64, unit: &str, how: String| Measured {
        key: key.into(),
        name: name.into(),
        value,
        unit: unit.into(),
        spread: None,
        how,
    };
    let samples = words::number(found.part.into());
    let rate = |key: &str, name: &str, rate: &Rate, what: &str| {
        one(
            key,
            name,
            rate.samples_per_s,
            "samples/s",
            format!(
                "{samples} samples {what}, again and again, with {} processors and no other work.",
                rate.cpus
            ),
        )
    };
    let mut all = Vec::new();
    if let Some(seen) = seen {
        all.push(one(
            "ingestion_rate",
            "The job's own rate",
            1.0 / seen.seconds.max(f64::MIN_POSITIVE),
            "samples/s",
            format!(
                "{} batches that lay ready, without preparation.",
                seen.batches
            ),
        ));
        all.push(one(
            "job_cpus",
            "Processors that a job uses itself",
            seen.cpu_seconds / seen.seconds.max(f64::MIN_POSITIVE),
            "CPUs",
            "Its processor time over its wall time, in the same batches.".into(),
        ));
    } else if facts.job.seconds > 0.0 {
        all.push(one(
            "ingestion_rate",
            "The job's own rate",
            1.0 / facts.job.seconds,
            "samples/s",
            "As it was given.".into(),
        ));
    }
    all.extend([
        rate(
            "prep_rate",
            "Preparation, from files",
            &found.from_storage,
            "in the page cache",
        ),
        rate(
            "prep_rate_alone",
            "Preparation, one processor",
            &found.alone,
            "in the page cache",
        ),
        rate(
            "prep_rate_in_full",
            "Preparation, decoded in full",
            &found.in_full,
            "in the page cache",
        ),
        rate(
            "prep_rate_encoded",
            "Preparation, all cached encoded",
            &found.encoded,
            "in the cache as they are read",
        ),
        rate(
            "prep_rate_decoded",
            "Preparation, all cached decoded",
            &found.decoded,
            "in the cache decoded",
        ),
        one(
            "storage_bandwidth",
            "Storage",
            found.storage.bytes_per_s,
            "bytes/s",
            format!(
                "Files that the page cache was asked to forget, by {} readers: more did not help.",
                found.storage.threads
            ),
        ),
        one(
            "fetch_s",
            "Fetching one sample",
            found.storage.latency_s,
            "s",
            "The same, one reader.".into(),
        ),
    ]);
    all
}

/// Faster than this, the page cache did not forget.
const TOO_FAST: f64 = 4e9;

fn warnings(found: &Measurements, facts: &Facts, plan: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    if found.storage.bytes_per_s > TOO_FAST {
        all.push("Storage is as fast as memory: this file system keeps its files there, or the page cache does not forget.".into());
    }
    if facts.is_in_page_cache {
        all.push(
            "The dataset fits in memory, so the kernel keeps it in its page cache: storage counts in the first epoch \
             only. Give --storage-rate to see what storage does to a dataset that does not fit."
                .into(),
        );
    }
    if facts.job.seconds == 0.0 {
        all.push("Nothing is known of the jobs' own work: give --step-time, or a training script after --.".into());
    }
    if f64::from(plan.cpus) > facts.processors {
        all.push("More processors are asked for than this process may use.".into());
    }
    all
}

#[cfg(test)]
mod tests;
