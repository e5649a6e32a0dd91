//! The coordinator's log: `COPREP_LOG` selects the lines, `COPREP_LOG_FORMAT` their format.
//!
//! Logging can fail, and nothing else may notice. The disk of the log may be full; its pipe may be closed, or nobody
//! may read it. So a separate thread writes the lines. A thread that logs, perhaps while it holds a lock, only queues a
//! line. While the queue is full, lines are lost.

use std::io::{IsTerminal, stderr};

use nix::sys::signal::{SigSet, SigmaskHow};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::LogFormat;

/// Most lines that wait to be written.
const MOST_LINES: usize = 16_384;

/// Writes all events from now on to stderr, until the guard is dropped.
pub(crate) fn to_stderr(format: LogFormat) -> WorkerGuard {
    let (writer, guard) = start_writer();
    let lines = tracing_subscriber::fmt::layer()
        // Off, since it would report on stderr that a line cannot be written there, and panic because that fails too.
        .log_internal_errors(false)
        .with_writer(writer);
    match format {
        LogFormat::Text => {
            let colour = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            start(lines.with_ansi(colour));
        }
        // One flat object; only the current span is nested.
        LogFormat::Json => start(lines.json().flatten_event(true).with_span_list(false)),
    }
    guard
}

/// Has a layer write the events that `COPREP_LOG` selects: a level, or levels of modules.
///
/// `EnvFilter` could also select by fields of spans. It would add a library of regular expressions to the command.
fn start(lines: impl Layer<Registry> + Send + Sync) {
    let told = std::env::var("COPREP_LOG").ok();
    let filter = told.and_then(|told| told.parse::<Targets>().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .init();
}

/// Starts the thread with all signals blocked: the main thread handles them, and blocks them only later.
fn start_writer() -> (NonBlocking, WorkerGuard) {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = NonBlockingBuilder::default()
        .thread_name("log")
        .buffered_lines_limit(MOST_LINES)
        .finish(stderr());
    if let Ok(before) = before {
        // It cannot fail for a mask that the kernel has returned itself.
        let _ = before.thread_set_mask();
    }
    started
}
