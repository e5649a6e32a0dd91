//! Cuts a job's samples into batches and assigns them to its ranks.
//!
//! Batches of `batch` samples go to the ranks one after the other. A *round* is one batch for every rank. There are two
//! promises: **all ranks get equally many batches** of an epoch, and **every sample is assigned exactly once**, without
//! padding. So the rest that does not fill a round is spread over the ranks. With `n` samples left of the epoch at the
//! start of a round, `W` ranks and batches of `b`:
//!
//! | `n` | the round |
//! |---|---|
//! | `n >= W*b`, and it leaves 0 or at least `W` | `W` full batches |
//! | `W <= n < W*b` | the `n` samples in `W` batches whose sizes differ by at most 1: the last round |
//! | `W*b < n < W*b + W` | likewise in `2W` batches; this round assigns the first `W` |
//!
//! With `drop_last`, `n < W*b` ends the epoch and the `n` samples are not assigned. The same holds for batches of one
//! sample on several ranks, where a rest cannot be spread. [`RankBatcher::can_assign`] tells so before a job is
//! admitted.
//!
//! A job whose ranks come back from different steps begins with a round for each step that some of them lack: the rest
//! of the round that was interrupted, assigned by the same table. The lowest step comes first. So each batch has the
//! samples that it would have had, and no rank is given an id lower than the ids that it had before.
//!
//! A round begins with any rank, as the caller says, and goes on with the ranks after it.
//!
//! **Invariant.** A round is decided from the samples that are left when it starts, and never earlier. Therefore a
//! sample that cannot be read may leave the epoch between two rounds ([`RankBatcher::can_lose_one`] says when).

use std::sync::Arc;

use crate::Behind;

/// Samples that go to one rank, in the order in which they were drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankSlice {
    pub(crate) rank: u32,
    pub(crate) len: u32,
    /// Number of batches that this rank got in this epoch before this one.
    pub(crate) step: u64,
    pub(crate) ends_batch: bool,
    pub(crate) ends_epoch: bool,
    /// `true` if it belongs to the end of the epoch: to the last round, or to batches that are not full.
    pub(crate) is_of_end: bool,
}

/// A job's position in its epoch's batches.
#[derive(Debug, Clone)]
pub(crate) struct RankBatcher {
    batch: u32,
    ranks: u32,
    drop_last: bool,
    /// For each step that some ranks lack: these ranks, which were given less than others before the job was attached.
    /// They are assigned first.
    owed: Arc<[Box<[u32]>]>,
    /// Number of these steps whose round has begun.
    caught_up: usize,
    /// `true` if this epoch assigns nothing but the owed batches.
    only_owed: bool,
    /// Number of rounds begun in this epoch, including the rounds of owed batches.
    rounds: u64,
    /// The ranks of this round's batches, in order. Shared, because a job keeps a copy of its `RankBatcher` for each
    /// minibatch that may be taken back.
    round: Arc<[u32]>,
    /// Index in `round` of the batch that is being assigned, or is next. It is past the end between rounds.
    next: usize,
    /// Number of samples that the current batch still lacks; 0 between batches.
    missing: u32,
    /// Batches of this round have `base` samples, and the first `larger` of them have one more.
    base: u32,
    larger: u64,
}

impl RankBatcher {
    pub(crate) fn new(batch: u32, ranks: u32, drop_last: bool) -> Self {
        RankBatcher {
            batch,
            ranks,
            drop_last,
            owed: Arc::default(),
            caught_up: 0,
            only_owed: false,
            rounds: 0,
            round: Arc::default(),
            next: 0,
            missing: 0,
            base: 0,
            larger: 0,
        }
    }

    /// Sets the batches that ranks are behind. They are assigned before the epoch's rounds, with the sizes of the
    /// rounds that were interrupted. If the other ranks were given all of the epoch, no further rounds follow: any
    /// sample beyond the owed batches was not readable before.
    pub(crate) fn owe(&mut self, behind: Behind<'_>) {
        let batches = behind.batches;
        self.only_owed = behind.others_are_done;
        let most = batches.iter().copied().max().unwrap_or(0);
        let of_round = |round| {
            (0u32..)
                .zip(batches)
                .filter(move |(_, n)| **n > round)
                .map(|(rank, _)| rank)
        };
        // From the last round down, so that the ranks that lack most catch up with the others first.
        self.owed = (0..most)
            .rev()
            .map(|round| of_round(round).collect())
            .collect();
    }

