//! A ring of an uploader, as a job maps it.
//!
//! The uploader has copied the minibatches there already. The job copies its part of one into its own batch buffer, on the
//! GPU, and releases the item as soon as that copy has ended, as it does with a part that it copies from the staging area.
//! So the two may be mixed in one batch, and a job whose own work lags behind holds no buffer of the ring.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use coprep_device::{Context, DeviceMemory, import};
use coprep_protocol::gpu_batch::{GpuBatchLayout, UploadedField};
use coprep_protocol::spec::{INDEX, NUMBER};
use coprep_shared_memory::handover::{Item, ItemKind};
use coprep_shared_memory::staging::Layout;
use coprep_shared_memory::view::StagingView;

use crate::attachment::{Attachment, HeldSlots};
use crate::error::{Error, Result, violation};

/// A ring that the coordinator has offered.
pub(crate) struct OfferedRing {
    pub(crate) pool: u32,
    pub(crate) buffers: u32,
    pub(crate) bytes: u64,
    /// Memory of the GPU, and the ids on the host.
    pub(crate) files: [OwnedFd; 2],
}

/// A ring that is mapped.
pub(crate) struct MappedRing {
    pub(crate) pool: u32,
    memory: DeviceMemory,
    layout: GpuBatchLayout,
    buffers: u32,
    slots: u32,
    ids: StagingView,
    /// Fields of `ids`: the one that names the samples, and the one with the ids.
    number: usize,
    index: Option<usize>,
}

impl MappedRing {
    /// Maps a ring for the consumer of an attachment.
    pub(super) fn map(
        context: &Context,
        attachment: &Attachment,
        offered: OfferedRing,
    ) -> Result<Self> {
        let OfferedRing {
            pool,
            buffers,
            bytes,
            files: [memory, ids],
        } = offered;
        let slots = attachment.slots();
        let wrong = |why: &str| violation(format!("a ring of an uploader: {why}"));
        let layout = GpuBatchLayout::new(&attachment.fields, slots);
        let layout = layout.ok_or_else(|| wrong("its minibatches are too large"))?;
        let whole = layout.bytes().checked_mul(buffers as usize);
        let bytes = usize::try_from(bytes)
            .ok()
            .filter(|&bytes| whole.is_some_and(|w| w <= bytes));
        let bytes = bytes.ok_or_else(|| wrong("it is smaller than its buffers"))?;
        let names = [INDEX, NUMBER].into_iter();
        let names: Vec<&str> = names.filter(|name| attachment.has_field(name)).collect();
        let field = |name: &str| names.iter().position(|other| *other == name);
        let number = field(NUMBER).or_else(|| field(INDEX));
        let sizes = vec![size_of::<i64>(); names.len()];
        let on_host = Layout::new(&sizes, slots, buffers).map_err(Error::from_lower)?;
        Ok(MappedRing {
            pool,
            memory: import(context, memory.as_fd(), bytes).map_err(Error::from_lower)?,
            ids: StagingView::open(ids, on_host).map_err(Error::from_lower)?,
            number: number.ok_or_else(|| wrong("it has no ids"))?,
            index: field(INDEX),
            layout,
            buffers,
            slots,
        })
    }

    /// Returns `true` if an item is a part of a batch and inside the ring.
    pub(super) fn has(&self, item: &Item) -> bool {
        let end = item.start.checked_add(item.len);
        item.kind() == Some(ItemKind::Part)
            && item.pool == self.pool
            && item.buffer < self.buffers
            && end.is_some_and(|end| end <= self.slots)
    }

    /// Returns a field of some slots of a buffer, on the GPU.
    pub(super) fn part(
        &self,
        buffer: u32,
        field: &UploadedField,
        slots: Range<u32>,
    ) -> coprep_device::Result<DeviceMemory> {
        let field = self
            .layout
            .fields()
            .iter()
            .find(|own| own.number == field.number);
        let place = field.map_or(0..0, |own| own.place(slots));
        let start = self.layout.bytes() * buffer as usize;
        self.memory.part(start + place.start..start + place.end)
    }

    /// Holds the slots that an item names.
    pub(crate) fn hold(
        self: &Arc<Self>,
        attachment: &Arc<Attachment>,
        seq: u64,
        item: &Item,
    ) -> Result<RingSlots> {
        if !self.has(item) {
            return Err(violation(format!(
                "{item:?} is not inside ring {}",
                self.pool
            )));
        }
        Ok(RingSlots {
            attachment: attachment.clone(),
            ring: self.clone(),
            seq,
            buffer: item.buffer,
            slots: item.start..item.start + item.len,
        })
    }
}

/// Slots of a ring that an item names. Dropping them releases the item.
pub(crate) struct RingSlots {
    attachment: Arc<Attachment>,
    ring: Arc<MappedRing>,
    seq: u64,
    buffer: u32,
    slots: Range<u32>,
}

impl RingSlots {
    /// Returns the numbers of the samples.
    pub(crate) fn numbers(&self) -> Vec<i64> {
        self.ids(self.ring.number)
    }

    /// Returns the ids of the samples, if the stream has them.
    pub(crate) fn index(&self) -> Option<Vec<i64>> {
        self.ring.index.map(|field| self.ids(field))
    }

    fn ids(&self, field: usize) -> Vec<i64> {
        self.ring
            .ids
            .integers(self.buffer, field, self.slots.clone())
    }
}

impl Drop for RingSlots {
    fn drop(&mut self) {
        self.attachment.release_item(self.seq);
    }
}

/// The slots that an item names, wherever they lie. Dropping them releases the item.
pub(crate) enum HeldPart {
    Staging(HeldSlots),
    /// Held, and not read: the thread finds the ring by the item.
    Ring(RingSlots),
}
