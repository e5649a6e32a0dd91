//! How far long work has come: a bar on a terminal, else a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::show::duration;

const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Work of known length, or made of steps of known lengths.
pub(crate) struct Progress {
    /// None: lines.
    bar: Option<ProgressBar>,
    started: Instant,
    last: Instant,
    /// What is done at the moment.
    what: String,
}

impl Progress {
    /// `unit`: what is counted, such as `samples`.
    pub(crate) fn new(unit: &str) -> Self {
        let now = Instant::now();
        Progress {
            bar: std::io::stderr().is_terminal().then(|| bar(unit)),
            started: now,
            last: now,
            what: String::new(),
        }
    }

    /// Another step, counted anew: always said.
    pub(crate) fn step(&mut self, what: &str) {
        self.what = what.into();
        self.started = Instant::now();
        self.last = self.started;
        match &self.bar {
            Some(bar) => {
                bar.reset();
                bar.set_prefix(format!("{what}: "));
            }
            None => eprintln!("{what}"),
        }
    }

    /// So much of the step is done.
    pub(crate) fn update(&mut self, done: u64, total: u64, more: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(more.to_owned());
        } else if self.last.elapsed() >= BETWEEN_LINES {
            self.last = Instant::now();
            eprintln!("{}", self.line(done, total, more));
        }
    }

    fn line(&self, done: u64, total: u64, more: &str) -> String {
        let rate = done as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        let left = total.saturating_sub(done) as f64 / rate.max(1e-3);
        let what = match self.what.is_empty() {
            true => String::new(),
            false => format!("{}: ", self.what),
        };
        let more = match more.is_empty() {
            true => String::new(),
            false => format!(", {more}"),
        };
        let left = duration(left);
        format!("{what}{done}/{total}, {rate:.0}/s, {left} left{more}")
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(unit: &str) -> ProgressBar {
    let plain =
        format!("{{prefix}}{{bar:30}} {{pos}}/{{len}} {unit}, {{per_sec}}, {{eta}} left, {{msg}}");
    let style =
        ProgressStyle::with_template(&plain).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
