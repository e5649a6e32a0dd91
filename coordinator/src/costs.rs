//! What samples were measured to cost, for all streams of one pipeline; and what is expected of the next.
//!
//! The sums are [`coprep_costs`]'s; here is who measures, who asks, and the lock between them, which a worker that
//! measures never waits for: a measurement more or less does not matter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coprep_cache::sample_cache::Form;
use coprep_costs::{CostTable, Features, Ledger, Measured, early};

use crate::prepare::Cost;

/// Pipelines whose costs are kept when no stream uses them.
const MOST_KEPT: usize = 16;

/// See the module.
pub(crate) struct Costs {
    /// False: nothing is measured.
    is_on: bool,
    table: CostTable,
    ledger: Mutex<Ledger>,
}

impl Costs {
    fn new(samples: u32, is_on: bool) -> Self {
        Costs {
            is_on,
            table: CostTable::new(if is_on { samples } else { 0 }),
            ledger: Mutex::new(Ledger::new()),
        }
    }

    /// All that was measured until now is in it and in the table.
    fn settled(&self) -> MutexGuard<'_, Ledger> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.settle(&self.table);
        ledger
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
        // Only a preparation from the file says what is saved by what is cached.
        let is_from_file = measured.decode.is_some() && !cost.in_full;
        match self.ledger.try_lock() {
            Ok(mut ledger) => {
                let features = is_from_file.then_some(cost.features);
                ledger.enter(&self.table, id, measured, features);
            }
            Err(_) => self.table.record(id, &measured),
        }
    }

    /// What the stages of a sample will cost, by its header. None: too little is known.
    pub(crate) fn predict(&self, features: Features) -> Option<coprep_costs::Cost> {
        self.settled().predict(features)
    }

    /// Seconds that a sample will take a worker if it is cached in `form`. None: it was never prepared, or among the last.
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
        self.settled().budget().recent().mean().unwrap_or(0.0)
    }

    /// Seconds beyond which a sample counts as slow.
    pub(crate) fn budget(&self) -> Option<f32> {
        self.settled().budget().seconds()
    }

    /// Minibatches of so many samples to draw ahead, `period` seconds apart; `spread`: beyond what the longest sample needs.
    pub(crate) fn window(&self, samples: u32, period: f32, spread: u32, most: u32) -> u32 {
        let mut ledger = self.settled();
        early::window_needed(ledger.budget().recent(), samples, period, spread, most)
    }

    /// The samples that cost most.
    pub(crate) fn slowest(&self, count: usize) -> Vec<(u32, coprep_costs::Cost)> {
        drop(self.settled());
        self.table.slowest(count)
    }

    /// Samples that were measured, and the bytes that this takes.
    pub(crate) fn size(&self) -> (u32, usize) {
        drop(self.settled());
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
