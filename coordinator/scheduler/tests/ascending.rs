//! Jobs in ascending order: each is assigned its ids in that order, and jobs share from the point where they meet.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod specs;

use std::collections::{BTreeMap, VecDeque};

use coprep_scheduler::{Config, DrawOrder, JobId, JobSpec, Resume, Scheduler, Target};
use specs::spec;

const SAMPLES: u32 = 400;
const SLOTS: u32 = 10;
/// Number of staging buffers: more than all queues hold.
const PLENTY: u32 = 1000;

/// Jobs of one rank that take one minibatch each, one after the other.
struct Jobs {
    scheduler: Scheduler,
    /// Minibatches assigned and not yet taken.
    queues: BTreeMap<JobId, VecDeque<Assigned>>,
    /// By job: the (epoch, id) pairs that it was given, in order.
    given: BTreeMap<JobId, Vec<(u64, u32)>>,
    prepared: u32,
}

struct Assigned {
    epoch: u64,
    ids: Vec<u32>,
    deliveries: u32,
}

impl Jobs {
    fn new() -> Self {
        let config = Config {
            samples: SAMPLES,
            slots: SLOTS,
            depth: 8,
            low_water: 2,
            seed: 1,
            order: DrawOrder::Ascending,
            is_told: false,
            windows: None,
        };
        Jobs {
            scheduler: Scheduler::new(config),
            queues: BTreeMap::new(),
            given: BTreeMap::new(),
            prepared: 0,
        }
    }

    fn attach(&mut self, id: u64, spec: JobSpec) {
        let id = JobId(id);
        self.scheduler.attach(id, spec).unwrap();
        self.queues.insert(id, VecDeque::new());
        self.given.insert(id, Vec::new());
        self.draw();
    }

    fn draw(&mut self) {
        while let Some(minibatch) = self.scheduler.next(PLENTY) {
            let ids: Vec<u32> = minibatch.samples.iter().map(|draw| draw.id).collect();
            self.prepared += ids.len() as u32;
            for target in minibatch.targets {
                let parts = minibatch.deliveries.iter();
                let assigned = Assigned {
                    epoch: target.epoch,
                    ids: ids.clone(),
                    deliveries: parts.filter(|d| d.job == target.job).count() as u32,
                };
                self.queues
                    .get_mut(&target.job)
                    .unwrap()
                    .push_back(assigned);
            }
        }
    }

    /// Lets each job take a minibatch, `times` times.
    fn step(&mut self, times: u32) {
        for _ in 0..times {
            for (&id, queue) in &mut self.queues {
                let assigned = queue.pop_front().expect("nobody waits");
                self.scheduler.epoch_started(id, 0, assigned.epoch);
                self.scheduler.taken(id, 0, assigned.deliveries);
                let given = self.given.get_mut(&id).unwrap();
                given.extend(
                    assigned
                        .ids
                        .into_iter()
                        .map(|sample| (assigned.epoch, sample)),
                );
            }
            self.draw();
        }
    }

    fn assert_ascending(&self) {
        for (id, given) in &self.given {
            assert!(given.is_sorted_by(|a, b| a < b), "{id:?}: {given:?}");
        }
    }
}

fn resumed_after(samples: u32) -> JobSpec {
    let resume = Resume {
        epoch: 0,
        delivered: (0..samples).collect(),
        ..Resume::default()
    };
    JobSpec {
        resume: Some(resume),
        ..spec(SLOTS)
    }
}

/// Number of samples in a full queue.
const QUEUE: u32 = 8 * SLOTS;

#[test]
fn a_job_that_comes_a_little_later_catches_up_and_shares() {
    let mut jobs = Jobs::new();
    jobs.attach(1, spec(SLOTS));
    jobs.step(3);
    let ahead = jobs.prepared;
    jobs.attach(2, spec(SLOTS));
    jobs.step(100);
    jobs.assert_ascending();
    // The samples that the first job had before they met are prepared twice, and the rest once.
    let given = jobs.given.values().map(Vec::len).max().unwrap() as u32;
    let prepared = jobs.prepared;
    assert!(prepared <= given + QUEUE + ahead, "{prepared} prepared");
}

#[test]
fn jobs_far_apart_are_each_given_their_own_order() {
    let mut jobs = Jobs::new();
    jobs.attach(1, resumed_after(200));
    jobs.attach(2, spec(SLOTS));
    jobs.step(100);
    jobs.assert_ascending();
    let given: usize = jobs.given.values().map(Vec::len).sum();
    assert_eq!(given as u32, 2 * 100 * SLOTS);
}

#[test]
fn jobs_whose_minibatches_begin_at_different_ids_meet_all_the_same() {
    let mut jobs = Jobs::new();
    jobs.attach(1, resumed_after(25));
    let ahead = jobs.prepared;
    jobs.attach(2, spec(SLOTS));
    jobs.step(20);
    jobs.assert_ascending();
    let prepared = jobs.prepared;
    assert!(
        prepared <= 25 + 20 * SLOTS + QUEUE + ahead,
        "{prepared} prepared"
    );
}

#[test]
fn a_subset_shares_where_its_next_ids_are_those_of_the_others() {
    let mut jobs = Jobs::new();
    let subset = Some((5..SAMPLES).collect());
    jobs.attach(
        1,
        JobSpec {
            subset,
            ..spec(SLOTS)
        },
    );
    let ahead = jobs.prepared;
    jobs.attach(2, spec(SLOTS));
    jobs.step(20);
    jobs.assert_ascending();
    let prepared = jobs.prepared;
    assert!(
        prepared <= 5 + 20 * SLOTS + QUEUE + ahead,
        "{prepared} prepared"
    );
}

#[test]
fn nothing_takes_the_place_of_a_bad_sample() {
    let mut scheduler = Jobs::new().scheduler;
    scheduler
        .attach(
            JobId(1),
            JobSpec {
                skip_bad: true,
                ..spec(SLOTS)
            },
        )
        .unwrap();
    let minibatch = scheduler.next(PLENTY).unwrap();
    scheduler.mark_bad(3);
    assert!(scheduler.replace(&minibatch.targets, 3).is_none());
    assert_eq!(
        minibatch.targets,
        [Target {
            job: JobId(1),
            epoch: 0
        }]
    );
    let mut ids: Vec<(u64, u32)> = minibatch.samples.iter().map(|draw| (0, draw.id)).collect();
    for _ in 0..80 {
        scheduler.taken(JobId(1), 0, 1);
        let Some(next) = scheduler.next(PLENTY) else {
            break;
        };
        let epoch = next.targets[0].epoch;
        scheduler.epoch_started(JobId(1), 0, epoch);
        ids.extend(next.samples.iter().map(|draw| (epoch, draw.id)));
    }
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let second: Vec<u32> = ids
        .iter()
        .filter(|(epoch, _)| *epoch == 1)
        .map(|(_, id)| *id)
        .collect();
    assert!(
        second.starts_with(&[0, 1, 2, 4, 5]),
        "it is not assigned again: {second:?}"
    );
}
