//! The layout of a segment: where its index and its payloads lie.

use coprep_shared_memory::mapping::page_size;

use crate::error::{Error, ErrorKind, Result};
use crate::index::{self, ENTRY, SegmentHeader};
use crate::table::MAX_POSITIONS;

/// Name of the memory in error messages.
pub(crate) const WHAT: &str = "the sample cache";

/// The layout of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLayout {
    /// Number of samples. Every id is less.
    pub samples: u32,
    /// Bytes for payloads, a multiple of the alignment.
    pub capacity: u64,
    /// Number of entries that the index has room for.
    pub positions: u32,
    /// Offset of the payloads.
    pub payloads_at: usize,
    /// Bytes of the segment.
    pub bytes: usize,
}

impl SegmentLayout {
    /// Computes the layout for `capacity` bytes of payloads and `samples` samples.
    ///
    /// # Errors
    /// If the segment is larger than the address space.
    pub fn new(capacity: u64, samples: u32) -> Result<Self> {
        let capacity = capacity - capacity % index::ALIGNMENT;
        // One entry per sample, plus some for samples that are written twice because their first entry was damaged.
        let wanted = u64::from(samples) + u64::from(samples) / 16 + 64;
        let positions = wanted.min(capacity / index::ALIGNMENT).min(MAX_POSITIONS);
        let index = usize::try_from(positions)
            .ok()
            .and_then(|n| n.checked_mul(ENTRY));
        let payloads_at = index.and_then(|n| {
            n.checked_add(page_size())?
                .checked_next_multiple_of(page_size())
        });
        let bytes = payloads_at.and_then(|at| at.checked_add(usize::try_from(capacity).ok()?));
        let bytes = bytes.and_then(|n| n.checked_next_multiple_of(page_size()));
        match (payloads_at, bytes) {
            (Some(payloads_at), Some(bytes)) if isize::try_from(bytes).is_ok() => {
                Ok(SegmentLayout {
                    samples,
                    capacity,
                    positions: positions as u32,
                    payloads_at,
                    bytes,
                })
            }
            _ => Err(Error::new(ErrorKind::Invalid, WHAT)
                .because(format!("{capacity} bytes are more than the address space"))),
        }
    }

    /// Returns the layout that a header describes, or `None` if the header contradicts itself or the size of its file.
    #[must_use]
    pub fn of(header: &SegmentHeader, file_bytes: u64) -> Option<Self> {
        // The header is not trusted: a layout is computed from two of its numbers, and the others must agree with it.
        let shape = SegmentLayout::new(header.capacity, header.samples).ok()?;
        let told = (header.capacity, header.bytes, header.positions);
        let agrees = (shape.capacity, shape.bytes as u64, shape.positions) == told;
        (agrees && file_bytes == header.bytes).then_some(shape)
    }

    /// Returns the header of a segment with this layout.
    #[must_use]
    pub fn header(&self, fingerprint: u128) -> SegmentHeader {
        SegmentHeader {
            fingerprint: [fingerprint as u64, (fingerprint >> 64) as u64],
            capacity: self.capacity,
            bytes: self.bytes as u64,
            samples: self.samples,
            positions: self.positions,
        }
    }

    /// Returns the offset of an index position.
    ///
    /// # Panics
    /// If the index has no room for so many entries.
    #[must_use]
    pub fn offset(&self, position: u32) -> usize {
        assert!(
            position < self.positions,
            "position {position} of {}",
            self.positions
        );
        page_size() + position as usize * ENTRY
    }
}
