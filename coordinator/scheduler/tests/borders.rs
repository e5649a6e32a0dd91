//! Draws beyond the border of an epoch.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod specs;

use std::collections::BTreeMap;

use coprep_scheduler::{Cohort, Config, DrawOrder, JobId, JobSpec, Minibatch, Resume, Scheduler};
use roaring::RoaringBitmap;
use specs::spec;

const SAMPLES: u32 = 100;
const SLOTS: u32 = 10;
const FREE: u32 = 64;
const ONE: JobId = JobId(1);
const OTHER: JobId = JobId(2);

fn stream(order: DrawOrder) -> Scheduler {
    Scheduler::new(Config {
        samples: SAMPLES,
        slots: SLOTS,
        depth: 16,
        low_water: 2,
        seed: 7,
        order,
        is_told: false,
        windows: None,
    })
}

/// Attaches a job for which nothing is drawn ahead.
fn attach(scheduler: &mut Scheduler, id: JobId, spec: JobSpec) {
    scheduler.attach(id, spec).unwrap();
    scheduler.set_ahead(id, 0);
}

/// Draws all minibatches that can be drawn. All ranks of the jobs in `reading` take their deliveries at once.
fn draw(scheduler: &mut Scheduler, reading: &[JobId]) -> Vec<Minibatch> {
    let drawn = std::iter::from_fn(|| {
        let minibatch = scheduler.next(FREE)?;
        for delivery in &minibatch.deliveries {
            if reading.contains(&delivery.job) {
                scheduler.taken(delivery.job, delivery.rank, 1);
            }
        }
        Some(minibatch)
    });
    drawn.collect()
}

/// Returns the number of samples assigned, by job and epoch.
fn assigned(drawn: &[Minibatch]) -> BTreeMap<(u64, u64), u32> {
    let mut sum = BTreeMap::new();
    for delivery in drawn.iter().flat_map(|m| &m.deliveries) {
        *sum.entry((delivery.job.0, delivery.epoch)).or_insert(0) += delivery.len;
    }
    sum
}

fn samples(drawn: &[Minibatch]) -> u32 {
    drawn.iter().map(|m| m.samples.len() as u32).sum()
}

#[test]
fn nothing_is_drawn_of_an_epoch_that_no_rank_has_begun() {
    for order in [
        DrawOrder::Random,
        DrawOrder::Ascending,
        DrawOrder::AscendingInCommon,
    ] {
        let mut scheduler = stream(order);
        attach(&mut scheduler, ONE, spec(SLOTS));
        for epoch in 0..3 {
            let drawn = draw(&mut scheduler, &[ONE]);
            assert_eq!(assigned(&drawn), [((1, epoch), SAMPLES)].into());
            assert!(!scheduler.lacks_buffers(), "it waits for nothing");
            scheduler.epoch_started(ONE, 0, epoch + 1);
        }
    }
}

#[test]
fn no_more_is_drawn_ahead_than_is_allowed() {
    let ahead = |samples| {
        let mut scheduler = stream(DrawOrder::Random);
        attach(&mut scheduler, ONE, spec(SLOTS));
        scheduler.set_ahead(ONE, samples);
        assigned(&draw(&mut scheduler, &[ONE]))
            .get(&(1, 1))
            .copied()
    };
    assert_eq!(ahead(9), None, "a minibatch is drawn whole or not at all");
    assert_eq!(ahead(10), Some(10));
    assert_eq!(ahead(39), Some(30));
    assert_eq!(ahead(u64::MAX), Some(100), "never more than one epoch");
}

#[test]
fn a_minibatch_that_ends_its_epoch_is_drawn_ahead_though_it_is_short() {
    let mut scheduler = stream(DrawOrder::Random);
    let subset: RoaringBitmap = (0..7).collect();
    let seven = JobSpec {
        subset: Some(subset),
        ..spec(SLOTS)
    };
    attach(&mut scheduler, ONE, seven);
    scheduler.set_ahead(ONE, 7);
    assert_eq!(
        assigned(&draw(&mut scheduler, &[ONE])),
        [((1, 0), 7), ((1, 1), 7)].into()
    );
}

#[test]
fn a_job_at_a_border_takes_part_in_what_others_need_and_nothing_is_drawn_for_it() {
    for order in [
        DrawOrder::Random,
        DrawOrder::AscendingInCommon,
        DrawOrder::Ascending,
    ] {
        let mut scheduler = stream(order);
        attach(&mut scheduler, ONE, spec(SLOTS));
        assert_eq!(samples(&draw(&mut scheduler, &[ONE])), SAMPLES);
        attach(&mut scheduler, OTHER, spec(SLOTS));
        let drawn = draw(&mut scheduler, &[OTHER]);
        assert_eq!(samples(&drawn), SAMPLES, "{order:?}");
        assert_eq!(
            assigned(&drawn),
            [((1, 1), SAMPLES), ((2, 0), SAMPLES)].into()
        );
        // It begins the epoch, and all of it lies ready.
        scheduler.epoch_started(ONE, 0, 1);
        assert!(draw(&mut scheduler, &[]).is_empty());
    }
}

