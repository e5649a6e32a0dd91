//! The coordinator's side of the staging area: a pool of equal buffers in one sealed memory file.
//!
//! ```text
//! buffer 0: | field 0: slots x bytes | pad | field 1 | pad | ...   buffer 1: ...   (| = a page boundary)
//! ```
//!
//! A minibatch lies in one buffer. Each field is contiguous, so that a field of a minibatch is one array without
//! collation. Buffers and fields start on page boundaries, so that a consumer that drops its private pages of one never
//! touches another.
//!
//! One field may have values that are larger than their slots ([`Layout::with_large`]). Such a value lies in the *large
//! area*, behind the buffers, and its slot holds the location ([`SlotMut::reserve_large`]). Memory in the large area
//! belongs to the buffer: it becomes free when the buffer does.
//!
//! # The life of a buffer
//!
//! free -> [`Filling`] (one owner) -> [`SlotMut`]s (one writer each) and [`Unfinished`] -> [`Lease`] (read only,
//! counted) -> free. Each step consumes the one before. So safe code can neither write a buffer that somebody reads nor
//! give one slot to two writers. Dropping any of them frees the buffer, once all others of the same buffer are gone
//! too.
//!
//! No byte is written when a buffer becomes free. It stays as it is until it is taken to be filled again. A pool that
//! is **retired** ([`StagingPool::retire`]) gives out no more buffers and no more parts of the large area. So consumers
//! whose connections are about to end can still read everything that was handed over to them.
//!
//! # Writers
//!
//! The file is mapped here and then sealed. From then on nobody, not even this process, can map it writable or write it
//! through a descriptor. Consumers get [`StagingPool::reader_fd`].
//!
//! Processes that run user code fill slots too. They map a pool that is not sealed against writing
//! ([`StagingPool::create_shared`]), because the processes of today may end, and others go on with the same pool. Such a
//! process is trusted to write only the slot that it was given, and only until it reports the sample or is dead. Until
//! then the slot's [`SlotMut`] is held, and nobody looks at the slot. Consumers have a descriptor that cannot write, and
//! the file belongs to its user alone.
#![expect(
    unsafe_code,
    reason = "hands out disjoint parts of the mapping as slices"
)]

mod large;

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use self::large::LargeArea;
pub(crate) use self::large::Marker;
use crate::error::{Result, invalid};
use crate::lock::lock;
use crate::mapping::{self, HUGE, Mapping, page_size};

/// Name of the memory in error messages.
const WHAT: &str = "the staging area";

/// The layout of a staging area. Both sides compute it from the same numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Layout {
    /// Number of samples that a buffer holds.
    pub slots: u32,
    /// Number of buffers.
    pub buffers: u32,
    fields: Vec<FieldArea>,
    stride: usize,
    large: Option<LargeValues>,
}

/// The field whose values may be larger than their slots, and their limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LargeValues {
    field: usize,
    /// Bytes that all such values may take. A single value may exceed it if its consumers would otherwise wait for
    /// ever.
    limit: u64,
}

/// One field's part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FieldArea {
    sample_bytes: usize,
    /// Offset from the start of the buffer.
    offset: usize,
}

impl Layout {
    /// Computes the layout for fields of the given bytes per sample.
    ///
    /// # Errors
    /// If a number is zero, or the whole area is larger than the address space.
    pub fn new(field_sample_bytes: &[usize], slots: u32, buffers: u32) -> Result<Layout> {
        let invalid = |why: &str| Err(invalid("layout of the staging area", why));
        if slots == 0
            || buffers == 0
            || field_sample_bytes.is_empty()
            || field_sample_bytes.contains(&0)
        {
            return invalid(
                "it needs at least one buffer, one slot, one field, and one byte per field",
            );
        }
        let Some((fields, stride)) = lay_out(field_sample_bytes, slots as usize) else {
            return invalid("a buffer is larger than the address space");
        };
        if stride
            .checked_mul(buffers as usize)
            .is_some_and(|total| total <= isize::MAX as usize)
        {
            Ok(Layout {
                slots,
                buffers,
                fields,
                stride,
                large: None,
            })
        } else {
            invalid("the buffers together are larger than the address space")
        }
    }

