//! Position of a consumer: its epoch, and the samples that it was given in it.
//!
//! The samples are a set of numbers: sample ids where an epoch is each sample once, and numbers of draws where samples
//! are drawn with replacement.
//!
//! This module is pure: it does no I/O and reads no clock.

use coprep_protocol::id_set;
use coprep_protocol::message::{CarriedOver, MOST_EPOCHS, ResumePoint};
use roaring::RoaringBitmap;

use crate::error::{Result, invalid, violation};

/// The position of a consumer.
///
/// The ranks of a job receive their batches in turn, and a rank that has been given all of an epoch does not know
/// whether the others have. Therefore it keeps the record of an epoch until it is given a batch of the next one.
pub(super) struct Position {
    epoch: u64,
    given: RoaringBitmap,
    /// Samples of the epoch that failed. The error of each is raised once.
    failed: RoaringBitmap,
    /// Failed samples that the next batch lacks. They count as given when that batch is given.
    missing: RoaringBitmap,
    /// The groups of samples that come first in the epoch, because it continues one that was left early.
    carried: Vec<CarriedOver>,
    /// Batches given in the epoch.
    batches: u64,
    has_other_ranks: bool,
    /// The previous epoch, until a batch of this one is given. Only kept if there are other ranks.
    previous: Option<ResumePoint>,
    phase: Phase,
    /// A later epoch that the coordinator is in already: another rank had finished ours when the coordinator was lost,
    /// or the state that is resumed was taken after the last batch of ours.
    passed: Option<u64>,
    /// `true` if the user resumes a state and no pass has begun since. If nothing of its epoch is left, the first pass is
    /// empty.
    is_resumed: bool,
}

/// The epoch that follows one that was left early.
pub(super) struct NextEpoch {
    pub(super) epoch: u64,
    /// `true` if it goes on with the batch that is in hand.
    pub(super) goes_on: bool,
    pub(super) carried: Vec<CarriedOver>,
}

