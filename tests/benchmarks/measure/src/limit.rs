//! The upper bound that coprep is measured against: threads that read, prepare and throw away.
//!
//! Each thread takes the next sample of a shuffled order, reads its file, and prepares it with `RandomResizedCrop(224)`
//! and a flip into private memory. There is no scheduler, no hand-over and no client. A coordinator that serves one job
//! can come near this rate but cannot exceed it.
//!
//! ```text
//! cargo run --release -p coprep-benchmarks --bin limit -- DATA --threads 2 --seconds 8
//! ```
//!
//! `--epochs N` takes every sample N times instead of running for a fixed time, because a part of a dataset may be
//! cheaper than the whole. `--cache encoded` or `--cache decoded` first loads that form of every sample into memory.
//! `--exact` turns reduced decoding off, `--normalize` gives float32.

mod usual;

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coprep_pipeline::{Dataset, DecodedView, Error, Pipeline, SampleKey, Scratch};
use coprep_protocol::spec::{Op, Source};

const USAGE: &str = "usage: limit DATA [--threads N] [--seconds S | --epochs N] [--cache off|encoded|decoded] \
                     [--exact] [--normalize] [--json]";

struct Options {
    data: String,
    threads: usize,
    seconds: u64,
    epochs: Option<u32>,
    cache: Cache,
    exact: bool,
    normalize: bool,
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cache {
    Off,
    Encoded,
    Decoded,
}

/// A sample in memory, in the form that `--cache` names.
struct Kept {
    width: u32,
    height: u32,
    bytes: Vec<u8>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options(std::env::args().skip(1)).ok_or(USAGE)?;
    let root = Path::new(&options.data)
        .canonicalize()?
        .to_string_lossy()
        .into_owned();
    let dataset = Dataset::open(&Source::ImageFolder { root })?;
    let pipeline = Pipeline::compile(&operators(&options))?;
    let kept = keep(&dataset, &pipeline, options.cache)?;
    let done = run(&dataset, &pipeline, &kept, &options)?;
    report(&options, &done);
    Ok(())
}

fn options(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options {
        data: String::new(),
        threads: 2,
        seconds: 8,
        epochs: None,
        cache: Cache::Off,
        exact: false,
        normalize: false,
        json: false,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--threads" => options.threads = arguments.next()?.parse().ok()?,
            "--seconds" => options.seconds = arguments.next()?.parse().ok()?,
            "--epochs" => options.epochs = Some(arguments.next()?.parse().ok()?),
            "--cache" => options.cache = cache(&arguments.next()?)?,
            "--exact" => options.exact = true,
            "--normalize" => options.normalize = true,
            "--json" => options.json = true,
            flag if flag.starts_with('-') => return None,
            data => options.data = data.into(),
        }
    }
    (!options.data.is_empty()).then_some(options)
}

fn cache(name: &str) -> Option<Cache> {
    match name {
        "off" => Some(Cache::Off),
        "encoded" => Some(Cache::Encoded),
        "decoded" => Some(Cache::Decoded),
        _ => None,
    }
}

fn operators(options: &Options) -> Vec<Op> {
    let mut operators = usual::operators(!options.exact);
    if options.normalize {
        operators.push(Op::Normalize {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
        });
    }
    operators
}

/// Reads every file once, so that the run finds it in the page cache, and keeps the form that `cache` asks for.
fn keep(dataset: &Dataset, pipeline: &Pipeline, cache: Cache) -> Result<Vec<Kept>, Error> {
    let mut scratch = Scratch::new();
    let mut file = Vec::new();
    let mut kept = Vec::new();
    for id in 0..dataset.len() {
        dataset.fetch(id, &mut file)?;
        match cache {
            Cache::Off => {}
            Cache::Encoded => kept.push(Kept {
                width: 0,
                height: 0,
                bytes: file.clone(),
            }),
            Cache::Decoded => {
                let shape = pipeline.decoded_size(&file)?;
                let mut bytes = vec![0; shape.bytes()];
                pipeline.decode_into(&file, &mut scratch, &mut bytes)?;
                kept.push(Kept {
                    width: shape.width,
                    height: shape.height,
                    bytes,
                });
            }
        }
    }
    Ok(kept)
}

struct Done {
    images: u64,
    wall: Duration,
    cpu: f64,
}

fn run(
    dataset: &Dataset,
    pipeline: &Pipeline,
    kept: &[Kept],
    options: &Options,
) -> Result<Done, Error> {
    let (next, images) = (AtomicU32::new(0), AtomicU64::new(0));
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let is_over = |position: u32| match options.epochs {
        Some(epochs) => position / dataset.len() >= epochs,
        None => start.elapsed() >= Duration::from_secs(options.seconds),
    };
    let work = || -> Result<(), Error> {
        let mut scratch = Scratch::new();
        let mut file = Vec::new();
        let mut slot = vec![0; pipeline.output().sample_bytes()];
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            if is_over(position) {
                break Ok(());
            }
            let id = shuffled(position, dataset.len());
            let key = SampleKey {
                seed: 0,
                id,
                // Each epoch draws other crops, as in training.
                visit: u64::from(position / dataset.len()),
            };
            match kept.get(id as usize) {
                None => {
                    dataset.fetch(id, &mut file)?;
                    pipeline.prepare_encoded(&file, key, &mut scratch, || &mut slot)?;
                }
                Some(sample) if options.cache == Cache::Encoded => {
                    pipeline.prepare_encoded(&sample.bytes, key, &mut scratch, || &mut slot)?;
                }
                Some(Kept {
                    width,
                    height,
                    bytes,
                }) => {
                    let view = DecodedView {
                        width: *width,
                        height: *height,
                        pixels: bytes,
                    };
                    pipeline.prepare_decoded(view, key, &mut scratch, || &mut slot)?;
                }
            }
            images.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads).map(|_| scope.spawn(work)).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|p| std::panic::resume_unwind(p))
        };
        threads.into_iter().try_for_each(join)
    })?;
    Ok(Done {
        images: images.into_inner(),
        wall: start.elapsed(),
        cpu: cpu_seconds() - cpu,
    })
}

/// Maps a position by a fixed permutation of the samples, the same for every epoch. The permutation is a
/// step coprime to their number.
fn shuffled(position: u32, samples: u32) -> u32 {
    // A step of about half the samples takes neighbours from far apart, as a random order does.
    let steps = (samples / 2 + 1..)
        .find(|&step| gcd(step, samples) == 1)
        .unwrap_or(1);
    (u64::from(position) * u64::from(steps) % u64::from(samples)) as u32
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the CPU time of this process, including ended threads. The kernel counts it in hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program may hold spaces and brackets, but the last bracket ends it.
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = |field: usize| {
        after_name
            .split(' ')
            .nth(field)
            .and_then(|f| f.parse().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}

fn report(options: &Options, done: &Done) {
    let rate = done.images as f64 / done.wall.as_secs_f64();
    let cpu = done.cpu * 1000.0 / done.images as f64;
    if options.json {
        println!(
            "{{\"threads\": {}, \"cache\": \"{:?}\", \"images\": {}, \"images_per_second\": {rate:.1}, \
             \"cpu_seconds_per_1000\": {cpu:.3}}}",
            options.threads, options.cache, done.images
        );
    } else {
        println!(
            "{rate:.0} images/s, {cpu:.3} CPU seconds per 1,000 ({} images)",
            done.images
        );
    }
}
