//! A run of a model, and memory whose accesses it checks. The models of the sample cache use them too.

use std::sync::Arc;

use loom::cell::UnsafeCell;

/// A model of memory that holds a sample, such as a staging buffer.
pub(crate) struct Buffer(UnsafeCell<u64>);

// SAFETY: loom checks every access.
unsafe impl Sync for Buffer {}
// SAFETY: as above.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Buffer(UnsafeCell::new(0)))
    }
    pub(crate) fn write(&self, value: u64) {
        // SAFETY: loom panics if anybody else has access.
        self.0.with_mut(|p| unsafe { *p = value });
    }
    pub(crate) fn read(&self) -> u64 {
        // SAFETY: loom panics if anybody writes.
        self.0.with(|p| unsafe { *p })
    }
}

/// Checks `body` for every interleaving with at most this number of preemptions.
pub(crate) fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}
