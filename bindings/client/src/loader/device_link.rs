//! The GPU's part of one connection: parts of a batch that were taken and are being copied.

use std::sync::Arc;
use std::time::Duration;

use coprep_protocol::item::{ENDS_BATCH, ENDS_EPOCH};
use coprep_shared_memory::handover::Item;

use crate::attachment::{Attachment, HeldSlots};
use crate::device::{
    AwaitedAnswer, DeviceBatch, HeldPart, MappedRing, OfferedRing, OpenDevice, UploadedBatch,
    Uploader,
};
use crate::error::{Error, Result, invalid, violation};
use crate::raw;

/// A batch on a GPU, and what it gives the user.
pub(super) struct GivenOnDevice {
    pub(super) batch: DeviceBatch,
    /// Numbers of its samples. See [`Position`](super::position::Position).
    pub(super) numbers: Vec<i64>,
    pub(super) ends_epoch: bool,
}

/// The GPU's part of one connection.
#[derive(Default)]
pub(super) struct DeviceLink {
    state: DeviceState,
    /// A part that was taken, until its copies have begun.
    awaited: Option<AwaitedPart>,
    /// Numbers of the batch whose parts are coming.
    numbers: Vec<i64>,
    /// Ids of that batch.
    ids: Vec<i64>,
    pub(super) sharing: Sharing,
}

/// Shared uploads of one connection.
#[derive(Default)]
pub(super) struct Sharing {
    /// `true` once the coordinator knows the GPU.
    pub(super) is_announced: bool,
    /// A ring that the coordinator has offered. A later one replaces it.
    pub(super) offered: Option<OfferedRing>,
    /// A ring that is being mapped.
    mapping: Option<MappingRing>,
    /// Rings that items may name, in the order in which they were mapped.
    rings: Vec<Arc<MappedRing>>,
    /// Reason why uploads are not shared, until the user is told.
    pub(super) refused: Option<String>,
}

struct MappingRing {
    pool: u32,
    answer: AwaitedAnswer<std::result::Result<Arc<MappedRing>, String>>,
}

/// The end of an attempt to map a ring.
pub(super) struct RingAnswer {
    pub(super) pool: u32,
    pub(super) is_mapped: bool,
}

#[derive(Default)]
enum DeviceState {
    #[default]
    Closed,
    Opening(Arc<Uploader>, AwaitedAnswer<OpenDevice>),
    Open(Arc<Uploader>, Arc<OpenDevice>),
}

struct AwaitedPart {
    answer: AwaitedAnswer<Option<UploadedBatch>>,
    ends_epoch: bool,
}

/// Returns the error of a sample that differs from the others of its stream in structure.
fn differs(slots: &HeldSlots, row: u32) -> Error {
    let attachment = slots.attachment();
    let ids = attachment.index.unwrap_or(attachment.number);
    let id = raw::integers(slots, ids).get(row as usize).copied();
    invalid(format!(
        "sample {} has another structure (types, shapes) than the first one, and batches whose samples differ are not \
         copied to the GPU: make samples equal in the dataset, or give collate_fn=torch.utils.data.default_collate",
        id.unwrap_or_default()
    ))
}

