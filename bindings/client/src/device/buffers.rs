//! Buffers on the GPU, each for one batch.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use coprep_device::{Context, DeviceMemory, PendingWork};
use coprep_protocol::gpu_batch::GpuBatchLayout;
use coprep_shared_memory::lock::lock;

use crate::error::{Error, Result};

/// Buffers of a job: one that the user's work reads, and two that are filled ahead.
const BUFFERS: usize = 3;

/// The buffers of a job that are not in use.
pub(super) struct BufferPool {
    free: Mutex<VecDeque<Buffer>>,
}

struct Buffer {
    memory: DeviceMemory,
    /// The user's work that reads the buffer.
    read_by: Option<Arc<PendingWork>>,
}

impl BufferPool {
    pub(super) fn allocate(context: &Context, layout: &GpuBatchLayout) -> Result<Arc<Self>> {
        let buffer = |_| {
            // CUDA allocates no memory of no bytes.
            let memory = DeviceMemory::allocate(context, layout.bytes().max(1))?;
            Ok(Buffer {
                memory,
                read_by: None,
            })
        };
        let free = (0..BUFFERS)
            .map(buffer)
            .collect::<coprep_device::Result<_>>();
        Ok(Arc::new(BufferPool {
            free: Mutex::new(free.map_err(Error::from_lower)?),
        }))
    }

    /// Returns a buffer that nothing reads any more, if there is one.
    pub(super) fn take(self: &Arc<Self>) -> Result<Option<BatchBuffer>> {
        let mut free = lock(&self.free);
        // Batches may be dropped in any order, so the buffer that is read first need not be the first one here.
        for at in 0..free.len() {
            if !free[at].is_unread().map_err(Error::from_lower)? {
                continue;
            }
            return Ok(free.remove(at).map(|buffer| BatchBuffer {
                memory: buffer.memory,
                read_by: None,
                pool: self.clone(),
            }));
        }
        Ok(None)
    }

    /// Returns `true` if all buffers are back, and the user's work has still to read each of them.
    pub(super) fn waits_for_user(&self) -> bool {
        let free = lock(&self.free);
        free.len() == BUFFERS
            && free
                .iter()
                // An error is not waited for: the next `take` returns it.
                .all(|buffer| matches!(buffer.is_unread(), Ok(false)))
    }
}

impl Buffer {
    fn is_unread(&self) -> coprep_device::Result<bool> {
        let work = self.read_by.as_ref();
        work.map_or(Ok(true), |work| work.is_done())
    }
}

/// A buffer in use. Dropping it gives it back.
pub(super) struct BatchBuffer {
    memory: DeviceMemory,
    /// The work that reads it, once there is some.
    pub(super) read_by: Option<Arc<PendingWork>>,
    pool: Arc<BufferPool>,
}

impl BatchBuffer {
    pub(super) fn part(&self, range: Range<usize>) -> coprep_device::Result<DeviceMemory> {
        self.memory.part(range)
    }
}

impl Drop for BatchBuffer {
    fn drop(&mut self) {
        lock(&self.pool.free).push_back(Buffer {
            memory: self.memory.clone(),
            read_by: self.read_by.take(),
        });
    }
}
