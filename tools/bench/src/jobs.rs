//! Runs jobs at the same time, each in a process, and measures them while all of them run.
//!
//! A job gets its order as a line of JSON, takes batches, and prints `ready` when it runs at its usual speed. After
//! `go` it counts from its next batch until the time is over, and prints the result as a line of JSON. Then it goes on
//! taking batches until its stdin is closed, so that no other job gets the machine for itself.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use coprep_measurement::group::{self, ProcessGroup};
use coprep_measurement::progress::Progress;
use coprep_measurement::scratch::scratch_folder;
use coprep_measurement::{Result, interrupt};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// Longest time until a job is ready, and from the end of the measured time until it prints its result.
const JOB_TIMEOUT: Duration = Duration::from_secs(90);
/// Longest time for all jobs to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two checks for signals while a job is silent.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Most characters of the reason for a job's end.
const LONGEST_REASON: usize = 300;

/// Result of all jobs together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JointResult {
    pub(crate) samples_per_s: f64,
    /// Processors that the jobs and their server used.
    pub(crate) cpus: f64,
    /// Processors that other programs used.
    pub(crate) cpus_of_others: f64,
}

/// Result of one job, as it prints it.
#[derive(Deserialize)]
struct JobResult {
    samples: u64,
    seconds: f64,
}

/// Jobs that run at the same time. They are ended when this is dropped.
pub(crate) struct Jobs {
    all: Vec<JobProcess>,
    // A field after `all`, so that the folder is removed after the jobs have ended.
    _folder: TempDir,
}