impl DeviceLink {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, DeviceState::Open(..))
    }

    pub(super) fn opened(&self) -> Option<&OpenDevice> {
        match &self.state {
            DeviceState::Open(_, device) => Some(device),
            _ => None,
        }
    }

    /// Makes the GPU ready, within `time`. Returns `None` if that takes longer.
    pub(super) fn open(
        &mut self,
        uploader: &Arc<Uploader>,
        attachment: &Arc<Attachment>,
        time: Duration,
    ) -> Result<Option<&OpenDevice>> {
        if let DeviceState::Closed = self.state {
            let answer = uploader.open(attachment.clone())?;
            self.state = DeviceState::Opening(uploader.clone(), answer);
        }
        if let DeviceState::Opening(uploader, answer) = &mut self.state {
            let uploader = uploader.clone();
            match answer.wait(&uploader, time) {
                Ok(None) => return Ok(None),
                Ok(Some(device)) => self.state = DeviceState::Open(uploader, Arc::new(device)),
                Err(error) => {
                    // No item was taken, so that the next call may try again.
                    self.state = DeviceState::Closed;
                    return Err(error);
                }
            }
        }
        Ok(self.opened())
    }

    /// Maps the ring that was offered, without a wait. Returns the answer for the coordinator when it is mapped or cannot
    /// be.
    pub(super) fn map_offered(&mut self) -> Result<Option<RingAnswer>> {
        let DeviceState::Open(uploader, _) = &self.state else {
            return Ok(None);
        };
        let sharing = &mut self.sharing;
        if sharing.mapping.is_none()
            && let Some(offered) = sharing.offered.take()
        {
            sharing.mapping = Some(MappingRing {
                pool: offered.pool,
                answer: uploader.map(offered)?,
            });
        }
        let Some(MappingRing { pool, answer }) = &mut sharing.mapping else {
            return Ok(None);
        };
        let pool = *pool;
        let mapped = answer.wait(uploader, Duration::ZERO);
        let Some(mapped) = mapped.map_err(|error| uploader.fail(error))? else {
            return Ok(None);
        };
        sharing.mapping = None;
        let is_mapped = mapped.is_ok();
        match mapped {
            Ok(ring) => sharing.rings.push(ring),
            Err(why) => sharing.refused = Some(why),
        }
        Ok(Some(RingAnswer { pool, is_mapped }))
    }

    /// Holds the slots of an item, wherever they lie.
    pub(super) fn hold(
        &mut self,
        attachment: &Arc<Attachment>,
        seq: u64,
        item: &Item,
    ) -> Result<HeldPart> {
        if item.pool == 0 {
            return attachment.hold(seq, item).map(HeldPart::Staging);
        }
        let rings = &mut self.sharing.rings;
        // Earlier rings have lost their uploader, and none of their items comes after one of this ring.
        rings.retain(|ring| ring.pool >= item.pool);
        let ring = rings.iter().find(|ring| ring.pool == item.pool);
        let unknown = || {
            violation(format!(
                "an item of ring {}, which is not mapped",
                item.pool
            ))
        };
        let ring = ring.ok_or_else(unknown)?;
        ring.hold(attachment, seq, item).map(HeldPart::Ring)
    }

    fn read_numbers(&mut self, part: &HeldPart) {
        match part {
            HeldPart::Staging(slots) => {
                let attachment = slots.attachment();
                self.numbers.extend(raw::integers(slots, attachment.number));
                if let Some(index) = attachment.index {
                    self.ids.extend(raw::integers(slots, index));
                }
            }
            HeldPart::Ring(slots) => {
                self.numbers.extend(slots.numbers());
                self.ids.extend(slots.index().into_iter().flatten());
            }
        }
    }

    /// Begins to copy a part. It holds the slots until the copies have ended.
    pub(super) fn take(&mut self, seq: u64, item: &Item, slots: HeldPart) -> Result<()> {
        if let HeldPart::Staging(staged) = &slots
            && let Some((row, _)) = staged.large.first()
        {
            return Err(differs(staged, *row));
        }
        self.read_numbers(&slots);
        let DeviceState::Open(uploader, _) = &self.state else {
            return Err(violation("an item before the GPU is ready"));
        };
        let ends_batch = item.flags & ENDS_BATCH != 0;
        self.awaited = Some(AwaitedPart {
            answer: uploader.take(seq, item, ends_batch, slots)?,
            ends_epoch: item.flags & ENDS_EPOCH != 0,
        });
        Ok(())
    }

    /// Returns the time since a part was taken whose copies have not begun.
    pub(super) fn awaited_since(&self) -> Option<Duration> {
        self.awaited.as_ref().map(|part| part.answer.waited())
    }

    /// Waits until the copies of that part have begun, for `limit` at most. Returns the batch if the part completes it.
    pub(super) fn uploaded(&mut self, limit: Duration) -> Result<Option<GivenOnDevice>> {
        let (DeviceState::Open(uploader, device), Some(part)) = (&self.state, &mut self.awaited)
        else {
            return Ok(None);
        };
        let answer = part.answer.wait(uploader, limit);
        let Some(batch) = answer.map_err(|error| uploader.fail(error))? else {
            return Ok(None);
        };
        let ends_epoch = part.ends_epoch;
        self.awaited = None;
        Ok(batch.map(|batch| GivenOnDevice {
            batch: DeviceBatch::new(device.clone(), batch, std::mem::take(&mut self.ids)),
            numbers: std::mem::take(&mut self.numbers),
            ends_epoch,
        }))
    }

    /// Forgets the batch whose parts are coming. Items before `first_seq` are of an epoch that was left.
    pub(super) fn discard(&mut self, first_seq: u64) {
        self.awaited = None;
        self.numbers.clear();
        self.ids.clear();
        if let DeviceState::Open(uploader, _) = &self.state {
            uploader.discard(first_seq);
        }
    }

    /// Waits until the items that were taken are copied and released.
    pub(super) fn settle(&self) {
        if let DeviceState::Opening(uploader, _) | DeviceState::Open(uploader, _) = &self.state {
            uploader.settle();
        }
    }
}
