//! Measures how fast a training script is without waits: it gets the same batches over and over, unprepared.
//!
//! The script runs unchanged, with the analysis' own coordinator in its environment. It is ended after the measurement.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use coprep_client::control;
use coprep_measurement::group::{self, ProcessGroup};
use coprep_measurement::private::PrivateCoordinator;
use coprep_measurement::progress::Progress;
use coprep_measurement::{Result, interrupt, quiet};
use coprep_protocol::message::{Stalls, Status, StreamStatus};
use coprep_protocol::spec::PipelineSpec;

/// Findings about a script.
pub(crate) struct ScriptFindings {
    /// The script's pipeline. `None` if its dataset is its own code.
    pub(crate) spec: Option<PipelineSpec>,
    /// The stream's status at the end of the measurement.
    pub(crate) stream: StreamStatus,
    pub(crate) batch_size: u32,
    /// Jobs that the script started.
    pub(crate) jobs: u32,
    /// Seconds of a job per sample, without waits.
    pub(crate) seconds: f64,
    /// Processor seconds of a job per sample.
    pub(crate) cpu_seconds: f64,
    /// Batches over which the seconds are averaged.
    pub(crate) batches: u64,
    /// Processors that other programs used meanwhile.
    pub(crate) cpus_of_others: f64,
}

/// Longest time until a script takes its first batch.
const FIRST_BATCH_TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two checks of the script and its stream.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time for the script to end when asked.
const GRACE: Duration = Duration::from_secs(5);
/// Shortest time in seconds for which a script is measured.
pub(crate) const FEWEST_SECONDS: f64 = 5.0;
/// Fewest batches of a measurement, however long they take within [`LONGEST`] seconds.
const FEWEST: u64 = 20;
/// Seconds after which a measurement ends with the batches that it has.
const LONGEST: f64 = 120.0;

/// A script with its child processes. They are ended when it is dropped.
struct Script(ProcessGroup);

impl Drop for Script {
    fn drop(&mut self) {
        self.0.terminate();
        self.0.wait_until(Instant::now() + GRACE);
    }
}

/// The jobs' progress at one moment.
#[derive(Clone, Copy)]
struct JobsProgress {
    at: Instant,
    jobs: u32,
    batches: u64,
    /// Samples of the batches, if all of them are full.
    full_batches: u64,
    /// Samples that were handed to the jobs. Some of them are not taken yet.
    delivered: u64,
    /// Seconds for which the jobs waited, together.
    waited: f64,
    cpu: f64,
}

impl JobsProgress {
    /// Adds up the progress of a stream's jobs.
    fn of(stream: &StreamStatus) -> JobsProgress {
        let waited = |s: &Stalls| s.fetch_s + s.prep_s + s.others_s + s.open_s;
        let pids = stream.jobs.iter().flat_map(|job| &job.pids);
        JobsProgress {
            at: Instant::now(),
            jobs: stream.jobs.iter().map(|job| job.pids.len() as u32).sum(),
            batches: stream.jobs.iter().map(|job| job.batches).sum(),
            full_batches: stream
                .jobs
                .iter()
                .map(|job| job.batches * u64::from(job.batch_size))
                .sum(),
            delivered: stream.jobs.iter().map(|job| job.delivered).sum(),
            waited: stream.jobs.iter().map(|job| waited(&job.stalls)).sum(),
            cpu: pids.map(|&pid| group::cpu_seconds(pid)).sum(),
        }
    }

    /// Returns the samples that the jobs have taken since an earlier moment.
    fn samples_since(&self, first: &JobsProgress) -> u64 {
        // The last batch of an epoch may be short. Where a dataset is small, jobs then take far fewer samples than full
        // batches have. Their queues are full at both moments, so that they take as many as they are handed.
        let full = self.full_batches.saturating_sub(first.full_batches);
        full.min(self.delivered.saturating_sub(first.delivered))
    }
}

/// A run of a script, which is measured for `seconds` after its jobs have taken `rounds` batches per staging buffer.
pub(crate) struct Run<'a> {
    /// The `coprep` program, which runs the coordinator.
    pub(crate) program: &'a Path,
    /// The script with its arguments.
    pub(crate) command: &'a [OsString],
    /// Arguments of `coprep serve`.
    pub(crate) serve: &'a [String],
    pub(crate) rounds: u64,
    pub(crate) seconds: f64,
}

impl Run<'_> {
    /// Runs and measures the script.
    pub(crate) fn measure(&self, progress: &mut dyn Progress) -> Result<ScriptFindings> {
        let coordinator = PrivateCoordinator::start(self.program, self.serve)?;
        let script = start(self.command, &coordinator)?;
        wait_until_warm(&script, &coordinator, self.rounds, progress)?;
        let observed =
            quiet::measure(|| measure_jobs(&script, &coordinator, self.seconds, progress))?;
        interrupt::check()?;
        Ok(ScriptFindings {
            cpus_of_others: observed.cpus_of_others,
            ..observed.value
        })
    }
}