/// A job in its own process group.
struct JobProcess {
    group: ProcessGroup,
    /// Pipe for orders. `None` once the job has been told to end.
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Jobs {
    /// Starts `count` jobs, and sends the order to each.
    pub(crate) fn start(
        count: u32,
        command: impl Fn() -> Command,
        order: &impl Serialize,
    ) -> Result<Self> {
        let folder = scratch_folder()?;
        let mut jobs = Jobs {
            all: Vec::new(),
            _folder: folder,
        };
        for number in 0..count {
            let job = JobProcess::start(command(), jobs._folder.path(), number)?;
            jobs.all.push(job);
        }
        // Only now, so that the first job does not run long before the last one has started.
        let order = serde_json::to_string(order)?;
        jobs.all.iter_mut().try_for_each(|job| job.send(&order))?;
        Ok(jobs)
    }

    /// Waits until each job runs at its usual speed.
    pub(crate) fn begin(&mut self, progress: &mut dyn Progress) -> Result<()> {
        let end = Instant::now() + JOB_TIMEOUT;
        let mut all = self.all.iter();
        all.try_for_each(|job| job.receive(end, progress).map(drop))
    }

    /// Measures the jobs while they run. `server` is a process that works for them.
    pub(crate) fn measure(
        &mut self,
        server: Option<u32>,
        seconds: f64,
        progress: &mut dyn Progress,
    ) -> Result<JointResult> {
        let (began, cpu) = (Instant::now(), self.cpu_seconds(server));
        let machine = group::machine_cpu_seconds();
        let end = began + Duration::from_secs_f64(seconds) + JOB_TIMEOUT;
        self.all.iter_mut().try_for_each(|job| job.send("go"))?;
        let mut samples_per_s = 0.0;
        for job in &self.all {
            let result: JobResult = serde_json::from_str(&job.receive(end, progress)?)?;
            samples_per_s += result.samples as f64 / result.seconds.max(f64::MIN_POSITIVE);
        }
        let used = self.cpu_seconds(server) - cpu;
        let (machine, time) = (
            group::machine_cpu_seconds() - machine,
            began.elapsed().as_secs_f64(),
        );
        Ok(JointResult {
            samples_per_s,
            cpus: used / time,
            cpus_of_others: (machine - used).max(0.0) / time,
        })
    }

    /// Returns the processor seconds of all jobs and of their server so far.
    fn cpu_seconds(&self, server: Option<u32>) -> f64 {
        let jobs: f64 = self.all.iter().map(|job| job.group.cpu_seconds()).sum();
        jobs + server.map_or(0.0, group::cpu_seconds)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.all.iter_mut().for_each(|job| drop(job.orders.take()));
        let end = Instant::now() + GRACE;
        self.all.iter().for_each(|job| job.group.wait_until(end));
        // Dropping a job kills it if it still runs.
        self.all.clear();
    }
}

impl JobProcess {
    fn start(mut command: Command, folder: &Path, number: u32) -> Result<JobProcess> {
        let log = folder.join(format!("log.{number}"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // Temporary files of a job that is killed go with the folder.
            .env("TMPDIR", folder);
        let program = command.get_program().to_owned();
        let mut group =
            ProcessGroup::spawn(&mut command).map_err(|e| format!("{}: {e}", program.display()))?;
        let child = group.child();
        let (orders, stdout) = (child.stdin.take(), child.stdout.take());
        let (sender, receiver) = channel();
        // A pipe cannot be read with a timeout: a thread reads it, and `receive` waits on the channel.
        std::thread::spawn(move || {
            let mut lines = stdout.map(BufReader::new).into_iter().flat_map(text_lines);
            lines.try_for_each(|line| sender.send(line))
        });
        Ok(JobProcess {
            group,
            orders,
            lines: receiver,
            log,
        })
    }

    /// Sends a line to the job. If the job has ended, the next [`receive`](JobProcess::receive) fails and tells why.
    fn send(&mut self, line: &str) -> Result<()> {
        if let Some(orders) = &mut self.orders {
            match writeln!(orders, "{line}").and_then(|()| orders.flush()) {
                Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(e.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the next line that the job prints.
    fn receive(&self, end: Instant, progress: &mut dyn Progress) -> Result<String> {
        loop {
            interrupt::check()?;
            progress.tick();
            match self.lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => return Err(self.end_reason().into()),
                Err(RecvTimeoutError::Timeout) if Instant::now() > end => {
                    let last = self.last_line().map(|line| format!(": {line}"));
                    let last = last.unwrap_or_default();
                    return Err(format!("nothing came of it in time{last}").into());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns the reason for the job's end.
    fn end_reason(&self) -> String {
        self.group.wait_until(Instant::now() + GRACE);
        let how = self.group.ended().unwrap_or_else(|| "still there".into());
        self.last_line()
            .unwrap_or_else(|| format!("it ended ({how})"))
    }

    /// Returns the last line that the job wrote to stderr.
    fn last_line(&self) -> Option<String> {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let last = log.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(last.trim().chars().take(LONGEST_REASON).collect())
    }
}

/// Returns the lines of a pipe until its end. A library may print bytes that are not UTF-8. They are replaced, because
/// the lines after them still count.
fn text_lines(pipe: impl BufRead) -> impl Iterator<Item = String> {
    let lines = pipe.split(b'\n').map_while(std::result::Result::ok);
    lines.map(|line| String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use coprep_measurement::progress::NoProgress;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn rates_of_jobs_add_up() -> Result<()> {
        let script =
            r#"read order; echo ready; read go; echo '{"samples": 30, "seconds": 2}'; read end"#;
        let mut progress = NoProgress;
        let mut jobs = Jobs::start(2, || shell(script), &serde_json::json!({}))?;
        jobs.begin(&mut progress)?;
        assert_eq!(jobs.measure(None, 1.0, &mut progress)?.samples_per_s, 30.0);
        Ok(())
    }

    #[test]
    fn a_job_that_ends_says_why() -> Result<()> {
        let command = || shell("echo first >&2; echo 'ImportError: no torch' >&2; exit 1");
        let mut jobs = Jobs::start(1, command, &serde_json::json!({}))?;
        let why = jobs.begin(&mut NoProgress).map_err(|e| e.to_string());
        assert_eq!(why, Err("ImportError: no torch".into()));
        Ok(())
    }

    #[test]
    fn a_line_that_is_not_utf_8_does_not_end_the_reading() -> Result<()> {
        let script = r"printf 'caf\351\n'; echo ready; read end";
        let jobs = Jobs::start(1, || shell(script), &serde_json::json!({}))?;
        let next = || jobs.all[0].receive(Instant::now() + JOB_TIMEOUT, &mut NoProgress);
        assert_eq!(next()?, "caf\u{fffd}");
        assert_eq!(next()?, "ready");
        Ok(())
    }

    #[test]
    fn nothing_that_a_job_started_outlives_it() -> Result<()> {
        let script = "sleep 300 & echo $!; wait";
        let jobs = Jobs::start(1, || shell(script), &serde_json::json!({}))?;
        let pid = jobs.all[0].receive(Instant::now() + JOB_TIMEOUT, &mut NoProgress)?;
        let folder = jobs._folder.path().to_owned();
        drop(jobs);
        // A killed process dies when it is next on a processor, and its new parent may not reap it at once.
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_dead = || stat().is_empty() || stat().contains(") Z ");
        let end = Instant::now() + JOB_TIMEOUT;
        while !is_dead() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_dead(), "{}", stat());
        assert!(!folder.exists());
        Ok(())
    }
}
