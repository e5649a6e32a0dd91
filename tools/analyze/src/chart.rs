//! Renders the charts of a report as SVG. Colours are classes; the page's style sheet gives them values.
//!
//! Charts have no animation and no script. Each holds the readings of all its points, and the style sheet shows the
//! reading of the present setting, or of the point under the pointer.

use crate::axis::{CHAR, nice_ticks, shortened, thinned, time_unit, unit_factor};
use crate::forecast::{EpochForecast, EpochPart};
use crate::labels;
use crate::report::{ChartLine, ChartShape, Knee, Point, Series};

// Size of a chart and edges of its plot, in the units of its view box.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 246.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 350.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 206.0;
/// Height of the words for marks over the plot.
const MARKS: f64 = TOP - 9.0;
/// Share of a slot's width that its bar takes.
const BAR: f64 = 0.64;

/// Escapes a text for HTML and SVG, attributes included.
pub(crate) fn esc(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
        out
    })
}

/// Returns a part's class in the style sheet.
pub(crate) fn class(part: EpochPart) -> &'static str {
    match part {
        EpochPart::Compute => "compute",
        EpochPart::FetchStall => "fetch",
        EpochPart::PrepStall => "prep",
    }
}

/// Draws one epoch as a bar that fills its width.
pub(crate) fn epoch_bar(outcome: &EpochForecast) -> String {
    // An epoch of 0 s has no parts, but is divided by all the same.
    let whole = outcome.epoch_s.max(f64::MIN_POSITIVE);
    let mut parts = String::new();
    for (part, from, to) in outcome
        .stack()
        .into_iter()
        .filter(|(_, from, to)| to > from)
    {
        let (x, width) = (100.0 * from / whole, 100.0 * (to - from) / whole);
        parts += &format!(
            r#"<rect class="mark {}" x="{x:.3}%" y="0" width="{width:.3}%" height="100%"><title>{}: {}</title></rect>"#,
            class(part),
            labels::part(part),
            labels::seconds(to - from)
        );
    }
    let says = EpochPart::ALL.map(|p| {
        format!(
            "{} {}",
            labels::part(p),
            labels::percent(outcome.of(p), whole)
        )
    });
    format!(
        r#"<svg class="epoch" role="img" aria-labelledby="epoch-t epoch-d"><title id="epoch-t">An epoch now</title><desc id="epoch-d">{}</desc>{parts}</svg>"#,
        esc(&says.join(", "))
    )
}

/// Draws the chart of a series whose points [`crate::report::Report::check`] accepts.
pub(crate) fn chart(series: &Series, knee: Option<&Knee>) -> String {
    let plot = Plot::new(series);
    let id = esc(&series.key);
    let drawing = [
        plot.y_axis(),
        plot.shape(),
        plot.compared(),
        plot.marks(knee),
        plot.x_axis(),
        plot.names(),
        plot.readings(),
        plot.measured(),
    ];
    format!(
        r#"<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{id}-t {id}-d"><title id="{id}-t">{}</title><desc id="{id}-d">{}</desc>{}</svg>"#,
        esc(&series.title),
        esc(&plot.describe()),
        drawing.concat()
    )
}

/// A series with its axes.
struct Plot<'a> {
    series: &'a Series,
    shape: ChartShape,
    /// Ticks of the y axis in `unit`. The last one is its top.
    ticks: Vec<f64>,
    unit: (&'static str, f64),
}

impl<'a> Plot<'a> {
    fn new(series: &'a Series) -> Plot<'a> {
        let highest = series.highest_s();
        let unit = time_unit(highest);
        let first = series.lines.first().map_or(&[][..], |l| &l.points);
        let has_width = first.first().map(|p| p.x) < first.last().map(|p| p.x);
        Plot {
            series,
            // A scaled axis needs a range: with one x, areas and lines would show nothing.
            shape: if has_width {
                series.shape
            } else {
                ChartShape::Bars
            },
            ticks: nice_ticks(highest / unit.1, 4),
            unit,
        }
    }

    /// Returns the line that is drawn in the series' shape.
    fn first(&self) -> &'a [Point] {
        self.series.lines.first().map_or(&[], |l| &l.points)
    }

