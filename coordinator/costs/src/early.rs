//! When each sample of a minibatch is to be started.
//!
//! Minibatches are drawn some time ahead, and their samples wait in one queue for the workers, the smallest
//! key first. The key of a sample is `due - lead`: [`next_due`] says when its minibatch is due, [`leads`] by how
//! much each of its samples comes before that.
//!
//! - A sample that is not slow leads by its cost: of one minibatch the longest first (Graham, Bounds on
//!   Multiprocessing Timing Anomalies, 1969).
//! - The slow ones, above three times the usual cost, lead by their cost or more: they are spread evenly over
//!   the window of minibatches drawn ahead, the longest first. For how many of them a minibatch has is chance:
//!   of 64 samples with 5 % of 200 times the cost one minibatch takes half as long again as the mean, another
//!   half as long. If it is begun when those before it are done, it is delivered so much too late; so it is
//!   worked at while lighter ones are.
//! - Due times run at an even rate, and follow deliveries by a tenth of the difference. If they followed at
//!   once, one late minibatch would make all that is drawn then late, and so on round the window.
//!
//! No worker is ever idle for this, so that nothing but the order changes: Graham's bound holds, and what is
//! drawn is done after at most `2 - 1/m` times the least possible time on m workers.
//!
//! # What it is worth
//!
//! In simulation (`cargo run --release -p coprep-costs --example early`): 2,000 minibatches of 64 samples, 5 %
//! of which cost 10, 50 or 200 times the others, at most 8 minibatches drawn and not delivered, preparation
//! the bottleneck. The gap between two deliveries, in order, that 99 of 100 stay below, in mean gaps; and the
//! time for all, over the work of all by the workers:
//!
//! | slow | workers | as drawn | longest first | due less cost | **rule** | due at once | missed | needed | makespan |
//! |---|---|---|---|---|---|---|---|---|---|
//! | 10 x | 1 | 1.5 | 8.5 | 1.5 | **1.3** | 1.3 | 1.4 | 1.3 with 4 | 1.000 |
//! | 10 x | 2 | 1.5 | 8.5 | 1.5 | **1.3** | 1.3 | 1.4 | 1.3 with 4 | 1.000 |
//! | 10 x | 8 | 1.7 | 8.7 | 1.5 | **1.3** | 1.3 | 2.0 | 1.3 with 4 | 1.000 |
//! | 10 x | 16 | 2.3 | 8.7 | 1.5 | **1.3** | 1.3 | 2.9 | 1.3 with 5 | 1.000 |
//! | 50 x | 1 | 2.1 | 9.3 | 2.1 | **1.6** | 1.9 | 1.8 | 1.6 with 4 | 1.000 |
//! | 50 x | 2 | 2.1 | 9.5 | 2.1 | **1.6** | 1.9 | 1.9 | 1.6 with 4 | 1.000 |
//! | 50 x | 8 | 2.5 | 9.6 | 2.2 | **1.9** | 2.3 | 3.5 | 2.0 with 5 | 1.000 |
//! | 50 x | 16 | 3.3 | 9.7 | 2.3 | **2.0** | 3.4 | 5.4 | 2.2 with 7 | 1.001 |
//! | 200 x | 1 | 2.4 | 9.6 | 2.4 | **1.8** | 2.5 | 2.0 | 1.8 with 4 | 1.000 |
//! | 200 x | 2 | 2.5 | 9.7 | 2.5 | **1.8** | 3.1 | 2.2 | 1.8 with 4 | 1.000 |
//! | 200 x | 8 | 3.1 | 10.1 | 2.4 | **2.1** | 3.9 | 4.6 | 2.3 with 6 | 1.000 |
//! | 200 x | 16 | 4.1 | 9.1 | 2.7 | **3.0** | 5.5 | 6.7 | 3.0 with 8 | 1.002 |
//!
//! - *Longest first*, of all that is drawn, delivers eight minibatches at once.
//! - *Due less cost* spreads nothing. On many workers, where the window is hardly longer than a slow sample,
//!   there is nothing to win beyond it.
//! - *Due at once*: due times that follow deliveries at once undo what the leads do.
//! - *Missed*: expectations are a third off, and one slow sample in ten is taken for a usual one. It is started
//!   last, and the others wait for it: a sample that nothing is known of is better started as soon as it is
//!   drawn.
//! - *Needed*: with the window of [`window_needed`].
//!
//! With a slack, slow samples leading by twice their cost at least, it is no better anywhere, and worse where
//! there are many workers (16: 2.4 for 2.0, and 3.2 for 3.0): what is started too early is in the way of what
//! is due.

use crate::quantile::Recent;

/// A sample of more than so many times the usual cost is slow.
const SLOW: f32 = 3.0;

/// How far due times follow deliveries.
const FOLLOW: f64 = 0.1;

/// Minibatches drawn ahead beyond the longest sample, to spread the slow ones over.
pub const SPREAD: u32 = 3;

