//! What the command line may say.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgGroup, Args as ClapArgs, CommandFactory, Parser, Subcommand, ValueEnum};
use coprep_protocol::message::CacheForm;
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::size;
use coprep_protocol::spec::Interpolation;

use crate::metrics;

/// Coordinated data preparation: concurrent training jobs share one preparation of their data.
#[derive(Parser)]
#[command(name = "coprep", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Socket of the coordinator.
    #[arg(long, global = true, env = "COPREP_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Reads the command line and the environment; ends the process where they make no sense.
    pub(crate) fn read() -> Self {
        let given: Vec<OsString> = std::env::args_os().collect();
        Args::try_parse_from(&given).unwrap_or_else(|mut error| {
            name_the_variable(&mut error, &given);
            error.exit()
        })
    }

    pub(crate) fn place(&self) -> CoordinatorPaths {
        self.socket
            .clone()
            .map_or_else(CoordinatorPaths::from_env, CoordinatorPaths::at)
    }
}

/// Says of a wrong value which environment variable has it, if it was not given as an option.
fn name_the_variable(error: &mut clap::Error, given: &[OsString]) {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    let typed = option.split([' ', '=']).next().unwrap_or(option);
    let is_given = |argument: &OsString| {
        let text = argument.to_string_lossy();
        text.split('=').next() == Some(typed)
    };
    let command = Args::command();
    let all = command.get_subcommands().flat_map(|c| c.get_arguments());
    let is_it = |long: &str| typed.strip_prefix("--") == Some(long);
    let mut found = all.filter(|argument| argument.get_long().is_some_and(is_it));
    let variable = found.find_map(|argument| argument.get_env());
    let variable = variable.filter(|name| std::env::var_os(name).is_some());
    if let Some(name) = variable.filter(|_| !given.iter().any(is_given)) {
        let name = format!("{} (environment variable)", name.to_string_lossy());
        error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a coordinator in the foreground (jobs start one by themselves if there is none).
    Serve(ServeArgs),
    /// Fill the cache of a dataset before the jobs come. Interrupted, it goes on where it was.
    Warm(WarmArgs),
    /// Show streams, jobs and caches.
    Status(StatusArgs),
    /// Watch streams, jobs and caches on a live screen.
    Top(TopArgs),
    /// End the coordinator; its caches are freed.
    Stop,
    /// Free caches that no job uses, and named segments that no coordinator has.
    Drop {
        /// Only of this dataset: its folder, or its name as `coprep status` shows it.
        dataset: Option<String>,
    },
    /// Say where an epoch's time goes, and what would help.
    Analyze(AnalyzeArgs),
    /// Say how fast a folder of images is prepared here, beside PyTorch's DataLoader if that is there.
    Bench(BenchArgs),
    /// Read datasets more slowly from now on, to see what slower storage does to the jobs; without options: as before.
    Throttle(ThrottleArgs),
    /// Say what on this machine would go wrong, and what to do about it.
    Doctor(DoctorArgs),
}

#[derive(ClapArgs)]
pub(crate) struct ServeArgs {
    /// Bytes all caches may take together, such as 8G; 0: no cache [default: a quarter of the free memory].
    #[arg(long, env = "COPREP_CACHE", value_parser = size::parse, value_name = "SIZE")]
    pub(crate) cache: Option<u64>,
    /// Form of cached samples, where a job does not say.
    #[arg(long, env = "COPREP_CACHE_FORM", value_enum, default_value_t = FormArg::Auto)]
    pub(crate) cache_form: FormArg,
    /// Keep caches in named segments, which a restarted coordinator takes over warm.
    #[arg(long, env = "COPREP_CACHE_NAME", value_parser = cache_name, value_name = "NAME")]
    pub(crate) cache_name: Option<String>,
    /// Bytes of one stream's staging area.
    #[arg(long, env = "COPREP_STAGING", value_parser = size::parse, default_value = "256M", value_name = "SIZE")]
    pub(crate) staging: u64,
    /// Processors that decode and augment: leave some to training [default: all that this process may use].
    #[arg(long, visible_alias = "workers", env = "COPREP_WORKERS", value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    pub(crate) cpus: Option<u16>,
    /// Read datasets at no more than this many bytes a second, to see what slower storage would do.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", help_heading = "Experiments")]
    pub(crate) storage_rate: Option<u64>,
    /// Let each read of a file take this long beside, such as 5ms.
    #[arg(long, value_parser = milliseconds, value_name = "TIME", help_heading = "Experiments")]
    pub(crate) storage_latency: Option<Duration>,
    /// Hand the same minibatches over again and again, unprepared and with wrong labels: to see how fast jobs are.
    #[arg(long, help_heading = "Experiments")]
    pub(crate) replay: bool,
    /// Measure what samples cost; off: nothing follows from it, for comparison.
    #[arg(long, env = "COPREP_COSTS", value_enum, default_value_t = Switch::On, help_heading = "Experiments")]
    pub(crate) costs: Switch,
    /// Tell apart what jobs wait for; off: all of it counts as waiting for other jobs, for comparison.
    #[arg(long, env = "COPREP_ATTRIBUTION", value_enum, default_value_t = Switch::On, help_heading = "Experiments")]
    pub(crate) attribution: Switch,
    /// End after this many seconds without a connection; 0: never [default: 0, or 60 if a job started it].
    #[arg(long, env = "COPREP_IDLE", value_name = "SECONDS")]
    pub(crate) idle: Option<u64>,
    /// The same while a warmed cache is held [default: 3600].
    #[arg(long, env = "COPREP_IDLE_WARM", value_name = "SECONDS")]
    pub(crate) idle_warm: Option<u64>,
    /// Serve metrics for Prometheus at this address of this machine, such as 127.0.0.1:9400; port 0: any free one.
    #[arg(long, env = "COPREP_METRICS", value_parser = metrics::loopback, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// How the log is written.
    #[arg(long, env = "COPREP_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Started by a job: end when idle.
    #[arg(long, hide = true)]
    pub(crate) auto: bool,
    /// Descriptor on which to say that the coordinator is ready, or why not.
    #[arg(long, hide = true, value_name = "FD")]
    pub(crate) ready_fd: Option<i32>,
}

#[derive(ClapArgs)]
pub(crate) struct ThrottleArgs {
    /// Bytes a second that all reads together get.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub(crate) rate: Option<u64>,
    /// What each read of a file takes beside, such as 5ms.
    #[arg(long, value_parser = milliseconds, value_name = "TIME")]
    pub(crate) latency: Option<Duration>,
}

fn cache_name(text: &str) -> Result<String, String> {
    coprep_coordinator::check_cache_name(text).map_err(|e| e.to_string())?;
    Ok(text.into())
}

fn sensible_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.1 to 3600".into()),
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.trim().parse::<f64>().map(|n| n * unit);
    seconds
        .ok()
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| format!("'{text}' is no time such as 5ms or 0.1s"))
}