    /// Returns the ranks that are behind, for each step that they still lack.
    fn owed(&self) -> &[Box<[u32]>] {
        &self.owed[self.caught_up..]
    }

    /// Returns the number of owed batches that are not begun.
    fn owed_batches(&self) -> u64 {
        self.owed().iter().map(|ranks| ranks.len() as u64).sum()
    }

    /// Returns `true` if `n` samples can be assigned as an epoch, or as the rest of one.
    pub(crate) fn can_assign(&self, n: u64) -> bool {
        let (ranks, owed) = (u64::from(self.ranks), self.owed_batches());
        // Each owed batch needs at least one sample.
        let Some(later) = n.checked_sub(owed) else {
            return self.drop_last;
        };
        self.drop_last
            || self.only_owed
            || if self.batch == 1 {
                later.is_multiple_of(ranks)
            } else {
                owed > 0 || n == 0 || n >= ranks
            }
    }

    pub(crate) fn begin_epoch(&mut self) {
        *self = RankBatcher::new(self.batch, self.ranks, self.drop_last);
    }

    /// Continues in the next epoch, in which `steps` rounds of this one do not count. Returns `false`, and changes
    /// nothing, if the current round has the sizes of an epoch's end.
    pub(crate) fn leave_epoch(&mut self, steps: u64) -> bool {
        let is_between = self.next == self.round.len();
        let can_leave = (is_between || self.base == self.batch) && steps <= self.rounds;
        if can_leave {
            self.rounds -= steps;
        }
        can_leave
    }

    /// Returns the rank with which a round begins so that jobs with as many ranks and batches of the same size assign
    /// one minibatch to one rank, wherever in their epochs they are. `drawn` is the number of samples that were drawn
    /// for all jobs before the minibatch.
    pub(crate) fn aligned(&self, drawn: u64) -> u32 {
        (drawn / u64::from(self.batch) % u64::from(self.ranks)) as u32
    }

    /// Returns the number of rounds begun in this epoch.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Returns the rank that gets the next sample. If a round begins with this sample, it begins with rank `first`.
    pub(crate) fn next_rank(&self, first: u32) -> u32 {
        let owed = || self.owed().first().and_then(|ranks| ranks.first());
        self.round
            .get(self.next)
            .or_else(owed)
            .copied()
            .unwrap_or(first % self.ranks)
    }

    /// Returns how many samples the epoch will still assign when `n` are left: all except the dropped ones.
    pub(crate) fn deliverable(&self, n: u64) -> u64 {
        let later = n - self.promised();
        let owed = self.owed_batches() * u64::from(self.batch);
        let later = match self.drops() {
            _ if self.only_owed => later.min(owed),
            true if later < owed => 0,
            true => later - (later - owed) % self.full_round(),
            false if owed == 0 && later < u64::from(self.ranks) => 0,
            false => later,
        };
        self.promised() + later
    }

    /// Returns `true` if one of the `n` samples left may disappear and every promise is kept. No batch of this round
    /// gets shorter, the number of rounds stays as an earlier `ends_epoch` announced it, and the rest can still be
    /// assigned evenly.
    pub(crate) fn can_lose_one(&self, n: u64) -> bool {
        let later = n - self.promised();
        if self.owed().is_empty() {
            later > 0 && self.goes_on(later) == self.goes_on(later - 1)
        } else {
            later > self.least_owed()
        }
    }

    /// Returns the smallest number of samples that serves every rank that is behind and leaves a round that tells the
    /// others of the end of their epoch.
    fn least_owed(&self) -> u64 {
        let batches = self.owed_batches();
        let full = batches * u64::from(self.batch);
        match (self.only_owed, self.drops()) {
            (true, false) => batches,
            (true, true) => full,
            (false, _) => full + self.least_round(),
        }
    }

