//! The staging area, as a consumer sees it.
//!
//! A [`StagingView`] maps the area copy-on-write, through a read-only descriptor. Reads see the coordinator's bytes. A
//! write (an in-place operation such as `x.div_(255)`) gives this view its own page, which nobody else sees. Two views
//! in one process are separate too.
//!
//! A page that was written hides later writes of the coordinator. So the private pages of a buffer are dropped before
//! it is released: [`StagingView::drop_private_pages`].
//!
//! A consumer that ends its connection may still hold minibatches. The coordinator takes their buffers back, so the
//! view first makes private copies of them: [`StagingView::keep`].
//!
//! Values of the large area are not mapped with the rest. Each is mapped when it is wanted
//! ([`StagingView::map_large`]), so that their address space costs a consumer nothing.
//!
//! | pages written meanwhile | after `drop_private_pages` |
//! |---|---|
//! | none | no page changes, and no fault follows; the only cost is the search |
//! | some | these pages are dropped, and the next touch reads them from the file again |
//!
//! A GPU that copies from the area cannot use a `StagingView`: to pin a page of a copy-on-write mapping, the kernel
//! copies it, and the copy never shows what the coordinator writes later. It pins a [`PinnableView`].
#![expect(
    unsafe_code,
    reason = "drops pages; the promise about live references is the caller's"
)]

mod pagemap;
mod pinnable;

pub use pinnable::PinnableView;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use crate::error::{Result, os, protocol_violation};
use crate::mapping::{self, Mapping};
use crate::staging::{Layout, Marker};
use pagemap::PageMap;

const WHAT: &str = "the staging area";

/// The staging area as one consumer sees it.
pub struct StagingView {
    layout: Layout,
    mapping: Mapping,
    pages: PageMap,
    file: OwnedFd,
}

/// The location of a large value in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeValue {
    /// Slot of the sample that the value belongs to.
    pub slot: u32,
    offset: usize,
    len: usize,
}

impl LargeValue {
    /// Returns the bytes of the value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A large value as one consumer sees it: memory that can be read, and written for this consumer alone.
///
/// Its contents stay as they were when it was mapped, until its buffer is released.
#[derive(Debug)]
pub struct LargeMap {
    mapping: Mapping,
    len: usize,
}

impl LargeMap {
    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Returns the bytes of the value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps the present contents, whatever the coordinator writes there later. It costs a copy.
    pub fn keep(&self) {
        self.mapping.make_private(0, self.mapping.len());
    }
}

/// Fails unless the buffers of the area can be read without a SIGBUS and without allocating memory.
fn check(file: &OwnedFd, layout: &Layout) -> Result<()> {
    mapping::check_file(WHAT, file, layout.total_bytes())?;
    // A large area makes the file longer than its reserved memory. The part with the buffers must be reserved.
    let reserved = mapping::reserved_of_file(WHAT, file)?;
    if layout.large_field().is_some() && reserved < layout.total_bytes() as u64 {
        let why = format!(
            "{} bytes announced, {reserved} bytes reserved",
            layout.total_bytes()
        );
        return Err(protocol_violation(WHAT, why));
    }
    Ok(())
}

impl StagingView {
    /// Maps the descriptor from [`StagingPool::reader_fd`](crate::staging::StagingPool::reader_fd). The page tables are
    /// filled for reading, so that the first minibatches cost no faults.
    ///
    /// # Errors
    /// If the file is not a sealed memory file of the size that the layout says.
    pub fn open(file: OwnedFd, layout: Layout) -> Result<Self> {
        check(&file, &layout)?;
        let mapping = Mapping::copy_on_write(WHAT, &file, layout.total_bytes())?;
        // For reading only: a page populated for writing would be private at once.
        mapping.populate_for_reading();
        Ok(StagingView {
            file,
            layout,
            mapping,
            pages: PageMap::new(),
        })
    }

    /// Maps the same area once more, for a GPU that copies from it.
    ///
    /// # Errors
    /// If address space or mappings are short.
    pub fn pinnable(&self) -> Result<PinnableView> {
        PinnableView::open(&self.file, self.layout.clone())
    }

    /// Returns the large values among `slots` of a buffer.
    ///
    /// The caller asks when it takes the item that names the slots, before anybody can have written there.
    ///
    /// # Errors
    /// If a slot says that its value lies outside of the memory for large values.
    ///
    /// # Panics
    /// If there is no such buffer or slot.
    pub fn large_values(&self, buffer: u32, slots: Range<u32>) -> Result<Vec<LargeValue>> {
        let Some(field) = self.layout.large_field() else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for slot in slots {
            let start = self.layout.slot(buffer, field, slot).start;
            // This call only checks that the end of the marker is inside the mapping.
            self.mapping.at(start + Marker::BYTES);
            let bytes = self.mapping.at(start).cast::<[u8; Marker::BYTES]>();
            // SAFETY: in bounds, as both ends were checked, and initialised; any bits are bytes. The coordinator does
            // not write a buffer that has been handed over, and no user has its address yet.
            let bytes = unsafe { bytes.as_ptr().read() };
            if let Some(marker) = Marker::read(&bytes) {
                found.push(self.large_value(slot, marker)?);
            }
        }
        Ok(found)
    }

