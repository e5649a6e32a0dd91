//! What a coordinator logs, and how: `COPREP_LOG`, `COPREP_LOG_FORMAT`.
//!
//! Logging can fail, and nothing else notices. The disk of the log may be full, and the pipe that it goes to may be
//! closed or not be read. So a thread of its own writes the lines. Whoever logs, perhaps with a lock in hand, only
//! queues a line; while the queue is full, lines are lost.

use std::io::{IsTerminal, stderr};

use nix::sys::signal::{SigSet, SigmaskHow};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// Lines that may wait to be written.
const MOST_LINES: usize = 16_384;

/// Writes to stderr whatever is logged from now on, until the guard is dropped.
pub(crate) fn to_stderr(format: LogFormat) -> WorkerGuard {
    let filter = EnvFilter::try_from_env("COPREP_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let (writer, guard) = start_writer();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // It would report a line that cannot be written to stderr, and panic because that fails as well.
        .log_internal_errors(false)
        .with_writer(writer);
    match format {
        LogFormat::Text => {
            let colour = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colour).init();
        }
        // One object without nesting, but for the span.
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .init(),
    }
    guard
}

/// Starts the thread with all signals blocked: they are the main thread's, which blocks them later.
fn start_writer() -> (NonBlocking, WorkerGuard) {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = NonBlockingBuilder::default()
        .thread_name("log")
        .buffered_lines_limit(MOST_LINES)
        .finish(stderr());
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    started
}