    /// Lets the values of a field be larger than their slots, within `limit` bytes in all.
    ///
    /// # Errors
    /// If there is no such field, or its slots are too small to hold the location of a value.
    pub fn with_large(mut self, field: usize, limit: u64) -> Result<Layout> {
        let bytes = self.fields.get(field).map(|f| f.sample_bytes);
        if bytes.is_none_or(|bytes| bytes < Marker::BYTES) {
            let why = "values of a field that is not there, or too small, cannot be large";
            return Err(invalid("layout of the staging area", why));
        }
        self.large = Some(LargeValues { field, limit });
        Ok(self)
    }

    /// Returns the field whose values may be larger than their slots.
    #[must_use]
    pub fn large_field(&self) -> Option<usize> {
        self.large.map(|large| large.field)
    }

    /// Returns how many bytes such values may take in all, or 0 if the layout has no such values.
    #[must_use]
    pub fn large_limit(&self) -> u64 {
        self.large.map_or(0, |large| large.limit)
    }

    /// Returns the number of fields.
    #[must_use]
    pub fn fields(&self) -> usize {
        self.fields.len()
    }

    /// Returns the bytes that one sample takes in a field.
    ///
    /// # Panics
    /// If there is no such field.
    #[must_use]
    pub fn sample_bytes(&self, field: usize) -> usize {
        self.fields[field].sample_bytes
    }

    /// Returns the bytes of a field in one buffer, without padding.
    ///
    /// # Panics
    /// If there is no such field.
    #[must_use]
    pub fn field_bytes(&self, field: usize) -> usize {
        self.fields[field].sample_bytes * self.slots as usize
    }

    /// Returns the offset of a field from the start of a buffer, in bytes.
    ///
    /// # Panics
    /// If there is no such field.
    #[must_use]
    pub fn field_offset(&self, field: usize) -> usize {
        self.fields[field].offset
    }

    /// Returns the distance from one buffer to the next, in bytes.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the bytes of all buffers.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.stride * self.buffers as usize
    }

    /// Returns the range of a buffer in the area.
    pub(crate) fn buffer(&self, buffer: u32) -> Range<usize> {
        assert!(buffer < self.buffers, "buffer {buffer} of {}", self.buffers);
        let start = self.stride * buffer as usize;
        start..start + self.stride
    }

    /// Returns the range of a field of a buffer in the area.
    pub(crate) fn field(&self, buffer: u32, field: usize) -> Range<usize> {
        let start = self.buffer(buffer).start + self.field_offset(field);
        start..start + self.field_bytes(field)
    }

    /// Returns the offset of the large area. It is aligned to huge pages.
    pub(crate) fn large_start(&self) -> usize {
        self.total_bytes().next_multiple_of(HUGE)
    }

    /// Returns the range of a slot of a field of a buffer in the area.
    pub(crate) fn slot(&self, buffer: u32, field: usize, slot: u32) -> Range<usize> {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        let bytes = self.sample_bytes(field);
        let start = self.field(buffer, field).start + bytes * slot as usize;
        start..start + bytes
    }
}

fn lay_out(sample_bytes: &[usize], slots: usize) -> Option<(Vec<FieldArea>, usize)> {
    let mut offset = 0usize;
    let mut fields = Vec::with_capacity(sample_bytes.len());
    for &sample_bytes in sample_bytes {
        fields.push(FieldArea {
            sample_bytes,
            offset,
        });
        let bytes = sample_bytes
            .checked_mul(slots)?
            .checked_next_multiple_of(page_size())?;
        offset = offset.checked_add(bytes)?;
    }
    Some((fields, offset))
}

