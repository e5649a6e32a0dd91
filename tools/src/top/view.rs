//! Draws the screen as lines that fit the width. Parts for which there is no room are left out.

use coprep_protocol::message::{SampleCost, StreamStatus};
use coprep_protocol::size::human;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::show::duration;
use crate::top::columns::{self, CACHES, JOBS, SLOW, STREAMS};
use crate::top::help::HELP;
use crate::top::model::{CacheRow, JobRow, Overview, PoolRow, StreamRow};
use crate::top::numbers::{brief, grouped, percent, rate};
use crate::top::screen::{ConnectionState, Pane, Screen};
use crate::top::table::Table;
use crate::top::theme::{Theme, Tone};

/// Smallest width and height of a useful screen.
pub(crate) const LEAST: (u16, u16) = (36, 6);
/// Lines of notes below a table, about its selected row.
const JOB_NOTES: usize = 2;
const STREAM_NOTES: usize = 2;
const SLOW_NOTES: usize = 1;

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

/// Draws two lines of head, the tables with their notes, and a line of keys.
fn whole(screen: &Screen, theme: &Theme, width: usize, height: usize) -> Vec<Line<'static>> {
    let mut lines = vec![
        head(screen, theme, width),
        match &screen.link {
            ConnectionState::Fine => pool(&screen.report.pool, theme, width),
            link => banner(link, theme, width),
        },
    ];
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
    lines.push(foot(screen, theme, width));
    lines
}

/// Returns the lines of a table with all its rows and notes.
fn want(screen: &Screen, pane: Pane) -> usize {
    let notes = match pane {
        Pane::Caches => 0,
        Pane::Streams => STREAM_NOTES,
        Pane::Jobs => JOB_NOTES,
        Pane::Slow => SLOW_NOTES,
    };
    match screen.rows(pane) {
        0 => 1,
        rows => 1 + rows + notes,
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
    let notes = notes(screen, pane, theme, width, left.max(height / 3));
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

/// A piece of text that is shown whole or not at all.
type Piece = (Tone, String);

fn plain(text: impl Into<String>) -> Piece {
    (Tone::Plain, text.into())
}

/// Flows pieces into at most `lines` lines. The first piece of a line is shortened if it is too long.
fn flow(theme: &Theme, pieces: Vec<Piece>, width: usize, lines: usize) -> Vec<Line<'static>> {
    const BETWEEN: &str = ", ";
    const INDENT: usize = 2;
    let mut flowed: Vec<(usize, Vec<Span>)> = Vec::new();
    for (tone, text) in pieces {
        let needs = Span::raw(&text).width();
        let begun = flowed.len();
        match flowed.last_mut() {
            Some((used, spans)) if *used + BETWEEN.len() + needs <= width => {
                *used += BETWEEN.len() + needs;
                spans.push(Span::raw(BETWEEN));
                spans.push(theme.span(tone, text));
            }
            _ if begun < lines => {
                let text = theme.shorten(&text, width.saturating_sub(INDENT));
                let used = INDENT + Span::raw(&text).width();
                let spans = vec![Span::raw(" ".repeat(INDENT)), theme.span(tone, text)];
                flowed.push((used, spans));
            }
            _ => {}
        }
    }
    flowed
        .into_iter()
        .map(|(_, spans)| Line::from(spans))
        .collect()
}

fn head(screen: &Screen, theme: &Theme, width: usize) -> Line<'static> {
    let is_known = screen.link != ConnectionState::Awaited;
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

/// Puts as many pieces into one line as fit.
fn one_line(theme: &Theme, pieces: Vec<Piece>, width: usize) -> Line<'static> {
    // One column more, since the indent of notes below a table becomes a single space here.
    let mut line = flow(theme, pieces, width + 1, 1).pop().unwrap_or_default();
    if let Some(indent) = line.spans.first_mut() {
        *indent = Span::raw(" ");
    }
    line
}

/// Describes the coordinator, the most important facts first.
pub(crate) fn about(report: &Overview) -> Vec<String> {
    let pool = &report.pool.status;
    vec![
        format!("up {}", duration(report.uptime_s)),
        format!("memory {}", human(report.pss_bytes)),
        format!("{} CPUs, {} threads", pool.cpus, pool.threads),
        format!("version {}", report.version),
    ]
}

/// Draws the state of a connection that is not fine.
fn banner(link: &ConnectionState, theme: &Theme, width: usize) -> Line<'static> {
    const ENDED: &str = "coordinator has ended, waiting for it to come back";
    let text = match link {
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
fn pool(pool: &PoolRow, theme: &Theme, width: usize) -> Line<'static> {
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
    if mean == mean.round() || mean >= 9.95 {
        format!("{mean:.0}")
    } else {
        format!("{mean:.1}")
    }
}

