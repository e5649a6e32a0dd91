//! Samples that the coordinator does not prepare.

use crate::observe::preparation_cost::PreparationCost;
use crate::produce::threads::PoolWork;
use crate::stream::sample::PendingSample;
use coprep_pipeline::Scratch;

/// The work of handing over once more the sample that its slot still has: see [`replay`](crate::stream::replay).
pub(super) struct ReplayWork(pub(super) PendingSample);

impl PoolWork for ReplayWork {
    fn run(mut self: Box<Self>, _: &mut Scratch) {
        if self.0.start() {
            self.0.prepared(&PreparationCost::default());
        }
        self.0.end();
    }
}

/// The work of telling the job which sample to prepare. The slot gets the visit, which keys the random operators.
pub(super) struct VisitWork(pub(super) PendingSample);

impl PoolWork for VisitWork {
    fn run(mut self: Box<Self>, _: &mut Scratch) {
        if self.0.start() {
            let visit = self.0.draw.key.to_ne_bytes();
            self.0.slot().field_mut(0).copy_from_slice(&visit);
            self.0.prepared(&PreparationCost::default());
        }
        self.0.end();
    }
}