/// The staging area. A clone refers to the same area.
#[derive(Clone)]
pub struct StagingPool {
    area: Arc<Area>,
}

struct Area {
    layout: Layout,
    mapping: Mapping,
    file: OwnedFd,
    free: Mutex<FreeBuffers>,
    /// Memory for large values, or `None` if all values lie in their slots.
    large: Option<LargeArea>,
    /// Callback for a buffer that has become free.
    on_free: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct FreeBuffers {
    /// Buffers that nobody uses. The one used last is taken first, because a processor's caches may still hold parts of
    /// it.
    buffers: Vec<u32>,
    /// True if none of them may be taken any more.
    is_retired: bool,
}

impl Area {
    fn free(&self) -> MutexGuard<'_, FreeBuffers> {
        lock(&self.free)
    }

    /// Writes the first bytes of a slot, in the field whose values may be large.
    fn mark(&self, buffer: u32, slot: u32, bytes: [u8; Marker::BYTES]) {
        let Some(field) = self.layout.large_field() else {
            return;
        };
        let start = self.layout.slot(buffer, field, slot).start;
        self.mapping.at(start + Marker::BYTES);
        let target = self.mapping.at(start).as_ptr();
        // SAFETY: in bounds, since both ends were checked; `with_large` saw that the slot is long enough. Exclusive:
        // the callers have the slot's only `SlotMut`, or the buffer's only `Hold` before it is filled.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, Marker::BYTES) };
    }
}

impl StagingPool {
    /// Reserves the memory, maps it, and seals it.
    ///
    /// # Errors
    /// If memory is short. The error states the bytes wanted, the bytes available and a remedy.
    pub fn create(layout: Layout) -> Result<Self> {
        let pool = Self::reserve(layout)?;
        // After this, not even this process can make another writable mapping.
        mapping::seal(WHAT, &pool.area.file, mapping::write_seals())?;
        // Only here, because a pool that other processes write is hardly touched through this mapping.
        (pool.area.mapping).populate_for_writing(0..pool.layout().total_bytes());
        Ok(pool)
    }

    /// Creates a pool that other processes write too. They map its [`file`](Self::file).
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn create_shared(layout: Layout) -> Result<Self> {
        let pool = Self::reserve(layout)?;
        mapping::seal(WHAT, &pool.area.file, mapping::size_seals())?;
        Ok(pool)
    }

    fn reserve(layout: Layout) -> Result<Self> {
        let bytes = layout.total_bytes();
        let large =
            (layout.large).map(|of| LargeArea::new(layout.large_start(), of.limit, layout.buffers));
        let end = large.as_ref().map_or(bytes, LargeArea::end);
        let (file, mapping) = mapping::huge_memory_file(WHAT, "coprep-staging", bytes, end)?;
        let free = Mutex::new(FreeBuffers {
            buffers: (0..layout.buffers).rev().collect(),
            is_retired: false,
        });
        Ok(StagingPool {
            area: Arc::new(Area {
                layout,
                mapping,
                file,
                free,
                large,
                on_free: OnceLock::new(),
            }),
        })
    }

