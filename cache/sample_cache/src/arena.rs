//! Payloads and index of a no-eviction cache in one segment: a bump pointer and a row of index entries.
//!
//! An [`Extent`] is given out once and belongs to one writer until it is published or given back. A published payload
//! is never written again until its room is given out anew, which happens only after all readers are gone
//! ([`Arena::vacate`]).
#![expect(
    unsafe_code,
    reason = "hands out disjoint parts of the segment as slices"
)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

use coprep_shared_memory::lock::lock;
use coprep_shared_memory::mapping::Mapping;

use crate::error::{Error, Result};
use crate::index::{self, ENTRY, EntryBytes, IndexEntry};
use crate::layout::{SegmentLayout, WHAT};
use crate::named;
use crate::room::RoomAllocator;

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
    room: Mutex<RoomAllocator>,
    /// Number of dropped entries whose room is not free yet.
    dropped: AtomicU32,
}

// SAFETY: the pointers within `memory` are to memory that lives as long as it and belongs to no thread;
// writes go to the index under the lock, and to extents, each of which has one owner.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// A part of the payload area with one owner.
#[derive(Debug)]
pub(crate) struct Extent {
    offset: u64,
    /// Bytes requested.
    len: usize,
}

impl Arena {
    pub(crate) fn new(memory: SegmentMemory, shape: SegmentLayout, seed: u64) -> Self {
        assert!(
            memory.len() >= shape.bytes,
            "the segment is smaller than its shape"
        );
        Arena {
            room: Mutex::new(RoomAllocator::new(shape.capacity, shape.positions)),
            shape,
            memory,
            seed,
            dropped: AtomicU32::new(0),
        }
    }

    pub(crate) fn shape(&self) -> &SegmentLayout {
        &self.shape
    }

    /// Returns the bytes given out.
    pub(crate) fn used(&self) -> u64 {
        self.room().used()
    }

    fn room(&self) -> MutexGuard<'_, RoomAllocator> {
        lock(&self.room)
    }

    /// Allocates room for `len` bytes and an index position.
    pub(crate) fn allocate(&self, len: usize) -> Option<Extent> {
        let offset = self.room().allocate(len as u64)?;
        Some(Extent { offset, len })
    }

    /// Frees an extent that is not published.
    pub(crate) fn give_back(&self, extent: Extent) {
        self.room().give_back(extent.offset, extent.len as u64);
    }

    /// Withdraws an entry from the index. Readers that have found it may still look at its payload.
    pub(crate) fn drop_entry(&self, number: u32) {
        self.write_entry(number, &index::DROPPED);
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Frees the position and the room of an entry that was [dropped](Self::drop_entry). The caller has made sure that
    /// nobody looks at its payload now or later.
    pub(crate) fn vacate(&self, number: u32, entry: &IndexEntry) {
        self.room().vacate(number, entry);
        self.dropped.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns `true` if dropped entries still have their room.
    pub(crate) fn has_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) > 0
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
        let mut room = self.room();
        let number = room.publish();
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
        // page, and an entry is seven words. The words are accessed as atomics and in no other way. In a named segment
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

    /// Returns the payload of an entry that came from [`entry`](Self::entry) and that nobody vacates meanwhile.
    pub(crate) fn payload_of(&self, entry: &IndexEntry) -> &[u8] {
        let start = self.payload(entry.offset, entry.len);
        // SAFETY: in bounds and initialised as in `bytes_mut`; never written while the arena lives: the extent of an
        // entry is given out again only once it was vacated, which the caller excludes. (In a named segment another
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
        self.room().take_over(&scan);
        scan
    }
}