#[derive(ClapArgs)]
#[command(group = ArgGroup::new("what").required(true).args(["folder", "from"]))]
pub(crate) struct WarmArgs {
    /// Folder with one subfolder per class.
    pub(crate) folder: Option<PathBuf>,
    /// Take datasets, operators and cache settings from a training script, which runs until its first iteration over a
    /// coprep.DataLoader; or from an import string `module:attribute` of a pipeline, a dataset or a loader.
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = ["form", "bytes", "resize", "center_crop", "exif", "interpolation"])]
    pub(crate) from: Option<OsString>,
    /// Arguments of that script.
    #[arg(last = true, value_name = "ARGUMENTS", requires = "from")]
    pub(crate) arguments: Vec<OsString>,
    /// Python that runs the script [default: the environment's, that beside coprep, python3].
    #[arg(long, value_name = "PATH", requires = "from")]
    pub(crate) python: Option<PathBuf>,
    /// Form of the cached samples [default: the coordinator's].
    #[arg(long, value_enum)]
    pub(crate) form: Option<FormArg>,
    /// Bytes to cache at most [default: what the dataset needs, within the coordinator's budget].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub(crate) bytes: Option<u64>,
    #[command(flatten)]
    pub(crate) fixed: Fixed,
    /// Print JSON lines instead of a progress bar.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(ClapArgs)]
pub(crate) struct StatusArgs {
    /// Show of each stream so many samples, those that cost most.
    #[arg(long, value_name = "N", default_value_t = 0, default_missing_value = "10", num_args = 0..=1)]
    pub(crate) slow: u32,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The deterministic operators of a pipeline.
#[derive(ClapArgs)]
pub(crate) struct Fixed {
    /// The jobs' pipeline has `.resize(N)` before its first random operator.
    #[arg(long, value_name = "N")]
    pub(crate) resize: Option<u32>,
    /// Filter of that `.resize(N)`, if it is not bilinear.
    #[arg(long, value_enum, value_name = "FILTER", requires = "resize", default_value_t = Filter::Bilinear, hide_default_value = true)]
    pub(crate) interpolation: Filter,
    /// The jobs' pipeline has `.center_crop(N)` before its first random operator.
    #[arg(long, value_name = "N")]
    pub(crate) center_crop: Option<u32>,
    /// The jobs' pipeline decodes with `apply_exif_orientation=True`.
    #[arg(long)]
    pub(crate) exif: bool,
}

/// A filter of a resize, on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Filter {
    Nearest,
    Bilinear,
    Bicubic,
}

