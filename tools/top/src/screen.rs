//! The user's choices on the screen. Pure: it takes keys and statuses, and has no output.

use coprep_protocol::message::{SampleCost, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::model::{JobKey, Overview, SortBy, StreamRow, sort};

/// A table of the screen, in the order from top to bottom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pane {
    Caches,
    Streams,
    #[default]
    Jobs,
    Slow,
}

impl Pane {
    pub(crate) const ALL: [Pane; 4] = [Pane::Caches, Pane::Streams, Pane::Jobs, Pane::Slow];

    fn next(self) -> Self {
        match self {
            Pane::Jobs => Pane::Streams,
            Pane::Streams => Pane::Slow,
            Pane::Slow => Pane::Caches,
            Pane::Caches => Pane::Jobs,
        }
    }

    fn previous(self) -> Self {
        // Of four tables, the third one forward is the one before.
        self.next().next().next()
    }
}

/// State of the connection to the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    #[default]
    Fine,
    /// The coordinator has not answered for this many seconds.
    Late(u64),
    /// The coordinator has ended.
    Ended,
    /// No coordinator has been seen yet.
    Awaited,
    /// The coordinator answers, but the request failed for this reason.
    Failed(String),
}

/// The action after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Go,
    Quit,
}

/// Everything that determines the drawing.
#[derive(Default)]
pub(crate) struct Screen {
    pub(crate) report: Overview,
    pub(crate) connection: ConnectionState,
    pub(crate) sort: SortBy,
    pub(crate) reversed: bool,
    pub(crate) focus: Pane,
    pub(crate) paused: bool,
    /// First visible line of the help, while it is shown.
    pub(crate) help: Option<usize>,
    job: Option<JobKey>,
    stream: Option<u64>,
    slow: usize,
    cache: usize,
    last: Option<Status>,
}

impl Screen {
    /// Takes the next status of the coordinator. While the screen is paused, it only serves the next rates.
    pub(crate) fn update(&mut self, status: Status) {
        self.connection = ConnectionState::Fine;
        if !self.paused {
            self.report = Overview::new(self.last.as_ref(), &status);
            self.maintain();
        }
        self.last = Some(status);
    }

    /// Sorts the jobs, and moves each selection whose row has disappeared.
    fn maintain(&mut self) {
        sort(&mut self.report.jobs, self.sort, self.reversed);
        let first = self.report.jobs.first();
        let job = self.job.and_then(|key| self.report.job(key));
        // If the selected job has left, select the first.
        self.job = job.or(first).map(|j| j.key());
        let there = |id: &u64| self.report.stream(*id).is_some();
        let of_job = self.job.map(|(stream, _)| stream);
        let first = self.report.streams.first().map(|s| s.status.id);
        // If the selected stream has gone, select that of the job.
        self.stream = self.stream.filter(there).or(of_job).or(first);
        self.slow = self.slow.min(self.slow_samples().len().saturating_sub(1));
        self.cache = self.cache.min(self.report.caches.len().saturating_sub(1));
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Next {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Next::Quit,
            // Ctrl with a letter does not mean the letter.
            _ if control => {}
            code if self.help.is_some() => self.key_in_help(code),
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Char('h' | '?') => self.help = Some(0),
            KeyCode::Char('p') => self.paused = !self.paused,
            // Each column starts in its own direction.
            KeyCode::Char('s') => self.sort_by(self.sort.next(), false),
            KeyCode::Char('r') => self.sort_by(self.sort, !self.reversed),
            KeyCode::Char('j') | KeyCode::Down => self.step(1),
            KeyCode::Char('k') | KeyCode::Up => self.step(-1),
            KeyCode::Tab => self.focus = self.focus.next(),
            KeyCode::BackTab => self.focus = self.focus.previous(),
            _ => {}
        }
        Next::Go
    }

    /// Handles a key while the help is shown: arrows scroll it, any other key leaves it.
    fn key_in_help(&mut self, code: KeyCode) {
        let line = self.help.unwrap_or(0);
        self.help = match code {
            KeyCode::Char('j') | KeyCode::Down => Some(line + 1),
            KeyCode::Char('k') | KeyCode::Up => Some(line.saturating_sub(1)),
            _ => None,
        };
    }

    fn sort_by(&mut self, by: SortBy, reversed: bool) {
        (self.sort, self.reversed) = (by, reversed);
        self.maintain();
    }

    /// Moves the selection in the focused table.
    fn step(&mut self, by: isize) {
        let (at, rows) = (self.selected(self.focus), self.rows(self.focus));
        let Some(last) = rows.checked_sub(1) else {
            return;
        };
        let to = at.unwrap_or(0).saturating_add_signed(by).min(last);
        match self.focus {
            Pane::Jobs => {
                self.job = self.report.jobs.get(to).map(|j| j.key());
                // The tables below show the stream of the selected job.
                self.stream = self.job.map(|(stream, _)| stream);
            }
            Pane::Streams => self.stream = self.report.streams.get(to).map(|s| s.status.id),
            Pane::Slow => self.slow = to,
            Pane::Caches => self.cache = to,
        }
    }

    pub(crate) fn rows(&self, pane: Pane) -> usize {
        match pane {
            Pane::Caches => self.report.caches.len(),
            Pane::Streams => self.report.streams.len(),
            Pane::Jobs => self.report.jobs.len(),
            Pane::Slow => self.slow_samples().len(),
        }
    }

