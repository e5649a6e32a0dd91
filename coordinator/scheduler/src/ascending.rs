//! Ascending order: finds a job's next ids, and the points where such jobs meet.
//!
//! A job of `W` ranks deals its ids out as PyTorch's `DistributedSampler` does without shuffling: rank `r` is given the
//! positions `r`, `r + W`, `r + 2 W`, ... of the job's set, so that results that are gathered from the ranks and
//! interleaved are in order.

use std::collections::VecDeque;

use roaring::RoaringBitmap;

use crate::need::Need;
use crate::rank_batcher::RankSlice;

/// Returns the next `count` ids of a job with this need, or all if there are fewer.
pub(crate) fn next_ids(need: &Need, count: u64) -> Vec<u32> {
    need.ids().iter().take(count as usize).collect()
}

/// Returns the next ids of a job of several ranks, slice by slice, as `slices` divides them among `ranks` ranks.
///
/// A rank is given ids at the positions of others in `set` only when its own have run out, and then the last ones, so
/// that the others keep their places. That happens if samples have left the need because they could not be read.
pub(crate) fn dealt_ids(
    need: &Need,
    set: &RoaringBitmap,
    ranks: u32,
    slices: &[RankSlice],
) -> Vec<u32> {
    let Some(first) = need.ids().min() else {
        return Vec::new();
    };
    let position = set.rank(first) - 1;
    // All ids of the set are looked at, since those that are not needed take up positions too.
    let mut coming = set
        .range(first..)
        .zip(position..)
        .filter(|(id, _)| need.ids().contains(*id));
    let mut found = vec![VecDeque::new(); ranks as usize];
    let mut latest = vec![0; ranks as usize];
    let mut dealt = Vec::new();
    for slice in slices {
        for _ in 0..slice.len {
            let rank = slice.rank as usize;
            while found[rank].is_empty()
                && let Some((id, position)) = coming.next()
            {
                found[(position % u64::from(ranks)) as usize].push_back(id);
            }
            let own = found[rank].pop_front();
            if let Some(id) = own.or_else(|| take_behind(&mut found, latest[rank])) {
                latest[rank] = id;
                dealt.push(id);
            }
        }
    }
    dealt
}

/// Takes the last id of a rank: the smallest such one behind `latest`, or else the largest of all.
fn take_behind(found: &mut [VecDeque<u32>], latest: u32) -> Option<u32> {
    let last = |ids: &&mut VecDeque<u32>| ids.back().copied();
    let order = |ids: &&mut VecDeque<u32>| match last(ids) {
        Some(id) if id > latest => (false, id),
        id => (true, u32::MAX - id.unwrap_or(0)),
    };
    let others = found.iter_mut().filter(|ids| !ids.is_empty());
    others.min_by_key(order)?.pop_back()
}

/// Returns `true` if `ids` are the next ids of a job with this need.
pub(crate) fn begins_with(need: &Need, ids: &[u32]) -> bool {
    need.ids().iter().take(ids.len()).eq(ids.iter().copied())
}

/// Returns how many of its next `ids` a job with this need is assigned before it reaches the next id of `other`.
/// Returns `None` unless both jobs need the same `ids.len()` ids from there on.
///
/// A shorter common stretch is not worth a short minibatch: random subsets have one nearly everywhere.
pub(crate) fn meeting_point(need: &Need, ids: &[u32], other: &Need) -> Option<usize> {
    let stands_at = other.ids().min()?;
    let steps = ids.binary_search(&stands_at).ok().filter(|&at| at > 0)?;
    let ahead = need.ids().iter().skip(steps).take(ids.len());
    ahead
        .eq(other.ids().iter().take(ids.len()))
        .then_some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank_batcher::RankBatcher;

    fn need(ids: impl IntoIterator<Item = u32>) -> Need {
        Need::new(ids.into_iter().collect())
    }

    #[test]
    fn a_job_meets_one_that_stands_within_its_next_ids() {
        let behind = need(0..100);
        let ids = next_ids(&behind, 8);
        assert_eq!(meeting_point(&behind, &ids, &need(5..100)), Some(5));
        assert_eq!(
            meeting_point(&behind, &ids, &need(8..100)),
            None,
            "a border"
        );
        assert_eq!(
            meeting_point(&behind, &ids, &need(0..100)),
            None,
            "it is there"
        );
    }

    #[test]
    fn jobs_whose_ways_part_at_once_do_not_meet() {
        let behind = need(0..100);
        let ids = next_ids(&behind, 8);
        assert_eq!(
            meeting_point(&behind, &ids, &need((5..100).step_by(2))),
            None
        );
        assert_eq!(
            meeting_point(&behind, &ids, &need(5..10)),
            None,
            "its epoch ends"
        );
        assert_eq!(meeting_point(&behind, &ids, &need([])), None);
    }

    /// Deals all ids of a need out, in minibatches of `slots`, and returns those of each rank.
    fn dealt(ids: &[u32], batch: u32, ranks: u32, slots: u32) -> Vec<Vec<u32>> {
        let set: RoaringBitmap = ids.iter().copied().collect();
        let (mut need, mut batcher) = (
            Need::new(set.clone()),
            RankBatcher::new(batch, ranks, false),
        );
        let mut given = vec![Vec::new(); ranks as usize];
        while need.len() > 0 {
            let count = batcher.deliverable(need.len()).min(u64::from(slots)) as u32;
            let slices = batcher.assign(need.len(), count, 0);
            let dealt = dealt_ids(&need, &set, ranks, &slices);
            need.remove(&dealt);
            let mut rest = dealt.into_iter();
            for slice in slices {
                given[slice.rank as usize].extend(rest.by_ref().take(slice.len as usize));
            }
        }
        given
    }

    #[test]
    fn each_rank_is_dealt_every_world_size_th_position() {
        for (samples, batch, ranks, slots) in [
            (24, 2, 4, 2),
            (24, 3, 2, 7),
            (10, 2, 4, 3),
            (11, 3, 3, 100),
            (13, 4, 3, 4),
            (101, 8, 5, 6),
        ] {
            // The ids have gaps, as those of a subset.
            let ids: Vec<u32> = (0..samples).map(|at| 5 + 3 * at).collect();
            let expected: Vec<Vec<u32>> = (0..ranks as usize)
                .map(|rank| {
                    ids.iter()
                        .copied()
                        .skip(rank)
                        .step_by(ranks as usize)
                        .collect()
                })
                .collect();
            assert_eq!(
                dealt(&ids, batch, ranks, slots),
                expected,
                "{samples} samples, batches of {batch}, {ranks} ranks, {slots} slots"
            );
        }
    }

    #[test]
    fn a_rank_whose_positions_have_run_out_takes_the_last_ones_of_others() {
        let set: RoaringBitmap = (0..8).collect();
        let slices = RankBatcher::new(2, 2, false).assign(4, 4, 0);
        // The positions of rank 0 are lost.
        let dealt = dealt_ids(&need([1, 3, 5, 7]), &set, 2, &slices);
        assert_eq!(dealt, [7, 5, 1, 3]);
        // Of rank 1, one is lost.
        let set: RoaringBitmap = (0..12).collect();
        let slices = RankBatcher::new(4, 3, false).assign(11, 11, 0);
        let dealt = dealt_ids(&need((0..12).filter(|&id| id != 4)), &set, 3, &slices);
        assert_eq!(dealt, [0, 3, 6, 9, 1, 7, 10, 11, 2, 5, 8]);
    }
}
