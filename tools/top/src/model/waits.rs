//! The shares of wall time for which a job waits.

use coprep_protocol::message::Stalls;

/// Shares of wall time for which a job waited, by the thing it lacked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StallShares {
    pub(crate) fetch: f64,
    pub(crate) prep: f64,
    pub(crate) others: f64,
    /// Share of a wait that still lasts, whose reason is not known yet.
    pub(crate) open: f64,
}

impl StallShares {
    pub(crate) fn total(&self) -> f64 {
        self.fetch + self.prep + self.others + self.open
    }
}

/// Returns the waits between two accounts as shares of `wall` seconds. When a wait ends, its open time gets its
/// reasons, all at once. The reasons are then those of the whole wait, while the time is only that between the
/// accounts.
pub(super) fn stall_shares(before: &Stalls, now: &Stalls, wall: f64) -> StallShares {
    let grown = |of: fn(&Stalls) -> f64| of(now) - of(before);
    let [fetch, prep, others] = [
        grown(|s| s.fetch_s),
        grown(|s| s.prep_s),
        grown(|s| s.others_s),
    ]
    .map(|s| s.max(0.0));
    let opened = grown(|s| s.open_s);
    let named = fetch + prep + others;
    let open = opened.max(0.0);
    if wall <= 0.0 || named + open <= 0.0 {
        return StallShares::default();
    }
    // `opened` is negative when a wait has ended, which takes off the time that earlier statuses have shown already.
    let share = (named + opened).clamp(0.0, wall) / wall / (named + open);
    StallShares {
        fetch: fetch * share,
        prep: prep * share,
        others: others * share,
        open: open * share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixtures::two_statuses;
    use crate::model::tests::overview;

    fn stalls(fetch_s: f64, prep_s: f64, others_s: f64, open_s: f64) -> Stalls {
        Stalls {
            fetch_s,
            prep_s,
            others_s,
            open_s,
        }
    }

    fn assert_close(shares: StallShares, [fetch, prep, others, open]: [f64; 4]) {
        let pairs = [
            (shares.fetch, fetch),
            (shares.prep, prep),
            (shares.others, others),
            (shares.open, open),
        ];
        assert!(
            pairs.iter().all(|(a, b)| (a - b).abs() < 1e-9),
            "{shares:?}"
        );
    }

    #[test]
    fn waits_are_shares_of_wall_time() {
        let shares = stall_shares(
            &stalls(1.0, 1.0, 1.0, 0.0),
            &stalls(1.5, 1.25, 1.0, 0.25),
            2.0,
        );
        assert_close(shares, [0.25, 0.125, 0.0, 0.125]);
        assert!((shares.total() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_long_wait_is_not_counted_again_when_its_reason_is_known() {
        // Open for 3 s at the last status; over 0.5 s later.
        let over = stall_shares(
            &stalls(0.0, 0.0, 0.0, 3.0),
            &stalls(2.8, 0.7, 0.0, 0.0),
            1.0,
        );
        assert_close(over, [0.4, 0.1, 0.0, 0.0]);
    }

    #[test]
    fn the_parts_of_a_wait_never_exceed_the_time_and_add_up() {
        let times = [0.0, 0.3, 1.0, 7.0];
        for (i, a) in times.iter().enumerate() {
            for (b, c) in times.iter().zip(times.iter().cycle().skip(i)) {
                let shares = stall_shares(&stalls(0.0, 0.0, 0.0, *c), &stalls(*a, *b, *c, *a), 2.0);
                let parts = [shares.fetch, shares.prep, shares.others, shares.open];
                assert!(
                    parts.iter().all(|p| *p >= 0.0) && shares.total() <= 1.0 + 1e-9,
                    "{shares:?}"
                );
                let waited = (a + b + c + a - c).clamp(0.0, 2.0) / 2.0;
                assert!(
                    (shares.total() - waited).abs() < 1e-9,
                    "{shares:?} {waited}"
                );
            }
        }
    }

    #[test]
    fn waits_of_two_ranks_are_shares_of_twice_the_time() {
        let mut statuses = two_statuses();
        let job = &mut statuses.1.streams[0].jobs[0];
        job.pids.push(5000);
        job.stalls = stalls(0.0, 2.0, 0.0, 0.0);
        let report = overview(&statuses);
        assert_close(report.jobs[0].wait.unwrap(), [0.0, 0.5, 0.0, 0.0]);
        // 10 s, two ranks.
        assert_close(report.jobs[0].wait_in_all, [0.0, 0.1, 0.0, 0.0]);
    }
}
