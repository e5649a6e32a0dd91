//! A thread that panics ends only the things it owned. Jobs continue, and no sample is lost or repeated.
//!
//! The panics are injected: see `src/failpoints.rs`.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use coprep_client::connection::{ConnectOptions, Connection};
use coprep_client::loader::LoaderOptions;
use coprep_client::{ErrorKind, Event, Loader, no_interrupt, no_notice};
use coprep_coordinator::{Server, Settings, StopReason};
use coprep_protocol::frame;
use coprep_protocol::message::{
    Attach, CacheForm, CacheRequest, Reply, Request, SampleError, Status, Warm, WarmProgress,
};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::spec::PipelineSpec;
use coprep_protocol::store_variables::StoreVariables;
use fail::FailScenario;
use roaring::RoaringBitmap;

mod common;

const SAMPLES: u32 = 60;
const LIMIT: Duration = Duration::from_secs(60);

/// A coordinator in a thread, over a folder of small images. The last image may be broken.
struct Node {
    folder: tempfile::TempDir,
    server: Option<JoinHandle<coprep_coordinator::Result<StopReason>>>,
    /// Time for which a job computes per batch.
    pause: Duration,
    epochs: u32,
    _scenario: FailScenario<'static>,
}

/// The samples and errors that a job was given in one epoch.
struct Epoch {
    samples: u32,
    ids: RoaringBitmap,
    errors: Vec<SampleError>,
}

impl Node {
    fn start(point: &str, actions: &str) -> Node {
        let scenario = FailScenario::setup();
        let folder = tempfile::tempdir().unwrap();
        for i in 0..SAMPLES {
            let class = folder.path().join("photos/all");
            std::fs::create_dir_all(&class).unwrap();
            let grey = image::RgbImage::from_pixel(20, 30, image::Rgb([i as u8; 3]));
            grey.save(class.join(format!("{i:03}.png"))).unwrap();
        }
        let settings = Settings {
            cpus: Some(2),
            cache_budget: 16 << 20,
            staging_bytes: 1 << 20,
            idle: Some(Duration::from_secs(3)),
            ..Settings::default()
        };
        fail::cfg(point, actions).unwrap();
        let server = Server::bind(paths(&folder), settings).unwrap();
        let server = std::thread::spawn(move || server.run());
        Node {
            folder,
            server: Some(server),
            pause: Duration::ZERO,
            epochs: 3,
            _scenario: scenario,
        }
    }

    /// Replaces the last image by a file that cannot be decoded.
    fn with_a_bad_file(self) -> Node {
        let file = format!("photos/all/{:03}.png", SAMPLES - 1);
        std::fs::write(self.folder.path().join(file), b"no image").unwrap();
        self
    }

    fn pipeline(&self) -> PipelineSpec {
        common::crops(&self.folder.path().join("photos"))
    }

    fn job(&self, relaxed: bool) -> Arc<Loader> {
        self.rank(0, 1, relaxed)
    }

    fn rank(&self, rank: u32, world_size: u32, relaxed: bool) -> Arc<Loader> {
        let attach = Attach {
            relaxed,
            rank,
            world_size,
            cache: CacheRequest {
                form: Some(CacheForm::Off),
                ..CacheRequest::default()
            },
            ..common::attach(self.pipeline(), 8)
        };
        let options = LoaderOptions {
            paths: paths(&self.folder),
            name: "test".into(),
            program: None,
            attach,
            device: None,
            code: None,
            credentials: None,
            timeout: LIMIT,
            reconnect: LIMIT,
            interrupt_check: no_interrupt(),
            notice: no_notice(),
        };
        Loader::new(options).unwrap()
    }

    fn status(&self) -> Status {
        let ask = Request::Status { slow: 0 };
        let reply = self
            .connect()
            .ask(&ask, "the state", LIMIT, &no_interrupt());
        let Ok(Reply::Status(status)) = reply else {
            panic!("{reply:?}");
        };
        *status
    }

    fn jobs(&self) -> usize {
        self.status().streams.iter().map(|s| s.jobs.len()).sum()
    }

    fn has_two_jobs_with_batches(&self) -> bool {
        let status = self.status();
        let jobs = status.streams.iter().flat_map(|stream| &stream.jobs);
        jobs.filter(|job| job.batches > 0).count() == 2
    }

    fn connect(&self) -> Connection {
        Connection::open(&paths(&self.folder), &ConnectOptions::find("test")).unwrap()
    }

    fn stop(mut self) {
        let asked = self
            .connect()
            .ask(&Request::Stop, "the end", LIMIT, &no_interrupt());
        assert_eq!(asked.unwrap(), Reply::Stopping);
        let ended = self.server.take().unwrap().join().unwrap();
        assert_eq!(ended.unwrap(), StopReason::Asked);
        assert!(!paths(&self.folder).socket.exists());
    }
}

