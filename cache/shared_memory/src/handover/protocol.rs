//! The steps of the hand-over, independent of where its words lie and how a thread sleeps. See [the module](super).

use std::collections::HashSet;

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A message from the coordinator to a consumer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Item {
    /// Number of an [`ItemKind`].
    pub kind: u32,
    /// Index of the staging buffer.
    pub buffer: u32,
    /// First slot of the part.
    pub start: u32,
    /// Number of slots.
    pub len: u32,
    /// Flags of the caller; this crate does not read them.
    pub flags: u32,
    /// The area that the buffer is in: 0 is the staging area, and any other number a ring of buffers on a GPU.
    pub pool: u32,
    /// Epoch of the job.
    pub epoch: u64,
    /// Tag of the caller; this crate does not read it.
    pub tag: u64,
}

/// The meaning of an [`Item`].
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItemKind {
    /// A minibatch, or a part of one.
    Part = 1,
    /// The consumer has received its whole epoch.
    EpochEnd = 2,
    /// An error occurred. Its text comes through the socket.
    Error = 3,
}

impl Item {
    /// Returns the kind of the item, or `None` if it is unknown.
    #[must_use]
    pub fn kind(&self) -> Option<ItemKind> {
        match self.kind {
            1 => Some(ItemKind::Part),
            2 => Some(ItemKind::EpochEnd),
            3 => Some(ItemKind::Error),
            _ => None,
        }
    }

    fn words(&self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            pair(self.kind, self.buffer),
            pair(self.start, self.len),
            pair(self.flags, self.pool),
            self.epoch,
            self.tag,
        ]
    }

    fn from_words(w: [u64; WORDS]) -> Self {
        let (low, high) = (|w: u64| w as u32, |w: u64| (w >> 32) as u32);
        Item {
            kind: low(w[0]),
            buffer: high(w[0]),
            start: low(w[1]),
            len: high(w[1]),
            flags: low(w[2]),
            pool: high(w[2]),
            epoch: w[3],
            tag: w[4],
        }
    }
}

const WORDS: usize = 5;

/// A ring's slot for an [`Item`], in atomic words because the other side is another process.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ItemSlot([AtomicU64; WORDS]);

impl ItemSlot {
    fn store(&self, item: &Item) {
        for (word, value) in self.0.iter().zip(item.words()) {
            // Relaxed: the store of `published` makes the words visible.
            word.store(value, Ordering::Relaxed);
        }
    }

    fn load(&self) -> Item {
        // Relaxed: if this mixes two items, the compare-and-swap in `Taker::take` fails, and nobody sees the mixture.
        Item::from_words(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

/// Head of the *deliver* region.
#[repr(C)]
#[derive(Debug, Default)]
pub struct DeliverHead {
    /// Number of items published. The consumer sleeps on this futex.
    pub(crate) published: CachePadded<AtomicU32>,
    /// 1 if the coordinator sleeps or is about to.
    pub(crate) armed: CachePadded<AtomicU32>,
    /// Number of buffers that the consumer may hold.
    pub(crate) share: AtomicU32,
    /// 1 if the consumer counts as absent. Then nothing is kept ready for it, and it rings when it waits for an item.
    pub(crate) absent: AtomicU32,
    /// Number of slots in either ring. Written before the region is passed.
    pub(crate) capacity: AtomicU32,
    /// Always [`MAGIC`]. Written before the region is passed.
    pub(crate) magic: AtomicU64,
}

/// Identifies a *deliver* region and the version of this protocol.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CPRPdlv4");

/// Head of the *reply* region.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ReplyHead {
    /// Number of items that the consumer has taken or the coordinator has taken back. Both change it by
    /// compare-and-swap.
    pub(crate) taken: CachePadded<AtomicU64>,
    /// Number of items released.
    pub(crate) released: CachePadded<AtomicU32>,
    /// Number of the item that the consumer sleeps for, or is about to, plus 1. It is 0 if the consumer is awake.
    pub(crate) sleeping: CachePadded<AtomicU64>,
    /// Words of an [`Account`].
    pub(crate) account: CachePadded<[AtomicU64; ACCOUNT]>,
}

/// A consumer's report on itself. It is shown to people, and nothing else depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Batches taken.
    pub batches: u64,
    /// Nanoseconds of waiting for lack of storage throughput.
    pub fetch_ns: u64,
    /// Nanoseconds of waiting for lack of processors.
    pub prep_ns: u64,
    /// Nanoseconds of waiting for other jobs.
    pub others_ns: u64,
    /// Nanoseconds of the wait in progress.
    pub open_ns: u64,
    /// Copies to its GPU that it has begun.
    pub uploads: u64,
    /// Bytes of these copies.
    pub upload_bytes: u64,
    /// Nanoseconds of waiting for its GPU.
    pub upload_wait_ns: u64,
}

const ACCOUNT: usize = 8;

// Only the receiver writes reports. The models have none, since nothing depends on a report.
#[cfg(not(feature = "loom"))]
impl Account {
    fn words(&self) -> [u64; ACCOUNT] {
        [
            self.batches,
            self.fetch_ns,
            self.prep_ns,
            self.others_ns,
            self.open_ns,
            self.uploads,
            self.upload_bytes,
            self.upload_wait_ns,
        ]
    }

