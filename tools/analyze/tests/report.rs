//! Tests of the library from outside: a recorded report, and predictions from its measurements.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::path::PathBuf;

use coprep_analyze::{
    AnalysisOptions, Assumptions, Report, Subject, analyze, predict_anew, render_page, render_text,
};
use coprep_measurement::images::ImageOperators;
use coprep_measurement::progress::NoProgress;
use coprep_protocol::message::CacheForm;
use coprep_protocol::spec::Interpolation;
use serde_json::Value;

const RECORDED: &str = include_str!("../../../tests/support/analyze_report.json");

fn recorded() -> Report {
    Report::read(RECORDED).unwrap()
}

fn json(report: &Report) -> Value {
    serde_json::to_value(report).unwrap()
}

fn epoch_s(report: &Value) -> f64 {
    report["present"]["outcome"]["epoch_s"].as_f64().unwrap()
}

#[test]
fn a_prediction_from_recorded_measurements_keeps_them() {
    let (before, after) = (
        json(&recorded()),
        json(&predict_anew(recorded(), &Assumptions::default()).unwrap()),
    );
    for key in [
        "made", "command", "machine", "dataset", "pipeline", "measured", "facts", "warnings",
    ] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(before["present"]["setting"], after["present"]["setting"]);
}

#[test]
fn assumptions_change_the_setting_and_its_epoch() {
    let as_it_is = json(&predict_anew(recorded(), &Assumptions::default()).unwrap());
    let assumptions = Assumptions {
        cache_bytes: Some(0),
        form: Some(CacheForm::Off),
        jobs: Some(8),
        unshared: true,
        ..Assumptions::default()
    };
    let report = predict_anew(recorded(), &assumptions).unwrap();
    let changed = json(&report);
    let setting = &changed["present"]["setting"];
    assert_eq!(setting["cache_bytes"], 0);
    assert_eq!(setting["form"], "off");
    assert_eq!(setting["jobs"], 8);
    assert_eq!(setting["shared"], false);
    assert_eq!(setting["cpus"], as_it_is["present"]["setting"]["cpus"]);
    // Eight loaders without a cache each fetch and prepare every sample.
    assert!(epoch_s(&changed) > 2.0 * epoch_s(&as_it_is));
    let text = render_text(&report, false);
    // The text is wrapped.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("8, each preparing for itself"), "{text}");
}

#[test]
fn a_new_prediction_is_found_again_in_its_page() {
    let assumptions = Assumptions {
        cpus: Some(64),
        ..Assumptions::default()
    };
    let report = predict_anew(recorded(), &assumptions).unwrap();
    let found = Report::read(&render_page(&report).unwrap()).unwrap();
    assert_eq!(render_text(&found, false), render_text(&report, false));
}

#[test]
fn a_report_without_its_measurements_predicts_nothing() {
    let mut saved: Value = serde_json::from_str(RECORDED).unwrap();
    saved["facts"] = Value::Null;
    let report = Report::read(&saved.to_string()).unwrap();
    let error = predict_anew(report, &Assumptions::default()).unwrap_err();
    assert!(error.to_string().contains("analyse anew"), "{error}");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let options = AnalysisOptions {
        program: PathBuf::from("/nowhere/coprep"),
        subject: Subject::Images {
            folder: PathBuf::from("/nowhere/photos"),
            operators: ImageOperators {
                resize: None,
                interpolation: Interpolation::Bilinear,
                center_crop: None,
                exif: false,
                image_size: 224,
            },
            batch_size: 64,
        },
        assumptions: Assumptions::default(),
        seconds: 1.0,
    };
    let error = analyze(&options, &mut NoProgress).unwrap_err();
    assert!(
        error.to_string().starts_with("/nowhere/photos: "),
        "{error}"
    );
}
