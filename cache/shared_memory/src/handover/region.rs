//! The words of the hand-over, in shared memory.
#![expect(unsafe_code, reason = "says which types may lie in shared memory")]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Result, invalid, protocol_violation};
use crate::handover::protocol::{DeliverHead, ItemSlot, MAGIC, ReplyHead, Words};
use crate::mapping::{self, Mapping, Region, SharedPlain};

// SAFETY: atomics and padding only (`CachePadded` adds alignment, and every mapping starts on a page).
unsafe impl SharedPlain for DeliverHead {}
// SAFETY: as above.
unsafe impl SharedPlain for ReplyHead {}
// SAFETY: an array of atomics.
unsafe impl SharedPlain for ItemSlot {}
// SAFETY: an atomic.
unsafe impl SharedPlain for AtomicU64 {}

const DELIVER: &str = "the deliver region of a consumer";
const REPLY: &str = "the reply region of a consumer";
/// Largest capacity of a ring.
const MOST: u32 = 1 << 20;

/// Both regions, as either side maps them.
pub(super) struct Regions {
    deliver: Region<DeliverHead, ItemSlot>,
    reply: Region<ReplyHead, AtomicU64>,
}

impl Words for Regions {
    fn deliver(&self) -> &DeliverHead {
        self.deliver.head()
    }

    fn items(&self) -> &[ItemSlot] {
        self.deliver.row()
    }

    fn reply(&self) -> &ReplyHead {
        self.reply.head()
    }

    fn releases(&self) -> &[AtomicU64] {
        self.reply.row()
    }
}

/// The memory files of both regions.
pub(super) struct RegionFiles {
    pub(super) deliver: OwnedFd,
    pub(super) reply: OwnedFd,
}

impl Regions {
    /// Creates and seals both regions.
    pub(super) fn create(capacity: u32) -> Result<(Self, RegionFiles)> {
        if capacity == 0 || capacity > MOST {
            return Err(invalid(
                DELIVER,
                format!("a capacity of {capacity}, not 1 to {MOST}"),
            ));
        }
        let (deliver_bytes, reply_bytes) = sizes(capacity)?;
        let deliver = mapping::memory_file(DELIVER, "coprep-deliver", deliver_bytes as u64)?;
        let reply = mapping::memory_file(REPLY, "coprep-reply", reply_bytes as u64)?;
        let regions = Regions {
            deliver: Region::new(
                DELIVER,
                Mapping::writable(DELIVER, &deliver, deliver_bytes)?,
                capacity as usize,
            )?,
            reply: Region::new(
                REPLY,
                Mapping::writable(REPLY, &reply, reply_bytes)?,
                capacity as usize,
            )?,
        };
        // The seal comes after the mapping, because it refuses every later writable one, even of this process. *reply*
        // has no such seal, because the consumer writes it.
        mapping::seal(DELIVER, &deliver, mapping::write_seals())?;
        mapping::seal(REPLY, &reply, mapping::size_seals())?;
        regions
            .deliver()
            .capacity
            .store(capacity, Ordering::Relaxed);
        // Release: for the process that maps the region. Passing the descriptor orders it anyway.
        regions.deliver().magic.store(MAGIC, Ordering::Release);
        Ok((regions, RegionFiles { deliver, reply }))
    }

    /// Maps the regions behind descriptors that were passed.
    pub(super) fn open(files: &RegionFiles) -> Result<Self> {
        let capacity = read_capacity(&files.deliver)?;
        let (deliver_bytes, reply_bytes) = sizes(capacity)?;
        mapping::check_file(DELIVER, &files.deliver, deliver_bytes)?;
        mapping::check_file(REPLY, &files.reply, reply_bytes)?;
        let deliver = Mapping::readable(DELIVER, &files.deliver, deliver_bytes)?;
        let reply = Mapping::writable(REPLY, &files.reply, reply_bytes)?;
        Ok(Regions {
            deliver: Region::new(DELIVER, deliver, capacity as usize)?,
            reply: Region::new(REPLY, reply, capacity as usize)?,
        })
    }
}

fn sizes(capacity: u32) -> Result<(usize, usize)> {
    let sizes =
        Region::<DeliverHead, ItemSlot>::bytes(capacity as usize)
            .zip(Region::<ReplyHead, AtomicU64>::bytes(capacity as usize));
    sizes.ok_or_else(|| invalid(DELIVER, "too large"))
}

fn read_capacity(deliver: &OwnedFd) -> Result<u32> {
    // The capacity, and with it the size, is in the head; a region of capacity 1 is long enough to read it.
    let (least, _) = sizes(1)?;
    mapping::check_file(DELIVER, deliver, least)?;
    let head = Region::<DeliverHead, ItemSlot>::new(
        DELIVER,
        Mapping::readable(DELIVER, deliver, least)?,
        1,
    )?;
    let (magic, capacity) = (&head.head().magic, &head.head().capacity);
    if magic.load(Ordering::Acquire) != MAGIC {
        return Err(protocol_violation(
            DELIVER,
            "not one of this version of coprep",
        ));
    }
    match capacity.load(Ordering::Relaxed) {
        capacity @ 1..=MOST => Ok(capacity),
        capacity => Err(protocol_violation(
            DELIVER,
            format!("a capacity of {capacity}"),
        )),
    }
}
