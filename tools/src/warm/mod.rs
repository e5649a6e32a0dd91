//! `coprep warm`.

mod script;

use std::path::Path;
use std::process::ExitCode;

use coprep_client::control;
use coprep_protocol::message::{CacheForm, CacheRequest, Warm, WarmProgress};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::spec::{
    DEFAULT_MAX_PIXELS, DEFAULT_RATIO, DEFAULT_SCALE, Interpolation, Op, PipelineSpec, ResizeTo,
    Source,
};

use crate::Outcome;
use crate::args;
use crate::progress::WorkProgress;
use coprep_protocol::size::human;

/// Fills the cache of a folder, or the caches of a script.
pub(crate) fn run(place: &CoordinatorPaths, args: &args::WarmArgs) -> Outcome {
    if let Some(from) = &args.from {
        return script::run(place, from, args);
    }
    let folder = args.folder.as_deref().unwrap_or(Path::new("."));
    let request = Warm {
        // Any size of the random crop would do: the cache does not depend on it.
        pipeline: pipeline(folder, &args.fixed, 224)?,
        cache: cache(args),
    };
    let cached = request.pipeline.cached();
    let mut shown = Shown::new(args.json);
    let result = control::warm(place, request, |progress| shown.update(progress));
    let done = result?;
    shown.finish(&done, &for_jobs(&cached, done.form));
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
    let form = form.map_or(String::new(), |form| format!("{form:?}").to_lowercase());
    // Encoded samples are files as they were read, so they fit any operators.
    let (pipeline, then) = if form == "encoded" {
        let source = PipelineSpec {
            ops: Vec::new(),
            ..cached.clone()
        };
        (source.to_string(), "with any operators")
    } else {
        (cached.to_string(), "then random operators")
    };
    format!("for jobs with {pipeline}, {then}, and cache=\"{form}\" or no cache=")
}

fn cache(args: &args::WarmArgs) -> CacheRequest {
    CacheRequest {
        form: args.form.map(Into::into),
        bytes: args.bytes,
        lru: false,
        reuse: 0,
    }
}

/// Builds the pipeline of the jobs: its deterministic operators, then a crop in place of the random ones, since the
/// cache does not depend on those. `random_crop` is the side of the crop in pixels.
pub(crate) fn pipeline(
    folder: &Path,
    args: &args::Fixed,
    random_crop: u32,
) -> Result<PipelineSpec, Box<dyn std::error::Error>> {
    let folder = folder
        .canonicalize()
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    let root = folder
        .into_os_string()
        .into_string()
        .map_err(|f| format!("{f:?} is not UTF-8"))?;
    let interpolation = Interpolation::Bilinear;
    let mut ops = vec![Op::Decode {
        apply_exif_orientation: args.exif,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: true,
    }];
    ops.extend(args.resize.map(|n| Op::Resize {
        to: ResizeTo::Shorter(n),
        interpolation: args.interpolation.into(),
    }));
    ops.extend(args.center_crop.map(|n| Op::CenterCrop {
        height: n,
        width: n,
    }));
    let (scale, ratio) = (DEFAULT_SCALE, DEFAULT_RATIO);
    ops.push(Op::RandomResizedCrop {
        height: random_crop,
        width: random_crop,
        scale,
        ratio,
        interpolation,
    });
    Ok(PipelineSpec {
        source: Source::ImageFolder { root },
        ops,
    })
}

/// Display of a warm-up's progress: JSON lines, or a bar for people.
enum Shown {
    Json,
    Progress(WorkProgress),
}

impl Shown {
    fn new(json: bool) -> Self {
        if json {
            Shown::Json
        } else {
            Shown::Progress(WorkProgress::new("samples"))
        }
    }

    fn update(&mut self, p: &WarmProgress) {
        match self {
            Shown::Json => print_json(p, None),
            Shown::Progress(progress) => progress.update(p.done, p.total, &bytes(p)),
        }
    }

    fn finish(&self, p: &WarmProgress, for_jobs: &str) {
        match self {
            Shown::Json => print_json(p, Some(for_jobs)),
            Shown::Progress(progress) => {
                progress.finish();
                println!("{}\n{for_jobs}", summary(p));
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

fn print_json(progress: &WarmProgress, for_jobs: Option<&str>) {
    // Structs of numbers and strings always serialise.
    println!(
        "{}",
        serde_json::to_string(&ProgressLine { progress, for_jobs }).unwrap_or_default()
    );
}

/// Formats the cached bytes by form, and the cache's capacity.
fn bytes(p: &WarmProgress) -> String {
    let forms = [(p.encoded_bytes, "encoded"), (p.decoded_bytes, "decoded")];
    let used: Vec<String> = forms
        .iter()
        .filter(|(b, _)| *b > 0)
        .map(|(b, form)| format!("{} {form}", human(*b)))
        .collect();
    format!("{} of {}", used.join(", "), human(p.capacity))
}

fn summary(p: &WarmProgress) -> String {
    let mut text = format!(
        "{} of {} samples are cached: {}",
        p.cached,
        p.total,
        bytes(p)
    );
    if p.full {
        text += "; the cache is full, the rest is prepared when it is needed (give --bytes or serve --cache more)";
    }
    if let Some(first) = &p.first_failure {
        text += &format!("\n{} samples failed, the first: {first}", p.failed);
    }
    text
}
