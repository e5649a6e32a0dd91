//! The command line: commands, options and their help texts.
//!
//! The doc comments of commands and options are the texts of `--help`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgGroup, Args as ClapArgs, CommandFactory, Parser, Subcommand, ValueEnum};
use coprep_measurement::images::ImageOperators;
use coprep_protocol::message::CacheForm;
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::shard_list::{DEFAULT_IMAGE, DEFAULT_LABEL};
use coprep_protocol::size;
use coprep_protocol::spec::Interpolation;

/// The version. It shows a build for tests, so that nobody measures with one unawares.
const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), " (debug build: slow)")
} else {
    env!("CARGO_PKG_VERSION")
};

/// Coordinated data preparation: concurrent training jobs share one preparation of their data.
#[derive(Parser)]
#[command(name = "coprep", version = VERSION, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Use this socket of the coordinator.
    #[arg(long, global = true, env = "COPREP_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// Reads the command line and the environment. Ends the process with a message if they are wrong.
    pub(crate) fn read() -> Self {
        let given: Vec<OsString> = std::env::args_os().collect();
        Args::try_parse_from(&given).unwrap_or_else(|mut error| {
            name_the_variable(&mut error, &given);
            error.exit()
        })
    }

    /// Returns the paths of the coordinator's socket and of the files beside it.
    pub(crate) fn paths(&self) -> CoordinatorPaths {
        self.socket
            .clone()
            .map_or_else(CoordinatorPaths::from_env, CoordinatorPaths::at)
    }
}

/// Names the environment variable in an error about a wrong value, if the value came from there and not from an option.
fn name_the_variable(error: &mut clap::Error, given: &[OsString]) {
    // clap names the option, even if its value came from the environment.
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
    /// Fill the cache of a dataset before the jobs start. Run it again to resume an interrupted warm-up.
    Warm(WarmArgs),
    /// Find the samples of tar shards beforehand, so that no job has to when it opens them.
    Index(IndexArgs),
    /// Show streams, jobs and caches.
    Status(StatusArgs),
    /// Watch streams, jobs and caches on a live screen.
    Top(TopArgs),
    /// Stop the coordinator and free its caches. Named segments stay for the next coordinator.
    Stop,
    /// Free the caches that no job uses, and named segments that no coordinator uses.
    Drop {
        /// Free only the caches of this dataset: its folder, or its name as `coprep status` shows it.
        dataset: Option<String>,
    },
    /// Show where an epoch's time goes, and which changes would help.
    Analyze(AnalyzeArgs),
    /// Measure how fast a folder of images is prepared here, and compare with PyTorch's DataLoader if it is installed.
    Bench(BenchArgs),
    /// Slow down reads of datasets, to see how jobs fare with slower storage. Without options, end the slowdown.
    Throttle(ThrottleArgs),
    /// Find problems of this machine that would hurt coprep, and say how to fix each.
    Doctor(DoctorArgs),
    /// Say whether a GPU can be used, for a job whose own process has not begun to use CUDA.
    #[command(hide = true)]
    CheckGpu {
        /// Number of the GPU among those that CUDA_VISIBLE_DEVICES leaves visible.
        number: u32,
    },
    /// Copy minibatches to a GPU, for the coordinator at the other end of standard input.
    #[command(hide = true)]
    Uploader {
        /// UUID of the GPU.
        uuid: String,
    },
}

