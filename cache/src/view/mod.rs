//! The staging area, a consumer's side.
//!
//! A [`StagingView`] maps the area copy-on-write by a descriptor that can only be read: reading is reading
//! the coordinator's bytes, and writing (an operation in place, `x.div_(255)`) gives this view its own page,
//! seen by nobody else. Two views in one process are separate too.
//!
//! A page that was written hides what the coordinator writes there later. So the private pages of a buffer
//! are dropped before it is released: [`StagingView::drop_private_pages`].
//!
//! Who hangs up may still hold minibatches. The coordinator takes their buffers back, so the view first gives
//! itself pages of its own: [`StagingView::keep`].
//!
//! Values of the large area are not mapped with the rest: each is mapped when it is wanted ([`StagingView::map_large`]),
//! so that their address space costs a consumer nothing.
//!
//! | what was written meanwhile | after `drop_private_pages` |
//! |---|---|
//! | nothing | no page changes, no fault follows; the cost is the look |
//! | some pages | these are dropped, and read again from the file at the next touch |
#![expect(
    unsafe_code,
    reason = "drops pages; the promise about live references is the caller's"
)]

mod pagemap;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::mapping::{self, Mapping};
use crate::staging::{Layout, Marker};
use pagemap::PageMap;

const WHAT: &str = "the staging area";

/// The staging area as one consumer sees it.
pub struct StagingView {
    layout: Layout,
    mapping: Mapping,
    pages: PageMap,
    /// The file, where values may be large.
    file: Option<OwnedFd>,
}

/// Where a large value lies in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeValue {
    /// Its slot.
    pub slot: u32,
    offset: usize,
    len: usize,
}

impl LargeValue {
    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true for a value of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A large value as one consumer sees it: memory that may be read, and written for this consumer alone.
///
/// It holds what it did when it was mapped until the buffer that it belongs to is released.
#[derive(Debug)]
pub struct LargeMap {
    mapping: Mapping,
    len: usize,
}

impl LargeMap {
    /// Its first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true for a value of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keeps what it holds now, whatever the coordinator writes there later. Costs a copy.
    pub fn keep(&self) {
        self.mapping.make_private(0, self.mapping.len());
    }
}

impl StagingView {
    /// Maps what [`StagingPool::reader_fd`](crate::staging::StagingPool::reader_fd) gave. The page tables
    /// are filled for reading, so that the first minibatches cost no faults.
    ///
    /// # Errors
    /// When the file is not a sealed memory file of the size that the layout says.
    pub fn open(file: OwnedFd, layout: Layout) -> Result<Self> {
        mapping::check_file(WHAT, &file, layout.total_bytes())?;
        // A large area makes the file longer than what it has memory for. Buffers lie where there is some.
        let reserved = mapping::reserved_of_file(WHAT, &file)?;
        if layout.large_field().is_some() && reserved < layout.total_bytes() as u64 {
            let why = format!(
                "{} bytes announced, {reserved} bytes reserved",
                layout.total_bytes()
            );
            return Err(Error::misbehaved(WHAT, why));
        }
        let mapping = Mapping::copy_on_write(WHAT, &file, layout.total_bytes())?;
        // For reading only: a page populated for writing would be private at once.
        mapping.populate_for_reading();
        Ok(StagingView {
            file: layout.large_field().map(|_| file),
            layout,
            mapping,
            pages: PageMap::new(),
        })
    }

    /// Returns the large values among `slots` of a buffer.
    ///
    /// To be asked when the item that names them is taken, before anybody can have written there.
    ///
    /// # Errors
    /// When a slot says that its value lies where none can be.
    ///
    /// # Panics
    /// If there is no such buffer or slot.
    pub fn large_values(&self, buffer: u32, slots: Range<u32>) -> Result<Vec<LargeValue>> {
        let (Some(field), Some(file)) = (self.layout.large_field(), &self.file) else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for slot in slots {
            let start = self.layout.slot(buffer, field, slot).start;
            self.mapping.at(start + Marker::BYTES);
            let bytes = self.mapping.at(start).cast::<[u8; Marker::BYTES]>();
            // SAFETY: in bounds, as both ends were checked, and initialised; any bits are bytes. The coordinator does not
            // write a buffer that has been handed over, and no user has its address yet.
            let bytes = unsafe { bytes.as_ptr().read() };
            if let Some(marker) = Marker::read(&bytes) {
                found.push(self.large_value(slot, marker, file)?);
            }
        }
        Ok(found)
    }

    fn large_value(&self, slot: u32, marker: Marker, file: &OwnedFd) -> Result<LargeValue> {
        let end = mapping::size_of_file(WHAT, file)?;
        let is_inside = marker.offset >= self.layout.large_start() as u64
            && marker.offset.is_multiple_of(mapping::page_size() as u64)
            && (marker.offset.checked_add(marker.len)).is_some_and(|last| last <= end)
            // To look at what has no memory would take some.
            && marker.len <= mapping::reserved_of_file(WHAT, file)?;
        let place = usize::try_from(marker.offset).ok();
        let place = place.zip(usize::try_from(marker.len).ok());
        match place.filter(|_| is_inside) {
            Some((offset, len)) => Ok(LargeValue { slot, offset, len }),
            None => Err(Error::misbehaved(
                WHAT,
                format!("slot {slot} names a place outside of it: {marker:?}"),
            )),
        }
    }

    /// Maps a large value.
    ///
    /// # Errors
    /// When address space or mappings are short.
    pub fn map_large(&self, value: &LargeValue) -> Result<LargeMap> {
        let Some(file) = &self.file else {
            return Err(Error::misbehaved(WHAT, "it has no large values"));
        };
        let len = value.len.max(1).next_multiple_of(mapping::page_size());
        let part = value.offset..value.offset + len;
        let mapping = Mapping::part_copy_on_write("a large sample", file, part)?;
        mapping.populate_for_reading();
        Ok(LargeMap {
            mapping,
            len: value.len,
        })
    }

    /// Where everything lies.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where a field of a buffer lies: [`Layout::field_bytes`] bytes that may be read, and written for this
    /// view alone, from when an item that names the buffer is taken until it is released, and while the view
    /// lives.
    ///
    /// # Panics
    /// If there is no such buffer or field.
    #[must_use]
    pub fn field(&self, buffer: u32, field: usize) -> NonNull<u8> {
        let range = self.layout.field(buffer, field);
        self.mapping.at(range.start)
    }

    /// Keeps what a buffer holds now, for this view alone, whatever the coordinator writes there later.
    ///
    /// Costs a copy of the buffer. Before the connection ends: from then on the coordinator may use the buffer again.
    ///
    /// # Panics
    /// If there is no such buffer.
    pub fn keep(&self, buffer: u32) {
        let range = self.layout.buffer(buffer);
        self.mapping.make_private(range.start, range.len());
    }

    /// Forgets what this view wrote into a buffer; gives the number of pages.
    ///
    /// The caller sees to it that nobody uses a pointer into the buffer while this runs: it runs after the
    /// last array over the minibatch is gone, and before the release.
    ///
    /// # Errors
    /// When the kernel refuses, which it has no reason to.
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
        dropped.map_err(|e| Error::os("cannot drop private pages", e))
    }
}