    /// Returns the selected row of a table.
    pub(crate) fn selected(&self, pane: Pane) -> Option<usize> {
        match pane {
            Pane::Jobs => {
                let key = self.job?;
                self.report.jobs.iter().position(|j| j.key() == key)
            }
            Pane::Streams => {
                let id = self.stream?;
                self.report.streams.iter().position(|s| s.status.id == id)
            }
            Pane::Slow => Some(self.slow),
            Pane::Caches => Some(self.cache),
        }
    }

    pub(crate) fn selected_stream(&self) -> Option<&StreamRow> {
        self.report.stream(self.stream?)
    }

    /// Returns the most expensive samples of the selected stream.
    pub(crate) fn slow_samples(&self) -> &[SampleCost] {
        self.selected_stream()
            .map_or(&[], |s| &s.status.costs.slowest)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::fixtures::{a_job, two_statuses};

    pub(crate) fn press(screen: &mut Screen, codes: impl IntoIterator<Item = KeyCode>) -> Next {
        let keys = codes.into_iter().map(KeyEvent::from);
        keys.map(|key| screen.key(key)).last().unwrap_or(Next::Go)
    }

    pub(crate) fn a_screen() -> Screen {
        let (before, now) = two_statuses();
        let mut screen = Screen::default();
        screen.update(before);
        screen.update(now);
        screen
    }

    fn selected(screen: &Screen) -> JobKey {
        screen.report.jobs[screen.selected(Pane::Jobs).unwrap()].key()
    }

    #[test]
    fn three_keys_quit_and_any_key_leaves_the_help_first() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for key in [KeyCode::Char('q').into(), KeyCode::Esc.into(), control_c] {
            assert_eq!(a_screen().key(key), Next::Quit, "{key:?}");
        }
        let mut screen = a_screen();
        assert_eq!(
            press(&mut screen, [KeyCode::Char('h'), KeyCode::Esc]),
            Next::Go
        );
        assert_eq!(screen.help, None);
        assert_eq!(
            press(&mut screen, [KeyCode::Char('?'), KeyCode::Down]),
            Next::Go
        );
        assert_eq!(screen.help, Some(1));
        assert_eq!(screen.key(control_c), Next::Quit);
    }

    #[test]
    fn the_selection_stays_with_its_job_when_the_order_changes() {
        let mut screen = a_screen();
        press(&mut screen, [KeyCode::Char('j')]);
        assert_eq!(selected(&screen), (1, 2));
        press(&mut screen, [KeyCode::Char('r')]);
        assert_eq!(
            (selected(&screen), screen.selected(Pane::Jobs)),
            ((1, 2), Some(1))
        );
        press(&mut screen, [KeyCode::Char('k'), KeyCode::Up, KeyCode::Up]);
        assert_eq!(selected(&screen), (2, 1));
    }

    #[test]
    fn a_job_brings_its_stream_and_one_that_has_gone_gives_way() {
        let mut screen = a_screen();
        press(&mut screen, [KeyCode::Down, KeyCode::Down, KeyCode::Down]);
        assert_eq!(selected(&screen), (2, 1));
        assert_eq!(screen.selected_stream().unwrap().status.id, 2);
        let mut now = two_statuses().1;
        now.uptime_s += 5.0;
        now.streams.remove(1);
        screen.update(now.clone());
        assert_eq!(selected(&screen), (1, 1));
        assert_eq!(screen.selected_stream().unwrap().status.id, 1);
        now.streams.clear();
        screen.update(now);
        assert!(screen.selected(Pane::Jobs).is_none() && screen.selected_stream().is_none());
        press(
            &mut screen,
            [
                KeyCode::Down,
                KeyCode::Tab,
                KeyCode::Up,
                KeyCode::Tab,
                KeyCode::Down,
            ],
        );
    }

    #[test]
    fn in_the_streams_the_arrows_select_a_stream() {
        let mut screen = a_screen();
        press(&mut screen, [KeyCode::Tab, KeyCode::Down]);
        assert_eq!(screen.selected_stream().unwrap().status.id, 2);
        assert_eq!(selected(&screen), (1, 1));
        press(&mut screen, [KeyCode::Tab, KeyCode::Down, KeyCode::Down]);
        assert_eq!(
            (screen.focus, screen.selected(Pane::Slow)),
            (Pane::Slow, Some(2))
        );
        press(&mut screen, [KeyCode::Tab, KeyCode::Tab]);
        assert_eq!(screen.focus, Pane::Jobs);
        press(&mut screen, [KeyCode::BackTab]);
        assert_eq!(screen.focus, Pane::Caches);
    }

    #[test]
    fn a_pause_holds_the_picture_and_rates_go_on_from_the_last_status() {
        let mut screen = a_screen();
        press(&mut screen, [KeyCode::Char('p')]);
        let mut now = two_statuses().1;
        for _ in 0..3 {
            now.uptime_s += 1.0;
            now.streams[0].jobs[0].delivered += 1000;
            screen.update(now.clone());
        }
        assert_eq!(screen.report.job((1, 1)).unwrap().samples, Some(0.0));
        press(&mut screen, [KeyCode::Char('p')]);
        now.uptime_s += 1.0;
        now.streams[0].jobs[0].delivered += 50;
        now.streams[0].jobs.push(a_job(3));
        screen.update(now);
        assert_eq!(screen.report.job((1, 1)).unwrap().samples, Some(50.0));
        assert_eq!(screen.report.jobs.len(), 4);
    }
}
