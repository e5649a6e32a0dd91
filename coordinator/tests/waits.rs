//! Every wait is ended by a wake-up: no job is rescued by a thread that merely looks around now and then.
//!
//! Each of these tests runs as it is, and once more with poll intervals of an hour
//! (`coprep_protocol::poll_interval`). A lost wake-up then leaves a job waiting until the runner ends the test.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use coprep_client::connection::{ConnectOptions, Connection};
use coprep_client::loader::LoaderOptions;
use coprep_client::{Batch, Event, Loader, control, no_interrupt, no_notice};
use coprep_coordinator::{Server, Settings, StopReason};
use coprep_protocol::message::{CacheForm, CacheRequest, Warm};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::poll_interval;
use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Interpolation, Op, PipelineSpec, Source};
use coprep_protocol::store_variables::StoreVariables;

mod common;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);
const IMAGES: u32 = 60;

/// A coordinator in a thread.
struct Node {
    folder: tempfile::TempDir,
    server: JoinHandle<StopReason>,
}

impl Node {
    fn start(change: impl FnOnce(&mut Settings)) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings {
            cpus: Some(2),
            cache_budget: 16 << 20,
            staging_bytes: 8 << 20,
            idle: None,
            ..Settings::default()
        };
        change(&mut settings);
        let paths = CoordinatorPaths::at(folder.path().join("run/coordinator.sock"));
        let server = Server::bind(paths, settings).unwrap();
        Node {
            folder,
            server: std::thread::spawn(move || server.run().unwrap()),
        }
    }

    fn paths(&self) -> CoordinatorPaths {
        CoordinatorPaths::at(self.folder.path().join("run/coordinator.sock"))
    }

    /// Returns a pipeline over a folder of small images.
    fn images(&self) -> PipelineSpec {
        let root = self.folder.path().join("photos");
        if !root.exists() {
            std::fs::create_dir_all(root.join("class")).unwrap();
            for i in 0..IMAGES {
                let grey = image::RgbImage::from_pixel(32, 32, image::Rgb([i as u8; 3]));
                grey.save(root.join(format!("class/{i:03}.png"))).unwrap();
            }
        }
        PipelineSpec {
            source: Source::ImageFolder {
                root: root.to_str().unwrap().into(),
            },
            ops: vec![
                Op::Decode {
                    apply_exif_orientation: false,
                    max_pixels: DEFAULT_MAX_PIXELS,
                    scaled: true,
                },
                Op::RandomResizedCrop {
                    height: 8,
                    width: 8,
                    scale: (0.08, 1.0),
                    ratio: (0.75, 1.333),
                    interpolation: Interpolation::Bilinear,
                },
            ],
        }
    }

    fn job(&self, pipeline: PipelineSpec, batch_size: u32) -> Job {
        let attach = common::attach(pipeline, batch_size);
        Job(Loader::new(LoaderOptions {
            paths: self.paths(),
            name: "test".into(),
            program: None,
            attach,
            device: None,
            code: None,
            credentials: None,
            timeout: LONG,
            reconnect: Duration::from_secs(5),
            interrupt_check: no_interrupt(),
            notice: no_notice(),
        })
        .unwrap())
    }

    /// Asks the coordinator to stop, and waits for its end.
    fn stop(self) {
        control::stop(&self.paths()).unwrap();
        assert_eq!(self.server.join().unwrap(), StopReason::Asked);
    }
}

struct Job(Arc<Loader>);

impl Job {
    /// Returns the next batch, or `None` at the end of the epoch.
    fn next(&self) -> Option<Batch> {
        loop {
            match self.0.next(LONG).unwrap() {
                Event::Batch(batch) => return Some(batch),
                Event::EndOfEpoch => return None,
                Event::NotYet | Event::Skipped(_) => {}
            }
        }
    }

    /// Takes all batches of an epoch and holds them until its end. Returns the number of samples, and of batches that
    /// were copied.
    fn hold_epoch(&self) -> (u32, usize) {
        self.0.start_epoch().unwrap();
        let held: Vec<Batch> = std::iter::from_fn(|| self.next()).collect();
        let copies = held.iter().filter(|batch| batch.is_copy()).count();
        (held.iter().map(Batch::samples).sum(), copies)
    }

    /// Takes an epoch with a pause after each batch. Returns the number of samples.
    fn epoch(&self, pause: Duration) -> u32 {
        self.0.start_epoch().unwrap();
        let mut samples = 0;
        while let Some(batch) = self.next() {
            samples += batch.samples();
            drop(batch);
            std::thread::sleep(pause);
        }
        samples
    }
}

const STEP: Duration = Duration::from_millis(2);

