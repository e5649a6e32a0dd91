//! When each sample of a minibatch is to be started.
//!
//! Minibatches are drawn some time ahead, and their samples wait in one queue for the workers, the earliest start first.
//! [`next_due`] says when a minibatch is due; [`StartPlan`] says when its samples are to be begun for that.
//!
//! - A sample that is not slow is begun by its cost before its minibatch is due: of one minibatch the longest first
//!   (Graham, Bounds on Multiprocessing Timing Anomalies, 1969).
//! - How many slow ones a minibatch has, those above three times the usual cost, is chance: of 64 samples with 5 % of
//!   200 times the cost one minibatch takes half as long again as the mean, another half as long. If it is begun when
//!   those before it are done, it is delivered so much too late; so it is worked at while lighter ones are. The plan
//!   knows how much work each *turn* has, the time from one delivery to the next. A slow sample, the longest first, is
//!   begun in the turn that has least, of those that are early enough: Graham's rule once more, with turns for
//!   machines. One that takes several turns counts in each of them.
//! - Due times run at an even rate, and follow deliveries by a tenth of the difference. If they followed at
//!   once, one late minibatch would make all that is drawn then late, and so on round the window.
//!
//! It has a price: more minibatches in the making are more memory to write to, and the longest samples of a minibatch meet.
//! Images that come decoded from the cache, for which memory is all that counts, were prepared 2 % slower on two processors,
//! where a slow one takes a fifth of a turn. So nothing is drawn ahead where the slow ones are short against a turn and chance
//! alone makes turns even enough.
//!
//! No worker is ever idle for this, so that nothing but the order changes: Graham's bound holds, and what is
//! drawn is done after at most `2 - 1/m` times the least possible time on m workers.
//!
//! # What it is worth
//!
//! In simulation (`cargo run --release -p coprep-costs --example lookahead`): 2,000 minibatches of 64 samples, 5 %
//! of which cost 10, 50 or 200 times the others, at most 8 minibatches drawn and not delivered, preparation
//! the bottleneck. The gap between two deliveries, in order, that 99 of 100 stay below, in mean gaps; and the
//! time for all, over the work of all by the workers:
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
//! - *Longest first*, of all that is drawn, delivers eight minibatches at once.
//! - *Due less cost* levels nothing. On many workers, where the window is hardly longer than a slow sample,
//!   there is nothing to win beyond it.
//! - *Spread*: the slow samples of a minibatch at even distances over the window, whatever is planned there. It is as
//!   good or better only where a slow sample takes two turns or more.
//! - *Missed*: expectations are a third off, and one slow sample in ten is taken for a usual one. It is started
//!   last, and the others wait for it: a sample that nothing is known of is better started as soon as it is
//!   drawn.
//! - *Needed*: with the window of [`window_needed`].

use std::collections::VecDeque;

use crate::quantile::Summary;

/// A sample of more than so many times the usual cost is slow.
const SLOW: f32 = 3.0;

/// A slow sample that takes more than this part of a turn holds a minibatch up if it is begun last.
const LONG: f32 = 0.5;

/// If the work of minibatches as they are drawn varies by less than so much (standard deviation, in means), then 99 of 100
/// take less than about 1.5 times the usual one. Levelling that would cost more than it is worth: see the module.
const UNEVEN: f32 = 0.15;

/// How far due times follow deliveries.
const FOLLOW: f64 = 0.1;

/// Minibatches drawn ahead beyond the longest sample, to level the slow ones over.
pub const SPREAD: u32 = 4;

/// The work that is planned for each turn: the time from one delivery to the next. See the module.
#[derive(Clone, Debug, Default)]
pub struct StartPlan {
    /// One for each minibatch that is drawn and not delivered, in their order.
    turns: VecDeque<Period>,
    /// When the minibatch drawn last is due.
    due: f64,
}

#[derive(Clone, Copy, Debug)]
struct Period {
    /// Its end.
    due: f64,
    /// Seconds of work.
    load: f32,
}

impl StartPlan {
    /// Nothing is drawn.
    pub fn new() -> Self {
        StartPlan::default()
    }

    /// When the minibatch drawn last is due, in seconds.
    pub fn due(&self) -> f64 {
        self.due
    }

    /// When a minibatch is to be begun that is not drawn ahead: now, but not before those that were. What was planned is
    /// forgotten.
    pub fn pause(&mut self, now: f64) -> f64 {
        self.turns.clear();
        now.max(self.due)
    }

    /// Takes a minibatch in, and says when each of its samples is to be begun: the earliest first.
    ///
    /// `now`: seconds, on any clock. `ahead`: minibatches drawn before it and not delivered. `costs`: seconds that each of
    /// its samples is expected to take. `period`: seconds from one minibatch to the next.
    pub fn draw(
        &mut self,
        now: f64,
        ahead: u32,
        costs: &[f32],
        workers: u32,
        period: f32,
    ) -> Vec<f64> {
        let delivered = self.turns.len().saturating_sub(ahead as usize);
        self.turns.drain(..delivered);
        self.due = next_due(self.due, now, ahead + 1, period);
        let due = self.due;
        let cost = |sample: usize| costs[sample].max(0.0);
        let mut starts: Vec<f64> = (0..costs.len()).map(|i| due - f64::from(cost(i))).collect();
        let slow = slow(costs, period * workers as f32);
        let all: f32 = (0..costs.len()).map(cost).sum();
        let usual = all - slow.iter().map(|&i| cost(i)).sum::<f32>();
        self.turns.push_back(Period { due, load: usual });
        for sample in slow {
            let turn = self.lightest(cost(sample), period);
            for (turn, part) in self
                .turns
                .iter_mut()
                .skip(turn)
                .zip(parts(cost(sample), period))
            {
                turn.load += part;
            }
            starts[sample] = starts[sample].min(self.begin_of(turn, period));
        }
        starts
    }

