//! Samples that take the place of others that could not be read.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod specs;

use coprep_scheduler::{Config, DrawOrder, JobId, JobSpec, Scheduler};

const FREE: u32 = 64;

fn job(world_size: u32, skip_bad: bool) -> JobSpec {
    JobSpec {
        world_size,
        skip_bad,
        ..specs::spec(4)
    }
}

fn scheduler() -> Scheduler {
    Scheduler::new(Config {
        samples: 100,
        slots: 4,
        depth: 16,
        low_water: 2,
        seed: 7,
        order: DrawOrder::Random,
        is_told: false,
        windows: None,
    })
}

/// Returns `true` if the first sample of the first minibatch, which is for all `jobs`, may be replaced.
fn is_replaced(jobs: &[JobSpec]) -> bool {
    let mut scheduler = scheduler();
    for (number, job) in (1..).zip(jobs) {
        scheduler.attach(JobId(number), job.clone()).unwrap();
    }
    let minibatch = scheduler.next(FREE).unwrap();
    assert_eq!(minibatch.targets.len(), jobs.len());
    let bad = minibatch.samples[0].id;
    scheduler.mark_bad(bad);
    let other = scheduler.replace(&minibatch.targets, bad);
    assert!(other.is_none_or(|other| other.id != bad));
    other.is_some()
}

#[test]
fn a_bad_sample_is_replaced_for_jobs_that_skip_it_and_for_a_rank_alone() {
    assert!(is_replaced(&[job(1, false)]));
    assert!(is_replaced(&[job(1, true)]));
    assert!(is_replaced(&[job(3, true)]));
    assert!(is_replaced(&[job(3, true), job(1, false)]));
}

#[test]
fn a_bad_sample_is_not_replaced_for_ranks_that_raise_its_error() {
    assert!(!is_replaced(&[job(2, false)]));
    assert!(!is_replaced(&[job(3, true), job(2, false)]));
}

#[test]
fn a_job_that_has_left_needs_no_replacement() {
    let mut scheduler = scheduler();
    for number in 1..4 {
        scheduler.attach(JobId(number), job(1, true)).unwrap();
    }
    let minibatch = scheduler.next(FREE).unwrap();
    assert_eq!(minibatch.targets.len(), 3);
    scheduler.detach(JobId(2));
    let bad = minibatch.samples[0].id;
    scheduler.mark_bad(bad);
    assert!(scheduler.replace(&minibatch.targets, bad).is_some());
    scheduler.detach(JobId(1));
    scheduler.detach(JobId(3));
    assert_eq!(scheduler.replace(&minibatch.targets, bad), None);
}
