//! Renders a report as one self-contained HTML page: no script, no request, and the report itself in it as JSON.

use crate::axis::time_unit;
use crate::chart::{chart, class, epoch_bar, esc};
use crate::forecast::{EpochForecast, EpochPart};
use crate::labels;
use crate::report::{Advice, ChartLine, EMBEDDED, MeasuredNumber, Point, Report, Series};

const STYLE: &str = include_str!("page.css");

/// Renders a report as one self-contained HTML page, in which [`Report::read`] finds it again.
///
/// # Errors
/// If the report cannot be written as JSON.
pub fn render(report: &Report) -> serde_json::Result<String> {
    let outcome = &report.present.outcome;
    Ok(format!(
        include_str!("page.html"),
        style = STYLE,
        name = esc(&report.dataset.name),
        headline = rich(&headline(report)),
        verdict = esc(&labels::verdict(outcome)),
        warnings = warnings(&report.warnings),
        bar = epoch_bar(outcome),
        epoch = labels::seconds(outcome.epoch_s),
        rate = labels::quantity(outcome.samples_per_s, "samples/s"),
        bottleneck = labels::bottleneck(outcome.bottleneck),
        parts = parts(outcome),
        setting = pairs(&labels::setting(&report.present.setting)),
        advice = advice(report),
        charts = report
            .series
            .iter()
            .map(|s| figure(report, s))
            .collect::<String>(),
        measured = measured(&report.measured),
        circumstances = pairs(&labels::circumstances(report)),
        embedded = EMBEDDED,
        json = json(report)?,
    ))
}

