//! Tests the text about a real coordinator, which runs in a thread, and a real job of it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use coprep_client::control;
use coprep_measurement::job::{JobOptions, MeasuredJob};
use coprep_protocol::message::CacheForm;
use coprep_protocol::paths::CoordinatorPaths;

#[path = "../../../coordinator/tests/common/mod.rs"]
mod common;

#[test]
fn a_job_is_shown_with_its_stream_while_it_takes_batches() {
    let mut node = common::Node::start();
    let paths = node.paths();
    let ids: Vec<u32> = (0..64).collect();
    let job = MeasuredJob::attach(&JobOptions {
        paths: &paths,
        spec: &common::numbers(64),
        form: CacheForm::Off,
        ids: &ids,
        batch_size: 8,
    })
    .unwrap();
    let mut samples = 0;
    let mut take_epoch = || {
        job.epoch(|count| {
            samples += count;
            Ok(())
        })
        .unwrap();
        control::status(&paths, 0).unwrap()
    };
    let (before, now) = (take_epoch(), take_epoch());
    assert_eq!(samples, 128);
    let text = coprep_top::text(before, now.clone());
    for part in ["CACHES 0", "STREAMS 1", "JOBS 1", "Numbers", "coprep"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let pid = format!("coordinator {}, up", now.pid);
    assert!(text.starts_with(&pid), "{text}");
    // Nobody takes batches any more.
    job.close();
    let text = coprep_top::once(&paths, Duration::from_millis(20)).unwrap();
    assert!(text.starts_with(&pid), "{text}");
    node.end();
}

#[test]
fn without_a_coordinator_there_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let paths = CoordinatorPaths::at(folder.path().join("run/coordinator.sock"));
    assert!(coprep_top::once(&paths, Duration::ZERO).is_err());
}
