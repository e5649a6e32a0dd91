//! Payloads and index of a no-eviction cache in one segment: a bump pointer and a row of index entries.
//!
//! An [`Extent`] is given out once and belongs to one writer until it is published or given back. A published payload
//! is never written again while the arena lives, so references to it need no counting. The only exception is an entry
//! that was taken over and found damaged before anybody had a reference to it ([`Arena::drop_entry`]).
#![expect(
    unsafe_code,
    reason = "hands out disjoint parts of the segment as slices"
)]

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

use coprep_shared_memory::lock::lock;
use coprep_shared_memory::mapping::Mapping;

use crate::error::{Error, Result};
use crate::index::{self, ENTRY, EntryBytes, IndexEntry};
use crate::layout::{SegmentLayout, WHAT};
use crate::named;

/// The memory of a segment.
pub(crate) enum SegmentMemory {
    Anonymous(Mapping),
    Named(named::Segment),
}

impl SegmentMemory {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match self {
            SegmentMemory::Anonymous(mapping) => mapping.start(),
            SegmentMemory::Named(segment) => segment.start(),
        }
    }

    fn len(&self) -> usize {
        match self {
            SegmentMemory::Anonymous(mapping) => mapping.len(),
            SegmentMemory::Named(segment) => segment.len(),
        }
    }

    /// Reserves, maps and seals memory that no other process ever sees.
    pub(crate) fn anonymous(shape: &SegmentLayout) -> Result<Self> {
        let mapping =
            Mapping::sealed(WHAT, "coprep-cache", shape.bytes).map_err(Error::from_lower)?;
        Ok(SegmentMemory::Anonymous(mapping))
    }
}

/// The segment of a cache and the allocation of its room. See the module.
pub(crate) struct Arena {
    shape: SegmentLayout,
    memory: SegmentMemory,
    seed: u64,
    state: Mutex<ArenaState>,
}

// SAFETY: the pointers within `memory` are to memory that lives as long as it and belongs to no thread;
// writes go to the index under the lock, and to extents, each of which has one owner.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// The state of the allocator.
#[derive(Default)]
struct ArenaState {
    /// End of the used part. Everything beyond it is free.
    end: u64,
    /// Free room before `end`: length by offset. No two holes touch.
    holes: BTreeMap<u64, u64>,
    /// Upper bound of the length of any hole.
    largest_hole: u64,
    /// Positions whose entry was dropped.
    vacant: Vec<u32>,
    next_position: u32,
    /// Number of extents that are neither published nor given back. Each of them will need an index position.
    open: u32,
    used: u64,
}

/// A part of the payload area with one owner.
#[derive(Debug)]
pub(crate) struct Extent {
    offset: u64,
    /// Bytes requested.
    len: usize,
}

impl Extent {
    fn room(&self) -> u64 {
        index::extent_len(self.len as u64).unwrap_or(u64::MAX)
    }
}

impl Arena {
    pub(crate) fn new(memory: SegmentMemory, shape: SegmentLayout, seed: u64) -> Self {
        assert!(
            memory.len() >= shape.bytes,
            "the segment is smaller than its shape"
        );
        Arena {
            shape,
            memory,
            seed,
            state: Mutex::default(),
        }
    }

    pub(crate) fn shape(&self) -> &SegmentLayout {
        &self.shape
    }

    /// Returns the bytes given out.
    pub(crate) fn used(&self) -> u64 {
        self.state().used
    }