    fn large_value(&self, slot: u32, marker: Marker) -> Result<LargeValue> {
        let end = mapping::size_of_file(WHAT, &self.file)?;
        let is_inside = marker.offset >= self.layout.large_start() as u64
            && marker.offset.is_multiple_of(mapping::page_size() as u64)
            && (marker.offset.checked_add(marker.len)).is_some_and(|last| last <= end)
            // Reading memory that is not reserved would allocate it.
            && marker.len <= mapping::reserved_of_file(WHAT, &self.file)?;
        let extent = usize::try_from(marker.offset).ok();
        let extent = extent.zip(usize::try_from(marker.len).ok());
        match extent.filter(|_| is_inside) {
            Some((offset, len)) => Ok(LargeValue { slot, offset, len }),
            None => Err(protocol_violation(
                WHAT,
                format!("slot {slot} names an extent outside of it: {marker:?}"),
            )),
        }
    }

    /// Maps a large value.
    ///
    /// # Errors
    /// If address space or mappings are short.
    pub fn map_large(&self, value: &LargeValue) -> Result<LargeMap> {
        let len = value.len.max(1).next_multiple_of(mapping::page_size());
        let part = value.offset..value.offset + len;
        let mapping = Mapping::part_copy_on_write("a large sample", &self.file, part)?;
        mapping.populate_for_reading();
        Ok(LargeMap {
            mapping,
            len: value.len,
        })
    }

    /// Returns the layout of the area.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the address of a field of a buffer. Its [`Layout::field_bytes`] bytes can be read, and written for this
    /// view alone. The address is valid while the view lives, from the moment an item that names the buffer is taken
    /// until the item is released.
    ///
    /// # Panics
    /// If there is no such buffer or field.
    #[must_use]
    pub fn field(&self, buffer: u32, field: usize) -> NonNull<u8> {
        let range = self.layout.field(buffer, field);
        self.mapping.at(range.start)
    }

    /// Returns a field of integers of some slots of a buffer. The caller has taken an item that names them, and has given
    /// nobody their address.
    ///
    /// # Panics
    /// If there is no such buffer, slot or field, or its samples have another size.
    #[must_use]
    pub fn integers(&self, buffer: u32, field: usize, slots: Range<u32>) -> Vec<i64> {
        assert_eq!(self.layout.sample_bytes(field), size_of::<i64>());
        let read = |slot| {
            let start = self.layout.slot(buffer, field, slot).start;
            let integer = self.mapping.at(start).cast::<i64>();
            // SAFETY: in bounds, since the layout sized the mapping and the slot was checked; any bits are an `i64`;
            // unaligned is allowed. The coordinator does not write a buffer that has been handed over, and no user has its
            // address.
            unsafe { integer.as_ptr().read_unaligned() }
        };
        slots.map(read).collect()
    }

    /// Keeps the present contents of a buffer, for this view alone, whatever the coordinator writes there later.
    ///
    /// It costs a copy of the buffer. It must be called before the connection ends, because after that the coordinator
    /// may use the buffer again.
    ///
    /// # Panics
    /// If there is no such buffer.
    pub fn keep(&self, buffer: u32) {
        let range = self.layout.buffer(buffer);
        self.mapping.make_private(range.start, range.len());
    }

    /// Discards the writes of this view to a buffer, and returns the number of pages.
    ///
    /// The caller makes sure that nobody uses a pointer into the buffer meanwhile. So it calls this after the last
    /// array over the minibatch is gone, and before the release.
    ///
    /// # Errors
    /// If the kernel refuses, which it has no reason to do.
    ///
    /// # Panics
    /// If there is no such buffer.
    pub fn drop_private_pages(&self, buffer: u32) -> Result<usize> {
        let range = self.layout.buffer(buffer);
        let start = self.mapping.at(range.start).as_ptr() as usize;
        let mut dropped = 0;
        self.pages
            .each_private(start..start + range.len(), |private| {
                dropped += private.len() / mapping::page_size();
                self.drop_range(&private)
            })?;
        Ok(dropped)
    }

    fn drop_range(&self, addresses: &Range<usize>) -> Result<()> {
        let offset = addresses.start - self.mapping.start().as_ptr() as usize;
        // SAFETY: the mapping is copy-on-write. References into the buffer are the caller's, made of raw
        // pointers from `field`, whose documentation ends them before; this module makes none.
        let dropped = unsafe { self.mapping.drop_private(offset, addresses.len()) };
        dropped.map_err(|e| os("cannot drop private pages", e))
    }
}
