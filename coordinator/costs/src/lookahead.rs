//! Decides when each sample of a minibatch should be started.
//!
//! Minibatches are drawn some time ahead. Their samples wait in one queue for the workers, earliest planned start
//! first. [`next_due`] computes when a minibatch is due, and [`StartPlan`] when its samples should be begun for that.
//!
//! - A sample that is not slow is begun before its minibatch is due, by the time that it costs. So within a minibatch
//!   the longest sample comes first (Graham, Bounds on Multiprocessing Timing Anomalies, 1969).
//! - A sample is slow if it takes more than three times the usual cost. The number of slow samples in a minibatch is
//!   chance. With 64 samples, 5 % of which cost 200 times the others, one minibatch takes half as long again as the
//!   mean, another half as long. If a long minibatch is begun when those before it are done, it is late by the
//!   difference. So it is started while lighter ones are in progress. The plan knows the work in each *period*, which
//!   is the time from one delivery to the next. Slow samples are placed longest first. Each is begun in the period with
//!   the least work among all that are early enough. This is Graham's rule again, with periods in place of machines.
//!   A sample that takes several periods counts in each of them.
//! - Due times run at an even rate, and follow deliveries by a tenth of the difference. If they followed at once, one
//!   late minibatch would delay all minibatches drawn at that time, and the delay would go round the window.
//!
//! Lookahead has a price. More minibatches in preparation mean more memory to write to, and the longest samples of a
//! minibatch run at the same time. For images that come decoded from the cache, only memory matters. They were prepared
//! 2 % slower on two processors, where a slow one takes a fifth of a period. So nothing is drawn ahead if the slow
//! samples are short against a period and chance alone makes periods even enough.
//!
//! No worker is ever idle for this; only the order changes. So Graham's bound holds, and the minibatches drawn are done
//! after at most `2 - 1/m` times the least possible time on m workers.
//!
//! # Benefit
//!
//! In simulation (`cargo run --release -p coprep-benchmarks --bin lookahead`): 2,000 minibatches of 64 samples, 5 % of
//! which cost 10, 50 or 200 times the others. At most 8 minibatches are drawn and not delivered, and preparation is the
//! bottleneck. The table shows the gap between two consecutive deliveries that 99 of 100 stay below, in mean gaps. The
//! makespan is the time for all, divided by the work of all per worker:
//!
//! | slow | workers | as drawn | longest first | due less cost | spread | **rule** | missed | needed | makespan |
//! |---|---|---|---|---|---|---|---|---|---|
//! | 10 x | 1 | 1.5 | 8.5 | 1.5 | 1.3 | **1.1** | 1.3 | 1.2 with 5 | 1.000 |
//! | 10 x | 2 | 1.5 | 8.5 | 1.5 | 1.3 | **1.1** | 1.3 | 1.2 with 5 | 1.000 |
//! | 10 x | 8 | 1.7 | 8.7 | 1.5 | 1.3 | **1.2** | 1.9 | 1.2 with 5 | 1.000 |
//! | 10 x | 16 | 2.3 | 8.7 | 1.5 | 1.3 | **1.2** | 2.9 | 1.2 with 6 | 1.000 |
//! | 50 x | 1 | 2.1 | 9.3 | 2.1 | 1.6 | **1.3** | 1.6 | 1.4 with 5 | 1.000 |
//! | 50 x | 2 | 2.1 | 9.5 | 2.1 | 1.6 | **1.3** | 1.8 | 1.4 with 5 | 1.000 |
//! | 50 x | 8 | 2.5 | 9.6 | 2.2 | 1.9 | **1.8** | 3.4 | 1.8 with 6 | 1.000 |
//! | 50 x | 16 | 3.3 | 9.7 | 2.3 | 2.0 | **2.1** | 5.2 | 2.1 with 8 | 1.000 |
//! | 200 x | 1 | 2.4 | 9.6 | 2.4 | 1.8 | **1.4** | 1.8 | 1.5 with 5 | 1.000 |
//! | 200 x | 2 | 2.5 | 9.7 | 2.5 | 1.8 | **1.5** | 2.0 | 1.6 with 5 | 1.000 |
//! | 200 x | 8 | 3.1 | 10.1 | 2.4 | 2.1 | **2.2** | 4.1 | 2.2 with 7 | 1.001 |
//! | 200 x | 16 | 4.1 | 9.1 | 2.7 | 3.0 | **2.6** | 6.8 | 2.6 with 8 | 1.002 |
//!
//! - *Longest first*, among all samples drawn, delivers eight minibatches at once.
//! - *Due less cost* levels nothing. On many workers, where the window is hardly longer than a slow sample, other rules
//!   gain little over it.
//! - *Spread* places the slow samples of a minibatch at even distances over the window, whatever is planned there. It
//!   is as good or better only where a slow sample takes two periods or more.
//! - *Missed*: expectations are a third off, and one slow sample in ten is taken for a usual one. It is started last,
//!   and the others wait for it. So a sample of unknown cost is better started as soon as it is drawn.
//! - *Needed* is the rule with the window of [`window_needed`].