    /// Returns the height of a time in the plot.
    fn y(&self, seconds: f64) -> f64 {
        let top = self.ticks.last().copied().unwrap_or(1.0) * self.unit.1;
        BOTTOM - (seconds / top).clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    /// Returns the position of a value on the x axis, or `None` if the axis does not reach it.
    fn x(&self, x: f64) -> Option<f64> {
        let points = self.first();
        // Bars stand at even distances: x only selects the slot.
        if self.shape == ChartShape::Bars {
            let at = points.iter().position(|p| p.x == x)?;
            return Some(LEFT + self.slot() * (at as f64 + 0.5));
        }
        let ends = [points.first()?.x, points.last()?.x];
        // Lines keep off the edges, so that their first and last dots are whole.
        let inset = if self.shape == ChartShape::Lines {
            10.0
        } else {
            0.0
        };
        let share = (x - ends[0]) / (ends[1] - ends[0]);
        let x = LEFT + inset + share * (RIGHT - LEFT - 2.0 * inset);
        // The first line sets the axis. Others may reach beyond it.
        (0.0..=1.0).contains(&share).then_some(x)
    }

    /// Returns the width of a bar with the space around it.
    fn slot(&self) -> f64 {
        (RIGHT - LEFT) / self.first().len().max(1) as f64
    }

    /// Returns the points that the x axis reaches, with their positions.
    fn placed<'p>(&self, points: &'p [Point]) -> impl Iterator<Item = (f64, &'p Point)> {
        points.iter().filter_map(|p| Some((self.x(p.x)?, p)))
    }

    fn y_axis(&self) -> String {
        let last = self.ticks.len().saturating_sub(1);
        let tick = |(i, tick): (usize, &f64)| {
            let y = self.y(tick * self.unit.1);
            // Only the top tick has the unit.
            let unit = if i == last {
                format!(" {}", self.unit.0)
            } else {
                String::new()
            };
            let class = if i == 0 { "base" } else { "grid" };
            format!(
                r#"<line class="{class}" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1}" y2="{y:.1}"/><text class="tick" x="{}" y="{:.1}" text-anchor="end">{}{unit}</text>"#,
                LEFT - 6.0,
                y + 4.0,
                labels::number(*tick)
            )
        };
        self.ticks.iter().enumerate().map(tick).collect()
    }

    fn x_axis(&self) -> String {
        let unit = &self.series.x_unit;
        let label = if unit.is_empty() {
            self.series.x_label.clone()
        } else {
            format!("{}, {unit}", self.series.x_label)
        };
        let tick = |(x, words, is_present): (f64, String, bool)| {
            let class = if is_present { "tick present" } else { "tick" };
            format!(
                r#"<text class="{class}" x="{x:.1}" y="{}" text-anchor="middle">{}</text>"#,
                BOTTOM + 16.0,
                esc(&words)
            )
        };
        let ticks: String = thinned(self.x_ticks()).into_iter().map(tick).collect();
        format!(
            r#"{ticks}<text class="label" x="{RIGHT}" y="{}" text-anchor="end">{}</text>"#,
            BOTTOM + 35.0,
            esc(&shortened(&label, 50))
        )
    }

    /// Returns the ticks of the x axis: position, text, and whether each belongs to the present setting.
    fn x_ticks(&self) -> Vec<(f64, String, bool)> {
        if self.shape != ChartShape::Area {
            let tick = |(x, p): (f64, &Point)| (x, shortened(&p.x_text, 12), self.is_present(p.x));
            return self.placed(self.first()).map(tick).collect();
        }
        // The points of an area are many and uneven: round values make better ticks.
        let factor = unit_factor(&self.series.x_unit);
        let end = self.first().last().map_or(0.0, |p| p.x) / factor;
        nice_ticks(end, 5)
            .into_iter()
            .filter_map(|tick| Some((self.x(tick * factor)?, labels::number(tick), false)))
            .collect()
    }

