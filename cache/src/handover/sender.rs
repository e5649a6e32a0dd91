//! The coordinator's end.

use std::os::fd::{AsFd, OwnedFd};

use crate::error::{Error, Result};
use crate::handover::protocol::{Account, Full, Futex, Item, MalformedItem, Publisher};
use crate::handover::region::{RegionFiles, Regions};
use crate::mapping;
use crate::sync::AtomicU32;

/// The coordinator's end of the hand-over to one consumer. See [the module](super).
pub struct Sender {
    publisher: Publisher<Regions>,
    /// Until they are given away: a consumer's descriptors are the consumer's.
    files: Option<RegionFiles>,
}

/// The kernel's futex; a publisher only wakes.
struct Wake;

impl Futex for Wake {
    fn wait(&self, _: &AtomicU32, _: u32) {}

    fn wake(&self, word: &AtomicU32) {
        crate::futex::wake(word);
    }
}

impl Sender {
    /// Reserves and seals both regions, with room for `capacity` items in flight: published, and their
    /// release not read. The consumer is [armed](Self::arm).
    ///
    /// # Errors
    /// When memory or descriptors are short, or `capacity` is 0 or over a million.
    pub fn create(capacity: u32) -> Result<Self> {
        let (regions, files) = Regions::create(capacity)?;
        let publisher = Publisher::new(regions);
        // The coordinator may sleep at this moment, and only who is armed rings.
        publisher.arm();
        Ok(Sender {
            publisher,
            files: Some(files),
        })
    }

    /// Gives away the consumer's descriptors: *deliver*, which can only be read, and *reply*.
    ///
    /// # Errors
    /// When the process has no descriptor left, or they were given away before.
    pub fn fds(&mut self) -> Result<(OwnedFd, OwnedFd)> {
        const WHAT: &str = "a deliver region";
        let files = self.files.take();
        let files = files.ok_or_else(|| Error::invalid(WHAT, "it was given away before"))?;
        let deliver = mapping::reopen_read_only(WHAT, files.deliver.as_fd())?;
        Ok((deliver, files.reply))
    }

    /// Hands an item over, wakes the consumer if it sleeps, and gives the item's number: 0, 1, 2, ...
    ///
    /// # Errors
    /// [`Full`] when as many items as the capacity are in flight.
    pub fn publish(&mut self, item: Item) -> std::result::Result<u64, Full> {
        self.publisher.publish(&item, &Wake)
    }

    /// True when [`publish`](Self::publish) would fail.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.publisher.is_full()
    }

    /// Items published that are neither taken back nor released, as far as that was read.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.publisher.in_flight()
    }

    /// Returns how many items are taken or taken back, all told.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Misbehaved`] when its count went back, or past what is published.
    pub fn taken(&mut self) -> Result<u64> {
        self.publisher.taken().map_err(misbehaved)
    }

    /// Takes back all items that the consumer has not taken, and returns the number of the first of them. The consumer
    /// will neither see nor release them.
    ///
    /// # Errors
    /// As [`taken`](Self::taken).
    pub fn take_back(&mut self) -> Result<u64> {
        self.publisher.take_back().map_err(misbehaved)
    }

    /// Says whether the consumer counts as absent: then it rings the doorbell when it waits for an item. After `true`
    /// ask once whether it [waits already](Self::is_waiting).
    pub fn set_absent(&mut self, is_absent: bool) {
        self.publisher.set_absent(is_absent);
    }

    /// Returns whether the consumer counts as absent.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.publisher.is_absent()
    }

    /// Returns whether the consumer sleeps with nothing left to take.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.publisher.is_waiting()
    }

    /// Calls `each` with every item released since the last call.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Misbehaved`] when the consumer released what it does not have; end its session.
    pub fn poll_released(&mut self, each: impl FnMut(u64)) -> Result<()> {
        self.publisher.poll_released(each).map_err(misbehaved)
    }

    /// Asks the consumer to ring the doorbell whenever it takes or releases, until
    /// [`disarm`](Self::disarm). What it did before may not ring: after arming look once more
    /// ([`has_news`](Self::has_news), or poll), then sleep.
    pub fn arm(&self) {
        self.publisher.arm();
    }

    /// The coordinator is awake: no more rings, which are system calls.
    pub fn disarm(&self) {
        self.publisher.disarm();
    }

    /// True when the consumer has taken or released something that was not read yet.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.publisher.has_news()
    }

    /// What the consumer says of itself.
    #[must_use]
    pub fn account(&self) -> Account {
        self.publisher.account()
    }

    /// Says how many buffers the consumer may hold at a time.
    pub fn set_share(&self, buffers: u32) {
        self.publisher.set_share(buffers);
    }
}

fn misbehaved(nonsense: MalformedItem) -> Error {
    Error::misbehaved(
        "a consumer wrote nonsense into its reply region",
        nonsense.to_string(),
    )
}
