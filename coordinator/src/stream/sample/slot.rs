//! The slot of a sample, and the moment at which it is decided: see [`late_binding`](crate::stream::late_binding).

use std::sync::Arc;
use std::time::Duration;

use coprep_shared_memory::staging::SlotMut;
use coprep_shared_memory::task_table::TaskHandle;
use fail::fail_point;

use crate::produce::native::SlotWriter;
use crate::produce::threads::GivenUp;
use crate::stream::Stream;
use crate::stream::batch::PendingBatch;
use crate::stream::late_binding::{BindingId, BoundSlot};
use crate::stream::sample::PendingSample;

/// Destination of a sample.
pub(in crate::stream) enum Destination {
    Bound(BoundSlot),
    /// The slot is decided when the sample is about to be written.
    LateBound(BindingId),
    /// The sample was written, as the last one of this minibatch.
    Last(Arc<PendingBatch>),
    /// Nothing is left to do.
    Over,
}

impl Destination {
    /// Returns the slot. A sample without one is bound to the slot that it was drawn for.
    pub(super) fn bound_slot(&mut self, stream: &Stream) -> &mut BoundSlot {
        if let Destination::LateBound(binding) = *self {
            *self = Destination::Bound(stream.bind(binding));
        }
        match self {
            Destination::Bound(bound_slot) => bound_slot,
            _ => unreachable!("it was bound just now, and is not over"),
        }
    }
}

impl SlotWriter for PendingSample {
    fn bytes(&mut self) -> &mut [u8] {
        self.claim();
        fail_point!("worker-bound");
        self.slot().field_mut(0)
    }
}

impl PendingSample {
    /// Starts or stops the clock of a late-bound sample, which shows whether a worker makes it. Another sample may take
    /// its slot meanwhile.
    pub(super) fn time_runs(&self, is_running: bool) {
        let Destination::LateBound(binding) = self.destination else {
            return;
        };
        let late_binding = &mut self.stream.engine().late_binding;
        if is_running {
            late_binding.begin(binding)
        } else {
            late_binding.pause(binding)
        }
    }

    /// Binds the sample to a slot because it is about to be written.
    pub(super) fn claim(&mut self) {
        if let Destination::LateBound(binding) = self.destination {
            self.destination = Destination::Bound(self.stream.claim(binding));
        }
    }

    pub(super) fn bound_slot(&mut self) -> &mut BoundSlot {
        self.destination.bound_slot(&self.stream)
    }

    pub(super) fn slot(&mut self) -> &mut SlotMut {
        &mut self.bound_slot().slot
    }
}

impl Stream {
    /// Returns the time beyond which a sample counts as slow.
    fn budget(&self) -> Option<Duration> {
        let budget = self.config.producer.costs().and_then(|c| c.budget());
        budget.map(Duration::from_secs_f32)
    }

    /// Offers a sample's slot to the process that makes it. Returns the buffer and slot.
    pub(super) fn offer(&self, binding: BindingId, given: TaskHandle) -> Option<(u32, u32)> {
        let budget = self.budget();
        self.engine().late_binding.offer(binding, budget, given)
    }

    /// Binds a sample that is about to be written to a slot.
    fn claim(&self, binding: BindingId) -> BoundSlot {
        let budget = self.budget();
        let bound_slot = self.engine().claim(binding, budget);
        bound_slot.unwrap_or_else(|| GivenUp::unwind())
    }

    /// Binds a sample to the slot that it was drawn for.
    fn bind(&self, binding: BindingId) -> BoundSlot {
        self.try_bind(binding).unwrap_or_else(|| GivenUp::unwind())
    }

    /// Binds a sample to the slot that it was drawn for. Returns `None` if the stream was given up meanwhile, with the
    /// slot.
    pub(super) fn try_bind(&self, binding: BindingId) -> Option<BoundSlot> {
        self.engine().late_binding.bind(binding)
    }
}
