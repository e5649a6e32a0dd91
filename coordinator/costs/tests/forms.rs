//! Tests of the choice of forms, against an exact solver, and online over random orders of samples like photographs.

mod random;

use coprep_costs::forms::{Chooser, Offer, offline, optimum};
use proptest::prelude::*;
use random::Random;

fn offer(bytes: u64, saves: f64) -> Offer {
    Offer { bytes, saves }
}

/// Returns the most that can be saved, by dynamic programming over the bytes.
fn exact(samples: &[Vec<Offer>], budget: u64) -> f64 {
    let mut best = vec![0.0f64; budget as usize + 1];
    for offers in samples {
        for room in (0..best.len()).rev() {
            let with = |o: &Offer| Some(best[room.checked_sub(o.bytes as usize)?] + o.saves);
            best[room] = offers.iter().filter_map(with).fold(best[room], f64::max);
        }
    }
    best[budget as usize]
}

fn small() -> impl Strategy<Value = Vec<Vec<Offer>>> {
    let one =
        (0..40u64, 0..100u32).prop_map(|(bytes, saves)| offer(bytes, f64::from(saves) / 10.0));
    prop::collection::vec(prop::collection::vec(one, 0..5), 0..25)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn offline_loses_at_most_one_sample_against_the_exact_optimum(samples in small(), budget in 0..300u64) {
        let exact = exact(&samples, budget);
        let choices = offline(&samples, budget);
        let chosen = || samples.iter().zip(&choices).filter_map(|(offers, c)| Some(offers[(*c)?]));
        let saved: f64 = chosen().map(|o| o.saves).sum();
        let largest = samples.iter().flatten().map(|o| o.saves).fold(0.0, f64::max);
        prop_assert!(chosen().map(|o| o.bytes).sum::<u64>() <= budget);
        prop_assert!(saved <= exact + 1e-9 && saved >= exact - largest - 1e-9, "{} of {}", saved, exact);
        prop_assert!(optimum(&samples, budget) >= exact - 1e-9);
    }

    #[test]
    fn online_the_budget_is_never_exceeded_whatever_is_offered(
        samples in small(), budget in 0..300u64, announced in 0..40u32, announced_bytes in 0..1000u64, returned in prop::collection::vec(any::<bool>(), 25),
    ) {
        let mut chooser = Chooser::new(budget, announced, announced_bytes);
        let mut kept = 0;
        for (offers, returned) in samples.iter().zip(returned) {
            match chooser.decide(offers.first().map_or(0, |o| o.bytes), offers) {
                Some(i) if returned => chooser.give_back(i, offers[i]),
                Some(i) => kept += offers[i].bytes,
                None => {}
            }
            prop_assert_eq!(chooser.taken_bytes(), kept);
            prop_assert!(kept <= budget && chooser.lambda() >= 0.0 && chooser.lambda().is_finite());
        }
    }
}

/// Location of a dataset, and the cause of its slow samples.
#[derive(Clone, Copy, Debug)]
struct World {
    remote: bool,
    /// True if slow samples have 20 times the bytes and pixels. Otherwise they take 20 times the time for the same
    /// bytes.
    large_tail: bool,
}

fn photograph(world: World, random: &mut Random) -> Vec<Offer> {
    let slow = random.unit() < 0.05;
    let large = if slow && world.large_tail { 20.0 } else { 1.0 };
    let encoded = random.lognormal(93_000.0, 0.6) * large;
    let decoded = 6.0 * encoded;
    let long = if slow && !world.large_tail { 20.0 } else { 1.0 };
    let decode = decoded / 3.0 * 12e-9 * long * random.lognormal(1.0, 0.15);
    let fetch = if world.remote {
        0.005 + encoded / 20e6
    } else {
        3e-5
    };
    vec![
        offer(encoded as u64, fetch.into()),
        offer(decoded as u64, (fetch + decode).into()),
    ]
}

/// Sorts samples in the order in which they are started: always the longest of `window` waiting samples.
fn longest_first(samples: Vec<Vec<Offer>>, window: usize) -> Vec<Vec<Offer>> {
    let mut drawn = samples.into_iter();
    let mut waiting: Vec<_> = drawn.by_ref().take(window).collect();
    let mut started = Vec::new();
    while !waiting.is_empty() {
        let bytes = |&at: &usize| waiting[at][0].bytes;
        let longest = (0..waiting.len()).max_by_key(bytes).expect("some wait");
        started.push(waiting.swap_remove(longest));
        waiting.extend(drawn.next());
    }
    started
}

