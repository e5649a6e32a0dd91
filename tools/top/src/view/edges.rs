//! The first two lines of the screen, about the coordinator, and the last one, about the keys.

use coprep_protocol::message::OutageStatus;
use coprep_protocol::size::human;
use coprep_terminal::duration;
use ratatui::text::{Line, Span};

use super::pieces::{one_line, plain};
use crate::model::{GpuRow, Overview, PoolRow};
use crate::numbers::{percent, rate};
use crate::screen::{ConnectionState, Screen};
use crate::theme::{Theme, Tone};

/// Draws the first line: the coordinator and its most important facts.
pub(super) fn head(screen: &Screen, theme: &Theme, width: usize) -> Line<'static> {
    let is_known = screen.connection != ConnectionState::Awaited;
    let title = if is_known {
        format!("coordinator {}", screen.report.pid)
    } else {
        "coprep top".into()
    };
    let mut pieces = vec![(Tone::Head, title)];
    if screen.paused {
        pieces.push((Tone::Notice, "paused".into()));
    }
    if is_known {
        pieces.extend(about(&screen.report).into_iter().map(plain));
    }
    one_line(theme, pieces, width)
}

/// Describes the coordinator, the most important facts first.
pub(super) fn about(report: &Overview) -> Vec<String> {
    let pool = &report.pool.status;
    vec![
        format!("up {}", duration(report.uptime_s)),
        format!("memory {}", human(report.pss_bytes)),
        format!("{} CPUs, {} threads", pool.cpus, pool.threads),
        format!("version {}", report.version),
    ]
}

/// Draws the state of a connection that is not fine.
pub(super) fn banner(connection: &ConnectionState, theme: &Theme, width: usize) -> Line<'static> {
    const ENDED: &str = "coordinator has ended, waiting for it to come back";
    let text = match connection {
        ConnectionState::Fine => String::new(),
        ConnectionState::Late(seconds) => {
            format!("the coordinator has not answered for {seconds} s")
        }
        ConnectionState::Ended if width <= ENDED.len() => "coordinator has ended, waiting".into(),
        ConnectionState::Ended => ENDED.into(),
        ConnectionState::Awaited => "no coordinator is running, waiting for one".into(),
        ConnectionState::Failed(why) => theme.clean(why),
    };
    let shown = theme.shorten(&text, width.saturating_sub(1));
    Line::from(vec![Span::raw(" "), theme.span(Tone::Bad, shown)])
}

/// Draws the work of the threads, in the most detailed form that fits.
pub(super) fn pool(pool: &PoolRow, theme: &Theme, width: usize) -> Line<'static> {
    let shapes = [(16, true), (8, true), (8, false), (4, false), (0, false)];
    let lines = shapes.map(|(gauge, rates)| {
        let mut spans = vec![Span::raw(" ")];
        spans.extend(stage(pool, theme, Stage::Fetch, gauge, rates));
        spans.push(Span::raw("  "));
        spans.extend(stage(pool, theme, Stage::Prepare, gauge, rates));
        Line::from(spans)
    });
    let [.., least] = &lines;
    let fitting = lines.iter().find(|line| line.width() <= width);
    fitting.unwrap_or(least).clone()
}

/// Draws a remote store that does not answer. Jobs that read from it wait.
pub(super) fn outage(outage: &OutageStatus, theme: &Theme, width: usize) -> Line<'static> {
    let text = format!(
        "{} has not answered for {} ({}), {} reads wait, next try in {}",
        outage.store,
        duration(outage.lasts_s),
        outage.last_answer,
        outage.waiting,
        duration(outage.next_try_s),
    );
    let shown = theme.shorten(&theme.clean(&text), width.saturating_sub(1));
    Line::from(vec![Span::raw(" "), theme.span(Tone::Bad, shown)])
}

/// Draws the copies to a GPU.
pub(super) fn gpu(gpu: &GpuRow, theme: &Theme, width: usize) -> Line<'static> {
    let status = &gpu.status;
    // The first digits tell the GPUs of a machine apart.
    let name = status.uuid.split('-').take(2).collect::<Vec<_>>().join("-");
    let bytes = gpu.bytes.map_or("-".into(), |bytes| human(bytes as u64));
    let mut pieces = vec![
        (Tone::Head, theme.clean(&name)),
        plain(format!("shared uploads {}/s", rate(gpu.shared))),
        plain(format!("own {}/s", rate(gpu.own))),
        plain(format!("{bytes}/s")),
    ];
    pieces.extend(
        gpu.waiting
            .map(|share| plain(format!("waits {}", percent(share)))),
    );
    let (sharing, all) = (status.sharing, status.consumers);
    pieces.push(plain(format!("{sharing} of {all} share")));
    let notes = status.notes.iter();
    pieces.extend(notes.map(|note| (Tone::Notice, theme.clean(note))));
    one_line(theme, pieces, width)
}

#[derive(Clone, Copy)]
enum Stage {
    Fetch,
    Prepare,
}

/// Draws the work of one stage: busy workers, samples that wait, and the rate.
fn stage(
    pool: &PoolRow,
    theme: &Theme,
    stage: Stage,
    gauge: usize,
    with_rate: bool,
) -> Vec<Span<'static>> {
    let p = &pool.status;
    let (word, busy, most, waiting, per_s) = match stage {
        Stage::Fetch => (
            "fetching",
            pool.fetching,
            p.threads,
            p.to_fetch,
            pool.fetched,
        ),
        Stage::Prepare => (
            "preparing",
            pool.preparing,
            p.cpus,
            p.to_prepare,
            pool.prepared,
        ),
    };
    // A process of user code reads and prepares, so each may be at either stage.
    let most = most + pool.processes;
    // The gauge shows whole workers: a mean below a half looks like none.
    let busy = busy.min(f64::from(most));
    let now = busy.round() as u32;
    let mut spans = vec![theme.span(Tone::Head, word), Span::raw(" ")];
    if gauge > 0 {
        spans.extend(theme.gauge(now, most, gauge));
        spans.push(Span::raw(" "));
    }
    spans.push(Span::raw(format!("{}/{most} +{waiting}", workers(busy))));
    if with_rate {
        spans.push(Span::raw(format!(" {}/s", rate(per_s))));
    }
    spans
}

/// Formats a mean number of workers: `0.4`, `12`.
fn workers(mean: f64) -> String {
    // From 9.95 on, a decimal would give a third digit.
    if mean == mean.round() || mean >= 9.95 {
        format!("{mean:.0}")
    } else {
        format!("{mean:.1}")
    }
}

/// Draws the last line: the keys.
pub(super) fn foot(screen: &Screen, theme: &Theme, width: usize) -> Line<'static> {
    let order = if screen.reversed { ", reversed" } else { "" };
    let words = [
        "q quit".into(),
        "h help".into(),
        format!("s sort: {}{order}", screen.sort.word()),
        "r reverse".into(),
        "Tab table".into(),
        "jk select".into(),
        "p pause".into(),
    ];
    let pieces = words.into_iter().map(|word| (Tone::Dim, word)).collect();
    one_line(theme, pieces, width)
}
