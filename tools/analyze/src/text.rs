//! Renders a report for a terminal of 80 columns.

use coprep_terminal::{WIDTH, clean, wrapped};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::forecast::{EpochForecast, EpochPart};
use crate::labels;
use crate::report::{Advice, ChartLine, MeasuredNumber, Point, Report, Series};

/// Columns by which text under a heading is indented.
const INDENT: usize = 2;

/// Renders a report for a terminal of 80 columns. The parts of an epoch can be told apart without colours too.
pub fn render(report: &Report, coloured: bool) -> String {
    let page = Page { coloured };
    let mut sections = vec![page.recommendation(report), page.present(report)];
    sections.extend(report.series.iter().map(|s| page.series(report, s)));
    sections.push(page.measured(&report.measured));
    sections.push(page.pairs("Where and how", &labels::circumstances(report)));
    sections.retain(|s| !s.is_empty());
    // Lines are wrapped now, so no-break spaces have done their work.
    sections.join("\n").replace('\u{a0}', " ")
}

/// Style of the output.
struct Page {
    coloured: bool,
}

impl Page {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.coloured && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.into()
        }
    }

    fn heading(&self, text: &str) -> String {
        self.paint("1", &cut(&clean(text), WIDTH)) + "\n"
    }

    /// Renders the advice, the verdict and the warnings.
    fn recommendation(&self, report: &Report) -> String {
        let mut out = match report.advice.as_slice() {
            [] => self.heading("Nothing to change was found"),
            _ => self.heading("What would help"),
        };
        out.extend(report.advice.iter().map(|a| self.advice(report, a)));
        out += &wrapped(&labels::verdict(&report.present.outcome), INDENT);
        for warning in &report.warnings {
            out += &self.paint("33", &wrapped(&format!("Warning: {warning}"), INDENT));
        }
        out
    }

    fn advice(&self, report: &Report, advice: &Advice) -> String {
        let gain = format!("{:>6}  ", labels::gain(advice.gain_x));
        let indent = gain.width();
        let head = wrapped(&advice.headline, indent);
        let head = format!("{gain}{}", head.trim());
        let then = labels::then(report, advice.gain_x).unwrap_or_default();
        let details = wrapped(&advice.detail, indent) + &wrapped(&then, indent);
        format!("{}\n{details}\n", self.paint("1", &head))
    }

    fn present(&self, report: &Report) -> String {
        let outcome = &report.present.outcome;
        let mut out = self.heading("An epoch now");
        let summary = format!(
            "{}, {} per job, held up by {}",
            labels::seconds(outcome.epoch_s),
            labels::quantity(outcome.samples_per_s, "samples/s"),
            labels::bottleneck(outcome.bottleneck)
        );
        out += &wrapped(&summary, INDENT);
        out += &format!(
            "  {}\n",
            self.bar(outcome, outcome.epoch_s, WIDTH - 2 * INDENT)
        );
        out.extend(EpochPart::ALL.map(|p| self.legend(outcome, p)));
        let setting = labels::setting(&report.present.setting);
        let setting: Vec<String> = setting
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        out + &wrapped(&setting.join("; "), INDENT)
    }

    fn legend(&self, outcome: &EpochForecast, part: EpochPart) -> String {
        let share = labels::percent(outcome.of(part), outcome.epoch_s);
        let time = labels::seconds(outcome.of(part));
        let name = labels::part(part);
        format!("  {} {name:<11} {share:>5}  {time}\n", self.blocks(part, 1))
    }

    /// Returns `count` blocks of a part. Blocks differ, so that parts can be told apart without colours.
    fn blocks(&self, part: EpochPart, count: usize) -> String {
        let (block, code) = match part {
            EpochPart::Compute => ("█", "37"),
            EpochPart::FetchStall => ("▓", "33"),
            EpochPart::PrepStall => ("░", "34"),
        };
        self.paint(code, &block.repeat(count))
    }

    /// Draws the parts of an epoch as a bar: `width` columns stand for `whole_s` seconds.
    fn bar(&self, outcome: &EpochForecast, whole_s: f64, width: usize) -> String {
        // Ends are rounded, not lengths, so that the parts fill the bar without gaps.
        let column = |seconds: f64| {
            (seconds / whole_s.max(f64::MIN_POSITIVE) * width as f64).round() as usize
        };
        let blocks =
            |(part, from, to)| self.blocks(part, column(to).min(width) - column(from).min(width));
        outcome.stack().map(blocks).concat()
    }

    fn series(&self, report: &Report, series: &Series) -> String {
        let mut out = self.heading(&series.title);
        out += &wrapped(&series.note, INDENT);
        let knee = report.knee.as_ref().filter(|_| series.key == "cache");
        out += &knee.map_or_else(String::new, |k| wrapped(&k.why, INDENT));
        let whole = series
            .points()
            .map(|p| p.outcome.epoch_s)
            .fold(0.0, f64::max);
        let many = series.lines.len() > 1;
        let name = |line: &ChartLine| {
            if many {
                cut(&clean(&line.name), 20)
            } else {
                String::new()
            }
        };
        let tables = series
            .lines
            .iter()
            .map(|line| self.line(series, &name(line), line, whole));
        out.extend(tables);
        out
    }

    fn line(&self, series: &Series, name: &str, line: &ChartLine, whole_s: f64) -> String {
        let measured = line.points.iter().any(|p| p.measured_epoch_s.is_some());
        let x = format!("{} {}", series.x_label, series.x_unit);
        let columns = Columns {
            x: line
                .points
                .iter()
                .map(|p| p.x_text.width())
                .chain([x.trim().width()])
                .max()
                .unwrap_or(0)
                .min(18),
            measured,
        };
        let measured = if measured { "   measured" } else { "" };
        let head = columns.row(' ', x.trim(), "epoch", "waits", "held up by", measured);
        let head = format!("{head}  {name}");
        let mut out = self.paint("2", head.trim_end()) + "\n";
        out.extend(line.points.iter().map(|p| self.point(&columns, p, whole_s)));
        out
    }

    fn point(&self, columns: &Columns, point: &Point, whole_s: f64) -> String {
        let outcome = &point.outcome;
        let stalls = outcome.fetch_stall_s + outcome.prep_stall_s;
        let measured = point
            .measured_epoch_s
            .map_or_else(String::new, labels::seconds);
        let row = columns.row(
            if point.present { '>' } else { ' ' },
            &point.x_text,
            &labels::seconds(outcome.epoch_s),
            &labels::percent(stalls, outcome.epoch_s),
            labels::bottleneck(outcome.bottleneck),
            &measured,
        );
        let row = if point.present {
            self.paint("1", &row)
        } else {
            row
        };
        format!("{row}  {}\n", self.bar(outcome, whole_s, columns.bar()))
    }

    fn measured(&self, list: &[MeasuredNumber]) -> String {
        if list.is_empty() {
            return String::new();
        }
        let mut out = self.heading("Measured");
        for m in list {
            let spread = m
                .spread
                .map(|s| format!(" ± {}", labels::quantity(s, &m.unit)));
            let value = format!(
                "{}{}",
                labels::quantity(m.value, &m.unit),
                spread.unwrap_or_default()
            );
            out += &format!("  {} {}\n", filled(&m.name, 40), cut(&clean(&value), 36));
            out += &self.paint("2", &wrapped(&m.how, 2 * INDENT));
        }
        out
    }

    fn pairs(&self, title: &str, pairs: &[(&str, String)]) -> String {
        let mut out = self.heading(title);
        for (name, value) in pairs {
            // The name replaces the indent of the first line.
            let value = wrapped(value, 14);
            out += &format!("  {name:<12}{}", value.get(14..).unwrap_or("\n"));
        }
        out
    }
}

