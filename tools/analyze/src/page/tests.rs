//! Tests of the renderings, with one realistic report whose names are as nasty as possible.

use unicode_width::UnicodeWidthStr;

use crate::chart::{chart, esc};
use crate::forecast::{EpochForecast, EpochPart};
use crate::report::{ChartShape, EMBEDDED, Report};
use crate::{labels, page, text};

const SAVED: &str = include_str!("../../../../tests/support/analyze_report.json");

fn report() -> Report {
    Report::read(SAVED).unwrap()
}

/// Replaces no-break spaces by spaces.
fn plain(text: impl AsRef<str>) -> String {
    text.as_ref().replace('\u{a0}', " ")
}

/// Returns a number from a tag's attributes.
fn number(tag: &str, attribute: &str) -> f64 {
    let (_, rest) = tag.split_once(&format!(" {attribute}=\"")).unwrap();
    rest.split_once('"').unwrap().0.parse().unwrap()
}

#[test]
fn a_report_survives_json_and_its_page() {
    let report = report();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(Report::read(&json).unwrap(), report);
    assert_eq!(
        Report::read(&page::render(&report).unwrap()).unwrap(),
        report
    );
}

#[test]
fn no_name_gets_out_of_its_place() {
    let report = report();
    assert!(report.dataset.name.contains("</script><b>"));
    let page = page::render(&report).unwrap();
    assert!(!page.contains("<b>photo") && !page.contains("</script><b>"));
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("</script").count(), 1);
    let embedded = page.split(EMBEDDED).nth(1).unwrap();
    let json = embedded.split("</script>").next().unwrap();
    assert!(!json.contains(['<', '>', '&']));
    assert_eq!(
        esc("<a b='c' d=\"e\">&\x1b"),
        "&lt;a b=&#39;c&#39; d=&quot;e&quot;&gt;&amp;\u{fffd}"
    );
}

#[test]
fn a_share_below_one_percent_is_escaped() {
    let mut report = report();
    let tiny = |outcome: &mut EpochForecast| {
        outcome.prep_stall_s = 0.001 * outcome.epoch_s;
    };
    tiny(&mut report.present.outcome);
    for series in &mut report.series {
        let points = series.lines.iter_mut().flat_map(|line| &mut line.points);
        points.for_each(|point| tiny(&mut point.outcome));
    }
    let page = page::render(&report).unwrap();
    assert!(page.contains("&lt;1\u{a0}%"));
    assert!(!page.contains("<1\u{a0}%"));
}

#[test]
fn every_text_is_escaped_wherever_it_stands() {
    let evil = "<i>evil</i>";
    let mut report = report();
    let Report {
        series,
        advice,
        measured,
        machine,
        knee,
        ..
    } = &mut report;
    machine.storage = evil.into();
    machine.kernel = Some(evil.into());
    advice
        .iter_mut()
        .for_each(|a| (a.headline, a.detail) = (evil.into(), evil.into()));
    measured
        .iter_mut()
        .for_each(|m| (m.name, m.unit, m.how) = (evil.into(), evil.into(), evil.into()));
    knee.iter_mut().for_each(|k| k.why = evil.into());
    for s in series.iter_mut() {
        (s.title, s.x_label, s.x_unit, s.note) =
            (evil.into(), evil.into(), evil.into(), evil.into());
        for line in &mut s.lines {
            line.name = evil.into();
            line.points.iter_mut().for_each(|p| p.x_text = evil.into());
        }
    }
    report.warnings.push(evil.into());
    (report.command, report.pipeline, report.made) = (evil.into(), evil.into(), evil.into());
    assert!(!page::render(&report).unwrap().contains("<i>"));
}

#[test]
fn parts_of_a_bar_add_up_to_its_epoch() {
    let report = report();
    for series in &report.series {
        for point in series.points() {
            let stack = point.outcome.stack();
            assert!(stack.windows(2).all(|pair| pair[0].2 == pair[1].1));
            assert!((stack[2].2 - point.outcome.epoch_s).abs() < 1e-6);
        }
    }
    let mut cpus = report
        .series
        .iter()
        .find(|s| s.key == "cpus")
        .unwrap()
        .clone();
    assert_eq!(cpus.shape, ChartShape::Bars);
    cpus.lines[0].points.retain(|p| p.present);
    let drawn = chart(&cpus, None);
    let bars: Vec<&str> = drawn
        .split('<')
        .filter(|tag| tag.starts_with("rect class=\"mark"))
        .collect();
    assert_eq!(bars.len(), EpochPart::ALL.len());
    for pair in bars.windows(2) {
        assert!(
            (number(pair[0], "y") - number(pair[1], "y") - number(pair[1], "height")).abs() < 0.02
        );
    }
}

#[test]
fn the_present_setting_is_marked_once_in_each_chart() {
    let report = report();
    let page = page::render(&report).unwrap();
    let figures: Vec<&str> = page.split("<figure").skip(1).collect();
    assert_eq!(figures.len(), report.series.len());
    for figure in figures {
        assert_eq!(figure.matches("class=\"now\"").count(), 1);
        assert_eq!(figure.matches("at-present").count(), 1);
        assert_eq!(figure.matches("<tr class=\"present\"").count(), 1);
    }
    let marked = text::render(&report, false);
    assert_eq!(
        marked.lines().filter(|l| l.starts_with('>')).count(),
        report.series.len()
    );
}

