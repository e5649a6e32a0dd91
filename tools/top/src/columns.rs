//! The columns of the four tables.

use coprep_protocol::message::{CacheForm, FormStatus, SampleCost};
use coprep_protocol::size::human;
use coprep_terminal::label;
use ratatui::text::Span;

use crate::model::{CacheRow, JobRow, SortBy, StallShares, StreamRow};
use crate::numbers::{brief, count, factor, milliseconds, percent, rate};
use crate::table::{Column, Width};
use crate::theme::{Fill, Theme, Tone};

const fn column<R>(
    head: &'static str,
    least: usize,
    rank: u8,
    cell: fn(&R, &Theme) -> Span<'static>,
) -> Column<R> {
    Column {
        head,
        width: Width::Cells(least),
        rank,
        cell,
    }
}

const fn rest<R>(
    head: &'static str,
    least: usize,
    rank: u8,
    cell: fn(&R, &Theme) -> Span<'static>,
) -> Column<R> {
    Column {
        width: Width::Rest(least),
        ..column(head, least, rank, cell)
    }
}

fn plain(text: impl Into<String>) -> Span<'static> {
    Span::raw(text.into())
}

/// Idle seconds beyond which a job is highlighted.
const LONG_IDLE_S: f64 = 5.0;
/// Share of time spent waiting beyond which a job is highlighted.
const WAITS_MUCH: f64 = 0.25;

/// Columns of the jobs. The last four cover the time since a job came.
pub(crate) static JOBS: [Column<JobRow>; 20] = [
    rest("name", 10, 0, |j, t| plain(t.clean(&j.status.name))),
    column("pid", 4, 6, |j, _| plain(pids(&j.status.pids))),
    column("strm", 4, 9, |j, _| plain(j.stream.to_string())),
    column("ep", 3, 5, |j, _| plain(j.status.epoch.to_string())),
    column("done", 5, 2, |j, _| plain(percent(j.done()))),
    column("smp/s", 6, 0, |j, _| plain(rate(j.samples))),
    column("bat/s", 5, 10, |j, _| plain(rate(j.batches))),
    column("wait", 5, 1, |j, t| waited(j.wait, t)),
    column("fetch", 5, 3, |j, _| part(j.wait, |w| w.fetch)),
    column("prep", 4, 3, |j, _| part(j.wait, |w| w.prep)),
    column("othr", 4, 3, |j, _| part(j.wait, |w| w.others)),
    column("lag", 5, 4, |j, _| plain(count(j.lag.samples as f64))),
    column("que", 3, 8, |j, _| plain(j.status.queued.to_string())),
    column("held", 4, 7, |j, _| plain(j.status.held.to_string())),
    column("idle", 5, 7, idle),
    column("skip", 4, 11, |j, t| alarm(t, j.status.skipped)),
    column("all:wait", 8, 12, |j, t| waited(Some(j.wait_in_all), t)),
    column("fetch", 5, 12, |j, _| {
        part(Some(j.wait_in_all), |w| w.fetch)
    }),
    column("prep", 4, 12, |j, _| part(Some(j.wait_in_all), |w| w.prep)),
    column("othr", 4, 12, |j, _| {
        part(Some(j.wait_in_all), |w| w.others)
    }),
];

/// Returns the head of the column by which jobs are sorted.
pub(crate) fn sorted(by: SortBy) -> &'static str {
    match by {
        SortBy::Stream => "strm",
        SortBy::Rate => "smp/s",
        SortBy::Name | SortBy::Done | SortBy::Wait | SortBy::Lag | SortBy::Held | SortBy::Idle => {
            by.word()
        }
    }
}

/// Formats process ids: the first one, and the number of others.
fn pids(pids: &[u32]) -> String {
    match pids {
        [] => "-".into(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first}+{}", rest.len()),
    }
}

fn waited(wait: Option<StallShares>, theme: &Theme) -> Span<'static> {
    match wait.map(|w| w.total()) {
        None => plain("-"),
        Some(total) if total > WAITS_MUCH => theme.span(Tone::Notice, percent(total)),
        Some(total) => plain(percent(total)),
    }
}

