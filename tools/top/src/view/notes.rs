//! The notes below a table, about its selected row.

use coprep_protocol::message::StreamStatus;
use coprep_protocol::size::human;
use ratatui::text::Line;

use super::pieces::{Piece, flow, plain};
use crate::model::JobRow;
use crate::numbers::{brief, grouped, percent};
use crate::screen::{Pane, Screen};
use crate::theme::{Theme, Tone};

/// Returns the most lines of notes below a table.
pub(super) fn most_lines(pane: Pane) -> usize {
    match pane {
        Pane::Caches => 0,
        Pane::Streams | Pane::Jobs => 2,
        Pane::Slow => 1,
    }
}

/// Draws the notes below a table, in at most `most` lines.
pub(super) fn notes(
    screen: &Screen,
    pane: Pane,
    theme: &Theme,
    width: usize,
    most: usize,
) -> Vec<Line<'static>> {
    let pieces = match pane {
        Pane::Caches => Vec::new(),
        Pane::Streams => stream_notes(screen, theme),
        Pane::Jobs => job_notes(screen, theme),
        Pane::Slow => slow_notes(screen),
    };
    flow(theme, pieces, width, most_lines(pane).min(most))
}

fn stream_notes(screen: &Screen, theme: &Theme) -> Vec<Piece> {
    let Some(stream) = screen.selected_stream() else {
        return Vec::new();
    };
    let s = &stream.status;
    let mut pieces = vec![plain(format!("{}: {}", s.id, theme.clean(&s.pipeline)))];
    let differs = s.differs.iter();
    pieces.extend(differs.map(|d| (Tone::Notice, format!("not shared with {}", theme.clean(d)))));
    let notes = s.notes.iter();
    pieces.extend(notes.map(|note| (Tone::Notice, theme.clean(note))));
    if s.totals.failed > 0 {
        pieces.push((Tone::Bad, format!("{} failed", grouped(s.totals.failed))));
    }
    if let Some(j) = screen.report.holder(s.id) {
        let name = theme.clean(&j.status.name);
        let (held, id) = (j.status.held, process(j));
        pieces.push(plain(format!("most held by {name} ({id}): {held}")));
    }
    let order = if s.relaxed {
        "relaxed"
    } else {
        "deterministic"
    };
    let seed = s.chosen_seed().map(|seed| format!(", seed {seed}"));
    pieces.push(plain(format!("{order} order{}", seed.unwrap_or_default())));
    pieces.push(plain(format!(
        "cache {}",
        format!("{:?}", s.cache).to_lowercase()
    )));
    pieces.push(plain(memory(s)));
    pieces
}

fn memory(s: &StreamStatus) -> String {
    let staging = format!("staging {}", human(s.staging_bytes));
    if s.block_bytes == 0 {
        return staging;
    }
    format!("{staging}, blocks {}", human(s.block_bytes))
}

/// Returns the process ids of a job, by which people tell jobs of one name apart.
fn process(job: &JobRow) -> String {
    let pids: Vec<_> = job.status.pids.iter().map(u32::to_string).collect();
    if pids.is_empty() {
        format!("job {}", job.status.id)
    } else {
        pids.join("+")
    }
}

fn job_notes(screen: &Screen, theme: &Theme) -> Vec<Piece> {
    let at = screen.selected(Pane::Jobs);
    let Some(job) = at.and_then(|i| screen.report.jobs.get(i)) else {
        return Vec::new();
    };
    let s = &job.status;
    let name = theme.clean(&s.name);
    let mut pieces = vec![plain(format!("{name} ({})", process(job)))];
    pieces.push(waits(job));
    pieces.extend(behind(screen, job).map(|text| plain(theme.clean(&text))));
    let (need, samples) = (grouped(s.need.into()), grouped(s.samples.into()));
    pieces.push(plain(format!(
        "epoch {}: {need} of {samples} left",
        s.epoch
    )));
    pieces.push(plain(format!("batch {}", s.batch_size)));
    pieces.push(plain(format!("given {}", grouped(s.delivered))));
    pieces.push(plain(format!("skipped {}", grouped(s.skipped))));
    pieces
}

fn waits(job: &JobRow) -> Piece {
    let w = &job.wait_in_all;
    let [total, fetch, prep, others] = [w.total(), w.fetch, w.prep, w.others].map(percent);
    plain(format!(
        "waited {total} of {}: fetch {fetch} prep {prep} others {others}",
        brief(job.status.age_s)
    ))
}

/// Names the furthest job, and says how far this one is behind it.
fn behind(screen: &Screen, job: &JobRow) -> Option<String> {
    let furthest = screen.report.job((job.stream, job.lag.behind?))?;
    let growth = job
        .lag
        .growth
        .map_or(String::new(), |g| format!(" ({g:+.0}/s)"));
    let samples = grouped(job.lag.samples);
    Some(format!(
        "{samples} behind {} ({}){growth}",
        furthest.status.name,
        process(furthest)
    ))
}

fn slow_notes(screen: &Screen) -> Vec<Piece> {
    let Some(stream) = screen.selected_stream() else {
        return Vec::new();
    };
    let costs = &stream.status.costs;
    // Costs are those without the cache: from the cache a sample may cost less.
    let from = if stream.runs_processes() {
        "dataset"
    } else {
        "file"
    };
    let mut pieces = vec![plain(format!(
        "milliseconds when made from the {from}, stream {}: {} measured",
        stream.status.id,
        grouped(costs.measured.into())
    ))];
    pieces.push(plain(format!("{:.2} ms each", costs.mean_s * 1e3)));
    let budget = costs
        .budget_s
        .map(|s| format!("slow over {:.1} ms", s * 1e3));
    pieces.extend(budget.map(plain));
    pieces.push(plain(format!("{} overtaken", grouped(costs.overtaken))));
    pieces
}