    /// Cuts the next `count` samples into slices. `n` samples are left before. `count` is at most
    /// [`RankBatcher::deliverable`]. Rounds that begin with one of these samples begin with rank `first`.
    pub(crate) fn assign(&mut self, mut n: u64, count: u32, first: u32) -> Vec<RankSlice> {
        let mut slices = Vec::new();
        let mut rest = count;
        while rest > 0 {
            if self.missing == 0 {
                self.begin_batch(n, first);
            }
            let len = rest.min(self.missing);
            rest -= len;
            n -= u64::from(len);
            slices.push(self.cut(n, len));
        }
        slices
    }

    fn cut(&mut self, left: u64, len: u32) -> RankSlice {
        self.missing -= len;
        let ends_batch = self.missing == 0;
        let (rank, step) = (self.round[self.next], self.rounds - 1);
        self.next += usize::from(ends_batch);
        let is_owed = || self.owed().iter().any(|ranks| ranks.contains(&rank));
        let goes_on = self.goes_on(left - self.promised());
        let comes_again = self.round[self.next..].contains(&rank) || is_owed() || goes_on;
        RankSlice {
            rank,
            len,
            step,
            ends_batch,
            ends_epoch: ends_batch && !comes_again,
            is_of_end: !goes_on || self.base < self.batch,
        }
    }

    fn begin_batch(&mut self, n: u64, first: u32) {
        if self.next == self.round.len() {
            self.begin_round(n, first);
        }
        self.missing = self.size(self.next);
    }

    fn begin_round(&mut self, n: u64, first: u32) {
        // A batch has at least one sample, so a round has at most `n` batches.
        let most = usize::try_from(n).unwrap_or(usize::MAX);
        let owed = self.owed().first();
        let is_owed = owed.is_some();
        self.round = match owed {
            Some(ranks) => ranks.iter().copied().take(most).collect(),
            None => (0..self.ranks)
                .map(|after| (first % self.ranks + after) % self.ranks)
                .take(most)
                .collect(),
        };
        self.caught_up += usize::from(is_owed);
        let (owed, batches) = (self.owed_batches(), self.round.len() as u64);
        let full = batches * u64::from(self.batch);
        // Each of the batches that follow needs at least one sample.
        let following = match owed {
            0 if self.only_owed => 0,
            0 => u64::from(self.ranks),
            owed => owed,
        };
        // The rows of the module's table: full batches, a last round, or a rest spread over two rounds.
        let spread_over = match n {
            n if n >= full
                && (self.drops() || n >= full + following || (owed == 0 && n == full)) =>
            {
                None
            }
            n if n < full => Some(batches + owed),
            _ => Some(batches + following),
        };
        let (base, larger) = spread_over.map_or((u64::from(self.batch), 0), |k| (n / k, n % k));
        (self.base, self.larger) = (base as u32, larger);
        self.rounds += 1;
        self.next = 0;
    }

    fn size(&self, batch: usize) -> u32 {
        self.base + u32::from((batch as u64) < self.larger)
    }

    /// Returns how many samples the current round has still to assign.
    fn promised(&self) -> u64 {
        let (from, batches) = (self.next + usize::from(self.missing > 0), self.round.len());
        let larger = self.larger.min(batches as u64).saturating_sub(from as u64);
        u64::from(self.missing)
            + batches.saturating_sub(from) as u64 * u64::from(self.base)
            + larger
    }

    /// Returns `true` if `left` samples after a round are enough for another one.
    pub(crate) fn goes_on(&self, left: u64) -> bool {
        !self.only_owed && left >= self.least_round()
    }

    fn least_round(&self) -> u64 {
        if self.drops() {
            self.full_round()
        } else {
            u64::from(self.ranks)
        }
    }

    fn drops(&self) -> bool {
        self.drop_last || (self.batch == 1 && self.ranks > 1)
    }