fn paths(folder: &tempfile::TempDir) -> CoordinatorPaths {
    CoordinatorPaths::at(folder.path().join("run/coordinator.sock"))
}

/// Takes the next epoch of a job.
fn epoch(job: &Loader, pause: Duration) -> Epoch {
    let mut epoch = Epoch {
        samples: 0,
        ids: RoaringBitmap::new(),
        errors: Vec::new(),
    };
    job.start_epoch().unwrap();
    loop {
        match job.next(Duration::from_millis(100)) {
            Ok(Event::Batch(batch)) => {
                epoch.samples += batch.samples();
                epoch.ids.extend(common::ids(&batch));
                std::thread::sleep(pause);
            }
            Ok(Event::EndOfEpoch) => return epoch,
            Ok(Event::NotYet | Event::Skipped(_)) => {}
            Err(e) => match e.kind() {
                ErrorKind::Sample(error) => epoch.errors.push(SampleError::clone(error)),
                _ => panic!("{e}"),
            },
        }
    }
}

/// Runs a job for some epochs. Returns its errors.
fn go_on(job: &Loader, node: &Node) -> Vec<SampleError> {
    let mut errors = Vec::new();
    let all: RoaringBitmap = (0..SAMPLES).collect();
    for _ in 0..node.epochs {
        let mut epoch = epoch(job, node.pause);
        let given = u64::from(epoch.samples);
        assert_eq!(given, epoch.ids.len(), "none is given twice");
        let failed: RoaringBitmap = epoch.errors.iter().map(|e| e.id).collect();
        assert_eq!(&epoch.ids | &failed, all, "each is given, or has an error");
        errors.append(&mut epoch.errors);
    }
    errors
}

/// Runs two jobs side by side for some epochs. Returns the errors of both, and how often they had to connect again.
fn run(node: &Node, relaxed: bool) -> (Vec<SampleError>, u64) {
    let jobs = [node.job(relaxed), node.job(relaxed)];
    let ran = std::thread::scope(|scope| {
        let run = |job: Arc<Loader>| (go_on(&job, node), job.stats().reconnects);
        let threads = jobs.map(|job| scope.spawn(move || run(job)));
        threads.map(|thread| thread.join().unwrap())
    });
    let reconnects = ran.iter().map(|(_, reconnects)| reconnects).sum();
    (
        ran.into_iter().flat_map(|(errors, _)| errors).collect(),
        reconnects,
    )
}

fn are_defects(errors: &[SampleError], most: usize) -> bool {
    (1..=most).contains(&errors.len())
        && errors
            .iter()
            .all(|e| e.message.contains("a defect of coprep"))
}

fn costs_a_sample(point: &str, relaxed: bool) {
    let node = Node::start(point, "9*off->1*panic->off");
    let (errors, reconnects) = run(&node, relaxed);
    // Both jobs are told if the sample was for both.
    assert!(are_defects(&errors, 2), "{errors:?}");
    assert!(errors.iter().all(|e| e.id == errors[0].id));
    assert_eq!(reconnects, 0);
    node.stop();
}

fn costs_a_connection(point: &str, actions: &str) {
    let node = Node::start(point, actions);
    let (errors, reconnects) = run(&node, false);
    assert!(errors.is_empty(), "{errors:?}");
    assert!(reconnects > 0);
    node.stop();
}

fn costs_nothing(point: &str) {
    let node = Node::start(point, "2*off->2*panic->off");
    let (errors, reconnects) = run(&node, false);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(reconnects, 0);
    node.stop();
}

#[test]
fn a_panic_before_a_sample_is_prepared_is_an_error_of_that_sample() {
    costs_a_sample("worker-prepare", false);
}

#[test]
fn so_it_is_in_relaxed_order_where_the_sample_has_no_slot() {
    costs_a_sample("worker-prepare", true);
}

#[test]
fn a_panic_of_a_worker_that_has_a_slot_is_an_error_of_that_sample() {
    costs_a_sample("worker-bound", false);
}

#[test]
fn so_it_is_in_relaxed_order_once_the_slot_is_bound() {
    costs_a_sample("worker-bound", true);
}

#[test]
fn a_panic_after_a_sample_is_written_is_an_error_of_that_sample() {
    costs_a_sample("worker-written", false);
}

#[test]
fn so_it_is_in_relaxed_order_after_the_sample_is_written() {
    costs_a_sample("worker-written", true);
}

#[test]
fn a_sample_whose_fetch_panics_is_fetched_again() {
    costs_nothing("worker-fetch");
}

#[test]
fn a_minibatch_is_finished_although_whoever_wrote_its_last_sample_panics() {
    costs_nothing("minibatch-done");
}

