//! What a coordinator logs, and how: `COPREP_LOG`, `COPREP_LOG_FORMAT`.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// From now on, whatever is logged is written to stderr.
pub(crate) fn to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_env("COPREP_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr);
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
}
