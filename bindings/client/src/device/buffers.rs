//! Buffers on the GPU, each for one batch.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use coprep_device::{Context, DeviceMemory, PendingWork};
use coprep_protocol::spec::{BLOB, Field, NUMBER};
use coprep_shared_memory::lock::lock;

use crate::attachment::INDEX;
use crate::error::{Error, Result, invalid};

/// Fields begin at multiples of this, as CUDA's own allocations do, so that kernels load 16 bytes at a time.
const ALIGNMENT: usize = 256;
/// Buffers of a job: one that the user's work reads, and two that are filled ahead.
const BUFFERS: usize = 3;

/// The fields of a batch that go to the GPU, and their places in a buffer.
pub(super) struct BatchLayout {
    fields: Vec<UploadedField>,
    bytes: usize,
}

/// A field that goes to the GPU.
pub(super) struct UploadedField {
    pub(super) field: Field,
    /// Index among the fields of the stream.
    pub(super) number: usize,
    start: usize,
}

impl UploadedField {
    /// Returns the place of some samples in a buffer.
    pub(super) fn place(&self, samples: Range<u32>) -> Range<usize> {
        let at = |sample: u32| self.start + self.field.sample_bytes() * sample as usize;
        at(samples.start)..at(samples.end)
    }
}

impl BatchLayout {
    /// Lays out batches of at most `samples` samples.
    pub(super) fn new(fields: &[Field], samples: u32) -> Result<Self> {
        let mut layout = BatchLayout {
            fields: Vec::new(),
            bytes: 0,
        };
        for (number, field) in fields.iter().enumerate() {
            // Ids stay on the host, where programs use them.
            if [INDEX, NUMBER, BLOB].contains(&field.name.as_str()) {
                continue;
            }
            let bytes = field.sample_bytes().checked_mul(samples as usize);
            let end = bytes.and_then(|bytes| layout.bytes.checked_add(bytes));
            let end = end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
            let start = layout.bytes;
            layout.bytes =
                end.ok_or_else(|| invalid(format!("a batch of {samples} samples is too large")))?;
            layout.fields.push(UploadedField {
                field: field.clone(),
                number,
                start,
            });
        }
        Ok(layout)
    }

    pub(super) fn fields(&self) -> &[UploadedField] {
        &self.fields
    }
}

/// The buffers of a job that are not in use.
pub(super) struct BufferPool {
    free: Mutex<VecDeque<Buffer>>,
}

struct Buffer {
    memory: DeviceMemory,
    /// The user's work that reads the buffer.
    read_by: Option<PendingWork>,
}

impl BufferPool {
    pub(super) fn allocate(context: &Context, layout: &BatchLayout) -> Result<Arc<Self>> {
        let buffer = |_| {
            // CUDA allocates no memory of no bytes.
            let memory = DeviceMemory::allocate(context, layout.bytes.max(1))?;
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
                .all(|buffer| matches!(buffer.is_unread(), Ok(false)))
    }
}

impl Buffer {
    fn is_unread(&self) -> coprep_device::Result<bool> {
        self.read_by.as_ref().map_or(Ok(true), PendingWork::is_done)
    }
}

/// A buffer in use. Dropping it gives it back.
pub(super) struct BatchBuffer {
    memory: DeviceMemory,
    /// The work that reads it, once there is some.
    pub(super) read_by: Option<PendingWork>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use coprep_protocol::spec::Dtype;

    fn field(name: &str, dtype: Dtype, shape: &[u32]) -> Field {
        Field {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn fields_lie_one_after_the_other_and_ids_stay_on_the_host() {
        let fields = [
            field("image", Dtype::U8, &[3, 5, 5]),
            field("index", Dtype::I64, &[]),
            field("label", Dtype::I64, &[]),
        ];
        let layout = BatchLayout::new(&fields, 4).unwrap();
        let [image, label] = layout.fields() else {
            panic!("{} fields", layout.fields().len());
        };
        assert_eq!((image.number, image.place(0..4)), (0, 0..300));
        assert_eq!((label.number, label.place(1..3)), (2, 520..536));
        assert_eq!(layout.bytes, 768);
    }

    #[test]
    fn a_batch_that_is_larger_than_memory_is_an_error() {
        let huge = [field("image", Dtype::F64, &[1 << 20, 1 << 20, 1 << 10])];
        assert!(BatchLayout::new(&huge, u32::MAX).is_err());
    }
}
