//! Batches, and the memory that they lie in.

use std::sync::Arc;

use coprep_protocol::spec::{Dtype, Field, NUMBER};
use coprep_shared_memory::view::LargeMap;

use crate::attachment::{Attachment, HeldSlots};
use crate::error::{Result, invalid, violation};
use crate::raw::Owned;

/// A batch as a consumer receives it: one array per field, in the order of the stream's fields.
pub struct Batch {
    memory: Arc<BatchMemory>,
    fields: Arc<[Field]>,
    /// Index of the field whose samples may lie elsewhere.
    blob: Option<usize>,
    samples: u32,
}

/// Memory of a batch.
enum BatchMemory {
    /// A staging buffer, seen as a copy-on-write view.
    Shared(HeldSlots),
    /// Private memory: one piece per field, and one for each sample that is larger than its part of the blob field.
    Private {
        fields: Vec<Owned>,
        large: Vec<(u32, Owned)>,
    },
}

impl BatchMemory {
    fn address(&self, field: usize) -> usize {
        match self {
            BatchMemory::Shared(slice) => slice.field(field).0.as_ptr().expose_provenance(),
            BatchMemory::Private { fields, .. } => fields[field].address(),
        }
    }

    /// Returns the samples that are larger than their part of the blob field, each with its row, address and length.
    fn large(&self) -> Vec<(u32, usize, usize)> {
        match self {
            BatchMemory::Shared(slice) => {
                let large = slice.large.iter();
                let address = |map: &LargeMap| map.start().as_ptr().expose_provenance();
                large
                    .map(|(row, map)| (*row, address(map), map.len()))
                    .collect()
            }
            BatchMemory::Private { large, .. } => {
                let large = large.iter();
                large
                    .map(|(row, piece)| (*row, piece.address(), piece.len()))
                    .collect()
            }
        }
    }
}

impl Batch {
    pub(crate) fn view(slice: HeldSlots) -> Self {
        let (fields, samples) = (slice.attachment().fields.clone(), slice.len);
        Batch {
            blob: slice.attachment().blob,
            memory: Arc::new(BatchMemory::Shared(slice)),
            fields,
            samples,
        }
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns `true` if the batch lies in private memory.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        matches!(*self.memory, BatchMemory::Private { .. })
    }

    /// Returns the bytes of all fields.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let fields = self.fields.iter();
        let fields = fields.map(|f| f.sample_bytes() * self.samples as usize);
        let large = self.memory.large();
        fields.chain(large.iter().map(|&(_, _, len)| len)).sum()
    }

    /// Returns the fields as arrays, except the numbers of draws, which mean nothing to the user. The batch is released
    /// when the last array is dropped.
    #[must_use]
    pub fn arrays(&self) -> Vec<Array> {
        (0..self.fields.len())
            .filter(|&field| self.fields[field].name != NUMBER)
            .map(|field| self.array(field))
            .collect()
    }

    fn array(&self, field: usize) -> Array {
        let Field { name, dtype, shape } = &self.fields[field];
        let sample = shape.iter().map(|&n| n as usize);
        Array {
            name: name.clone(),
            dtype: *dtype,
            shape: std::iter::once(self.samples as usize)
                .chain(sample)
                .collect(),
            address: self.memory.address(field),
            large: if self.blob == Some(field) {
                self.large(name, *dtype)
            } else {
                Vec::new()
            },
            _memory: self.memory.clone(),
        }
    }

    fn large(&self, name: &str, dtype: Dtype) -> Vec<(u32, Array)> {
        let array = |(row, address, len)| {
            let array = Array {
                name: name.to_owned(),
                dtype,
                shape: vec![len],
                address,
                large: Vec::new(),
                _memory: self.memory.clone(),
            };
            (row, array)
        };
        self.memory.large().into_iter().map(array).collect()
    }
}

/// One field of a batch. As long as the array lives, its memory may be read, and written with effect for this process
/// alone.
pub struct Array {
    /// Name of the field: `image`, `label` or `index`.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape, samples first. Elements lie in row-major order, without gaps.
    pub shape: Vec<usize>,
    /// Rows whose values are larger than a row of this array, with these values. They do not lie in the array itself.
    pub large: Vec<(u32, Array)>,
    address: usize,
    _memory: Arc<BatchMemory>,
}

impl Array {
    /// Returns the address of the first element.
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }
}

/// A batch that is put together in private memory, part by part.
pub(crate) struct Assembly {
    pieces: Vec<Owned>,
    large: Vec<(u32, Owned)>,
    fields: Arc<[Field]>,
    blob: Option<usize>,
    capacity: u32,
    samples: u32,
    pub(crate) numbers: Vec<i64>,
}

impl Assembly {
    /// Allocates room for a batch of `capacity` samples.
    pub(crate) fn new(attachment: &Attachment, capacity: u32) -> Result<Self> {
        let fields = attachment.fields.clone();
        // The shape comes from the coordinator and the batch size from the user, so the product may overflow.
        let piece = |f: &Field| {
            f.sample_bytes()
                .checked_mul(capacity as usize)
                .and_then(Owned::new)
        };
        let pieces = fields.iter().map(piece).collect::<Option<Vec<_>>>();
        let too_large = || {
            invalid(format!(
                "a batch of {capacity} samples is too large for the memory of this process: choose a smaller batch_size"
            ))
        };
        Ok(Assembly {
            pieces: pieces.ok_or_else(too_large)?,
            large: Vec::new(),
            fields,
            blob: attachment.blob,
            capacity,
            samples: 0,
            numbers: Vec::new(),
        })
    }

    /// Copies a slice to the end of the batch. The caller may then release the slice.
    pub(crate) fn push(&mut self, slice: &HeldSlots, mut numbers: Vec<i64>) -> Result<()> {
        let samples = self.samples.saturating_add(slice.len);
        // The coordinator decides which parts a batch has, so their sum is checked before anything is copied.
        if samples > self.capacity {
            return Err(violation(format!(
                "{samples} samples for a batch of {}",
                self.capacity
            )));
        }
        for (field, piece) in self.pieces.iter_mut().enumerate() {
            piece.copy_from(
                self.fields[field].sample_bytes() * self.samples as usize,
                slice,
                field,
            );
        }
        for (row, map) in &slice.large {
            let copied = Owned::copy_of(map);
            let copied = copied.ok_or_else(|| invalid("a sample is too large"))?;
            self.large.push((self.samples + row, copied));
        }
        self.samples = samples;
        self.numbers.append(&mut numbers);
        Ok(())
    }

    pub(crate) fn finish(self) -> (Batch, Vec<i64>) {
        let memory = Arc::new(BatchMemory::Private {
            fields: self.pieces,
            large: self.large,
        });
        (
            Batch {
                memory,
                fields: self.fields,
                blob: self.blob,
                samples: self.samples,
            },
            self.numbers,
        )
    }
}
