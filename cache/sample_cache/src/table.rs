//! The position of each sample in the index: four bytes per sample, in private memory.
//!
//! | state | low bits | who makes it | next |
//! |---|---|---|---|
//! | absent (zero) | 0 | the start; a writer that gives up | being written, by the first caller that asks |
//! | being written | 1 | a writer; whoever withdraws an entry | present and checked, or absent |
//! | present | 2 | a take-over | present and checked, or being written if it is withdrawn, because its payload is damaged |
//! | present and checked | 3 | a commit; the first hit after a take-over | being written, if it is withdrawn |
//!
//! The upper 30 bits are the position of the entry in the index.

#[cfg(not(feature = "loom"))]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(feature = "loom")]
use loom::sync::atomic::{AtomicU32, Ordering};

/// The table of samples. See the module.
pub struct PresenceTable {
    states: Vec<AtomicU32>,
}

/// The location of a sample in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedAt {
    /// Position of the entry in the index.
    pub position: u32,
    /// True if the payload is known to equal the committed bytes.
    pub checked: bool,
}

const ABSENT: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const PRESENT: u32 = 2;
const CHECKED: u32 = 3;

/// Upper bound of positions, which have 30 bits.
#[cfg(not(feature = "loom"))]
pub(crate) const MAX_POSITIONS: u64 = 1 << 30;

impl PresenceTable {
    /// Creates a table of `samples` samples, all of them absent.
    #[must_use]
    pub fn new(samples: u32) -> Self {
        PresenceTable {
            states: (0..samples).map(|_| AtomicU32::new(ABSENT)).collect(),
        }
    }

    /// Returns the location of a sample, or `None` if it is absent.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<CachedAt> {
        // Acquire: pairs with the release in `set`, so that the entry and the payload are visible.
        let state = self.states.get(id as usize)?.load(Ordering::Acquire);
        match state & 3 {
            PRESENT | CHECKED => Some(CachedAt {
                position: state >> 2,
                checked: state & 3 == CHECKED,
            }),
            _ => None,
        }
    }

    /// Claims an absent sample. Returns true to the one caller that may write it now.
    #[must_use]
    pub fn begin(&self, id: u32) -> bool {
        let Some(state) = self.states.get(id as usize) else {
            return false;
        };
        // Relaxed: no data is read because of this result.
        state
            .compare_exchange(ABSENT, BEING_WRITTEN, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Makes the sample absent again. Its writer calls this if it does not write the sample.
    pub fn give_up(&self, id: u32) {
        // Relaxed: the next writer gets its room under the arena's lock, which orders all other memory.
        self.states[id as usize].store(ABSENT, Ordering::Relaxed);
    }

    /// Makes the sample present. Its writer calls this, or a take-over before any other thread looks.
    pub fn set(&self, id: u32, present: CachedAt) {
        // Release: pairs with the acquire in `get`.
        self.states[id as usize].store(present.state(), Ordering::Release);
    }

    /// Notes that the payload was checked and equals the committed bytes.
    #[cfg(not(feature = "loom"))]
    pub(crate) fn confirm(&self, id: u32, position: u32) {
        let unchecked = CachedAt {
            position,
            checked: false,
        };
        self.change(id, unchecked, position << 2 | CHECKED);
    }

    /// Withdraws the entry at which a sample was found. Returns true to the one caller that must drop the entry and then
    /// [give the sample up](Self::give_up).
    #[must_use]
    pub fn withdraw(&self, id: u32, found: CachedAt) -> bool {
        self.change(id, found, BEING_WRITTEN)
    }

    fn change(&self, id: u32, found: CachedAt, next: u32) -> bool {
        let state = &self.states[id as usize];
        // Release: as in `set`, for readers that skip the check from now on, and so that a reader that begins after the
        // room of a withdrawn entry was freed finds that entry gone. Relaxed on failure: a caller that loses reads no
        // data because of this result.
        state
            .compare_exchange(found.state(), next, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }
}

impl CachedAt {
    fn state(self) -> u32 {
        let kind = if self.checked { CHECKED } else { PRESENT };
        self.position << 2 | kind
    }
}

#[cfg(all(test, not(feature = "loom")))]
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
                position: 7,
                checked: true,
            },
        );
        assert!(!table.begin(1));
        assert_eq!(
            table.get(1),
            Some(CachedAt {
                position: 7,
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
                position: 3,
                checked: false,
            },
        );
        let [elsewhere, here] = [4, 3].map(|position| CachedAt {
            position,
            checked: false,
        });
        assert!(!table.withdraw(0, elsewhere));
        assert!(table.withdraw(0, here));
        assert!(!table.withdraw(0, here) && !table.begin(0));
        assert_eq!(table.get(0), None);
        table.give_up(0);
        assert!(table.begin(0));
    }

    #[test]
    fn what_passes_its_check_stays() {
        let table = PresenceTable::new(1);
        let unchecked = CachedAt {
            position: 3,
            checked: false,
        };
        table.set(0, unchecked);
        table.confirm(0, 3);
        assert!(table.get(0).is_some_and(|present| present.checked));
        assert!(!table.withdraw(0, unchecked));
    }

    #[test]
    fn the_last_place_fits() {
        let table = PresenceTable::new(1);
        let last = CachedAt {
            position: (MAX_POSITIONS - 1) as u32,
            checked: false,
        };
        table.set(0, last);
        assert_eq!(table.get(0), Some(last));
    }
}