    /// Writes the report for the coordinator. Each number is consistent in itself, but they may be of different
    /// moments.
    pub(crate) fn store(&self, words: &impl Words) {
        for (word, value) in words.reply().account.iter().zip(self.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Account {
    pub(crate) fn load(words: &impl Words) -> Self {
        let word = |i: usize| words.reply().account[i].load(Ordering::Relaxed);
        Account {
            batches: word(0),
            fetch_ns: word(1),
            prep_ns: word(2),
            others_ns: word(3),
            open_ns: word(4),
            uploads: word(5),
            upload_bytes: word(6),
            upload_wait_ns: word(7),
        }
    }
}

/// The location of one consumer's words.
pub trait Words {
    /// Returns the head of *deliver*.
    fn deliver(&self) -> &DeliverHead;
    /// Returns the ring of *deliver*.
    fn items(&self) -> &[ItemSlot];
    /// Returns the head of *reply*.
    fn reply(&self) -> &ReplyHead;
    /// Returns the ring of *reply*, which is as long as the other.
    fn releases(&self) -> &[AtomicU64];
}

/// The way a consumer sleeps and is woken.
pub trait Futex {
    /// Sleeps as long as `word` equals `seen`. It may return for any other reason too.
    fn wait(&self, word: &AtomicU32, seen: u32);
    /// Wakes the threads that sleep on `word`.
    fn wake(&self, word: &AtomicU32);
}

/// The error that every slot of the ring is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all entries of the ring are in flight")]
pub struct Full;

/// A consumer's violation of the protocol.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MalformedItem {
    /// The consumer's count of items taken passed the items published, or went back.
    #[error("{taken} items taken of {published} published, {before} taken before")]
    Taken {
        /// Count that the consumer wrote.
        taken: u64,
        /// Total number of items published.
        published: u64,
        /// Total number of items taken before.
        before: u64,
    },
    /// The consumer released more items than are in flight, or its count went back.
    #[error("{released} items released, {read} of them read before, {in_flight} in flight")]
    Released {
        /// Count that the consumer wrote, modulo 2^32.
        released: u32,
        /// Total number of releases read before.
        read: u64,
        /// Number of items in flight.
        in_flight: usize,
    },
    /// The consumer released an item that it does not have.
    #[error("item {seq} released, which is not taken or is released already")]
    NotHeld {
        /// Number of the item.
        seq: u64,
    },
}

/// The coordinator's side of the protocol.
#[derive(Debug)]
pub struct Publisher<W> {
    words: W,
    published: u64,
    /// Last valid value of the shared count.
    taken: u64,
    /// Number of releases read.
    read: u64,
    in_flight: HashSet<u64>,
    is_absent: bool,
}

impl<W: Words> Publisher<W> {
    /// Starts from words that are zero and that no other process has yet.
    pub fn new(words: W) -> Self {
        Publisher {
            words,
            published: 0,
            taken: 0,
            read: 0,
            in_flight: HashSet::new(),
            is_absent: false,
        }
    }

    /// Returns true if [`publish`](Self::publish) would fail.
    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= self.words.items().len()
    }

    /// Hands an item over and returns its number.
    ///
    /// # Errors
    /// If every slot of the ring is in flight.
    pub fn publish(&mut self, item: &Item, futex: &impl Futex) -> Result<u64, Full> {
        if self.is_full() {
            return Err(Full);
        }
        let seq = self.published;
        entry(self.words.items(), seq).store(item);
        self.in_flight.insert(seq);
        self.published += 1;
        let deliver = self.words.deliver();
        // Release: pairs with the acquire in `Taker::next`. A consumer that sees the count also sees the item.
        deliver
            .published
            .store(self.published as u32, Ordering::Release);
        // Pairs with the fence in `Taker::wait`: either we see that the consumer sleeps, or it sees the new count.
        fence(Ordering::SeqCst);
        if self.words.reply().sleeping.load(Ordering::Relaxed) != 0 {
            futex.wake(&deliver.published);
        }
        Ok(seq)
    }

    /// Returns the number of items taken or taken back.
    ///
    /// # Errors
    /// If the consumer's count is impossible.
    pub fn taken(&mut self) -> Result<u64, MalformedItem> {
        // Acquire: pairs with the release in `Taker::take`. The consumer's reads of these items are over.
        let taken = self.words.reply().taken.load(Ordering::Acquire);
        if taken < self.taken || taken > self.published {
            return Err(MalformedItem::Taken {
                taken,
                published: self.published,
                before: self.taken,
            });
        }
        self.taken = taken;
        Ok(taken)
    }

    /// Takes back all items that the consumer has not taken, and returns the number of the first of them. Earlier items
    /// are the consumer's. It will not release the items taken back.
    ///
    /// # Errors
    /// If the consumer's count is impossible.
    pub fn take_back(&mut self) -> Result<u64, MalformedItem> {
        loop {
            let first = self.taken()?;
            // Acquire: as in `taken`. Release: the consumer's next count follows ours. If this succeeds, the consumer's
            // own compare-and-swap from `first` cannot. If it fails, the consumer took an item or wrote a bad count,
            // which `taken` checks. The count may only rise to `published`, so the loop ends.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            let word = &self.words.reply().taken;
            if word
                .compare_exchange(first, self.published, success, failure)
                .is_ok()
            {
                self.in_flight.retain(|seq| *seq < first);
                self.taken = self.published;
                return Ok(first);
            }
        }
    }

    /// Sets whether the consumer counts as absent. After `true`, the caller must ask [`is_waiting`](Self::is_waiting)
    /// once: a consumer that began to wait before it could see the flag does not ring.
    pub fn set_absent(&mut self, is_absent: bool) {
        self.is_absent = is_absent;
        let absent = &self.words.deliver().absent;
        absent.store(u32::from(is_absent), Ordering::Relaxed);
        // Pairs with the fence in `Taker::wait`: either the consumer sees the flag, or we see that it waits.
        fence(Ordering::SeqCst);
    }

    /// Returns `true` if the consumer counts as absent.
    pub fn is_absent(&self) -> bool {
        self.is_absent
    }

    /// Returns `true` if the consumer sleeps, or is about to, with nothing left to take.
    ///
    /// A consumer that was stopped while it slept still says that it sleeps for an item that has been published since.
    /// It therefore counts only if it waits for the item to be published next.
    pub fn is_waiting(&self) -> bool {
        // Acquire: pairs with the release in `Taker::wait`.
        self.words.reply().sleeping.load(Ordering::Acquire) == self.published + 1
    }

    /// Calls `each` with the number of every item released since the last call.
    ///
    /// # Errors
    /// If the consumer released an item that it does not have. `each` was called for the items before it.
    pub fn poll_released(&mut self, mut each: impl FnMut(u64)) -> Result<(), MalformedItem> {
        // Acquire: pairs with the release in `Releaser::release`. It makes the ring's entries and `taken` visible, and
        // the consumer's last accesses to the minibatches are over.
        let released = self.words.reply().released.load(Ordering::Acquire);
        let news = released.wrapping_sub(self.read as u32);
        if news as usize > self.in_flight.len() {
            return Err(MalformedItem::Released {
                released,
                read: self.read,
                in_flight: self.in_flight.len(),
            });
        }
        // Refresh `self.taken` first: an item may have been taken and released since the last look.
        if news > 0 {
            self.taken()?;
        }
        for _ in 0..news {
            let seq = entry(self.words.releases(), self.read).load(Ordering::Relaxed);
            self.read += 1;
            if seq >= self.taken || !self.in_flight.remove(&seq) {
                return Err(MalformedItem::NotHeld { seq });
            }
            each(seq);
        }
        Ok(())
    }

    /// Returns the number of items published and neither taken back nor released, according to the releases read so
    /// far.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Asks the consumer to ring from now on. Afterwards, the caller must ask [`has_news`](Self::has_news) before the
    /// coordinator sleeps.
    pub fn arm(&self) {
        self.words.deliver().armed.store(1, Ordering::Relaxed);
        // Pairs with the fence in `must_ring`: either the consumer sees that we sleep, or we see its last step.
        fence(Ordering::SeqCst);
    }

    /// Tells the consumer that the coordinator is awake and needs no ring.
    pub fn disarm(&self) {
        // Relaxed: a consumer that sees it late rings once more, which does no harm.
        self.words.deliver().armed.store(0, Ordering::Relaxed);
    }

    /// Returns true if the consumer has taken or released an item that was not read yet, or waits and counts as absent.
    pub fn has_news(&self) -> bool {
        let reply = self.words.reply();
        reply.taken.load(Ordering::Acquire) != self.taken
            || reply.released.load(Ordering::Acquire) != self.read as u32
            || (self.is_absent && self.is_waiting())
    }

    /// Returns the consumer's report on itself.
    pub fn account(&self) -> Account {
        Account::load(&self.words)
    }

    /// Sets how many buffers the consumer may hold.
    pub fn set_share(&self, buffers: u32) {
        // Relaxed: no other data depends on this number.
        self.words.deliver().share.store(buffers, Ordering::Relaxed);
    }
}

fn entry<T>(ring: &[T], seq: u64) -> &T {
    &ring[(seq % ring.len() as u64) as usize]
}

/// The consumer's side that takes items. One thread at a time takes, and one waits. Its only state is the word `taken`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taker;

impl Taker {
    /// Returns true if the next item is published.
    pub(crate) fn is_next_there(&self, words: &impl Words) -> bool {
        Taker::next(words).is_some()
    }

