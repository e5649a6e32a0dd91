//! Listings that have no end.

use std::cell::RefCell;

use tokio::task_local;

task_local! {
    /// The continuation tokens of the listing that this task walks. The library follows them, and sees only the present one.
    pub(crate) static TOKENS: RefCell<Lap>;
}

/// The error of a listing whose pages are joined to a ring, as their continuation tokens tell.
pub(crate) const SAME_TOKEN: &str =
    "its listing does not end: the same continuation token comes again";
/// The error of a listing whose pages are joined to a ring, as their URLs tell.
pub(crate) const SAME_PAGE: &str = "its listing does not end: the same next page comes again";
/// The error of a listing whose keys come round.
pub(crate) const SAME_KEYS: &str = "its listing does not end: the same keys come again";

/// Notices that a listing comes round, as if its pages were joined to a ring: a key, or what names a page, comes again and
/// again. The text that it compares with is the last one whose number is a power of two (Brent 1980, *An improved Monte
/// Carlo factorization algorithm*).
#[derive(Default)]
pub(crate) struct Lap {
    texts: u64,
    marked: String,
    /// Number of times that it came again.
    again: u32,
}

impl Lap {
    /// Adds the next text. Returns `true` if the listing comes round.
    pub(crate) fn is_closed_by(&mut self, text: &str) -> bool {
        self.texts += 1;
        if self.texts.is_power_of_two() {
            (self.marked, self.again) = (text.to_owned(), 0);
        } else if text == self.marked {
            self.again += 1;
        }
        // A folder's marker has lost its slash, so that an object of its name comes a second time. Some servers give the
        // last key of a page again.
        self.again > 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_of_pages_is_noticed_and_a_key_that_comes_twice_is_none() {
        for length in [1, 2, 3, 7, 1000] {
            let mut lap = Lap::default();
            let keys = (0..100_000).map(|key| format!("p/{}", key % length));
            assert!(
                keys.into_iter().any(|key| lap.is_closed_by(&key)),
                "{length}"
            );
        }
        let mut lap = Lap::default();
        let twice = (0..10_000).flat_map(|key| [format!("p/{key}"), format!("p/{key}")]);
        assert!(!twice.into_iter().any(|key| lap.is_closed_by(&key)));
    }
}