    /// Returns `true` if the present setting has this x.
    fn is_present(&self, x: f64) -> bool {
        self.series.points().any(|p| p.present && p.x == x)
    }

    fn shape(&self) -> String {
        match self.shape {
            ChartShape::Bars => self.bars(),
            ChartShape::Area => self.areas(),
            ChartShape::Lines => self.line(self.first(), "line first"),
        }
    }

    fn bars(&self) -> String {
        // Limited, since a few bars would be too wide.
        let width = (self.slot() * BAR).min(44.0);
        let bar = |(x, point): (f64, &Point)| -> String {
            let stack = point
                .outcome
                .stack()
                .into_iter()
                .filter(|(_, from, to)| to > from);
            let rect = |(part, from, to): (EpochPart, f64, f64)| {
                let (top, bottom) = (self.y(to), self.y(from));
                format!(
                    r#"<rect class="mark {}" x="{:.1}" y="{top:.2}" width="{width:.1}" height="{:.2}"/>"#,
                    class(part),
                    x - width / 2.0,
                    bottom - top
                )
            };
            stack.map(rect).collect()
        };
        self.placed(self.first()).map(bar).collect()
    }

    /// Draws each part of an epoch as an area over the parts below it.
    fn areas(&self) -> String {
        let area = |index: usize| {
            let edge = |(x, p): (f64, &Point)| {
                let (_, from, to) = p.outcome.stack()[index];
                (
                    format!("{x:.1},{:.2}", self.y(to)),
                    format!("{x:.1},{:.2}", self.y(from)),
                    to > from,
                )
            };
            let edges: Vec<_> = self.placed(self.first()).map(edge).collect();
            // A part that is 0 everywhere would be an invisible polygon.
            if !edges.iter().any(|(_, _, is_there)| *is_there) {
                return String::new();
            }
            let above = edges.iter().map(|(top, _, _)| top.as_str());
            let below = edges.iter().rev().map(|(_, bottom, _)| bottom.as_str());
            let corners: Vec<&str> = above.chain(below).collect();
            format!(
                r#"<polygon class="mark {}" points="{}"/>"#,
                class(EpochPart::ALL[index]),
                corners.join(" ")
            )
        };
        (0..EpochPart::ALL.len()).map(area).collect()
    }

    fn line(&self, points: &[Point], class: &str) -> String {
        let at = |(x, p): (f64, &Point)| (x, self.y(p.outcome.epoch_s));
        let positions: Vec<(f64, f64)> = self.placed(points).map(at).collect();
        let corners: Vec<String> = positions
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.2}"))
            .collect();
        let dot = |(x, y): &(f64, f64)| {
            format!(r#"<circle class="{class} dot" cx="{x:.1}" cy="{y:.2}" r="2.5"/>"#)
        };
        let dots: String = positions.iter().map(dot).collect();
        format!(
            r#"<polyline class="mark {class}" points="{}"/>{dots}"#,
            corners.join(" ")
        )
    }

    /// Draws the other lines over the first one.
    fn compared(&self) -> String {
        let others = self.series.lines.iter().skip(1);
        others.map(|l| self.line(&l.points, "line other")).collect()
    }

