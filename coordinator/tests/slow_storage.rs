//! Storage that is slow or dead holds up the jobs of its own datasets, and no others.
//!
//! The storage is made slow by the points before each read: see `src/failpoints.rs`.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_client::{Event, Loader, control};
use coprep_protocol::message::{CacheForm, CacheRequest, PoolStatus};
use coprep_protocol::spec::{PipelineSpec, Source};
use fail::FailScenario;

use common::{LIMIT, Node};

mod common;

const SAMPLES: u32 = 24;
/// Time without a batch after which a job counts as held up. It is longer than a read may last before it is set apart.
const HELD_UP: Duration = Duration::from_secs(15);

/// A coordinator whose jobs read from two folders.
struct Storage {
    node: Node,
    dead: PipelineSpec,
    good: PipelineSpec,
    _scenario: FailScenario<'static>,
}

impl Storage {
    fn new() -> Storage {
        let scenario = FailScenario::setup();
        let node = Node::start();
        let folder = |name: &str| common::images(&node.folder.path().join(name), SAMPLES);
        Storage {
            dead: folder("dead"),
            good: folder("good"),
            node,
            _scenario: scenario,
        }
    }

    /// Has each read of the dead folder do something before.
    fn reads_of_dead(&self, actions: &str) {
        let Source::ImageFolder { root } = &self.dead.source else {
            panic!("a folder");
        };
        for i in 0..SAMPLES {
            fail::cfg(format!("read {root}/class/{i:03}.png"), actions).unwrap();
        }
    }

    fn job(&self, pipeline: &PipelineSpec) -> Arc<Loader> {
        self.job_within(LIMIT, pipeline)
    }

    fn job_within(&self, timeout: Duration, pipeline: &PipelineSpec) -> Arc<Loader> {
        let mut attach = common::attach(pipeline.clone(), 4);
        attach.cache = CacheRequest {
            form: Some(CacheForm::Off),
            ..CacheRequest::default()
        };
        self.node.loader_within(timeout, attach)
    }

    fn pool(&self) -> PoolStatus {
        control::status(&self.node.paths(), 0).unwrap().pool
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&PoolStatus) -> bool) {
        let began = Instant::now();
        while !is_so(&self.pool()) {
            assert!(began.elapsed() < LIMIT, "{what}: {:?}", self.pool());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Takes epochs of the good folder, and checks that none is held up.
    fn good_epochs(&self, job: &Loader, epochs: u32) {
        for _ in 0..epochs {
            assert_eq!(epoch(job, HELD_UP), all());
        }
    }
}

/// Takes an epoch. Returns its samples in ascending order.
fn epoch(job: &Loader, longest_wait: Duration) -> Vec<u32> {
    let mut ids = Vec::new();
    job.start_epoch().unwrap();
    let mut last = Instant::now();
    loop {
        match job.next(Duration::from_millis(100)) {
            Ok(Event::Batch(batch)) => {
                ids.extend(common::ids(&batch));
                last = Instant::now();
            }
            Ok(Event::EndOfEpoch) => break,
            Ok(Event::NotYet | Event::Skipped(_)) => {
                assert!(last.elapsed() < longest_wait, "a job is held up");
            }
            Err(e) => panic!("{e}"),
        }
    }
    ids.sort_unstable();
    ids
}

fn all() -> Vec<u32> {
    (0..SAMPLES).collect()
}

#[test]
fn dead_storage_stops_its_own_job_which_goes_on_when_the_storage_is_back() {
    let storage = Storage::new();
    storage.reads_of_dead("pause");
    let (dead, good) = (storage.job(&storage.dead), storage.job(&storage.good));
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| epoch(&dead, LIMIT));
        storage.wait_until("both threads are stuck", |pool| {
            pool.fetching + pool.slow_reads >= 2
        });
        storage.good_epochs(&good, 3);
        let pool = storage.pool();
        assert!(pool.slow_reads >= 2, "{pool:?}");
        // Dead storage takes no more threads than it had, but for a probe.
        assert!(pool.slow_reads <= 4, "{pool:?}");
        assert!(!stopped.is_finished());
        storage.reads_of_dead("off");
        assert_eq!(stopped.join().unwrap(), all());
    });
    storage.wait_until("nothing is left", |pool| {
        pool.slow_reads + pool.to_fetch + pool.to_prepare == 0
    });
}

