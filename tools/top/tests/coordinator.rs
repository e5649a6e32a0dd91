//! Tests the text about a real coordinator, which runs in a thread, and a real job of it.

use std::time::Duration;

use coprep_client::control;
use coprep_coordinator::{Server, Settings};
use coprep_measurement::job::{JobOptions, MeasuredJob};
use coprep_protocol::message::CacheForm;
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::spec::{PipelineSpec, Source, UserDataset};

/// Returns a pipeline whose jobs make the samples themselves, so that none need be prepared.
fn numbers(samples: u32) -> PipelineSpec {
    PipelineSpec {
        source: Source::UserCode(UserDataset {
            name: "Numbers".into(),
            samples: Some(samples),
            dataset: Vec::new(),
            rest: Vec::new(),
            split: false,
            in_job: true,
            is_iterated: false,
        }),
        ops: Vec::new(),
    }
}

#[test]
fn a_job_is_shown_with_its_stream_while_it_takes_batches() {
    let folder = tempfile::tempdir().unwrap();
    let place = CoordinatorPaths::at(folder.path().join("run/coordinator.sock"));
    let settings = Settings {
        cpus: Some(2),
        idle: None,
        staging_bytes: 8 << 20,
        ..Settings::default()
    };
    let server = Server::bind(place.clone(), settings).unwrap();
    let server = std::thread::spawn(move || server.run().unwrap());
    let ids: Vec<u32> = (0..64).collect();
    let job = MeasuredJob::attach(&JobOptions {
        place: &place,
        spec: &numbers(64),
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
        control::status(&place, 0).unwrap()
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
    let text = coprep_top::once(&place, Duration::from_millis(20)).unwrap();
    assert!(text.starts_with(&pid), "{text}");
    control::stop(&place).unwrap();
    server.join().unwrap();
}

#[test]
fn without_a_coordinator_there_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let place = CoordinatorPaths::at(folder.path().join("run/coordinator.sock"));
    assert!(coprep_top::once(&place, Duration::ZERO).is_err());
}
