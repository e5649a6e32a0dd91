//! What a worker is to make, as far as it and the coordinator must agree on it at any moment.
//!
//! Messages say what to make, many samples at a time, and that some are made. In between, both may want to change their
//! mind, or to know more: an entry for each sample tells, without waking anybody.
//!
//! * The coordinator *withdraws* a sample that the worker has not begun: it waits behind one that turns out to be slow.
//! * It sees for how long the worker is at a sample, and which are written that no message told of yet.
//! * In relaxed order a sample's place is given to another if the sample turns out to be slow. So the place is *offered*:
//!   who comes first has it, the worker, once it is about to write, or the coordinator, which needs it for another sample.
//!
//! One word decides, by one compare-and-swap: a message to ask would wake a thread for every sample, and the worker would
//! wait for the answer.
//!
//! | word | from | by | then |
//! |---|---|---|---|
//! | `QUEUED` | any | coordinator; nobody is at the sample that the entry was for before | it may be begun or withdrawn |
//! | `WITHDRAWN` | `QUEUED` | coordinator | the worker passes it over |
//! | `RUNNING` | `QUEUED` | worker | it makes the sample; if its place is offered, either may take that |
//! | `COMMITTED` | `RUNNING` | worker | the worker writes; the place stays the sample's |
//! | `REVOKED` | `RUNNING` | coordinator | the worker asks by a message |
//!
//! The memory is shared with one worker process. The coordinator trusts nothing in it: a worker that writes nonsense keeps
//! a place that it had, or asks for one, and says of its own samples that they took long, or are written.
//!
//! The steps are in [`entry`], free of system calls, and are model-checked by `tests/loom.rs`.

pub mod entry;

#[cfg(not(loom))]
mod shared;

pub use entry::Written;
#[cfg(not(loom))]
pub use shared::{TaskHandle, TaskTable};
