//! Numbers of an epoch, and the samples that they stand for.
//!
//! The scheduler assigns numbers. An epoch of a job is each number exactly once. If an epoch is each sample once,
//! numbers are sample ids. If an epoch consists of independent draws, a number stands for the sample that is drawn for
//! it, which is another one in each epoch. So a job may join, leave and resume draws in the same way as any epoch.
//!
//! **Numbers** identify all that concerns an epoch: needs, delivered samples, states, slots that exchange samples.
//! **Ids** identify all that concerns a sample: its files, its cache, its costs, its failures.
//!
//! If the jobs of a cohort tell the order of each epoch, a number stands for the sample at that position of the order.
//! The same sample may stand at any number of positions.
//!
//! A draw depends on the stream's seed, the number and the visit, and on nothing else. All jobs of a minibatch share
//! its visit, so they are given the same samples. A job never meets a number twice at one visit, so its draws are
//! independent.

use std::collections::BTreeMap;
use std::sync::Arc;

use coprep_protocol::message::{self, Attach, MOST_DRAWS};
use coprep_scheduler::{Draw, below, keyed};
use roaring::RoaringBitmap;

use crate::Result;
use crate::error::invalid;

/// The mapping from the numbers of a stream's epochs to samples.
#[derive(Clone)]
pub(crate) enum Numbers {
    /// A number is a sample id.
    Ids,
    /// A number stands for an independent draw of all samples of the dataset.
    Draws(Draws),
    /// A number is a position in the order of its epoch. The orders are stored by epoch. All minibatches are for one
    /// cohort, whose visits are epochs.
    Told(BTreeMap<u64, Arc<[u32]>>),
    /// A number is the position of a batch in the iteration of an epoch, and also its id. All minibatches are for one
    /// cohort, whose visits are epochs.
    Batches,
}

/// Independent draws with replacement.
#[derive(Clone)]
pub(crate) struct Draws {
    seed: u64,
    /// Number of samples of the dataset.
    samples: u32,
    /// Number of draws of an epoch.
    count: u32,
    /// For each id, the sum of the weights up to and including this sample. `None` if all samples are equally likely.
    cumulative: Option<Arc<[f64]>>,
}

/// A sample that is to be prepared for a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    pub(crate) number: u32,
    pub(crate) id: u32,
    /// Visit that the scheduler gave: the epoch, or a number that does not come again.
    pub(crate) visit: u64,
    /// Key of the sample's random operators, together with seed and id. A sample that is drawn twice in an epoch has
    /// two keys.
    pub(crate) key: u64,
    /// Number of samples that were drawn for this number before, and failed.
    attempt: u32,
}

/// Word that keeps these draws apart from those of the scheduler, which have the same seed.
const DRAW: u64 = u64::MAX;
/// Largest number of draws for one number. Only a dataset with hardly any readable sample fails that often.
const MOST_ATTEMPTS: u32 = 1000;

impl Numbers {
    /// Returns how many numbers an epoch of a dataset of `samples` samples has, or `None` if that becomes known when it
    /// begins.
    pub(crate) fn of_epoch(request: &Attach, samples: u32) -> Option<u32> {
        let draws = request.draws.as_ref();
        (!request.is_of_cohort()).then(|| draws.map_or(samples, |draws| draws.count))
    }

    /// Creates the mapping for the jobs of a stream.
    ///
    /// # Errors
    /// When the draws do not fit a dataset of `samples` samples.
    pub(crate) fn of(request: &Attach, seed: u64, samples: u32) -> Result<Self> {
        if request.is_iterated() {
            Ok(Numbers::Batches)
        } else if request.is_told {
            Ok(Numbers::Told(BTreeMap::new()))
        } else {
            Numbers::of_draws(request.draws.as_ref(), seed, samples)
        }
    }

    fn of_draws(draws: Option<&message::DrawsRequest>, seed: u64, samples: u32) -> Result<Self> {
        draws.map_or(Ok(Numbers::Ids), |draws| {
            Draws::new(draws, seed, samples).map(Numbers::Draws)
        })
    }