    /// Returns the file, for a process that is trusted to write slots of a [shared](Self::create_shared) pool.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.area.file.as_fd()
    }

    /// Returns the layout of the area.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.area.layout
    }

    /// Returns a read-only descriptor for a consumer.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn reader_fd(&self) -> Result<OwnedFd> {
        mapping::reopen_read_only(WHAT, self.area.file.as_fd())
    }

    /// Returns the number of buffers that nobody uses.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.area.free().buffers.len() as u32
    }

    /// Stops giving out buffers and parts of the large area. Buffers in use stay in use, and a buffer that becomes free
    /// keeps its contents.
    ///
    /// The caller retires the pool before it ends the connections of consumers, because that makes their buffers free.
    pub fn retire(&self) {
        self.area.free().is_retired = true;
        if let Some(large) = &self.area.large {
            large.retire();
        }
    }

    /// Returns true if the pool is retired.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.area.free().is_retired
    }

    /// Returns how many minibatches may be begun: one for each free buffer, but fewer while large values take most of
    /// their limit.
    #[must_use]
    pub fn to_begin(&self) -> u32 {
        let free = self.free();
        let large = self.area.large.as_ref();
        large.map_or(free, |large| large.to_begin(free))
    }

    /// Returns the bytes of memory that are reserved.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let large = self.area.large.as_ref().map_or(0, LargeArea::reserved);
        self.area.layout.total_bytes() as u64 + large
    }

    /// Waits until memory for a large value may have become free, but at most for `limit`.
    pub fn wait_for_large(&self, limit: Duration) {
        if let Some(large) = &self.area.large {
            large.wait(limit);
        }
    }

    /// Sets the callback for a buffer that has become free. The thread that frees the buffer calls it, so it must not
    /// wait. Only the first call has an effect.
    pub fn on_free(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.area.on_free.set(Box::new(tell));
    }

    /// Takes a free buffer, or returns `None` if there is none or the pool is retired. The buffer holds arbitrary
    /// contents, but no slot claims that its value lies in the large area.
    #[must_use]
    pub fn allocate(&self) -> Option<Filling> {
        let mut free = self.area.free();
        if free.is_retired {
            return None;
        }
        let buffer = free.buffers.pop()?;
        drop(free);
        let hold = Hold {
            area: self.area.clone(),
            buffer,
        };
        hold.begin();
        Some(Filling { hold })
    }
}

/// A buffer in use. It becomes free again when this is dropped.
struct Hold {
    area: Arc<Area>,
    buffer: u32,
}

impl Hold {
    /// Clears the markers that an earlier use of the buffer left. Otherwise the next writer of a slot could write fewer
    /// bytes than a marker has, and leave a valid marker behind.
    fn begin(&self) {
        let large = self.area.large.as_ref();
        if large.is_some_and(|large| large.begin(self.buffer)) {
            // All slots: `copy_slot` may have copied a marker into a slot that never had a large value.
            let clear = |slot| self.area.mark(self.buffer, slot, [0; Marker::BYTES]);
            (0..self.area.layout.slots).for_each(clear);
        }
    }

    /// Returns a range of the area as a slice.
    ///
    /// # Safety
    /// For the life of the slice nobody writes the range.
    unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: in bounds, since ranges come from the layout that sized the mapping, and `at` checks the
        // end; initialised, since it is a file's memory; not written meanwhile, as the caller promises, and
        // consumers cannot write it at all.
        unsafe { std::slice::from_raw_parts(self.pointer(&range), range.len()) }
    }

    fn pointer(&self, range: &Range<usize>) -> *mut u8 {
        self.area.mapping.at(range.end);
        self.area.mapping.at(range.start).as_ptr()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // No byte is written: a consumer that has not yet noticed the end of its connection may still read.
        if let Some(large) = &self.area.large {
            large.release(self.buffer);
        }
        // This comes after `release`, which could otherwise free extents of the next user of the buffer.
        self.area.free().buffers.push(self.buffer);
        // After the lock is released, so that the callback can look at the free buffers.
        if let Some(tell) = self.area.on_free.get() {
            tell();
        }
    }
}

/// A buffer that is about to be filled, with one owner.
#[must_use]
pub struct Filling {
    hold: Hold,
}

impl Filling {
    /// Returns the number of the buffer.
    #[must_use]
    pub fn buffer(&self) -> u32 {
        self.hold.buffer
    }

    /// Gives out the first `count` slots, with one writer each.
    ///
    /// # Panics
    /// If the buffer has fewer slots.
    pub fn split(self, count: u32) -> (Vec<SlotMut>, Unfinished) {
        assert!(
            count <= self.hold.area.layout.slots,
            "{count} slots of {}",
            self.hold.area.layout.slots
        );
        let hold = Arc::new(self.hold);
        let slots = (0..count)
            .map(|slot| SlotMut {
                hold: hold.clone(),
                slot,
                is_waiting: false,
            })
            .collect();
        (slots, Unfinished { hold, slots: count })
    }
}

