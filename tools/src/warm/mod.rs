//! `coprep warm`.

mod script;

use std::path::Path;
use std::process::ExitCode;

use coprep_client::control;
use coprep_measurement::images::source;
use coprep_protocol::message::{CacheForm, CacheRequest, Warm, WarmProgress};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::size::human;
use coprep_protocol::spec::PipelineSpec;
use coprep_protocol::store_variables::StoreVariables;

use crate::output::print_line;
use crate::progress::WorkProgress;
use crate::{Outcome, args};

/// Fills the cache of a folder or of shards, or the caches of a script.
pub(crate) fn run(paths: &CoordinatorPaths, args: &args::WarmArgs) -> Outcome {
    if let Some(from) = &args.from {
        return script::run(paths, from, args);
    }
    let folder = args.folder.as_deref().unwrap_or(Path::new("."));
    let source = source(folder, &args.parts.image, args.parts.label())?;
    let request = Warm {
        store_variables: StoreVariables::of(&source),
        provider: None,
        // Any random operator would do in paths of the jobs' own: the cache does not depend on it.
        pipeline: args.fixed.then_crop(224).of(source),
        cache: cache(args),
        keep: args.keep,
    };
    let cached = request.pipeline.cached();
    let mut display = WarmDisplay::new(args.json);
    let result = control::warm(paths, request, |progress| display.update(progress));
    let done = result?;
    display.finish(&done, &for_jobs(&cached, done.form))?;
    Ok(exit_code(&done))
}

fn exit_code(done: &WarmProgress) -> ExitCode {
    if done.failed > 0 {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}

/// Tells the user which pipeline and cache form a job must name to use the cache.
fn for_jobs(cached: &PipelineSpec, form: Option<CacheForm>) -> String {
    // Encoded samples, and those on the local disk, are files as they were read, so they fit any operators.
    let is_encoded = form.is_none_or(|form| form == CacheForm::Encoded);
    let (pipeline, then) = if is_encoded {
        let source = PipelineSpec {
            ops: Vec::new(),
            ..cached.clone()
        };
        (source.to_string(), "with any operators")
    } else {
        (cached.to_string(), "then random operators")
    };
    let Some(form) = form.map(|form| format!("{form:?}").to_lowercase()) else {
        return format!("for jobs with {pipeline}, {then}");
    };
    format!("for jobs with {pipeline}, {then}, and cache=\"{form}\" or no cache=")
}

fn cache(args: &args::WarmArgs) -> CacheRequest {
    CacheRequest {
        form: args.form.map(Into::into),
        bytes: args.bytes,
        lru: false,
        reuse: 0,
        check_files: true,
    }
}

/// Display of a warm-up's progress: JSON lines, or a bar for people.
enum WarmDisplay {
    Json,
    Progress(WorkProgress),
}

impl WarmDisplay {
    fn new(json: bool) -> Self {
        if json {
            WarmDisplay::Json
        } else {
            WarmDisplay::Progress(WorkProgress::new("samples"))
        }
    }

    fn update(&mut self, p: &WarmProgress) {
        match self {
            // The cache is filled even if nobody reads how far that is.
            WarmDisplay::Json => drop(print_json(p, None)),
            WarmDisplay::Progress(progress) => progress.update(p.done, p.total, &bytes(p)),
        }
    }

    fn finish(&self, p: &WarmProgress, for_jobs: &str) -> Outcome<()> {
        match self {
            WarmDisplay::Json => print_json(p, Some(for_jobs)),
            WarmDisplay::Progress(progress) => {
                progress.finish();
                print_line(format_args!("{}\n{for_jobs}", summary(p)))
            }
        }
    }
}

#[derive(serde::Serialize)]
struct ProgressLine<'a> {
    #[serde(flatten)]
    progress: &'a WarmProgress,
    /// The hint for jobs, on the last line only.
    #[serde(skip_serializing_if = "Option::is_none")]
    for_jobs: Option<&'a str>,
}

fn print_json(progress: &WarmProgress, for_jobs: Option<&str>) -> Outcome<()> {
    print_line(serde_json::to_string(&ProgressLine { progress, for_jobs })?)
}

/// Formats the cached bytes by form and the cache's capacity, and of a remote dataset the bytes read and the requests.
fn bytes(p: &WarmProgress) -> String {
    let mut text = cached_bytes(p);
    if let Some(requests) = p.requests {
        let noun = if requests == 1 { "request" } else { "requests" };
        text += &format!(", {} read by {requests} {noun}", human(p.fetched_bytes));
    }
    text
}

fn cached_bytes(p: &WarmProgress) -> String {
    let forms = [(p.encoded_bytes, "encoded"), (p.decoded_bytes, "decoded")];
    let used: Vec<String> = forms
        .iter()
        .filter(|(b, _)| *b > 0)
        .map(|(b, form)| format!("{} {form}", human(*b)))
        .collect();
    let in_memory = format!("{} of {}", used.join(", "), human(p.capacity));
    let on_disk = format!(
        "{} of {} on disk",
        human(p.disk_bytes),
        human(p.disk_capacity)
    );
    match (p.capacity, p.disk_capacity) {
        (_, 0) => in_memory,
        (0, _) => on_disk,
        _ => format!("{in_memory}, {on_disk}"),
    }
}

fn summary(p: &WarmProgress) -> String {
    let cached = if p.disk_capacity > 0 {
        format!("{} in memory, {} on disk", p.cached, p.on_disk)
    } else {
        p.cached.to_string()
    };
    let mut text = format!("{cached} of {} samples are cached: {}", p.total, bytes(p));
    if p.full {
        text += "; the cache is full, the rest is prepared when it is needed (give --bytes or serve --cache more)";
    }
    if let Some(first) = &p.first_failure {
        let noun = if p.failed == 1 { "sample" } else { "samples" };
        text += &format!("\n{} {noun} failed, the first: {first}", p.failed);
    }
    text
}
