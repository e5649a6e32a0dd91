//! One attachment to a stream: its memory mappings, and the slices of its buffers that are held.
//!
//! # Locks
//!
//! Each buffer has a lock of its own, which protects the number of its slices that are held. A thread takes it when it
//! takes a slice and when it drops one. The lock is held at most for the time of dropping private pages, and never
//! during a wait. The last slice of a buffer drops the pages *under* the lock, so that nobody is given a slice of the
//! buffer meanwhile.
//!
//! # Release
//!
//! Each slice is an item of its own, released separately. The buffer belongs to the coordinator again when all slices
//! are released. The last slice held by this process drops the pages before it is released.
//!
//! When the connection ends, the coordinator takes back all buffers of this consumer. Slices that are still held are
//! copied first ([`Attachment::detach_held`]).
//!
//! # Large samples
//!
//! A sample that is larger than its slot lies elsewhere in the staging area. Each slice maps its own large samples, and
//! unmaps them before it is released.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use coprep_protocol::message::Attached;
use coprep_protocol::spec::{Dtype, Field, INDEX, NUMBER};
use coprep_shared_memory::handover::{Item, ItemKind, Receiver};
use coprep_shared_memory::lock::lock;
use coprep_shared_memory::staging::Layout;
use coprep_shared_memory::view::{LargeMap, LargeValue, PinnableView, StagingView};

use crate::error::{Error, Result, forked, violation};

/// The process that an object belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn current() -> Self {
        Owner(std::process::id())
    }

    pub(crate) fn is_here(self) -> bool {
        self == Owner::current()
    }

    /// Fails in a forked child, where the object may not be used.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_here() {
            Ok(())
        } else {
            Err(forked(self.0))
        }
    }
}

/// The shared memory of one attachment. It lives as long as any of its batches.
pub(crate) struct Attachment {
    owner: Owner,
    pub(crate) receiver: Receiver,
    pub(crate) fields: Arc<[Field]>,
    /// Index of the field that names the samples: by numbers of draws, or else by ids.
    pub(crate) number: usize,
    /// Index of the field with the ids, which the user may want.
    pub(crate) index: Option<usize>,
    view: StagingView,
    /// Index of the field whose samples may be larger than their slots.
    pub(crate) blob: Option<usize>,
    /// Slices that are held, by buffer.
    held: Vec<Mutex<Held>>,
    buffers_held: AtomicU32,
    /// Bytes of the large samples that are held.
    large_held: AtomicU64,
}

/// The held slices of a buffer.
#[derive(Default)]
struct Held {
    slices: u32,
    /// Large samples of the buffer that are mapped.
    large: Vec<Weak<LargeMap>>,
}

/// Buffers that may always be held, whatever large samples they have: a job holds one batch while it waits for the
/// next.
const SMALLEST_SHARE: u32 = 2;

impl Attachment {
    /// Maps the shared memory that the coordinator passed, in the order staging, deliver, reply, doorbell.
    pub(crate) fn open(attached: &Attached, descriptors: Vec<OwnedFd>) -> Result<Arc<Self>> {
        let descriptors: [OwnedFd; 4] = descriptors.try_into().map_err(|d: Vec<OwnedFd>| {
            violation(format!("{} descriptors instead of 4", d.len()))
        })?;
        let [staging, deliver, reply, doorbell] = descriptors;
        let sizes: Vec<usize> = attached.fields.iter().map(Field::sample_bytes).collect();
        let mut layout =
            Layout::new(&sizes, attached.slots, attached.buffers).map_err(Error::from_lower)?;
        let blob = blob_of(&attached.fields)?;
        if let Some(field) = blob {
            layout = layout
                .with_large(field, attached.large_bytes)
                .map_err(Error::from_lower)?;
        }
        Ok(Arc::new(Attachment {
            owner: Owner::current(),
            receiver: Receiver::open(deliver, reply, doorbell).map_err(Error::from_lower)?,
            view: StagingView::open(staging, layout).map_err(Error::from_lower)?,
            number: number_of(&attached.fields)?,
            index: named(&attached.fields, INDEX),
            fields: attached.fields.clone().into(),
            blob,
            held: (0..attached.buffers).map(|_| Mutex::default()).collect(),
            buffers_held: AtomicU32::new(0),
            large_held: AtomicU64::new(0),
        }))
    }

