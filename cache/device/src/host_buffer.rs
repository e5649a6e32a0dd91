//! Host memory that the driver allocates, from which a GPU copies by itself.
#![expect(unsafe_code, reason = "calls the driver, and writes the memory")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use coprep_shared_memory::memory::sizes;

use crate::context::Context;
use crate::error::{Result, invalid};
use crate::memory::DeviceMemory;
use crate::work::StreamWork;

/// `CU_MEMHOSTALLOC_PORTABLE`: the memory is pinned for all GPUs of the process.
const PORTABLE: u32 = 1;

/// Pinned host memory of this process, from which a GPU copies as fast as it can from any host memory.
///
/// It hands out addresses and no references, because a GPU may read or write the memory at any moment.
pub struct HostBuffer {
    context: Context,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns the memory, and hands out no references.
unsafe impl Send for HostBuffer {}
// SAFETY: as above. Its users order their writes and those of a GPU.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates memory. Its contents are undefined.
    ///
    /// # Errors
    /// If there is not as much memory that can be pinned.
    pub fn allocate(context: &Context, bytes: usize) -> Result<Self> {
        let task = || format!("pin {} of host memory for copies", sizes(bytes as u64));
        let mut start = std::ptr::null_mut();
        context.call(
            task,
            // SAFETY: the context is current, and the pointer is to a variable that lives until the call returns.
            |cuda| unsafe { (cuda.cuMemHostAlloc)(&mut start, bytes, PORTABLE) },
        )?;
        match NonNull::new(start.cast()) {
            Some(start) => Ok(HostBuffer {
                context: context.clone(),
                start,
                bytes,
            }),
            None => Err(invalid(
                format!("cannot {}", task()),
                "the driver gave no address",
            )),
        }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts a copy of a part of the memory to all of `to` into the stream of `work`. Measurements compare copies from
    /// the staging area with it.
    ///
    /// # Errors
    /// If the part is not in the memory, or the sizes differ.
    pub fn upload(
        self: &Arc<Self>,
        work: &mut StreamWork<'_>,
        part: Range<usize>,
        to: &DeviceMemory,
    ) -> Result<()> {
        if part.start > part.end || part.end > self.bytes {
            let why = format!("{part:?} of {} bytes", self.bytes);
            return Err(invalid("no such part of pinned memory", why));
        }
        to.check_target(part.len())?;
        // SAFETY: in the memory, as was just checked.
        let from = unsafe { self.start.add(part.start) };
        // SAFETY: as above. The hold keeps the memory. Only this crate can write it, and never one that it hands out.
        unsafe { work.upload(from.as_ptr(), self.clone(), to) }
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Writes the first bytes.
    ///
    /// # Safety
    /// From `from` on `bytes` bytes can be read. No copy from this memory is under way, and no other thread uses it.
    ///
    /// # Panics
    /// If the memory is smaller.
    pub(crate) unsafe fn fill(&self, from: *const u8, bytes: usize) {
        assert!(bytes <= self.bytes, "{bytes} bytes of {}", self.bytes);
        // SAFETY: in bounds here, as was checked, and there, as the caller promises. The driver made this memory, so
        // the two do not overlap. Nobody else uses it, as the caller promises.
        unsafe { self.start.as_ptr().copy_from_nonoverlapping(from, bytes) };
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast();
        // SAFETY: it was allocated here and is freed once. All work that uses it holds this. There is no remedy for an
        // error.
        self.context
            .code(|cuda| unsafe { (cuda.cuMemFreeHost)(start) });
    }
}
