//! The staging area, mapped for a device that copies from it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use super::{WHAT, check};
use crate::error::Result;
use crate::mapping::Mapping;
use crate::staging::Layout;

/// The buffers of the staging area, mapped shared and for reading only: the one kind of mapping whose pages a device
/// may pin.
///
/// | mapping | pinned for writing | pinned for reading |
/// |---|---|---|
/// | copy-on-write ([`StagingView`](super::StagingView)) | the kernel copies each page, and the copy never changes again | the same |
/// | shared, of a descriptor that cannot write (this one) | refused | the pages that the coordinator writes |
///
/// It hands out addresses and no references, because the coordinator writes the buffers that are not handed over.
pub struct PinnableView {
    layout: Layout,
    mapping: Mapping,
}

impl PinnableView {
    /// Maps the descriptor from [`StagingPool::reader_fd`](crate::staging::StagingPool::reader_fd). A large area is not
    /// mapped. The page tables are filled, so that pinning causes no faults.
    ///
    /// # Errors
    /// If the file is not a sealed memory file of the size that the layout says.
    pub fn open(file: &OwnedFd, layout: Layout) -> Result<Self> {
        check(file, &layout)?;
        let mapping = Mapping::readable(WHAT, file, layout.total_bytes())?;
        mapping.populate_for_reading();
        Ok(PinnableView { layout, mapping })
    }

    /// Returns the layout of the area.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the address of the first byte. All [`Layout::total_bytes`] bytes from there on can be read while the
    /// view lives. Only those of a buffer that was handed over, and not yet released, keep their values.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Returns the range of a field of some slots of a buffer, in bytes from [`start`](Self::start). It is in the area.
    ///
    /// # Panics
    /// If there is no such buffer or field, or the slots are not slots of a buffer, in ascending order.
    #[must_use]
    pub fn slots(&self, buffer: u32, field: usize, slots: Range<u32>) -> Range<usize> {
        assert!(
            slots.start <= slots.end && slots.end <= self.layout.slots,
            "slots {slots:?} of {}",
            self.layout.slots
        );
        let first = self.layout.field(buffer, field).start;
        let at = |slot: u32| first + self.layout.sample_bytes(field) * slot as usize;
        at(slots.start)..at(slots.end)
    }
}
