//! Draws the screen as lines that fit the width. Parts for which there is no room are left out.
//!
//! | module | purpose |
//! |---|---|
//! | `edges` | the first two lines and the last one |
//! | `notes` | the notes below a table |
//! | `pieces` | lines made of pieces that are shown whole or not at all |

mod edges;
mod notes;
mod pieces;

use coprep_protocol::message::SampleCost;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use crate::columns::{self, CACHES, JOBS, SLOW, STREAMS};
use crate::help::HELP;
use crate::model::{CacheRow, JobRow, StreamRow};
use crate::screen::{ConnectionState, Pane, Screen};
use crate::table::Table;
use crate::theme::{Theme, Tone};

/// Smallest width and height of a useful screen.
pub(crate) const LEAST: (u16, u16) = (36, 6);

/// Draws the screen, its help, or a hint that the terminal is too small.
pub(crate) fn draw(frame: &mut Frame, screen: &Screen, theme: &Theme) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let lines = if area.width < LEAST.0 || area.height < LEAST.1 {
        too_small(area)
    } else if let Some(first) = screen.help {
        help(theme, first, height)
    } else {
        whole(screen, theme, width, height)
    };
    for (y, line) in (area.y..area.bottom()).zip(&lines) {
        frame.buffer_mut().set_line(area.x, y, line, area.width);
    }
}

fn too_small(area: Rect) -> Vec<Line<'static>> {
    let (width, height) = LEAST;
    vec![
        Line::raw(format!("coprep top needs {width}x{height}")),
        Line::raw(format!("here are {}x{}", area.width, area.height)),
        Line::raw("q quits"),
    ]
}

fn help(theme: &Theme, first: usize, height: usize) -> Vec<Line<'static>> {
    let text = HELP
        .lines()
        .map(|line| Line::raw(format!(" {}", theme.clean(line))));
    let all = text.collect::<Vec<_>>();
    let room = height.saturating_sub(1);
    let first = first.min(all.len().saturating_sub(room));
    let mut lines: Vec<_> = all.into_iter().skip(first).take(room).collect();
    lines.resize(room, Line::default());
    lines.push(Line::from(
        theme.span(Tone::Dim, " arrows move, any other key leaves the help"),
    ));
    lines
}

/// Draws two lines of head, one for each store that is out and for each GPU, the tables with their notes, and a line of keys.
fn whole(screen: &Screen, theme: &Theme, width: usize, height: usize) -> Vec<Line<'static>> {
    let mut lines = vec![
        edges::head(screen, theme, width),
        match &screen.connection {
            ConnectionState::Fine => edges::pool(&screen.report.pool, theme, width),
            connection => edges::banner(connection, theme, width),
        },
    ];
    // Tables need most of a low screen.
    let outages = screen.report.outages.iter().take(height / 8);
    lines.extend(outages.map(|outage| edges::outage(outage, theme, width)));
    let gpus = screen.report.gpus.iter().take(height / 8);
    lines.extend(gpus.map(|gpu| edges::gpu(gpu, theme, width)));
    let room = height - lines.len() - 1;
    let wants = Pane::ALL.map(|pane| want(screen, pane));
    let given = share(wants, screen.focus, room);
    // An empty line before each table, if there is room for that.
    let airy = wants.iter().sum::<usize>() + wants.len() <= room;
    for (pane, rows) in Pane::ALL.into_iter().zip(given) {
        lines.extend(airy.then(Line::default));
        lines.extend(table(screen, pane, theme, width, rows));
    }
    lines.resize(height - 1, Line::default());
    lines.push(edges::foot(screen, theme, width));
    lines
}

/// Returns the lines of a table with all its rows and notes.
fn want(screen: &Screen, pane: Pane) -> usize {
    match screen.rows(pane) {
        0 => 1,
        rows => 1 + rows + notes::most_lines(pane),
    }
}

