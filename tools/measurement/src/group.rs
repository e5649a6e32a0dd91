//! Process groups whose processes never outlive their owner.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// Time between two checks whether the first process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A process with everything that it starts. It is killed when it is dropped.
pub struct ProcessGroup(Child);

impl ProcessGroup {
    /// Starts a command in a process group of its own.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn spawn(command: &mut Command) -> std::io::Result<ProcessGroup> {
        command.process_group(0).spawn().map(ProcessGroup)
    }

    /// Returns the first process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Returns how the first process ended, or `None` if it runs. It is not reaped, so its id stays reserved.
    pub fn ended(&self) -> Option<String> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.id()), flags) {
            Ok(WaitStatus::StillAlive) => None,
            Ok(WaitStatus::Exited(_, code)) => Some(format!("exit status {code}")),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(format!("killed by {signal}")),
            Ok(_) | Err(_) => Some("unknown how".into()),
        }
    }

    /// Asks all processes of the group to end.
    pub fn terminate(&self) {
        // An error means that no process is left to ask.
        let _ = killpg(self.id(), Signal::SIGTERM);
    }

    /// Waits until the first process has ended, but not beyond `end`.
    pub fn wait_until(&self, end: Instant) {
        while self.ended().is_none() && Instant::now() < end {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }

    /// Returns the processor seconds of the group's living processes.
    pub fn cpu_seconds(&self) -> f64 {
        let ours = pids()
            .filter_map(stat)
            .filter(|stat| stat.group == self.0.id());
        ours.map(|stat| stat.ticks).sum::<f64>() / ticks_per_second()
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Kill the group even if the first process has ended: its children may still run.
        let _ = killpg(self.id(), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Returns the processor seconds of one process.
pub fn cpu_seconds(pid: u32) -> f64 {
    stat(pid).map_or(0.0, |stat| stat.ticks) / ticks_per_second()
}

/// Returns the processor seconds of a process and of all its descendants, living or ended.
pub fn tree_cpu_seconds(root: u32) -> f64 {
    let all: Vec<Stat> = pids().filter_map(stat).collect();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        let children = all.iter().filter(|stat| stat.parent == parent);
        tree.extend(children.map(|stat| stat.pid));
        next += 1;
    }
    let ours = all.iter().filter(|stat| tree.contains(&stat.pid));
    ours.map(|stat| stat.ticks + stat.ticks_of_ended)
        .sum::<f64>()
        / ticks_per_second()
}

/// Returns the processor seconds of all processes since the machine started.
pub fn machine_cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let ticks = first.split_whitespace().skip(1).map(|f| f.parse::<f64>());
    // Skip the fourth and fifth number, which are idle time, and all from the ninth on: the others contain them
    // already.
    let busy = ticks
        .take(8)
        .enumerate()
        .filter(|(i, _)| !matches!(i, 3 | 4));
    busy.filter_map(|(_, ticks)| ticks.ok()).sum::<f64>() / ticks_per_second()
}

fn ticks_per_second() -> f64 {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    ticks.unwrap_or(100) as f64
}

/// Returns the ids of all processes of the machine.
fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Some fields of `/proc/PID/stat`.
struct Stat {
    pid: u32,
    parent: u32,
    group: u32,
    /// Processor time in user mode and in the kernel, in clock ticks.
    ticks: f64,
    /// The same of the children that have ended and were waited for.
    ticks_of_ended: f64,
}

/// Reads the fields of a process, or `None` if it does not exist.
fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Fields are counted after the name, which is in parentheses and may contain spaces and parentheses.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some(Stat {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        ticks: ticks(11)? + ticks(12)?,
        ticks_of_ended: ticks(13)? + ticks(14)?,
    })
}