    /// Returns the number of the next item, if it is published.
    fn next(words: &impl Words) -> Option<u64> {
        // Acquire: pairs with `Publisher::take_back`, so that `published` below is at least as recent as the items
        // taken back.
        let next = words.reply().taken.load(Ordering::Acquire);
        // Acquire: pairs with the release in `Publisher::publish`.
        let published = words.deliver().published.load(Ordering::Acquire);
        (published != next as u32).then_some(next)
    }

    /// Returns the item that will be taken after `ahead` others, and its number, if it is published. It stays published.
    ///
    /// The coordinator may take it back at any moment. Then no item of this number is ever taken, and what is returned
    /// here may mix it with a later one. If an item of this number is taken, it is the one that was returned: its words
    /// were written before `published` said so, and nobody overwrites them before it is released.
    pub fn peek(&self, words: &impl Words, ahead: usize) -> Option<(u64, Item)> {
        // The acquires pair as those in `next`.
        let next = words.reply().taken.load(Ordering::Acquire);
        let published = words.deliver().published.load(Ordering::Acquire);
        let ready = published.wrapping_sub(next as u32) as usize;
        let seq = next + ahead as u64;
        (ahead < ready).then(|| (seq, entry(words.items(), seq).load()))
    }

    /// Takes the next item, if it is published. The third value is true if the coordinator sleeps and must be rung.
    pub fn take(&self, words: &impl Words) -> Option<(u64, Item, bool)> {
        loop {
            let seq = Taker::next(words)?;
            let item = entry(words.items(), seq).load();
            // Release: pairs with the acquires in `Publisher::taken` and `take_back`; our reads of the item are over.
            // If it fails, the coordinator took the item back, and the item we read may be a later one.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            let word = &words.reply().taken;
            if word
                .compare_exchange(seq, seq + 1, success, failure)
                .is_ok()
            {
                return Some((seq, item, must_ring(words)));
            }
        }
    }