fn encoded_bytes(samples: &[Vec<Offer>]) -> u64 {
    samples.iter().map(|offers| offers[0].bytes).sum()
}

/// Results as parts of the best possible ones.
#[derive(Debug)]
struct Outcome {
    saved: f64,
    filled: f64,
}

fn online(samples: &[Vec<Offer>], budget: u64) -> Outcome {
    let mut chooser = Chooser::new(budget, samples.len() as u32, encoded_bytes(samples));
    for offers in samples {
        chooser.decide(offers[0].bytes, offers);
        assert!(chooser.taken_bytes() <= budget);
    }
    let most = samples
        .iter()
        .map(|o| o.iter().map(|o| o.bytes).max().unwrap_or(0));
    let room = budget.min(most.sum());
    Outcome {
        saved: chooser.saved() / optimum(samples, budget),
        filled: chooser.taken_bytes() as f64 / room as f64,
    }
}

fn outcome(world: World, samples: usize, per_cent: u64, seed: u64) -> Outcome {
    let mut random = Random(seed);
    let samples: Vec<_> = (0..samples)
        .map(|_| photograph(world, &mut random))
        .collect();
    online(&samples, encoded_bytes(&samples) * per_cent / 100)
}

/// Returns the mean of the time saved, and checks that every run fills the budget.
fn saved(world: World, samples: usize, per_cent: u64, seeds: u64) -> f64 {
    let run = |seed| {
        let outcome = outcome(world, samples, per_cent, seed);
        assert!(
            outcome.filled >= 0.97,
            "{world:?} {per_cent} % seed {seed}: {outcome:?}"
        );
        outcome.saved
    };
    (0..seeds).map(run).sum::<f64>() / seeds as f64
}

/// Budgets in per cent of the encoded bytes.
const BUDGETS: [u64; 9] = [5, 10, 20, 35, 50, 75, 100, 150, 200];

fn worlds() -> impl Iterator<Item = World> {
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    kinds
        .into_iter()
        .map(|(remote, large_tail)| World { remote, large_tail })
}

#[test]
fn online_at_least_95_per_cent_of_the_optimum_is_saved_and_the_budget_filled() {
    for world in worlds() {
        for per_cent in BUDGETS {
            let saved = saved(world, 4000, per_cent, 2);
            assert!(saved >= 0.95, "{world:?} {per_cent} %: {saved}");
        }
    }
}

/// 1,000 samples have 50 slow ones, of which 9 fit into a budget of 5 %.
#[test]
fn of_few_samples_less_is_saved_only_where_a_handful_fill_the_budget() {
    for world in worlds() {
        for per_cent in BUDGETS {
            let handful = !world.remote && !world.large_tail && per_cent < 35;
            let least = if handful { 0.84 } else { 0.93 };
            let saved = saved(world, 1000, per_cent, 6);
            assert!(saved >= least, "{world:?} {per_cent} %: {saved}");
        }
    }
}

/// Fetching from the page cache is a copy, so the seconds saved per byte are nearly equal.
#[test]
fn a_budget_is_filled_though_the_smallest_samples_come_last() {
    for per_cent in BUDGETS.into_iter().filter(|&b| b <= 100) {
        for seed in 0..10 {
            let mut random = Random(seed);
            let mut copied = || {
                let slow = random.unit() < 0.05;
                let bytes = random.lognormal(93_000.0, 0.6) * if slow { 20.0 } else { 1.0 };
                let saves = 5e-6 + bytes * 2e-10 * random.lognormal(1.0, 0.3);
                vec![offer(bytes as u64, saves.into())]
            };
            let samples = longest_first((0..600).map(|_| copied()).collect(), 100);
            let outcome = online(&samples, encoded_bytes(&samples) * per_cent / 100);
            assert!(
                outcome.filled >= 0.97,
                "{per_cent} % seed {seed}: {outcome:?}"
            );
        }
    }
}

#[test]
fn where_all_samples_are_alike_the_budget_fills_evenly() {
    let mut chooser = Chooser::new(10_000, 1000, 30_000);
    let alike = [offer(30, 0.2), offer(100, 0.3)];
    let half = (0..500)
        .filter(|_| chooser.decide(30, &alike).is_some())
        .count();
    assert!((120..=180).contains(&half), "{half}");
    (0..500).for_each(|_| _ = chooser.decide(30, &alike));
    assert!(chooser.taken_bytes() >= 9_970);
}
