//! Measured costs of samples, for all streams of one pipeline, and the costs expected of the next samples.
//!
//! [`coprep_costs`] does the sums. This module connects the workers that measure with the parts that ask. A worker that
//! measures never waits for the lock between them, because a single measurement does not matter.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use coprep_cache::Form;
use coprep_costs::{CostRecorder, CostTable, Features, Summary};
use coprep_shared_memory::lock::lock;
use crossbeam::utils::CachePadded;

use crate::observe::preparation_cost::PreparationCost;

/// Number of pipelines whose costs are kept. Beyond it, the costs of a pipeline that no stream uses are dropped.
const MOST_KEPT: usize = 16;

/// Number of samples whose costs are kept. A dataset that claims more has them drawn without an end, and each hardly ever
/// comes again.
const MOST_SAMPLES: u32 = 1 << 28;

/// The costs of one pipeline; see the module.
pub(crate) struct Costs {
    /// `false` if nothing is measured.
    is_on: bool,
    table: CostTable,
    /// The recorder's budget, readable without its lock: seconds as bits of an `f32`, and NaN until there is one.
    budget: AtomicU32,
    /// Padded, so that locking it does not invalidate the cache line of threads that read the table.
    recorder: CachePadded<Mutex<CostRecorder>>,
}

impl Costs {
    fn new(samples: u32, is_on: bool) -> Self {
        Costs {
            is_on,
            table: CostTable::new(if is_on { samples.min(MOST_SAMPLES) } else { 0 }),
            budget: AtomicU32::new(f32::NAN.to_bits()),
            recorder: CachePadded::new(Mutex::new(CostRecorder::new())),
        }
    }

    /// Locks the recorder, which has only the measurements that were entered until now.
    fn recorder(&self) -> MutexGuard<'_, CostRecorder> {
        lock(&self.recorder)
    }

    /// Locks the recorder after all measurements until now were entered in it and in the table.
    fn settled(&self) -> MutexGuard<'_, CostRecorder> {
        let mut recorder = self.recorder();
        recorder.settle(&self.table);
        self.tell_budget(&mut recorder);
        recorder
    }

    fn tell_budget(&self, recorder: &mut CostRecorder) {
        let bits = recorder.budget().seconds().unwrap_or(f32::NAN).to_bits();
        // A store of the same value would only take the cache line away from the threads that read it.
        if bits != self.budget.load(Ordering::Relaxed) {
            self.budget.store(bits, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Records that a sample was prepared.
    pub(crate) fn record(&self, id: u32, cost: &PreparationCost) {
        if !self.is_on {
            return;
        }
        let measured = cost.times;
        // Only a preparation from the file tells what caching saves, and user code gives no features of its samples.
        let is_from_file = measured.decode.is_some() && !cost.in_full;
        let features = Some(cost.features).filter(|f| is_from_file && *f != Features::UNKNOWN);
        match self.recorder.try_lock() {
            Ok(mut recorder) => {
                if recorder.enter(&self.table, id, measured, features) {
                    self.tell_budget(&mut recorder);
                }
            }
            // Another worker holds the lock: this measurement reaches only the table.
            Err(_) => self.table.record(id, &measured),
        }
    }

    /// Returns the expected cost of each stage of a sample by its header, or `None` if too little is known.
    pub(crate) fn predict(&self, features: Features) -> Option<coprep_costs::ExpectedCost> {
        self.recorder().predict(features)
    }

    /// Returns the seconds that a sample will take a worker if it is cached in `form`. Returns `None` if it was never
    /// prepared, or only so recently that its cost is not yet entered.
    pub(crate) fn expected(&self, id: u32, form: Option<Form>) -> Option<f32> {
        let [fetch, decode, fixed, random] = self.table.stages(id)?;
        Some(match form {
            None => fetch + decode + fixed + random,
            Some(Form::Encoded) => decode + fixed + random,
            Some(Form::Decoded) => random,
            Some(Form::Prepared) => 0.0,
        })
    }

    /// Returns a summary of the last preparations.
    pub(crate) fn lately(&self) -> Option<Summary> {
        self.settled().budget().summary()
    }

    /// Returns the seconds beyond which a sample counts as slow. Takes no lock, because it is asked for nearly every
    /// sample.
    pub(crate) fn budget(&self) -> Option<f32> {
        let seconds = f32::from_bits(self.budget.load(Ordering::Relaxed));
        (!seconds.is_nan()).then_some(seconds)
    }

    /// Returns the samples that cost most.
    pub(crate) fn slowest(&self, count: usize) -> Vec<(u32, coprep_costs::ExpectedCost)> {
        drop(self.settled());
        self.table.slowest(count)
    }

    /// Returns the number of samples that were measured, and the bytes that their costs take.
    pub(crate) fn size(&self) -> (u32, usize) {
        drop(self.settled());
        (self.table.measured(), self.table.heap_bytes())
    }
}

/// A pipeline, and the number of samples of its dataset. A dataset that was listed again with another number has its
/// own costs.
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

    /// Returns the costs of one pipeline, which are created if they are missing.
    pub(crate) fn of(&self, pipeline: u128, samples: u32) -> Arc<Costs> {
        let mut all = lock(&self.by_pipeline);
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