use std::collections::VecDeque;

use crate::quantile::Summary;

/// Factor on the usual cost above which a sample is slow.
const SLOW: f32 = 3.0;

/// Part of a period above which a slow sample delays its minibatch if it is begun last.
const LONG: f32 = 0.5;

/// Variation of the work of minibatches (standard deviation divided by the mean) below which levelling costs more than
/// it is worth. Then 99 of 100 minibatches take less than about 1.5 times the usual time. See the module.
const UNEVEN: f32 = 0.15;

/// Part of the difference by which due times follow deliveries.
const FOLLOW: f64 = 0.1;

/// Number of minibatches drawn ahead beyond the longest sample, to spread the slow samples over.
pub const SPREAD: u32 = 4;

/// The work that is planned for each period, the time from one delivery to the next. See the module.
#[derive(Clone, Debug, Default)]
pub struct StartPlan {
    /// One period for each minibatch that is drawn and not delivered, in their order.
    periods: VecDeque<Period>,
    /// Time at which the minibatch drawn last is due.
    due: f64,
}

#[derive(Clone, Copy, Debug)]
struct Period {
    /// End of the period.
    due: f64,
    /// Seconds of planned work.
    load: f32,
}

impl StartPlan {
    /// Creates a plan without minibatches.
    pub fn new() -> Self {
        StartPlan::default()
    }

    /// Returns the time at which the minibatch drawn last is due, in seconds.
    pub fn due(&self) -> f64 {
        self.due
    }

    /// Returns the start of a minibatch that is not drawn ahead, and forgets the plan. The start is now, but not before
    /// the minibatches that were drawn ahead.
    pub fn pause(&mut self, now: f64) -> f64 {
        self.periods.clear();
        now.max(self.due)
    }

    /// Plans a minibatch, and returns the planned start of each of its samples, in the order of `costs`.
    ///
    /// `now` is in seconds, on any clock. `ahead` is the number of minibatches drawn before it and not delivered.
    /// `costs` are the expected seconds of its samples. `period` is the seconds from one minibatch to the next.
    pub fn draw(
        &mut self,
        now: f64,
        ahead: u32,
        costs: &[f32],
        workers: u32,
        period: f32,
    ) -> Vec<f64> {
        let delivered = self.periods.len().saturating_sub(ahead as usize);
        // The periods of minibatches delivered meanwhile are over.
        self.periods.drain(..delivered);
        self.due = next_due(self.due, now, ahead + 1, period);
        let due = self.due;
        let cost = |sample: usize| costs[sample].max(0.0);
        let mut starts: Vec<f64> = (0..costs.len()).map(|i| due - f64::from(cost(i))).collect();
        let slow = slow(costs, period * workers as f32);
        let all: f32 = (0..costs.len()).map(cost).sum();
        let usual = all - slow.iter().map(|&i| cost(i)).sum::<f32>();
        self.periods.push_back(Period { due, load: usual });
        for sample in slow {
            let first = self.lightest(cost(sample), period);
            for (planned, part) in self
                .periods
                .iter_mut()
                .skip(first)
                .zip(parts(cost(sample), period))
            {
                planned.load += part;
            }
            // A slow sample starts at its period, but never later than its cost before the due time.
            starts[sample] = starts[sample].min(self.begin_of(first, period));
        }
        starts
    }

    fn begin_of(&self, index: usize, period: f32) -> f64 {
        match index {
            0 => self.periods[0].due - f64::from(period.max(0.0)),
            _ => self.periods[index - 1].due,
        }
    }

