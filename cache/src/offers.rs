//! Places in staging buffers that a worker takes by itself, unless they are taken back first.
//!
//! In relaxed order a sample's place is given to another if the sample turns out to be slow. The coordinator *offers* the
//! place when it gives the sample to a worker. Who comes first has it: the worker, once it is about to write, or the
//! coordinator, which needs the place for another sample. One word decides, by one compare-and-swap: a message to
//! ask would wake a thread for every sample, and the worker would wait for the answer.
//!
//! | word | from | by | then |
//! |---|---|---|---|
//! | `OFFERED` | any | coordinator; nobody is at the sample that the word was for before | either may take the place |
//! | `TAKEN` | `OFFERED` | worker | the worker writes; the place stays the sample's |
//! | `BACK` | `OFFERED` | coordinator | the worker asks by a message |
//!
//! The memory is shared with one worker process. The coordinator trusts nothing in it: a worker that writes nonsense keeps
//! a place that it had, or asks for one.
#![expect(unsafe_code, reason = "says which types may lie in shared memory")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};
use crate::mapping::{self, Mapping, Region, Shared};

// SAFETY: it has no bytes.
unsafe impl Shared for () {}
// SAFETY: an atomic.
unsafe impl Shared for AtomicU32 {}

const WHAT: &str = "the offers to a worker";
const OFFERED: u32 = 1;
const TAKEN: u32 = 2;
const BACK: u32 = 3;

/// The words that a coordinator shares with one worker. See the module.
pub struct Offers {
    region: Region<(), AtomicU32>,
    file: OwnedFd,
}

impl Offers {
    /// The coordinator's side, with so many words.
    ///
    /// # Errors
    /// If there is no memory, or no descriptor left.
    pub fn create(words: u32) -> Result<Arc<Self>> {
        let bytes = bytes(words)?;
        let file = mapping::memory_file(WHAT, "coprep-offers", bytes as u64)?;
        mapping::seal(WHAT, &file, mapping::size_seals())?;
        Self::over(file, words).map(Arc::new)
    }

    /// The worker's side, from the descriptor that it was passed.
    ///
    /// # Errors
    /// If it is not that of as many offers.
    pub fn open(file: OwnedFd, words: u32) -> Result<Self> {
        mapping::check_file(WHAT, &file, bytes(words)?)?;
        Self::over(file, words)
    }

    fn over(file: OwnedFd, words: u32) -> Result<Self> {
        let mapping = Mapping::writable(WHAT, &file, bytes(words)?)?;
        let region = Region::new(WHAT, mapping, words as usize)?;
        Ok(Offers { region, file })
    }

    /// Worker: takes what is offered. False: it was taken back, or never offered.
    #[must_use]
    pub fn take(&self, word: u32) -> bool {
        self.change(word, TAKEN)
    }

    fn change(&self, word: u32, to: u32) -> bool {
        let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
        let word = self.region.row().get(word as usize);
        word.is_some_and(|word| word.compare_exchange(OFFERED, to, won, lost).is_ok())
    }
}

impl AsFd for Offers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The coordinator's hand on the place of one sample.
#[derive(Clone)]
pub struct Offer {
    offers: Arc<Offers>,
    word: u32,
}

impl Offer {
    /// Offers a place by this word, which was for another before that is done with.
    ///
    /// # Panics
    /// If there is no such word.
    #[must_use]
    pub fn new(offers: &Arc<Offers>, word: u32) -> Self {
        offers.region.row()[word as usize].store(OFFERED, Ordering::Release);
        Offer {
            offers: offers.clone(),
            word,
        }
    }

    /// True: the worker does not write there, unless it asks and is told to.
    #[must_use]
    pub fn take_back(&self) -> bool {
        self.offers.change(self.word, BACK)
    }

    /// The worker has taken the place.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        let row = self.offers.region.row();
        row[self.word as usize].load(Ordering::Acquire) == TAKEN
    }
}

fn bytes(words: u32) -> Result<usize> {
    let bytes = Region::<(), AtomicU32>::bytes(words as usize);
    bytes.ok_or_else(|| Error::invalid(WHAT, "too many"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> (Arc<Offers>, Offers) {
        let ours = Offers::create(2).unwrap();
        let file = ours.as_fd().try_clone_to_owned().unwrap();
        let theirs = Offers::open(file, 2).unwrap();
        (ours, theirs)
    }

    #[test]
    fn what_is_offered_is_had_by_one_of_both() {
        let (ours, theirs) = both();
        assert!(!theirs.take(0), "not offered");
        let offer = Offer::new(&ours, 0);
        assert!(!offer.is_taken() && theirs.take(0) && offer.is_taken());
        assert!(!offer.take_back() && !theirs.take(0) && !theirs.take(1));
        let offer = Offer::new(&ours, 0);
        assert!(offer.take_back() && !offer.is_taken());
        assert!(!theirs.take(0) && !offer.take_back() && !offer.is_taken());
    }

    #[test]
    fn who_comes_at_once_never_both_have_it() {
        let (ours, theirs) = both();
        for _ in 0..1000 {
            let offer = Offer::new(&ours, 1);
            let (back, taken) = std::thread::scope(|scope| {
                let worker = scope.spawn(|| theirs.take(1));
                (offer.take_back(), worker.join().unwrap())
            });
            assert!(back != taken && offer.is_taken() == taken);
        }
    }

    #[test]
    fn a_stranger_s_word_counts_for_nothing_but_itself() {
        let (ours, theirs) = both();
        let offer = Offer::new(&ours, 0);
        theirs.region.row()[0].store(77, Ordering::Relaxed);
        assert!(!offer.take_back() && !offer.is_taken());
        assert!(!theirs.take(2), "there is no such word");
        assert!(Offers::open(ours.as_fd().try_clone_to_owned().unwrap(), 1 << 20).is_err());
    }
}
