//! Allocates the room of a no-eviction cache: payload bytes by a bump pointer, and positions of the index.
//!
//! It knows numbers only, and touches no payload and no index. Its owner holds it under a lock, and writes the bytes.

use std::collections::BTreeMap;

use crate::index::{IndexEntry, Scan, extent_len};

/// The allocator of a cache's room. See the module.
#[derive(Debug)]
pub struct RoomAllocator {
    /// Bytes for payloads.
    capacity: u64,
    /// Number of entries that the index has room for.
    positions: u32,
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

impl RoomAllocator {
    /// Returns an allocator of `capacity` bytes and `positions` positions, all of them free.
    #[must_use]
    pub fn new(capacity: u64, positions: u32) -> Self {
        RoomAllocator {
            capacity,
            positions,
            end: 0,
            holes: BTreeMap::new(),
            largest_hole: 0,
            vacant: Vec::new(),
            next_position: 0,
            open: 0,
            used: 0,
        }
    }

    /// Takes over an index that was read. The room between its entries is free, and so are dropped positions.
    pub fn take_over(&mut self, scan: &Scan) {
        *self = RoomAllocator {
            next_position: scan.positions,
            vacant: [&*scan.vacant, &scan.dropped].concat(),
            ..RoomAllocator::new(self.capacity, self.positions)
        };
        for (_, entry) in &scan.entries {
            // `scan` has checked, sorted and separated the entries, so nothing here overflows.
            let end = entry.end().unwrap_or(entry.offset);
            self.add_hole(self.end, entry.offset - self.end);
            self.used += end - entry.offset;
            self.end = end;
        }
    }

    /// Returns the bytes given out.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Allocates room for a payload of `len` bytes and an index position. Returns the offset of the room, or `None` if
    /// there is too little.
    pub fn allocate(&mut self, len: u64) -> Option<u64> {
        let room = extent_len(len)?;
        // An open extent takes an index position when it is published. It is refused now if none would be left then,
        // because `publish` cannot fail.
        if self.open >= self.positions_left() {
            return None;
        }
        // Holes are filled first. So the room at the end stays whole for samples that no hole is large enough for.
        let offset = self.take_hole(room).or_else(|| self.take_end(room))?;
        self.open += 1;
        self.used += room;
        Some(offset)
    }

    /// Returns `true` if [`allocate`](Self::allocate) may find room for `len` bytes. It may still find none, if the
    /// largest hole has become smaller.
    #[must_use]
    pub fn has_room(&self, len: u64) -> bool {
        let Some(room) = extent_len(len) else {
            return false;
        };
        let at_end = self.end.checked_add(room);
        let fits = room <= self.largest_hole || at_end.is_some_and(|end| end <= self.capacity);
        fits && self.open < self.positions_left()
    }

    /// Frees the room of `len` bytes at `offset`, which was allocated and is not published.
    pub fn give_back(&mut self, offset: u64, len: u64) {
        self.open -= 1;
        self.free_payload(offset, len);
    }

    /// Returns the index position for an extent that was allocated.
    pub fn publish(&mut self) -> u32 {
        self.open -= 1;
        self.vacant.pop().unwrap_or_else(|| {
            self.next_position += 1;
            self.next_position - 1
        })
    }

    /// Frees the position and the room of an entry that was published.
    pub fn vacate(&mut self, position: u32, entry: &IndexEntry) {
        self.vacant.push(position);
        self.free_payload(entry.offset, entry.len);
    }

    fn positions_left(&self) -> u32 {
        self.positions - self.next_position + self.vacant.len() as u32
    }

    fn take_end(&mut self, room: u64) -> Option<u64> {
        let offset = self.end;
        let end = offset.checked_add(room);
        self.end = end.filter(|&end| end <= self.capacity)?;
        Some(offset)
    }

    fn free_payload(&mut self, offset: u64, len: u64) {
        // The room was computed when it was allocated, or checked when its entry was read, so it does not overflow.
        let room = extent_len(len).unwrap_or(0);
        self.used -= room;
        self.free(offset, room);
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

    /// Takes the smallest hole that is large enough. The rest of the hole stays free.
    ///
    /// Holes are left by samples that were damaged, and are soon asked for by the same samples. So each of them finds a
    /// hole of its own length, and no small sample takes the room of a large one.
    fn take_hole(&mut self, room: u64) -> Option<u64> {
        // Without this bound, every sample that finds no room would cause a search of all holes.
        if room > self.largest_hole {
            return None;
        }
        let fitting = self.holes.iter().filter(|&(_, &len)| len >= room);
        let Some((&offset, &len)) = fitting.min_by_key(|&(_, &len)| len) else {
            // The bound was too high, because taking a hole does not lower it. This search has seen all holes anyway.
            self.largest_hole = self.holes.values().copied().max().unwrap_or(0);
            return None;
        };
        self.holes.remove(&offset);
        self.add_hole(offset + room, len - room);
        Some(offset)
    }
}