#[test]
fn a_job_that_joins_while_the_coordinator_sleeps_gets_every_batch() {
    let node = Node::start(|_| ());
    let first = node.job(node.images(), 1);
    assert_eq!(first.epoch(STEP), IMAGES);
    // Everything is cached and nobody is waited for, so the driver sleeps. The queue of a job that joins is full before
    // it takes anything, and no worker looks around any more.
    for _ in 0..3 {
        let joins = node.job(node.images(), 1);
        joins.0.attached().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(joins.epoch(STEP), IMAGES);
        joins.0.close();
    }
    assert_eq!(first.epoch(STEP), IMAGES);
    node.stop();
}

#[test]
fn jobs_that_come_pause_leave_and_die_hold_up_nobody() {
    let node = Node::start(|s| s.staging_bytes = 0);
    let paused: Vec<Job> = (0..2).map(|_| node.job(node.images(), 2)).collect();
    for job in &paused {
        job.0.start_epoch().unwrap();
        job.next();
    }
    std::thread::scope(|scope| {
        for batch_size in [1, 3, 16] {
            let node = &node;
            scope.spawn(move || {
                for round in 0..4 {
                    let job = node.job(node.images(), batch_size);
                    assert_eq!(job.epoch(Duration::ZERO), IMAGES);
                    job.0.start_epoch().unwrap();
                    job.next();
                    if round % 2 == 0 {
                        // Starting another epoch leaves this one: minibatches prepared for it are for nobody.
                        job.0.start_epoch().unwrap();
                        assert!(job.next().is_some());
                    }
                    // It leaves without a message, as if it had died.
                    drop(job);
                }
            });
        }
    });
    for job in paused {
        while job.next().is_some() {}
        job.0.close();
    }
    node.stop();
}

#[test]
fn a_warm_up_ends_and_an_idle_coordinator_too() {
    let idle = Duration::from_secs(1);
    let node = Node::start(|settings| {
        (settings.idle, settings.idle_warm) = (Some(idle), Some(idle));
    });
    let connection = Connection::open(&node.paths(), &ConnectOptions::find("test")).unwrap();
    let warm = Warm {
        store_variables: StoreVariables::default(),
        provider: None,
        pipeline: node.images(),
        cache: CacheRequest {
            form: Some(CacheForm::Decoded),
            ..CacheRequest::default()
        },
        keep: false,
    };
    let done = control::warm_with(
        &node.paths(),
        &ConnectOptions::find("warm"),
        warm,
        None,
        |_| (),
    )
    .unwrap();
    assert_eq!(done.done, u64::from(IMAGES));
    std::thread::sleep(2 * idle);
    assert!(!node.server.is_finished(), "somebody is connected");
    drop(connection);
    assert_eq!(node.server.join().unwrap(), StopReason::Idle);
}

#[test]
fn a_job_of_small_batches_shares_a_stream_with_one_of_large_ones() {
    const SAMPLES: u32 = 20_000;
    for (first, second) in [(16_384, 1), (1, 16_384)] {
        let node = Node::start(|settings| settings.staging_bytes = 256 << 20);
        let jobs = [first, second].map(|batch_size| node.job(common::numbers(SAMPLES), batch_size));
        jobs.iter().for_each(|job| drop(job.0.attached().unwrap()));
        let rings = rings();
        // Other tests may run in this process, and have rings of their own.
        assert!(
            !rings.is_empty() && rings.iter().all(|&b| b < 1 << 18),
            "{rings:?}"
        );
        std::thread::scope(|scope| {
            for job in &jobs {
                // The whole epoch at once is more batches than a ring has entries.
                scope.spawn(move || assert_eq!(job.hold_epoch().0, SAMPLES));
            }
        });
        jobs.iter().for_each(|job| job.0.close());
        node.stop();
    }
}

/// Returns the bytes of the *deliver* regions that this process has mapped.
fn rings() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let size = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some(number(to) - number(from))
    };
    let rings = maps.lines().filter(|line| line.contains("coprep-deliver"));
    rings.filter_map(size).collect()
}

#[test]
fn a_job_that_holds_every_batch_copies_before_its_ring_is_full() {
    const SAMPLES: u32 = 9_000;
    let node = Node::start(|settings| settings.staging_bytes = 256 << 20);
    let large = node.job(common::numbers(SAMPLES), 16_384);
    large.0.attached().unwrap();
    let small = node.job(common::numbers(SAMPLES), 1);
    let (samples, copies) = small.hold_epoch();
    assert_eq!(samples, SAMPLES);
    assert!(copies > 0 && copies < SAMPLES as usize, "{copies}");
    assert_eq!(large.epoch(Duration::ZERO), SAMPLES);
    node.stop();
}

#[test]
fn nothing_relies_on_polling() {
    if std::env::var_os(poll_interval::VARIABLE).is_some() {
        return;
    }
    let again = Command::new(std::env::current_exe().unwrap())
        .env(poll_interval::VARIABLE, "3600")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(
        again.status.success(),
        "with poll intervals of an hour:\n{said}"
    );
}
