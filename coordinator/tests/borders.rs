//! Preparation beyond the border of an epoch: nothing is prepared for a job that may have no more epochs, and the first
//! minibatches for a job whose epochs follow each other at once.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_client::{Event, Loader};
use coprep_protocol::message::{Attach, CohortRequest, StreamStatus};

mod common;

use common::{LIMIT, Node};

/// Time of one slow step in each epoch. A border is crossed at once if it takes no longer than a few of these.
const SLOW_STEP: Duration = Duration::from_millis(300);
const BATCH_SIZE: u32 = 4;

impl Node {
    fn job(&self, samples: u32, change: impl FnOnce(&mut Attach)) -> Job {
        let mut attach = common::attach(common::numbers(samples), BATCH_SIZE);
        change(&mut attach);
        Job(self.loader(attach))
    }

    fn stream(&self) -> StreamStatus {
        let mut streams = self.streams();
        assert_eq!(streams.len(), 1);
        streams.remove(0)
    }

    /// Waits until all buffers except `kept` are free, so that nothing is in preparation. Returns the number of samples
    /// that were prepared.
    fn prepared(&self, kept: u32) -> u64 {
        let end = Instant::now() + LIMIT;
        loop {
            let stream = self.stream();
            if stream.buffers_free + kept == stream.buffers {
                return stream.totals.prepared;
            }
            assert!(
                Instant::now() < end,
                "{} of {} buffers are free",
                stream.buffers_free,
                stream.buffers
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Job(Arc<Loader>);

impl Job {
    fn begin(&self) {
        self.0.start_epoch().unwrap();
    }

    /// Takes a batch. Returns its number of samples, or `None` at the end of the epoch.
    fn next(&self) -> Option<u32> {
        loop {
            match self.0.next(LIMIT).unwrap() {
                Event::Batch(batch) => return Some(batch.samples()),
                Event::EndOfEpoch => return None,
                Event::NotYet | Event::Skipped(_) => {}
            }
        }
    }

    /// Takes `samples` samples in batches. The step after the first batch is slow.
    fn take(&self, samples: u32) {
        let mut taken = self.next().unwrap();
        std::thread::sleep(SLOW_STEP);
        while taken < samples {
            taken += self.next().unwrap();
        }
    }

    /// Takes an epoch to its end.
    fn epoch(&self, samples: u32) {
        self.begin();
        self.take(samples);
        assert_eq!(self.next(), None);
    }
}

#[test]
fn one_pass_prepares_one_pass() {
    let node = Node::start();
    let job = node.job(60, |_| {});
    job.epoch(60);
    assert_eq!(node.prepared(0), 60);
}

#[test]
fn two_epochs_of_a_cohort_prepare_two_epochs() {
    let node = Node::start();
    let jobs = [(); 4].map(|()| {
        node.job(50, |attach| {
            attach.cohort = Some(CohortRequest {
                name: "c".into(),
                size: 4,
            });
        })
    });
    std::thread::scope(|scope| {
        for job in &jobs {
            scope.spawn(|| (0..2).for_each(|_| job.epoch(50)));
        }
    });
    assert_eq!(node.prepared(0), 100);
}

#[test]
fn epochs_that_follow_each_other_have_their_first_batch_ready_from_the_second_border_on() {
    const MINIBATCHES: u32 = 32;
    const SAMPLES: u32 = MINIBATCHES * BATCH_SIZE;
    let node = Node::start();
    let job = node.job(SAMPLES, |_| {});
    for epochs in 1..=5 {
        job.begin();
        job.take(SAMPLES);
        // It works on its last batch, and nobody knows whether it will continue. A fiftieth is prepared all the same.
        let ahead = if epochs == 1 {
            0
        } else {
            epochs * MINIBATCHES / 50
        };
        let expected = epochs * SAMPLES + ahead * BATCH_SIZE;
        assert_eq!(node.prepared(ahead), u64::from(expected), "{epochs}");
        assert_eq!(job.next(), None);
    }
}

#[test]
fn nothing_is_ready_for_a_job_that_paused_at_the_border_before() {
    const SAMPLES: u32 = 50 * BATCH_SIZE;
    let node = Node::start();
    let job = node.job(SAMPLES, |_| {});
    job.epoch(SAMPLES);
    let began = Instant::now();
    job.epoch(SAMPLES);
    assert_eq!(node.prepared(2), u64::from(2 * SAMPLES + 2 * BATCH_SIZE));
    // The job validates.
    std::thread::sleep(began.elapsed() * 5);
    job.epoch(SAMPLES);
    assert_eq!(node.prepared(0), u64::from(3 * SAMPLES));
    job.epoch(SAMPLES);
    assert_eq!(node.prepared(4), u64::from(4 * SAMPLES + 4 * BATCH_SIZE));
}

#[test]
fn a_validation_set_is_prepared_once_for_each_pass() {
    let node = Node::start();
    let validation = node.job(60, |_| {});
    for passes in 1..=3 {
        let began = Instant::now();
        validation.epoch(60);
        assert_eq!(node.prepared(0), 60 * passes);
        // The job trains.
        std::thread::sleep(began.elapsed() * 5);
    }
}

#[test]
fn epochs_that_are_left_early_have_nothing_ready() {
    const SAMPLES: u32 = 100 * BATCH_SIZE;
    let node = Node::start();
    let job = node.job(SAMPLES, |_| {});
    job.epoch(SAMPLES);
    job.begin();
    job.take(10 * BATCH_SIZE);
    // Only the samples that lay ready of the epoch are void.
    job.epoch(SAMPLES);
    let prepared = node.prepared(0);
    let most = u64::from(2 * SAMPLES + (10 + 17) * BATCH_SIZE);
    assert!(prepared <= most, "{prepared} of {most}");
}

#[test]
fn every_rank_has_its_first_batch_ready() {
    const SAMPLES: u32 = 25 * 2 * BATCH_SIZE;
    let node = Node::start();
    let ranks = [0, 1].map(|rank| {
        node.job(SAMPLES, |attach| {
            (attach.rank, attach.world_size) = (rank, 2);
            attach.group = "ranks".into();
        })
    });
    for epochs in 1..=2 {
        ranks.iter().for_each(Job::begin);
        std::thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(|| rank.take(SAMPLES / 2));
            }
        });
        let ahead = (epochs - 1) * 2;
        let expected = epochs * SAMPLES + ahead * BATCH_SIZE;
        assert_eq!(node.prepared(ahead), u64::from(expected), "{epochs}");
        assert!(ranks.iter().all(|rank| rank.next().is_none()));
    }
}

#[test]
fn members_of_a_cohort_may_take_turns_in_one_thread() {
    let node = Node::start();
    let jobs = [(); 2].map(|()| {
        node.job(20, |attach| {
            attach.cohort = Some(CohortRequest {
                name: "c".into(),
                size: 2,
            });
        })
    });
    jobs.iter().for_each(|job| drop(job.0.attached().unwrap()));
    for _ in 0..3 {
        for job in &jobs {
            // The other member has not begun this epoch, or has still to take its last batch of the epoch before.
            job.begin();
            assert_eq!(job.next(), Some(BATCH_SIZE));
        }
        for job in &jobs {
            while job.next().is_some() {}
        }
    }
}

#[test]
fn a_job_that_idles_between_epochs_takes_part_in_what_another_needs() {
    const SAMPLES: u32 = 10 * BATCH_SIZE;
    let node = Node::start();
    let idle = node.job(SAMPLES, |_| {});
    idle.epoch(SAMPLES);
    assert_eq!(node.prepared(0), u64::from(SAMPLES));
    let other = node.job(SAMPLES, |_| {});
    other.epoch(SAMPLES);
    assert_eq!(node.prepared(10), u64::from(2 * SAMPLES));
    idle.epoch(SAMPLES);
    // Now the other one idles.
    assert_eq!(node.prepared(0), u64::from(2 * SAMPLES));
}

#[test]
fn an_epoch_that_was_begun_when_the_coordinator_died_is_prepared_by_the_next_one() {
    const SAMPLES: u32 = 10 * BATCH_SIZE;
    let mut node = Node::start();
    let ranks = [0, 1].map(|rank| {
        node.job(SAMPLES, |attach| {
            (attach.rank, attach.world_size) = (rank, 2);
            attach.group = "ranks".into();
        })
    });
    ranks.iter().for_each(Job::begin);
    for rank in &ranks {
        rank.take(SAMPLES / 2);
        assert_eq!(rank.next(), None);
    }
    // The other rank has not begun it.
    ranks[0].begin();
    node.end();
    node.begin();
    assert_eq!(ranks[0].next(), Some(BATCH_SIZE));
}
