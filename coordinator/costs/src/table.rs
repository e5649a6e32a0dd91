//! The measured cost of each sample.
//!
//! The table has one atomic word and one half-word per sample, which every worker writes without a lock. If two threads
//! record the same sample at the same moment, one measurement may be lost, but each value is one that a thread wrote.
//!
//! **Mean.** A new measurement moves the old value by a quarter of the difference. This is an exponentially weighted
//! mean, in which the last three measurements weigh more than all earlier ones. A stage that did not run keeps its
//! value.
//!
//! **Code of a value.** A code has 16 bits. 0 is *unknown*. `c >= 1` is 10 ns plus `c - 1` steps, and 1680 steps double
//! a value, so the range is 10 ns to 92 minutes. Between two powers of two the steps are even, 0.06 % of the value at
//! the lower end and 0.03 % at the upper. That is how floating-point numbers work too, so a code is computed from their
//! bits without a logarithm. Values outside the range are moved to its nearer end.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytemuck::allocation::zeroed_slice_box;

/// Seconds that a sample takes. The four stages are wall time. An unknown value is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpectedCost {
    /// Reading from storage.
    pub fetch: f32,
    /// Decoding.
    pub decode: f32,
    /// Deterministic operators after decoding.
    pub fixed: f32,
    /// Random operators.
    pub random: f32,
    /// CPU seconds of the thread, over all stages.
    pub cpu: f32,
}

impl ExpectedCost {
    /// Returns the wall seconds of all stages.
    pub fn total(&self) -> f32 {
        self.fetch + self.prep()
    }

    /// Returns the wall seconds of all stages after the fetch.
    pub fn prep(&self) -> f32 {
        self.decode + self.fixed + self.random
    }
}

/// Seconds of one preparation of a sample, or of a part of it. A stage that did not run is `None`.
///
/// This is the one type of measured times. The stages that measure return it, and the statistics record it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeasuredTimes {
    /// Reading from storage.
    pub fetch: Option<f32>,
    /// Decoding.
    pub decode: Option<f32>,
    /// Deterministic operators after decoding.
    pub fixed: Option<f32>,
    /// Random operators.
    pub random: Option<f32>,
    /// CPU seconds of the thread.
    pub cpu: Option<f32>,
}

impl MeasuredTimes {
    /// Converts the time of one stage. Returns `None` for a stage that took no time, because then it did not run.
    pub fn stage(time: Duration) -> Option<f32> {
        (!time.is_zero()).then_some(time.as_secs_f32())
    }

    /// Returns the wall seconds of the stages that ran.
    pub fn total(&self) -> f32 {
        self.stages().into_iter().flatten().sum()
    }

    /// Returns the wall seconds of the fetch; 0 if it did not run.
    pub fn fetch_seconds(&self) -> f32 {
        self.fetch.unwrap_or(0.0)
    }

    /// Returns the wall seconds of all stages after the fetch; 0 if none of them ran.
    pub fn prep(&self) -> f32 {
        let [_, prep @ ..] = self.stages();
        prep.into_iter().flatten().sum()
    }

    /// Returns the sum with the times of another part of the same preparation.
    #[must_use]
    pub fn plus(self, other: MeasuredTimes) -> MeasuredTimes {
        let sum = |a: Option<f32>, b: Option<f32>| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (one, other) => one.or(other),
        };
        MeasuredTimes {
            fetch: sum(self.fetch, other.fetch),
            decode: sum(self.decode, other.decode),
            fixed: sum(self.fixed, other.fixed),
            random: sum(self.random, other.random),
            cpu: sum(self.cpu, other.cpu),
        }
    }

    fn stages(&self) -> [Option<f32>; 4] {
        [self.fetch, self.decode, self.fixed, self.random]
    }
}

impl From<MeasuredTimes> for ExpectedCost {
    /// Expects that the next preparation takes as long as this one. Stages that did not run are unknown.
    fn from(measured: MeasuredTimes) -> Self {
        let [fetch, decode, fixed, random] = measured.stages().map(Option::unwrap_or_default);
        ExpectedCost {
            fetch,
            decode,
            fixed,
            random,
            cpu: measured.cpu.unwrap_or_default(),
        }
    }
}

/// The costs of samples 0..n, shared by threads. It takes 10 bytes a sample, and the system provides the memory only as
/// it is written.
#[derive(Debug)]
pub struct CostTable {
    /// Codes of fetch, decode, fixed and random, 16 bits each. 0 if no stage was measured.
    stages: Box<[AtomicU64]>,
    cpu: Box<[AtomicU16]>,
    measured: AtomicU32,
}

impl CostTable {
    /// Creates a table for `samples` samples, all of them unknown.
    pub fn new(samples: u32) -> Self {
        CostTable {
            stages: zeroed_slice_box(samples as usize),
            cpu: zeroed_slice_box(samples as usize),
            measured: AtomicU32::new(0),
        }
    }

