//! The staging area as a GPU copies from it.
//!
//! The area is pinned once, so that each copy is one transfer without the processor. Where a GPU cannot read memory
//! that was pinned for reading only, the processor copies to pinned memory first, piece by piece, while the GPU copies
//! the piece before.
#![expect(unsafe_code, reason = "calls the driver, and reads the mapping")]

use std::ops::Range;
use std::sync::{Arc, Mutex};

use coprep_shared_memory::lock::lock;
use coprep_shared_memory::memory::sizes;
use coprep_shared_memory::view::PinnableView;

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::event::Event;
use crate::host_buffer::HostBuffer;
use crate::memory::DeviceMemory;
use crate::work::{StreamWork, TIMEOUT};

/// `CU_MEMHOSTREGISTER_PORTABLE`: the memory is pinned for all GPUs of the process.
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTREGISTER_READ_ONLY`. Without it the kernel pins for writing, which a sealed memory file refuses.
const READ_ONLY: u32 = 8;
/// Bytes of a bounce buffer. A piece of this size takes the processor about 0.3 ms.
const BOUNCE_BYTES: usize = 4 << 20;
/// One that the GPU copies from, and one that the processor copies to.
const BOUNCE_BUFFERS: usize = 2;

/// A staging area from which a GPU copies.
pub struct StagingSource {
    view: Arc<PinnableView>,
    way: Way,
}

enum Way {
    /// The area is pinned.
    Pinned(Arc<PinnedView>),
    /// Through buffers, for the reason given.
    Bounced {
        why: String,
        buffers: Mutex<BounceBuffers>,
    },
}

impl Way {
    fn bounced(context: &Context, why: String) -> Result<Self> {
        Ok(Way::Bounced {
            why,
            buffers: Mutex::new(BounceBuffers::allocate(context)?),
        })
    }
}

impl StagingSource {
    /// Pins the area, or makes the buffers for copies if it cannot be pinned.
    ///
    /// # Errors
    /// If the GPU failed, or not even the buffers can be pinned.
    pub fn open(context: &Context, view: PinnableView) -> Result<Self> {
        let view = Arc::new(view);
        let way = match PinnedView::pin(context, &view) {
            Ok(pinned) => Way::Pinned(Arc::new(pinned)),
            // After a fault no call succeeds, so the buffers could not be made either.
            Err(error) if *error.kind() == ErrorKind::Fault => return Err(error),
            Err(error) => Way::bounced(context, error.to_string())?,
        };
        Ok(StagingSource { view, way })
    }

    /// Makes the buffers for copies although the area may be pinned, so that measurements can compare both ways.
    ///
    /// # Errors
    /// If the buffers cannot be pinned.
    pub fn open_bounced(context: &Context, view: PinnableView) -> Result<Self> {
        Ok(StagingSource {
            view: Arc::new(view),
            way: Way::bounced(context, "it was asked for".to_owned())?,
        })
    }

    /// Returns the area.
    #[must_use]
    pub fn view(&self) -> &PinnableView {
        &self.view
    }

    /// Returns why the area is not pinned and each copy costs time of the processor, or `None` if it is pinned.
    #[must_use]
    pub fn why_bounced(&self) -> Option<&str> {
        match &self.way {
            Way::Pinned(_) => None,
            Way::Bounced { why, .. } => Some(why),
        }
    }

    /// Puts a copy of a part of the area to all of `to` into the stream of `work`.
    ///
    /// The caller keeps the part from being written until the work is done: it holds the buffer's lease, or the item
    /// that was handed over.
    ///
    /// # Errors
    /// If the part is not in the area, the sizes differ, or the GPU does not get on.
    pub fn upload(
        &self,
        work: &mut StreamWork<'_>,
        part: Range<usize>,
        to: &DeviceMemory,
    ) -> Result<()> {
        let total = self.view.layout().total_bytes();
        if part.start > part.end || part.end > total {
            let why = format!("{part:?} of {total} bytes");
            return Err(invalid("no such part of the staging area", why));
        }
        to.check_target(part.len())?;
        if part.is_empty() {
            return Ok(());
        }
        // SAFETY: in the mapping, as was just checked.
        let from = unsafe { self.view.start().add(part.start) }.as_ptr();
        match &self.way {
            // SAFETY: the part was checked. The hold keeps the mapping.
            Way::Pinned(pinned) => unsafe { work.upload(from, pinned.clone(), to) },
            Way::Bounced { buffers, .. } => {
                let mut buffers = lock(buffers);
                // SAFETY: as above; `self` keeps the mapping until the call returns, and only the buffers are used
                // later.
                unsafe { buffers.upload(work, from, to) }
            }
        }
    }
}

/// A mapping that is pinned.
struct PinnedView {
    context: Context,
    view: Arc<PinnableView>,
}

impl PinnedView {
    fn pin(context: &Context, view: &Arc<PinnableView>) -> Result<Self> {
        let bytes = view.layout().total_bytes();
        let task = || format!("pin the staging area of {}", sizes(bytes as u64));
        if !context.gpu().pins_read_only()? {
            let why = "it does not copy from memory that is pinned for reading only";
            let context = format!("cannot {} for {}", task(), context.gpu());
            return Err(Error::new(ErrorKind::Unsupported, context).because(why));
        }
        let start = view.start().as_ptr().cast();
        context.call(
            task,
            // SAFETY: the whole mapping, which the `Arc` keeps until it is unpinned.
            |cuda| unsafe { (cuda.cuMemHostRegister_v2)(start, bytes, PORTABLE | READ_ONLY) },
        )?;
        Ok(PinnedView {
            context: context.clone(),
            view: view.clone(),
        })
    }
}

impl Drop for PinnedView {
    fn drop(&mut self) {
        let start = self.view.start().as_ptr().cast();
        // SAFETY: it was pinned here and is unpinned once. All work that copies from it holds this. There is no remedy
        // for an error.
        self.context
            .code(|cuda| unsafe { (cuda.cuMemHostUnregister)(start) });
    }
}

/// Pinned memory through which pieces go in turn.
struct BounceBuffers {
    buffers: Vec<BounceBuffer>,
    /// The buffer that is used next, which is the one that was used longest ago.
    next: usize,
}

struct BounceBuffer {
    memory: Arc<HostBuffer>,
    /// The end of the last copy from the buffer. It is past if there was none.
    copied: Event,
}

impl BounceBuffers {
    fn allocate(context: &Context) -> Result<Self> {
        let buffer = |_| {
            Ok(BounceBuffer {
                memory: Arc::new(HostBuffer::allocate(context, BOUNCE_BYTES)?),
                copied: Event::create(context)?,
            })
        };
        let buffers = (0..BOUNCE_BUFFERS).map(buffer).collect::<Result<_>>()?;
        Ok(BounceBuffers { buffers, next: 0 })
    }

    /// # Safety
    /// From `from` on as many bytes as `to` has can be read until this returns.
    unsafe fn upload(
        &mut self,
        work: &mut StreamWork<'_>,
        from: *const u8,
        to: &DeviceMemory,
    ) -> Result<()> {
        for start in (0..to.bytes()).step_by(BOUNCE_BYTES) {
            let piece = to.part(start..to.bytes().min(start + BOUNCE_BYTES))?;
            let buffer = &self.buffers[self.next];
            self.next = (self.next + 1) % self.buffers.len();
            buffer.copied.wait(TIMEOUT)?;
            // SAFETY: the piece is in the caller's part. The wait above ended the last copy from the buffer, and `&mut
            // self` keeps other threads out.
            unsafe { buffer.memory.fill(from.add(start), piece.bytes()) };
            let memory = buffer.memory.start().as_ptr();
            // SAFETY: the buffer has the piece, and is not written before `copied`.
            unsafe { work.upload(memory, buffer.memory.clone(), &piece) }?;
            buffer.copied.record(work.stream())?;
        }
        Ok(())
    }
}
