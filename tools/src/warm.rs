//! `coprep warm`.

use std::path::Path;
use std::process::ExitCode;

use coprep_client::control;
use coprep_protocol::message::{CacheRequest, Warm, WarmProgress};
use coprep_protocol::place::Place;
use coprep_protocol::spec::{
    DEFAULT_MAX_PIXELS, Interpolation, Op, PipelineSpec, ResizeTo, Source,
};

use crate::Outcome;
use crate::args;
use crate::progress::Progress;
use coprep_protocol::size::human;

pub(crate) fn run(place: &Place, args: &args::Warm) -> Outcome {
    let request = Warm {
        pipeline: pipeline(&args.folder, &args.fixed, 224)?,
        cache: cache(args),
    };
    let mut shown = Shown::new(args.json);
    let result = control::warm(place, request, |progress| shown.update(progress));
    let done = result?;
    shown.finish(&done);
    Ok(if done.failed > 0 {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

fn cache(args: &args::Warm) -> CacheRequest {
    CacheRequest {
        form: args.form.map(Into::into),
        bytes: args.bytes,
        lru: false,
        reuse: 0,
    }
}

/// The jobs' deterministic operators, and a crop in place of their random ones: what is cached does not
/// depend on those. `random_crop`: its side, pixels.
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
        interpolation,
    }));
    ops.extend(args.center_crop.map(|n| Op::CenterCrop {
        height: n,
        width: n,
    }));
    let (scale, ratio) = ((0.08, 1.0), (0.75, 4.0 / 3.0));
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

/// JSON lines, or for people.
enum Shown {
    Json,
    Progress(Progress),
}

impl Shown {
    fn new(json: bool) -> Self {
        match json {
            true => Shown::Json,
            false => Shown::Progress(Progress::new("samples")),
        }
    }

    fn update(&mut self, p: &WarmProgress) {
        match self {
            Shown::Json => print_json(p),
            Shown::Progress(progress) => progress.update(p.done, p.total, &bytes(p)),
        }
    }

    fn finish(&self, p: &WarmProgress) {
        match self {
            Shown::Json => print_json(p),
            Shown::Progress(progress) => {
                progress.finish();
                println!("{}", summary(p));
            }
        }
    }
}

fn print_json(p: &WarmProgress) {
    // A struct of numbers and a string always serialises.
    println!("{}", serde_json::to_string(p).unwrap_or_default());
}

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
