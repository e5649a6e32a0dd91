//! The threads that wait for events. They end with the process.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use coprep_client::{Error, control};
use coprep_protocol::message::Status;
use coprep_protocol::paths::CoordinatorPaths;
use nix::sys::signal::{SigSet, Signal};
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};

use crate::{Result, SLOW};

/// An event for the screen.
pub(crate) enum ScreenEvent {
    Key(KeyEvent),
    Resized,
    /// The answer of the coordinator, or its failure.
    Status(Box<std::result::Result<Status, Error>>),
    /// A signal that ends the process.
    Signal(Signal),
    /// The error after which no more keys can be read.
    NoKeys(io::Error),
}

/// The threads that wait for events, and the events they send.
pub(crate) struct Watch {
    pub(crate) events: Receiver<ScreenEvent>,
    /// The signals that a thread waits for, and that are blocked in all threads.
    pub(crate) signals: SigSet,
    threads: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Starts the threads. Blocks the signals that end a process, in the caller and in all threads that it starts
    /// later.
    pub(crate) fn start(paths: &CoordinatorPaths, interval: Duration) -> Result<Self> {
        let (sender, events) = channel();
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT]);
        // Before any thread starts, since threads inherit the mask.
        signals.thread_block()?;
        let (paths, to_keys, to_signals) = (paths.clone(), sender.clone(), sender.clone());
        let threads = vec![
            thread("keys", move || keys(&to_keys))?,
            thread("signals", move || wait_for(&signals, &to_signals))?,
            thread("looks", move || poll(&paths, interval, &sender))?,
        ];
        Ok(Watch {
            events,
            signals,
            threads,
        })
    }

    /// Checks that all threads run.
    ///
    /// # Errors
    /// If one of the threads has panicked: its message has already spoilt the screen.
    pub(crate) fn check(&self) -> Result<()> {
        match self.threads.iter().find(|t| t.is_finished()) {
            Some(thread) => {
                let name = thread.thread().name().unwrap_or("watching").to_owned();
                Err(format!("the thread for {name} has ended").into())
            }
            None => Ok(()),
        }
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(run)
}

/// Sends keys and changes of the terminal's size.
fn keys(sender: &Sender<ScreenEvent>) {
    loop {
        let event = match event::read() {
            // Some terminals also report when a key is released.
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => ScreenEvent::Key(key),
            Ok(Event::Resize(..)) => ScreenEvent::Resized,
            Ok(_) => continue,
            Err(e) => {
                // If the screen has ended, nobody needs the error.
                let _ = sender.send(ScreenEvent::NoKeys(e));
                return;
            }
        };
        if sender.send(event).is_err() {
            return;
        }
    }
}

/// Sends the signals that ask the process to end.
fn wait_for(signals: &SigSet, sender: &Sender<ScreenEvent>) {
    while let Ok(signal) = signals.wait() {
        if sender.send(ScreenEvent::Signal(signal)).is_err() {
            return;
        }
    }
}

/// Asks the coordinator for its status once per interval, or at once after an answer that took longer.
fn poll(paths: &CoordinatorPaths, interval: Duration, sender: &Sender<ScreenEvent>) {
    let mut due = Instant::now() + interval;
    loop {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due = Instant::now() + interval;
        let status = Box::new(control::status(paths, SLOW));
        if sender.send(ScreenEvent::Status(status)).is_err() {
            return;
        }
    }
}
