//! A table of the tasks of one worker, shared between the worker and the coordinator.
//!
//! Messages assign many samples at a time and report finished ones. Between messages, either side may need to know more
//! or change its decision. The table has an entry for each sample, and reading or changing an entry wakes nobody.
//!
//! * The coordinator *withdraws* a sample that the worker has not begun, because it waits behind one that turns out to
//!   be slow.
//! * The coordinator sees how long the worker has been at a sample, and which samples are written but not yet reported.
//! * In relaxed order, the slot of a sample goes to another sample if the first turns out to be slow. So the slot is
//!   *offered*, and the first side to claim it gets it: the worker, once it is about to write, or the coordinator,
//!   which needs it for another sample.
//!
//! One compare-and-swap of one word decides. A message instead would wake a thread for every sample, and the worker
//! would have to wait for the answer.
//!
//! | word | from | by | then |
//! |---|---|---|---|
//! | `QUEUED` | any | coordinator, once nobody works on the entry's previous sample | the sample may be begun or withdrawn |
//! | `WITHDRAWN` | `QUEUED` | coordinator | the worker skips the sample |
//! | `RUNNING` | `QUEUED` | worker | the worker prepares the sample; if a slot is offered, either side may claim it |
//! | `COMMITTED` | `RUNNING` | worker | the worker writes; the sample keeps the slot |
//! | `REVOKED` | `RUNNING` | coordinator | the worker asks for a slot by a message |
//!
//! The memory is shared with one worker process, and the coordinator trusts nothing in it. A worker that writes
//! invalid data can keep a slot that it had, ask for another one, or misreport its own samples as slow or as written.
//!
//! The steps are in [`entry`], free of system calls, and are model-checked by `tests/loom.rs`.

pub mod entry;

#[cfg(not(feature = "loom"))]
mod shared;

pub use entry::Written;
#[cfg(not(feature = "loom"))]
pub use shared::{TaskHandle, TaskTable};