    /// Returns how many numbers an epoch of the whole dataset has.
    pub(crate) fn count(&self, samples: u32) -> u32 {
        match self {
            // The number is not known yet where orders are told, or batches are iterated.
            Numbers::Ids | Numbers::Told(_) | Numbers::Batches => samples,
            Numbers::Draws(draws) => draws.count,
        }
    }

    /// Returns `true` if numbers are ids.
    pub(crate) fn are_ids(&self) -> bool {
        matches!(self, Numbers::Ids)
    }

    /// Returns the sample that a number stands for at a visit.
    pub(crate) fn id(&self, number: u32, visit: u64) -> u32 {
        match self {
            Numbers::Ids | Numbers::Batches => number,
            Numbers::Draws(draws) => draws.id(number, visit, 0),
            // The scheduler draws only numbers of orders that are known.
            Numbers::Told(orders) => {
                let order = orders.get(&visit).map_or(&[][..], |order| &**order);
                order.get(number as usize).copied().unwrap_or(0)
            }
        }
    }

    /// Returns the sample of a number that the scheduler has drawn.
    pub(crate) fn sample(&self, draw: Draw) -> Drawn {
        let (number, visit) = (draw.id, draw.visit);
        Drawn {
            number,
            id: self.id(number, visit),
            visit,
            key: match self {
                // The reader is told the epoch by the key.
                Numbers::Ids | Numbers::Batches => visit,
                // The operators are keyed by the seed as well, so it need not be a part of this key.
                Numbers::Draws(_) | Numbers::Told(_) => keyed(DRAW, &[visit, number.into()]),
            },
            attempt: 0,
        }
    }

    /// Draws another sample for the number of one that failed: the next that is drawn for it and is not in `bad`.
    /// Returns `None` if a number stands for one sample only, or nothing else can be drawn.
    ///
    /// The result does not depend on which of the failing samples are known to be bad, or when: a sample that is not
    /// known to be bad fails, and the next one is drawn. So jobs that meet the number at different times are given the
    /// same sample.
    pub(crate) fn redraw(&self, failed: &Drawn, bad: &RoaringBitmap) -> Option<Drawn> {
        let Numbers::Draws(draws) = self else {
            return None;
        };
        let draw = |attempt| Drawn {
            id: draws.id(failed.number, failed.visit, attempt),
            attempt,
            ..*failed
        };
        let attempts = failed.attempt + 1..MOST_ATTEMPTS;
        attempts.map(draw).find(|drawn| !bad.contains(drawn.id))
    }
}

impl Draws {
    fn new(draws: &message::DrawsRequest, seed: u64, samples: u32) -> Result<Self> {
        check(draws, samples)?;
        let sums = |weights: &Vec<f64>| {
            let add = |sum: &mut f64, weight: &f64| {
                *sum += weight;
                Some(*sum)
            };
            weights.iter().scan(0.0, add).collect()
        };
        Ok(Draws {
            seed,
            samples,
            count: draws.count,
            cumulative: draws.weights.as_ref().map(sums),
        })
    }

    /// Returns the `attempt`-th sample that is drawn for a number.
    fn id(&self, number: u32, visit: u64, attempt: u32) -> u32 {
        let words = [DRAW, visit, number.into(), attempt.into()];
        let random = keyed(self.seed, &words);
        match &self.cumulative {
            None => below(random, self.samples.into()) as u32,
            Some(sums) => weighted(sums, random),
        }
    }
}

/// Returns the first sample whose sum is beyond a random part of the total. A weight of 0 adds nothing, so such a
/// sample is never drawn.
fn weighted(sums: &[f64], random: u64) -> u32 {
    let total = sums.last().copied().unwrap_or(0.0);
    // A float has 53 bits of precision.
    let part = (random >> 11) as f64 / (1u64 << 53) as f64 * total;
    let beyond = sums.partition_point(|&sum| sum <= part);
    if beyond < sums.len() {
        return beyond as u32;
    }
    // The product was rounded up to the total itself. The result is the last sample that can be drawn.
    sums.partition_point(|&sum| sum < total) as u32
}

