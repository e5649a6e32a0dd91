//! The coordinator's end of the hand-over.

use std::os::fd::{AsFd, OwnedFd};

use crate::error::{Error, Result, invalid, protocol_violation};
use crate::handover::protocol::{Account, Full, Futex, Item, MalformedItem, Publisher};
use crate::handover::region::{RegionFiles, Regions};
use crate::mapping;
use crate::sync::AtomicU32;

/// The coordinator's end of the hand-over to one consumer. See [the module](super).
pub struct Sender {
    publisher: Publisher<Regions>,
    /// Memory files of the regions, until they are given to the consumer.
    files: Option<RegionFiles>,
}

/// The kernel's futex. A publisher only wakes; it never waits on a futex.
struct Wake;

impl Futex for Wake {
    fn wait(&self, _: &AtomicU32, _: u32) {}

    fn wake(&self, word: &AtomicU32) {
        crate::futex::wake(word);
    }
}

impl Sender {
    /// Reserves and seals both regions, with room for `capacity` items in flight: items that are published and whose
    /// release is not read. The consumer is [armed](Self::arm).
    ///
    /// # Errors
    /// When memory or descriptors are short, or `capacity` is 0 or over a million.
    pub fn create(capacity: u32) -> Result<Self> {
        let (regions, files) = Regions::create(capacity)?;
        let publisher = Publisher::new(regions);
        // The coordinator may be asleep now, and a consumer rings only if it is armed.
        publisher.arm();
        Ok(Sender {
            publisher,
            files: Some(files),
        })
    }

    /// Gives away the consumer's descriptors: *deliver*, which is read-only, and *reply*.
    ///
    /// # Errors
    /// If the process has no descriptor left, or the descriptors were given away before.
    pub fn fds(&mut self) -> Result<(OwnedFd, OwnedFd)> {
        const WHAT: &str = "a deliver region";
        let given_away = || invalid(WHAT, "it was given away before");
        let files = self.files.as_ref().ok_or_else(given_away)?;
        // First, because it fails when the process has no descriptor left, and may then be tried again.
        let deliver = mapping::reopen_read_only(WHAT, files.deliver.as_fd())?;
        let files = self.files.take().ok_or_else(given_away)?;
        Ok((deliver, files.reply))
    }

    /// Hands an item over, wakes the consumer if it sleeps, and returns the item's number: 0, 1, 2, ...
    ///
    /// # Errors
    /// [`Full`] if `capacity` items are in flight.
    pub fn publish(&mut self, item: Item) -> std::result::Result<u64, Full> {
        self.publisher.publish(&item, &Wake)
    }

    /// Returns true if [`publish`](Self::publish) would fail.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.publisher.is_full()
    }

    /// Returns the number of items published and neither taken back nor released, according to the releases read so
    /// far.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.publisher.in_flight()
    }

    /// Returns the total number of items taken or taken back.
    ///
    /// # Errors
    /// [`crate::ErrorKind::ProtocolViolation`] if the consumer's count went back or passed the items published.
    pub fn taken(&mut self) -> Result<u64> {
        self.publisher.taken().map_err(malformed)
    }

    /// Takes back all items that the consumer has not taken, and returns the number of the first of them. The consumer
    /// will neither see nor release them.
    ///
    /// # Errors
    /// As [`taken`](Self::taken).
    pub fn take_back(&mut self) -> Result<u64> {
        self.publisher.take_back().map_err(malformed)
    }

    /// Sets whether the consumer counts as absent. An absent consumer rings the doorbell when it waits for an item.
    /// After `true`, the caller must ask once whether it [waits already](Self::is_waiting).
    pub fn set_absent(&mut self, is_absent: bool) {
        self.publisher.set_absent(is_absent);
    }

    /// Returns `true` if the consumer counts as absent.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.publisher.is_absent()
    }

    /// Returns `true` if the consumer sleeps with nothing left to take.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.publisher.is_waiting()
    }

    /// Calls `each` with every item released since the last call.
    ///
    /// # Errors
    /// [`crate::ErrorKind::ProtocolViolation`] if the consumer released an item that it does not have. The caller
    /// should end its session.
    pub fn poll_released(&mut self, each: impl FnMut(u64)) -> Result<()> {
        self.publisher.poll_released(each).map_err(malformed)
    }

    /// Asks the consumer to ring the doorbell whenever it takes or releases, until [`disarm`](Self::disarm). Earlier
    /// steps of the consumer may not ring. After arming, the caller must therefore look once more
    /// ([`has_news`](Self::has_news), or poll) before it sleeps.
    pub fn arm(&self) {
        self.publisher.arm();
    }

    /// Tells the consumer that the coordinator is awake. The consumer then rings no more, which saves system calls.
    pub fn disarm(&self) {
        self.publisher.disarm();
    }

    /// Returns true if the consumer has taken or released an item that was not read yet.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.publisher.has_news()
    }

    /// Returns the consumer's report on itself.
    #[must_use]
    pub fn account(&self) -> Account {
        self.publisher.account()
    }

    /// Sets how many buffers the consumer may hold at a time.
    pub fn set_share(&self, buffers: u32) {
        self.publisher.set_share(buffers);
    }
}

fn malformed(violation: MalformedItem) -> Error {
    protocol_violation(
        "a consumer wrote an invalid value into its reply region",
        violation,
    )
}
