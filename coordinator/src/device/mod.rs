//! Shared uploads: a process for each GPU copies each minibatch once, for all jobs there.
//!
//! ```text
//! staging buffer -> uploader (a process) -> ring buffer on the GPU -> each job's own memory (by the job)
//!                   ^ hand-over              ^ its number comes as an item
//! ```
//!
//! * [`ring`]: which minibatch lies in which buffer of a ring.
//! * [`uploader`]: the process of a GPU: it is started, heard, ended, and started again.
//! * [`process`]: one such process.
//! * [`uploaders`]: the uploaders of a coordinator.
//!
//! No call of the NVIDIA driver is made in this process. A driver that hangs, or a GPU that fails, ends the uploader; the
//! jobs then upload for themselves, which works whatever happens here.

mod process;
pub(crate) mod ring;
mod uploader;
mod uploaders;

pub(crate) use uploader::{OpenedRing, RING_BUFFERS, RingHandle, RingOffer, RingOwner};
pub(crate) use uploaders::{GpuKey, Uploaders};
