//! Warms the caches of a training script: its loaders name the datasets, operators and caches.
//!
//! The script runs in the user's Python, under `coprep._warm`, which reports events as JSON lines.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use coprep_measurement::group::ProcessGroup;
use coprep_measurement::interrupt;
use coprep_measurement::python::candidates;
use coprep_protocol::message::WarmProgress;
use coprep_protocol::paths::CoordinatorPaths;
use serde::{Deserialize, Serialize};

use super::{bytes, summary};
use crate::output::print_line;
use crate::progress::WorkProgress;
use crate::{Outcome, args};

/// Time between two checks for signals.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time for which the script may run on after it has closed its output.
const GRACE: Duration = Duration::from_secs(5);

/// Variable that tells the Python side whether the caches are to be kept.
const KEEP: &str = "COPREP_WARM_KEEP";

/// An event that the Python side reports about one loader.
#[derive(Serialize, Deserialize)]
struct ScriptEvent {
    dataset: String,
    #[serde(flatten)]
    state: WarmState,
}

/// State of the warm-up of a loader.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WarmState {
    /// The cache is being filled.
    Progress(WarmProgress),
    /// The cache is filled.
    Done(WarmProgress),
    /// Nothing can be cached beforehand, for this reason.
    Skipped(String),
    /// The cache could not be filled, for this reason.
    Failed(String),
}

/// Numbers of loaders by their result.
#[derive(Default)]
struct LoaderCounts {
    warmed: u32,
    skipped: u32,
    failed: u32,
}

/// Runs the script until its loaders are warmed.
pub(super) fn run(paths: &CoordinatorPaths, from: &OsStr, args: &args::WarmArgs) -> Outcome {
    interrupt::catch_signals()?;
    let python = args.python.clone().unwrap_or_else(python);
    let mut command = Command::new(&python);
    command
        .args(["-m", "coprep._warm"])
        .arg(from)
        .args(&args.arguments)
        .env("COPREP_SOCKET", &paths.socket)
        .env(KEEP, if args.keep { "1" } else { "" })
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut group =
        ProcessGroup::spawn(&mut command).map_err(|e| format!("{}: {e}", python.display()))?;
    let stdout = group.child().stdout.take();
    let events = listen(stdout.ok_or("no pipe to the script")?);
    let counts = follow(&events, args.json)?;
    // Its output is closed, so the script should end by itself.
    group.wait_until(Instant::now() + GRACE);
    match group.ended().as_deref() {
        Some("exit status 0") => counts.outcome(from),
        how => Err(format!(
            "{} ended before its loaders were warmed ({})",
            from.display(),
            how.unwrap_or("it does not end")
        )
        .into()),
    }
}

/// Returns the first Python that exists.
fn python() -> PathBuf {
    let is_there = |path: &PathBuf| path.is_file();
    candidates()
        .into_iter()
        .find(is_there)
        .unwrap_or_else(|| "python3".into())
}

/// Reads the script's output in a separate thread, so that the main thread can check for signals.
fn listen(stdout: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (sender, events) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            // The main thread has given up on the script, and nobody reads further events.
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    events
}

/// Shows the events until the script closes its output. Returns the results of its loaders.
fn follow(events: &Receiver<std::io::Result<String>>, json: bool) -> Outcome<LoaderCounts> {
    let mut counts = LoaderCounts::default();
    let mut progress = None;
    loop {
        interrupt::check()?;
        let line = match events.recv_timeout(POLL_INTERVAL) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Ok(counts),
        };
        let event: ScriptEvent = serde_json::from_str(&line)?;
        counts.count(&event.state);
        if json {
            print_line(serde_json::to_string(&event)?)?;
        } else {
            show(&event, &mut progress)?;
        }
    }
}

fn show(event: &ScriptEvent, progress: &mut Option<WorkProgress>) -> Outcome<()> {
    if let WarmState::Progress(p) = &event.state {
        let bar = progress.get_or_insert_with(|| WorkProgress::new("samples"));
        let more = if p.capacity + p.disk_capacity > 0 {
            bytes(p)
        } else {
            String::new()
        };
        bar.update(p.done, p.total, &more);
        return Ok(());
    }
    // The loader is done: remove its bar.
    if let Some(progress) = progress.take() {
        progress.finish();
    }
    let text = match &event.state {
        WarmState::Progress(_) => return Ok(()),
        WarmState::Done(p) => summary(p),
        WarmState::Skipped(why) => format!("not warmed: {why}"),
        WarmState::Failed(why) => format!("failed: {why}"),
    };
    print_line(format_args!("{}\n  {text}", event.dataset))
}

impl LoaderCounts {
    fn count(&mut self, state: &WarmState) {
        match state {
            WarmState::Progress(_) => {}
            WarmState::Done(p) if p.failed == 0 => self.warmed += 1,
            WarmState::Done(_) | WarmState::Failed(_) => self.failed += 1,
            WarmState::Skipped(_) => self.skipped += 1,
        }
    }

    /// Succeeds if at least one loader was warmed and none failed.
    fn outcome(&self, from: &OsStr) -> Outcome {
        if self.failed > 0 {
            return Ok(ExitCode::from(1));
        }
        if self.warmed > 0 {
            return Ok(ExitCode::SUCCESS);
        }
        let why = if self.skipped > 0 {
            "none of its loaders has a cache that can be filled beforehand"
        } else {
            "it made no coprep.DataLoader"
        };
        Err(format!("nothing of {} was warmed: {why}", from.display()).into())
    }
}
