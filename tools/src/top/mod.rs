//! `coprep top`: streams, jobs and caches on a live screen.
//!
//! Three threads wait for keys, for signals and for the coordinator, and send events to the one that draws. [`model`]
//! and [`screen`] compute the content without I/O or clock, and [`view`] draws it.

mod columns;
mod help;
pub(crate) mod model;
mod numbers;
mod screen;
mod table;
mod theme;
mod view;
mod watch;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use coprep_client::{Error, control};
use coprep_protocol::message::Status;
use coprep_protocol::paths::CoordinatorPaths;
use nix::sys::signal::{Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::backend::Backend;

use crate::top::screen::{ConnectionState, Next, Screen};
use crate::top::theme::Theme;
use crate::top::watch::{ScreenEvent, Watch};
use crate::{Outcome, args};

/// Number of the most expensive samples of each stream to ask for.
const SLOW: u32 = 8;
/// Longest time between two drawings.
const REDRAW: Duration = Duration::from_secs(1);
/// Time beyond the interval after which the screen says that the coordinator's answer is late.
const LATE: Duration = Duration::from_secs(3);

/// Shows the live screen until the user or a signal ends it, or prints one look.
pub(crate) fn run(place: &CoordinatorPaths, args: &args::TopArgs) -> Outcome {
    if args.once {
        return once(place, args.interval);
    }
    if let Some(why) = unfit() {
        eprintln!(
            "coprep: {why}: use `coprep top --once` for one look, or `coprep status` for all there is to know"
        );
        return Ok(ExitCode::from(2));
    }
    let first = match control::status(place, SLOW) {
        // No coordinator runs yet: people open this first, and then start their jobs.
        Err(Error::Absent { .. }) => None,
        status => Some(status?),
    };
    let mut watch = Watch::start(place, args.interval)?;
    let end = on_screen(|terminal| show(terminal, &mut watch, first, args.interval))?;
    match end {
        ScreenExit::Asked => Ok(ExitCode::SUCCESS),
        ScreenExit::Signal(signal) => {
            // End by the signal itself, as its sender expects.
            watch.signals.thread_unblock()?;
            raise(signal)?;
            Ok(ExitCode::from(1))
        }
    }
}

/// Returns the reason for which there can be no screen.
fn unfit() -> Option<&'static str> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    match (std::io::stdout().is_terminal(), dumb) {
        (false, _) => Some("top needs a terminal, and its output is none"),
        (_, true) => Some(
            "top needs a terminal that can move its cursor, and TERM says that this one cannot",
        ),
        _ => None,
    }
}

/// Prints one look at the coordinator. Rates need an earlier one, an interval before.
fn once(place: &CoordinatorPaths, interval: Duration) -> Outcome {
    let mut screen = Screen::default();
    screen.look(control::status(place, SLOW)?);
    std::thread::sleep(interval);
    screen.look(control::status(place, SLOW)?);
    let theme = Theme {
        colour: false,
        ..Theme::from_env()
    };
    println!("{}", view::text(&screen, &theme));
    Ok(ExitCode::SUCCESS)
}

/// The reason for leaving the screen.
enum ScreenExit {
    Asked,
    Signal(Signal),
}

/// Runs on the terminal's alternate screen, and restores the terminal in every case. On a panic, it is restored before
/// the message is printed.
fn on_screen<T>(run: impl FnOnce(&mut DefaultTerminal) -> Outcome<T>) -> Outcome<T> {
    let mut terminal = match ratatui::try_init() {
        Ok(terminal) => terminal,
        Err(e) => {
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
fn show(
    terminal: &mut DefaultTerminal,
    watch: &mut Watch,
    first: Option<Status>,
    interval: Duration,
) -> Outcome<ScreenExit> {
    let theme = Theme::from_env();
    let mut screen = Screen::default();
    let mut answered = Instant::now();
    match first {
        Some(status) => screen.look(status),
        None => screen.link = ConnectionState::Awaited,
    }
    loop {
        terminal.draw(|frame| view::draw(frame, &screen, &theme))?;
        match watch.news.recv_timeout(REDRAW) {
            Ok(ScreenEvent::Key(key)) if screen.key(key) == Next::Quit => {
                return Ok(ScreenExit::Asked);
            }
            Ok(ScreenEvent::Key(_) | ScreenEvent::Resized) => {}
            Ok(ScreenEvent::Look(look)) => {
                answered = Instant::now();
                take(&mut screen, *look);
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
            screen.link = ConnectionState::Late(silent.as_secs());
        }
    }
}

/// Shows a look at the coordinator, or the state of the connection if it failed.
fn take(screen: &mut Screen, look: Result<Status, Error>) {
    match look {
        Ok(status) => screen.look(status),
        Err(Error::Absent { .. } | Error::Disconnected(_))
            // None has been seen yet, so none has ended.
            if screen.link == ConnectionState::Awaited => {}
        Err(Error::Absent { .. } | Error::Disconnected(_)) => screen.link = ConnectionState::Ended,
        Err(e) => screen.link = ConnectionState::Failed(e.to_string()),
    }
}