impl NextEpoch {
    /// Returns an epoch of which nothing is in hand.
    pub(super) fn anew(epoch: u64) -> Self {
        NextEpoch {
            epoch,
            goes_on: false,
            carried: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// `epoch` has not begun or, after a resume, has not gone on.
    Before,
    /// The epoch is being iterated, and no batch of it was given since it began.
    Untouched,
    /// The epoch is being iterated, and batches of it were given.
    Within,
    /// All of the epoch was given, and its end has not been read.
    Complete,
}

impl Position {
    pub(super) fn new(resume: Option<&ResumePoint>, world_size: u32) -> Result<Self> {
        let (epoch, given, carried) = match resume {
            None => (0, RoaringBitmap::new(), Vec::new()),
            Some(resume) => (
                resume.epoch,
                read_ids(&resume.delivered)?,
                resume.carried.clone(),
            ),
        };
        if epoch >= MOST_EPOCHS {
            return Err(invalid(format!(
                "a state of epoch {epoch}: no job comes so far"
            )));
        }
        Ok(Position {
            epoch,
            given,
            failed: RoaringBitmap::new(),
            missing: RoaringBitmap::new(),
            carried,
            batches: 0,
            has_other_ranks: world_size > 1,
            previous: None,
            phase: Phase::Before,
            passed: None,
            is_resumed: resume.is_some(),
        })
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn batches(&self) -> u64 {
        self.batches
    }

    pub(super) fn carried(&self) -> &[CarriedOver] {
        &self.carried
    }

    pub(super) fn is_iterating(&self) -> bool {
        self.phase != Phase::Before
    }

    /// Returns `true` if the epoch is being iterated, and the user has got nothing of it since it began: no batch and no
    /// error.
    pub(super) fn is_untouched(&self) -> bool {
        self.phase == Phase::Untouched && self.failed.is_empty()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    /// Returns `true` if no sample of the epoch was given to the user.
    pub(super) fn is_fresh(&self) -> bool {
        self.given.is_empty() && self.failed.is_empty()
    }

    /// Returns `true` if the user was given nothing of the epoch but failures.
    pub(super) fn gave_none(&self) -> bool {
        self.given.is_subset(&self.failed)
    }

    /// Returns `true` if batches of the epoch were given since it began, and its end has not been read.
    pub(super) fn has_given(&self) -> bool {
        matches!(self.phase, Phase::Within | Phase::Complete)
    }

    /// Returns the epoch that the coordinator is in, if it is a later one.
    pub(super) fn passed(&self) -> Option<u64> {
        self.passed
    }

    /// Returns the epoch that is being iterated, or the next one.
    pub(super) fn next_epoch(&self) -> u64 {
        if self.is_complete() {
            self.epoch + 1
        } else {
            self.epoch
        }
    }

    /// Returns the epoch and the ids given in it. After the last batch these are all of them. A job that resumes there
    /// first has an empty rest, like the loop that it continues.
    pub(super) fn state(&self) -> (u64, RoaringBitmap) {
        (self.epoch, &self.given | &self.failed)
    }

    /// Returns the point to present to a coordinator, or `None` at the very beginning.
    pub(super) fn resume(&self) -> Option<ResumePoint> {
        if self.previous.is_some() {
            return self.previous.clone();
        }
        if self.has_other_ranks {
            return Some(self.presented());
        }
        if self.is_complete() {
            // The next epoch is presented, so that the coordinator need not find out again that nothing is left of this
            // one.
            return Some(ResumePoint {
                epoch: self.epoch + 1,
                delivered: id_set::serialize(&RoaringBitmap::new()),
                batches: self.batches,
                is_done: false,
                skipped: Vec::new(),
                carried: Vec::new(),
            });
        }
        (self.epoch > 0 || !self.given.is_empty()).then(|| self.presented())
    }

    fn presented(&self) -> ResumePoint {
        ResumePoint {
            epoch: self.epoch,
            delivered: id_set::serialize(&self.given),
            batches: self.batches,
            is_done: self.is_complete(),
            skipped: Vec::new(),
            carried: self.carried.clone(),
        }
    }

    /// Begins the epoch, or goes on with it. Returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.phase = Phase::Untouched;
        self.epoch
    }

    /// Records the epoch that the coordinator is in.
    ///
    /// # Errors
    /// When this job cannot be in that epoch.
    pub(super) fn attached(&mut self, epoch: u64) -> Result<()> {
        check_number(epoch)?;
        // The samples of the batch in hand come again, in the same batch or in another.
        self.missing.clear();
        if self.is_complete() {
            // This rank goes on to the next epoch, whatever the other ranks have still to receive of this one.
            self.passed = Some(epoch.max(self.epoch + 1));
            return Ok(());
        }
        // The other ranks have still to receive the rest of the epoch that this rank is done with.
        if self
            .previous
            .as_ref()
            .is_some_and(|previous| previous.epoch == epoch)
        {
            return Ok(());
        }
        match (epoch.cmp(&self.epoch), self.is_iterating()) {
            (std::cmp::Ordering::Equal, _) => {}
            (std::cmp::Ordering::Greater, true) => self.passed = Some(epoch),
            // Nothing was left of the epoch: the user's loop over it has to end, instead of beginning the next epoch.
            (std::cmp::Ordering::Greater, false) if self.is_resumed && !self.given.is_empty() => {
                self.passed = Some(epoch);
            }
            (std::cmp::Ordering::Greater, false) => self.jump(epoch),
            (std::cmp::Ordering::Less, _) => {
                return Err(violation(format!(
                    "it is in epoch {epoch}, and this job is in epoch {}",
                    self.epoch
                )));
            }
        }
        Ok(())
    }

    /// Makes the epoch that follows one that was left early the next one.
    pub(super) fn go_on(&mut self, next: NextEpoch) {
        let in_hand = std::mem::take(&mut self.missing);
        self.jump(next.epoch);
        self.carried = next.carried;
        if next.goes_on {
            // The user knows of the samples that the batch in hand lacks.
            self.failed = in_hand.clone();
            self.missing = in_hand;
        }
    }

    /// Makes another epoch the next one. No sample of it was given.
    pub(super) fn jump(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.given.clear();
        self.failed.clear();
        self.missing.clear();
        self.carried.clear();
        self.batches = 0;
        self.previous = None;
        self.phase = Phase::Before;
        self.passed = None;
        self.is_resumed = false;
    }

    /// Ends the epoch.
    pub(super) fn finish(&mut self) {
        let previous = (self.has_other_ranks && self.is_complete()).then(|| self.presented());
        let next = self.passed.unwrap_or(self.epoch + 1);
        self.jump(next);
        self.previous = previous;
    }

    /// Ends the epoch if the coordinator is in a later one. Returns whether it did.
    pub(super) fn finish_if_passed(&mut self) -> bool {
        let is_passed = self.passed.is_some() && self.is_iterating();
        if is_passed {
            self.finish();
        }
        is_passed
    }

    /// Handles the end of `epoch`. Returns whether it is the epoch being iterated.
    pub(super) fn end(&mut self, epoch: u64) -> Result<bool> {
        // The end of an earlier epoch comes if that epoch was left after its last batch.
        if epoch < self.epoch {
            return Ok(false);
        }
        self.check(epoch)?;
        self.finish();
        Ok(true)
    }

    /// Fails unless a part of `epoch` may come at this point.
    pub(super) fn check(&self, epoch: u64) -> Result<()> {
        if epoch == self.epoch {
            return Ok(());
        }
        Err(violation(format!(
            "an item of epoch {epoch} within epoch {}",
            self.epoch
        )))
    }

    /// Records a failed sample, which the next batch lacks. Returns `false` if the user already knows of it, because the
    /// connection was lost before the batch was complete.
    pub(super) fn fail(&mut self, number: u32) -> bool {
        self.missing.insert(number);
        self.failed.insert(number)
    }

    /// Records that a batch is handed to the user.
    pub(super) fn give(&mut self, numbers: &[i64], ends_epoch: bool) -> Result<()> {
        for &number in numbers {
            let number = u32::try_from(number)
                .map_err(|_| violation(format!("{number} is no sample id")))?;
            self.given.insert(number);
        }
        self.given |= std::mem::take(&mut self.missing);
        self.batches += 1;
        self.previous = None;
        self.is_resumed = false;
        self.phase = if ends_epoch {
            Phase::Complete
        } else {
            Phase::Within
        };
        Ok(())
    }
}

/// Fails if the coordinator names an epoch that no job reaches.
pub(super) fn check_number(epoch: u64) -> Result<()> {
    if epoch < MOST_EPOCHS {
        Ok(())
    } else {
        Err(violation(format!("it is in epoch {epoch}")))
    }
}

/// Reads a set in Roaring's own format, which is validated meanwhile.
pub(super) fn read_ids(bytes: &[u8]) -> Result<RoaringBitmap> {
    id_set::deserialize(bytes).map_err(|e| invalid("malformed set of samples").because(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a rank of two that iterates epoch 0 and was given `batches` of three batches of two samples each.
    fn rank(batches: i64) -> Position {
        let mut position = Position::new(None, 2).unwrap();
        position.begin();
        for batch in 0..batches {
            position
                .give(&[2 * batch, 2 * batch + 1], batch == 2)
                .unwrap();
        }
        position
    }

    /// A point that a rank presents to a coordinator.
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Presented {
        epoch: u64,
        samples: u64,
        batches: u64,
        is_done: bool,
    }

    /// Returns a point within `epoch`.
    fn within(epoch: u64, samples: u64, batches: u64) -> Presented {
        Presented {
            epoch,
            samples,
            batches,
            is_done: false,
        }
    }

    /// The end of epoch 0, in which a rank is given three batches of two samples each.
    const END: Presented = Presented {
        epoch: 0,
        samples: 6,
        batches: 3,
        is_done: true,
    };

    fn presents(position: &Position) -> Presented {
        let resume = position.resume().unwrap();
        Presented {
            epoch: resume.epoch,
            samples: read_ids(&resume.delivered).unwrap().len(),
            batches: resume.batches,
            is_done: resume.is_done,
        }
    }

    #[test]
    fn a_rank_presents_its_epoch_until_it_is_given_something_of_the_next() {
        assert_eq!(presents(&rank(0)), within(0, 0, 0));
        assert_eq!(presents(&rank(2)), within(0, 4, 2));
        let mut position = rank(3);
        assert_eq!(presents(&position), END, "its end is not read");
        assert!(position.end(0).unwrap());
        assert_eq!(presents(&position), END, "its end is read");
        assert_eq!(position.begin(), 1);
        assert_eq!(presents(&position), END, "the next one is begun");
        position.give(&[5], false).unwrap();
        assert_eq!(presents(&position), within(1, 1, 1));
    }

    #[test]
    fn a_rank_that_is_done_goes_to_the_next_epoch_wherever_the_others_are() {
        for theirs in [0, 1] {
            let mut position = rank(3);
            position.attached(theirs).unwrap();
            assert!(position.finish_if_passed());
            assert_eq!((position.begin(), position.batches()), (1, 0));
            // The coordinator ended again before a batch was given.
            position.attached(theirs).unwrap();
            assert!(!position.finish_if_passed() && position.is_iterating());
            assert_eq!(presents(&position), END);
        }
    }

    #[test]
    fn a_rank_that_is_behind_goes_on_where_it_was() {
        for batches in 0..3 {
            let mut position = rank(batches);
            position.attached(0).unwrap();
            assert!(!position.finish_if_passed() && position.is_iterating());
            assert_eq!(position.passed(), None);
            assert_eq!((position.epoch(), position.batches()), (0, batches as u64));
        }
    }

    #[test]
    fn a_rank_that_leaves_hears_that_the_others_have_left() {
        let mut position = rank(1);
        position.attached(1).unwrap();
        assert_eq!(position.passed(), Some(1));
        position.jump(1);
        assert_eq!(presents(&position), within(1, 0, 0));
    }

    #[test]
    fn a_state_is_of_the_epoch_until_its_end_is_read() {
        let mut position = rank(3);
        let (epoch, given) = position.state();
        assert_eq!((epoch, given.len()), (0, 6));
        assert!(position.end(0).unwrap());
        let (epoch, given) = position.state();
        assert_eq!((epoch, given.len()), (1, 0));
        let (epoch, given) = rank(2).state();
        assert_eq!((epoch, given.len()), (0, 4));
    }

    #[test]
    fn a_sample_that_failed_is_given_with_its_batch() {
        let mut position = rank(1);
        assert!(position.fail(9));
        assert_eq!(presents(&position), within(0, 2, 1));
        assert!(position.state().1.contains(9), "it need not fail again");
        // The connection is lost, and the sample fails again.
        position.attached(0).unwrap();
        assert!(!position.fail(9), "the user has heard of it");
        position.give(&[2], false).unwrap();
        assert_eq!(presents(&position), within(0, 4, 2));
    }

    #[test]
    fn an_epoch_that_the_user_has_an_error_of_is_not_untouched() {
        let mut position = Position::new(None, 1).unwrap();
        position.begin();
        assert!(position.is_untouched());
        assert!(position.fail(3));
        assert!(!position.is_untouched());
        position.jump(1);
        position.begin();
        assert!(position.is_untouched(), "the error was of another epoch");
    }

    #[test]
    fn a_sample_that_failed_is_not_given_with_a_batch_of_another_connection() {
        let mut position = rank(1);
        assert!(position.fail(9));
        position.attached(0).unwrap();
        position.give(&[2, 3], false).unwrap();
        assert_eq!(presents(&position), within(0, 4, 2));
        assert!(!position.fail(9));
        position.give(&[4], false).unwrap();
        assert_eq!(presents(&position), within(0, 6, 3));
    }

    fn state(epoch: u64, ids: std::ops::Range<u32>) -> ResumePoint {
        ResumePoint {
            epoch,
            delivered: id_set::serialize(&ids.collect()),
            batches: 0,
            is_done: false,
            skipped: Vec::new(),
            carried: Vec::new(),
        }
    }

    #[test]
    fn what_comes_first_is_presented_with_the_epoch_and_no_other() {
        let carried = vec![CarriedOver {
            epoch: 0,
            before: 2,
            ids: id_set::serialize(&(2..6).collect()),
        }];
        let mut position = rank(1);
        assert!(position.fail(9));
        position.go_on(NextEpoch {
            epoch: 1,
            goes_on: true,
            carried: carried.clone(),
        });
        assert_eq!(position.resume().unwrap().carried, carried);
        position.begin();
        position.give(&[2], false).unwrap();
        assert_eq!(
            presents(&position),
            within(1, 2, 1),
            "with the one that failed"
        );
        assert_eq!(position.resume().unwrap().carried, carried);
        position.go_on(NextEpoch::anew(2));
        assert_eq!(position.resume().unwrap().carried, []);
    }

    #[test]
    fn after_the_last_batch_the_rest_is_empty_and_the_next_epoch_is_whole() {
        let mut position = Position::new(None, 1).expect("no state");
        position.begin();
        position.give(&[0, 1, 2], true).expect("ids");
        let (epoch, given) = position.state();
        assert_eq!((epoch, given.len()), (0, 3));
        // A coordinator that is found anew is asked for the next epoch.
        assert_eq!(position.resume().map(|r| r.epoch), Some(1));

        let resume = state(epoch, 0..3);
        let mut resumed = Position::new(Some(&resume), 1).expect("a state");
        resumed.attached(1).expect("nothing was left of epoch 0");
        assert_eq!(
            resumed.state(),
            (0, given),
            "nothing has changed for the user"
        );
        resumed.begin();
        assert!(resumed.finish_if_passed(), "the first pass is empty");
        assert_eq!(resumed.state(), (1, RoaringBitmap::new()));
        resumed.begin();
        assert!(!resumed.finish_if_passed(), "the second one is not");
    }

    #[test]
    fn a_rank_that_is_told_late_that_nothing_was_left_ends_its_pass() {
        let mut rank = Position::new(Some(&state(0, 0..3)), 2).expect("a state");
        rank.attached(0).expect("the other ranks are not there yet");
        rank.begin();
        assert_eq!(rank.end(0).ok(), Some(true));
        assert_eq!(rank.state(), (1, RoaringBitmap::new()));
    }

    #[test]
    fn an_epoch_that_no_job_comes_to_is_refused() {
        for epoch in [MOST_EPOCHS, u64::MAX] {
            assert!(Position::new(Some(&state(epoch, 0..3)), 1).is_err());
            let mut position = Position::new(None, 1).expect("no state");
            assert!(position.attached(epoch).is_err());
            assert!(check_number(epoch).is_err());
        }
    }
}