    fn state(&self) -> MutexGuard<'_, ArenaState> {
        lock(&self.state)
    }

    /// Allocates room for `len` bytes and an index position.
    pub(crate) fn allocate(&self, len: usize) -> Option<Extent> {
        let room = index::extent_len(len as u64)?;
        let mut state = self.state();
        // An open extent takes an index position when it is published. It is refused now if none would be left then,
        // because `append` cannot fail.
        if state.open >= state.positions_left(self.shape.positions) {
            return None;
        }
        // Holes are filled first. So the room at the end stays whole for samples that no hole is large enough for.
        let offset = state
            .take_hole(room)
            .or_else(|| state.take_end(room, self.shape.capacity))?;
        state.open += 1;
        state.used += room;
        Some(Extent { offset, len })
    }

    /// Frees an extent that is not published.
    pub(crate) fn give_back(&self, extent: Extent) {
        let mut state = self.state();
        state.open -= 1;
        state.used -= extent.room();
        state.free(extent.offset, extent.room());
    }

    /// Frees the position and the room of a damaged entry. The caller has made sure that nobody looks at its payload
    /// now or later.
    pub(crate) fn drop_entry(&self, number: u32, entry: &IndexEntry) {
        // First, so that the room goes to another entry only after the index no longer names it.
        self.write_entry(number, &index::DROPPED);
        // `bounds` admitted the entry when it was read, so the number does not overflow.
        let room = index::extent_len(entry.len).unwrap_or(0);
        let mut state = self.state();
        state.vacant.push(number);
        state.used -= room;
        state.free(entry.offset, room);
    }

    /// Returns the bytes of an extent, for its owner.
    pub(crate) fn bytes_mut<'a>(&'a self, extent: &'a mut Extent) -> &'a mut [u8] {
        let start = self.payload(extent.offset, extent.len as u64);
        // SAFETY: in bounds (`payload` checks); initialised, since it is a file's memory; exclusive, since extents are
        // disjoint while they are open and this one is borrowed exclusively, and entries, which `payload_of` reads, are
        // never within an open extent: after `take_over`, `allocate` gives out only the room between them.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), extent.len) }
    }

    /// Turns an extent into a permanent entry, and returns its position in the index.
    pub(crate) fn publish(
        &self,
        extent: Extent,
        entry: impl FnOnce(u64, &[u8]) -> IndexEntry,
    ) -> Option<u32> {
        let payload = self.payload(extent.offset, extent.len as u64);
        // SAFETY: in bounds and initialised as in `bytes_mut`; the extent is ours, so nobody writes it.
        let payload = unsafe { std::slice::from_raw_parts(payload.as_ptr(), extent.len) };
        match entry(extent.offset, payload).to_bytes(self.seed) {
            Some(bytes) => Some(self.append(&bytes)),
            None => {
                self.give_back(extent);
                None
            }
        }
    }

    fn append(&self, bytes: &EntryBytes) -> u32 {
        let mut state = self.state();
        let number = state.take_position();
        state.open -= 1;
        // The payload must be in memory before the entry, in case this process is killed here.
        fence(Ordering::Release);
        self.write_entry(number, bytes);
        number
    }

    fn write_entry(&self, number: u32, bytes: &EntryBytes) {
        for (word, chunk) in self.words(number).iter().zip(bytes.as_chunks().0) {
            // Relaxed: a reader learns the position through a release. A reader that still has the position for an
            // earlier entry finds by the checksum that the entry has changed, even if only in part.
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
    }

    fn words(&self, number: u32) -> &[AtomicU64; ENTRY / 8] {
        let start = self.at(self.shape.offset(number)).cast();
        // SAFETY: in bounds (`offset` checks the number, the shape fits the memory) and aligned: the index begins on a
        // page, and an entry is six words. The words are accessed as atomics and in no other way. In a named segment
        // another process of this user may break the rules and write there; then any bits may be read, and they are
        // validated.
        unsafe { start.as_ref() }
    }

    /// Returns a validated copy of the entry at a position, or `None` if the position holds anything else now.
    pub(crate) fn entry(&self, number: u32) -> Option<IndexEntry> {
        let entry = IndexEntry::from_bytes(&self.entry_bytes(number), self.seed)?;
        self.bounds().admit(&entry).then_some(entry)
    }

    /// Returns a copy of the bytes at a position.
    pub(crate) fn entry_bytes(&self, number: u32) -> EntryBytes {
        let mut bytes = index::EMPTY;
        for (word, chunk) in self.words(number).iter().zip(bytes.as_chunks_mut().0) {
            // Relaxed: a copy that mixes an old and a new entry fails its checksum.
            *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        bytes
    }

    /// Returns the payload of an entry that came from [`entry`](Self::entry) and that nobody drops meanwhile.
    pub(crate) fn payload_of(&self, entry: &IndexEntry) -> &[u8] {
        let start = self.payload(entry.offset, entry.len);
        // SAFETY: in bounds and initialised as in `bytes_mut`; never written while the arena lives: the extent of an
        // entry is given out again only once it was dropped, which the caller excludes. (In a named segment another
        // process of this user may break the rules and write there, as it may write into this process by other ways;
        // see the docs.)
        unsafe { std::slice::from_raw_parts(start.as_ptr(), entry.len as usize) }
    }

    fn payload(&self, offset: u64, len: u64) -> NonNull<u8> {
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.shape.capacity);
        assert!(inside, "{len} bytes at {offset} of {}", self.shape.capacity);
        self.at(self.shape.payloads_at + offset as usize)
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(
            offset < self.shape.bytes,
            "offset {offset} of {}",
            self.shape.bytes
        );
        // SAFETY: inside the memory, which `new` found to be as large as the shape.
        unsafe { self.memory.start().add(offset) }
    }

    pub(crate) fn bounds(&self) -> index::Bounds {
        index::Bounds {
            samples: self.shape.samples,
            capacity: self.shape.capacity,
            seed: self.seed,
        }
    }

    /// Reads the index that another coordinator left. The room between entries is free, and so are dropped positions.
    pub(crate) fn take_over(&mut self) -> index::Scan {
        let entries = (0..self.shape.positions).map(|number| self.entry_bytes(number));
        let scan = index::scan(entries, &self.bounds());
        // A conflicting entry is dropped for good. Otherwise it could come back once its rival has been rewritten
        // elsewhere, and conflict with other entries.
        for number in &scan.dropped {
            self.write_entry(*number, &index::DROPPED);
        }
        *self.state() = ArenaState::after(&scan);
        scan
    }
}