impl From<Filter> for Interpolation {
    fn from(filter: Filter) -> Self {
        match filter {
            Filter::Nearest => Interpolation::Nearest,
            Filter::Bilinear => Interpolation::Bilinear,
            Filter::Bicubic => Interpolation::Bicubic,
        }
    }
}

/// A pipeline of images, and how it is run.
#[derive(ClapArgs)]
pub(crate) struct Images {
    #[command(flatten)]
    pub(crate) fixed: Fixed,
    /// The jobs' pipeline has `.random_resized_crop(N)`.
    #[arg(long, value_name = "N", default_value_t = 224, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub(crate) image_size: u32,
    /// Samples of a batch.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) batch_size: u32,
    /// Processors that prepare [default: all that this process may use].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    pub(crate) cpus: Option<u16>,
}

#[derive(ClapArgs)]
pub(crate) struct AnalyzeArgs {
    /// Folder with one subfolder per class, prepared as the options say.
    pub(crate) folder: Option<PathBuf>,
    /// A training script that uses coprep, with its arguments: it is run as it is for some seconds.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "folder")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) images: Images,
    /// What a job does with a batch takes this long, such as 50ms [default: unknown, it takes batches as they come].
    #[arg(long, value_parser = milliseconds, value_name = "TIME")]
    pub(crate) step_time: Option<Duration>,
    /// Jobs at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) jobs: u32,
    /// The jobs do not share: each has its own loader.
    #[arg(long)]
    pub(crate) unshared: bool,
    /// Bytes the cache may take [default: a quarter of the free memory, as `serve` has it].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub(crate) cache: Option<u64>,
    /// Form of cached samples.
    #[arg(long, value_enum, default_value_t = FormArg::Auto)]
    pub(crate) form: FormArg,
    /// As if storage read no more than this many bytes a second.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub(crate) storage_rate: Option<u64>,
    /// As if each read took this long beside, such as 5ms.
    #[arg(long, value_parser = milliseconds, value_name = "TIME")]
    pub(crate) storage_latency: Option<Duration>,
    /// Seconds of each measurement; there are eight or so.
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0, value_parser = sensible_seconds)]
    pub(crate) seconds: f64,
    /// Measure nothing, and predict for other settings from what was measured for this report: JSON, or a page.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["folder", "command"])]
    pub(crate) again: Option<PathBuf>,
    /// Measure nothing, and show the report of this file: JSON, or a page.
    #[arg(long, value_name = "FILE")]
    pub(crate) render: Option<PathBuf>,
    /// Write the report as a page to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(ClapArgs)]
pub(crate) struct BenchArgs {
    /// Folder with one subfolder per class, prepared as the options say.
    pub(crate) folder: PathBuf,
    #[command(flatten)]
    pub(crate) images: Images,
    /// Jobs at the same time, beside one alone.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) jobs: u32,
    /// Seconds of each measurement; there are seven.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = sensible_seconds)]
    pub(crate) seconds: f64,
    /// Python with torch and torchvision, to compare with [default: the environment's, that beside coprep, python3].
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Be one of the jobs: orders come on stdin.
    #[arg(long, hide = true)]
    pub(crate) consumer: bool,
}

#[derive(ClapArgs)]
pub(crate) struct TopArgs {
    /// Time between two looks at the coordinator, such as 0.5s.
    #[arg(long, value_parser = interval, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print one look, after an interval, and end.
    #[arg(long)]
    pub(crate) once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let sensible = Duration::from_millis(100)..=Duration::from_secs(3600);
    milliseconds(text).and_then(|time| {
        if sensible.contains(&time) {
            Ok(time)
        } else {
            Err("from 0.1s to 3600s".into())
        }
    })
}

#[derive(ClapArgs)]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Something that is on or off, on the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    #[value(aliases = ["true", "yes", "1"])]
    On,
    #[value(aliases = ["false", "no", "0"])]
    Off,
}

/// How a log is written.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object per line.
    Json,
}

/// A cache's form, on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FormArg {
    /// Nothing is cached.
    Off,
    /// As read from storage.
    Encoded,
    /// After decode and the deterministic operators.
    Decoded,
    /// For each sample the form that saves most time for its bytes, or none.
    Auto,
}

impl From<FormArg> for CacheForm {
    fn from(form: FormArg) -> Self {
        match form {
            FormArg::Off => CacheForm::Off,
            FormArg::Encoded => CacheForm::Encoded,
            FormArg::Decoded => CacheForm::Decoded,
            FormArg::Auto => CacheForm::Auto,
        }
    }
}