    /// Returns the period in which to begin a sample that takes `cost` seconds. Only periods early enough for its
    /// minibatch count. The choice minimises the load of the fullest period that the sample runs in. Among equals it is
    /// the last.
    fn lightest(&self, cost: f32, period: f32) -> usize {
        let count = self.periods.len();
        let takes = (cost / period).ceil().clamp(1.0, count as f32) as usize;
        let fullest = |first: usize| {
            let periods = self.periods.iter().skip(first);
            let loads = periods
                .zip(parts(cost, period))
                .map(|(planned, part)| planned.load + part);
            loads.fold(0.0, f32::max)
        };
        (0..=count - takes)
            // `min_by` keeps the first of equals, so go from the last period to the first.
            .rev()
            .map(|first| (first, fullest(first)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(0, |(first, _)| first)
    }
}

/// Returns the seconds that a sample occupies its worker in each period, until it ends.
fn parts(cost: f32, period: f32) -> impl Iterator<Item = f32> {
    let part = move |i: u16| (cost - period * f32::from(i)).min(period);
    (0..u16::MAX).map(part).take_while(|&part| part > 0.0)
}

/// Returns the time at which the next minibatch is due, in seconds on any clock.
///
/// `before` is the due time of the minibatch before it, or now for the first one. `ahead` is the number of minibatches
/// drawn and not delivered, including this one. `period` is the seconds from one minibatch to the next.
pub fn next_due(before: f64, now: f64, ahead: u32, period: f32) -> f64 {
    let period = f64::from(period.max(0.0));
    let steady = period * f64::from(ahead);
    // Bounded, so that due times come back after a pause or a change of the rate.
    let next = (before + period).clamp(now, now + 2.0 * steady);
    next + FOLLOW * (now + steady - next)
}

/// Returns the slow samples, longest first. `work` is the mean cost of a minibatch.
fn slow(costs: &[f32], work: f32) -> Vec<usize> {
    let mean = work / costs.len() as f32;
    // The mean over minibatches bounds the median, in case most samples of this one are slow.
    let above = SLOW * median(costs).min(mean);
    let mut slow: Vec<usize> = (0..costs.len()).filter(|&i| costs[i] > above).collect();
    slow.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]));
    slow
}

fn median(costs: &[f32]) -> f32 {
    let mut costs = costs.to_vec();
    let middle = costs.len() / 2;
    if costs.is_empty() {
        0.0
    } else {
        *costs.select_nth_unstable_by(middle, f32::total_cmp).1
    }
}

