//! Progress of long work: a bar on a terminal, else a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use coprep_measurement::progress::Progress;
use coprep_terminal::duration;
use indicatif::{ProgressBar, ProgressStyle};

/// Time between two lines where there is no bar.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// Time between two updates of the bar.
const BETWEEN_UPDATES: Duration = Duration::from_millis(200);

/// Progress of work of known length.
pub(crate) struct WorkProgress {
    /// The bar on a terminal. `None` prints lines instead.
    bar: Option<ProgressBar>,
    started: Instant,
    last: Instant,
}

impl WorkProgress {
    /// Starts the progress. `unit` is the noun of the counted things, such as `samples`.
    pub(crate) fn new(unit: &str) -> Self {
        let now = Instant::now();
        WorkProgress {
            bar: std::io::stderr().is_terminal().then(|| bar(unit)),
            started: now,
            last: now,
        }
    }

    /// Shows that `done` of `total` units are done. `more` is appended.
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
        let more = if more.is_empty() {
            String::new()
        } else {
            format!(", {more}")
        };
        let left = duration(left);
        format!("{done}/{total}, {rate:.0}/s, {left} left{more}")
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(unit: &str) -> ProgressBar {
    drawn(&format!(
        "{{bar:30}} {{pos}}/{{len}} {unit}, {{per_sec}}, {{eta}} left, {{msg}}"
    ))
}

fn drawn(template: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

/// Progress of work made of steps, each of which takes about a known time.
pub(crate) struct Steps {
    /// The bar on a terminal. `None` prints lines instead.
    bar: Option<ProgressBar>,
    /// Expected seconds of each step.
    expected: Vec<f64>,
    /// Finished steps of the plan.
    done: usize,
    /// Start of the first step.
    began: Instant,
    step: Option<CurrentStep>,
    last: Instant,
}

/// The step that runs now.
struct CurrentStep {
    what: String,
    began: Instant,
}

impl Steps {
    /// Starts without a plan: steps are neither counted nor timed yet.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let bar = || drawn("{bar:20} {wide_msg}");
        Steps {
            bar: std::io::stderr().is_terminal().then(bar),
            expected: Vec::new(),
            done: 0,
            began: now,
            step: None,
            last: now,
        }
    }

    /// Draws the bar, or prints a line.
    fn show(&self) {
        let Some(step) = &self.step else { return };
        let took = (step.began - self.began).as_secs_f64();
        let now = step.began.elapsed().as_secs_f64();
        let left = left(&self.expected, self.done, took, now);
        let line = progress_line(&step.what, self.done, self.expected.len(), left);
        match &self.bar {
            Some(bar) => {
                let past = took + now;
                // In milliseconds, so that the bar moves smoothly.
                bar.set_length(((past + left.unwrap_or(0.0)) * 1e3) as u64);
                bar.set_position((past * 1e3) as u64);
                bar.set_message(line);
            }
            None => eprintln!("{line}"),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Steps {
    fn plan(&mut self, expected_s: Vec<f64>) {
        self.expected = expected_s;
        self.done = 0;
        self.began = Instant::now();
        self.step = None;
    }

    fn step(&mut self, what: &str) {
        let now = Instant::now();
        self.done += usize::from(self.step.is_some());
        self.step = Some(CurrentStep {
            what: what.into(),
            began: now,
        });
        self.last = now;
        self.show();
    }

    fn tick(&mut self) {
        let between = match self.bar {
            Some(_) => BETWEEN_UPDATES,
            None => BETWEEN_LINES,
        };
        if self.last.elapsed() >= between {
            self.last = Instant::now();
            self.show();
        }
    }
}

/// Bounds of the pace: finished steps are only a rough guide to those to come.
const PACE: (f64, f64) = (0.5, 2.0);

/// Returns the seconds left, or `None` if the current step is not in the plan. `done` steps took `took` seconds, and
/// the current one has taken `now`.
fn left(expected: &[f64], done: usize, took: f64, now: f64) -> Option<f64> {
    let this = expected.get(done)?;
    let should: f64 = expected.iter().take(done).sum();
    let pace = if should > 0.0 {
        (took / should).clamp(PACE.0, PACE.1)
    } else {
        1.0
    };
    let later: f64 = expected.iter().skip(done + 1).sum();
    // A step that takes longer than expected must not shorten the later ones.
    Some((pace * this - now).max(0.0) + pace * later)
}

/// Formats a line of progress: `3 of 8: storage, 20 s left`.
fn progress_line(what: &str, done: usize, steps: usize, left: Option<f64>) -> String {
    match left {
        Some(left) => format!("{} of {steps}: {what}, {} left", done + 1, duration(left)),
        None => what.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_the_pace_so_far() {
        let expected = [2.0, 4.0, 4.0];
        assert_eq!(left(&expected, 0, 0.0, 0.5), Some(9.5));
        assert_eq!(
            left(&expected, 1, 3.0, 1.0),
            Some(5.0 + 6.0),
            "half as fast again"
        );
        assert_eq!(
            left(&expected, 2, 8.0, 60.0),
            Some(0.0),
            "never less than nothing"
        );
        assert_eq!(
            left(&expected, 1, 1e3, 0.0),
            Some(16.0),
            "one step is no rule"
        );
    }

    #[test]
    fn steps_are_counted_where_their_number_is_known() {
        let expected = [2.0, 4.0];
        let line = |expected: &[f64]| {
            progress_line("storage", 1, expected.len(), left(expected, 1, 2.0, 1.0))
        };
        assert_eq!(line(&expected), "2 of 2: storage, 3 s left");
        assert_eq!(line(&[]), "storage");
    }
}
