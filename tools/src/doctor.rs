//! `coprep doctor`: problems of this machine that would hurt coprep, each with a remedy.

mod store;

use std::error::Error as _;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use coprep_client::{ErrorKind as ClientErrorKind, control};
use coprep_device::{ComputeMode, Driver, ErrorKind, Gpu, NumaNode};
use coprep_error::printable_lines;
use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::message::Status;
use coprep_protocol::paths::CoordinatorPaths;
use coprep_shared_memory::memory;
use serde::Serialize;

use crate::Outcome;
use crate::output::{print, print_line};
use crate::{args, serve};
use coprep_protocol::size::{self, human};

/// Limit for the time in which the NVIDIA driver answers. It takes up to some seconds to wake many GPUs.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of open files below which a coordinator may run short of them.
const FEW_DESCRIPTORS: u64 = 1024;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Failure,
}

/// Result of one check.
#[derive(Serialize)]
struct Finding {
    check: String,
    level: Level,
    found: String,
    /// The remedy; empty if nothing is wrong.
    remedy: String,
}

/// Runs all checks and prints the findings. Fails if one of them is a failure.
pub(crate) fn run(paths: &CoordinatorPaths, args: &args::DoctorArgs) -> Outcome {
    let mut findings = examine(paths);
    for url in &args.urls {
        let Some(url) = DatasetUrl::parse(url)? else {
            return Err(format!("{url} is a path: give a URL such as s3://bucket/folder").into());
        };
        findings.extend(store::check(&url));
    }
    if args.json {
        print_line(serde_json::to_string_pretty(&findings)?)?;
    } else {
        let text: String = findings.iter().map(lines).collect();
        print(printable_lines(&text))?;
    }
    let worst = findings.iter().map(|f| f.level).max().unwrap_or(Level::Ok);
    Ok(if worst == Level::Failure {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    })
}

/// Describes a finding in a line, and its remedy in another.
fn lines(f: &Finding) -> String {
    let mark = match f.level {
        Level::Ok => "ok     ",
        Level::Warning => "warning",
        Level::Failure => "FAILURE",
    };
    let mut lines = format!("{mark}  {}: {}\n", f.check, f.found);
    if !f.remedy.is_empty() {
        lines += &format!("         {}\n", f.remedy);
    }
    lines
}

fn examine(paths: &CoordinatorPaths) -> Vec<Finding> {
    // It is asked once: a coordinator that hangs is waited for.
    let status = control::status(paths, 0);
    let mut findings = vec![
        shared_memory(),
        free_memory(),
        cache_budget(&status),
        dev_shm(),
        kernel(),
        page_maps(),
        processors(),
        cpu_features(),
        descriptors(),
        socket_folder(paths),
        coordinator(paths, &status),
    ];
    findings.extend(gpus());
    findings
}

fn ok(check: impl Into<String>, found: impl Into<String>) -> Finding {
    Finding {
        check: check.into(),
        level: Level::Ok,
        found: found.into(),
        remedy: String::new(),
    }
}

fn warning(check: impl Into<String>, found: impl Into<String>, remedy: &str) -> Finding {
    Finding {
        check: check.into(),
        level: Level::Warning,
        found: found.into(),
        remedy: remedy.into(),
    }
}

fn failure(check: impl Into<String>, found: impl Into<String>, remedy: &str) -> Finding {
    Finding {
        check: check.into(),
        level: Level::Failure,
        found: found.into(),
        remedy: remedy.into(),
    }
}

/// Checks shared memory: makes a small staging area as a stream would, with memory file, reservation and seals.
fn shared_memory() -> Finding {
    let check = "shared memory";
    let made = coprep_shared_memory::staging::Layout::new(&[4096], 1, 1)
        .and_then(coprep_shared_memory::staging::StagingPool::create);
    match made.and_then(|pool| pool.reader_fd().map(drop)) {
        Ok(()) => ok(check, "sealed memory files work"),
        Err(e) => failure(
            check,
            e.to_string(),
            "a sandbox or an old kernel forbids memfd_create or its seals: allow them (Linux 5.1 or newer)",
        ),
    }
}

fn free_memory() -> Finding {
    let check = "memory";
    match memory::available() {
        Some(bytes) if bytes < 1 << 30 => warning(
            check,
            format!("{} available to this process", human(bytes)),
            "staging takes about 256 MiB a stream and caches more: raise the container's limit, or serve with --staging 64M --cache 0",
        ),
        Some(bytes) => ok(
            check,
            format!(
                "{} available to this process (its control group's limit included)",
                human(bytes)
            ),
        ),
        None => warning(
            check,
            "the kernel does not say how much is available",
            "mount /proc",
        ),
    }
}