    /// Returns `true` if holding `slice` takes more than this consumer's share. There is a share of the buffers, one of
    /// the memory for large samples, and one of the ring, without whose places no further item could be published.
    pub(crate) fn is_beyond_share(&self, slice: &HeldSlots) -> bool {
        if self.receiver.held() > self.receiver.capacity() / 2 {
            return true;
        }
        // Relaxed: shares only keep jobs fair to each other, so a count may be a moment old.
        let buffers = self.buffers_held.load(Ordering::Relaxed);
        let is_only_slice = self.lock(slice.buffer).slices == 1;
        if is_only_slice && buffers > self.receiver.share() {
            return true;
        }
        let is_large = slice.large_bytes() > 0;
        is_large && buffers > SMALLEST_SHARE && self.large_held() > self.share_of_large()
    }

    fn large_held(&self) -> u64 {
        self.large_held.load(Ordering::Relaxed)
    }

    /// Returns the bytes of large samples that this consumer may hold, which is the same share as that of the buffers.
    fn share_of_large(&self) -> u64 {
        let layout = self.view.layout();
        let share = self.receiver.share().min(layout.buffers);
        // The division comes first, so that the product cannot overflow.
        layout.large_limit() / u64::from(layout.buffers) * u64::from(share)
    }

    /// Locks the state of `buffer`. The index must have been checked.
    fn lock(&self, buffer: u32) -> MutexGuard<'_, Held> {
        // Each count changes in one step, so a panic leaves no half-done change behind the lock.
        lock(&self.held[buffer as usize])
    }

    /// Holds the slice that item `seq` names.
    ///
    /// # Errors
    /// When the item or one of its samples is not inside the staging area, or when a large sample cannot be mapped.
    pub(crate) fn hold(self: &Arc<Self>, seq: u64, item: &Item) -> Result<HeldSlots> {
        item.check(self.view.layout()).map_err(Error::from_lower)?;
        let large = self.map_large(item).map_err(Error::from_lower)?;
        let mut held = self.lock(item.buffer);
        if held.slices == 0 {
            self.buffers_held.fetch_add(1, Ordering::Relaxed);
        }
        held.slices += 1;
        let maps = large.iter().map(|(_, map)| Arc::downgrade(map));
        held.large.extend(maps);
        drop(held);
        let slice = HeldSlots {
            attachment: self.clone(),
            seq,
            buffer: item.buffer,
            start: item.start,
            len: item.len,
            large,
        };
        let bytes = slice.large_bytes();
        self.large_held.fetch_add(bytes, Ordering::Relaxed);
        Ok(slice)
    }

    /// Returns the number of samples of a staging buffer.
    pub(crate) fn slots(&self) -> u32 {
        self.view.layout().slots
    }

    /// Returns `true` if the batches have a field of numbers with this name.
    pub(crate) fn has_field(&self, name: &str) -> bool {
        named(&self.fields, name).is_some()
    }

    /// Releases an item that was taken. A forked child has a copy of what its parent holds, but only the parent may
    /// release it.
    pub(crate) fn release_item(&self, seq: u64) {
        if self.owner.is_here() {
            // An item that is held can always be released, so there is no error.
            let _ = self.receiver.release(seq);
        }
    }

    /// Returns `true` if an item is a part of a batch and inside the staging area.
    pub(crate) fn has(&self, item: &Item) -> bool {
        item.kind() == Some(ItemKind::Part)
            && item.pool == 0
            && item.check(self.view.layout()).is_ok()
    }

    /// Maps the staging area once more, for a GPU that copies from it.
    pub(crate) fn pinnable(&self) -> coprep_shared_memory::Result<PinnableView> {
        self.view.pinnable()
    }

    /// Maps the large samples of a slice.
    fn map_large(&self, item: &Item) -> coprep_shared_memory::Result<Vec<(u32, Arc<LargeMap>)>> {
        let slots = item.start..item.start + item.len;
        let found = self.view.large_values(item.buffer, slots)?;
        let map = |value: &LargeValue| {
            let map = self.view.map_large(value)?;
            Ok((value.slot - item.start, Arc::new(map)))
        };
        found.iter().map(map).collect()
    }

    /// Makes the held slices independent of the coordinator, which uses the buffers again once this connection has
    /// ended. Batches of a closed loader stay valid.
    pub(crate) fn detach_held(&self) {
        for buffer in 0..self.held.len() as u32 {
            // The lock is needed, because another thread may be dropping the buffer's last slice at this moment.
            let held = self.lock(buffer);
            if held.slices > 0 {
                self.view.keep(buffer);
                let large = held.large.iter().filter_map(Weak::upgrade);
                large.for_each(|map| map.keep());
            }
        }
    }

    /// Releases one slice of a buffer. Returns whether its item may be released.
    fn release_slice(&self, buffer: u32) -> bool {
        let mut held = self.lock(buffer);
        held.slices -= 1;
        if held.slices > 0 {
            return true;
        }
        held.large.clear();
        self.buffers_held.fetch_sub(1, Ordering::Relaxed);
        // If written pages cannot be dropped, the buffer must stay lost: it would show stale data later.
        self.view.drop_private_pages(buffer).is_ok()
    }
}