#[test]
fn a_report_without_a_present_point_or_with_two_is_refused() {
    for (from, to) in [
        ("\"present\": true", "\"present\": false"),
        ("\"present\": false", "\"present\": true"),
    ] {
        let error = Report::read(&SAVED.replace(from, to)).unwrap_err();
        assert!(
            error.contains("series cache: ") && error.contains("the present one"),
            "{error}"
        );
    }
}

#[test]
fn what_is_not_a_report_is_refused_with_a_reason() {
    let refused = |from: &str, to: &str| {
        assert!(SAVED.contains(from), "{from}");
        Report::read(&SAVED.replacen(from, to, 1)).unwrap_err()
    };
    assert!(refused("\"format\": 1", "\"format\": 7").contains("analyse anew"));
    assert!(refused("\"compute_s\": ", "\"compute_s\": 9").contains("its parts are"));
    assert!(refused("\"compute_s\": ", "\"compute_s\": -").contains("negative"));
    assert!(refused("\"gain_x\": ", "\"gain_x\": -").contains("gain_x"));
    assert!(refused("\"dataset\"", "\"data\"").contains("not a report"));
}

#[test]
fn text_fits_a_terminal() {
    let mut report = report();
    report.advice[0].headline = "数据 \u{1b}[31m ".repeat(40) + &"x".repeat(200);
    report.measured[0].name = "写真".repeat(60);
    report.series[0].lines[1].name = "写".repeat(60);
    let plain = text::render(&report, false);
    for line in plain.lines() {
        assert!(line.width() <= 80, "{} columns: {line}", line.width());
    }
    assert!(!plain.contains('\u{1b}'));
}

#[test]
fn colours_add_nothing_but_colours() {
    let report = report();
    let coloured = text::render(&report, true);
    let mut parts = coloured.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_string();
    let rest = parts.map(|p| p.split_once('m').unwrap().1);
    assert_eq!(
        rest.fold(first, |text, part| text + part),
        text::render(&report, false)
    );
}

#[test]
fn a_page_stays_small() {
    let size = page::render(&report()).unwrap().len();
    assert!(size < 200_000, "{size} bytes");
}

#[test]
fn a_report_that_says_little_is_drawn_too() {
    let mut report = report();
    report.knee = None;
    report.advice.clear();
    report.measured.clear();
    report.warnings.clear();
    let nothing = EpochForecast {
        epoch_s: 0.0,
        compute_s: 0.0,
        fetch_stall_s: 0.0,
        prep_stall_s: 0.0,
        ..report.present.outcome
    };
    for series in &mut report.series {
        series.lines.truncate(1);
        series.lines[0].points.retain(|p| p.present);
        series.lines[0]
            .points
            .iter_mut()
            .for_each(|p| p.outcome = nothing.clone());
    }
    report.present.outcome = nothing;
    report.check().unwrap();
    let page = page::render(&report).unwrap();
    assert!(!page.contains("NaN") && !page.contains("inf\""));
    assert!(text::render(&report, false).contains("Nothing to change"));
}

#[test]
fn numbers_are_written_as_people_read_them() {
    let times = [0.0, 0.000_021, 0.0021, 0.25, 8.4, 41.8, 59.9, 200.0, 7500.0]
        .map(|s| plain(labels::seconds(s)));
    assert_eq!(
        times,
        [
            "0 s",
            "21 µs",
            "2.1 ms",
            "250 ms",
            "8.4 s",
            "41.8 s",
            "1 min 0 s",
            "3 min 20 s",
            "2 h 5 min"
        ]
    );
    let numbers = [0.0, 0.21, 3.5, 99.96, 1240.4, 1_281_167.0].map(labels::number);
    assert_eq!(numbers, ["0", "0.21", "3.5", "100", "1,240", "1,281,167"]);
    let quantities = [
        (1480.0, "samples/s"),
        (8e9, "bytes"),
        (2e8, "bytes/s"),
        (0.0046, "s"),
    ];
    let quantities = quantities.map(|(value, unit)| plain(labels::quantity(value, unit)));
    assert_eq!(
        quantities,
        ["1,480 samples/s", "7.5 GiB", "190.7 MiB/s", "4.6 ms"]
    );
    assert_eq!(
        [(1.0, 300.0), (52.0, 100.0)].map(|(part, whole)| plain(labels::percent(part, whole))),
        ["<1 %", "52 %"]
    );
}

#[test]
fn what_is_said_of_an_epoch_fits_what_it_waits_for() {
    let mut outcome = report().present.outcome;
    let mut says = |compute: f64, fetch: f64, prep: f64| {
        (
            outcome.compute_s,
            outcome.fetch_stall_s,
            outcome.prep_stall_s,
        ) = (compute, fetch, prep);
        outcome.epoch_s = compute + fetch + prep;
        plain(labels::verdict(&outcome))
    };
    assert!(says(50.0, 20.0, 30.0).ends_with(
        "computes for 50 % of it and waits for 50 %: 20 % for storage and 30 % for preparation."
    ));
    assert!(says(50.0, 50.0, 0.0).ends_with("all of it for storage."));
    assert!(says(50.0, 0.0, 50.0).ends_with("all of it for preparation."));
    assert!(says(50.0, 0.0, 0.0).ends_with("waits for none of it."));
}
