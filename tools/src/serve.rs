//! `coprep serve`.

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::process::ExitCode;
use std::time::Duration;

use coprep_coordinator::{Server, Settings, Slowness, StopReason};
use coprep_protocol::place::Place;

use crate::Outcome;
use crate::args::Serve;

pub(crate) fn run(place: Place, args: &Serve) -> Outcome {
    log_to_stderr();
    let socket = place.socket.clone();
    let mut ready = args.ready_fd.map(starter);
    let server = match Server::bind(place.clone(), settings(args)) {
        Ok(server) => server,
        Err(e) => {
            tell(&mut ready, &serde_json::json!({ "error": e.to_string() }));
            return Err(e.into());
        }
    };
    tell(
        &mut ready,
        &serde_json::json!({ "ready": true, "pid": std::process::id() }),
    );
    drop(ready);
    tracing::info!(socket = %socket.display(), pid = std::process::id(), "coordinator listens");
    let reason = server.run()?;
    tracing::info!(?reason, "coordinator ends");
    if args.auto && reason != StopReason::Signal {
        let _ = std::fs::remove_file(place.log());
    }
    Ok(ExitCode::SUCCESS)
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("COPREP_LOG");
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colour = std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colour)
        .with_writer(std::io::stderr)
        .init();
}

fn settings(args: &Serve) -> Settings {
    let default = Settings::default();
    let seconds = |s: u64| (s > 0).then(|| Duration::from_secs(s));
    Settings {
        storage: Slowness {
            bytes_per_s: args.storage_rate,
            latency: args.storage_latency.unwrap_or_default(),
        },
        replay: args.replay,
        costs: args.costs,
        cpus: args.cpus.map(u32::from),
        cache_budget: args.cache.unwrap_or(default.cache_budget),
        cache_form: args.cache_form.into(),
        cache_name: args.cache_name.clone(),
        staging_bytes: args.staging,
        idle: seconds(args.idle.unwrap_or(if args.auto { 60 } else { 0 })),
        idle_warm: seconds(args.idle_warm.unwrap_or(3600)),
    }
}

#[expect(
    unsafe_code,
    reason = "a descriptor inherited from the starting process is a number"
)]
fn starter(fd: i32) -> File {
    // SAFETY: the starter opened this descriptor for this process alone and names it here once.
    unsafe { File::from_raw_fd(fd) }
}

fn tell(ready: &mut Option<File>, line: &serde_json::Value) {
    if let Some(pipe) = ready {
        // A starter that has gone away does not need to know.
        let _ = writeln!(pipe, "{line}");
    }
}
