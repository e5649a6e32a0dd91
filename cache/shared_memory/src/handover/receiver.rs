//! The consumer's end of the hand-over.

use std::cell::Cell;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::{Result, invalid, protocol_violation};
use crate::futex::{self, Woken};
use crate::handover::doorbell::Ringer;
use crate::handover::protocol::{Account, Futex, Item, ItemKind, Releaser, Taker, Words};
use crate::handover::region::{RegionFiles, Regions};
use crate::lock::lock;
use crate::staging::Layout;
use crate::sync::{AtomicU32, Ordering};

const WHAT: &str = "the coordinator's items";

/// The consumer's end of the hand-over. See [the module](super).
///
/// Any thread may call any method; the locks are this process's own. One thread waits at a time, and a second one waits
/// for the first. Data under these locks changes in single steps, so a panic leaves nothing half done. A receiver must
/// not be used after `fork`, because the child of a consumer is another consumer.
pub struct Receiver {
    regions: Regions,
    doorbell: Ringer,
    taking: Mutex<Taker>,
    releasing: Mutex<Releasing>,
    waiting: Mutex<Spin>,
}

#[derive(Default)]
struct Releasing {
    releaser: Releaser,
    held: HashSet<u64>,
}

impl Receiver {
    /// Maps the descriptors from [`Sender::fds`](super::Sender::fds) and [`Bell::fd`](super::Bell::fd).
    ///
    /// # Errors
    /// If the descriptors are not sealed regions of this version.
    pub fn open(deliver: OwnedFd, reply: OwnedFd, doorbell: OwnedFd) -> Result<Self> {
        Ok(Receiver {
            regions: Regions::open(&RegionFiles { deliver, reply })?,
            doorbell: Ringer::new(doorbell),
            taking: Mutex::default(),
            releasing: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    /// Returns the next item and its number, if it is published. The caller must [release](Self::release) it, whatever
    /// its kind.
    ///
    /// # Errors
    /// If the item is of an unknown kind. It counts as taken.
    pub fn try_next(&self) -> Result<Option<(u64, Item)>> {
        let taker = lock(&self.taking);
        let Some((seq, item, ring)) = taker.take(&self.regions) else {
            return Ok(None);
        };
        lock(&self.releasing).held.insert(seq);
        drop(taker);
        self.ring_if(ring);
        match item.kind() {
            Some(_) => Ok(Some((seq, item))),
            None => Err(protocol_violation(
                WHAT,
                format!("item {seq} is of unknown kind {}", item.kind),
            )),
        }
    }

    /// Returns the item that will be taken after `ahead` others, and its number, if it is published. It stays published.
    ///
    /// The coordinator may take it back and use its minibatch's buffer for another one. Only when
    /// [`try_next`](Self::try_next) has returned an item of this number, this item was right, and its minibatch has been
    /// in place since. Until then the item must be [checked](Item::check) before its numbers are used.
    #[must_use]
    pub fn peek(&self, ahead: usize) -> Option<(u64, Item)> {
        lock(&self.taking).peek(&self.regions, ahead)
    }

    /// Waits until an item is published: spins for a moment, then sleeps. Returns false if the time is up or a signal
    /// arrived.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut spin = lock(&self.waiting);
        if self.is_next_there() || spin.until(|| self.is_next_there()) {
            return true;
        }
        let sleep = Sleep::new(timeout);
        while !self.sleep_once(&sleep) {
            if sleep.is_over() {
                return self.is_next_there();
            }
        }
        true
    }

    fn is_next_there(&self) -> bool {
        lock(&self.taking).is_next_there(&self.regions)
    }

    fn sleep_once(&self, sleep: &Sleep) -> bool {
        // A copy, so that others may look for items while this thread sleeps.
        let taker = *lock(&self.taking);
        taker.wait(&self.regions, sleep, || self.doorbell.ring())
    }

    /// Gives an item back. The minibatch must not be read afterwards, and its private pages must be dropped before
    /// ([`StagingView::drop_private_pages`](crate::view::StagingView::drop_private_pages)).
    ///
    /// # Errors
    /// If the item is not held.
    pub fn release(&self, seq: u64) -> Result<()> {
        let mut releasing = lock(&self.releasing);
        if !releasing.held.remove(&seq) {
            return Err(invalid(
                "cannot release an item",
                format!("item {seq} is not held"),
            ));
        }
        let ring = releasing.releaser.release(&self.regions, seq);
        drop(releasing);
        self.ring_if(ring);
        Ok(())
    }

    /// Returns the number of items taken and not released.
    #[must_use]
    pub fn held(&self) -> usize {
        lock(&self.releasing).held.len()
    }

    /// Returns how many items can be published and not released at a time.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.regions.items().len()
    }

    /// Reports the work and the waits of this consumer, for the coordinator to show.
    pub fn report(&self, account: &Account) {
        account.store(&self.regions);
    }

    /// Returns the number of buffers that this consumer may hold at present.
    #[must_use]
    pub fn share(&self) -> u32 {
        self.regions.deliver().share.load(Ordering::Relaxed)
    }

    fn ring_if(&self, ring: bool) {
        if ring {
            self.doorbell.ring();
        }
    }
}

/// The kernel's futex, with a deadline. A signal also ends the wait.
struct Sleep {
    until: Option<Instant>,
    over: Cell<bool>,
}

impl Sleep {
    fn new(timeout: Duration) -> Self {
        Sleep {
            until: Instant::now().checked_add(timeout),
            over: Cell::new(false),
        }
    }

    fn is_over(&self) -> bool {
        self.over.get()
    }

    fn left(&self) -> Duration {
        self.until.map_or(Duration::MAX, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }
}

impl Futex for Sleep {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let woken = futex::wait(word, seen, self.left());
        self.over.set(woken != Woken::LookAgain);
    }

    fn wake(&self, _: &AtomicU32) {}
}

/// Number of looks before sleeping. It doubles when spinning succeeds and halves when it does not.
struct Spin {
    looks: u32,
}

/// Fewest looks, which take about 0.2 microseconds.
const FEWEST_LOOKS: u32 = 4;
/// Most looks, which take a few microseconds.
const MOST_LOOKS: u32 = 64;

impl Default for Spin {
    fn default() -> Self {
        Spin { looks: MOST_LOOKS }
    }
}

impl Spin {
    fn until(&mut self, there: impl Fn() -> bool) -> bool {
        for _ in 0..self.looks {
            std::hint::spin_loop();
            if there() {
                self.looks = (self.looks * 2).min(MOST_LOOKS);
                return true;
            }
        }
        self.looks = (self.looks / 2).max(FEWEST_LOOKS);
        false
    }
}

impl Item {
    /// Fails unless the slots that the item names are inside the staging area.
    ///
    /// # Errors
    /// [`crate::ErrorKind::ProtocolViolation`].
    pub fn check(&self, layout: &Layout) -> Result<()> {
        let inside = self.buffer < layout.buffers
            && self
                .start
                .checked_add(self.len)
                .is_some_and(|end| end <= layout.slots);
        match self.kind() {
            Some(ItemKind::Part) if inside => Ok(()),
            Some(ItemKind::EpochEnd | ItemKind::Error) => Ok(()),
            _ => Err(protocol_violation(
                WHAT,
                format!("{self:?} is not inside {layout:?}"),
            )),
        }
    }
}
