//! The number of samples that may be prepared beyond the border of an epoch.
//!
//! A loader may be iterated once more, or never again, and nobody announces which. So nothing is prepared of an epoch
//! that no rank has begun, until its job has shown that its epochs follow each other at once. From then on the first
//! minibatches lie ready when an epoch begins. They are wasted if it never does, so they are at most a fiftieth of the
//! samples that the job was assigned before. A pause at a border, such as a validation pass, takes the right away
//! again.
//!
//! *At once* is relative to the job's own steps, because no fixed time tells a validation pass from the end of a slow
//! step.
//!
//! This does not bound a job that takes part in minibatches of others, for which nothing extra is prepared.
//!
//! This module is pure: time is an argument.

use std::time::{Duration, Instant};

/// Number of samples that a job must be assigned for each sample that may be prepared in vain.
const ASSIGNED_FOR_ONE: u64 = 50;
/// A border is crossed at once if that takes at most this many of the longest steps of the epoch. Some work is usual
/// there, such as a line of the log or a small checkpoint.
const STEPS: u32 = 4;

/// The way in which one rank crosses the borders of its epochs.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The epoch that it iterates, or iterated last.
    epoch: Option<u64>,
    /// Time when it last took something of that epoch.
    last_taken: Option<Instant>,
    /// Longest time between two takes in that epoch. The time until the first take does not count, because the
    /// coordinator causes it.
    longest_step: Duration,
    crosses_at_once: bool,
    /// Number of samples that it was assigned, in all epochs since it last left one early.
    assigned: u64,
}

impl Pace {
    /// Returns the epoch that the rank iterates or iterated last, or `None` if it has begun none.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Records that the rank begins `epoch`. The rank may say so more than once.
    pub(super) fn begin(&mut self, epoch: u64, now: Instant) {
        if self.epoch.is_some_and(|own| epoch <= own) {
            return;
        }
        // If an epoch was passed over, its border shows nothing.
        let follows = self.epoch.is_some_and(|own| epoch == own + 1);
        let pause = self.last_taken.map(|at| now.saturating_duration_since(at));
        let is_short = |pause| pause <= self.longest_step * STEPS;
        self.crosses_at_once = follows && pause.is_some_and(is_short);
        self.epoch = Some(epoch);
        self.last_taken = None;
        self.longest_step = Duration::ZERO;
    }

    /// Records that the rank took a part of a batch of `epoch`, or something else.
    ///
    /// Items that lie ready when it begins an epoch may be taken before its message that it has begun the epoch is
    /// read.
    pub(super) fn take(&mut self, epoch: Option<u64>, now: Instant) {
        if let Some(epoch) = epoch {
            self.begin(epoch, now);
        }
        if let Some(before) = self.last_taken.replace(now) {
            let step = now.saturating_duration_since(before);
            self.longest_step = self.longest_step.max(step);
        }
    }

    /// Records that the rank leaves its epoch early. Nothing shows that it will cross borders at once, so it must earn the
    /// right to samples ahead again.
    pub(super) fn leave(&mut self) {
        self.crosses_at_once = false;
        self.last_taken = None;
        self.assigned = 0;
    }

    /// Records that the rank is assigned samples.
    pub(super) fn assign(&mut self, samples: u32) {
        self.assigned += u64::from(samples);
    }

    /// Records that samples which the rank was assigned are taken back.
    pub(super) fn void(&mut self, samples: u32) {
        self.assigned = self.assigned.saturating_sub(samples.into());
    }
}

