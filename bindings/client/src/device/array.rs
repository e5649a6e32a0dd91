//! Arrays on the GPU that own their memory, for frameworks other than PyTorch.
//!
//! PyTorch allocates its tensors itself, and knows when their memory may be used again. Other frameworks take arrays
//! over from somebody else, and tell when they no longer need them. Nothing says then whether their work on the GPU has
//! ended, so the memory goes back to the driver, which waits for that work before it frees it.

use std::sync::Arc;

use coprep_device::{Context, DeviceMemory, PendingWork, TIMEOUT};

use crate::device::field::DeviceField;
use crate::device::here::Here;
use crate::error::{Error, Result};
use crate::raw;

/// A field of a batch, in memory of its own on the GPU. A clone refers to the same memory, which is freed with the last
/// one.
#[derive(Clone)]
pub struct DeviceArray {
    context: Context,
    field: DeviceField,
    filled: Arc<Here<FilledMemory>>,
}

/// Memory, and the work that fills it.
struct FilledMemory {
    memory: DeviceMemory,
    work: Arc<PendingWork>,
}

impl Drop for FilledMemory {
    fn drop(&mut self) {
        // The buffer of the batch keeps the work too, so that nothing else waits for it here. If it does not end, nothing
        // says that the GPU no longer writes the memory, which is then never freed.
        if self.work.wait(TIMEOUT).is_err() {
            std::mem::forget(self.memory.clone());
        }
    }
}

impl DeviceArray {
    pub(super) fn new(
        context: &Context,
        field: &DeviceField,
        memory: DeviceMemory,
        work: Arc<PendingWork>,
    ) -> Self {
        DeviceArray {
            context: context.clone(),
            field: field.clone(),
            filled: Arc::new(Here::new(FilledMemory { memory, work })),
        }
    }

    /// Returns the name, type and shape.
    #[must_use]
    pub fn field(&self) -> &DeviceField {
        &self.field
    }

    /// Returns the number of the GPU in this process.
    #[must_use]
    pub fn gpu(&self) -> u32 {
        self.context.gpu().number()
    }

    /// Returns the address of the first element, or `None` in a forked child, where CUDA does not work.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        self.filled.get().map(|filled| filled.memory.address())
    }

    /// Lets work that is put into a stream from now on begin only when the array is filled. The handle is as in
    /// [`UserStream`](crate::device::UserStream); 1 is the default stream too, and 2 that of the calling thread.
    ///
    /// # Errors
    /// If the stream is being captured into a CUDA graph, or the GPU fails.
    pub fn precede(&self, stream: u64) -> Result<()> {
        let Some(filled) = self.filled.get() else {
            return Ok(());
        };
        let stream = raw::user_stream(&self.context, stream);
        let wait = || {
            stream.check_not_captured()?;
            filled.work.precede(&stream)
        };
        wait().map_err(Error::from_lower)
    }
}