/// Returns the index of the field of numbers with this name.
fn named(fields: &[Field], name: &str) -> Option<usize> {
    let is_field = |f: &Field| f.name == name && f.dtype == Dtype::I64 && f.shape.is_empty();
    fields.iter().position(is_field)
}

fn number_of(fields: &[Field]) -> Result<usize> {
    // Where samples are drawn with replacement, ids repeat, and the numbers of draws name the samples.
    named(fields, NUMBER)
        .or_else(|| named(fields, INDEX))
        .ok_or_else(|| violation("its batches have no ids"))
}

/// Returns the index of the field whose samples may be larger than their slots. Its elements must be bytes, because the
/// lengths of such samples are in bytes, and users are given arrays of that many elements.
fn blob_of(fields: &[Field]) -> Result<Option<usize>> {
    let blob = fields.iter().position(Field::may_be_large);
    match blob.map(|field| fields[field].dtype) {
        None | Some(Dtype::U8) => Ok(blob),
        Some(other) => Err(violation(format!(
            "its packed samples consist of {other:?} instead of bytes"
        ))),
    }
}

/// A run of held slots of a buffer. Dropping it gives them back.
pub(crate) struct HeldSlots {
    attachment: Arc<Attachment>,
    seq: u64,
    buffer: u32,
    start: u32,
    pub(crate) len: u32,
    /// Samples that are larger than their slots, with their index in the slice and their mapping.
    pub(crate) large: Vec<(u32, Arc<LargeMap>)>,
}

impl HeldSlots {
    pub(crate) fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Returns the bytes of the large samples.
    pub(crate) fn large_bytes(&self) -> u64 {
        self.large.iter().map(|(_, map)| map.len() as u64).sum()
    }