#[test]
fn a_session_that_panics_costs_its_connection() {
    costs_a_connection("session-request", "3*off->1*panic->off");
}

#[test]
fn a_rank_whose_session_panics_meets_the_others_again() {
    // Preparation is slow, so that most of the epoch is still to come.
    let node = Node::start("worker-prepare", "sleep(60)");
    let ranks = [node.rank(0, 2, false), node.rank(1, 2, false)];
    let run = |rank: usize| {
        let mut given = Vec::new();
        ranks[rank].start_epoch().unwrap();
        loop {
            match ranks[rank].next(Duration::from_millis(100)) {
                Ok(Event::Batch(batch)) => {
                    given.push(common::ids(&batch));
                    if rank == 0 && given.len() == 2 {
                        fail::cfg("session-request", "1*panic->off").unwrap();
                        // A request to its session, which panics.
                        let _ = ranks[0].state();
                    }
                }
                Ok(Event::EndOfEpoch) => return given,
                Ok(Event::NotYet | Event::Skipped(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
    };
    let given = std::thread::scope(|scope| {
        [0, 1]
            .map(|rank| scope.spawn(move || run(rank)))
            .map(|t| t.join().unwrap())
    });
    assert_eq!(given[0].len(), given[1].len());
    let mut all: Vec<u32> = given.concat().concat();
    all.sort_unstable();
    assert_eq!(all, (0..SAMPLES).collect::<Vec<_>>());
    assert!(ranks[0].stats().reconnects > 0);
    drop(ranks);
    node.stop();
}

#[test]
fn a_rank_that_is_to_meet_the_others_again_keeps_the_batch_that_it_holds() {
    let node = Node::start("session-request", "off");
    let neighbour = node.job(false);
    neighbour.attached().unwrap();
    let ranks = [node.rank(0, 2, false), node.rank(1, 2, false)];
    let first_batch = |rank: &Loader| {
        rank.start_epoch().unwrap();
        loop {
            if let Event::Batch(batch) = rank.next(Duration::from_millis(100)).unwrap() {
                return batch;
            }
        }
    };
    let held = std::thread::scope(|scope| {
        let started = ranks
            .each_ref()
            .map(|rank| scope.spawn(|| first_batch(rank)));
        started.map(|thread| thread.join().unwrap())
    });
    let before = common::ids(&held[1]);
    fail::cfg("session-request", "1*panic->off").unwrap();
    // Its session panics, so the other rank is sent away. The neighbour fills every free buffer again.
    let _ = ranks[0].state();
    while ranks[1].stats().reconnects == 0 {
        epoch(&neighbour, Duration::ZERO);
    }
    for _ in 0..10 {
        epoch(&neighbour, Duration::ZERO);
    }
    assert_eq!(common::ids(&held[1]), before);
    drop((held, ranks, neighbour));
    node.stop();
}

#[test]
fn a_client_that_sends_an_invalid_message_keeps_its_buffers_until_it_has_hung_up() {
    let node = Node::start("session-request", "off");
    let client = UnixStream::connect(paths(&node.folder).socket).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let hello = Request::Hello {
        name: "test".into(),
        pid: std::process::id(),
    };
    let attach = Request::Attach(Box::new(common::attach(node.pipeline(), 8)));
    for request in [hello, attach] {
        frame::send(&client, &request, &[]).unwrap();
        frame::receive::<Reply>(&client).unwrap();
    }
    (&client).write_all(&[0xff; 64]).unwrap();
    // Wait for the end of its replies, after which it may notice the end of the connection.
    while frame::receive::<Reply>(&client).is_ok() {}
    assert_eq!(node.jobs(), 1);
    drop(client);
    while node.jobs() > 0 {
        std::thread::yield_now();
    }
    node.stop();
}

#[test]
fn a_panic_while_a_job_attaches_breaks_the_stream_off() {
    let node = Node::start("attach-locked", "off");
    let first = node.job(false);
    first.attached().unwrap();
    fail::cfg("attach-locked", "1*panic->off").unwrap();
    let (errors, _) = run(&node, false);
    assert!(errors.is_empty(), "{errors:?}");
    // It may take an epoch that lies ready for it before it notices.
    assert!(go_on(&first, &node).is_empty());
    assert_eq!(first.stats().reconnects, 1);
    drop(first);
    node.stop();
}

#[test]
fn a_first_job_whose_session_panics_as_it_attaches_tries_again() {
    let node = Node::start("attach-locked", "1*panic->off");
    let (errors, _) = run(&node, false);
    assert!(errors.is_empty(), "{errors:?}");
    node.stop();
}

#[test]
fn a_job_that_comes_as_its_stream_is_broken_off_finds_another() {
    // The driver runs before the first job attaches.
    let node = Node::start("driver-turn", "1*panic->off");
    let (errors, _) = run(&node, false);
    assert!(errors.is_empty(), "{errors:?}");
    node.stop();
}

#[test]
fn a_driver_that_panics_breaks_its_stream_off() {
    let mut node = Node::start("driver-turn", "off");
    // Without the pause the jobs may end before the driver's next pass.
    (node.pause, node.epochs) = (Duration::from_millis(20), 20);
    let (errors, reconnects) = std::thread::scope(|scope| {
        let ran = scope.spawn(|| run(&node, false));
        // The test runner ends a test that hangs.
        while !node.has_two_jobs_with_batches() {
            std::thread::sleep(Duration::from_millis(10));
        }
        fail::cfg("driver-turn", "1*panic->off").unwrap();
        ran.join().unwrap()
    });
    assert!(errors.is_empty(), "{errors:?}");
    assert!(reconnects > 0);
    node.stop();
}

#[test]
fn a_panic_under_the_lock_of_a_stream_breaks_it_off() {
    costs_a_connection("pump-locked", "8*off->1*panic->off");
}

#[test]
fn a_stream_that_is_broken_off_again_and_again_is_opened_again_and_again() {
    costs_a_connection(
        "pump-locked",
        "3*off->1*panic->7*off->1*panic->2*off->1*panic->off",
    );
}

#[test]
fn a_sample_that_fails_while_a_thread_panics_over_it_is_still_told() {
    let node = Node::start("sample-failed-locked", "1*panic->off").with_a_bad_file();
    let (errors, reconnects) = run(&node, false);
    assert!(reconnects > 0);
    let is_bad = |e: &SampleError| e.id == SAMPLES - 1 && e.stage == "decode";
    assert!(
        !errors.is_empty() && errors.iter().all(is_bad),
        "{errors:?}"
    );
    node.stop();
}

#[test]
fn a_panic_of_the_thread_that_sends_replies_costs_one_connection() {
    let node = Node::start("reply-writer", "1*panic->off").with_a_bad_file();
    let (errors, reconnects) = run(&node, false);
    assert_eq!(reconnects, 1);
    assert!(errors.iter().all(|e| e.id == SAMPLES - 1), "{errors:?}");
    node.stop();
}

#[test]
fn a_panic_over_a_new_connection_costs_that_connection() {
    let node = Node::start("main-accept", "1*panic->off");
    let (errors, _) = run(&node, false);
    assert!(errors.is_empty(), "{errors:?}");
    node.stop();
}

#[test]
fn a_warm_up_ends_although_a_worker_panics() {
    let node = Node::start("warm-worker", "5*off->1*panic->off");
    let warm = Warm {
        store_variables: StoreVariables::default(),
        provider: None,
        pipeline: node.pipeline(),
        cache: CacheRequest {
            form: Some(CacheForm::Decoded),
            ..CacheRequest::default()
        },
        keep: false,
    };
    let connection = node.connect();
    connection.send(&Request::Warm(Box::new(warm))).unwrap();
    let warmed: WarmProgress = loop {
        match connection
            .receive(LIMIT, &no_interrupt())
            .unwrap()
            .unwrap()
            .0
        {
            Reply::Progress(_) => {}
            Reply::Warmed(progress) => break progress,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((warmed.done, warmed.failed), (u64::from(SAMPLES), 1));
    assert!(warmed.first_failure.unwrap().contains("a defect of coprep"));
    node.stop();
}

/// Checks that the coordinator ends in good order, and says why.
fn ends(point: &str) {
    let mut node = Node::start(point, "off");
    let job = node.job(false);
    job.start_epoch().unwrap();
    fail::cfg(point, "panic").unwrap();
    let ended = node.server.take().unwrap().join().unwrap();
    assert!(
        ended
            .unwrap_err()
            .to_string()
            .contains("a defect of coprep")
    );
    assert!(!paths(&node.folder).socket.exists());
}

#[test]
fn a_panic_of_the_main_thread_ends_the_coordinator_in_good_order() {
    ends("main-turn");
}

#[test]
fn a_panic_of_the_pool_itself_ends_the_coordinator_in_good_order() {
    ends("worker-loop");
}

#[test]
fn the_coordinator_ends_for_idleness_after_sessions_have_panicked() {
    let mut node = Node::start("session-request", "panic");
    for _ in 0..3 {
        assert!(
            node.connect()
                .ask(&Request::Explain, "an answer", LIMIT, &no_interrupt())
                .is_err()
        );
    }
    fail::cfg("session-request", "off").unwrap();
    let status = node.connect().ask(
        &Request::Status { slow: 0 },
        "an answer",
        LIMIT,
        &no_interrupt(),
    );
    assert!(matches!(status.unwrap(), Reply::Status(_)));
    let ended = node.server.take().unwrap().join().unwrap();
    assert_eq!(ended.unwrap(), StopReason::Idle);
}
