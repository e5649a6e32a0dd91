//! `coprep serve`.

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::process::ExitCode;
use std::time::Duration;

use coprep_coordinator::{DiskSettings, OwnFile, Server, Settings, Slowness, StopReason};
use coprep_metrics::Metrics;
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::size::human;
use coprep_shared_memory::{descriptors, memory};

use crate::args::{ServeArgs, Switch};
use crate::{Outcome, logs};

/// Runs a coordinator until it is stopped, idle or interrupted.
pub(crate) fn run(paths: CoordinatorPaths, args: &ServeArgs) -> Outcome {
    let _log = logs::to_stderr(args.log_format);
    #[cfg(feature = "failpoints")]
    let _failpoints = failpoints();
    coprep_shared_memory::allocator::keep_freed_memory();
    // Each read of remote storage has a descriptor, and so have idle connections.
    if let Err(e) = descriptors::raise_limit() {
        tracing::warn!("{e}");
    }
    let socket = paths.socket.clone();
    // A newer coordinator may have put its own log at this path by the time this one ends: remove only our file.
    let log = OwnFile::at(&paths.log()).ok().filter(|_| args.auto);
    let mut ready = args.ready_fd.map(starter);
    let (server, metrics) = match start(paths, args) {
        Ok(started) => started,
        Err(e) => {
            notify(&mut ready, &serde_json::json!({ "error": e.to_string() }));
            return Err(e);
        }
    };
    notify(
        &mut ready,
        &serde_json::json!({ "ready": true, "pid": std::process::id() }),
    );
    drop(ready);
    tracing::info!(socket = %socket.display(), pid = std::process::id(), "coordinator listens");
    let reason = server.run();
    // Free the metrics port before the socket path: the next coordinator starts when the path is free, and may want
    // both.
    drop(metrics);
    drop(server);
    let reason = reason?;
    tracing::info!(?reason, "coordinator ends");
    // After a signal the log stays, since it may tell why the coordinator was slow to end.
    if let Some(log) = log
        && reason != StopReason::Signal
    {
        log.remove();
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the points panic that the environment names in `FAILPOINTS`.
///
/// If `FAILPOINTS_FOLDER` names a folder, each coordinator of one socket path leaves a file there. A coordinator that
/// finds three files does not panic any more: jobs start a new coordinator when one has ended, and could never go on if
/// each one panicked.
#[cfg(feature = "failpoints")]
fn failpoints() -> Option<fail::FailScenario<'static>> {
    const MOST: usize = 3;
    if let Some(folder) = std::env::var_os("FAILPOINTS_FOLDER") {
        let folder = std::path::Path::new(&folder);
        if std::fs::read_dir(folder).is_ok_and(|files| files.count() >= MOST) {
            return None;
        }
        // If the file cannot be made, the coordinator still panics.
        let _ = File::create(folder.join(std::process::id().to_string()));
    }
    Some(fail::FailScenario::setup())
}

/// A bound server, and its metrics if they are served; or the reason for which it cannot start.
type Started = Outcome<(Server, Option<Metrics>)>;

/// Binds the socket, and starts to serve metrics if they are asked for.
fn start(paths: CoordinatorPaths, args: &ServeArgs) -> Started {
    let settings = settings(args);
    if let Some(text) = more_than_there_is(settings.cache_budget, memory::available()) {
        tracing::warn!("{text}");
    }
    let server = Server::bind(paths, settings)?;
    let serve = |address| Metrics::serve(address, server.monitor());
    let metrics = args.metrics.map(serve).transpose()?;
    if let Some(metrics) = &metrics {
        let url = format!("http://{}/metrics", metrics.address());
        tracing::info!(url, "metrics are served");
    }
    Ok((server, metrics))
}

/// Returns a warning if caches may take more memory than is available.
pub(crate) fn more_than_there_is(cache: u64, available: Option<u64>) -> Option<String> {
    let available = available.filter(|&available| cache > available)?;
    Some(format!(
        "caches may take {}, and {} of memory are available: they will be as large as memory allows",
        human(cache),
        human(available)
    ))
}

fn settings(args: &ServeArgs) -> Settings {
    let default = Settings::default();
    let seconds = |s: u64| (s > 0).then(|| Duration::from_secs(s));
    Settings {
        storage: Slowness {
            bytes_per_s: args.storage_rate,
            latency: args.storage_latency.unwrap_or_default(),
        },
        storage_patience: Duration::from_secs(args.storage_patience),
        replay: args.replay,
        costs: args.costs == Switch::On,
        attribution: args.attribution == Switch::On,
        check_files: args.check_files == Switch::On,
        cpus: args.cpus.map(u32::from),
        cache_budget: args.cache.unwrap_or(default.cache_budget),
        cache_form: args.cache_form.into(),
        cache_name: args.cache_name.clone(),
        disk: args
            .disk_cache
            .clone()
            .zip(args.disk_bytes)
            .map(|(folder, bytes)| DiskSettings { folder, bytes }),
        staging_bytes: args.staging,
        device_memory: args.device_memory,
        // A coordinator that a job started must end by itself. One that a person started runs until it is stopped.
        idle: seconds(args.idle.unwrap_or(if args.auto { 60 } else { 0 })),
        idle_warm: seconds(args.idle_warm.unwrap_or(3600)),
    }
}

/// Returns the pipe to the process that started this coordinator.
#[expect(
    unsafe_code,
    reason = "a descriptor inherited from the starting process is a number"
)]
fn starter(fd: i32) -> File {
    // SAFETY: the starter opened this descriptor for this process alone and names it here once.
    unsafe { File::from_raw_fd(fd) }
}

/// Writes a line to the process that started this coordinator, if it asked for that.
fn notify(ready: &mut Option<File>, line: &serde_json::Value) {
    if let Some(pipe) = ready {
        // The starter may be gone, and then does not need to know.
        let _ = writeln!(pipe, "{line}");
    }
}
