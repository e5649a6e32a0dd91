//! A job that joins the draws of another one: what is drawn from then on is for both, and the late job is given the rest
//! alone.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod specs;

use coprep_scheduler::{Config, DrawOrder, JobId, Scheduler};
use proptest::prelude::*;
use specs::spec;

const SLOTS: u32 = 4;
/// Number of minibatches of an epoch.
const MINIBATCHES: u32 = 100;
const DEPTH: u32 = 16;
const LOW_WATER: u32 = 2;
const FREE: u32 = 64;
const EARLY: JobId = JobId(1);
const LATE: JobId = JobId(2);

/// A minibatch that was drawn after the late job joined.
struct Drawn {
    /// Its jobs in their first epoch, in order.
    jobs: Vec<JobId>,
    ids: Vec<u32>,
}

/// Two jobs in their first epoch.
struct Pair {
    scheduler: Scheduler,
    /// Number of minibatches drawn before the late job joined.
    before: u32,
    /// The minibatches drawn since then.
    since: Vec<Drawn>,
}

impl Pair {
    /// The late job joins when the early one has taken `taken` minibatches and `queued` wait for it.
    fn new(taken: u32, queued: u32) -> Self {
        let mut pair = Pair {
            scheduler: Scheduler::new(Config {
                samples: MINIBATCHES * SLOTS,
                slots: SLOTS,
                depth: DEPTH,
                low_water: LOW_WATER,
                seed: 7,
                // The order of draws with replacement.
                order: DrawOrder::AscendingInCommon,
                is_told: false,
                windows: None,
            }),
            before: taken + queued,
            since: Vec::new(),
        };
        pair.attach(EARLY);
        for _ in 0..taken {
            pair.scheduler.next(FREE).unwrap();
            assert!(pair.take(EARLY));
        }
        for _ in 0..queued {
            pair.scheduler.next(FREE).unwrap();
        }
        pair.attach(LATE);
        pair
    }

    fn attach(&mut self, id: JobId) {
        self.scheduler.attach(id, spec(SLOTS)).unwrap();
        self.scheduler.set_ahead(id, 0);
    }

    fn queued(&self, id: JobId) -> u32 {
        self.scheduler.job(id).unwrap().queued(0)
    }

    /// Takes a minibatch, if one is queued.
    fn take(&mut self, id: JobId) -> bool {
        let has_one = self.queued(id) > 0;
        self.scheduler.taken(id, 0, u32::from(has_one));
        has_one
    }

    /// Draws minibatches, `most` at most. Returns the jobs that each is for.
    fn draw(&mut self, most: usize) -> Vec<Vec<JobId>> {
        let first = self.since.len();
        let drawn = std::iter::from_fn(|| self.scheduler.next(FREE)).take(most);
        self.since.extend(drawn.map(|minibatch| {
            // The early job also takes part with its next epoch, once it has been assigned all of this one.
            let targets = minibatch.targets.iter().filter(|target| target.epoch == 0);
            let mut jobs: Vec<JobId> = targets.map(|target| target.job).collect();
            jobs.sort_unstable();
            Drawn {
                jobs,
                ids: minibatch.samples.iter().map(|sample| sample.id).collect(),
            }
        }));
        let drawn = self.since[first..].iter();
        drawn.map(|minibatch| minibatch.jobs.clone()).collect()
    }
}

#[test]
fn a_job_at_its_low_water_mark_is_served_alone_while_the_other_has_no_room() {
    let mut pair = Pair::new(9, DEPTH);
    assert_eq!(pair.draw(usize::MAX), vec![vec![LATE]; 3]);
    assert_eq!((pair.queued(EARLY), pair.queued(LATE)), (DEPTH, 3));
    // Both take one, so both have room.
    assert!(pair.take(EARLY) && pair.take(LATE));
    assert_eq!(pair.draw(usize::MAX), [[EARLY, LATE]]);
    // The late job takes one before the early one does. It is at its low-water mark, and must not wait.
    assert!(pair.take(LATE));
    assert_eq!(pair.draw(usize::MAX), [[LATE]]);
    // From then on it has one more in reserve.
    assert!(pair.take(EARLY) && pair.take(EARLY) && pair.take(LATE));
    assert_eq!(pair.draw(usize::MAX), vec![vec![EARLY, LATE]; 2]);
    assert!(pair.take(LATE));
    assert!(pair.draw(usize::MAX).is_empty());
    let alone = pair.since.iter().filter(|drawn| drawn.jobs == [LATE]);
    let alone: Vec<u32> = alone.flat_map(|drawn| &drawn.ids).copied().collect();
    assert_eq!(alone, (0..4 * SLOTS).collect::<Vec<u32>>());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Holds whenever the late job joins, whichever of the two takes a minibatch next, and however late minibatches are
    /// drawn, as long as the two stay within a few steps of each other.
    #[test]
    fn all_that_is_drawn_after_a_job_has_joined_is_for_it_and_only_the_rest_is_drawn_twice(
        taken in 0..40u32,
        queued in 0..=DEPTH,
        steps in prop::collection::vec((any::<bool>(), 0usize..4), 1..400),
    ) {
        let mut pair = Pair::new(taken, queued);
        // Number of minibatches that the early job is ahead.
        let mut ahead = 0;
        for (is_early, most) in steps {
            if is_early && ahead < 4 {
                ahead += u32::from(pair.take(EARLY));
            } else if ahead > 0 {
                ahead -= u32::from(pair.take(LATE));
            }
            pair.draw(most);
        }
        // Both take what is left of their epochs.
        while pair.scheduler.job(LATE).unwrap().epoch == 0 {
            pair.draw(usize::MAX);
            pair.take(EARLY);
            pair.take(LATE);
        }
        let before = pair.before * SLOTS;
        for Drawn { jobs, ids } in &pair.since {
            prop_assert!(jobs.contains(&LATE), "{ids:?} are for the early job alone");
            let was_drawn_before = ids.iter().all(|&id| id < before);
            prop_assert_eq!(was_drawn_before, jobs.len() == 1, "{:?}", ids);
        }
        prop_assert_eq!(pair.since.len() as u32, MINIBATCHES);
    }
}