    fn full_round(&self) -> u64 {
        u64::from(self.ranks) * u64::from(self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Assigns a whole epoch in minibatches of `slots`.
    fn epoch(batcher: &mut RankBatcher, n: u64, slots: u32) -> Vec<RankSlice> {
        epoch_from(batcher, n, slots, |_| 0)
    }

    /// Does the same with rounds that begin with another rank, for each minibatch.
    fn epoch_from(
        batcher: &mut RankBatcher,
        n: u64,
        slots: u32,
        first: impl Fn(u64) -> u32,
    ) -> Vec<RankSlice> {
        let (mut left, mut all) = (n, Vec::new());
        while batcher.deliverable(left) > 0 {
            let count = batcher.deliverable(left).min(u64::from(slots)) as u32;
            all.extend(batcher.assign(left, count, first(n - left)));
            left -= u64::from(count);
        }
        all
    }

    fn batches_of(slices: &[RankSlice], rank: u32) -> Vec<u32> {
        let mut sizes = vec![0];
        for slice in slices.iter().filter(|s| s.rank == rank) {
            if let Some(last) = sizes.last_mut() {
                *last += slice.len;
            }
            if slice.ends_batch {
                sizes.push(0);
            }
        }
        assert_eq!(sizes.pop(), Some(0), "the epoch ends with a whole batch");
        sizes
    }

    proptest! {
        #[test]
        fn ranks_get_equally_many_batches_and_every_sample_once(
            n in 1u64..600, batch in 1u32..20, ranks in 1u32..9, slots in 1u32..40, drop_last: bool, first: [u32; 8],
        ) {
            let mut batcher = RankBatcher::new(batch, ranks, drop_last);
            prop_assume!(batcher.can_assign(n));
            let slices = epoch_from(&mut batcher, n, slots, |drawn| first[drawn as usize % 8]);
            let assigned: u64 = slices.iter().map(|s| u64::from(s.len)).sum();
            let full = u64::from(batch * ranks);
            prop_assert_eq!(assigned, if drop_last { n - n % full } else { n });
            let steps: Vec<usize> = (0..ranks).map(|r| batches_of(&slices, r).len()).collect();
            prop_assert!(steps.iter().all(|&s| s == steps[0]), "{:?}", steps);
        }

        #[test]
        fn batches_are_full_but_in_the_last_two_rounds(
            n in 1u64..600, batch in 2u32..20, ranks in 1u32..9, slots in 1u32..40,
        ) {
            let mut batcher = RankBatcher::new(batch, ranks, false);
            prop_assume!(batcher.can_assign(n));
            let slices = epoch(&mut batcher, n, slots);
            let all: Vec<Vec<u32>> = (0..ranks).map(|r| batches_of(&slices, r)).collect();
            let short: Vec<(usize, u32)> = all.iter().flat_map(|sizes| {
                sizes.iter().copied().enumerate().filter(|&(_, size)| size < batch)
            }).collect();
            let rounds = all[0].len();
            prop_assert!(short.iter().all(|&(at, size)| at + 2 >= rounds && size > 0));
            let sizes = short.iter().map(|&(_, size)| size);
            prop_assert!(sizes.clone().max().unwrap_or(0) - sizes.min().unwrap_or(0) <= 1);
        }

        #[test]
        fn the_last_batch_of_every_rank_says_so(
            n in 1u64..300, batch in 1u32..20, ranks in 1u32..6, slots in 1u32..40, drop_last: bool,
        ) {
            let mut batcher = RankBatcher::new(batch, ranks, drop_last);
            prop_assume!(batcher.can_assign(n) && batcher.deliverable(n) > 0);
            let slices = epoch_from(&mut batcher, n, slots, |drawn| drawn as u32);
            for rank in 0..ranks {
                let mine: Vec<&RankSlice> = slices.iter().filter(|s| s.rank == rank).collect();
                let ends: Vec<usize> = (0..mine.len()).filter(|&i| mine[i].ends_epoch).collect();
                prop_assert_eq!(ends, vec![mine.len() - 1]);
            }
        }

        #[test]
        fn samples_lost_under_way_break_no_promise(
            n in 1u64..300, batch in 1u32..12, ranks in 1u32..6, slots in 1u32..30,
            drop_last: bool, losses in prop::collection::vec(any::<bool>(), 300),
        ) {
            let mut batcher = RankBatcher::new(batch, ranks, drop_last);
            prop_assume!(batcher.can_assign(n));
            let (mut left, mut all, mut losses) = (n, Vec::new(), losses.into_iter());
            while batcher.deliverable(left) > 0 {
                let count = batcher.deliverable(left).min(u64::from(slots)) as u32;
                all.extend(batcher.assign(left, count, 0));
                left -= u64::from(count);
                while losses.next() == Some(true) && batcher.can_lose_one(left) {
                    left -= 1;
                }
            }
            prop_assert!(drop_last || batch == 1 || left == 0);
            let steps: Vec<usize> = (0..ranks).map(|r| batches_of(&all, r).len()).collect();
            prop_assert!(steps.iter().all(|&s| s == steps[0]), "{:?}", steps);
        }
    }

    proptest! {
        #[test]
        fn an_interrupted_round_is_finished_first(
            n in 1u64..400, batch in 1u32..12, ranks in 1u32..8, drop_last: bool, stop in 0usize..200,
        ) {
            let mut batcher = RankBatcher::new(batch, ranks, drop_last);
            prop_assume!(batcher.can_assign(n) && batcher.deliverable(n) > 0);
            let whole: Vec<RankSlice> = epoch(&mut batcher, n, 1_000_000);
            let stop = stop % whole.len();
            let given: Vec<u32> = (0..ranks).map(|r| whole[..stop].iter().filter(|s| s.rank == r).count() as u32).collect();
            let most = given.iter().copied().max().unwrap_or(0);
            let left = n - whole[..stop].iter().map(|s| u64::from(s.len)).sum::<u64>();
            let mut resumed = RankBatcher::new(batch, ranks, drop_last);
            let behind: Vec<u32> = given.iter().map(|g| most - g).collect();
            let ends = |r| whole[..stop].iter().any(|s| s.rank == r && s.ends_epoch);
            resumed.owe(Behind { batches: &behind, others_are_done: (0..ranks).any(ends), forfeited: 0 });
            prop_assert!(resumed.can_assign(left));
            let rest = epoch(&mut resumed, left, 1_000_000);
            let cut = |slices: &[RankSlice]| slices.iter().map(|s| (s.rank, s.len)).collect::<Vec<_>>();
            let steps = |slices: &[RankSlice], r| slices.iter().filter(|s| s.rank == r).count();
            let assigned = |slices: &[RankSlice]| slices.iter().map(|s| u64::from(s.len)).sum::<u64>();
            prop_assert_eq!(assigned(&rest), assigned(&whole[stop..]));
            for r in 0..ranks {
                prop_assert_eq!(steps(&rest, r), steps(&whole[stop..], r), "{:?} after {:?}", cut(&rest), cut(&whole[..stop]));
                let ends: Vec<bool> = rest.iter().filter(|s| s.rank == r).map(|s| s.ends_epoch).collect();
                prop_assert!(ends.iter().rev().skip(1).all(|&e| !e) && ends.last() != Some(&false));
            }
        }
    }

    #[test]
    fn what_could_not_be_read_brings_no_rank_more_batches_than_the_others_had() {
        let mut batcher = RankBatcher::new(3, 2, false);
        batcher.owe(Behind {
            batches: &[0, 1],
            others_are_done: true,
            forfeited: 0,
        });
        let cut = |slices: Vec<RankSlice>| -> Vec<(u32, u32, bool)> {
            slices
                .iter()
                .map(|s| (s.rank, s.len, s.ends_epoch))
                .collect()
        };
        // The last batch of rank 1 and one sample that failed before are left.
        assert_eq!(cut(epoch(&mut batcher, 4, 64)), [(1, 3, true)]);
        assert!(!batcher.goes_on(1000));
    }

    #[test]
    fn batches_of_one_are_admitted_only_if_they_come_out_even() {
        assert!(RankBatcher::new(1, 4, false).can_assign(8));
        assert!(!RankBatcher::new(1, 4, false).can_assign(9));
        assert!(RankBatcher::new(1, 4, true).can_assign(9));
        assert!(!RankBatcher::new(2, 4, false).can_assign(3));
    }

    #[test]
    fn a_rest_too_small_for_all_ranks_is_spread_over_two_rounds() {
        let slices = epoch(&mut RankBatcher::new(4, 3, false), 12 + 2, 64);
        let sizes: Vec<u32> = slices.iter().map(|s| s.len).collect();
        assert_eq!(sizes, [3, 3, 2, 2, 2, 2]);
    }
}
