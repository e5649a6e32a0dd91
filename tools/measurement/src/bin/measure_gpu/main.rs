//! Measures the parts of a batch's way to a GPU, without a loader and without a model.
//!
//! ```sh
//! cargo run --release -p coprep-measurement --bin measure_gpu            # bandwidths, pinning, kernels
//! cargo run --release -p coprep-measurement --bin measure_gpu latency    # single uploads, for instance under load
//! ```
//!
//! It prints one JSON object. `tests/benchmarks/gpu` makes tables of it. Beside the fake driver of `tests/fake_cuda` it
//! runs too, and says `"is_fake": true`: no figure means anything then.
//!
//! | module | purpose |
//! |---|---|
//! | [`area`] | a staging area of minibatches, filled as a coordinator fills it |
//! | [`clock`] | how long a GPU takes for work, without the time that it takes to ask for it |
//! | [`uploads`] | bandwidth of copies to the GPU, by the kind of host memory |
//! | [`pinning`] | how long it takes to pin the staging area |
//! | [`kernels`] | conversion on the GPU: its time, and its bits against the CPU's |
//! | [`latency`] | how long single uploads take |

mod area;
mod clock;
mod kernels;
mod latency;
mod pinning;
mod uploads;

use clap::{Parser, Subcommand};
use coprep_device::{Context, Driver, Gpu};
use coprep_measurement::Result;
use serde::Serialize;

/// Beginning of the name of the GPUs of `tests/fake_cuda`.
const FAKE: &str = "Fake GPU";

/// Measure the parts of a batch's way to a GPU
#[derive(Parser)]
#[command(name = "measure_gpu")]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Measure single uploads of a minibatch, with a pause after each
    Latency {
        /// Measure for this long
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
    },
}

/// The sizes of everything that is measured.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Settings {
    /// Use the GPU with this number
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// Measure everything this many times, in turn
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Put this many uploads into a stream at a time
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    copies: u32,
    /// Put this many conversions into a stream at a time
    // The driver has room for about a thousand in a stream. Beyond that, the next one waits.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=800))]
    launches: u32,
    /// Make minibatches of this many images of 3 x 224 x 224
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    images: u32,
    /// Make staging areas of this many MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    staging: u32,
}

/// The GPU that was measured.
#[derive(Serialize)]
struct About {
    name: String,
    is_fake: bool,
    uuid: String,
    compute_capability: (u32, u32),
    memory_bytes: u64,
    cuda: String,
    pins_read_only: bool,
}

impl About {
    fn of(driver: Driver, gpu: Gpu) -> Result<Self> {
        let name = gpu.name()?;
        Ok(About {
            is_fake: name.starts_with(FAKE),
            name,
            uuid: gpu.uuid()?.to_string(),
            compute_capability: gpu.compute_capability()?,
            memory_bytes: gpu.memory_bytes()?,
            cuda: driver.version()?.to_string(),
            pins_read_only: gpu.pins_read_only()?,
        })
    }
}

#[derive(Serialize)]
struct Everything {
    gpu: About,
    images: u32,
    repeat: u32,
    pinning: pinning::Pinning,
    uploads: Vec<uploads::Upload>,
    kernels: Vec<kernels::Kernel>,
    plain_copy: kernels::PlainCopy,
}

#[derive(Serialize)]
struct Latency {
    gpu: About,
    latency: latency::Latency,
}

fn main() {
    if let Err(error) = run(&Arguments::parse()) {
        eprintln!("measure_gpu: {error}");
        std::process::exit(1);
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let settings = arguments.settings;
    let driver = Driver::load()?;
    let gpu = Gpu::at(driver, settings.gpu)?;
    let context = Context::retain(gpu)?;
    let about = About::of(driver, gpu)?;
    let json = match arguments.task {
        None => serde_json::to_string(&measure_all(about, &context, settings)?)?,
        Some(Task::Latency { seconds }) => serde_json::to_string(&Latency {
            gpu: about,
            latency: latency::measure(&context, settings, seconds)?,
        })?,
    };
    println!("{json}");
    Ok(())
}

fn measure_all(gpu: About, context: &Context, settings: Settings) -> Result<Everything> {
    let pinning = pinning::measure(context, settings)?;
    let mut uploads = uploads::Bench::prepare(context, settings)?;
    let mut kernels = kernels::Bench::prepare(context, settings)?;
    // In turn, so that a slow moment of the machine hits all of them.
    for _ in 0..settings.repeat {
        uploads.measure_each()?;
        kernels.measure_each()?;
    }
    let (kernels, plain_copy) = kernels.results()?;
    Ok(Everything {
        gpu,
        images: settings.images,
        repeat: settings.repeat,
        pinning,
        uploads: uploads.results(),
        kernels,
        plain_copy,
    })
}