    fn begin_of(&self, turn: usize, period: f32) -> f64 {
        match turn {
            0 => self.turns[0].due - f64::from(period.max(0.0)),
            _ => self.turns[turn - 1].due,
        }
    }

    /// The turn to begin a sample in: of those in which it is early enough, the one with which the fullest of all that it
    /// goes on in is the least full, and of equals the last.
    fn lightest(&self, cost: f32, period: f32) -> usize {
        let turns = self.turns.len();
        let takes = (cost / period).ceil().clamp(1.0, turns as f32) as usize;
        let fullest = |first: usize| {
            let turns = self.turns.iter().skip(first);
            let loads = turns
                .zip(parts(cost, period))
                .map(|(turn, part)| turn.load + part);
            loads.fold(0.0, f32::max)
        };
        (0..=turns - takes)
            .rev()
            .map(|first| (first, fullest(first)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(0, |(first, _)| first)
    }
}

/// For how long one worker is at a sample, turn by turn, until it ends.
fn parts(cost: f32, period: f32) -> impl Iterator<Item = f32> {
    let part = move |i: u16| (cost - period * f32::from(i)).min(period);
    (0..u16::MAX).map(part).take_while(|&part| part > 0.0)
}

/// When the next minibatch is due, in seconds on any clock. `before`: when the one before it is; at first, now.
/// `ahead`: minibatches drawn and not delivered, this one included. `period`: seconds from one minibatch to the next.
pub fn next_due(before: f64, now: f64, ahead: u32, period: f32) -> f64 {
    let period = f64::from(period.max(0.0));
    let steady = period * f64::from(ahead);
    let next = (before + period).clamp(now, now + 2.0 * steady);
    next + FOLLOW * (now + steady - next)
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
    if costs.is_empty() {
        0.0
    } else {
        *costs.select_nth_unstable_by(middle, f32::total_cmp).1
    }
}

/// How many minibatches to draw ahead: none where no sample is slow or the slow ones hardly make turns uneven, else as many
/// as the longest samples take, of a hundred the longest left out, and `spread` more. `samples`: of a minibatch. `period`:
/// seconds from one minibatch to the next.
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

    /// Starts of a minibatch that is drawn when `ahead` others are, with one worker and a period of 10.
    fn draw(plan: &mut StartPlan, ahead: u32, costs: &[f32]) -> Vec<f64> {
        plan.draw(0.0, ahead, costs, 1, 10.0)
    }

    fn loads(plan: &StartPlan) -> Vec<f32> {
        plan.turns.iter().map(|turn| turn.load).collect()
    }

    #[test]
    fn slow_samples_go_where_least_is_planned_the_longest_first() {
        let mut plan = StartPlan::new();
        draw(&mut plan, 0, &[1.0; 9]);
        draw(&mut plan, 1, &[1.0; 3]);
        let starts = draw(&mut plan, 2, &[1.0, 8.0, 1.0, 7.0, 1.0, 1.0, 1.0]);
        // The longer one to its own turn would make 13 of it, to the second 11.
        assert_eq!(loads(&plan), [9.0, 11.0, 12.0]);
        assert_eq!(starts[1], plan.turns[0].due);
        assert_eq!(starts[3], plan.turns[1].due);
        assert_eq!(starts[0], plan.due() - 1.0);
    }

    #[test]
    fn a_sample_that_takes_many_turns_is_begun_so_many_before() {
        let mut plan = StartPlan::new();
        (0..4).for_each(|ahead| _ = draw(&mut plan, ahead, &[1.0; 5]));
        let starts = draw(&mut plan, 4, &[1.0, 1.0, 25.0, 1.0]);
        assert_eq!(loads(&plan), [5.0, 5.0, 15.0, 15.0, 8.0]);
        assert!(starts[2] <= plan.due() - 25.0);
        // It takes longer than is drawn ahead.
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
        // And may be drawn ahead again: no turn of before is taken for one that is to come.
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
        // Of few samples the work varies.
        assert_eq!(needed(16, 2), 1 + SPREAD);
        // For many workers a turn is short.
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

    proptest! {
        #[test]
        fn no_sample_is_to_begin_later_than_its_cost_before_its_minibatch_is_due(
            batches in prop::collection::vec(prop::collection::vec(0.0..1e6f32, 0..50), 1..20), ahead in 0..10u32,
            workers in 0..64u32, period in 0.0..1e6f32,
        ) {
            let mut plan = StartPlan::new();
            for (place, costs) in batches.iter().enumerate() {
                let starts = plan.draw(1e3 * place as f64, ahead, costs, workers, period);
                prop_assert_eq!(starts.len(), costs.len());
                for (start, cost) in starts.iter().zip(costs) {
                    prop_assert!(start.is_finite() && *start <= plan.due() - f64::from(*cost));
                }
                prop_assert!(plan.turns.len() <= ahead as usize + 1);
            }
        }

        #[test]
        fn due_times_never_go_back_behind_now(before in -1e6..1e6f64, now in 0.0..1e6f64, ahead in 1..20u32, period in 0.0..100f32) {
            let due = next_due(before, now, ahead, period);
            prop_assert!(due >= now && due <= now + 2.0 * f64::from(period) * f64::from(ahead) + 1e-6);
        }
    }
}