    /// Sleeps until the next item is published, or until `futex` returns for another reason. Returns true if the item
    /// is published.
    ///
    /// `ring` wakes the coordinator if it has to know that this consumer waits.
    pub fn wait(&self, words: &impl Words, futex: &impl Futex, ring: impl FnOnce()) -> bool {
        let (deliver, reply) = (words.deliver(), words.reply());
        let next = reply.taken.load(Ordering::Acquire);
        // Release: a coordinator that sees that we wait also sees the items we took before.
        reply.sleeping.store(next + 1, Ordering::Release);
        // Pairs with the fences in `Publisher::publish` and `set_absent`: either the coordinator sees that we sleep, or
        // we see its change.
        fence(Ordering::SeqCst);
        // An item that is taken back meanwhile changes `published` too, since it was published after `next` was read.
        if deliver.published.load(Ordering::Acquire) == next as u32 {
            if deliver.absent.load(Ordering::Relaxed) != 0 {
                ring();
            }
            futex.wait(&deliver.published, next as u32);
        }
        // Relaxed: a coordinator that sees it late makes at worst one useless call to wake this consumer.
        reply.sleeping.store(0, Ordering::Relaxed);
        self.is_next_there(words)
    }
}

/// The consumer's side that releases items. One thread at a time uses it.
#[derive(Debug, Default)]
pub struct Releaser {
    released: u64,
}

impl Releaser {
    /// Gives back an item that was taken and not yet released. Returns true if the coordinator sleeps and must be rung.
    pub fn release(&mut self, words: &impl Words, seq: u64) -> bool {
        entry(words.releases(), self.released).store(seq, Ordering::Relaxed);
        self.released += 1;
        // Release: pairs with the acquire in `Publisher::poll_released`. The entry, the count of items taken and all
        // our accesses to the minibatch come before it.
        words
            .reply()
            .released
            .store(self.released as u32, Ordering::Release);
        must_ring(words)
    }
}

fn must_ring(words: &impl Words) -> bool {
    // Pairs with the fence in `Publisher::arm`: either we see that the coordinator sleeps, or it sees our last step.
    fence(Ordering::SeqCst);
    words.deliver().armed.load(Ordering::Relaxed) != 0
}