    /// Returns the address and length of one field of these slots.
    pub(crate) fn field(&self, field: usize) -> (NonNull<u8>, usize) {
        let view = &self.attachment.view;
        let sample = view.layout().sample_bytes(field);
        let (offset, len) = (sample * self.start as usize, sample * self.len as usize);
        assert!(
            offset + len <= view.layout().field_bytes(field),
            "checked when it was held"
        );
        let start = view.field(self.buffer, field);
        (start.map_addr(|a| a.saturating_add(offset)), len)
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        let bytes = self.large_bytes();
        self.attachment
            .large_held
            .fetch_sub(bytes, Ordering::Relaxed);
        // The mappings go before the release: after it, the memory belongs to another batch.
        self.large.clear();
        // A forked child has a copy of its parent's slices, but only the parent may release them.
        if self.attachment.owner.is_here() && self.attachment.release_slice(self.buffer) {
            self.attachment.release_item(self.seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coprep_protocol::spec::BLOB;
    use coprep_shared_memory::handover::{Doorbell, Sender};
    use coprep_shared_memory::staging::StagingPool;

    const BUFFERS: u32 = 2;

    #[test]
    fn packed_samples_consist_of_bytes() {
        let blob = |dtype| Field {
            name: BLOB.into(),
            dtype,
            shape: vec![64],
        };
        assert_eq!(blob_of(&[blob(Dtype::U8)]).unwrap(), Some(0));
        let error = blob_of(&[blob(Dtype::I64)]).unwrap_err().to_string();
        assert!(error.contains("I64 instead of bytes"), "{error}");
    }

    /// Returns an attachment to a staging area of two buffers, and the coordinator's side of it.
    fn attachment() -> (Arc<Attachment>, StagingPool, Sender) {
        let index = Field {
            name: "index".into(),
            dtype: Dtype::I64,
            shape: Vec::new(),
        };
        let layout = Layout::new(&[index.sample_bytes()], 4, BUFFERS).unwrap();
        let pool = StagingPool::create(layout).unwrap();
        let mut sender = Sender::create(8).unwrap();
        let (deliver, reply) = sender.fds().unwrap();
        let bell = Doorbell::new().unwrap().bell().unwrap().fd().unwrap();
        let attached = Attached {
            stream: 1,
            job: 1,
            seed: 1,
            dataset_samples: 8,
            job_samples: 8,
            classes: Vec::new(),
            fields: vec![index],
            slots: 4,
            buffers: BUFFERS,
            large_bytes: 0,
            epoch: 0,
            structure: Vec::new(),
            notes: Vec::new(),
            unshared: Vec::new(),
            left_out: None,
            token: 0,
        };
        let descriptors = vec![pool.reader_fd().unwrap(), deliver, reply, bell];
        let attachment = Attachment::open(&attached, descriptors).unwrap();
        (attachment, pool, sender)
    }

    #[test]
    fn an_item_outside_the_staging_area_is_an_error_before_anything_is_looked_up() {
        let (attachment, _pool, _sender) = attachment();
        let part = |buffer| Item {
            kind: ItemKind::Part as u32,
            buffer,
            len: 4,
            ..Item::default()
        };
        assert!(attachment.hold(0, &part(BUFFERS - 1)).is_ok());
        for buffer in [BUFFERS, u32::MAX] {
            assert!(attachment.hold(0, &part(buffer)).is_err());
        }
    }

    #[test]
    fn a_consumer_that_holds_more_than_half_of_the_ring_has_used_up_its_share() {
        let (attachment, _pool, mut sender) = attachment();
        sender.set_share(BUFFERS);
        let part = Item {
            kind: ItemKind::Part as u32,
            len: 1,
            ..Item::default()
        };
        let mut copies = Vec::new();
        let mut held = Vec::new();
        for _ in 0..attachment.receiver.capacity() {
            sender.publish(part).unwrap();
            let (seq, item) = attachment.receiver.try_next().unwrap().unwrap();
            let slice = attachment.hold(seq, &item).unwrap();
            copies.push(attachment.is_beyond_share(&slice));
            held.push(slice);
        }
        // An item counts as held already when its own slice asks.
        assert_eq!(copies, [false, false, false, false, true, true, true, true]);
    }
}
