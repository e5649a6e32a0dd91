//! A job of coprep that takes batches and does nothing else. [`jobs`](super::jobs) describes its orders.

use std::io::BufRead;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::ValueEnum;
use coprep_protocol::message::CacheForm;
use coprep_protocol::paths::CoordinatorPaths;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::args::{self, FormArg};
use crate::measure::job::{JobOptions, MeasuredJob};

/// Orders to one job, in addition to its command line.
#[derive(Serialize, Deserialize)]
struct ConsumerConfig {
    /// Form of cached samples, as on the command line.
    form: String,
    ids: Vec<u32>,
}

/// Returns the order to a job, which [`run`] reads as [`ConsumerConfig`].
pub(super) fn order(form: CacheForm, ids: &[u32]) -> serde_json::Value {
    let form = match form {
        CacheForm::Encoded => "encoded",
        CacheForm::Decoded => "decoded",
        _ => "off",
    };
    serde_json::json!({ "form": form, "ids": ids })
}

/// Returns the command that starts [`run`] in another process, with the arguments that matter to it.
pub(super) fn command(program: &Path, place: &CoordinatorPaths, args: &args::BenchArgs) -> Command {
    let (images, fixed) = (&args.images, &args.images.fixed);
    let mut command = Command::new(program);
    command.args(["bench", "--consumer"]);
    command.arg(format!("--image-size={}", images.image_size));
    command.arg(format!("--batch-size={}", images.batch_size));
    command.arg(format!("--seconds={}", args.seconds));
    command.args(fixed.resize.map(|n| format!("--resize={n}")));
    // Clap refuses a filter without a size.
    let filter = fixed.resize.map(|_| fixed.interpolation.name());
    command.args(filter.map(|name| format!("--interpolation={name}")));
    command.args(fixed.center_crop.map(|n| format!("--center-crop={n}")));
    command.args(fixed.exif.then_some("--exif"));
    // The folder's name may begin with a dash.
    command.arg("--").arg(&args.folder);
    command.env("COPREP_SOCKET", &place.socket);
    command
}

/// Runs a job until its stdin is closed.
pub(super) fn run(args: &args::BenchArgs) -> crate::Outcome {
    // The process that gives the orders may be killed.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let order: ConsumerConfig = serde_json::from_str(&line)?;
    let job = MeasuredJob::attach(&JobOptions {
        place: &CoordinatorPaths::from_env(),
        spec: &super::plan(args)?.spec,
        form: FormArg::from_str(&order.form, false)?.into(),
        ids: &order.ids,
        batch_size: args.images.batch_size,
    })?;
    // The first epoch fills the cache, and brings the loader to its usual speed.
    job.epoch(|_| Ok(()))?;
    println!("ready");
    take(&job, args.seconds)
}

/// Takes batches until stdin is closed, which ends the process.
fn take(job: &MeasuredJob, seconds: f64) -> crate::Outcome {
    let go = listen();
    let mut window = Window::new(seconds);
    loop {
        job.epoch(|samples| {
            if samples > 0 && go.load(Ordering::Relaxed) {
                say(window.arrive(samples, Instant::now()));
            }
            Ok(())
        })?;
    }
}

fn say(came: Option<(u64, f64)>) {
    if let Some((samples, seconds)) = came {
        println!(
            "{}",
            serde_json::json!({ "samples": samples, "seconds": seconds })
        );
    }
}

/// Reads stdin in a thread. Returns the flag that a line sets; the end of stdin ends the process.
fn listen() -> Arc<AtomicBool> {
    let go = Arc::new(AtomicBool::new(false));
    let told = go.clone();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lines();
        lines
            .map_while(std::result::Result::ok)
            .for_each(|_| told.store(true, Ordering::Relaxed));
        // Stdin is closed, so the measurement is over. The job itself may wait for a batch now.
        std::process::exit(0);
    });
    go
}

/// Counts samples from one batch to another, and the time between the two.
struct Window {
    seconds: f64,
    began: Option<Instant>,
    samples: u64,
    is_over: bool,
}

impl Window {
    fn new(seconds: f64) -> Self {
        Window {
            seconds,
            began: None,
            samples: 0,
            is_over: false,
        }
    }

    /// Counts a batch. Returns the samples and seconds once, when the time is over.
    fn arrive(&mut self, samples: u64, now: Instant) -> Option<(u64, f64)> {
        let Some(began) = self.began else {
            self.began = Some(now);
            return None;
        };
        self.samples += samples;
        let time = (now - began).as_secs_f64();
        if self.is_over || time < self.seconds {
            return None;
        }
        self.is_over = true;
        Some((self.samples, time))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_came_before_the_first_batch_does_not_count() {
        let (mut window, began) = (Window::new(1.0), Instant::now());
        let at = |seconds| began + Duration::from_secs_f64(seconds);
        assert_eq!(window.arrive(64, at(0.0)), None);
        assert_eq!(window.arrive(64, at(0.75)), None);
        assert_eq!(window.arrive(16, at(1.5)), Some((80, 1.5)));
        assert_eq!(window.arrive(64, at(2.0)), None, "it is said once");
    }
}
