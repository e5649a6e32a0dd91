//! Statistics of recent costs, and the limit above which a sample is slow.
//!
//! MinatoLoader (Nouaji, Bitchebe, Balmau, Macedo 2025, arXiv 2509.10712) tells slow samples from fast ones by a
//! timeout: a percentile of the measured preparation times, which is updated at run time. But a percentile calls a
//! fixed share of the samples slow even if all take about the same time. So [`Budget`] starts from the upper quartile
//! and lies outside the bulk:
//!
//! ```text
//! budget = max(2 * q75, q75 + 3 * (q75 - q25), 1 ms)
//! ```
//!
//! The second term is the outer fence of Tukey (Exploratory Data Analysis, 1977), which follows the spread of the bulk
//! and not the tail. The first term ignores jitter if the spread is next to nothing. If costs vary by 30 % (coefficient
//! of variation), fewer than 1 % of the samples exceed the budget. If 5 % take ten times the median, nearly all of
//! those do. The third term is how long a thread waits for a processor that it lost. Without it, samples of some
//! microseconds would count as slow just because their thread lost its processor. A consumer that waits for a sample of
//! a millisecond does not wait long.

/// Least budget in seconds. See the module.
const LEAST: f32 = 1e-3;
/// Number of values that are remembered.
const REMEMBERED: usize = 512;

/// The last 512 values.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    values: Vec<f32>,
    /// Index of the next value to replace.
    next: usize,
}

impl Recent {
    /// Creates an empty record.
    pub fn new() -> Self {
        Recent::default()
    }

    /// Records a value in place of the oldest one. Values that are not finite are ignored.
    pub fn observe(&mut self, value: f32) {
        if !value.is_finite() {
            return;
        }
        match self.values.get_mut(self.next) {
            Some(oldest) => *oldest = value,
            None => self.values.push(value),
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// Returns the statistics of the values, or `None` if there is no value yet.
    pub fn summary(&self) -> Option<Summary> {
        let [longest, high, usual, low] = self.quantiles([0.99, 0.75, 0.5, 0.25])?;
        Some(Summary {
            mean: self.mean(),
            usual,
            longest,
            variation: self.variation(longest),
            fence: (2.0 * high).max(high + 3.0 * (high - low)).max(LEAST),
        })
    }

    /// Returns, for each share (0 to 1, falling), the value that this share of the values lies below. Of few values it
    /// is the nearest one. Returns `None` if there is no value yet.
    fn quantiles<const N: usize>(&self, shares: [f32; N]) -> Option<[f32; N]> {
        let last = self.values.len().checked_sub(1)?;
        let mut values = self.values.clone();
        let mut end = values.len();
        Some(shares.map(|share| {
            let rank = (share.clamp(0.0, 1.0) * last as f32).round() as usize;
            // The selection has moved all larger values behind this one, so the next, smaller quantile is before it.
            let (_, value, _) = values[..end].select_nth_unstable_by(rank, f32::total_cmp);
            end = rank + 1;
            *value
        }))
    }

    /// Returns the mean, which is not a number if there is no value yet.
    fn mean(&self) -> f32 {
        let sum: f64 = self.values.iter().copied().map(f64::from).sum();
        (sum / self.values.len() as f64) as f32
    }

    /// Returns [`Summary::variation`], where values above `most` count as `most`.
    fn variation(&self, most: f32) -> f32 {
        let values = || self.values.iter().map(|value| f64::from(value.min(most)));
        let count = self.values.len() as f64;
        let mean = values().sum::<f64>() / count;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        if mean > 0.0 {
            (variance.sqrt() / mean) as f32
        } else {
            0.0
        }
    }

    /// Returns the number of remembered values, which is at most 512.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns true if there is no value yet.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// Statistics of the last values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Mean of all values.
    pub mean: f32,
    /// Median.
    pub usual: f32,
    /// The 99th percentile.
    pub longest: f32,
    /// Standard deviation divided by the mean, where values above `longest` count as `longest`. So a few values that
    /// are far off, often because a thread lost its processor, hardly change it. It is 0 if the mean is 0.
    pub variation: f32,
    /// Limit above which a sample is slow. See the module for the rule.
    pub fence: f32,
}

/// Observations before there is a budget.
const ENOUGH: usize = 32;
/// Divisor of the number of values. The statistics are computed again if this share of the values is new and a caller
/// asks.
const RENEWED: u32 = 4;

/// Seconds that a sample may take before it counts as slow. See the module for the rule.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    recent: Recent,
    /// Number of observations since the statistics were computed.
    observed: u32,
    summary: Option<Summary>,
}

impl Budget {
    /// Creates a budget without observations.
    pub fn new() -> Self {
        Budget::default()
    }

    /// Records the seconds that a sample took.
    pub fn observe(&mut self, seconds: f32) {
        self.recent.observe(seconds);
        self.observed = self.observed.saturating_add(1);
    }

    /// Returns the budget, or `None` before 32 samples.
    pub fn seconds(&mut self) -> Option<f32> {
        if self.recent.len() >= ENOUGH {
            self.summary().map(|summary| summary.fence)
        } else {
            None
        }
    }