/// Checks the draws that a job asks for.
///
/// # Errors
/// When an epoch would have no draw, or nothing could be drawn.
pub(crate) fn check(draws: &message::DrawsRequest, samples: u32) -> Result<()> {
    if draws.count == 0 || draws.count > MOST_DRAWS {
        return Err(invalid(format!("an epoch of {} draws", draws.count))
            .with_remedy(format!("it must have between 1 and {MOST_DRAWS}")));
    }
    if samples == 0 {
        return Err(invalid("the dataset has no samples to draw from"));
    }
    let Some(weights) = &draws.weights else {
        return Ok(());
    };
    if weights.len() != samples as usize {
        return Err(invalid(format!(
            "the sampler has {} weights, and the dataset {samples} samples",
            weights.len()
        ))
        .with_remedy("it must have one for each"));
    }
    let is_weight = |weight: &f64| weight.is_finite() && *weight >= 0.0;
    if let Some(id) = weights.iter().position(|weight| !is_weight(weight)) {
        return Err(
            invalid(format!("the weight of sample {id} is {}", weights[id]))
                .with_remedy("weights must be finite and not negative"),
        );
    }
    let total: f64 = weights.iter().sum();
    if !total.is_finite() || total <= 0.0 {
        return Err(invalid(format!("the sum of the weights is {total}"))
            .with_remedy("it must be finite and positive"));
    }
    Ok(())
}