    /// Takes a measurement into the mean. Unknown ids and values that are not numbers are ignored.
    pub fn record(&self, id: u32, measured: &MeasuredTimes) {
        let id = id as usize;
        let (Some(stages), Some(cpu)) = (self.stages.get(id), self.cpu.get(id)) else {
            return;
        };
        // Of two threads that read the same old value, one loses its measurement, which a mean can bear.
        let old = stages.load(Relaxed);
        let new = merge(old, measured);
        if new != old {
            // A swap, so that only one of two threads counts a new sample.
            let first = stages.swap(new, Relaxed) == 0;
            self.measured.fetch_add(u32::from(first), Relaxed);
        }
        cpu.store(mean(cpu.load(Relaxed), measured.cpu), Relaxed);
    }

    /// Returns the cost of a sample, or `None` if no stage of it was measured.
    pub fn get(&self, id: u32) -> Option<ExpectedCost> {
        let [fetch, decode, fixed, random] = self.stages(id)?;
        Some(ExpectedCost {
            fetch,
            decode,
            fixed,
            random,
            cpu: seconds(self.cpu.get(id as usize)?.load(Relaxed)),
        })
    }

    /// Returns the wall seconds of fetch, decode, fixed and random, or `None` if no stage was measured. It reads only
    /// one word of memory, for callers that ask for many samples.
    pub fn stages(&self, id: u32) -> Option<[f32; 4]> {
        let stages = self.stages.get(id as usize)?.load(Relaxed);
        (stages != 0).then(|| codes(stages).map(seconds))
    }

    /// Returns the `n` measured samples of the highest [`total`](ExpectedCost::total), slowest first.
    pub fn slowest(&self, n: usize) -> Vec<(u32, ExpectedCost)> {
        let mut heap = BinaryHeap::with_capacity(n.min(self.stages.len()) + 1);
        for (id, cost) in self.known() {
            heap.push(Reverse(Slow { id, cost }));
            if heap.len() > n {
                heap.pop();
            }
        }
        let sorted = heap.into_sorted_vec();
        sorted.into_iter().map(|s| (s.0.id, s.0.cost)).collect()
    }

    fn known(&self) -> impl Iterator<Item = (u32, ExpectedCost)> {
        let ids = 0..self.stages.len() as u32;
        ids.filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Returns the number of samples with a measured stage.
    pub fn measured(&self) -> u32 {
        self.measured.load(Relaxed)
    }

    /// Returns the bytes reserved. Parts of the table that were never written do not occupy memory yet.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.stages) + size_of_val(&*self.cpu)
    }
}

fn merge(stages: u64, measured: &MeasuredTimes) -> u64 {
    let codes = codes(stages);
    let each = measured.stages();
    let new: [u16; 4] = std::array::from_fn(|i| mean(codes[i], each[i]));
    new.iter()
        .rev()
        .fold(0, |word, &code| word << 16 | u64::from(code))
}

fn codes(stages: u64) -> [u16; 4] {
    std::array::from_fn(|i| (stages >> (16 * i)) as u16)
}

/// Weight of the newest measurement in the mean.
const NEWEST: f32 = 0.25;

fn mean(old: u16, new: Option<f32>) -> u16 {
    match new {
        Some(new) if new.is_nan() => old,
        Some(new) if old == 0 => code(new),
        Some(new) => code(seconds(old) + NEWEST * (new - seconds(old))),
        None => old,
    }
}

const SHORTEST: f32 = 1e-8;
const STEPS_PER_OCTAVE: u64 = 1680;
/// Difference in the bits of an `f32` between a value and its double: one step of the exponent.
const BITS_PER_OCTAVE: u64 = 1 << (f32::MANTISSA_DIGITS - 1);

fn code(seconds: f32) -> u16 {
    let bits = u64::from(seconds.max(SHORTEST).to_bits() - SHORTEST.to_bits());
    // Adding half an octave's bits rounds to the nearest step.
    let steps = (bits * STEPS_PER_OCTAVE + BITS_PER_OCTAVE / 2) / BITS_PER_OCTAVE;
    u16::try_from(1 + steps).unwrap_or(u16::MAX)
}

fn seconds(code: u16) -> f32 {
    match code {
        0 => 0.0,
        code => {
            let bits = u64::from(code - 1) * BITS_PER_OCTAVE / STEPS_PER_OCTAVE;
            f32::from_bits(SHORTEST.to_bits() + bits as u32)
        }
    }
}

/// A sample for sorting by cost. Of two with equal cost, the one with the lower id counts as slower.
struct Slow {
    id: u32,
    cost: ExpectedCost,
}

impl Ord for Slow {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_cost = self.cost.total().total_cmp(&other.cost.total());
        by_cost.then(other.id.cmp(&self.id))
    }
}

impl PartialOrd for Slow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Slow {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Slow {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fetched(seconds: f32) -> MeasuredTimes {
        MeasuredTimes {
            fetch: Some(seconds),
            ..MeasuredTimes::default()
        }
    }

    fn near(a: f32, b: f32) -> bool {
        (a - b).abs() <= 0.001 * b
    }