    /// Returns the statistics of recent observations, or `None` if there are none. They are computed only if a caller
    /// asks and a quarter of the values is new, so that they cost next to nothing.
    pub fn summary(&mut self) -> Option<Summary> {
        if self.observed.saturating_mul(RENEWED) >= self.recent.len() as u32 {
            self.summary = self.recent.summary();
            self.observed = 0;
        }
        self.summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_last_512(values in prop::collection::vec(-1_000_000..1_000_000i32, 1..1200), q in 0..=1000u16) {
            // From whole thousandths: proptest 1.12 panics on some draws from a range of `f32`.
            let values: Vec<f32> = values.iter().map(|&v| v as f32 / 1000.0).collect();
            let q = f32::from(q) / 1000.0;
            let mut recent = Recent::new();
            values.iter().for_each(|&v| recent.observe(v));
            let mut last = values[values.len().saturating_sub(512)..].to_vec();
            last.sort_by(f32::total_cmp);
            let rank = (q * (last.len() - 1) as f32).round() as usize;
            let highest = last[last.len() - 1];
            prop_assert_eq!(recent.quantiles([1.0, q, q]), Some([highest, last[rank], last[rank]]));
            let mean = last.iter().sum::<f32>() / last.len() as f32;
            let summary = recent.summary().unwrap();
            prop_assert!((summary.mean - mean).abs() < 0.1);
            for variation in [summary.variation, recent.variation(values[0])] {
                prop_assert!(variation.is_finite() && variation >= 0.0);
            }
            prop_assert!(summary.usual <= summary.longest && summary.longest <= highest);
        }

        #[test]
        fn whatever_is_observed_a_budget_is_finite(values in prop::collection::vec(any::<f32>(), 0..100)) {
            let mut budget = Budget::new();
            values.iter().for_each(|&v| budget.observe(v.abs() / 8.0));
            prop_assert!(budget.seconds().is_none_or(f32::is_finite));
        }
    }

    #[test]
    fn variation_is_the_deviation_in_means_whatever_the_highest_are() {
        let mut recent = Recent::new();
        recent.observe(0.0);
        assert_eq!(recent.variation(4.0), 0.0);
        [4e6, 2.0].into_iter().for_each(|v| recent.observe(v));
        // The highest value counts as 4, and 0, 2, 4 have a variance of 8/3.
        let variation = recent.variation(4.0);
        assert!(
            (variation - (8f32 / 3.0).sqrt() / 2.0).abs() < 1e-6,
            "{variation}"
        );
    }

    #[test]
    fn nothing_observed_has_no_quantile() {
        let mut recent = Recent::new();
        recent.observe(f32::NAN);
        assert_eq!((recent.summary(), recent.len()), (None, 0));
    }

    /// Returns the shares of samples over the budget, among those of the tail and among the others.
    fn over(cv: f32, tail: f32, seed: u64) -> (f32, f32) {
        let mut random = Random(seed);
        let (mut budget, mut slow) = (Budget::new(), [(0u32, 0u32); 2]);
        for _ in 0..20_000 {
            let is_tail = random.unit() < tail;
            let cost = random.lognormal(0.01, cv) * if is_tail { 10.0 } else { 1.0 };
            if let Some(seconds) = budget.seconds() {
                let (over, of) = &mut slow[usize::from(is_tail)];
                *over += u32::from(cost > seconds);
                *of += 1;
            }
            budget.observe(cost);
        }
        let share = |(over, of): (u32, u32)| over as f32 / of.max(1) as f32;
        (share(slow[1]), share(slow[0]))
    }

    #[test]
    fn where_costs_are_even_nearly_no_sample_is_slow() {
        for cv in [0.0, 0.01, 0.1, 0.2, 0.3] {
            let (_, others) = over(cv, 0.0, 3);
            assert!(others < 0.01, "{cv}: {others}");
        }
    }

    #[test]
    fn of_a_tail_of_ten_times_the_median_nearly_all_are_slow_and_of_the_others_nearly_none() {
        for cv in [0.0, 0.1, 0.2, 0.3] {
            let (tail, others) = over(cv, 0.05, 4);
            assert!(tail > 0.99 && others < 0.01, "{cv}: {tail} {others}");
        }
    }

    #[test]
    fn of_samples_of_some_microseconds_none_is_slow_that_lost_its_processor() {
        let mut budget = Budget::new();
        (0..512).for_each(|_| budget.observe(8e-6));
        assert_eq!(budget.seconds(), Some(1e-3));
    }

    #[test]
    fn there_is_no_budget_before_32_samples_and_it_follows_a_change() {
        let mut budget = Budget::new();
        (0..31).for_each(|_| budget.observe(1.0));
        assert_eq!(budget.seconds(), None);
        budget.observe(1.0);
        assert_eq!(budget.seconds(), Some(2.0));
        (0..512).for_each(|_| budget.observe(4.0));
        assert_eq!(budget.seconds(), Some(8.0));
    }
}
