//! A simulated workshop. Minibatches are drawn in order. Their samples wait in one queue for the workers, smallest key
//! first, and minibatches are delivered in order.
//!
//! No worker is idle while a sample waits. At most `window` minibatches are drawn and not delivered. When one is
//! delivered, the next is drawn.
#![allow(dead_code, clippy::allow_attributes, reason = "no user uses all of it")]

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use coprep_costs::lookahead::{StartPlan, next_due};

use crate::random::Random;

/// The order in which samples are started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// Earliest draw first.
    Drawn,
    /// Longest first, among all samples drawn.
    Longest,
    /// Due time minus cost.
    Due,
    /// Due time minus cost, but the slow samples of a minibatch at even distances over the window, longest first.
    Spread,
    /// The order of [`StartPlan`].
    StartPlan,
}

/// A sample's true and expected cost, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) cost: f32,
    pub(crate) expected: f32,
}

pub(crate) type Batch = Vec<Sample>;

/// Draws minibatches of 64 samples, of which 5 % cost `tail` times as much as the others.
pub(crate) fn batches(count: usize, tail: f32, random: &mut Random) -> Vec<Batch> {
    let mut sample = || {
        let times = if random.unit() < 0.05 { tail } else { 1.0 };
        let cost = times * random.lognormal(1.0, 0.2);
        Sample {
            cost,
            expected: cost,
        }
    };
    let mut batch = |_| (0..64).map(|_| sample()).collect();
    (0..count).map(&mut batch).collect()
}

/// Makes expectations a third off, and takes one slow sample in ten for a usual one.
pub(crate) fn misjudged(mut batches: Vec<Batch>, random: &mut Random) -> Vec<Batch> {
    for sample in batches.iter_mut().flatten() {
        let is_missed = sample.cost > 4.0 && random.unit() < 0.1;
        let expected = if is_missed { 1.0 } else { sample.cost };
        sample.expected = random.lognormal(expected, 0.33);
    }
    batches
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Workshop {
    pub(crate) workers: u32,
    /// Largest number of minibatches drawn and not delivered.
    pub(crate) window: u32,
    pub(crate) order: Order,
}

/// The result of a simulation.
#[derive(Debug)]
pub(crate) struct Run {
    /// Delivery time of each minibatch.
    pub(crate) delivered: Vec<f64>,
    /// Work of all samples divided by the number of workers.
    pub(crate) share: f64,
    pub(crate) longest: f64,
}

impl Run {
    pub(crate) fn makespan(&self) -> f64 {
        self.delivered.last().copied().unwrap_or(0.0)
    }

    /// Returns the times between deliveries, sorted, without the first and the last 24 minibatches.
    fn gaps(&self) -> Vec<f64> {
        let steady = &self.delivered[24..self.delivered.len() - 24];
        let mut gaps: Vec<f64> = steady.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_by(f64::total_cmp);
        gaps
    }

    /// Returns the gap that a share of `q` stays below, in seconds.
    pub(crate) fn gap(&self, q: f64) -> f64 {
        let gaps = self.gaps();
        gaps[(gaps.len() as f64 * q) as usize]
    }

    /// Returns the seconds from one delivery to the next if all were even.
    pub(crate) fn period(&self) -> f64 {
        self.share / self.delivered.len() as f64
    }
}

impl Workshop {
    pub(crate) fn run(self, batches: &[Batch]) -> Run {
        let costs = || batches.iter().flatten().map(|s| f64::from(s.cost));
        let share = costs().sum::<f64>() / f64::from(self.workers);
        let mut floor = Floor {
            shop: self,
            batches,
            period: share / batches.len() as f64,
            now: 0.0,
            waiting: BinaryHeap::new(),
            running: BinaryHeap::new(),
            missing: VecDeque::new(),
            delivered: Vec::new(),
            due: 0.0,
            plan: StartPlan::new(),
        };
        while floor.step() {}
        Run {
            delivered: floor.delivered,
            share,
            longest: costs().fold(0.0, f64::max),
        }
    }
}

/// A number in a heap, with a total order.
#[derive(Clone, Copy, PartialEq)]
struct At(f64);

impl Eq for At {}

impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Floor<'a> {
    shop: Workshop,
    batches: &'a [Batch],
    period: f64,
    now: f64,
    /// Key, minibatch and cost of the samples that wait.
    waiting: BinaryHeap<Reverse<(At, usize, At)>>,
    /// End and minibatch of the samples in progress.
    running: BinaryHeap<Reverse<(At, usize)>>,
    /// Number of unfinished samples of each drawn minibatch, from the next delivery on.
    missing: VecDeque<usize>,
    delivered: Vec<f64>,
    due: f64,
    plan: StartPlan,
}

impl Floor<'_> {
    /// Advances to the next finished sample. Returns false if no sample was in progress.
    fn step(&mut self) -> bool {
        self.draw();
        self.start();
        let Some(Reverse((At(now), k))) = self.running.pop() else {
            return false;
        };
        self.now = now;
        self.missing[k - self.delivered.len()] -= 1;
        while self.missing.front() == Some(&0) {
            self.missing.pop_front();
            self.delivered.push(now);
        }
        true
    }

    fn draw(&mut self) {
        while self.missing.len() < self.shop.window as usize {
            let k = self.delivered.len() + self.missing.len();
            let Some(batch) = self.batches.get(k) else {
                return;
            };
            let keys = self.keys(k, batch);
            self.missing.push_back(batch.len());
            for (sample, key) in batch.iter().zip(keys) {
                let cost = At(f64::from(sample.cost));
                self.waiting.push(Reverse((At(key), k, cost)));
            }
        }
    }

    fn keys(&mut self, k: usize, batch: &Batch) -> Vec<f64> {
        let (ahead, period) = (self.missing.len() as u32, self.period as f32);
        let expected: Vec<f32> = batch.iter().map(|s| s.expected).collect();
        self.due = next_due(self.due, self.now, ahead + 1, period);
        let due = self.due;
        let less_cost = expected.iter().map(|&e| due - f64::from(e));
        match self.shop.order {
            Order::Drawn => vec![k as f64; batch.len()],
            Order::Longest => expected.iter().map(|&e| -f64::from(e)).collect(),
            Order::Due => less_cost.collect(),
            Order::Spread => {
                let mut keys: Vec<f64> = less_cost.collect();
                self.spread(&expected, &mut keys);
                keys
            }
            Order::StartPlan => {
                self.plan
                    .draw(self.now, ahead, &expected, self.shop.workers, period)
            }
        }
    }

    fn spread(&self, expected: &[f32], keys: &mut [f64]) {
        let mut longest: Vec<usize> = (0..expected.len()).collect();
        longest.sort_by(|&a, &b| expected[b].total_cmp(&expected[a]));
        let usual = expected[longest[expected.len() / 2]];
        longest.retain(|&i| expected[i] > 3.0 * usual);
        let window = self.period * f64::from(self.shop.window);
        for (rank, &i) in longest.iter().enumerate() {
            let lead = window * (1.0 - rank as f64 / longest.len() as f64);
            keys[i] = keys[i].min(self.due - lead);
        }
    }

    fn start(&mut self) {
        while self.running.len() < self.shop.workers as usize {
            let Some(Reverse((_, k, At(cost)))) = self.waiting.pop() else {
                return;
            };
            self.running.push(Reverse((At(self.now + cost), k)));
        }
    }
}
