//! What samples were measured to cost, for all streams of one pipeline; and what is expected of the next.
//!
//! The sums are [`coprep_costs`]'s; here is who measures, who asks, and the lock between them, which a worker that
//! measures never waits for: a measurement more or less does not matter.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coprep_cache::sample_cache::Form;
use coprep_costs::{CostRecorder, CostTable, Features, Summary};
use crossbeam::utils::CachePadded;

use crate::observe::preparation_cost::PreparationCost;

/// Pipelines whose costs are kept when no stream uses them.
const MOST_KEPT: usize = 16;

/// See the module.
pub(crate) struct Costs {
    /// False: nothing is measured.
    is_on: bool,
    table: CostTable,
    /// Seconds, as bits; not a number: there is none yet. What the ledger says, without its lock.
    budget: AtomicU32,
    /// Whoever locks it takes no line of the cache from those who look at the table.
    ledger: CachePadded<Mutex<CostRecorder>>,
}

impl Costs {
    fn new(samples: u32, is_on: bool) -> Self {
        Costs {
            is_on,
            table: CostTable::new(if is_on { samples } else { 0 }),
            budget: AtomicU32::new(f32::NAN.to_bits()),
            ledger: CachePadded::new(Mutex::new(CostRecorder::new())),
        }
    }

    /// With what was entered until now.
    fn ledger(&self) -> MutexGuard<'_, CostRecorder> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was measured until now is in it and in the table.
    fn settled(&self) -> MutexGuard<'_, CostRecorder> {
        let mut ledger = self.ledger();
        ledger.settle(&self.table);
        self.tell_budget(&mut ledger);
        ledger
    }

    fn tell_budget(&self, ledger: &mut CostRecorder) {
        let bits = ledger.budget().seconds().unwrap_or(f32::NAN).to_bits();
        if bits != self.budget.load(Ordering::Relaxed) {
            self.budget.store(bits, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// A sample was prepared.
    pub(crate) fn record(&self, id: u32, cost: &PreparationCost) {
        if !self.is_on {
            return;
        }
        let measured = cost.measured();
        // Only a preparation from the file says what is saved by what is cached. User code tells nothing of its samples.
        let is_from_file = measured.decode.is_some() && !cost.in_full;
        let features = Some(cost.features).filter(|f| is_from_file && *f != Features::UNKNOWN);
        match self.ledger.try_lock() {
            Ok(mut ledger) => {
                if ledger.enter(&self.table, id, measured, features) {
                    self.tell_budget(&mut ledger);
                }
            }
            Err(_) => self.table.record(id, &measured),
        }
    }

    /// What the stages of a sample will cost, by its header. None: too little is known.
    pub(crate) fn predict(&self, features: Features) -> Option<coprep_costs::ExpectedCost> {
        self.ledger().predict(features)
    }

    /// Seconds that a sample will take a worker if it is cached in `form`. None: it was never prepared, or among the last.
    pub(crate) fn expected(&self, id: u32, form: Option<Form>) -> Option<f32> {
        let [fetch, decode, fixed, random] = self.table.stages(id)?;
        Some(match form {
            None => fetch + decode + fixed + random,
            Some(Form::Encoded) => decode + fixed + random,
            Some(Form::Decoded) => random,
            Some(Form::Prepared) => 0.0,
        })
    }

    /// What the last preparations took.
    pub(crate) fn lately(&self) -> Option<Summary> {
        self.settled().budget().summary()
    }

    /// Seconds beyond which a sample counts as slow. Without a lock: it is asked for with many a sample.
    pub(crate) fn budget(&self) -> Option<f32> {
        let seconds = f32::from_bits(self.budget.load(Ordering::Relaxed));
        (!seconds.is_nan()).then_some(seconds)
    }

    /// The samples that cost most.
    pub(crate) fn slowest(&self, count: usize) -> Vec<(u32, coprep_costs::ExpectedCost)> {
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
type CostsKey = (u128, u32);

/// The costs of all pipelines.
pub(crate) struct AllCosts {
    is_on: bool,
    by_pipeline: Mutex<Vec<(CostsKey, Arc<Costs>)>>,
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