/// One slot of a buffer, held by its only writer.
pub struct SlotMut {
    hold: Arc<Hold>,
    slot: u32,
    /// True if the slot was refused a part of the large area.
    is_waiting: bool,
}

impl Drop for SlotMut {
    fn drop(&mut self) {
        if self.is_waiting
            && let Some(large) = &self.hold.area.large
        {
            large.stop_waiting(self.hold.buffer, self.slot);
        }
    }
}

impl SlotMut {
    /// Returns the number of the slot in its buffer.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the slot's part of a field. It holds arbitrary contents until it is written.
    ///
    /// # Panics
    /// If there is no such field.
    #[must_use]
    pub fn field_mut(&mut self, field: usize) -> &mut [u8] {
        let range = self
            .hold
            .area
            .layout
            .slot(self.hold.buffer, field, self.slot);
        // SAFETY: in bounds and initialised, as in `Hold::bytes`. Exclusive: `split` consumed the only
        // `Filling` of this buffer and made one `SlotMut` per slot, which is not `Clone`; slots are disjoint
        // in every field, and fields are; this borrow is `&mut self`; a `Lease`, and `Unfinished::copy_slot`,
        // come only when no `SlotMut` of the buffer is left.
        unsafe { std::slice::from_raw_parts_mut(self.hold.pointer(&range), range.len()) }
    }
}

impl SlotMut {
    /// Gives the slot `bytes` bytes of the large area, in place of those it had, and writes their location into the
    /// slot. Returns their offset in the file.
    ///
    /// Returns `None` if that exceeds the limit and `beyond_limit` is false, or if the pool is retired. Then the slot
    /// counts as waiting until it is given memory, gives up, or is dropped.
    ///
    /// # Errors
    /// If memory is short, with the bytes wanted, the bytes available and a remedy; if the layout has no large values.
    pub fn reserve_large(&mut self, bytes: u64, beyond_limit: bool) -> Result<Option<u64>> {
        let Hold { area, buffer } = &*self.hold;
        let Some(large) = &area.large else {
            let why = "a value is larger than its slot";
            return Err(invalid(WHAT, why));
        };
        // Clear the marker first: `take` frees the memory that it points to.
        area.mark(*buffer, self.slot, [0; Marker::BYTES]);
        let reserve =
            |part| mapping::reserve_part("a large sample", &area.file, &area.mapping, part);
        let at = (*buffer, self.slot);
        let taken = large.take(at, bytes, beyond_limit, reserve);
        self.is_waiting = matches!(taken, Ok(None));
        let Some(start) = taken? else {
            return Ok(None);
        };
        let marker = Marker {
            offset: start as u64,
            len: bytes,
        };
        // The marker comes last, because it must never point to memory that is not reserved.
        area.mark(*buffer, self.slot, marker.bytes());
        Ok(Some(marker.offset))
    }

    /// Gives up the slot's memory in the large area, or its wait for some. The caller makes sure that nobody writes
    /// there any more.
    pub fn forget_large(&mut self) {
        let Hold { area, buffer } = &*self.hold;
        let Some(large) = &area.large else { return };
        if large.value(*buffer, self.slot).is_some() {
            area.mark(*buffer, self.slot, [0; Marker::BYTES]);
        } else if !self.is_waiting {
            return;
        }
        self.is_waiting = false;
        large.forget(*buffer, self.slot);
    }

    /// Returns the slot's value in the large area, or `None` if it has none.
    #[must_use]
    pub fn large_mut(&mut self) -> Option<&mut [u8]> {
        let large = self.hold.area.large.as_ref()?;
        let range = large.value(self.hold.buffer, self.slot)?;
        // SAFETY: in bounds, as `pointer` checks, and initialised. Exclusive: the extent is this slot's alone until its
        // buffer is free, or the slot gives it up by `&mut self`; consumers read it only once no `SlotMut` is left.
        Some(unsafe { std::slice::from_raw_parts_mut(self.hold.pointer(&range), range.len()) })
    }

