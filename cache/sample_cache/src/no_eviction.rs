//! A cache without eviction: an arena that fills up once (MinIO; Mohan et al., CoorDL, VLDB 2021, section 4.1).
//!
//! Within an epoch every sample is needed once, so no order of eviction has more hits than no eviction. And without
//! eviction the arena is a bump pointer and the index is append-only.
//!
//! The arena lies in an anonymous segment, or in a named one that the next coordinator takes over. After a take-over, a
//! payload's checksum is verified at its first hit. So a cache of 100 GB is usable at once, and the payload is about to
//! be read anyway. An entry whose payload fails the check gives its index position and its room back, and so does one
//! that is removed. Readers may still look at its payload, so its room is freed when the last of them is gone, by
//! epoch-based reclamation (Fraser, Practical lock-freedom, 2004, section 5.2.3).

use std::sync::{Arc, Mutex, MutexGuard};

use coprep_shared_memory::lock::lock;
use crossbeam::epoch::{self, Guard};

use crate::arena::{Arena, Extent, SegmentMemory};
use crate::contract::{ArenaStore, Hit, HitBytes, Reservation, SampleCache, Usage};
use crate::error::Result;
use crate::index::{IndexEntry, Scan, payload_checksum, seed};
use crate::layout::SegmentLayout;
use crate::meta::Meta;
use crate::named;
use crate::table::{CachedAt, PresenceTable};

/// Number of epochs that must begin before the room of a removed sample is free.
const EPOCHS: u32 = 3;

/// A cache without eviction. See the module.
pub struct NoEviction {
    arena: Arc<Arena>,
    table: PresenceTable,
    usage: Mutex<Usage>,
    /// True if the cache outlives this process. Then payloads are checksummed, because another coordinator may read
    /// them.
    outlives: bool,
}

/// The result of a take-over of a named segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TakeOver {
    /// Number of samples taken over.
    pub entries: u64,
    /// Bytes of these samples.
    pub bytes: u64,
    /// Number of entries that differed from the bytes that were written.
    pub dropped: u64,
    /// True if a segment of this name was incomplete or of another version, and was replaced.
    pub replaced: bool,
}

impl NoEviction {
    /// Creates a cache in memory without a name, which ends with this process. All memory is reserved now: `capacity`
    /// bytes for payloads, and 56 bytes of index per sample.
    ///
    /// # Errors
    /// If memory is short.
    pub fn anonymous(capacity: u64, samples: u32) -> Result<Self> {
        let shape = SegmentLayout::new(capacity, samples)?;
        let arena = Arena::new(SegmentMemory::anonymous(&shape)?, shape, 0);
        Ok(Self::over(arena, false))
    }

    /// Opens the named segment `name`. A complete segment is taken over; otherwise a new one is created. The
    /// fingerprint identifies the inputs that determine the payloads. An existing segment keeps its capacity, which
    /// [`usage`](SampleCache::usage) returns; `capacity` is for a new one.
    ///
    /// # Errors
    /// If memory, or the file system of named segments, is short; if the segment has another `fingerprint` or number of
    /// `samples`; if a live coordinator uses it; if it belongs to another user; or if the name is not valid.
    pub fn named(
        name: &str,
        capacity: u64,
        samples: u32,
        fingerprint: u128,
    ) -> Result<(Self, TakeOver)> {
        let opened = named::open(name, SegmentLayout::new(capacity, samples)?, fingerprint)?;
        let mut arena = Arena::new(
            SegmentMemory::Named(opened.segment),
            opened.shape,
            seed(fingerprint),
        );
        let mut found = TakeOver {
            replaced: opened.replaced,
            ..TakeOver::default()
        };
        let scan = opened.is_warm.then(|| arena.take_over());
        let cache = Self::over(arena, true);
        if let Some(scan) = scan {
            cache.take_over(&scan, &mut found);
        }
        Ok((cache, found))
    }

    fn over(arena: Arena, outlives: bool) -> Self {
        let usage = Usage {
            capacity: arena.shape().capacity,
            ..Usage::default()
        };
        NoEviction {
            table: PresenceTable::new(arena.shape().samples),
            usage: Mutex::new(usage),
            arena: Arc::new(arena),
            outlives,
        }
    }

    fn take_over(&self, scan: &Scan, found: &mut TakeOver) {
        for (position, entry) in &scan.entries {
            self.table.set(
                entry.id,
                CachedAt {
                    position: *position,
                    checked: false,
                },
            );
            self.count().add(entry.form, entry.len);
            found.entries += 1;
            found.bytes += entry.len;
        }
        found.dropped = scan.dropped.len() as u64;
    }