/// Compares the budget of the caches with the available memory. The budget is that of the running coordinator, or of
/// the one that a job of this environment would start.
fn cache_budget(status: &coprep_client::Result<Status>) -> Finding {
    let check = "caches";
    let available = memory::available();
    let (budget, reserved) = match status {
        Ok(status) => {
            let reserved = status.caches.iter().map(|c| c.capacity).sum();
            (status.cache_budget, reserved)
        }
        Err(e) if *e.kind() != ClientErrorKind::Absent => {
            return warning(
                check,
                "the coordinator does not say how much they may take",
                "see the line of the coordinator",
            );
        }
        // No coordinator runs. A job would start one with this environment.
        Err(_) => match std::env::var("COPREP_CACHE").map(|text| size::parse(&text)) {
            Ok(Ok(bytes)) => (bytes, 0),
            Ok(Err(e)) => {
                return failure(
                    check,
                    format!("COPREP_CACHE: {e}"),
                    "give a size such as 8G, or unset it",
                );
            }
            Err(_) => {
                return ok(
                    check,
                    "a quarter of the memory available, as nothing else is set",
                );
            }
        },
    };
    // Caches that exist have their memory already, so it is missing from the available bytes.
    let remaining = budget.saturating_sub(reserved);
    match serve::more_than_there_is(remaining, available) {
        Some(text) => warning(
            check,
            text,
            "choose a smaller one: serve --cache, or COPREP_CACHE",
        ),
        None => ok(check, format!("may take {}", human(budget))),
    }
}

/// Checks the size of `/dev/shm`, where named segments are.
fn dev_shm() -> Finding {
    let check = "/dev/shm";
    match nix::sys::statvfs::statvfs("/dev/shm") {
        Ok(s) => {
            let size = s.blocks() * s.fragment_size();
            if size < 1 << 30 {
                let remedy = "only caches with --cache-name lie there; for these give the container a larger one (docker run --shm-size=8g)";
                warning(check, format!("{} large", human(size)), remedy)
            } else {
                ok(
                    check,
                    format!(
                        "{} large (used by caches with --cache-name only)",
                        human(size)
                    ),
                )
            }
        }
        Err(e) => warning(
            check,
            e.to_string(),
            "caches with --cache-name need it; others do not",
        ),
    }
}

/// Checks the kernel's release for the features that coprep uses.
fn kernel() -> Finding {
    let check = "kernel";
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        v if v < (5, 1) => failure(
            check,
            release,
            "sealing against writers needs Linux 5.1 or newer",
        ),
        v if v < (5, 14) => warning(
            check,
            release,
            "works; from 5.14 on a job's first batches come with fewer page faults",
        ),
        v if v < (6, 7) => warning(
            check,
            release,
            "works; from 6.7 on releasing a batch costs less (PAGEMAP_SCAN)",
        ),
        _ => ok(check, release),
    }
}

/// Checks `/proc/self/pagemap`, through which a job finds the pages that it has written to.
fn page_maps() -> Finding {
    let check = "page maps";
    match std::fs::File::open("/proc/self/pagemap") {
        Ok(_) => ok(check, "/proc/self/pagemap is readable"),
        Err(e) => failure(
            check,
            format!("/proc/self/pagemap: {e}"),
            "mount /proc in the jobs' sandbox",
        ),
    }
}

/// Compares the usable processors with those of the machine.
fn processors() -> Finding {
    let check = "processors";
    let usable = coprep_measurement::usable_cpus() as usize;
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN)
        .ok()
        .flatten()
        .unwrap_or(0);
    let found = format!("{usable} usable of {online}");
    if usable < online as usize {
        warning(
            check,
            found,
            "affinity or the control group limits this process; workers are started for the usable ones",
        )
    } else {
        ok(check, found)
    }
}