/// Writes the report as JSON in which no `</script>`, comment or character reference can be read.
fn json(report: &Report) -> serde_json::Result<String> {
    let text = serde_json::to_string(report)?;
    Ok(text
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026"))
}

fn headline(report: &Report) -> String {
    match report.advice.first() {
        Some(first) => first.headline.clone(),
        None => "Nothing to change was found".into(),
    }
}

fn warnings(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let items: String = warnings
        .iter()
        .map(|w| format!("<li>{}</li>", esc(w)))
        .collect();
    format!(r#"<aside class="warnings"><h2>Read with care</h2><ul>{items}</ul></aside>"#)
}

/// Renders the legend of the colours, with the present share of each part.
fn parts(outcome: &EpochForecast) -> String {
    let item = |part: EpochPart| {
        format!(
            r#"<li><i class="swatch {}"></i><b>{}</b> <span>{}</span> <span class="quiet">{}</span></li>"#,
            class(part),
            esc(&labels::percent(outcome.of(part), outcome.epoch_s)),
            labels::part(part),
            labels::seconds(outcome.of(part))
        )
    };
    EpochPart::ALL.map(item).concat()
}

fn pairs(pairs: &[(&str, String)]) -> String {
    let pair = |(name, value): &(&str, String)| {
        format!("<div><dt>{name}</dt><dd>{}</dd></div>", esc(value))
    };
    pairs.iter().map(pair).collect()
}

fn advice(report: &Report) -> String {
    let item = |advice: &Advice| {
        let then = labels::then(report, advice.gain_x);
        let then = then.map(|text| format!(r#"<p class="quiet">{text}</p>"#));
        format!(
            r#"<li><p class="gain">{}</p><div><h3>{}</h3><p>{}</p>{}</div></li>"#,
            labels::gain(advice.gain_x),
            rich(&advice.headline),
            rich(&advice.detail),
            then.unwrap_or_default()
        )
    };
    if report.advice.is_empty() {
        return String::new();
    }
    let items: String = report.advice.iter().map(item).collect();
    format!(r#"<section><h2>What would help</h2><ol class="advice">{items}</ol></section>"#)
}

/// Escapes a text, and turns the parts between backticks into code.
fn rich(text: &str) -> String {
    let pieces = esc(text);
    let pieces = pieces.split('`').enumerate();
    // The pieces with odd numbers are those between backticks.
    let piece = |(i, piece): (usize, &str)| match i % 2 {
        1 => format!("<code>{piece}</code>"),
        _ => piece.into(),
    };
    pieces.map(piece).collect()
}

/// Renders a series: title, note, chart and tables.
fn figure(report: &Report, series: &Series) -> String {
    let knee = report.knee.as_ref().filter(|_| series.key == "cache");
    let knee_says = knee.map_or_else(String::new, |k| format!(" {}", k.why));
    let note = format!("{}{knee_says}", series.note);
    format!(
        r#"<figure id="{}"><figcaption><h3>{}</h3><p>{}</p></figcaption>{}<details><summary>Numbers</summary>{}</details></figure>"#,
        esc(&series.key),
        esc(&series.title),
        rich(note.trim()),
        chart(series, knee),
        series
            .lines
            .iter()
            .map(|line| table(series, line))
            .collect::<String>()
    )
}

/// Renders the numbers of a line as a table, all times in one unit.
fn table(series: &Series, line: &ChartLine) -> String {
    let is_measured = line.points.iter().any(|p| p.measured_epoch_s.is_some());
    let name = match series.lines.len() {
        1 => String::new(),
        _ => format!(", {}", esc(&line.name)),
    };
    let time = Time::new(series);
    let measured = if is_measured {
        r#"<th scope="col">run</th>"#
    } else {
        ""
    };
    let heads = EpochPart::ALL
        .map(|p| format!(r#"<th scope="col">{}</th>"#, class(p)))
        .concat();
    let unit = match series.x_unit.as_str() {
        "" => String::new(),
        unit => format!(", {}", esc(unit)),
    };
    let rows: String = line
        .points
        .iter()
        .map(|p| row(p, &time, is_measured))
        .collect();
    format!(
        r#"<div class="scroll" tabindex="0" role="region" aria-label="Numbers: {}"><table><caption>{} of an epoch{name}</caption><thead><tr><th scope="col">{}{unit}</th><th scope="col">epoch</th>{heads}{measured}</tr></thead><tbody>{rows}</tbody></table></div>"#,
        esc(&series.title),
        time.name,
        esc(&series.x_label),
    )
}

/// Format of the times in a table.
struct Time {
    name: &'static str,
    seconds: f64,
    digits: usize,
}

impl Time {
    /// Takes the unit of the series' chart.
    fn new(series: &Series) -> Time {
        let highest = series.highest_s();
        let (unit, seconds) = time_unit(highest);
        let name = match unit {
            "ms" => "Milliseconds",
            "s" => "Seconds",
            "min" => "Minutes",
            _ => "Hours",
        };
        let digits = if highest / seconds < 10.0 { 2 } else { 1 };
        Time {
            name,
            seconds,
            digits,
        }
    }

    fn cell(&self, seconds: f64) -> String {
        format!("<td>{:.*}</td>", self.digits, seconds / self.seconds)
    }
}

fn row(point: &Point, time: &Time, is_measured: bool) -> String {
    let (class, now) = if point.present {
        (r#" class="present""#, r#" <span class="quiet">now</span>"#)
    } else {
        ("", "")
    };
    let parts = EpochPart::ALL
        .map(|p| time.cell(point.outcome.of(p)))
        .concat();
    let measured = match point.measured_epoch_s {
        Some(s) => time.cell(s),
        None if is_measured => "<td></td>".into(),
        None => String::new(),
    };
    format!(
        r#"<tr{class}><th scope="row">{}{now}</th>{}{parts}{measured}</tr>"#,
        esc(&point.x_text),
        time.cell(point.outcome.epoch_s)
    )
}

fn measured(list: &[MeasuredNumber]) -> String {
    let row = |m: &MeasuredNumber| {
        let spread = m.spread.map_or_else(String::new, |s| {
            format!(
                r#" <span class="quiet">± {}</span>"#,
                esc(&labels::quantity(s, &m.unit))
            )
        });
        format!(
            r#"<tr><th scope="row">{}</th><td>{}{spread}</td><td class="how">{}</td></tr>"#,
            esc(&m.name),
            esc(&labels::quantity(m.value, &m.unit)),
            esc(&m.how)
        )
    };
    list.iter().map(row).collect()
}

#[cfg(test)]
mod tests;