fn notes(
    screen: &Screen,
    pane: Pane,
    theme: &Theme,
    width: usize,
    most: usize,
) -> Vec<Line<'static>> {
    let (pieces, lines) = match pane {
        Pane::Caches => (Vec::new(), 0),
        Pane::Streams => (stream_notes(screen, theme), STREAM_NOTES),
        Pane::Jobs => (job_notes(screen, theme), JOB_NOTES),
        Pane::Slow => (slow_notes(screen), SLOW_NOTES),
    };
    flow(theme, pieces, width, lines.min(most))
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
    pieces.push(plain(format!("{order} order, seed {}", s.seed)));
    pieces.push(plain(format!(
        "cache {}",
        format!("{:?}", s.cache).to_lowercase()
    )));
    pieces.push(plain(staging(s)));
    pieces
}

fn staging(s: &StreamStatus) -> String {
    format!("staging {}", human(s.staging_bytes))
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

fn foot(screen: &Screen, theme: &Theme, width: usize) -> Line<'static> {
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

/// Returns everything as plain text, for a file.
pub(crate) fn text(screen: &Screen, theme: &Theme) -> String {
    let report = &screen.report;
    let about = about(report).join(", ");
    let mut parts = vec![format!(
        "coordinator {}, {about}\n{}",
        report.pid,
        pool(&report.pool, theme, usize::MAX)
    )];
    parts.push(caches(screen).text(theme));
    parts.push(streams(screen).text(theme));
    parts.push(jobs(screen).text(theme));
    parts.push(slow(screen).text(theme));
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::*;
    use crate::top::model::tests::{a_cache, a_job, a_stream, two_looks};
    use crate::top::screen::tests::{a_screen, press};
    use crate::top::theme::tests::{ASCII, UTF8};

    fn drawn(screen: &Screen, theme: &Theme, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen, theme)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height).map(line).collect()
    }

    fn contains(lines: &[String], text: &str) -> bool {
        lines.iter().any(|line| line.contains(text))
    }

    /// Returns the line that starts with this text after the marker.
    fn row<'a>(lines: &'a [String], start: &str) -> &'a str {
        let found = lines.iter().find(|line| line[1..].starts_with(start));
        found.unwrap_or_else(|| panic!("no {start} in\n{}", lines.join("\n")))
    }

    /// Returns the screen of a busy coordinator: two streams, many jobs.
    fn busy() -> Screen {
        let (mut before, _) = two_looks();
        before.caches = vec![a_cache(), a_cache()];
        before.streams = vec![
            a_stream(1, (1..=20).map(a_job).collect()),
            a_stream(2, vec![a_job(1)]),
        ];
        let mut now = before.clone();
        now.uptime_s += 1.0;
        now.pool.fetch_s += 3.0;
        now.pool.prepare_s += 2.0;
        for job in &mut now.streams[0].jobs {
            job.delivered += 100 * job.id;
            job.stalls.fetch_s += 0.25;
            job.stalls.prep_s += 0.125;
        }
        now.streams[0].totals.prepared += 2000;
        now.streams[0].totals.delivered += 21_000;
        let mut screen = Screen::default();
        screen.look(before);
        screen.look(now);
        screen
    }

    #[test]
    fn at_80_by_24_there_is_something_of_everything() {
        let lines = drawn(&a_screen(), &UTF8, 80, 24);
        assert!(contains(
            &lines,
            "coordinator 4711, up 1 min 42 s, memory 412.0 MiB, 2 CPUs, 8 threads"
        ));
        assert!(
            contains(&lines, "fetching ██████·········· 3/8 +40 0/s  preparing █"),
            "{lines:#?}"
        );
        assert!(contains(&lines, "3/8 +40") && contains(&lines, "2/2 +5"));
        assert!(row(&lines, "/data/train").contains("░░░░▒▒▒▒▒▒▒▒····  75%"));
        assert!(row(&lines, "1 /data/train").contains("3.90 12/14"));
        assert!(contains(&lines, "decode > random_resized_crop 224"));
        for job in ["train_1.py", "train_2.py"] {
            let cells: Vec<_> = row(&lines, job).split_whitespace().collect();
            assert!(cells.contains(&"40%") && cells.contains(&"0%"), "{cells:?}");
        }
        assert!(
            contains(&lines, "SLOW") && contains(&lines, "name_00001.jpg"),
            "{lines:#?}"
        );
        assert!(lines[23].contains("q quit, h help, s sort: stream"));
    }

    #[test]
    fn at_120_by_40_nothing_is_left_out_and_nothing_is_shortened() {
        let lines = drawn(&a_screen(), &UTF8, 120, 40);
        let head = row(&lines, "JOBS 3");
        for word in [
            "pid", "strm", "smp/s", "bat/s", "wait", "lag", "que", "held", "idle", "skip",
        ] {
            assert!(head.contains(word), "{word} in {head}");
        }
        assert_eq!(
            lines
                .iter()
                .filter(|line| line[1..].starts_with("train_"))
                .count(),
            3
        );
        assert!(contains(
            &lines,
            "waited 0% of 10s: fetch 0% prep 0% others 0%"
        ));
        assert!(contains(
            &lines,
            "/data/train/class8/a_picture_with_a_long_name_00008.jpg"
        ));
        assert!(contains(&lines, "1,000 measured") && contains(&lines, "slow over 5.1 ms"));
        assert!(!contains(&lines, "…"));
    }

    #[test]
    fn at_40_by_10_the_jobs_remain_with_their_rates() {
        let lines = drawn(&busy(), &UTF8, 40, 10);
        assert!(lines[0].contains("coordinator 4711"));
        assert!(
            lines[1].contains("3/8 +40") && lines[1].contains("2/2 +5"),
            "{lines:#?}"
        );
        assert!(contains(&lines, "JOBS 1-"), "{lines:#?}");
        let first = row(&lines, "train_1.py");
        // The rate, and the share of time spent waiting.
        assert!(first.contains(" 100 ") && first.contains("38%"), "{first}");
        assert!(lines[9].contains("q quit, h help"));
        // Other tables appear when they are focused.
        let mut screen = busy();
        press(&mut screen, [KeyCode::Tab, KeyCode::Tab]);
        assert!(contains(&drawn(&screen, &UTF8, 40, 10), "SLOW 1-"));
    }

    #[test]
    fn of_many_jobs_the_selected_one_is_shown_with_notes() {
        let mut screen = busy();
        press(&mut screen, [KeyCode::Down; 19]);
        let lines = drawn(&screen, &UTF8, 80, 24);
        assert!(
            contains(&lines, "/21") && contains(&lines, ">train_20.py"),
            "{lines:#?}"
        );
        assert!(contains(
            &lines,
            "train_20.py (4020), waited 4% of 10s: fetch 2% prep 1%"
        ));
    }

    #[test]
    fn waits_shares_and_rates_are_in_their_columns() {
        let lines = drawn(&busy(), &UTF8, 120, 60);
        let words =
            |line: &str| -> Vec<String> { line.split_whitespace().map(Into::into).collect() };
        let (head, job) = (
            words(row(&lines, "JOBS 21")),
            words(row(&lines, "train_7.py")),
        );
        // The title has two words, the name one.
        let of = |name: &str| {
            job[head
                .iter()
                .position(|h| h.trim_end_matches('▲') == name)
                .unwrap()
                - 1]
            .as_str()
        };
        assert_eq!(
            [of("smp/s"), of("wait"), of("fetch"), of("prep"), of("othr")],
            ["700", "38%", "25%", "12%", "0%"]
        );
        assert_eq!(
            [of("pid"), of("strm"), of("ep"), of("done"), of("held")],
            ["4007", "1", "2", "40%", "2"]
        );
        let stream = row(&lines, "1 /data/train");
        assert!(
            stream.contains("2000") && stream.contains("21.0k") && stream.contains("10.50"),
            "{stream}"
        );
    }

    #[test]
    fn lag_and_holder_are_named() {
        let (before, mut now) = two_looks();
        now.streams[0].jobs[1].held = 6;
        now.streams[0].jobs[1].need = 100;
        now.streams[0].differs = vec!["stream 2: dataset.root".into()];
        now.streams[0].totals.failed = 3;
        let mut screen = Screen::default();
        screen.look(before);
        screen.look(now);
        let lines = drawn(&screen, &UTF8, 120, 40);
        assert!(
            contains(&lines, "500 behind train_2.py (4002) (+250/s)"),
            "{lines:#?}"
        );
        assert!(contains(&lines, "most held by train_2.py (4002): 6"));
        assert!(
            contains(&lines, "not shared with stream 2: dataset.root")
                && contains(&lines, "3 failed")
        );
    }

    #[test]
    fn the_sort_column_is_marked_and_the_foot_names_it() {
        let mut screen = a_screen();
        press(&mut screen, [KeyCode::Char('s'); 3]);
        let lines = drawn(&screen, &UTF8, 80, 24);
        assert!(row(&lines, "JOBS").contains("smp/s▼") && lines[23].contains("s sort: rate"));
        press(&mut screen, [KeyCode::Char('r')]);
        let lines = drawn(&screen, &ASCII, 80, 24);
        assert!(row(&lines, "JOBS").contains("smp/s^") && lines[23].contains("rate, reversed"));
    }

    #[test]
    fn the_sort_column_stays_where_others_go() {
        let mut screen = a_screen();
        let shows_idle =
            |screen: &Screen| row(&drawn(screen, &UTF8, 44, 10), "JOBS").contains("idle");
        assert!(!shows_idle(&screen));
        press(&mut screen, [KeyCode::Char('s'); 7]);
        assert!(shows_idle(&screen));
    }

    #[test]
    fn a_coordinator_that_has_ended_is_waited_for() {
        let mut screen = a_screen();
        screen.link = ConnectionState::Ended;
        let lines = drawn(&screen, &UTF8, 80, 24);
        assert!(lines[1].contains("coordinator has ended, waiting for it to come back"));
        assert!(contains(&lines, "train_1.py"), "what was last seen stays");
        assert!(drawn(&screen, &UTF8, 40, 10)[1].contains("coordinator has ended, waiting"));
        screen.link = ConnectionState::Late(7);
        assert!(drawn(&screen, &UTF8, 80, 24)[1].contains("has not answered for 7 s"));
        screen.look(two_looks().1);
        assert!(drawn(&screen, &UTF8, 80, 24)[1].contains("fetching"));
    }

    #[test]
    fn without_utf8_everything_is_ascii() {
        let mut screen = busy();
        screen.report.jobs[0].status.name = "größe.py\u{1b}[2J".into();
        for (width, height) in [(80, 24), (120, 40), (40, 10)] {
            let lines = drawn(&screen, &ASCII, width, height);
            assert!(lines.iter().all(|line| line.is_ascii()), "{lines:#?}");
        }
        assert!(contains(
            &drawn(&screen, &ASCII, 120, 60),
            "eeeedddddddd...."
        ));
    }

    #[test]
    fn no_size_is_too_small_or_too_large_to_draw() {
        let mut screens = [a_screen(), busy(), Screen::default(), busy()];
        screens[3].help = Some(1000);
        for screen in &screens {
            for (width, height) in (1..60).flat_map(|w| (1..40).step_by(3).map(move |h| (w, h))) {
                assert_eq!(
                    drawn(screen, &UTF8, width, height).len(),
                    usize::from(height)
                );
            }
            drawn(screen, &ASCII, 400, 200);
        }
        assert!(drawn(&screens[0], &UTF8, 35, 30)[0].starts_with("coprep top needs 36x6"));
        assert!(drawn(&screens[0], &UTF8, 36, 6)[0].contains("coordinator 4711"));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for screen in [a_screen(), busy()] {
            for width in usize::from(LEAST.0)..140 {
                for line in whole(&screen, &UTF8, width, 50) {
                    assert!(line.width() <= width, "{line} at {width}");
                }
            }
        }
    }

    #[test]
    fn lines_are_shared_out_to_whom_keys_act_on_and_never_more_than_there_are() {
        assert_eq!(share([3, 4, 7, 10], Pane::Jobs, 24), [3, 4, 7, 10]);
        assert_eq!(share([3, 4, 7, 10], Pane::Jobs, 15), [2, 4, 7, 2]);
        assert_eq!(share([3, 4, 7, 10], Pane::Slow, 15), [0, 2, 3, 10]);
        assert_eq!(share([3, 4, 7, 10], Pane::Streams, 6), [0, 4, 2, 0]);
        for room in 0..40 {
            assert!(
                share([3, 4, 40, 10], Pane::Caches, room)
                    .iter()
                    .sum::<usize>()
                    <= room
            );
        }
    }

    #[test]
    fn the_help_explains_every_column_and_fits_80_by_24() {
        let columns = JOBS
            .iter()
            .map(|c| c.head)
            .chain(STREAMS.iter().map(|c| c.head));
        let plain = [
            "name", "pid", "strm", "fetch", "prep", "othr", "dataset", "samples", "jobs",
            "pipeline", "in all",
        ];
        for head in columns.filter(|head| !plain.contains(head)) {
            assert!(HELP.contains(head), "{head}");
        }
        assert!(HELP.lines().count() < 24 && HELP.lines().all(|line| line.len() < 80));
        let mut screen = a_screen();
        press(&mut screen, [KeyCode::Char('h')]);
        let lines = drawn(&screen, &UTF8, 80, 24);
        assert!(lines[0].contains("q, Esc, Ctrl-C: quit") && lines[23].contains("any other key"));
        press(&mut screen, [KeyCode::Down; 4]);
        assert!(drawn(&screen, &UTF8, 40, 10)[0].contains("preparing"));
    }

    #[test]
    fn one_look_in_plain_text_has_everything() {
        let text = text(&busy(), &ASCII);
        for part in [
            "coordinator 4711, up 1 min 41 s",
            "preparing",
            "CACHES 2",
            "STREAMS 2",
            "train_20.py",
            "all:wait",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.lines().any(|line| line.starts_with('>')));
        assert!(text.contains("SLOW 8") && text.contains("a_picture_with_a_long_name_00008.jpg"));
    }
}
