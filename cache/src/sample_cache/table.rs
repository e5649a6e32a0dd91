//! Where each sample's entry lies: four bytes per sample, in private memory.
//!
//! | state | low bits | who makes it | next |
//! |---|---|---|---|
//! | absent (zero) | 0 | the start; whoever gives up | being written, by the first who asks |
//! | being written | 1 | one writer, or who found that the payload is not what it was | present and checked, or absent |
//! | present | 2 | a take-over | present and checked, or being written if the payload is not what it was |
//! | present and checked | 3 | a commit, or the first hit | - |
//!
//! The upper 30 bits are the entry's place in the index.

use crate::sync::{AtomicU32, Ordering};

/// See the module.
pub struct PresenceTable {
    states: Vec<AtomicU32>,
}

/// Where a sample is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedAt {
    /// In the index.
    pub place: u32,
    /// Its payload is known to be what was committed.
    pub checked: bool,
}

const ABSENT: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const PRESENT: u32 = 2;
const CHECKED: u32 = 3;

/// Places are less.
pub const PLACES: u64 = 1 << 30;

impl PresenceTable {
    /// For so many samples, all of them absent.
    #[must_use]
    pub fn new(samples: u32) -> Self {
        PresenceTable {
            states: (0..samples).map(|_| AtomicU32::new(ABSENT)).collect(),
        }
    }

    /// Returns where a sample is, if it is here.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<CachedAt> {
        // Acquire: pairs with the release in `set`; the entry and the payload are visible.
        let state = self.states.get(id as usize)?.load(Ordering::Acquire);
        match state & 3 {
            PRESENT | CHECKED => Some(CachedAt {
                place: state >> 2,
                checked: state & 3 == CHECKED,
            }),
            _ => None,
        }
    }

    /// True for the one who may write the sample now.
    #[must_use]
    pub fn begin(&self, id: u32) -> bool {
        let Some(state) = self.states.get(id as usize) else {
            return false;
        };
        // Relaxed: nothing is read on account of it.
        state
            .compare_exchange(ABSENT, BEING_WRITTEN, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// By the one who may write it: nothing came of it.
    pub fn give_up(&self, id: u32) {
        self.states[id as usize].store(ABSENT, Ordering::Relaxed);
    }

    /// By the one who wrote it, or by a take-over before anybody else looks.
    pub fn set(&self, id: u32, present: CachedAt) {
        let kind = if present.checked { CHECKED } else { PRESENT };
        // Release: pairs with the acquire in `get`.
        self.states[id as usize].store(present.place << 2 | kind, Ordering::Release);
    }

    /// After a look at the payload: it is as committed.
    pub fn confirm(&self, id: u32, place: u32) {
        // Release: as in `set`, for those who skip the look.
        self.change(id, place, place << 2 | CHECKED, Ordering::Release);
    }

    /// After a look at the payload: it is not what was committed. True for the one who must clear the entry away, and
    /// then [give the sample up](Self::give_up).
    #[must_use]
    pub fn withdraw(&self, id: u32, place: u32) -> bool {
        // Relaxed: what follows is ordered by locks.
        self.change(id, place, BEING_WRITTEN, Ordering::Relaxed)
    }

    fn change(&self, id: u32, place: u32, next: u32, order: Ordering) -> bool {
        let unchecked = place << 2 | PRESENT;
        let state = &self.states[id as usize];
        state
            .compare_exchange(unchecked, next, order, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_at_a_time() {
        let table = PresenceTable::new(2);
        assert!(table.begin(1));
        assert!(!table.begin(1));
        table.give_up(1);
        assert!(table.begin(1));
        table.set(
            1,
            CachedAt {
                place: 7,
                checked: true,
            },
        );
        assert!(!table.begin(1));
        assert_eq!(
            table.get(1),
            Some(CachedAt {
                place: 7,
                checked: true
            })
        );
        assert_eq!(table.get(0), None);
    }

    #[test]
    fn an_id_that_is_none_is_absent() {
        let table = PresenceTable::new(2);
        assert!(!table.begin(2));
        assert_eq!(table.get(u32::MAX), None);
    }

    #[test]
    fn what_fails_its_check_may_be_written_again() {
        let table = PresenceTable::new(1);
        table.set(
            0,
            CachedAt {
                place: 3,
                checked: false,
            },
        );
        assert!(!table.withdraw(0, 4), "it lies somewhere else");
        assert!(table.withdraw(0, 3));
        assert!(!table.withdraw(0, 3) && !table.begin(0));
        assert_eq!(table.get(0), None);
        table.give_up(0);
        assert!(table.begin(0));
    }

    #[test]
    fn what_passes_its_check_stays() {
        let table = PresenceTable::new(1);
        let unchecked = CachedAt {
            place: 3,
            checked: false,
        };
        table.set(0, unchecked);
        table.confirm(0, 3);
        assert!(table.get(0).is_some_and(|present| present.checked));
        assert!(!table.withdraw(0, 3));
    }

    #[test]
    fn the_last_place_fits() {
        let table = PresenceTable::new(1);
        let last = CachedAt {
            place: (PLACES - 1) as u32,
            checked: false,
        };
        table.set(0, last);
        assert_eq!(table.get(0), Some(last));
    }
}
