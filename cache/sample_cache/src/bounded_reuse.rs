//! A cache of samples that are used a fixed number of times and then prepared again, with new randomness.
//!
//! It lies in private memory, within a capacity in bytes of payload. Nothing is evicted. A used-up entry gives its
//! room to its successor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use coprep_shared_memory::lock::lock;

use crate::contract::{Hit, HitBytes, PrivateStore, Reservation, SampleCache, Usage};
use crate::meta::Meta;

/// A cache of samples for a bounded number of uses. See the module.
pub struct BoundedReuse {
    /// Number of hits that an entry serves.
    uses: u32,
    state: Mutex<ReuseState>,
}

struct ReuseState {
    entries: HashMap<u32, ReuseEntry>,
    /// Bytes by which each reservation will enlarge the cache, by id.
    being_written: HashMap<u32, u64>,
    /// The sum of these. They count against the capacity from the start: the entries are admitted without a further check.
    pending: u64,
    usage: Usage,
}

struct ReuseEntry {
    bytes: Arc<[u8]>,
    meta: Meta,
    uses_left: u32,
}

impl BoundedReuse {
    /// Creates a cache of at most `capacity` bytes. A sample is used `reuse` times in all; the first use is by the
    /// caller that prepares it.
    #[must_use]
    pub fn new(capacity: u64, reuse: u32) -> Self {
        let usage = Usage {
            capacity,
            ..Usage::default()
        };
        BoundedReuse {
            uses: reuse.saturating_sub(1),
            state: Mutex::new(ReuseState {
                entries: HashMap::new(),
                being_written: HashMap::new(),
                pending: 0,
                usage,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, ReuseState> {
        lock(&self.state)
    }
}

impl ReuseState {
    /// Returns the bytes of an entry that is used up, or `None` if it is not.
    fn used_up(&self, id: u32) -> Option<u64> {
        let entry = self.entries.get(&id)?;
        (entry.uses_left == 0).then_some(entry.bytes.len() as u64)
    }

    /// Ends a reservation, whether its entry is admitted or not.
    fn end_reservation(&mut self, id: u32) {
        self.pending -= self.being_written.remove(&id).unwrap_or(0);
    }
}

impl PrivateStore for BoundedReuse {
    fn admit(&self, id: u32, meta: Meta, bytes: Vec<u8>) {
        // Making the bytes shared copies them, so that comes before the lock.
        let entry = ReuseEntry {
            bytes: bytes.into(),
            meta,
            uses_left: self.uses,
        };
        let mut state = self.state();
        state.end_reservation(id);
        state.usage.add(meta.form, entry.bytes.len() as u64);
        if let Some(old) = state.entries.insert(id, entry) {
            state.usage.remove(old.meta.form, old.bytes.len() as u64);
        }
    }

    fn abandon(&self, id: u32) {
        self.state().end_reservation(id);
    }
}

impl SampleCache for BoundedReuse {
    fn meta(&self, id: u32) -> Option<Meta> {
        let state = self.state();
        let entry = state.entries.get(&id).filter(|e| e.uses_left > 0)?;
        Some(entry.meta)
    }

    fn get(&self, id: u32) -> Option<Hit<'_>> {
        let mut state = self.state();
        let entry = state.entries.get_mut(&id).filter(|e| e.uses_left > 0)?;
        entry.uses_left -= 1;
        Some(Hit {
            bytes: HitBytes::Counted(entry.bytes.clone()),
            meta: entry.meta,
        })
    }

    fn reserve(&self, id: u32, len: usize, meta: Meta) -> Option<Reservation<'_>> {
        let mut state = self.state();
        // The new entry replaces a used-up one, so the bytes of that one count as free.
        let (here, freed) = match state.used_up(id) {
            Some(bytes) => (false, bytes),
            None => (state.entries.contains_key(&id), 0),
        };
        let growth = (len as u64).saturating_sub(freed);
        let fits = state.usage.bytes() + state.pending + growth <= state.usage.capacity;
        if here || !fits || state.being_written.contains_key(&id) {
            return None;
        }
        state.being_written.insert(id, growth);
        state.pending += growth;
        drop(state);
        Some(Reservation::in_private(self, id, len, meta))
    }

    fn remove(&self, id: u32) {
        let mut state = self.state();
        // A reservation counts on the room of the entry that it is going to replace.
        if state.being_written.contains_key(&id) {
            return;
        }
        if let Some(gone) = state.entries.remove(&id) {
            state.usage.remove(gone.meta.form, gone.bytes.len() as u64);
        }
    }

    fn usage(&self) -> Usage {
        self.state().usage.of_payload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Form;

    const META: Meta = Meta::of(Form::Prepared);

    fn put(cache: &BoundedReuse, id: u32, byte: u8) -> bool {
        cache.reserve(id, 10, META).is_some_and(|mut room| {
            room.as_mut_slice().fill(byte);
            room.commit();
            true
        })
    }

    #[test]
    fn an_entry_is_used_so_often_and_then_replaced_in_its_place() {
        let cache = BoundedReuse::new(20, 3);
        assert!(put(&cache, 7, 1) && put(&cache, 8, 1));
        assert!(!put(&cache, 7, 2), "it is still good");
        assert!(!put(&cache, 9, 2), "there is no room for another");
        for _ in 0..2 {
            assert!(cache.has(7));
            assert_eq!(cache.get(7).expect("still good")[..], [1; 10]);
        }
        assert!(!cache.has(7) && cache.get(7).is_none());
        assert!(put(&cache, 7, 2));
        assert_eq!(cache.get(7).expect("replaced")[..], [2; 10]);
        assert_eq!((cache.usage().used, cache.usage().entries()), (20, 2));
    }

    #[test]
    fn open_reservations_count_against_the_capacity() {
        let cache = BoundedReuse::new(20, 2);
        let rooms = [1, 2].map(|id| cache.reserve(id, 10, META));
        assert!(rooms.iter().all(Option::is_some));
        assert!(cache.reserve(3, 10, META).is_none());
        for room in rooms.into_iter().flatten() {
            room.commit();
        }
        assert_eq!(cache.usage().used, 20);
        assert!(cache.reserve(3, 1, META).is_none());
        // A used-up entry is replaced by one of its size, and nothing more fits.
        assert!(cache.get(1).is_some() && cache.get(1).is_none());
        let room = cache.reserve(1, 10, META);
        assert!(room.is_some() && cache.reserve(3, 1, META).is_none());
    }

    #[test]
    fn what_is_given_up_can_be_reserved_again() {
        let cache = BoundedReuse::new(20, 2);
        let room = cache.reserve(1, 10, META);
        assert!(room.is_some() && cache.reserve(1, 10, META).is_none());
        drop(room);
        assert!(put(&cache, 1, 1));
    }
}
