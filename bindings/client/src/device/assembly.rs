//! A batch whose parts are uploaded one by one.

use std::sync::Arc;

use coprep_device::PendingWork;

use crate::device::buffers::BatchBuffer;

/// A batch on its way to the GPU: some of its parts are taken, and further ones may have been copied ahead.
pub(super) struct Assembly {
    pub(super) buffer: BatchBuffer,
    parts: Vec<UploadedPart>,
    /// Number of parts that are taken.
    taken: usize,
}

/// A part of a batch whose copy has begun.
pub(super) struct UploadedPart {
    /// Number of its item.
    pub(super) seq: u64,
    pub(super) samples: u32,
    pub(super) ends_batch: bool,
    pub(super) copy: Arc<PendingWork>,
}

/// A batch all of whose parts are taken.
pub(crate) struct UploadedBatch {
    pub(super) buffer: BatchBuffer,
    pub(super) samples: u32,
    /// The last copy. The others have ended before it.
    pub(super) copy: Arc<PendingWork>,
}

impl UploadedBatch {
    /// Records the work that reads the buffer. The buffer is used again when it has ended.
    pub(super) fn read_by(&mut self, work: Arc<PendingWork>) {
        self.buffer.read_by = Some(work);
    }
}

impl Assembly {
    pub(super) fn new(buffer: BatchBuffer) -> Self {
        Assembly {
            buffer,
            parts: Vec::new(),
            taken: 0,
        }
    }

    /// Returns the samples of all parts.
    pub(super) fn samples(&self) -> u32 {
        self.parts.iter().map(|part| part.samples).sum()
    }

    /// Returns `true` if the last part of the batch is there.
    pub(super) fn is_whole(&self) -> bool {
        self.parts.last().is_some_and(|part| part.ends_batch)
    }

    pub(super) fn push(&mut self, part: UploadedPart) {
        self.parts.push(part);
    }

    /// Returns the number of the item that is to be taken next, or `None` if all parts are taken.
    pub(super) fn next(&self) -> Option<u64> {
        self.parts.get(self.taken).map(|part| part.seq)
    }

    /// Returns the number of the last item.
    pub(super) fn last(&self) -> Option<u64> {
        self.parts.last().map(|part| part.seq)
    }

    /// Takes the next part, and returns its copy.
    pub(super) fn take(&mut self) -> Option<Arc<PendingWork>> {
        let part = self.parts.get(self.taken)?;
        self.taken += 1;
        Some(part.copy.clone())
    }

    /// Forgets the parts that are not taken. Returns `true` if others are left.
    pub(super) fn forget_untaken(&mut self) -> bool {
        self.parts.truncate(self.taken);
        self.taken > 0
    }

    /// Returns `true` if all parts of the batch are taken.
    pub(super) fn is_taken(&self) -> bool {
        self.is_whole() && self.taken == self.parts.len()
    }

    /// Returns the batch. All of its parts must be taken.
    pub(super) fn finish(self) -> Option<UploadedBatch> {
        let samples = self.samples();
        let last = self.parts.last()?;
        Some(UploadedBatch {
            copy: last.copy.clone(),
            samples,
            buffer: self.buffer,
        })
    }
}