    fn count(&self) -> MutexGuard<'_, Usage> {
        lock(&self.usage)
    }

    /// Checks an entry that was taken over, at its first hit, and withdraws it if its payload is damaged.
    fn check(&self, id: u32, present: CachedAt, guard: &Guard) {
        let Some(entry) = self.entry(id, present) else {
            return;
        };
        if payload_checksum(self.arena.payload_of(&entry)) == entry.payload_checksum {
            self.table.confirm(id, present.position);
        } else {
            self.withdraw(id, present, entry, guard);
        }
    }

    /// Withdraws an entry, unless another thread has. `guard` is held since before the entry was looked up.
    fn withdraw(&self, id: u32, present: CachedAt, entry: IndexEntry, guard: &Guard) {
        if !self.table.withdraw(id, present) {
            return;
        }
        let position = present.position;
        // Before another writer may begin the sample, so that a segment never has two entries of one sample.
        self.arena.drop_entry(position);
        self.count().remove(entry.form, entry.len);
        self.table.give_up(id);
        let arena = Arc::downgrade(&self.arena);
        // Threads that still look at the payload found the entry before, and hold a guard.
        guard.defer(move || {
            if let Some(arena) = arena.upgrade() {
                arena.vacate(position, &entry);
            }
        });
        guard.flush();
    }

    fn entry(&self, id: u32, present: CachedAt) -> Option<IndexEntry> {
        // The position may hold another sample by now, if the entry was dropped after the table was read.
        let entry = self.arena.entry(present.position);
        entry.filter(|entry| entry.id == id)
    }
}

impl ArenaStore for NoEviction {
    fn bytes_mut<'a>(&'a self, extent: &'a mut Extent) -> &'a mut [u8] {
        self.arena.bytes_mut(extent)
    }

    fn admit(&self, id: u32, meta: Meta, extent: Extent) {
        let mut len = 0;
        let position = self.arena.publish(extent, |offset, payload| {
            len = payload.len() as u64;
            let payload_checksum = if self.outlives {
                payload_checksum(payload)
            } else {
                0
            };
            let Meta {
                form,
                width,
                height,
                version,
            } = meta;
            IndexEntry {
                offset,
                len,
                payload_checksum,
                version,
                id,
                width,
                height,
                form,
            }
        });
        let Some(position) = position else {
            return self.table.give_up(id);
        };
        self.count().add(meta.form, len);
        self.table.set(
            id,
            CachedAt {
                position,
                checked: true,
            },
        );
    }

    fn abandon(&self, id: u32, extent: Extent) {
        self.arena.give_back(extent);
        self.table.give_up(id);
    }
}

impl SampleCache for NoEviction {
    fn meta(&self, id: u32) -> Option<Meta> {
        let entry = self.entry(id, self.table.get(id)?)?;
        Some(entry.meta())
    }

    fn get(&self, id: u32) -> Option<Hit<'_>> {
        let guard = epoch::pin();
        let found = self.table.get(id)?;
        if !found.checked {
            self.check(id, found, &guard);
        }
        let present = self.table.get(id).filter(|present| present.checked)?;
        let entry = self.entry(id, present)?;
        Some(Hit {
            bytes: HitBytes::Arena {
                bytes: self.arena.payload_of(&entry),
                _guard: guard,
            },
            meta: entry.meta(),
        })
    }

    fn reserve(&self, id: u32, len: usize, meta: Meta) -> Option<Reservation<'_>> {
        if !self.table.begin(id) {
            return None;
        }
        let mut extent = self.arena.allocate(len);
        if extent.is_none() && self.arena.has_dropped() {
            // Room is freed while nobody looks at any payload, which is soon.
            for _ in 0..EPOCHS {
                epoch::pin().flush();
            }
            extent = self.arena.allocate(len);
        }
        match extent {
            Some(extent) => Some(Reservation::in_arena(self, id, extent, meta)),
            None => {
                self.table.give_up(id);
                None
            }
        }
    }

    fn remove(&self, id: u32) {
        let guard = epoch::pin();
        if let Some(present) = self.table.get(id)
            && let Some(entry) = self.entry(id, present)
        {
            self.withdraw(id, present, entry, &guard);
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            used: self.arena.used(),
            ..*self.count()
        }
    }
}