#[derive(ClapArgs)]
pub(crate) struct ServeArgs {
    /// Limit all caches together to this many bytes, such as 8G; 0: no cache [default: a quarter of the free memory].
    #[arg(long, env = "COPREP_CACHE", value_parser = size::parse, value_name = "SIZE")]
    pub(crate) cache: Option<u64>,
    /// Cache samples in this form, unless a job asks for another.
    #[arg(long, env = "COPREP_CACHE_FORM", value_enum, default_value_t = FormArg::Auto)]
    pub(crate) cache_form: FormArg,
    /// Keep caches in named segments, which a restarted coordinator takes over warm.
    #[arg(long, env = "COPREP_CACHE_NAME", value_parser = cache_name, value_name = "NAME")]
    pub(crate) cache_name: Option<String>,
    /// Keep samples of remote and slow storage in this folder of a local disk, below the caches in memory.
    #[arg(long, env = "COPREP_DISK_CACHE", value_parser = disk_folder, requires = "disk_bytes", value_name = "FOLDER")]
    pub(crate) disk_cache: Option<PathBuf>,
    /// Limit all files in that folder together to this many bytes, such as 500G.
    #[arg(long, env = "COPREP_DISK_BYTES", value_parser = size::parse, requires = "disk_cache", value_name = "SIZE")]
    pub(crate) disk_bytes: Option<u64>,
    /// Reserve this many bytes for the staging area of each stream.
    #[arg(long, env = "COPREP_STAGING", value_parser = size::parse, default_value = "256M", value_name = "SIZE")]
    pub(crate) staging: u64,
    /// Share uploads within this many bytes of each GPU's memory, and a twentieth of the GPU at most; 0: never share.
    #[arg(long, env = "COPREP_DEVICE_MEMORY", value_parser = size::parse, default_value = "1G", value_name = "SIZE")]
    pub(crate) device_memory: u64,
    /// Use this many processors to decode and augment: leave some to training [default: all that this process may use].
    #[arg(long, visible_alias = "workers", env = "COPREP_WORKERS", value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    pub(crate) cpus: Option<u16>,
    /// Wait this many seconds for remote storage that does not answer, before its jobs get an error.
    #[arg(
        long,
        env = "COPREP_STORAGE_PATIENCE",
        default_value_t = 600,
        value_name = "SECONDS"
    )]
    pub(crate) storage_patience: u64,
    /// Read datasets at no more than this many bytes a second, to see what slower storage would do.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", help_heading = "Experiments")]
    pub(crate) storage_rate: Option<u64>,
    /// Delay each read of a file by this time, such as 5ms.
    #[arg(long, value_parser = milliseconds, value_name = "TIME", help_heading = "Experiments")]
    pub(crate) storage_latency: Option<Duration>,
    /// Deliver the same minibatches over and over, unprepared and with wrong labels, to see how fast the jobs are.
    #[arg(long, help_heading = "Experiments")]
    pub(crate) replay: bool,
    /// Measure the cost of each sample; off: treat all samples alike, for comparison.
    #[arg(long, env = "COPREP_COSTS", value_enum, default_value_t = Switch::On, help_heading = "Experiments")]
    pub(crate) costs: Switch,
    /// Tell apart the reasons for which jobs wait; off: count all waits as waits for other jobs, for comparison.
    #[arg(long, env = "COPREP_ATTRIBUTION", value_enum, default_value_t = Switch::On, help_heading = "Experiments")]
    pub(crate) attribution: Switch,
    /// Compare cached samples with their files for each job that starts; off: files never change.
    #[arg(long, env = "COPREP_CHECK_FILES", value_enum, default_value_t = Switch::On)]
    pub(crate) check_files: Switch,
    /// End after this many seconds without a connection; 0: never [default: 0, or 60 if a job started it].
    #[arg(long, env = "COPREP_IDLE", value_name = "SECONDS")]
    pub(crate) idle: Option<u64>,
    /// End after this many seconds without a connection while a warmed cache is held [default: 3600].
    #[arg(long, env = "COPREP_IDLE_WARM", value_name = "SECONDS")]
    pub(crate) idle_warm: Option<u64>,
    /// Serve metrics for Prometheus at this address of this machine, such as 127.0.0.1:9400; port 0: any free port.
    #[arg(long, env = "COPREP_METRICS", value_parser = coprep_metrics::loopback, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Write the log in this format.
    #[arg(long, env = "COPREP_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// End when idle: a job started this coordinator.
    #[arg(long, hide = true)]
    pub(crate) auto: bool,
    /// Report on this descriptor that the coordinator is ready, or why it is not.
    #[arg(long, hide = true, value_name = "FD")]
    pub(crate) ready_fd: Option<i32>,
}

#[derive(ClapArgs)]
pub(crate) struct ThrottleArgs {
    /// Limit all reads together to this many bytes a second.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub(crate) rate: Option<u64>,
    /// Delay each read of a file by this time, such as 5ms.
    #[arg(long, value_parser = milliseconds, value_name = "TIME")]
    pub(crate) latency: Option<Duration>,
}

fn cache_name(text: &str) -> Result<String, String> {
    coprep_coordinator::check_cache_name(text).map_err(|e| e.to_string())?;
    Ok(text.into())
}

fn disk_folder(text: &str) -> Result<PathBuf, String> {
    coprep_coordinator::check_disk_folder(text).map_err(|e| e.to_string())
}

