//! The place of each field of a batch in a buffer of a GPU. A job and the process that uploads for several jobs lay
//! their buffers out alike.

use std::ops::Range;

use crate::spec::{Field, INDEX, NUMBER};

/// Fields begin at multiples of this, as CUDA's own allocations do, so that kernels load 16 bytes at a time.
const ALIGNMENT: usize = 256;

/// The fields of a batch that go to a GPU, and their places in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuBatchLayout {
    fields: Vec<UploadedField>,
    bytes: usize,
}

/// A field that goes to a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedField {
    /// The field.
    pub field: Field,
    /// Index among the fields of the stream.
    pub number: usize,
    start: usize,
}

impl UploadedField {
    /// Returns the place of some samples in a buffer.
    #[must_use]
    pub fn place(&self, samples: Range<u32>) -> Range<usize> {
        let at = |sample: u32| self.start + self.field.sample_bytes() * sample as usize;
        at(samples.start)..at(samples.end)
    }
}

impl GpuBatchLayout {
    /// Lays out batches of at most `samples` samples. Returns `None` if such a batch is larger than the address space.
    #[must_use]
    pub fn new(fields: &[Field], samples: u32) -> Option<Self> {
        let mut layout = GpuBatchLayout {
            fields: Vec::new(),
            bytes: 0,
        };
        for (number, field) in fields.iter().enumerate() {
            // Ids stay on the host, where programs use them.
            if field.may_be_large() || [INDEX, NUMBER].contains(&field.name.as_str()) {
                continue;
            }
            let start = layout.bytes;
            layout.bytes = field
                .sample_bytes()
                .checked_mul(samples as usize)
                .and_then(|bytes| start.checked_add(bytes))
                .and_then(|end| end.checked_next_multiple_of(ALIGNMENT))?;
            layout.fields.push(UploadedField {
                field: field.clone(),
                number,
                start,
            });
        }
        Some(layout)
    }

    /// Returns the fields that go to the GPU.
    #[must_use]
    pub fn fields(&self) -> &[UploadedField] {
        &self.fields
    }

    /// Returns the bytes of a buffer.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes that are copied for `samples` samples.
    #[must_use]
    pub fn copied_bytes(&self, samples: u32) -> u64 {
        let fields = self.fields.iter();
        let bytes = fields.map(|uploaded| uploaded.place(0..samples).len() as u64);
        bytes.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Dtype;

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
        let layout = GpuBatchLayout::new(&fields, 4).unwrap();
        let [image, label] = layout.fields() else {
            panic!("{} fields", layout.fields().len());
        };
        assert_eq!((image.number, image.place(0..4)), (0, 0..300));
        assert_eq!((label.number, label.place(1..3)), (2, 520..536));
        assert_eq!((layout.bytes(), layout.copied_bytes(2)), (768, 166));
    }

    #[test]
    fn a_batch_that_is_larger_than_memory_has_no_layout() {
        let huge = [field("image", Dtype::F64, &[1 << 20, 1 << 20, 1 << 10])];
        assert_eq!(GpuBatchLayout::new(&huge, u32::MAX), None);
    }
}
