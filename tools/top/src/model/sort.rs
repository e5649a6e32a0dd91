//! The order of the jobs on the screen.

use super::JobRow;

/// The column by which jobs are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SortBy {
    #[default]
    Stream,
    Name,
    Done,
    Rate,
    Wait,
    Lag,
    Held,
    Idle,
}

impl SortBy {
    /// Returns the next column in the cycle.
    pub(crate) fn next(self) -> Self {
        match self {
            SortBy::Stream => SortBy::Name,
            SortBy::Name => SortBy::Done,
            SortBy::Done => SortBy::Rate,
            SortBy::Rate => SortBy::Wait,
            SortBy::Wait => SortBy::Lag,
            SortBy::Lag => SortBy::Held,
            SortBy::Held => SortBy::Idle,
            SortBy::Idle => SortBy::Stream,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            SortBy::Stream => "stream",
            SortBy::Name => "name",
            SortBy::Done => "done",
            SortBy::Rate => "rate",
            SortBy::Wait => "wait",
            SortBy::Lag => "lag",
            SortBy::Held => "held",
            SortBy::Idle => "idle",
        }
    }

    /// Returns `true` if the greatest come first, unless reversed.
    pub(crate) fn descends(self) -> bool {
        !matches!(self, SortBy::Stream | SortBy::Name)
    }

    /// Returns the number by which jobs are sorted in this column.
    fn number(self, job: &JobRow) -> f64 {
        match self {
            SortBy::Stream | SortBy::Name => 0.0,
            SortBy::Done => job.done(),
            // Jobs without a rate come behind jobs that stand still.
            SortBy::Rate => job.samples.unwrap_or(-1.0),
            SortBy::Wait => job.wait.map_or(-1.0, |w| w.total()),
            SortBy::Lag => job.lag.samples as f64,
            SortBy::Held => f64::from(job.status.held),
            SortBy::Idle => job.status.idle_s,
        }
    }
}

/// Sorts the jobs. Equal ones stay in the order of their streams and numbers.
pub(crate) fn sort(jobs: &mut [JobRow], by: SortBy, reversed: bool) {
    jobs.sort_by(|a, b| {
        let (first, second) = if by.descends() != reversed {
            (b, a)
        } else {
            (a, b)
        };
        let order = match by {
            SortBy::Stream => first.key().cmp(&second.key()),
            SortBy::Name => first.status.name.cmp(&second.status.name),
            _ => by.number(first).total_cmp(&by.number(second)),
        };
        order.then(a.key().cmp(&b.key()))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobKey;
    use crate::model::fixtures::two_statuses;
    use crate::model::tests::overview;

    /// Sorts the jobs by a column, and returns their keys.
    fn order(jobs: &mut [JobRow], by: SortBy, reversed: bool) -> Vec<JobKey> {
        sort(jobs, by, reversed);
        jobs.iter().map(JobRow::key).collect()
    }

    #[test]
    fn jobs_are_sorted_by_each_column_greatest_first_and_the_other_way_round() {
        let mut statuses = two_statuses();
        let jobs = &mut statuses.1.streams[0].jobs;
        (jobs[0].delivered, jobs[1].delivered) = (2500, 2600);
        (jobs[0].need, jobs[1].need) = (500, 400);
        jobs[0].stalls.prep_s = 1.0;
        (jobs[0].held, jobs[1].held) = (1, 5);
        (jobs[0].idle_s, jobs[1].idle_s) = (3.0, 1.0);
        statuses.1.streams[1].jobs[0].name = "a.py".into();
        let mut jobs = overview(&statuses).jobs;
        let (one, two, three) = ((1, 1), (1, 2), (2, 1));
        for (by, expected) in [
            (SortBy::Stream, [one, two, three]),
            (SortBy::Name, [three, one, two]),
            (SortBy::Done, [two, one, three]),
            (SortBy::Rate, [two, one, three]),
            (SortBy::Wait, [one, two, three]),
            (SortBy::Lag, [one, two, three]),
            (SortBy::Held, [two, three, one]),
            (SortBy::Idle, [one, two, three]),
        ] {
            assert_eq!(order(&mut jobs, by, false), expected, "{by:?}");
        }
        assert_eq!(order(&mut jobs, SortBy::Held, true), [one, three, two]);
        assert_eq!(order(&mut jobs, SortBy::Name, true), [two, one, three]);
    }

    #[test]
    fn the_sort_key_comes_back_to_where_it_began_after_every_column() {
        let all: Vec<SortBy> = std::iter::successors(Some(SortBy::default()), |by| Some(by.next()))
            .take(8)
            .collect();
        assert_eq!(all[7].next(), all[0]);
        let words: std::collections::BTreeSet<_> = all.iter().map(|by| by.word()).collect();
        assert_eq!(words.len(), 8);
    }
}