/// When the next minibatch is due, in seconds on any clock. `before`: when the one before it is; at first, now.
/// `ahead`: minibatches drawn and not delivered, this one included. `period`: seconds from one minibatch to the next.
pub fn next_due(before: f64, now: f64, ahead: u32, period: f32) -> f64 {
    let period = f64::from(period.max(0.0));
    let steady = period * f64::from(ahead);
    let next = (before + period).clamp(now, now + 2.0 * steady);
    next + FOLLOW * (now + steady - next)
}

/// By how many seconds each sample of a minibatch comes before its minibatch is due.
///
/// `costs`: seconds that each is expected to take. `period`: seconds from one minibatch to the next.
/// `window`: seconds that the minibatch was drawn ahead.
pub fn leads(costs: &[f32], workers: u32, period: f32, window: f32) -> Vec<f32> {
    let mut leads: Vec<f32> = costs.iter().map(|c| c.max(0.0)).collect();
    let slow = slow(&leads, period * workers as f32);
    let part = window / slow.len() as f32;
    for (place, sample) in slow.into_iter().enumerate() {
        leads[sample] = leads[sample].max(window - part * place as f32);
    }
    leads
}

/// The longest first. `work`: what a minibatch costs on average.
fn slow(costs: &[f32], work: f32) -> Vec<usize> {
    let mean = work / costs.len() as f32;
    let above = SLOW * median(costs).min(mean);
    let mut slow: Vec<usize> = (0..costs.len()).filter(|&i| costs[i] > above).collect();
    slow.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]));
    slow
}

fn median(costs: &[f32]) -> f32 {
    let mut costs = costs.to_vec();
    let middle = costs.len() / 2;
    match costs.is_empty() {
        true => 0.0,
        false => *costs.select_nth_unstable_by(middle, f32::total_cmp).1,
    }
}

/// How many minibatches to draw ahead: none where costs are even, else as many as the longest samples take, of
/// a hundred the longest left out, and `spread` more. `period`: seconds from one minibatch to the next.
pub fn window_needed(costs: &Recent, period: f32, spread: u32, most: u32) -> u32 {
    let (Some(usual), Some(longest)) = (costs.quantile(0.5), costs.quantile(0.99)) else {
        return 0;
    };
    match longest > SLOW * usual {
        true => ((longest / period).ceil() + spread as f32).min(most as f32) as u32,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slow_samples_are_spread_over_the_window_the_longest_first() {
        let costs = [1.0, 20.0, 1.2, 30.0, 0.9, 1.0, 1.1, 10.0];
        let leads = leads(&costs, 2, 32.0, 96.0);
        assert_eq!(leads, [1.0, 64.0, 1.2, 96.0, 0.9, 1.0, 1.1, 32.0]);
    }

    #[test]
    fn a_slow_sample_leads_by_its_cost_at_least() {
        assert_eq!(
            leads(&[1.0, 1.0, 50.0, 40.0], 8, 4.0, 20.0),
            [1.0, 1.0, 50.0, 40.0]
        );
    }

    #[test]
    fn a_minibatch_of_slow_samples_alone_is_spread_too() {
        assert_eq!(leads(&[10.0, 10.0], 1, 2.0, 100.0), [100.0, 50.0]);
    }

    #[test]
    fn where_costs_are_even_nothing_is_drawn_ahead() {
        let mut costs = Recent::new();
        assert_eq!(window_needed(&costs, 1.0, SPREAD, 8), 0);
        (0..200u8).for_each(|i| costs.observe(1.0 + f32::from(i % 10) / 10.0));
        assert_eq!(window_needed(&costs, 1.0, SPREAD, 8), 0);
    }

    #[test]
    fn the_window_is_long_enough_for_the_longest_and_three_more() {
        let mut costs = Recent::new();
        (0..200u8).for_each(|i| costs.observe(if i % 20 == 0 { 100.0 } else { 1.0 }));
        assert_eq!(window_needed(&costs, 40.0, SPREAD, 8), 6);
        assert_eq!(window_needed(&costs, 10.0, SPREAD, 8), 8);
        assert_eq!(window_needed(&costs, 0.0, SPREAD, 8), 8);
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

    proptest! {
        #[test]
        fn leads_are_finite_and_not_below_the_costs(
            costs in prop::collection::vec(0.0..1e6f32, 0..100), workers in 0..64u32, period in 0.0..1e6f32, window in 0.0..1e7f32,
        ) {
            let leads = leads(&costs, workers, period, window);
            prop_assert_eq!(leads.len(), costs.len());
            prop_assert!(leads.iter().zip(&costs).all(|(l, c)| l.is_finite() && l >= c && *l <= c.max(window)));
        }

        #[test]
        fn due_times_never_go_back_behind_now(before in -1e6..1e6f64, now in 0.0..1e6f64, ahead in 1..20u32, period in 0.0..100f32) {
            let due = next_due(before, now, ahead, period);
            prop_assert!(due >= now && due <= now + 2.0 * f64::from(period) * f64::from(ahead) + 1e-6);
        }
    }
}