fn part(wait: Option<StallShares>, of: fn(&StallShares) -> f64) -> Span<'static> {
    plain(wait.map_or("-".into(), |w| percent(of(&w))))
}

fn idle(job: &JobRow, theme: &Theme) -> Span<'static> {
    let tone = if job.status.idle_s > LONG_IDLE_S {
        Tone::Notice
    } else {
        Tone::Plain
    };
    theme.span(tone, brief(job.status.idle_s))
}

fn alarm(theme: &Theme, n: u64) -> Span<'static> {
    let tone = if n > 0 { Tone::Bad } else { Tone::Plain };
    theme.span(tone, count(n as f64))
}

pub(crate) static STREAMS: [Column<StreamRow>; 9] = [
    rest("dataset", 8, 0, |s, t| {
        plain(format!("{} {}", s.status.id, t.clean(&s.status.dataset)))
    }),
    column("samples", 7, 5, |s, _| {
        plain(count(f64::from(s.status.samples)))
    }),
    column("jobs", 4, 6, |s, _| plain(s.status.jobs.len().to_string())),
    column("prep/s", 6, 1, |s, _| plain(rate(s.prepared))),
    column("deliv/s", 7, 0, |s, _| plain(rate(s.delivered))),
    column("share", 5, 2, |s, _| plain(factor(s.share_now))),
    column("in all", 6, 3, |s, _| plain(factor(s.share))),
    column("free", 5, 4, buffers),
    column("pipeline", 8, 9, |s, t| plain(t.clean(&s.status.pipeline))),
];

fn buffers(stream: &StreamRow, theme: &Theme) -> Span<'static> {
    let (free, all) = (stream.status.buffers_free, stream.status.buffers);
    let tone = if free == 0 { Tone::Notice } else { Tone::Plain };
    theme.span(tone, format!("{free}/{all}"))
}

pub(crate) static CACHES: [Column<CacheRow>; 9] = [
    rest("cache", 8, 0, |c, t| plain(t.clean(&c.name))),
    column("form", 4, 5, |c, _| {
        let form = format!("{:?}", c.status.form).to_lowercase();
        plain(if c.is_on_disk { "disk".into() } else { form })
    }),
    Column {
        head: "filled",
        width: Width::Bar(16),
        rank: 3,
        cell: |_, _| Span::raw(""),
    },
    column("full", 4, 0, |c, _| {
        plain(percent(share(c.status.used, c.status.capacity)))
    }),
    column("of", 9, 4, |c, _| plain(human(c.status.capacity))),
    column("samples", 7, 6, |c, _| {
        plain(count(c.status.entries as f64))
    }),
    column("hit/s", 5, 2, |c, _| plain(rate(c.hits))),
    column("miss/s", 6, 2, |c, _| plain(rate(c.misses))),
    column("hits", 4, 1, |c, _| {
        plain(c.hit_share().map_or("-".into(), percent))
    }),
];

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Draws the share of the cache that each form takes.
pub(crate) fn filled(cache: &CacheRow, theme: &Theme, width: usize) -> Vec<Span<'static>> {
    let capacity = cache.status.capacity;
    let fill = |form: &FormStatus| match form.form {
        CacheForm::Encoded => Fill::Encoded,
        CacheForm::Prepared => Fill::Prepared,
        CacheForm::Decoded | CacheForm::Off | CacheForm::Auto => Fill::Decoded,
    };
    let parts: Vec<_> = cache
        .status
        .by_form
        .iter()
        .map(|f| (share(f.bytes, capacity), fill(f)))
        .collect();
    theme.bar(&parts, width)
}

pub(crate) static SLOW: [Column<SampleCost>; 7] = [
    column("sample", 8, 0, |s, _| plain(s.id.to_string())),
    column("fetch", 7, 1, |s, _| plain(milliseconds(s.fetch_s))),
    column("decode", 7, 1, |s, _| plain(milliseconds(s.decode_s))),
    column("fixed", 7, 4, |s, _| plain(milliseconds(s.fixed_s))),
    column("random", 7, 4, |s, _| plain(milliseconds(s.random_s))),
    column("cpu", 7, 3, |s, _| plain(milliseconds(s.cpu_s))),
    rest("path", 12, 2, |s, t| plain(t.clean(&label(s)))),
];