/// Returns the identity of draws, or 0 if there are none.
pub(crate) fn fingerprint(draws: Option<&message::DrawsRequest>) -> u128 {
    let Some(draws) = draws else { return 0 };
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(&draws.count.to_le_bytes());
    if let Some(weights) = &draws.weights {
        hash.update(&(weights.len() as u64).to_le_bytes());
        weights
            .iter()
            .for_each(|weight| hash.update(&weight.to_le_bytes()));
    }
    hash.digest128().max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COUNT: u32 = 20_000;

    fn draws(weights: Option<&[f64]>, samples: u32) -> Numbers {
        let request = message::DrawsRequest {
            count: COUNT,
            weights: weights.map(<[f64]>::to_vec),
        };
        Numbers::of_draws(Some(&request), 7, samples).expect("valid draws")
    }

    /// Returns how often each sample is drawn in an epoch.
    fn counts(numbers: &Numbers, samples: u32, visit: u64) -> Vec<u32> {
        let mut counts = vec![0; samples as usize];
        (0..COUNT).for_each(|number| counts[numbers.id(number, visit) as usize] += 1);
        counts
    }

    /// Pearson's statistic of counts against probabilities.
    fn chi_square(counts: &[u32], weights: &[f64]) -> f64 {
        let total: f64 = weights.iter().sum();
        let term = |(&count, weight): (&u32, &f64)| {
            let expected = f64::from(COUNT) * weight / total;
            (f64::from(count) - expected).powi(2) / expected
        };
        counts.iter().zip(weights).map(term).sum()
    }

    #[test]
    fn samples_are_drawn_as_often_as_their_weights_say() {
        let weights = [1.0, 2.0, 0.5, 4.0, 8.0, 0.25, 3.0, 1.0];
        let numbers = draws(Some(&weights), 8);
        for visit in [0, 1, 1 << 63] {
            // 7 degrees of freedom: beyond 24.3 once in a thousand.
            let statistic = chi_square(&counts(&numbers, 8, visit), &weights);
            assert!(statistic < 24.3, "{statistic}");
        }
    }

    #[test]
    fn without_weights_all_samples_are_equally_likely() {
        let numbers = draws(None, 8);
        let statistic = chi_square(&counts(&numbers, 8, 3), &[1.0; 8]);
        assert!(statistic < 24.3, "{statistic}");
    }

    #[test]
    fn draws_of_two_epochs_and_of_two_numbers_are_independent() {
        let numbers = draws(None, 10);
        let mut pairs = [0u32; 100];
        let mut neighbours = [0u32; 100];
        for number in 0..COUNT {
            let id = |number, visit| numbers.id(number, visit) as usize;
            pairs[id(number, 0) * 10 + id(number, 1)] += 1;
            neighbours[id(number, 0) * 10 + id(number + 1, 0)] += 1;
        }
        for table in [pairs, neighbours] {
            // 99 degrees of freedom: beyond 148.2 once in a thousand.
            let statistic = chi_square(&table, &[1.0; 100]);
            assert!(statistic < 148.2, "{statistic}");
        }
    }

    #[test]
    fn a_sample_that_is_drawn_twice_has_two_keys() {
        let numbers = draws(None, 1);
        let sample = |number, visit| numbers.sample(Draw { id: number, visit });
        let keys = [sample(0, 0), sample(1, 0), sample(0, 1), sample(1, 1)].map(|drawn| drawn.key);
        let different: std::collections::BTreeSet<u64> = keys.into_iter().collect();
        assert_eq!(different.len(), 4);
        let plain = Numbers::Ids.sample(Draw { id: 5, visit: 3 });
        assert_eq!((plain.number, plain.id, plain.key), (5, 5, 3));
    }

    #[test]
    fn another_is_drawn_for_one_that_failed_whichever_are_known_to_be_bad() {
        let numbers = draws(None, 10);
        let bad: RoaringBitmap = (0..8).collect();
        for number in 0..100 {
            let mut one_by_one = numbers.sample(Draw {
                id: number,
                visit: 0,
            });
            let at_once = if bad.contains(one_by_one.id) {
                numbers.redraw(&one_by_one, &bad).expect("two are left")
            } else {
                one_by_one
            };
            while bad.contains(one_by_one.id) {
                let nothing = RoaringBitmap::new();
                one_by_one = numbers.redraw(&one_by_one, &nothing).expect("two are left");
            }
            assert_eq!(at_once, one_by_one);
        }
        let all: RoaringBitmap = (0..10).collect();
        let drawn = numbers.sample(Draw { id: 0, visit: 0 });
        assert_eq!(numbers.redraw(&drawn, &all), None);
        assert_eq!(Numbers::Ids.redraw(&drawn, &RoaringBitmap::new()), None);
    }

    #[test]
    fn draws_that_make_no_sense_are_refused() {
        let request = |count, weights: Option<&[f64]>| message::DrawsRequest {
            count,
            weights: weights.map(<[f64]>::to_vec),
        };
        let largest = [f64::MAX, f64::MAX];
        let wrong: [(message::DrawsRequest, &str); 8] = [
            (request(0, None), "draws"),
            (request(u32::MAX, None), "draws"),
            (request(1, Some(&[1.0])), "weights"),
            (request(1, Some(&[1.0, -1.0])), "sample 1 is -1"),
            (request(1, Some(&[f64::NAN, 1.0])), "sample 0 is NaN"),
            (request(1, Some(&[1.0, f64::INFINITY])), "sample 1 is inf"),
            (request(1, Some(&[0.0, 0.0])), "sum"),
            (request(1, Some(&largest)), "sum"),
        ];
        for (draws, why) in wrong {
            let error = check(&draws, 2).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(check(&request(1, None), 0).is_err());
    }

    #[test]
    fn equal_draws_have_one_fingerprint_and_others_another() {
        let request = |count, weights: Option<&[f64]>| message::DrawsRequest {
            count,
            weights: weights.map(<[f64]>::to_vec),
        };
        let of = |draws: &message::DrawsRequest| fingerprint(Some(draws));
        let weighted = request(5, Some(&[1.0, 2.0]));
        assert_eq!(of(&weighted), of(&weighted.clone()));
        for other in [
            request(6, Some(&[1.0, 2.0])),
            request(5, Some(&[2.0, 1.0])),
            request(5, None),
        ] {
            assert_ne!(of(&weighted), of(&other));
        }
        assert_eq!(fingerprint(None), 0);
    }

    proptest! {
        #[test]
        fn what_is_drawn_can_be_drawn(
            weights in proptest::collection::vec(prop_oneof![Just(0.0), (1..1_000_000u32).prop_map(|n| f64::from(n) * 1e294), Just(f64::MIN_POSITIVE)], 1..40),
            random: u64,
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            let numbers = draws(Some(&weights), weights.len() as u32);
            let Numbers::Draws(Draws { cumulative: Some(sums), .. }) = &numbers else {
                return Err(TestCaseError::fail("there are weights"));
            };
            for random in [random, 0, u64::MAX] {
                prop_assert!(weights[weighted(sums, random) as usize] > 0.0);
            }
        }
    }
}
