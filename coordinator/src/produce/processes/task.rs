//! The contract between a process pool and the samples that it makes.

use std::sync::Arc;

use coprep_costs::MeasuredTimes;
use coprep_protocol::code::{SampleRequest, Together};
use coprep_shared_memory::task_table::TaskHandle;

use crate::produce::failure::Failure;

/// One sample that is to be made.
///
/// It is a trait because this layer does not know the streams, which own the slots.
pub(crate) trait Task: Send {
    /// Tells the task that a worker is about to make it.
    fn begin(&mut self) -> Begin;
    /// Returns the sample to make, and its slot if that is known before the sample is made.
    fn request(&self) -> SampleRequest;
    /// Returns the samples of its minibatch, if the dataset is asked for all of them together.
    fn together(&self) -> Option<&Arc<Together>>;
    /// Returns the sample if this id means the same sample whenever it is drawn. Returns `None` if the id counts the
    /// batches of an iteration, which are others in each epoch.
    fn lasting_id(&self) -> Option<u32>;
    /// Returns the expectations of the task, as far as it is known now.
    fn estimate(&self) -> TaskEstimate;
    /// Tells the task that a worker has it and will begin it. Returns the buffer and slot as long as the slot is
    /// offered. Returns `None` if the slot is known already, or is better decided when the sample is made.
    fn offer(&mut self, handle: &TaskHandle) -> Option<(u32, u32)>;
    /// Tells the task that no worker has it any more, so that it waits again.
    fn put_back(&mut self);
    /// Returns the buffer and slot, and decides on them now if that was not done before. `is_about_to_write`: the
    /// sample is made.
    fn bind(&mut self, is_about_to_write: bool) -> (u32, u32);
    /// Reserves `bytes` bytes for a sample that is larger than its slot, or waits a moment for them.
    fn room(&mut self, bytes: u64) -> LargeRoom;
    /// Ends the task.
    fn finish(self: Box<Self>, outcome: TaskOutcome);
}

/// The expectations by which a worker plans its chunks: the time of a task, and whether its sample may be cached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TaskEstimate {
    /// Expected time of a worker, or `None` if nothing is known.
    pub(crate) seconds: Option<f32>,
    /// `true` if the expected time is known and no longer than that of most samples.
    pub(crate) is_quick: bool,
    /// `true` if the sample may be cached.
    pub(crate) is_kept: bool,
}

/// Answer of a task that a worker is about to begin.
pub(crate) enum Begin {
    /// The worker makes it.
    Make,
    /// There is nothing to make, because the task has this outcome already.
    Over(TaskOutcome),
}

/// Room for a sample that is larger than its slot.
pub(crate) enum LargeRoom {
    /// The sample is written from this byte of the staging area on.
    At(u64),
    /// The sample waits until others have released some bytes.
    Wait,
    /// Nobody wants the sample any more.
    Unwanted,
    /// No bytes can be reserved.
    Failed(Failure),
}

/// Outcome of a task.
pub(crate) enum TaskOutcome {
    /// A worker has written the sample to its slot. `blob` counts the bytes of its parts that have no fixed size.
    Made { times: MeasuredTimes, blob: u64 },
    /// The sample was found, and lies in its slot.
    Found(MeasuredTimes),
    /// The sample cannot be made.
    Failed(Failure),
    /// The task has ended the largest allowed number of workers.
    EndedWorkers(Failure),
    /// Nobody wants the sample.
    Unwanted,
    /// Nobody makes the sample, because the process pool has ended.
    Dropped,
}