/// Parses the seconds of a measurement.
fn sensible_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.1 to 3600".into()),
    }
}

/// Parses a time such as `5ms`, `0.1s` or `2`. Without a unit it is in seconds.
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
    /// Folder of images with one subfolder per class, tar shards, such as 's3://bucket/train-{000..099}.tar' (quoted), or
    /// parquet files.
    pub(crate) folder: Option<PathBuf>,
    /// Take datasets, operators and cache settings from a training script, which runs until its first iteration over a
    /// coprep.DataLoader; or from an import string `module:attribute` of a pipeline, a dataset or a loader.
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = ["form", "bytes", "resize", "center_crop", "exif", "interpolation"])]
    pub(crate) from: Option<OsString>,
    /// Pass these arguments to the script.
    #[arg(last = true, value_name = "ARGUMENTS", requires = "from")]
    pub(crate) arguments: Vec<OsString>,
    /// Run the script with this Python [default: the environment's, the one beside coprep, python3].
    #[arg(long, value_name = "PATH", requires = "from")]
    pub(crate) python: Option<PathBuf>,
    /// Cache samples in this form [default: the coordinator's].
    #[arg(long, value_enum)]
    pub(crate) form: Option<FormArg>,
    /// Cache at most this many bytes [default: the whole dataset, within the coordinator's budget].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub(crate) bytes: Option<u64>,
    /// Keep the cache until `coprep drop`. Otherwise it gives way, once no job uses it, when another dataset needs the room.
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) fixed: Fixed,
    #[command(flatten)]
    pub(crate) parts: Parts,
    /// Print JSON lines instead of a progress bar.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The parts of samples in tar shards, or the columns of parquet files, that are used.
#[derive(ClapArgs)]
pub(crate) struct Parts {
    /// Of shards: take the first of these files of a sample as its image. Of parquet files: take this column; image if it
    /// is left out.
    #[arg(long, value_name = "ENDINGS", default_value = DEFAULT_IMAGE, help_heading = "Tar shards and parquet files")]
    pub(crate) image: String,
    /// Of shards: take the label from this file, such as cls, or json:FIELD; none: no labels. Of parquet files: take this
    /// column; label if it is left out.
    #[arg(long, value_name = "PART", default_value = DEFAULT_LABEL, help_heading = "Tar shards and parquet files")]
    label: String,
}

impl Parts {
    /// Returns the part with the label, or `None` for no labels.
    pub(crate) fn label(&self) -> Option<&str> {
        Some(self.label.as_str()).filter(|label| *label != "none")
    }
}

#[derive(ClapArgs)]
pub(crate) struct IndexArgs {
    /// Paths or URLs of tar shards, with or without braces: 's3://bucket/train-{000..099}.tar'.
    #[arg(required = true, value_name = "SHARDS")]
    pub(crate) shards: Vec<String>,
    /// Also write the indexes into this folder: put them beside the shards, and nobody has to make them.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Read all shards to their ends, also those that have an index, and keep a checksum of each image.
    #[arg(long)]
    pub(crate) checksums: bool,
    #[command(flatten)]
    pub(crate) parts: Parts,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(ClapArgs)]