/// Returns how many minibatches to draw ahead. It is 0 if no sample is slow or the slow samples hardly make periods
/// uneven. Otherwise it is the number of periods that the longest samples take (the 99th percentile), plus `spread`,
/// but at most `most`.
///
/// `samples` is the number of samples in a minibatch. `period` is the seconds from one minibatch to the next.
pub fn window_needed(costs: &Summary, samples: u32, period: f32, spread: u32, most: u32) -> u32 {
    let longest = costs.longest;
    let varies = costs.variation / (samples as f32).sqrt();
    let is_uneven = longest > LONG * period || varies > UNEVEN;
    if longest > SLOW * costs.usual && is_uneven {
        ((longest / period).ceil() + spread as f32).min(most as f32) as u32
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recent;
    use proptest::prelude::*;

    fn summary(cost: impl Fn(u8) -> f32) -> Summary {
        let mut costs = Recent::new();
        (0..200).for_each(|i| costs.observe(cost(i)));
        costs.summary().unwrap()
    }

    /// Returns the starts of a minibatch that is drawn when `ahead` others are, with one worker and a period of 10.
    fn draw(plan: &mut StartPlan, ahead: u32, costs: &[f32]) -> Vec<f64> {
        plan.draw(0.0, ahead, costs, 1, 10.0)
    }

    fn loads(plan: &StartPlan) -> Vec<f32> {
        plan.periods.iter().map(|p| p.load).collect()
    }

    #[test]
    fn slow_samples_go_where_least_is_planned_the_longest_first() {
        let mut plan = StartPlan::new();
        draw(&mut plan, 0, &[1.0; 9]);
        draw(&mut plan, 1, &[1.0; 3]);
        let starts = draw(&mut plan, 2, &[1.0, 8.0, 1.0, 7.0, 1.0, 1.0, 1.0]);
        // In its own period, the longer sample would raise the load to 13, but in the second one only to 11.
        assert_eq!(loads(&plan), [9.0, 11.0, 12.0]);
        assert_eq!(starts[1], plan.periods[0].due);
        assert_eq!(starts[3], plan.periods[1].due);
        assert_eq!(starts[0], plan.due() - 1.0);
    }

    #[test]
    fn a_sample_that_takes_many_turns_is_begun_so_many_before() {
        let mut plan = StartPlan::new();
        (0..4).for_each(|ahead| _ = draw(&mut plan, ahead, &[1.0; 5]));
        let starts = draw(&mut plan, 4, &[1.0, 1.0, 25.0, 1.0]);
        assert_eq!(loads(&plan), [5.0, 5.0, 15.0, 15.0, 8.0]);
        assert!(starts[2] <= plan.due() - 25.0);
        // The sample takes longer than all that is drawn ahead.
        let starts = draw(&mut plan, 2, &[1.0, 1.0, 95.0]);
        assert_eq!(loads(&plan), [25.0, 18.0, 12.0]);
        assert_eq!(starts[2], plan.due() - 95.0);
    }

    #[test]
    fn what_is_delivered_is_planned_no_more() {
        let mut plan = StartPlan::new();
        (0..6).for_each(|ahead| _ = draw(&mut plan, ahead, &[2.0]));
        draw(&mut plan, 1, &[3.0]);
        assert_eq!(loads(&plan), [2.0, 3.0]);
        draw(&mut plan, 7, &[4.0]);
        assert_eq!(loads(&plan), [2.0, 3.0, 4.0]);
    }

    #[test]
    fn where_costs_are_even_nothing_is_drawn_ahead() {
        let costs = summary(|i| 1.0 + f32::from(i % 10) / 10.0);
        assert_eq!(window_needed(&costs, 64, 1.0, SPREAD, 8), 0);
    }

    #[test]
    fn the_window_is_long_enough_for_the_longest_and_some_more() {
        let costs = summary(|i| if i % 20 == 0 { 100.0 } else { 1.0 });
        assert_eq!(window_needed(&costs, 64, 40.0, 0, 8), 3);
        assert_eq!(window_needed(&costs, 64, 40.0, SPREAD, 8), 3 + SPREAD);
        assert_eq!(window_needed(&costs, 64, 10.0, SPREAD, 8), 8);
        assert_eq!(window_needed(&costs, 64, 0.0, SPREAD, 8), 8);
    }

    #[test]
    fn what_is_no_longer_drawn_ahead_comes_after_what_was() {
        let mut plan = StartPlan::new();
        assert_eq!(plan.pause(3.0), 3.0);
        (0..3).for_each(|ahead| _ = draw(&mut plan, ahead, &[1.0; 5]));
        assert_eq!(plan.pause(3.0), plan.due());
        assert_eq!(plan.pause(100.0), 100.0);
        // Minibatches may be drawn ahead again. No earlier period is then taken for a future one.
        let starts = plan.draw(100.0, 1, &[1.0, 8.0, 1.0, 1.0, 1.0], 1, 10.0);
        assert_eq!(loads(&plan), [12.0]);
        assert!(plan.due() >= 100.0 && starts.iter().all(|&start| start >= 90.0));
    }

    #[test]
    fn what_chance_makes_even_enough_is_not_levelled() {
        let costs = summary(|i| if i % 20 == 0 { 6.0 } else { 1.0 });
        // A mean of 1.25, and a deviation of 1.1.
        let needed = |samples: u8, workers: u8| {
            let period = 1.25 * f32::from(samples) / f32::from(workers);
            window_needed(&costs, samples.into(), period, SPREAD, 8)
        };
        assert_eq!(needed(64, 2), 0);
        // With few samples, the work of minibatches varies.
        assert_eq!(needed(16, 2), 1 + SPREAD);
        // With many workers, a period is short.
        assert_eq!(needed(64, 16), 2 + SPREAD);
    }

    #[test]
    fn due_times_are_even_and_come_back_after_a_pause() {
        assert_eq!(next_due(7.0, 0.0, 8, 1.0), 8.0);
        let mut due = 8.0;
        for i in 0..60 {
            due = next_due(due, 1000.0 + f64::from(i), 8, 1.0);
            assert!((1000.0..1068.0).contains(&due), "{due}");
        }
        assert!((due - 1067.0).abs() < 0.1, "{due}");
    }

    /// Up to a million seconds, from whole milliseconds: proptest 1.12 panics on some draws from a range of `f32`.
    fn seconds() -> impl Strategy<Value = f32> {
        (0..1_000_000_000u32).prop_map(|ms| ms as f32 / 1000.0)
    }

    proptest! {
        #[test]
        fn no_sample_is_to_begin_later_than_its_cost_before_its_minibatch_is_due(
            batches in prop::collection::vec(prop::collection::vec(seconds(), 0..50), 1..20), ahead in 0..10u32,
            workers in 0..64u32, period in seconds(),
        ) {
            let mut plan = StartPlan::new();
            for (number, costs) in batches.iter().enumerate() {
                let starts = plan.draw(1e3 * number as f64, ahead, costs, workers, period);
                prop_assert_eq!(starts.len(), costs.len());
                for (start, cost) in starts.iter().zip(costs) {
                    prop_assert!(start.is_finite() && *start <= plan.due() - f64::from(*cost));
                }
                prop_assert!(plan.periods.len() <= ahead as usize + 1);
            }
        }

        #[test]
        fn due_times_never_go_back_behind_now(before in -1_000_000_000..1_000_000_000i32, now in 0..1_000_000_000i32, ahead in 1..20u32, period in 0..100_000u32) {
            // From whole milliseconds: proptest 1.12 panics on some draws from a range of floats.
            let (before, now, period) = (f64::from(before) / 1000.0, f64::from(now) / 1000.0, period as f32 / 1000.0);
            let due = next_due(before, now, ahead, period);
            prop_assert!(due >= now && due <= now + 2.0 * f64::from(period) * f64::from(ahead) + 1e-6);
        }
    }
}