/// Starts the script with the coordinator in its environment.
fn start(command: &[OsString], coordinator: &PrivateCoordinator) -> Result<Script> {
    let [program, rest @ ..] = command else {
        return Err("no command".into());
    };
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("COPREP_SOCKET", &coordinator.paths.socket)
        .stdin(Stdio::null())
        // Stdout is for the report.
        .stdout(std::io::stderr());
    let group =
        ProcessGroup::spawn(&mut command).map_err(|e| format!("{}: {e}", program.display()))?;
    Ok(Script(group))
}

/// Waits until the script's jobs run at their usual speed.
fn wait_until_warm(
    script: &Script,
    coordinator: &PrivateCoordinator,
    rounds: u64,
    progress: &mut dyn Progress,
) -> Result<()> {
    let began = Instant::now();
    loop {
        let stream = busiest(&coordinator.status()?);
        if stream.is_some_and(|stream| is_warm(&stream, rounds)) {
            return Ok(());
        }
        if began.elapsed() > FIRST_BATCH_TIMEOUT {
            return Err(format!(
                "the script took no batches from coprep within {} s: does it use coprep.DataLoader?",
                FIRST_BATCH_TIMEOUT.as_secs()
            )
            .into());
        }
        poll(script, progress)?;
    }
}

/// Measures the script's jobs for `seconds`, and longer if they take few batches.
fn measure_jobs(
    script: &Script,
    coordinator: &PrivateCoordinator,
    seconds: f64,
    progress: &mut dyn Progress,
) -> Result<ScriptFindings> {
    let first = JobsProgress::of(&busiest_now(coordinator)?);
    loop {
        poll(script, progress)?;
        let stream = busiest_now(coordinator)?;
        let last = JobsProgress::of(&stream);
        let time = first.at.elapsed().as_secs_f64();
        let is_enough = time >= seconds && last.batches >= first.batches + FEWEST;
        if is_enough || time > LONGEST {
            let spec = control::pipeline(&coordinator.paths, stream.id)?;
            return findings(spec, stream, first, last);
        }
    }
}

/// Returns the stream whose jobs have taken most samples.
fn busiest_now(coordinator: &PrivateCoordinator) -> Result<StreamStatus> {
    busiest(&coordinator.status()?).ok_or_else(|| {
        "the script's jobs left before enough was seen: let it train for longer".into()
    })
}

/// Computes the findings from the progress of the jobs at two moments.
fn findings(
    spec: Option<PipelineSpec>,
    stream: StreamStatus,
    first: JobsProgress,
    last: JobsProgress,
) -> Result<ScriptFindings> {
    let samples = last.samples_since(&first) as f64;
    if samples == 0.0 {
        return Err("the script took no more batches: is its step longer than two minutes?".into());
    }
    let jobs = f64::from(last.jobs.max(1));
    // The time of all ranks together, since waits and processor time are sums over ranks too.
    let time = (last.at - first.at).as_secs_f64() * jobs;
    Ok(ScriptFindings {
        spec,
        batch_size: stream
            .jobs
            .iter()
            .map(|job| job.batch_size)
            .max()
            .unwrap_or(1),
        jobs: stream.jobs.len().max(1) as u32,
        seconds: (time - (last.waited - first.waited)).max(0.0) / samples,
        cpu_seconds: (last.cpu - first.cpu).max(0.0) / samples,
        batches: last.batches - first.batches,
        cpus_of_others: 0.0,
        stream,
    })
}

/// Waits a little. Returns an error if the script ended too soon, or if a signal came.
fn poll(script: &Script, progress: &mut dyn Progress) -> Result<()> {
    std::thread::sleep(POLL_INTERVAL);
    progress.tick();
    interrupt::check()?;
    match script.0.ended() {
        Some(how) => Err(format!(
            "the script ended ({how}) before enough was seen: let it train for longer"
        )
        .into()),
        None => Ok(()),
    }
}

/// Returns the stream that has delivered most samples to the jobs that it has.
fn busiest(status: &Status) -> Option<StreamStatus> {
    // A script may have several streams, such as one for validation. The busiest one counts.
    let with_jobs = status.streams.iter().filter(|s| !s.jobs.is_empty());
    with_jobs.max_by_key(|s| s.totals.delivered).cloned()
}

/// Returns `true` if each job of a stream has taken `rounds` batches per staging buffer, and at least a few.
fn is_warm(stream: &StreamStatus, rounds: u64) -> bool {
    let batches = (rounds * u64::from(stream.buffers)).max(FEWEST / 4);
    !stream.jobs.is_empty() && stream.jobs.iter().all(|job| job.batches >= batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_batches_count_for_the_samples_that_they_have() {
        let first = JobsProgress {
            at: Instant::now(),
            jobs: 1,
            batches: 5,
            full_batches: 5 * 64,
            delivered: 400,
            waited: 0.0,
            cpu: 0.0,
        };
        let after = |delivered: u64| {
            let last = JobsProgress {
                batches: 25,
                full_batches: 25 * 64,
                delivered: 400 + delivered,
                ..first
            };
            last.samples_since(&first)
        };
        // Epochs of 65 samples: one batch in two has a single sample.
        assert_eq!(after(10 * 65), 650);
        // More may have been handed over than was taken.
        assert_eq!(after(20 * 64 + 64), 20 * 64);
    }
}
