//! Ctrl-C ends long work in good order: as on every other way out, children are ended and files are removed.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Set by the signal handler, read by [`check`].
static IS_INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The error of work that Ctrl-C or another signal has ended.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Makes [`check`] report signals from now on. A second signal ends the process at once. Children keep their own
/// handling of signals.
///
/// # Errors
/// If the handlers cannot be installed.
pub fn catch_signals() -> std::io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The order matters: the first signal must find the flag unset, so that only a second one ends the process.
        flag::register_conditional_shutdown(signal, 1, IS_INTERRUPTED.clone())?;
        flag::register(signal, IS_INTERRUPTED.clone())?;
    }
    Ok(())
}

/// Returns an error if a signal has come. Long work calls this between two pieces.
///
/// # Errors
/// [`Interrupted`], from the first signal on.
pub fn check() -> Result<(), Interrupted> {
    if IS_INTERRUPTED.load(Ordering::Relaxed) {
        Err(Interrupted)
    } else {
        Ok(())
    }
}

/// Returns [`Interrupted`] if a signal has come, since the failure then follows from it; else the failure itself.
pub fn reason(error: Box<dyn std::error::Error>) -> Box<dyn std::error::Error> {
    check().map_or_else(Into::into, |()| error)
}
