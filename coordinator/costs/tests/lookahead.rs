//! Tests of starting times in simulation: minibatches are delivered at an even rate, without a loss of throughput.

mod random;
mod workshop;

use coprep_costs::Recent;
use coprep_costs::lookahead::{SPREAD, window_needed};
use proptest::prelude::*;
use random::Random;
use workshop::{Batch, Order, Run, Sample, Workshop, batches};

const WORKERS: [u32; 4] = [1, 2, 8, 16];
const TAILS: [f32; 3] = [10.0, 50.0, 200.0];

fn run(workers: u32, order: Order, batches: &[Batch]) -> Run {
    let shop = Workshop {
        workers,
        window: 8,
        order,
    };
    shop.run(batches)
}

fn each(check: impl Fn(f32, u32, &[Batch])) {
    for tail in TAILS {
        let batches = batches(600, tail, &mut Random(7));
        WORKERS
            .iter()
            .for_each(|&workers| check(tail, workers, &batches));
    }
}

#[test]
fn all_is_done_in_the_least_possible_time_but_for_a_twentieth_and_one_sample() {
    each(|tail, workers, batches| {
        let run = run(workers, Order::StartPlan, batches);
        let least = 1.05 * run.share + run.longest;
        assert!(run.makespan() <= least, "{tail} x, {workers} workers");
    });
}

/// A sample of 200 times the usual cost takes 4.6 periods of 16 workers. So of 8 minibatches drawn ahead, at most 3
/// remain to spread it over.
#[test]
fn deliveries_are_even() {
    each(|tail, workers, batches| {
        let run = run(workers, Order::StartPlan, batches);
        let most = if tail * workers as f32 > 3000.0 {
            3.5
        } else {
            2.5
        };
        let uneven = run.gap(0.99) / run.gap(0.5);
        assert!(uneven <= most, "{tail} x, {workers} workers: {uneven}");
    });
}

#[test]
fn deliveries_are_more_even_than_in_the_order_drawn_and_than_with_the_longest_first() {
    each(|tail, workers, batches| {
        let gap = |order| run(workers, order, batches).gap(0.99);
        let rule = gap(Order::StartPlan);
        assert!(
            rule < 0.95 * gap(Order::Drawn),
            "{tail} x, {workers} workers"
        );
        assert!(
            rule < 0.5 * gap(Order::Longest),
            "{tail} x, {workers} workers"
        );
    });
}

#[test]
fn deliveries_are_more_even_than_with_slow_samples_at_even_distances_where_these_take_less_than_a_period()
 {
    each(|tail, workers, batches| {
        let even = |order| {
            let run = run(workers, order, batches);
            (run.gap(0.99) / run.gap(0.5), f64::from(tail) < run.period())
        };
        let ((rule, is_short), (spread, _)) = (even(Order::StartPlan), even(Order::Spread));
        assert!(
            !is_short || rule < 0.95 * spread,
            "{tail} x, {workers} workers: {rule} {spread}"
        );
    });
}

#[test]
fn the_window_that_is_needed_is_enough() {
    each(|tail, workers, batches| {
        let mut costs = Recent::new();
        batches.iter().flatten().for_each(|s| costs.observe(s.cost));
        let costs = costs.summary().unwrap();
        let whole = run(workers, Order::StartPlan, batches);
        let window = window_needed(&costs, 64, whole.period() as f32, SPREAD, 8);
        let shop = Workshop {
            workers,
            window,
            order: Order::StartPlan,
        };
        let enough = shop.run(batches);
        let (enough, whole) = (enough.gap(0.99), whole.gap(0.99));
        assert!(
            enough < 1.25 * whole,
            "{tail} x, {workers} workers, {window}: {enough} {whole}"
        );
    });
}

/// Seconds, from whole milliseconds: proptest 1.12 panics on some draws from a range of `f32`.
fn seconds(milliseconds: std::ops::Range<u32>) -> impl Strategy<Value = f32> {
    milliseconds.prop_map(|ms| ms as f32 / 1000.0)
}

fn samples() -> impl Strategy<Value = Vec<Batch>> {
    let cost = prop_oneof![9 => seconds(100..2_000), 1 => seconds(2_000..400_000)];
    let sample =
        (cost, seconds(100..400_000)).prop_map(|(cost, expected)| Sample { cost, expected });
    prop::collection::vec(prop::collection::vec(sample, 1..40), 1..=8)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Graham 1969: no order of the list is worse, whatever was expected.
    #[test]
    fn what_is_drawn_is_done_within_grahams_bound(batches in samples(), workers in 1..20u32) {
        let run = run(workers, Order::StartPlan, &batches);
        let least = run.share.max(run.longest);
        let most = least * (2.0 - 1.0 / f64::from(workers));
        prop_assert!(run.makespan() <= most * 1.0001, "{} {}", run.makespan(), most);
        prop_assert_eq!(run.delivered.len(), batches.len());
    }
}
