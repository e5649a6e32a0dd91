//! A job returns without ranks that have left it. Each remaining rank takes the steps of a whole epoch.

use std::collections::BTreeSet;

use coprep_scheduler::{Behind, Config, DrawOrder, JobId, JobSpec, Resume, Scheduler};
use proptest::prelude::*;

const JOB: JobId = JobId(1);

/// Assigns the rest of epoch 0, which every rank takes at once. Returns the ids of each batch of rank 0.
fn rest_of_rank_0(scheduler: &mut Scheduler) -> Vec<Vec<u32>> {
    let (mut batches, mut batch) = (Vec::new(), Vec::new());
    while scheduler.job(JOB).expect("attached").epoch == 0 {
        let minibatch = scheduler.next(1000).expect("all is taken at once");
        let ids: Vec<u32> = minibatch.samples.iter().map(|draw| draw.id).collect();
        for delivery in minibatch.deliveries {
            scheduler.taken(JOB, delivery.rank, 1);
            if delivery.rank != 0 {
                continue;
            }
            let (start, len) = (delivery.start as usize, delivery.len as usize);
            batch.extend(&ids[start..start + len]);
            if delivery.ends_batch {
                batches.push(std::mem::take(&mut batch));
            }
        }
    }
    batches
}

fn scheduler(samples: u32, batch_size: u32, order: DrawOrder) -> Scheduler {
    Scheduler::new(Config {
        samples,
        slots: batch_size,
        depth: 16,
        low_water: 2,
        seed: 7,
        order,
        is_told: false,
        windows: None,
    })
}

fn spec(batch_size: u32, ranks: u32, drop_last: bool) -> JobSpec {
    JobSpec {
        batch_size,
        world_size: ranks,
        drop_last,
        subset: None,
        resume: None,
        cohort: None,
        skip_bad: false,
    }
}

proptest! {
    #[test]
    fn the_ranks_that_are_left_take_as_many_steps(
        samples in 1u32..400, batch_size in 1u32..12, ranks in 2u32..5, drop_last: bool, is_random: bool,
        taken in 0usize..40, left_at in 0usize..40,
    ) {
        let order = if is_random { DrawOrder::Random } else { DrawOrder::Ascending };
        let mut whole = scheduler(samples, batch_size, order);
        prop_assume!(whole.attach(JOB, spec(batch_size, ranks, drop_last)).is_ok());
        let steps = rest_of_rank_0(&mut whole);
        let taken = taken % steps.len();
        // The other ranks left when they had been given no more than this. None of their samples is a sample of rank 0.
        let left_at = left_at.min(taken);
        let given: BTreeSet<u32> = steps[..taken].iter().flatten().copied().collect();
        let all_of_rank_0: BTreeSet<u32> = steps.iter().flatten().copied().collect();
        let others = (0..samples).filter(|id| !all_of_rank_0.contains(id));
        let of_others = others.take(left_at * (batch_size * (ranks - 1)) as usize);
        let resume = Resume {
            epoch: 0,
            delivered: given.iter().copied().chain(of_others).collect(),
            ..Resume::default()
        };
        let delivered = resume.delivered.clone();
        let missed = (taken - left_at) as u64 * u64::from(ranks - 1);
        let behind = Behind {
            batches: &[],
            others_are_done: false,
            forfeited: missed * u64::from(batch_size),
        };
        let resumed = JobSpec { resume: Some(resume), ..spec(batch_size, ranks, drop_last) };
        let mut again = scheduler(samples, batch_size, order);
        prop_assert!(again.attach_behind(JOB, resumed, behind).is_ok());
        let rest = rest_of_rank_0(&mut again);
        let ids: Vec<u32> = rest.iter().flatten().copied().collect();
        prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        prop_assert!(ids.iter().all(|&id| !delivered.contains(id)));
        if samples.is_multiple_of(batch_size * ranks) {
            prop_assert_eq!(taken + rest.len(), steps.len());
        } else {
            // The last batches of the other ranks may have been shorter than the batches assumed for them.
            prop_assert!((taken + rest.len()).abs_diff(steps.len()) <= 1);
        }
    }
}
