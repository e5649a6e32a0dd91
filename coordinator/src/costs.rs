//! What samples were measured to cost, for all streams of one pipeline; and what is expected of the next.
//!
//! The sums are [`coprep_costs`]'s; here is who measures, who asks, and the lock between them, which a worker that
//! measures never waits for: a measurement more or less does not matter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coprep_cache::sample_cache::Form;
use coprep_costs::{Budget, CostTable, Features, Measured, Predictor, early};

use crate::prepare::Cost;

/// Measurements before the model is asked.
const ENOUGH: u32 = 32;
/// Pipelines whose costs are kept when no stream uses them.
const MOST_KEPT: usize = 16;

/// See the module.
pub(crate) struct Costs {
    /// False: nothing is measured.
    is_on: bool,
    table: CostTable,
    learned: Mutex<Learned>,
}

struct Learned {
    predictor: Predictor,
    /// Samples that the predictor has seen.
    seen: u32,
    /// Of the seconds of the last preparations, whatever was cached.
    budget: Budget,
}

impl Costs {
    fn new(samples: u32, is_on: bool) -> Self {
        Costs {
            is_on,
            table: CostTable::new(if is_on { samples } else { 0 }),
            learned: Mutex::new(Learned {
                predictor: Predictor::new(),
                seen: 0,
                budget: Budget::new(),
            }),
        }
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A sample was prepared.
    pub(crate) fn record(&self, id: u32, cost: &Cost) {
        if !self.is_on {
            return;
        }
        let measured = cost.measured();
        self.table.record(id, &measured);
        let Ok(mut learned) = self.learned.try_lock() else {
            return;
        };
        learned.budget.observe(cost.total().as_secs_f32());
        // Only a preparation from the file says what is saved by what is cached.
        if measured.decode.is_some() && !cost.in_full {
            learned.predictor.observe(cost.features, &measured);
            learned.seen = learned.seen.saturating_add(1);
        }
    }

    /// What the stages of a sample will cost, by its header. None: too little is known.
    pub(crate) fn predict(&self, features: Features) -> Option<coprep_costs::Cost> {
        let learned = self.learned();
        (learned.seen >= ENOUGH).then(|| learned.predictor.predict(features))
    }

    /// Seconds that a sample will take a worker if it is cached in `form`. None: it was never prepared.
    pub(crate) fn expected(&self, id: u32, form: Option<Form>) -> Option<f32> {
        let cost = self.table.get(id)?;
        Some(match form {
            None => cost.total(),
            Some(Form::Encoded) => cost.prep(),
            Some(Form::Decoded) => cost.random,
            Some(Form::Prepared) => 0.0,
        })
    }

    /// Mean seconds of the last preparations.
    pub(crate) fn mean(&self) -> f32 {
        self.learned().budget.recent().mean().unwrap_or(0.0)
    }

    /// Seconds beyond which a sample counts as slow.
    pub(crate) fn budget(&self) -> Option<f32> {
        self.learned().budget.seconds()
    }

    /// Minibatches of so many samples to draw ahead, `period` seconds apart; `spread`: beyond what the longest sample needs.
    pub(crate) fn window(&self, samples: u32, period: f32, spread: u32, most: u32) -> u32 {
        early::window_needed(
            self.learned().budget.recent(),
            samples,
            period,
            spread,
            most,
        )
    }

    /// The samples that cost most.
    pub(crate) fn slowest(&self, count: usize) -> Vec<(u32, coprep_costs::Cost)> {
        self.table.slowest(count)
    }

    /// Samples that were measured, and the bytes that this takes.
    pub(crate) fn size(&self) -> (u32, usize) {
        (self.table.measured(), self.table.heap_bytes())
    }
}

/// A pipeline, and how many samples its dataset has: one that was listed anew is another.
type Key = (u128, u32);

/// The costs of all pipelines.
pub(crate) struct AllCosts {
    is_on: bool,
    by_pipeline: Mutex<Vec<(Key, Arc<Costs>)>>,
}

impl AllCosts {
    pub(crate) fn new(is_on: bool) -> Self {
        AllCosts {
            is_on,
            by_pipeline: Mutex::default(),
        }
    }

    /// Those of one pipeline.
    pub(crate) fn of(&self, pipeline: u128, samples: u32) -> Arc<Costs> {
        let mut all = self
            .by_pipeline
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, costs)) = all.iter().find(|(key, _)| *key == (pipeline, samples)) {
            return costs.clone();
        }
        if all.len() >= MOST_KEPT
            && let Some(unused) = all.iter().position(|(_, c)| Arc::strong_count(c) == 1)
        {
            all.remove(unused);
        }
        let costs = Arc::new(Costs::new(samples, self.is_on));
        all.push(((pipeline, samples), costs.clone()));
        costs
    }
}

impl Cost {
    fn measured(&self) -> Measured {
        let ran = |time: std::time::Duration| (!time.is_zero()).then_some(time.as_secs_f32());
        Measured {
            fetch: ran(self.fetch),
            decode: ran(self.decode),
            fixed: ran(self.fixed),
            random: ran(self.random),
            cpu: ran(self.cpu),
        }
    }
}
