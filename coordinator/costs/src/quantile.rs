//! What samples cost lately, and from when on one is slow.
//!
//! MinatoLoader (Nouaji, Bitchebe, Balmau, Macedo 2025, arXiv 2509.10712) tells slow samples from fast ones by
//! a timeout: a percentile of the preparation times that it measured, set anew as it runs. A percentile alone
//! calls a fixed share of the samples slow, also where all take about the same. So [`Budget`] starts from the
//! upper quartile, and lies outside the bulk:
//!
//! ```text
//! budget = max(2 * q75, q75 + 3 * (q75 - q25), 1 ms)
//! ```
//!
//! The second is the outer fence of Tukey (Exploratory Data Analysis, 1977), which follows the spread of the
//! bulk and not the tail; the first keeps jitter out where the spread is next to nothing. Where costs vary by
//! 30 % (coefficient of variation), fewer than 1 % are over it; of 5 % that take ten times the median nearly
//! all. The third is how long a thread waits for a processor that it lost: of samples of some microseconds, those would
//! be slow that happened to be made then. Whoever waits for a sample of a millisecond does not wait long.

/// Seconds. See the module.
const LEAST: f32 = 1e-3;
/// Values that are remembered.
const REMEMBERED: usize = 512;

/// The last 512 values.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    values: Vec<f32>,
    /// Where the next one goes.
    place: usize,
}

impl Recent {
    /// Nothing yet.
    pub fn new() -> Self {
        Recent::default()
    }

    /// Takes a value in, in place of the oldest. What is not finite is left out.
    pub fn observe(&mut self, value: f32) {
        if !value.is_finite() {
            return;
        }
        match self.values.get_mut(self.place) {
            Some(oldest) => *oldest = value,
            None => self.values.push(value),
        }
        self.place = (self.place + 1) % REMEMBERED;
    }

    /// None: no value yet.
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

    /// The values of which these shares (0 to 1, falling) are below; of few values the nearest. None: no value yet.
    fn quantiles<const N: usize>(&self, shares: [f32; N]) -> Option<[f32; N]> {
        let last = self.values.len().checked_sub(1)?;
        let mut values = self.values.clone();
        let mut end = values.len();
        Some(shares.map(|share| {
            let rank = (share.clamp(0.0, 1.0) * last as f32).round() as usize;
            // What is above the one before need not be looked at again.
            let (_, value, _) = values[..end].select_nth_unstable_by(rank, f32::total_cmp);
            end = rank + 1;
            *value
        }))
    }

    /// Not a number: no value yet.
    fn mean(&self) -> f32 {
        let sum: f64 = self.values.iter().copied().map(f64::from).sum();
        (sum / self.values.len() as f64) as f32
    }

    /// See [`Summary::variation`].
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

    /// How many values are remembered: at most 512.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// No value yet.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// What the last values say together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Of all of them.
    pub mean: f32,
    /// The median.
    pub usual: f32,
    /// Of a hundred the longest left out.
    pub longest: f32,
    /// The standard deviation, in means, where what is above the `longest` counts as that: a few values that are far off,
    /// often because a thread lost its processor, hardly change it. 0 if the mean is.
    pub variation: f32,
    /// What is above it is slow. See the module for the rule.
    pub fence: f32,
}

/// Observations before there is a budget.
const ENOUGH: usize = 32;
/// What is known is summed up anew when one in so many is new, and somebody asks.
const RENEWED: u32 = 4;

/// The seconds a sample may take before it counts as slow. See the module for the rule.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    recent: Recent,
    /// Since it was summed up.
    observed: u32,
    summary: Option<Summary>,
}

impl Budget {
    /// No budget yet.
    pub fn new() -> Self {
        Budget::default()
    }

    /// Takes in what a sample took, in seconds.
    pub fn observe(&mut self, seconds: f32) {
        self.recent.observe(seconds);
        self.observed = self.observed.saturating_add(1);
    }

    /// None before 32 samples.
    pub fn seconds(&mut self) -> Option<f32> {
        if self.recent.len() >= ENOUGH {
            self.summary().map(|summary| summary.fence)
        } else {
            None
        }
    }

    /// Of what was observed last. Summed up when it is asked for and a quarter is new, so that it costs next to nothing.
    /// None: nothing was.
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
        fn quantiles_are_those_of_the_last_512(values in prop::collection::vec(-1e3..1e3f32, 1..1200), q in 0.0..=1.0f32) {
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
        // 0, 2, 4: a variance of 8/3.
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

    /// The share of samples over the budget, of those with `is_tail` and of the others.
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
