//! One attachment to a stream: its mappings, and which slices of its buffers are held.
//!
//! # Locks
//!
//! Each buffer has a lock of its own, over the number of its slices that are held. It is taken when a slice
//! is taken and when one is dropped, by whatever thread, and held for the time of dropping private pages at
//! most; it is never held during a wait. The last slice of a buffer drops the pages *under* the lock, so
//! that nobody is given a slice of the buffer meanwhile.
//!
//! # Release
//!
//! Each slice is an item that is released on its own. The buffer is the coordinator's again when all of
//! them are, and the last one of this process has dropped the pages before its release.
//!
//! When the connection ends, the coordinator takes back all buffers of this consumer. Slices that are still held
//! are copied before ([`Attachment::keep_held`]).

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use coprep_cache::handover::{Item, Receiver};
use coprep_cache::staging::Layout;
use coprep_cache::view::StagingView;
use coprep_protocol::message::Attached;
use coprep_protocol::spec::{Dtype, Field};

use crate::error::{Error, Result};

/// The process that something belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn current() -> Self {
        Owner(std::process::id())
    }

    pub(crate) fn is_here(self) -> bool {
        self == Owner::current()
    }

    /// Fails in a forked child.
    pub(crate) fn check(self) -> Result<()> {
        if self.is_here() {
            Ok(())
        } else {
            Err(Error::Forked { owner: self.0 })
        }
    }
}

/// The shared memory of one attachment. It lives as long as any batch of it.
pub(crate) struct Attachment {
    owner: Owner,
    pub(crate) receiver: Receiver,
    pub(crate) fields: Arc<[Field]>,
    /// Which field has the samples' ids.
    pub(crate) index: usize,
    view: StagingView,
    /// Slices held, by buffer.
    slices: Vec<Mutex<u32>>,
    buffers_held: AtomicU32,
}

impl Attachment {
    /// Maps what the coordinator passed: staging, deliver, reply and doorbell.
    pub(crate) fn open(attached: &Attached, descriptors: Vec<OwnedFd>) -> Result<Arc<Self>> {
        let descriptors: [OwnedFd; 4] = descriptors.try_into().map_err(|d: Vec<OwnedFd>| {
            Error::Misbehaved(format!("{} descriptors instead of 4", d.len()))
        })?;
        let [staging, deliver, reply, doorbell] = descriptors;
        let sizes: Vec<usize> = attached.fields.iter().map(Field::sample_bytes).collect();
        let layout = Layout::new(&sizes, attached.slots, attached.buffers)?;
        Ok(Arc::new(Attachment {
            owner: Owner::current(),
            receiver: Receiver::open(deliver, reply, doorbell)?,
            view: StagingView::open(staging, layout)?,
            index: index_of(&attached.fields)?,
            fields: attached.fields.clone().into(),
            slices: (0..attached.buffers).map(|_| Mutex::new(0)).collect(),
            buffers_held: AtomicU32::new(0),
        }))
    }

    /// Returns whether holding `item` would take more than the share of this consumer: of the buffers, or of the ring,
    /// without whose places nothing more could be published.
    ///
    /// # Errors
    /// When the item is not inside the staging area.
    pub(crate) fn is_share_used_up(&self, item: &Item) -> Result<bool> {
        item.check(self.view.layout())?;
        if self.receiver.held() > self.receiver.capacity() / 2 {
            return Ok(true);
        }
        let one_more = *self.count(item.buffer) == 0;
        Ok(one_more && self.buffers_held.load(Ordering::Relaxed) >= self.receiver.share())
    }

    /// Locks the number of slices of `buffer` that are held. The buffer must have been checked.
    fn count(&self, buffer: u32) -> MutexGuard<'_, u32> {
        // A count is changed in one step, so a panic leaves nothing half done.
        self.slices[buffer as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the slice that item `seq` names.
    ///
    /// # Errors
    /// When the item is not inside the staging area.
    pub(crate) fn hold(self: &Arc<Self>, seq: u64, item: &Item) -> Result<Slice> {
        item.check(self.view.layout())?;
        let mut count = self.count(item.buffer);
        if *count == 0 {
            self.buffers_held.fetch_add(1, Ordering::Relaxed);
        }
        *count += 1;
        drop(count);
        Ok(Slice {
            attachment: self.clone(),
            seq,
            buffer: item.buffer,
            start: item.start,
            len: item.len,
        })
    }

    /// Makes what is held independent of the coordinator, which uses the buffers again once this connection has
    /// ended. Batches of a closed loader stay valid.
    pub(crate) fn keep_held(&self) {
        for buffer in 0..self.slices.len() as u32 {
            // Under the buffer's lock: its last slice may be dropped at this moment, by another thread.
            let count = self.count(buffer);
            if *count > 0 {
                self.view.keep(buffer);
            }
        }
    }

    /// Lets go of one slice. False: its item must not be released.
    fn let_go(&self, buffer: u32) -> bool {
        let mut count = self.count(buffer);
        *count -= 1;
        if *count > 0 {
            return true;
        }
        self.buffers_held.fetch_sub(1, Ordering::Relaxed);
        // Where pages that were written cannot be dropped, the buffer is lost rather than shown stale.
        self.view.drop_private_pages(buffer).is_ok()
    }
}

fn index_of(fields: &[Field]) -> Result<usize> {
    let is_index = |f: &Field| f.name == "index" && f.dtype == Dtype::I64 && f.shape.is_empty();
    fields
        .iter()
        .position(is_index)
        .ok_or_else(|| Error::Misbehaved("its batches have no ids".into()))
}

/// Some slots of a buffer that are held. Dropping it gives them back.
pub(crate) struct Slice {
    attachment: Arc<Attachment>,
    seq: u64,
    buffer: u32,
    start: u32,
    pub(crate) len: u32,
}

impl Slice {
    pub(crate) fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Where a field of these slots lies, and how many bytes.
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

impl Drop for Slice {
    fn drop(&mut self) {
        // A forked child has a copy of what its parent holds: releasing is the parent's.
        if self.attachment.owner.is_here() && self.attachment.let_go(self.buffer) {
            // It is held, so there is no error.
            let _ = self.attachment.receiver.release(self.seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coprep_cache::handover::{Doorbell, ItemKind, Sender};
    use coprep_cache::staging::StagingPool;

    const BUFFERS: u32 = 2;

    /// An attachment to a staging area of two buffers, and the coordinator's side of it.
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
            epoch: 0,
            structure: Vec::new(),
            notes: Vec::new(),
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
        assert!(attachment.is_share_used_up(&part(BUFFERS - 1)).is_ok());
        for buffer in [BUFFERS, u32::MAX] {
            assert!(attachment.is_share_used_up(&part(buffer)).is_err());
            assert!(attachment.hold(0, &part(buffer)).is_err());
        }
    }

    #[test]
    fn who_holds_more_than_half_of_the_ring_has_used_up_its_share() {
        let (attachment, _pool, mut sender) = attachment();
        sender.set_share(BUFFERS);
        let part = Item {
            kind: ItemKind::Part as u32,
            len: 1,
            ..Item::default()
        };
        let mut copies = Vec::new();
        for _ in 0..attachment.receiver.capacity() {
            sender.publish(part).unwrap();
            let (_, item) = attachment.receiver.try_next().unwrap().unwrap();
            copies.push(attachment.is_share_used_up(&item).unwrap());
        }
        // Its own item is held already when it asks.
        assert_eq!(copies, [false, false, false, false, true, true, true, true]);
    }
}
