//! Ascending order: finds a job's next ids, and the points where such jobs meet.

use crate::need::Need;

/// Returns the next `count` ids of a job with this need, or all if there are fewer.
pub(crate) fn next_ids(need: &Need, count: u64) -> Vec<u32> {
    need.ids().iter().take(count as usize).collect()
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
}
