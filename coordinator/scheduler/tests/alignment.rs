//! Ranks of different jobs that are assigned the same minibatches.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod specs;

use std::collections::BTreeSet;

use coprep_scheduler::{Cohort, Config, DrawOrder, JobId, JobSpec, Minibatch, Scheduler};

const SLOTS: u32 = 10;
const FREE: u32 = 64;
const ONE: JobId = JobId(1);
const OTHER: JobId = JobId(2);

fn stream(order: DrawOrder) -> Scheduler {
    Scheduler::new(Config {
        samples: 1200,
        slots: SLOTS,
        depth: 16,
        low_water: 2,
        seed: 7,
        order,
        is_told: false,
        windows: None,
    })
}

fn spec(batch_size: u32, world_size: u32) -> JobSpec {
    JobSpec {
        world_size,
        ..specs::spec(batch_size)
    }
}

/// Draws `count` minibatches, or as many as can be drawn. Every delivery is taken at once.
fn draw(scheduler: &mut Scheduler, count: usize) -> Vec<Minibatch> {
    let drawn = std::iter::from_fn(|| {
        let minibatch = scheduler.next(FREE)?;
        for delivery in &minibatch.deliveries {
            scheduler.taken(delivery.job, delivery.rank, 1);
        }
        Some(minibatch)
    });
    drawn.take(count).collect()
}

/// Returns the ranks of each minibatch that both jobs are assigned.
fn ranks_of_shared(drawn: &[Minibatch]) -> Vec<BTreeSet<u32>> {
    let is_shared = |minibatch: &&Minibatch| minibatch.targets.len() == 2;
    let ranks = |minibatch: &Minibatch| minibatch.deliveries.iter().map(|d| d.rank).collect();
    drawn.iter().filter(is_shared).map(ranks).collect()
}

/// Attaches a job, and another one after `lead` minibatches. Returns the ranks of the minibatches that they share.
fn shared_by_two(
    order: DrawOrder,
    spec: &JobSpec,
    lead: usize,
    aligned: bool,
) -> Vec<BTreeSet<u32>> {
    let mut scheduler = stream(order);
    let attach = |scheduler: &mut Scheduler, id| {
        scheduler.attach(id, spec.clone()).unwrap();
        if aligned {
            scheduler.align_ranks(id);
        }
    };
    attach(&mut scheduler, ONE);
    assert_eq!(draw(&mut scheduler, lead).len(), lead);
    attach(&mut scheduler, OTHER);
    let ranks = ranks_of_shared(&draw(&mut scheduler, 60));
    assert!(ranks.len() > 20, "{} minibatches are shared", ranks.len());
    ranks
}

#[test]
fn a_job_that_comes_later_gets_each_minibatch_on_the_same_rank() {
    for world_size in [2, 3, 4] {
        for lead in [1, 2, 3, 5, 7] {
            let spec = spec(SLOTS, world_size);
            let ranks = shared_by_two(DrawOrder::Random, &spec, lead, true);
            assert!(ranks.iter().all(|r| r.len() == 1), "{lead}: {ranks:?}");
        }
    }
    let ranks = shared_by_two(DrawOrder::Random, &spec(SLOTS, 2), 1, false);
    assert!(
        ranks.iter().all(|r| r.len() == 2),
        "it would not without alignment"
    );
}

#[test]
fn batches_of_several_minibatches_are_aligned_where_they_begin_together() {
    // The second job begins after a whole number of batches.
    for lead in [3, 6, 9] {
        let spec = spec(3 * SLOTS, 2);
        let ranks = shared_by_two(DrawOrder::Random, &spec, lead, true);
        assert!(ranks.iter().all(|r| r.len() == 1), "{lead}: {ranks:?}");
    }
}

#[test]
fn runs_that_can_be_repeated_are_not_aligned() {
    let order = |spec: JobSpec, order| {
        let mut scheduler = stream(order);
        // The number of minibatches before this job does not matter to it.
        scheduler.attach(ONE, self::spec(SLOTS, 1)).unwrap();
        draw(&mut scheduler, 3);
        scheduler.detach(ONE);
        scheduler.attach(OTHER, spec).unwrap();
        scheduler.align_ranks(OTHER);
        let drawn = draw(&mut scheduler, 8);
        drawn
            .iter()
            .map(|m| m.deliveries[0].rank)
            .collect::<Vec<u32>>()
    };
    let cohort = Some(Cohort {
        name: "it".into(),
        size: 1,
    });
    let in_cohort = JobSpec {
        cohort,
        ..spec(SLOTS, 2)
    };
    for ranks in [
        order(spec(SLOTS, 2), DrawOrder::Ascending),
        order(in_cohort, DrawOrder::Random),
    ] {
        assert_eq!(ranks, [0, 1, 0, 1, 0, 1, 0, 1]);
    }
    assert_eq!(
        order(spec(SLOTS, 2), DrawOrder::Random),
        [1, 0, 1, 0, 1, 0, 1, 0]
    );
}