/// Checks for the vector instructions that decoding and resizing use.
fn cpu_features() -> Finding {
    let check = "CPU features";
    #[cfg(target_arch = "x86_64")]
    let (found, fast) = if is_x86_feature_detected!("avx2") {
        ("AVX2", true)
    } else {
        ("no AVX2", false)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let (found, fast) = (std::env::consts::ARCH, true);
    if fast {
        ok(check, found)
    } else {
        warning(
            check,
            found,
            "decoding and resizing run at half speed or less",
        )
    }
}

/// Checks how many files a coordinator may have open.
fn descriptors() -> Finding {
    let check = "open files";
    match coprep_shared_memory::descriptors::attainable() {
        Ok(limit) if limit < FEW_DESCRIPTORS => warning(
            check,
            format!("limit {limit}"),
            "in the coordinator each job takes about 10, and each read of remote storage one: ulimit -n 4096",
        ),
        Ok(limit) => ok(check, format!("limit {limit}")),
        Err(e) => warning(check, e.to_string(), "ulimit -n does not answer"),
    }
}

/// Checks that the socket's path is short enough and that its folder can be used.
fn socket_folder(paths: &CoordinatorPaths) -> Finding {
    let check = "socket";
    let path = paths.socket.display().to_string();
    // The kernel's limit for a socket's path is 108 bytes with the closing zero.
    if path.len() > 107 {
        return failure(
            check,
            format!("{path} is longer than 107 bytes"),
            "name a shorter one in COPREP_SOCKET",
        );
    }
    match paths.prepare() {
        Ok(()) => ok(check, path),
        Err(e) => failure(check, e.to_string(), "name another one in COPREP_SOCKET"),
    }
}

/// Checks that a coordinator that is there serves this user and this version.
fn coordinator(paths: &CoordinatorPaths, status: &coprep_client::Result<Status>) -> Finding {
    let check = "coordinator";
    match status {
        Ok(status) => ok(
            check,
            format!(
                "process {} serves {} streams",
                status.pid,
                status.streams.len()
            ),
        ),
        Err(e) if *e.kind() == ClientErrorKind::Absent => {
            ok(check, "none is running; the first job starts one")
        }
        Err(e) => {
            let why = e.source().map(|why| format!(": {why}"));
            let found = format!("{}{}", e.context(), why.unwrap_or_default());
            let end_it = format!(
                "end its process, and the next job starts another one; its log is {}",
                paths.log().display()
            );
            failure(check, found, e.remedy().unwrap_or(&end_it))
        }
    }
}

/// Checks the GPUs that this process sees. A machine without one is fit.
fn gpus() -> Vec<Finding> {
    let (sender, receiver) = channel();
    // A driver that hangs must not hang the command, so it is asked in a thread, which ends with the process.
    std::thread::spawn(move || sender.send(ask_driver()));
    receiver.recv_timeout(DRIVER_TIMEOUT).unwrap_or_else(|_| {
        vec![warning(
            "GPU",
            format!(
                "the NVIDIA driver does not answer for {} s",
                DRIVER_TIMEOUT.as_secs()
            ),
            "check that nvidia-smi works, and look for messages of the driver in dmesg",
        )]
    })
}

fn ask_driver() -> Vec<Finding> {
    let found = Driver::load().and_then(|driver| {
        let version = driver.version()?;
        let gpus = Gpu::all(driver)?;
        gpus.iter()
            .map(|gpu| gpu_finding(gpu, &version.to_string()))
            .collect()
    });
    found.unwrap_or_else(|error| vec![without_gpu(&error)])
}

/// Describes a GPU. Nothing of it is used, so the check costs no memory there.
fn gpu_finding(gpu: &Gpu, version: &str) -> coprep_device::Result<Finding> {
    let check = gpu.to_string();
    let (major, minor) = gpu.compute_capability()?;
    let node = NumaNode::of(gpu);
    let node = node.map_or(String::new(), |node| {
        format!(", NUMA node {}", node.number())
    });
    let found = format!(
        "{} ({}), {}, compute capability {major}.{minor}{node}, driver for CUDA {version}",
        gpu.name()?,
        gpu.uuid()?,
        human(gpu.memory_bytes()?),
    );
    Ok(match gpu.compute_mode()? {
        ComputeMode::Shared => ok(check, found),
        ComputeMode::Exclusive => warning(
            check,
            format!("{found}; only one process at a time may use it"),
            "several jobs cannot share it: nvidia-smi -c DEFAULT lets them",
        ),
        ComputeMode::Prohibited => warning(
            check,
            format!("{found}; no process may use it"),
            "nvidia-smi -c DEFAULT lets processes use it",
        ),
    })
}

/// Says why there is no GPU. Where there is no driver or no GPU, nothing is wrong with this machine.
fn without_gpu(error: &coprep_device::Error) -> Finding {
    let check = "GPU";
    match error.kind() {
        ErrorKind::NoDriver | ErrorKind::NoDevice => {
            let advice = error
                .remedy()
                .map(|remedy| format!(" (if there should be one: {remedy})"));
            let why = error.source().map(ToString::to_string);
            ok(
                check,
                format!(
                    "none: {}{}",
                    why.unwrap_or_default(),
                    advice.unwrap_or_default()
                ),
            )
        }
        _ => {
            let why = error.source().map(ToString::to_string);
            warning(
                check,
                format!("{}: {}", error.context(), why.unwrap_or_default()),
                error.remedy().unwrap_or_default(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn findings(paths: &CoordinatorPaths) -> [Finding; 2] {
        let status = control::status(paths, 0);
        [coordinator(paths, &status), cache_budget(&status)]
    }

    #[test]
    fn only_a_coordinator_that_is_absent_is_said_not_to_run() {
        let folder = tempfile::tempdir().unwrap();
        let paths = CoordinatorPaths::at(folder.path().join("socket"));
        let [absent, _] = findings(&paths);
        assert!(absent.level == Level::Ok && absent.found.contains("none is running"));
        let listener = UnixListener::bind(&paths.socket).unwrap();
        let other_program = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
            // The other side reads to the end before this one is closed.
            let _ = std::io::copy(&mut socket, &mut std::io::sink());
        });
        let [found, caches] = findings(&paths);
        other_program.join().unwrap();
        assert!(found.level == Level::Failure, "{}", found.found);
        assert!(!found.found.contains("none is running"), "{}", found.found);
        assert!(!found.remedy.is_empty());
        assert!(caches.level == Level::Warning, "{}", caches.found);
    }
}