impl ArenaState {
    fn after(scan: &index::Scan) -> Self {
        let mut state = ArenaState {
            next_position: scan.positions,
            vacant: [&*scan.vacant, &scan.dropped].concat(),
            ..ArenaState::default()
        };
        for (_, entry) in &scan.entries {
            // `scan` has checked, sorted and separated the entries, so nothing here overflows.
            let end = entry.end().unwrap_or(entry.offset);
            state.add_hole(state.end, entry.offset - state.end);
            state.used += end - entry.offset;
            state.end = end;
        }
        state
    }

    fn positions_left(&self, positions: u32) -> u32 {
        positions - self.next_position + self.vacant.len() as u32
    }

    fn take_position(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.next_position += 1;
            self.next_position - 1
        })
    }

    fn take_end(&mut self, room: u64, capacity: u64) -> Option<u64> {
        let offset = self.end;
        let end = offset.checked_add(room).filter(|&end| end <= capacity)?;
        self.end = end;
        Some(offset)
    }

    /// Frees room and merges it with the free room on both sides.
    fn free(&mut self, mut offset: u64, mut len: u64) {
        if let Some((&before, &its_len)) = self.holes.range(..offset).next_back()
            && before + its_len == offset
        {
            self.holes.remove(&before);
            (offset, len) = (before, its_len + len);
        }
        if let Some(its_len) = self.holes.remove(&(offset + len)) {
            len += its_len;
        }
        // Room at the end goes back to the bump pointer, where it can serve a sample of any length.
        if offset + len == self.end {
            self.end = offset;
        } else {
            self.add_hole(offset, len);
        }
    }

    fn add_hole(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.holes.insert(offset, len);
            self.largest_hole = self.largest_hole.max(len);
        }
    }

    /// Takes the first hole that is large enough. The rest of the hole stays free.
    fn take_hole(&mut self, room: u64) -> Option<u64> {
        // Without this bound, every sample that finds no room would cause a search of all holes.
        if room > self.largest_hole {
            return None;
        }
        let Some((&offset, &len)) = self.holes.iter().find(|&(_, &len)| len >= room) else {
            // The bound was too high, because taking a hole does not lower it. This search has seen all holes anyway.
            self.largest_hole = self.holes.values().copied().max().unwrap_or(0);
            return None;
        };
        self.holes.remove(&offset);
        self.add_hole(offset + room, len - room);
        Some(offset)
    }
}