#[test]
fn a_job_that_waits_for_dead_storage_is_told_the_file() {
    let storage = Storage::new();
    storage.reads_of_dead("pause");
    let dead = storage.job_within(Duration::from_secs(3), &storage.dead);
    dead.start_epoch().unwrap();
    let error = loop {
        match dead.next(Duration::from_millis(100)) {
            Ok(Event::NotYet) => {}
            Ok(_) => panic!("dead storage gives nothing"),
            Err(e) => break e.to_string(),
        }
    };
    assert!(error.contains("its storage is slow"), "{error}");
    assert!(error.contains("/dead/class/"), "{error}");
    storage.reads_of_dead("off");
}

#[test]
fn a_job_that_leaves_dead_storage_leaves_no_samples_that_wait() {
    let storage = Storage::new();
    storage.reads_of_dead("pause");
    let (dead, good) = (storage.job(&storage.dead), storage.job(&storage.good));
    dead.start_epoch().unwrap();
    storage.wait_until("reads are stuck", |pool| pool.slow_reads >= 2);
    assert!(storage.pool().to_fetch > 0, "{:?}", storage.pool());
    drop(dead);
    storage.wait_until("only the stuck reads are left", |pool| pool.to_fetch == 0);
    storage.good_epochs(&good, 2);
    assert!(storage.pool().slow_reads >= 2);
    storage.reads_of_dead("off");
    storage.wait_until("the stuck reads end", |pool| pool.slow_reads == 0);
}

#[test]
fn storage_that_answers_slowly_is_read_by_more_threads_and_gives_each_sample_once() {
    let storage = Storage::new();
    storage.reads_of_dead("sleep(2500)");
    let (slow, good) = (storage.job(&storage.dead), storage.job(&storage.good));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| epoch(&slow, LIMIT));
        storage.wait_until("the source is slow", |pool| pool.slow_reads > 0);
        let mut most = 0;
        while !slow.is_finished() {
            storage.good_epochs(&good, 1);
            most = most.max(storage.pool().slow_reads);
        }
        assert_eq!(slow.join().unwrap(), all());
        assert!(most > 4, "{most} reads at a time");
    });
}

#[test]
fn a_read_that_is_repeated_while_a_sample_is_prepared_holds_up_its_own_job_only() {
    let storage = Storage::new();
    // The first reads fail, and are repeated when the samples are prepared.
    storage.reads_of_dead("1*panic->pause");
    let (dead, good) = (storage.job(&storage.dead), storage.job(&storage.good));
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| epoch(&dead, LIMIT));
        storage.wait_until("both threads are stuck", |pool| {
            pool.preparing + pool.slow_reads >= 2
        });
        storage.good_epochs(&good, 3);
        assert!(!stopped.is_finished());
        storage.reads_of_dead("off");
        assert_eq!(stopped.join().unwrap(), all());
    });
}

#[test]
fn a_fetch_that_panics_leaves_no_sample_out() {
    let storage = Storage::new();
    storage.reads_of_dead("panic");
    let mut attach = common::attach(storage.dead.clone(), 4);
    (attach.skip_errors, attach.cache.form) = (true, Some(CacheForm::Off));
    let job = storage.node.loader_within(LIMIT, attach);
    job.start_epoch().unwrap();
    let error = loop {
        match job.next(Duration::from_millis(100)) {
            Ok(Event::NotYet) => {}
            Ok(_) => panic!("each sample fails, and none may be skipped"),
            Err(e) => break e.to_string(),
        }
    };
    assert!(error.contains("storage"), "{error}");
    assert_eq!(job.stats().skipped, 0);
    storage.reads_of_dead("off");
    let again = storage.job(&storage.dead);
    assert_eq!(epoch(&again, LIMIT), all());
}
