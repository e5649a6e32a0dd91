//! What is in stays in: an arena that fills up once (MinIO; Mohan et al., CoorDL, VLDB 2021, section 4.1).
//!
//! Within an epoch every sample is needed once, so no order of eviction has more hits than none has; and
//! without eviction the arena is a bump pointer and the index is append-only.
//!
//! Over an anonymous segment, or over a named one, that the next coordinator takes over. There payload
//! checksums are verified at the first hit and not at the take-over: a cache of 100 GB is usable at once, and the
//! payload is about to be read anyway. One that fails gives its place and its room back.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::arena::{Arena, Extent, SegmentLayout, SegmentMemory};
use super::index::{IndexEntry, payload_checksum};
use super::named;
use super::table::{CachedAt, PresenceTable};
use super::{CacheRoom, Form, Hit, HitBytes, Meta, Reservation, SampleCache, Usage};
use crate::error::Result;

/// See the module.
pub struct NoEviction {
    arena: Arena,
    table: PresenceTable,
    usage: Mutex<Usage>,
    /// Payloads are checksummed: another coordinator may read them.
    outlives: bool,
    /// Held for reading while a payload that is not checked yet is looked at.
    looks: RwLock<()>,
}

/// What was found in a named segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TakeOver {
    /// Samples taken over.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Entries that were not as they were written.
    pub dropped: u64,
    /// What had this name was of another version, or not whole: it was replaced.
    pub replaced: bool,
}

impl NoEviction {
    /// In memory without a name, which goes with this process. All of it is reserved now: `capacity` bytes
    /// for payloads, and 48 bytes of index per sample.
    ///
    /// # Errors
    /// When memory is short.
    pub fn anonymous(capacity: u64, samples: u32) -> Result<Self> {
        let shape = SegmentLayout::new(capacity, samples)?;
        let arena = Arena::new(SegmentMemory::anonymous(&shape)?, shape, 0);
        Ok(Self::over(arena, false))
    }

    /// In the named segment `name`, taken over if it is there and whole, else made anew. The fingerprint
    /// stands for whatever makes the payloads what they are. A segment that is there keeps its capacity,
    /// which [`usage`](SampleCache::usage) tells; `capacity` is for a new one.
    ///
    /// # Errors
    /// When memory, or the file system of named segments, is short; when the segment is of another
    /// `fingerprint` or number of `samples`; when a living coordinator has it; when it is another user's, or
    /// the name is none.
    pub fn named(
        name: &str,
        capacity: u64,
        samples: u32,
        fingerprint: u128,
    ) -> Result<(Self, TakeOver)> {
        let opened = named::open(name, SegmentLayout::new(capacity, samples)?, fingerprint)?;
        let arena = Arena::new(
            SegmentMemory::Named(opened.segment),
            opened.shape,
            named::seed(fingerprint),
        );
        let mut cache = Self::over(arena, true);
        let mut found = TakeOver {
            replaced: opened.replaced,
            ..TakeOver::default()
        };
        if opened.is_warm {
            cache.take_over(&mut found);
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
            arena,
            outlives,
            looks: RwLock::default(),
        }
    }

    fn take_over(&mut self, found: &mut TakeOver) {
        let scan = self.arena.take_over();
        for (place, entry) in &scan.entries {
            self.table.set(
                entry.id,
                CachedAt {
                    place: *place,
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
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes_mut<'a>(&'a self, extent: &'a mut Extent) -> &'a mut [u8] {
        self.arena.bytes_mut(extent)
    }

    pub(super) fn admit(&self, id: u32, meta: Meta, extent: Extent) {
        let mut len = 0;
        let place = self.arena.publish(extent, |offset, payload| {
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
            } = meta;
            IndexEntry {
                offset,
                len,
                payload_checksum,
                id,
                width,
                height,
                form,
            }
        });
        let Some(place) = place else {
            return self.table.give_up(id);
        };
        self.count().add(meta.form, len);
        self.table.set(
            id,
            CachedAt {
                place,
                checked: true,
            },
        );
    }

    pub(super) fn abandon(&self, id: u32, extent: Extent) {
        self.arena.give_back(extent);
        self.table.give_up(id);
    }

    /// Checks an entry that was taken over, at its first hit. If its payload is not what was committed, it is dropped.
    fn check(&self, id: u32) {
        let Some((place, entry)) = self.find_damaged(id) else {
            return;
        };
        // Whoever still looks at the payload began before the entry was withdrawn, and has ended after this. Nobody
        // begins any more.
        drop(self.looks.write().unwrap_or_else(PoisonError::into_inner));
        self.arena.drop_entry(place, &entry);
        self.count().remove(entry.form, entry.len);
        self.table.give_up(id);
    }

    /// Returns the place and the entry if the payload is not what was committed, to the one who must drop it.
    fn find_damaged(&self, id: u32) -> Option<(u32, IndexEntry)> {
        let _look = self.looks.read().unwrap_or_else(PoisonError::into_inner);
        // Again, under the lock: it may have been checked, or dropped, meanwhile.
        let present = self.table.get(id).filter(|present| !present.checked)?;
        let entry = self.entry(id, present)?;
        if payload_checksum(self.arena.payload_of(&entry)) == entry.payload_checksum {
            self.table.confirm(id, present.place);
            return None;
        }
        let is_ours = self.table.withdraw(id, present.place);
        is_ours.then_some((present.place, entry))
    }

    fn entry(&self, id: u32, present: CachedAt) -> Option<IndexEntry> {
        let entry = self.arena.entry(present.place);
        entry.filter(|entry| entry.id == id)
    }
}

impl SampleCache for NoEviction {
    fn form(&self, id: u32) -> Option<Form> {
        let entry = self.entry(id, self.table.get(id)?)?;
        Some(entry.meta().form)
    }

    fn get(&self, id: u32) -> Option<Hit<'_>> {
        if !self.table.get(id)?.checked {
            self.check(id);
        }
        // What is checked is never dropped.
        let present = self.table.get(id).filter(|present| present.checked)?;
        let entry = self.entry(id, present)?;
        Some(Hit {
            bytes: HitBytes::Arena(self.arena.payload_of(&entry)),
            meta: entry.meta(),
        })
    }

    fn reserve(&self, id: u32, len: usize, meta: Meta) -> Option<Reservation<'_>> {
        if !self.table.begin(id) {
            return None;
        }
        match self.arena.allocate(len) {
            Some(extent) => Some(Reservation {
                id,
                meta,
                room: Some(CacheRoom::Arena(self, extent)),
            }),
            None => {
                self.table.give_up(id);
                None
            }
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            used: self.arena.used(),
            ..*self.count()
        }
    }
}