/// Returns how many samples of an epoch that no rank has begun may be prepared for the job of these ranks.
///
/// `round` is the number of samples in a batch for each rank, or in the whole epoch if that is less. The result is a
/// multiple of it, because a part of a round is of no use: a rank that has its first batch waits for the others.
pub(super) fn ahead<'a>(ranks: impl Iterator<Item = &'a Pace>, round: u64) -> u64 {
    let (mut all_cross_at_once, mut assigned) = (true, 0);
    for rank in ranks {
        all_cross_at_once &= rank.crosses_at_once;
        assigned += rank.assigned;
    }
    if all_cross_at_once {
        let most = assigned / ASSIGNED_FOR_ONE;
        most - most % round.max(1)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BATCH: u32 = 32;
    const STEP: Duration = Duration::from_millis(100);

    /// A job of one rank, and the time.
    struct PacedJob {
        pace: Pace,
        now: Instant,
        next: u64,
    }

    impl PacedJob {
        fn new() -> Self {
            PacedJob {
                pace: Pace::default(),
                now: Instant::now(),
                next: 0,
            }
        }

        /// Iterates an epoch, and takes its end.
        fn epoch(&mut self, batches: u32) {
            let epoch = self.next;
            self.pace.begin(epoch, self.now);
            self.next += 1;
            for _ in 0..batches {
                self.pace.assign(BATCH);
                self.pace.take(Some(epoch), self.now);
                self.now += STEP;
            }
            self.pace.take(None, self.now);
        }

        /// Returns how many minibatches of the next epoch may be prepared.
        fn ahead(&self) -> u64 {
            ahead([&self.pace].into_iter(), BATCH.into()) / u64::from(BATCH)
        }
    }

    #[test]
    fn nothing_is_prepared_beyond_the_first_epoch() {
        let mut job = PacedJob::new();
        assert_eq!(job.ahead(), 0);
        job.epoch(10_000);
        assert_eq!(job.ahead(), 0);
    }

    #[test]
    fn epochs_of_25_minibatches_that_follow_each_other_have_a_first_one_ready_from_the_second_border_on()
     {
        let mut job = PacedJob::new();
        for epochs in 1..10 {
            job.epoch(25);
            let expected = if epochs == 1 { 0 } else { epochs / 2 };
            assert_eq!(job.ahead(), expected, "after {epochs}");
        }
    }

    #[test]
    fn shorter_epochs_have_one_ready_when_it_is_a_fiftieth_of_what_was_assigned() {
        let mut job = PacedJob::new();
        let ahead = [(); 8].map(|()| {
            job.epoch(13);
            job.ahead()
        });
        assert_eq!(ahead, [0, 0, 0, 1, 1, 1, 1, 2]);
    }

    #[test]
    fn a_pause_at_a_border_takes_the_right_away_until_one_is_crossed_at_once() {
        let mut job = PacedJob::new();
        job.epoch(50);
        job.epoch(50);
        assert_eq!(job.ahead(), 2);
        job.now += STEP * 5;
        job.epoch(50);
        assert_eq!(job.ahead(), 0, "it validates");
        job.epoch(50);
        assert_eq!(job.ahead(), 4);
    }

    #[test]
    fn a_job_that_pauses_at_every_border_has_nothing_prepared_however_often() {
        let mut job = PacedJob::new();
        for _ in 0..20 {
            job.epoch(100);
            job.now += STEP * 20;
            assert_eq!(job.ahead(), 0);
        }
    }

    #[test]
    fn what_counts_as_a_pause_depends_on_the_steps() {
        for (step, is_pause) in [
            (Duration::from_millis(1), true),
            (Duration::from_secs(2), false),
        ] {
            let mut pace = Pace::default();
            let mut now = Instant::now();
            for epoch in 0..2 {
                pace.begin(epoch, now);
                for _ in 0..100 {
                    pace.assign(BATCH);
                    pace.take(Some(epoch), now);
                    now += step;
                }
                now += Duration::from_secs(5);
            }
            assert_eq!(ahead([&pace].into_iter(), BATCH.into()) == 0, is_pause);
        }
    }

    #[test]
    fn a_last_batch_whose_end_is_not_read_is_followed_at_once_all_the_same() {
        let mut job = PacedJob::new();
        job.pace.begin(0, job.now);
        for _ in 0..100 {
            job.pace.assign(BATCH);
            job.pace.take(Some(0), job.now);
            job.now += STEP;
        }
        job.pace.begin(1, job.now);
        assert_eq!(job.ahead(), 2);
    }

    #[test]
    fn a_first_batch_that_is_taken_before_its_epoch_is_said_to_begin_begins_it() {
        for (pause, ahead) in [(STEP, 4), (STEP * 50, 0)] {
            let mut job = PacedJob::new();
            job.epoch(100);
            job.epoch(100);
            job.now += pause;
            job.pace.take(Some(2), job.now);
            job.pace.begin(2, job.now + STEP);
            assert_eq!((job.ahead(), job.pace.epoch()), (ahead, Some(2)));
        }
    }

    #[test]
    fn a_rank_that_says_again_which_epoch_it_iterates_crosses_no_border() {
        let mut job = PacedJob::new();
        job.epoch(100);
        job.epoch(100);
        let before = job.ahead();
        job.pace.begin(1, job.now + STEP * 100);
        job.pace.begin(0, job.now + STEP * 100);
        assert_eq!(job.ahead(), before);
    }

    #[test]
    fn an_epoch_that_is_left_early_or_passed_over_shows_nothing() {
        let mut job = PacedJob::new();
        job.epoch(100);
        job.epoch(100);
        job.pace.leave();
        job.epoch(100);
        assert_eq!(job.ahead(), 0, "it was left early");
        job.epoch(100);
        assert_eq!(job.ahead(), 4, "of what it was assigned since");
        job.next += 1;
        job.epoch(100);
        assert_eq!(job.ahead(), 0, "another rank was further on");
    }

    #[test]
    fn all_ranks_must_cross_at_once_and_have_a_batch_each() {
        let [mut one, mut other] = [PacedJob::new(), PacedJob::new()];
        let both =
            |one: &PacedJob, other: &PacedJob| ahead([&one.pace, &other.pace].into_iter(), 2 * 32);
        one.epoch(25);
        other.epoch(25);
        one.epoch(25);
        other.now += STEP * 50;
        other.epoch(25);
        assert_eq!(both(&one, &other), 0);
        one.epoch(2);
        other.epoch(2);
        assert_eq!(both(&one, &other), 64);
        assert_eq!(ahead([&one.pace].into_iter(), 2 * 32), 0);
    }

    #[test]
    fn an_epoch_shorter_than_a_batch_counts_as_a_round() {
        let mut job = PacedJob::new();
        (0..50).for_each(|_| job.epoch(1));
        assert_eq!(ahead([&job.pace].into_iter(), 10), 30);
        assert_eq!(ahead([&job.pace].into_iter(), 33), 0);
    }

    #[derive(Clone, Debug)]
    enum Then {
        GoesOn,
        Pauses,
        LeavesEarly,
    }

    proptest! {
        /// Holds for every behaviour at the next border, also if the job never iterates again.
        #[test]
        fn no_more_than_a_fiftieth_is_ever_wasted(
            epochs in prop::collection::vec(
                (1u32..200, prop_oneof![Just(Then::GoesOn), Just(Then::Pauses), Just(Then::LeavesEarly)]), 1..30,
            ),
        ) {
            let mut job = PacedJob::new();
            let (mut assigned, mut wasted) = (0, 0);
            for (batches, then) in epochs {
                job.epoch(batches);
                assigned += u64::from(batches);
                prop_assert!((wasted + job.ahead()) * ASSIGNED_FOR_ONE <= assigned);
                match then {
                    Then::GoesOn => {}
                    Then::Pauses => job.now += STEP * 50,
                    Then::LeavesEarly => {
                        wasted += job.ahead();
                        job.pace.leave();
                    }
                }
            }
        }
    }
}