#[test]
fn a_job_that_pauses_at_the_first_ids_does_not_lead_in_ascending_order() {
    let mut scheduler = stream(DrawOrder::Ascending);
    let resume = Resume {
        epoch: 0,
        delivered: (0..50).collect(),
        ..Resume::default()
    };
    attach(&mut scheduler, ONE, spec(SLOTS));
    draw(&mut scheduler, &[ONE]);
    let halfway = JobSpec {
        resume: Some(resume),
        ..spec(SLOTS)
    };
    attach(&mut scheduler, OTHER, halfway);
    assert_eq!(
        assigned(&draw(&mut scheduler, &[OTHER])),
        [((2, 0), 50)].into()
    );
    // Now it does. The other one pauses at the first ids too, and takes part.
    scheduler.epoch_started(ONE, 0, 1);
    let drawn = draw(&mut scheduler, &[ONE, OTHER]);
    assert_eq!(samples(&drawn), SAMPLES);
    assert_eq!(
        assigned(&drawn),
        [((1, 1), SAMPLES), ((2, 1), SAMPLES)].into()
    );
}

#[test]
fn a_cohort_goes_on_as_soon_as_one_of_its_members_begins() {
    let mut scheduler = stream(DrawOrder::Random);
    let cohort = Some(Cohort {
        name: "c".into(),
        size: 2,
    });
    let member = JobSpec {
        cohort,
        ..spec(SLOTS)
    };
    attach(&mut scheduler, ONE, member.clone());
    attach(&mut scheduler, OTHER, member);
    assert_eq!(samples(&draw(&mut scheduler, &[ONE, OTHER])), SAMPLES);
    scheduler.epoch_started(OTHER, 0, 1);
    let drawn = draw(&mut scheduler, &[ONE, OTHER]);
    assert_eq!(
        assigned(&drawn),
        [((1, 1), SAMPLES), ((2, 1), SAMPLES)].into()
    );
    assert_eq!(samples(&drawn), SAMPLES);
}

#[test]
fn a_member_that_is_behind_is_served_for_the_one_that_waits_for_it() {
    let mut scheduler = stream(DrawOrder::Random);
    let cohort = Some(Cohort {
        name: "c".into(),
        size: 2,
    });
    let member = JobSpec {
        cohort,
        ..spec(SLOTS)
    };
    attach(&mut scheduler, ONE, member.clone());
    attach(&mut scheduler, OTHER, member);
    draw(&mut scheduler, &[ONE, OTHER]);
    scheduler.epoch_started(ONE, 0, 1);
    // The untaken deliveries of the other are taken back. So it is behind, and has not begun the epoch.
    (0..5).for_each(|_| drop(scheduler.next(FREE)));
    scheduler.taken(ONE, 0, 5);
    assert_eq!(scheduler.take_back(OTHER), [5]);
    let drawn = draw(&mut scheduler, &[ONE, OTHER]);
    assert_eq!(assigned(&drawn), [((1, 1), 50), ((2, 1), SAMPLES)].into());
}

#[test]
fn an_epoch_is_drawn_for_all_ranks_when_the_first_of_them_begins_it() {
    let mut scheduler = stream(DrawOrder::Random);
    let ranks = JobSpec {
        world_size: 2,
        ..spec(SLOTS)
    };
    attach(&mut scheduler, ONE, ranks);
    assert_eq!(samples(&draw(&mut scheduler, &[ONE])), SAMPLES);
    scheduler.epoch_started(ONE, 1, 1);
    assert_eq!(
        assigned(&draw(&mut scheduler, &[ONE])),
        [((1, 1), SAMPLES)].into()
    );
}

#[test]
fn a_rank_that_has_left_begins_no_epoch() {
    let mut scheduler = stream(DrawOrder::Random);
    let ranks = JobSpec {
        world_size: 2,
        ..spec(SLOTS)
    };
    attach(&mut scheduler, ONE, ranks);
    scheduler.epoch_started(ONE, 1, u64::MAX);
    assert_eq!(
        assigned(&draw(&mut scheduler, &[ONE])),
        [((1, 0), SAMPLES)].into()
    );
    scheduler.epoch_started(ONE, 0, 1);
    assert_eq!(
        assigned(&draw(&mut scheduler, &[ONE])),
        [((1, 1), SAMPLES)].into()
    );
}

#[test]
fn an_epoch_that_follows_one_that_was_left_early_is_begun() {
    let mut scheduler = stream(DrawOrder::Random);
    attach(&mut scheduler, ONE, spec(SLOTS));
    (0..3).for_each(|_| drop(scheduler.next(FREE)));
    scheduler.restart_epoch(ONE);
    assert_eq!(
        assigned(&draw(&mut scheduler, &[ONE])),
        [((1, 1), SAMPLES)].into()
    );
}

#[test]
fn a_state_of_which_nothing_is_left_leads_to_an_epoch_that_is_not_begun() {
    let mut scheduler = stream(DrawOrder::Random);
    let resume = Resume {
        epoch: 3,
        delivered: (0..SAMPLES).collect(),
        ..Resume::default()
    };
    attach(
        &mut scheduler,
        ONE,
        JobSpec {
            resume: Some(resume),
            ..spec(SLOTS)
        },
    );
    assert!(draw(&mut scheduler, &[ONE]).is_empty());
    scheduler.epoch_started(ONE, 0, 4);
    assert_eq!(
        assigned(&draw(&mut scheduler, &[ONE])),
        [((1, 4), SAMPLES)].into()
    );
}
