//! Ctrl-C ends long work in good order: what it started is ended and its files are removed, as on every other way out.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Written by the handler of signals, read by whoever does long work.
static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Ctrl-C, or another signal that asks to end.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// From now on [`check`] knows. A second signal ends the process at once. What is started has the signals as ever.
pub(crate) fn heed() -> std::io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, 1, ASKED.clone())?;
        flag::register(signal, ASKED.clone())?;
    }
    Ok(())
}

/// Between two pieces of long work.
pub(crate) fn check() -> Result<(), Interrupted> {
    if ASKED.load(Ordering::Relaxed) {
        Err(Interrupted)
    } else {
        Ok(())
    }
}

/// The reason of a failure that came with the signal.
pub(crate) fn reason(error: Box<dyn std::error::Error>) -> Box<dyn std::error::Error> {
    check().map_or_else(Into::into, |()| error)
}
