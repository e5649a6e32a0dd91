//! `coprep warm`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use coprep_client::control;
use coprep_protocol::message::{CacheRequest, Warm, WarmProgress};
use coprep_protocol::place::Place;
use coprep_protocol::spec::{
    DEFAULT_MAX_PIXELS, Interpolation, Op, PipelineSpec, ResizeTo, Source,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Outcome;
use crate::args;
use crate::show::duration;
use coprep_protocol::size::human;

pub(crate) fn run(place: &Place, args: &args::Warm) -> Outcome {
    let request = Warm {
        pipeline: pipeline(args)?,
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
/// depend on those.
fn pipeline(args: &args::Warm) -> Result<PipelineSpec, Box<dyn std::error::Error>> {
    let folder = args
        .folder
        .canonicalize()
        .map_err(|e| format!("{}: {e}", args.folder.display()))?;
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
        height: 224,
        width: 224,
        scale,
        ratio,
        interpolation,
    });
    Ok(PipelineSpec {
        source: Source::ImageFolder { root },
        ops,
    })
}

/// A bar on a terminal, else a line every few seconds, or JSON lines.
enum Shown {
    Json,
    Bar(ProgressBar),
    Lines { started: Instant, last: Instant },
}

const BETWEEN_LINES: Duration = Duration::from_secs(5);

impl Shown {
    fn new(json: bool) -> Self {
        let now = Instant::now();
        match (json, std::io::stderr().is_terminal()) {
            (true, _) => Shown::Json,
            (false, false) => Shown::Lines {
                started: now,
                last: now,
            },
            (false, true) => Shown::Bar(bar()),
        }
    }

    fn update(&mut self, p: &WarmProgress) {
        match self {
            Shown::Json => print_json(p),
            Shown::Bar(bar) => {
                bar.set_length(p.total);
                bar.set_position(p.done);
                bar.set_message(bytes(p));
            }
            Shown::Lines { started, last } if last.elapsed() >= BETWEEN_LINES => {
                *last = Instant::now();
                eprintln!("{}", line(p, started.elapsed().as_secs_f64()));
            }
            Shown::Lines { .. } => {}
        }
    }

    fn finish(&self, p: &WarmProgress) {
        if let Shown::Bar(bar) = self {
            bar.finish_and_clear();
        }
        match self {
            Shown::Json => print_json(p),
            _ => println!("{}", summary(p)),
        }
    }
}

fn bar() -> ProgressBar {
    let plain = "{bar:30} {pos}/{len} samples, {per_sec}, {eta} left, {msg}";
    let style =
        ProgressStyle::with_template(plain).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
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

fn line(p: &WarmProgress, seconds: f64) -> String {
    let rate = p.done as f64 / seconds.max(1e-3);
    let left = (p.total - p.done.min(p.total)) as f64 / rate.max(1e-3);
    format!(
        "{}/{} samples, {rate:.0}/s, {} left, {}",
        p.done,
        p.total,
        duration(left),
        bytes(p)
    )
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
