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
use crate::staging::Layout;
use pagemap::PageMap;

const WHAT: &str = "the staging area";

/// The staging area as one consumer sees it.
pub struct StagingView {
    layout: Layout,
    mapping: Mapping,
    pages: PageMap,
}

impl StagingView {
    /// Maps what [`StagingPool::reader_fd`](crate::staging::StagingPool::reader_fd) gave. The page tables
    /// are filled for reading, so that the first minibatches cost no faults.
    ///
    /// # Errors
    /// When the file is not a sealed memory file of the size that the layout says.
    pub fn open(file: OwnedFd, layout: Layout) -> Result<Self> {
        mapping::check_file(WHAT, &file, layout.total_bytes())?;
        let mapping = Mapping::copy_on_write(WHAT, &file, layout.total_bytes())?;
        // For reading only: a page populated for writing would be private at once.
        mapping.populate_for_reading();
        Ok(StagingView {
            layout,
            mapping,
            pages: PageMap::new(),
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
