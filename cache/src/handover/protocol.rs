//! The steps of the hand-over, wherever its words lie and however one sleeps. See [the module](super).

use std::collections::HashSet;

use crossbeam::utils::CachePadded;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// What a consumer is told.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Item {
    /// An [`ItemKind`].
    pub kind: u32,
    /// Staging buffer.
    pub buffer: u32,
    /// First slot.
    pub start: u32,
    /// Slots.
    pub len: u32,
    /// The caller's.
    pub flags: u32,
    /// Staging area, if there are several.
    pub pool: u32,
    /// The job's epoch.
    pub epoch: u64,
    /// The caller's.
    pub tag: u64,
}

/// What an [`Item`] is.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItemKind {
    /// A minibatch, or a part of one.
    Part = 1,
    /// The consumer has been given its epoch.
    EpochEnd = 2,
    /// Something failed; the text comes by the socket.
    Error = 3,
}

impl Item {
    /// What it is, if it is anything.
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

/// A place for an [`Item`]. Words, because the other side is another process.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ItemSlot([AtomicU64; WORDS]);

impl ItemSlot {
    fn store(&self, item: &Item) {
        for (word, value) in self.0.iter().zip(item.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn load(&self) -> Item {
        Item::from_words(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

/// Head of the *deliver* region.
#[repr(C)]
#[derive(Debug, Default)]
pub struct DeliverHead {
    /// Items published. The consumer's futex.
    pub(crate) published: CachePadded<AtomicU32>,
    /// 1: the coordinator sleeps, or is about to.
    pub(crate) armed: CachePadded<AtomicU32>,
    /// Buffers that the consumer may hold.
    pub(crate) share: AtomicU32,
    /// 1: the consumer counts as absent, and nothing is kept ready for it. It rings when it waits for an item.
    pub(crate) absent: AtomicU32,
    /// Places in either ring. Written before the region is passed.
    pub(crate) capacity: AtomicU32,
    /// [`MAGIC`]. Written before the region is passed.
    pub(crate) magic: AtomicU64,
}

/// Tells a *deliver* region, and the version of this protocol.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CPRPdlv3");

/// Head of the *reply* region.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ReplyHead {
    /// Items that the consumer has taken or the coordinator has taken back. Both change it by compare-and-swap.
    pub(crate) taken: CachePadded<AtomicU64>,
    /// Items released.
    pub(crate) released: CachePadded<AtomicU32>,
    /// The item that the consumer sleeps for, or is about to, plus 1.
    pub(crate) sleeping: CachePadded<AtomicU64>,
    /// An [`Account`].
    pub(crate) account: CachePadded<[AtomicU64; ACCOUNT]>,
}

/// What a consumer says of itself. For people: nothing depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Batches that it took.
    pub batches: u64,
    /// Nanoseconds that it waited because storage was lacking,
    pub fetch_ns: u64,
    /// because processors were lacking,
    pub prep_ns: u64,
    /// and because other jobs were.
    pub others_ns: u64,
    /// Nanoseconds of a wait that lasts.
    pub open_ns: u64,
}

const ACCOUNT: usize = 5;

impl Account {
    fn words(&self) -> [u64; ACCOUNT] {
        [
            self.batches,
            self.fetch_ns,
            self.prep_ns,
            self.others_ns,
            self.open_ns,
        ]
    }

    /// Writes it for the coordinator. Each number is whole; they may be of different moments.
    pub(crate) fn store(&self, words: &impl Words) {
        for (word, value) in words.reply().account.iter().zip(self.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn load(words: &impl Words) -> Self {
        let word = |i: usize| words.reply().account[i].load(Ordering::Relaxed);
        Account {
            batches: word(0),
            fetch_ns: word(1),
            prep_ns: word(2),
            others_ns: word(3),
            open_ns: word(4),
        }
    }
}

/// Where the words of one consumer lie.
pub trait Words {
    /// Head of *deliver*.
    fn deliver(&self) -> &DeliverHead;
    /// Ring of *deliver*.
    fn items(&self) -> &[ItemSlot];
    /// Head of *reply*.
    fn reply(&self) -> &ReplyHead;
    /// Ring of *reply*, as long as the other.
    fn releases(&self) -> &[AtomicU64];
}

/// How a consumer sleeps and is woken.
pub trait Futex {
    /// Sleeps while `word` is `seen`; may return for any other reason too.
    fn wait(&self, word: &AtomicU32, seen: u32);
    /// Wakes whoever sleeps on `word`.
    fn wake(&self, word: &AtomicU32);
}

/// Every place of the ring is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all places of the ring are in flight")]
pub struct Full;

/// What a consumer wrote that it must not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MalformedItem {
    /// More taken than published, or fewer than before.
    #[error("{taken} items taken of {published} published, {before} taken before")]
    Taken {
        /// As the consumer says.
        taken: u64,
        /// In all.
        published: u64,
        /// In all.
        before: u64,
    },
    /// More released than are in flight, or fewer than before.
    #[error("{released} items released, {read} of them read before, {in_flight} in flight")]
    Released {
        /// Modulo 2^32.
        released: u32,
        /// In all.
        read: u64,
        /// Items.
        in_flight: usize,
    },
    /// Released without having it.
    #[error("item {seq} released, which is not taken or is released already")]
    NotHeld {
        /// Item.
        seq: u64,
    },
}

/// The coordinator's side.
#[derive(Debug)]
pub struct Publisher<W> {
    words: W,
    published: u64,
    /// Last valid count.
    taken: u64,
    /// Releases read.
    read: u64,
    in_flight: HashSet<u64>,
    is_absent: bool,
}

impl<W: Words> Publisher<W> {
    /// Over words that are zero and that nobody else has.
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

    /// True when [`publish`](Self::publish) would fail.
    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= self.words.items().len()
    }

    /// Hands an item over; gives its number.
    ///
    /// # Errors
    /// When as many items as there are places are in flight.
    pub fn publish(&mut self, item: &Item, futex: &impl Futex) -> Result<u64, Full> {
        if self.is_full() {
            return Err(Full);
        }
        let seq = self.published;
        place(self.words.items(), seq).store(item);
        self.in_flight.insert(seq);
        self.published += 1;
        let deliver = self.words.deliver();
        // Release: pairs with the acquire in `Taker::is_next_there`; the item is visible with the count.
        deliver
            .published
            .store(self.published as u32, Ordering::Release);
        // With the fence in `Taker::wait`: either we see that it sleeps, or it sees what we published.
        fence(Ordering::SeqCst);
        if self.words.reply().sleeping.load(Ordering::Relaxed) != 0 {
            futex.wake(&deliver.published);
        }
        Ok(seq)
    }

    /// Returns how many items are taken or taken back.
    ///
    /// # Errors
    /// When the consumer's count cannot be.
    pub fn taken(&mut self) -> Result<u64, MalformedItem> {
        // Acquire: pairs with the release in `Taker::take`; its reads of the items are over.
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

    /// Takes back all items that the consumer has not taken, and returns the number of the first of them: items before
    /// it are the consumer's. Those taken back will not be released.
    ///
    /// # Errors
    /// When the consumer's count cannot be.
    pub fn take_back(&mut self) -> Result<u64, MalformedItem> {
        loop {
            let first = self.taken()?;
            // Acquire: as in `taken`. Release: the consumer's next count follows ours. If this succeeds, the consumer's
            // own compare-and-swap from `first` cannot. If it fails, the consumer took an item, or wrote nonsense:
            // `taken` checks, and since the count may only rise to `published`, this ends.
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

    /// Says whether the consumer counts as absent. After `true`, [`is_waiting`](Self::is_waiting) must be asked once: a
    /// consumer that began to wait before it could see this does not ring.
    pub fn set_absent(&mut self, is_absent: bool) {
        self.is_absent = is_absent;
        let absent = &self.words.deliver().absent;
        absent.store(u32::from(is_absent), Ordering::Relaxed);
        // With the fence in `Taker::wait`: either it sees that it counts as absent, or we see that it waits.
        fence(Ordering::SeqCst);
    }

    /// Returns whether the consumer counts as absent.
    pub fn is_absent(&self) -> bool {
        self.is_absent
    }

    /// Returns whether the consumer sleeps, or is about to, with nothing left to take.
    ///
    /// A consumer that was stopped while it slept still says that it sleeps for an item that was published since. So it
    /// counts only if it waits for the item that is published next.
    pub fn is_waiting(&self) -> bool {
        self.words.reply().sleeping.load(Ordering::Acquire) == self.published + 1
    }

    /// Reads what the consumer has released since the last call.
    ///
    /// # Errors
    /// When it released what it does not have. Those before were reported.
    pub fn poll_released(&mut self, mut each: impl FnMut(u64)) -> Result<(), MalformedItem> {
        // Acquire: pairs with the release in `Taker::release`. The entries are visible, `taken` too, and
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
        if news > 0 {
            self.taken()?;
        }
        for _ in 0..news {
            let seq = place(self.words.releases(), self.read).load(Ordering::Relaxed);
            self.read += 1;
            if seq >= self.taken || !self.in_flight.remove(&seq) {
                return Err(MalformedItem::NotHeld { seq });
            }
            each(seq);
        }
        Ok(())
    }

    /// Items published that are neither taken back nor released, as far as that was read.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Asks the consumer to ring from now on. After it [`has_news`](Self::has_news) must be asked before
    /// the coordinator sleeps.
    pub fn arm(&self) {
        self.words.deliver().armed.store(1, Ordering::Relaxed);
        // With the fence in `Taker::rings`: either it sees that we sleep, or we see what it did.
        fence(Ordering::SeqCst);
    }

    /// The coordinator is awake.
    pub fn disarm(&self) {
        self.words.deliver().armed.store(0, Ordering::Relaxed);
    }

    /// True when the consumer has taken or released something that was not read yet, or waits and counts as absent.
    pub fn has_news(&self) -> bool {
        let reply = self.words.reply();
        reply.taken.load(Ordering::Acquire) != self.taken
            || reply.released.load(Ordering::Acquire) != self.read as u32
            || (self.is_absent && self.is_waiting())
    }

    /// What the consumer says of itself.
    pub fn account(&self) -> Account {
        Account::load(&self.words)
    }

    /// Says how many buffers the consumer may hold.
    pub fn set_share(&self, buffers: u32) {
        // Relaxed: a number on its own.
        self.words.deliver().share.store(buffers, Ordering::Relaxed);
    }
}

fn place<T>(ring: &[T], seq: u64) -> &T {
    &ring[(seq % ring.len() as u64) as usize]
}

/// The consumer's side that takes. One thread at a time takes, and one waits. Its only state is the word `taken`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taker;

impl Taker {
    /// True when the next item is there.
    pub fn is_next_there(&self, words: &impl Words) -> bool {
        Taker::next(words).is_some()
    }

    /// Returns the number of the next item, if it is published.
    fn next(words: &impl Words) -> Option<u64> {
        // Acquire: pairs with `Publisher::take_back`, so that `published` below is not older than what was taken back.
        let next = words.reply().taken.load(Ordering::Acquire);
        // Acquire: pairs with the release in `Publisher::publish`.
        let published = words.deliver().published.load(Ordering::Acquire);
        (published != next as u32).then_some(next)
    }

    /// The next item, if it is there. The third: the coordinator sleeps and must be rung for.
    pub fn take(&self, words: &impl Words) -> Option<(u64, Item, bool)> {
        loop {
            let seq = Taker::next(words)?;
            let item = place(words.items(), seq).load();
            // Release: pairs with the acquires in `Publisher::taken` and `take_back`; our reads of the item are over.
            // If it fails, the coordinator took the item back, and what was read may be of a later one.
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

    /// Sleeps until the next item is there, or `futex` returns for another reason. True: it is there.
    ///
    /// `ring` wakes the coordinator, if it has to hear that this consumer waits.
    pub fn wait(&self, words: &impl Words, futex: &impl Futex, ring: impl FnOnce()) -> bool {
        let (deliver, reply) = (words.deliver(), words.reply());
        let next = reply.taken.load(Ordering::Acquire);
        // Release: whoever sees that we wait sees what we took before.
        reply.sleeping.store(next + 1, Ordering::Release);
        // With the fences in `Publisher::publish` and `set_absent`: either the coordinator sees that we sleep, or we see
        // what it did.
        fence(Ordering::SeqCst);
        // An item that is taken back meanwhile changes `published` too, since it was published after `next` was read.
        if deliver.published.load(Ordering::Acquire) == next as u32 {
            if deliver.absent.load(Ordering::Relaxed) != 0 {
                ring();
            }
            futex.wait(&deliver.published, next as u32);
        }
        reply.sleeping.store(0, Ordering::Relaxed);
        self.is_next_there(words)
    }
}

/// The consumer's side that releases. One thread at a time.
#[derive(Debug, Default)]
pub struct Releaser {
    released: u64,
}

impl Releaser {
    /// Gives an item back that was taken and not yet released. True: the coordinator sleeps and must be
    /// rung for.
    pub fn release(&mut self, words: &impl Words, seq: u64) -> bool {
        place(words.releases(), self.released).store(seq, Ordering::Relaxed);
        self.released += 1;
        // Release: pairs with the acquire in `Publisher::poll_released`; the entry, the count of items taken
        // and all our accesses to the minibatch come before.
        words
            .reply()
            .released
            .store(self.released as u32, Ordering::Release);
        must_ring(words)
    }
}

fn must_ring(words: &impl Words) -> bool {
    // With the fence in `Publisher::arm`: either we see that it sleeps, or it sees what we did.
    fence(Ordering::SeqCst);
    words.deliver().armed.load(Ordering::Relaxed) != 0
}