    proptest! {
        #[test]
        fn a_value_comes_back_to_a_thousandth(exponent in -8_000..3_560i16) {
            // From whole thousandths: proptest 1.12 panics on some draws from a range of `f32`.
            let value = 10f32.powf(f32::from(exponent) / 1000.0);
            prop_assert!(near(seconds(code(value)), value), "{value} {}", seconds(code(value)));
        }

        #[test]
        fn whatever_is_recorded_costs_stay_numbers(values in prop::collection::vec(any::<f32>(), 1..20)) {
            let table = CostTable::new(1);
            for v in values {
                table.record(0, &MeasuredTimes { decode: Some(v), cpu: Some(v), ..MeasuredTimes::default() });
            }
            if let Some(cost) = table.get(0) {
                prop_assert!((0.0..6000.0).contains(&cost.total()) && (0.0..6000.0).contains(&cost.cpu));
            }
        }

        #[test]
        fn the_slowest_are_those_of_a_sorted_list(costs in prop::collection::vec(1..50u32, 0..60), n in 0..70usize) {
            let table = CostTable::new(60);
            for (id, &c) in (0..).zip(&costs) {
                table.record(id, &fetched(c as f32));
            }
            let mut ids: Vec<u32> = (0..costs.len() as u32).collect();
            ids.sort_by_key(|&id| (Reverse(costs[id as usize]), id));
            ids.truncate(n);
            let slowest: Vec<u32> = table.slowest(n).iter().map(|s| s.0).collect();
            prop_assert_eq!(slowest, ids);
        }
    }

    #[test]
    fn the_range_is_from_10_ns_to_more_than_an_hour() {
        assert_eq!([code(0.0), code(-1.0), code(1e-8)], [1; 3]);
        assert_eq!(code(f32::INFINITY), u16::MAX);
        assert!(seconds(u16::MAX) > 3600.0);
    }

    #[test]
    fn a_stage_of_a_sum_ran_if_it_ran_in_either_part() {
        let decoded = MeasuredTimes {
            decode: MeasuredTimes::stage(Duration::from_millis(500)),
            fixed: MeasuredTimes::stage(Duration::ZERO),
            ..MeasuredTimes::default()
        };
        let sum = fetched(0.25).plus(decoded).plus(fetched(0.5));
        assert_eq!((sum.fetch, sum.decode), (Some(0.75), Some(0.5)));
        assert_eq!((sum.fixed, sum.random, sum.cpu), (None, None, None));
        assert_eq!(
            (sum.total(), sum.fetch_seconds(), sum.prep()),
            (1.25, 0.75, 0.5)
        );
        assert_eq!(ExpectedCost::from(sum).total(), sum.total());
    }

    #[test]
    fn a_stage_that_did_not_run_keeps_its_value() {
        let table = CostTable::new(2);
        table.record(1, &fetched(0.5));
        let decode = Some(0.25);
        table.record(
            1,
            &MeasuredTimes {
                decode,
                ..MeasuredTimes::default()
            },
        );
        let cost = table.get(1).unwrap();
        assert!(near(cost.fetch, 0.5) && near(cost.prep(), 0.25) && near(cost.total(), 0.75));
        assert_eq!(
            (cost.random, table.get(0), table.measured()),
            (0.0, None, 1)
        );
    }

    #[test]
    fn a_new_value_moves_the_mean_by_a_quarter() {
        let table = CostTable::new(1);
        table.record(0, &fetched(1.0));
        table.record(0, &fetched(3.0));
        assert!(near(table.get(0).unwrap().fetch, 1.5));
        (0..40).for_each(|_| table.record(0, &fetched(3.0)));
        assert!(near(table.get(0).unwrap().fetch, 3.0));
    }

    #[test]
    fn what_is_no_sample_or_no_number_is_left_out() {
        let table = CostTable::new(3);
        table.record(3, &fetched(1.0));
        table.record(0, &fetched(f32::NAN));
        table.record(0, &MeasuredTimes::default());
        assert_eq!(
            (table.get(0), table.get(3), table.measured()),
            (None, None, 0)
        );
    }

    #[test]
    fn threads_leave_whole_values_and_count_each_sample_once() {
        let table = CostTable::new(500);
        let value = |thread: u32| 0.001 * 2f32.powi(thread as i32);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let table = &table;
                scope.spawn(move || {
                    for id in (0..500).chain(0..500) {
                        let v = Some(value(thread));
                        table.record(
                            id,
                            &MeasuredTimes {
                                fetch: v,
                                decode: v,
                                fixed: v,
                                random: v,
                                cpu: v,
                            },
                        );
                    }
                });
            }
        });
        let within = |v: f32| (0.0009..=0.0081).contains(&v);
        assert_eq!(table.measured(), 500);
        for id in 0..500 {
            let c = table.get(id).unwrap();
            assert!(
                c.fetch == c.decode && c.fetch == c.random && within(c.fetch) && within(c.cpu),
                "{c:?}"
            );
        }
    }

    #[test]
    fn a_sample_takes_no_more_than_16_bytes() {
        assert!(CostTable::new(1000).heap_bytes() <= 16_000);
        assert_eq!(CostTable::new(0).slowest(3), []);
    }
}