    /// Marks the present setting and the knee.
    fn marks(&self, knee: Option<&Knee>) -> String {
        let present = self.series.points().find(|p| p.present);
        let present = present.and_then(|p| Some((self.x(p.x)?, self.y(p.outcome.epoch_s))));
        // The knee lies between points, so it needs a scaled axis.
        let knee = knee.filter(|_| self.shape == ChartShape::Area);
        let knee = knee.and_then(|k| self.x(k.cache_bytes as f64));
        // If their words would overlap, each moves to its own side.
        let between = present.zip(knee).map(|((now, _), knee)| now - knee);
        let aside = between
            .filter(|d| d.abs() < 44.0)
            .map_or(0.0, |d| if d > 0.0 { 1.0 } else { -1.0 });
        let from = TOP - 5.0;
        let now = present.map(|(x, y)| {
            let says = over(x, "now", aside);
            format!(r#"<g class="now"><line x1="{x:.1}" x2="{x:.1}" y1="{from}" y2="{y:.2}"/><circle cx="{x:.1}" cy="{y:.2}" r="3"/>{says}</g>"#)
        });
        let knee = knee.map(|x| {
            let says = over(x, "knee", -aside);
            format!(r#"<g class="knee"><line x1="{x:.1}" x2="{x:.1}" y1="{from}" y2="{BOTTOM}"/>{says}</g>"#)
        });
        now.into_iter().chain(knee).collect()
    }

    /// Draws rings for the epochs that were really run.
    fn measured(&self) -> String {
        let ring = |point: &Point| {
            let (x, y) = (self.x(point.x)?, self.y(point.measured_epoch_s?));
            Some(format!(
                r#"<circle class="measured" cx="{x:.1}" cy="{y:.2}" r="4.5"/>"#
            ))
        };
        self.series.points().filter_map(ring).collect()
    }

    /// Puts each line's name where there is most room for it.
    fn names(&self) -> String {
        let lines = &self.series.lines;
        // Areas and bars have a legend. Lines need names.
        let skipped = if self.shape == ChartShape::Lines {
            0
        } else {
            1
        };
        if lines.len() < 2 {
            return String::new();
        }
        lines
            .iter()
            .skip(skipped)
            .filter_map(|line| self.name(line))
            .collect()
    }

    /// Draws a line's name beside the dot with most room.
    fn name(&self, line: &ChartLine) -> Option<String> {
        let room = |p: &Point| self.room(line, p);
        let point = line
            .points
            .iter()
            .max_by(|a, b| room(a).abs().total_cmp(&room(b).abs()))?;
        let epoch_s = point.outcome.epoch_s;
        let (x, y) = (self.x(point.x)?, self.y(epoch_s));
        let name = shortened(&line.name, 24);
        // Above the dot if the nearest other line is below it, or if there is no room below.
        let is_above = room(point) >= 0.0 || y + 20.0 > BOTTOM;
        let after = line.points.iter().find(|p| p.x > point.x);
        let rises = after.is_some_and(|p| p.outcome.epoch_s > epoch_s);
        let fits = x + 7.0 + name.chars().count() as f64 * CHAR < RIGHT;
        // To the right of the dot if the line moves away from the name there.
        let (anchor, x) = if is_above != rises && fits {
            ("start", x + 6.0)
        } else {
            ("end", x - 6.0)
        };
        let y = if is_above { y - 6.0 } else { y + 15.0 };
        Some(format!(
            r#"<text class="name" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            esc(&name)
        ))
    }

    /// Returns the seconds from the nearest other line to this one at this point. Negative if the other line is above.
    fn room(&self, line: &ChartLine, point: &Point) -> f64 {
        let others = self
            .series
            .lines
            .iter()
            .filter(|other| !std::ptr::eq(*other, line));
        let at_x = others
            .flat_map(|other| &other.points)
            .filter(|other| other.x == point.x);
        at_x.map(|other| point.outcome.epoch_s - other.outcome.epoch_s)
            .min_by(|a, b| a.abs().total_cmp(&b.abs()))
            .unwrap_or(0.0)
    }

    /// Draws, for each x, the reading of its point and the area that shows it under the pointer.
    fn readings(&self) -> String {
        let placed: Vec<(f64, &Point)> = self.placed(self.first()).collect();
        let between = |a: usize, b: usize| Some((placed.get(a)?.0 + placed.get(b)?.0) / 2.0);
        let reading = |(i, (_, point)): (usize, &(f64, &Point))| {
            let from = i
                .checked_sub(1)
                .and_then(|before| between(before, i))
                .unwrap_or(LEFT);
            let to = between(i, i + 1).unwrap_or(RIGHT);
            self.reading(point, from, to)
        };
        placed.iter().enumerate().map(reading).collect()
    }

    /// Draws one reading, and the area from `from` to `to` that shows it.
    fn reading(&self, point: &Point, from: f64, to: f64) -> String {
        let class = if self.is_present(point.x) {
            "point at-present"
        } else {
            "point"
        };
        let (whole, parts) = (esc(&self.whole(point)), esc(&split(&point.outcome)));
        let by = labels::bottleneck(point.outcome.bottleneck);
        format!(
            r#"<g class="{class}"><rect class="hit" x="{from:.1}" y="{}" width="{:.1}" height="{:.1}"><title>{whole}; {parts}; held up by {by}</title></rect><g class="says"><text class="whole" x="0" y="12">{whole}</text><text class="parts" x="0" y="28">{parts}</text></g></g>"#,
            TOP - 4.0,
            to - from,
            BOTTOM - TOP + 26.0
        )
    }

    /// Returns the epochs of all lines with this point's x.
    fn whole(&self, point: &Point) -> String {
        let many = self.series.lines.len() > 1;
        let epoch = |(i, line): (usize, &ChartLine)| {
            let p = line.points.iter().find(|p| p.x == point.x)?;
            let is_named = many && (i > 0 || self.shape == ChartShape::Lines);
            let name = if is_named {
                format!("{} ", shortened(&line.name, 12))
            } else {
                String::new()
            };
            Some(format!("{name}{}", labels::seconds(p.outcome.epoch_s)))
        };
        let lines = self.series.lines.iter().enumerate();
        let mut epochs: Vec<String> = lines.filter_map(epoch).collect();
        // Two lines leave no room for measured times. The table has them.
        let measured = point.measured_epoch_s.filter(|_| !many);
        epochs.extend(measured.map(|s| format!("{} measured", labels::seconds(s))));
        let x = format!(
            "{} {} {}",
            self.series.x_label, point.x_text, self.series.x_unit
        );
        format!("{}: {}", shortened(x.trim_end(), 24), epochs.join(", "))
    }

    /// Describes the chart in a sentence for people who cannot see it.
    fn describe(&self) -> String {
        let ends = self.first().first().zip(self.first().last());
        let (from, to) =
            ends.map_or_else(Default::default, |(a, b)| (self.whole(a), self.whole(b)));
        let present = self.series.points().find(|p| p.present);
        let now = present.map_or_else(String::new, |p| {
            format!(
                " Now {} {}: {}.",
                self.series.x_label,
                p.x_text,
                split(&p.outcome)
            )
        });
        format!("Seconds of an epoch, from {from} to {to}.{now} The table below has all numbers.")
    }
}

/// Formats the shares of an epoch's parts.
fn split(outcome: &EpochForecast) -> String {
    let of = |part| {
        format!(
            "{} {}",
            labels::percent(outcome.of(part), outcome.epoch_s),
            labels::part(part)
        )
    };
    EpochPart::ALL.map(of).join(", ")
}

/// Places words over the plot at this x, or to the left (-1) or right (1) of it if two would overlap.
fn over(x: f64, words: &str, aside: f64) -> String {
    let (anchor, x) = match aside {
        a if a < 0.0 => ("end", x - 1.0),
        a if a > 0.0 => ("start", x + 1.0),
        _ => ("middle", x.clamp(12.0, WIDTH - 14.0)),
    };
    format!(r#"<text x="{x:.1}" y="{MARKS}" text-anchor="{anchor}">{words}</text>"#)
}