    /// Returns true if no slot of a minibatch that was begun before this one waits for memory in the large area.
    #[must_use]
    pub fn waits_longest(&self) -> bool {
        let large = self.hold.area.large.as_ref();
        large.is_none_or(|large| large.waits_longest(self.hold.buffer))
    }

    /// Returns true if the slot's minibatch was begun before all others that are not finished.
    #[must_use]
    pub fn is_of_first_minibatch(&self) -> bool {
        let large = self.hold.area.large.as_ref();
        large.is_none_or(|large| large.is_first(self.hold.buffer))
    }
}

/// A buffer whose slots are being written.
#[must_use]
pub struct Unfinished {
    hold: Arc<Hold>,
    slots: u32,
}

impl Unfinished {
    /// Returns the number of the buffer.
    #[must_use]
    pub fn buffer(&self) -> u32 {
        self.hold.buffer
    }

    /// Returns the number of slots that were given out.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns true if every [`SlotMut`] is gone, so that nobody writes the buffer any more.
    #[must_use]
    pub fn is_complete(&mut self) -> bool {
        // Not `strong_count`: `get_mut` has the acquire that makes the bytes of all writers visible.
        Arc::get_mut(&mut self.hold).is_some()
    }

    /// Copies a sample over another one. It closes the gap that a failed sample left.
    ///
    /// # Panics
    /// If a [`SlotMut`] of the buffer is left, or there is no such slot.
    pub fn copy_slot(&mut self, from: u32, to: u32) {
        let hold =
            Arc::get_mut(&mut self.hold).expect("no slot is copied while one is being written");
        let layout = &hold.area.layout;
        for field in 0..layout.fields() {
            let source = layout.slot(hold.buffer, field, from);
            let target = layout.slot(hold.buffer, field, to);
            // SAFETY: both are in bounds (`pointer` checks) and equally long; they may be the same, which
            // `copy` allows. Exclusive: `get_mut` showed that nobody else holds the buffer, and its acquire
            // pairs with the release by which the last `SlotMut` was dropped.
            unsafe { std::ptr::copy(hold.pointer(&source), hold.pointer(&target), source.len()) };
        }
    }

    /// Makes the buffer read-only.
    ///
    /// # Panics
    /// If a [`SlotMut`] of the buffer is left.
    #[must_use]
    pub fn finish(mut self) -> Lease {
        assert!(
            self.is_complete(),
            "no buffer is finished while a slot is being written"
        );
        if let Some(large) = &self.hold.area.large {
            large.finish(self.hold.buffer);
        }
        Lease { hold: self.hold }
    }
}

/// A shared, read-only hold on a written buffer. The buffer becomes free when the last share is dropped.
#[derive(Clone)]
pub struct Lease {
    hold: Arc<Hold>,
}

impl Lease {
    /// Returns the number of the buffer.
    #[must_use]
    pub fn buffer(&self) -> u32 {
        self.hold.buffer
    }

    /// Returns `true` if this is the buffer's only share: dropping it makes the buffer free. Other threads may take or
    /// drop shares meanwhile, unless a lock keeps them from it.
    #[must_use]
    pub fn is_only_share(&self) -> bool {
        Arc::strong_count(&self.hold) == 1
    }

    /// Returns a field of all slots.
    ///
    /// # Panics
    /// If there is no such field.
    #[must_use]
    pub fn field(&self, field: usize) -> &[u8] {
        let range = self.hold.area.layout.field(self.hold.buffer, field);
        // SAFETY: nobody writes a buffer that has a lease: `finish` showed that no `SlotMut` is left, and
        // the buffer is not allocated again before the last lease is dropped.
        unsafe { self.hold.bytes(range) }
    }
}