/// Shares the lines out among the tables. The focused table gets up to two thirds. Then each gets a head and a row
/// while there is room, and then the lines it wants, the jobs before others.
fn share(wants: [usize; 4], focus: Pane, room: usize) -> [usize; 4] {
    const LEAST: usize = 2;
    let mut given = [0; 4];
    given[focus as usize] = wants[focus as usize].min(room - room / 3);
    let mut left = room - given[focus as usize];
    let order = [focus, Pane::Jobs, Pane::Streams, Pane::Caches, Pane::Slow].map(|p| p as usize);
    for pane in order {
        let least = wants[pane].min(LEAST);
        if given[pane] == 0 && least <= left {
            given[pane] = least;
            left -= least;
        }
    }
    for pane in order {
        let more = (wants[pane] - given[pane]).min(left);
        // A table without room for a row gets no head either.
        if given[pane] > 0 {
            given[pane] += more;
            left -= more;
        }
    }
    given
}

fn table(
    screen: &Screen,
    pane: Pane,
    theme: &Theme,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    // Notes get the lines that rows leave, and at least a third, since they describe the selected row.
    let left = height.saturating_sub(1 + screen.rows(pane));
    let notes = notes::notes(screen, pane, theme, width, left.max(height / 3));
    let height = height - notes.len();
    let mut lines = match pane {
        Pane::Caches => caches(screen).lines(theme, width, height),
        Pane::Streams => streams(screen).lines(theme, width, height),
        Pane::Jobs => jobs(screen).lines(theme, width, height),
        Pane::Slow => slow(screen).lines(theme, width, height),
    };
    lines.extend(notes);
    lines
}

fn caches(screen: &Screen) -> Table<'_, CacheRow> {
    Table {
        columns: &CACHES,
        title: "CACHES".into(),
        rows: &screen.report.caches,
        selected: selected(screen, Pane::Caches),
        focused: screen.focus == Pane::Caches,
        sorted: None,
        bar: Some(columns::filled),
    }
}

fn streams(screen: &Screen) -> Table<'_, StreamRow> {
    Table {
        columns: &STREAMS,
        title: "STREAMS".into(),
        rows: &screen.report.streams,
        selected: screen.selected(Pane::Streams),
        focused: screen.focus == Pane::Streams,
        sorted: None,
        bar: None,
    }
}

fn jobs(screen: &Screen) -> Table<'_, JobRow> {
    let descending = screen.sort.descends() != screen.reversed;
    Table {
        columns: &JOBS,
        title: "JOBS".into(),
        rows: &screen.report.jobs,
        selected: screen.selected(Pane::Jobs),
        focused: screen.focus == Pane::Jobs,
        sorted: Some((columns::sorted(screen.sort), descending)),
        bar: None,
    }
}

fn slow(screen: &Screen) -> Table<'_, SampleCost> {
    Table {
        columns: &SLOW,
        title: "SLOW".into(),
        rows: screen.slow_samples(),
        selected: selected(screen, Pane::Slow),
        focused: screen.focus == Pane::Slow,
        sorted: None,
        bar: None,
    }
}

/// Returns the selected row of a table that marks it only while the table is focused.
fn selected(screen: &Screen, pane: Pane) -> Option<usize> {
    screen.selected(pane).filter(|_| screen.focus == pane)
}

/// Returns everything as plain text, for a file.
pub(crate) fn text(screen: &Screen, theme: &Theme) -> String {
    let report = &screen.report;
    let about = edges::about(report).join(", ");
    let mut parts = vec![format!(
        "coordinator {}, {about}\n{}",
        report.pid,
        edges::pool(&report.pool, theme, usize::MAX)
    )];
    let outages = report.outages.iter();
    parts.extend(outages.map(|o| edges::outage(o, theme, usize::MAX >> 1).to_string()));
    let gpus = report.gpus.iter();
    parts.extend(gpus.map(|gpu| edges::gpu(gpu, theme, usize::MAX >> 1).to_string()));
    parts.push(caches(screen).text(theme));
    parts.push(streams(screen).text(theme));
    parts.push(jobs(screen).text(theme));
    parts.push(slow(screen).text(theme));
    parts.join("\n\n")
}

#[cfg(test)]
mod tests;
