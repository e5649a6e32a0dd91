//! Streams, jobs and caches of a coordinator on a live screen, or once as text.
//!
//! Three threads wait for keys, for signals and for the coordinator, and send events to the one that draws.
//!
//! | module | purpose |
//! |---|---|
//! | `model`, `screen` | compute the content, without I/O or clock |
//! | `view`, `columns`, `table`, `theme` | draw it |
//! | `watch` | the threads that wait for events |

mod columns;
mod help;
mod model;
mod numbers;
mod screen;
mod table;
mod theme;
mod view;
mod watch;

use std::io::IsTerminal;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use coprep_client::{Error, ErrorKind, control};
use coprep_protocol::message::Status;
use coprep_protocol::paths::CoordinatorPaths;
use nix::sys::signal::Signal;
use ratatui::DefaultTerminal;
use ratatui::backend::Backend;

use crate::screen::{ConnectionState, Next, Screen};
use crate::theme::Theme;
use crate::watch::{ScreenEvent, Watch};

/// Result of the screen. The error is a text for the user.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Number of the most expensive samples of each stream to ask for.
const SLOW: u32 = 8;
/// Longest time between two drawings.
const REDRAW: Duration = Duration::from_secs(1);
/// Time beyond the interval after which the screen says that the coordinator's answer is late.
const LATE: Duration = Duration::from_secs(3);

/// The reason for leaving the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScreenExit {
    /// The user asked for it.
    Asked,
    /// A signal came that ends the process. It is not blocked any more, so that the caller can raise it.
    Signal(Signal),
}

/// Shows the live screen until the user or a signal ends it. The coordinator is asked once per interval.
///
/// # Errors
/// If the coordinator refuses to answer, or if the terminal cannot be used.
pub fn show(paths: &CoordinatorPaths, interval: Duration) -> Result<ScreenExit> {
    let first = match control::status(paths, SLOW) {
        // No coordinator runs yet: people open this first, and then start their jobs.
        Err(e) if *e.kind() == ErrorKind::Absent => None,
        status => Some(status?),
    };
    let mut watch = Watch::start(paths, interval)?;
    let exit = on_screen(|terminal| run(terminal, &mut watch, first, interval))?;
    if let ScreenExit::Signal(_) = exit {
        watch.signals.thread_unblock()?;
    }
    Ok(exit)
}

/// Returns the reason for which there can be no screen, or `None` if there can be one.
pub fn why_no_screen() -> Option<&'static str> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    match (std::io::stdout().is_terminal(), dumb) {
        (false, _) => Some("top needs a terminal, and its output is none"),
        (_, true) => Some(
            "top needs a terminal that can move its cursor, and TERM says that this one cannot",
        ),
        _ => None,
    }
}

/// Returns the state of the coordinator as text. Rates need an earlier status, so this takes an interval.
///
/// # Errors
/// If no coordinator runs, or if it refuses to answer.
pub fn once(paths: &CoordinatorPaths, interval: Duration) -> Result<String> {
    let before = control::status(paths, SLOW)?;
    std::thread::sleep(interval);
    let now = control::status(paths, SLOW)?;
    Ok(text(before, now))
}

/// Returns everything that the screen would show after these two statuses, as plain text.
pub fn text(before: Status, now: Status) -> String {
    let mut screen = Screen::default();
    screen.update(before);
    screen.update(now);
    let theme = Theme {
        colour: false,
        ..Theme::from_env()
    };
    view::text(&screen, &theme)
}

/// Runs on the terminal's alternate screen, and restores the terminal in every case. On a panic, it is restored before
/// the message is printed.
fn on_screen<T>(run: impl FnOnce(&mut DefaultTerminal) -> Result<T>) -> Result<T> {
    let mut terminal = match ratatui::try_init() {
        Ok(terminal) => terminal,
        Err(e) => {
            // Raw mode may be on already when a later step of the initialization fails.
            let _ = ratatui::try_restore();
            return Err(format!("the terminal cannot be used: {e}").into());
        }
    };
    // A terminal without an alternate screen, such as the console, still shows its old content: clear it.
    let result = match terminal.backend_mut().clear() {
        Ok(()) => run(&mut terminal),
        Err(e) => Err(e.into()),
    };
    // Show the cursor first, then restore the rest. Failures do not matter: then the terminal has gone away.
    let _ = terminal.show_cursor();
    let _ = ratatui::try_restore();
    result
}

/// Draws after each event until the user or a signal ends it.
fn run(
    terminal: &mut DefaultTerminal,
    watch: &mut Watch,
    first: Option<Status>,
    interval: Duration,
) -> Result<ScreenExit> {
    let theme = Theme::from_env();
    let mut screen = Screen::default();
    let mut answered = Instant::now();
    match first {
        Some(status) => screen.update(status),
        None => screen.connection = ConnectionState::Awaited,
    }
    loop {
        terminal.draw(|frame| view::draw(frame, &screen, &theme))?;
        match watch.events.recv_timeout(REDRAW) {
            Ok(ScreenEvent::Key(key)) if screen.key(key) == Next::Quit => {
                return Ok(ScreenExit::Asked);
            }
            Ok(ScreenEvent::Key(_) | ScreenEvent::Resized) => {}
            Ok(ScreenEvent::Status(status)) => {
                answered = Instant::now();
                show_status(&mut screen, *status);
            }
            Ok(ScreenEvent::Signal(signal)) => return Ok(ScreenExit::Signal(signal)),
            Ok(ScreenEvent::NoKeys(e)) => {
                return Err(format!("the keyboard cannot be read: {e}").into());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("nobody watches any more".into()),
        }
        watch.check()?;
        let silent = answered.elapsed();
        if silent > interval + LATE {
            screen.connection = ConnectionState::Late(silent.as_secs());
        }
    }
}

/// Shows a status, or the state of the connection if the coordinator did not send one.
fn show_status(screen: &mut Screen, status: std::result::Result<Status, Error>) {
    match status {
        Ok(status) => screen.update(status),
        Err(e) if matches!(e.kind(), ErrorKind::Absent | ErrorKind::Disconnected) => {
            // While none has been seen yet, none has ended.
            if screen.connection != ConnectionState::Awaited {
                screen.connection = ConnectionState::Ended;
            }
        }
        Err(e) => screen.connection = ConnectionState::Failed(e.to_string()),
    }
}
