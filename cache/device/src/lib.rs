//! GPUs: finding them, copying minibatches to them, and converting images there. All calls to the NVIDIA driver are in
//! this crate. It does not know what a sample means, which minibatch goes where, or who asks.
//!
//! ```text
//! staging area -> StagingSource -> StreamWork::upload -> DeviceMemory -> Converter -> a tensor of the job
//!                                                     -> ShareableMemory -> import, in another process
//! ```
//!
//! Nothing of the driver is linked. [`Driver::load`] looks for it, so one build of coprep runs with and without a GPU.
//! [`ErrorKind`] has the ways in which there may be no GPU that can be used.
//!
//! ```no_run
//! use coprep_device::{Context, DeviceMemory, Driver, Gpu, StagingSource, Stream, StreamWork, TIMEOUT};
//! # fn example(view: coprep_shared_memory::view::PinnableView) -> coprep_device::Result<()> {
//! let gpu = Gpu::at(Driver::load()?, 0)?;
//! let context = Context::retain(gpu)?;
//! let source = StagingSource::open(&context, view)?;
//! let part = source.view().slots(0, 0, 0..64);
//! let memory = DeviceMemory::allocate(&context, part.len())?;
//! let stream = Stream::create(&context)?;
//! let mut work = StreamWork::begin(&stream)?;
//! source.upload(&mut work, part, &memory)?;
//! work.submit()?.wait(TIMEOUT)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Architecture invariants
//!
//! - **No context stays current in a caller's thread.** Each call makes its context current, and restores the thread's
//!   own one. cudarc's safe level does not, which is one reason why only its bindings are used.
//! - **No CUDA graph that somebody captures is disturbed**, and none records a batch ([`Context`], [`StreamWork`]).
//! - **Only a shared, read-only mapping is pinned.** [`StagingSource`] takes a
//!   [`PinnableView`](coprep_shared_memory::view::PinnableView), which nothing else can be. A pinned copy-on-write
//!   mapping would never show another minibatch.
//! - **Memory that a GPU may still use is never freed.** Work holds it ([`StreamWork`], [`PendingWork`]).
//! - **Waits for a GPU are bounded** ([`TIMEOUT`]). A call of the driver itself may hang, if its kernel module does: a
//!   process that others depend on must not make one in a thread that they wait for.
//! - **No call can panic for a missing function.** All are looked for when the driver is loaded.
//! - The driver is not loaded before somebody asks. A process that forks does not ask.
#![deny(unsafe_code)]

mod context;
mod convert;
mod driver;
mod element;
mod error;
mod event;
mod functions;
mod gpu;
mod host_buffer;
mod memory;
mod numa;
mod readback;
mod shareable;
mod staging_source;
mod stream;
mod work;

pub use context::Context;
pub use convert::{ConvertTable, Converter, ElementOrder, ImageShape};
pub use driver::{CudaVersion, Driver};
pub use element::ElementType;
pub use error::{Error, ErrorKind, Result};
pub use gpu::{ComputeMode, Gpu, GpuUuid, PciAddress};
pub use host_buffer::HostBuffer;
pub use memory::DeviceMemory;
pub use numa::NumaNode;
pub use shareable::{ShareableMemory, import};
pub use staging_source::StagingSource;
pub use stream::Stream;
pub use work::{PendingWork, StreamWork, TIMEOUT};