/// Layout of a series' table.
struct Columns {
    x: usize,
    measured: bool,
}

impl Columns {
    const EPOCH: usize = 11;
    const WAITS: usize = 5;
    const BOTTLENECK: usize = 10;

    fn row(
        &self,
        mark: char,
        x: &str,
        epoch: &str,
        waits: &str,
        by: &str,
        measured: &str,
    ) -> String {
        let x = cut(&clean(x), self.x);
        let pad = " ".repeat(self.x - x.width());
        let (e, w, b) = (Self::EPOCH, Self::WAITS, Self::BOTTLENECK);
        let measured = if self.measured {
            format!("  {measured:>e$}")
        } else {
            String::new()
        };
        format!("{mark} {pad}{x}  {epoch:>e$}  {waits:>w$}  {by:<b$}{measured}")
    }

    /// Returns the columns that are left for the bar.
    fn bar(&self) -> usize {
        let measured = if self.measured { Self::EPOCH + 2 } else { 0 };
        WIDTH
            - (2 + self.x + 2 + Self::EPOCH + 2 + Self::WAITS + 2 + Self::BOTTLENECK + measured + 2)
    }
}

/// Shortens a text to `columns`, with an ellipsis if something is left out.
fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.into();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = if fits { left - width } else { 0 };
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Fits a text into exactly `columns`, and fills the rest with dots.
fn filled(text: &str, columns: usize) -> String {
    let text = cut(&clean(text), columns);
    let left = columns - text.width();
    if left < 3 {
        return text + &" ".repeat(left);
    }
    format!("{text} {}", ".".repeat(left - 1))
}