pub(crate) struct StatusArgs {
    /// Show the N most expensive samples of each stream.
    #[arg(long, value_name = "N", default_value_t = 0, default_missing_value = "10", num_args = 0..=1)]
    pub(crate) slow: u32,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The deterministic operators of a pipeline.
#[derive(ClapArgs)]
pub(crate) struct Fixed {
    /// Apply `.resize(N)` before the first random operator, as the jobs' pipeline does.
    #[arg(long, value_name = "N")]
    pub(crate) resize: Option<u32>,
    /// Resize with this filter, if it is not bilinear.
    #[arg(long, value_enum, value_name = "FILTER", requires = "resize", default_value_t = Filter::Bilinear, hide_default_value = true)]
    pub(crate) interpolation: Filter,
    /// Apply `.center_crop(N)` before the first random operator, as the jobs' pipeline does.
    #[arg(long, value_name = "N")]
    pub(crate) center_crop: Option<u32>,
    /// Decode with `apply_exif_orientation=True`, as the jobs' pipeline does.
    #[arg(long)]
    pub(crate) exif: bool,
}

/// A resize filter, on the command line.
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

/// Options that describe a pipeline of images and how it runs.
#[derive(ClapArgs)]
pub(crate) struct Images {
    #[command(flatten)]
    pub(crate) fixed: Fixed,
    /// Apply `.random_resized_crop(N)`, as the jobs' pipeline does.
    #[arg(long, value_name = "N", default_value_t = 224, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub(crate) image_size: u32,
    /// Take batches of this many samples.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) batch_size: u32,
    /// Prepare with this many processors [default: all that this process may use].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    pub(crate) cpus: Option<u16>,
}

impl Fixed {
    /// Returns these operators, with a random crop of this size after them.
    pub(crate) fn then_crop(&self, image_size: u32) -> ImageOperators {
        ImageOperators {
            resize: self.resize,
            interpolation: self.interpolation.into(),
            center_crop: self.center_crop,
            exif: self.exif,
            image_size,
        }
    }
}

impl Images {
    /// Returns the operators of the pipeline.
    pub(crate) fn operators(&self) -> ImageOperators {
        self.fixed.then_crop(self.image_size)
    }
}

#[derive(ClapArgs)]
pub(crate) struct AnalyzeArgs {
    /// Folder of images with one subfolder per class, prepared as the options say.
    pub(crate) folder: Option<PathBuf>,
    /// A training script that uses coprep, with its arguments. It runs unchanged for some seconds.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "folder")]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) images: Images,
    /// Assume that a job computes this long on each batch, such as 50ms [default: unknown, as fast as batches come].
    #[arg(long, value_parser = milliseconds, value_name = "TIME", conflicts_with = "command")]
    pub(crate) step_time: Option<Duration>,
    /// Assume this many jobs at the same time [default: 1, or as many as the script starts].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) jobs: Option<u32>,
    /// Assume that the jobs do not share: each has its own loader.
    #[arg(long)]
    pub(crate) unshared: bool,
    /// Assume a cache of this many bytes [default: a quarter of the free memory, as for `serve`].
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub(crate) cache: Option<u64>,
    /// Assume cached samples in this form [default: auto].
    #[arg(long, value_enum)]
    pub(crate) form: Option<FormArg>,
    /// Assume storage that reads no more than this many bytes a second.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub(crate) storage_rate: Option<u64>,
    /// Assume that each read of a file takes this much longer, such as 5ms.
    #[arg(long, value_parser = milliseconds, value_name = "TIME", conflicts_with = "again")]
    pub(crate) storage_latency: Option<Duration>,
    /// Spend this many seconds on each of about eight measurements.
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0, value_parser = sensible_seconds)]
    pub(crate) seconds: f64,
    /// Predict for other settings from the measurements of this report (JSON, or a page). Measure nothing. The report's
    /// settings count unless they are given anew.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["folder", "command"])]
    pub(crate) again: Option<PathBuf>,
    /// Show the report of this file (JSON, or a page). Measure nothing.
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
    /// Folder of images with one subfolder per class, prepared as the options say.
    pub(crate) folder: PathBuf,
    #[command(flatten)]
    pub(crate) images: Images,
    /// Measure this many jobs at the same time, and one job alone.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) jobs: u32,
    /// Spend this many seconds on each of seven measurements.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = sensible_seconds)]
    pub(crate) seconds: f64,
    /// Compare with torch and torchvision of this Python [default: the environment's, the one beside coprep, python3].
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Run as one of the jobs: orders come on stdin.
    #[arg(long, hide = true)]
    pub(crate) consumer: bool,
}

#[derive(ClapArgs)]
pub(crate) struct TopArgs {
    /// Ask the coordinator once per interval of this length, such as 0.5s.
    #[arg(long, value_parser = interval, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print the state once, after an interval, and end.
    #[arg(long)]
    pub(crate) once: bool,
}

/// Parses the interval between two looks.
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
    /// Check these remote stores too, such as s3://bucket/folder: address, credentials, listing, speed of a read
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// An option that is on or off.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    #[value(aliases = ["true", "yes", "1"])]
    On,
    #[value(aliases = ["false", "no", "0"])]
    Off,
}

/// Format of the log.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum LogFormat {
    /// Write lines for people.
    Text,
    /// Write a JSON object per line.
    Json,
}

/// Form of cached samples, on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FormArg {
    /// Cache nothing.
    Off,
    /// Cache samples as read from storage.
    Encoded,
    /// Cache samples after decode and the deterministic operators.
    Decoded,
    /// Choose for each sample the form that saves most time for its bytes, or none.
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
