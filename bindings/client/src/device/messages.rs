//! Requests to the upload thread, and its answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::Sender;

use coprep_device::Context;
use coprep_protocol::gpu_batch::GpuBatchLayout;
use coprep_shared_memory::handover::Item;

use crate::attachment::Attachment;
use crate::device::assembly::UploadedBatch;
use crate::device::conversion::Conversion;
use crate::device::ring::{HeldPart, MappedRing, OfferedRing};
use crate::error::Result;

/// The place for an answer of the upload thread.
pub(super) type Answer<T> = Sender<Result<T>>;

/// A request to the upload thread.
pub(super) enum Command {
    /// Pin the staging area of this attachment, in place of that of an earlier one. The first one also begins to use the
    /// GPU.
    Open(Arc<Attachment>, Answer<OpenDevice>),
    /// Map a ring of an uploader. The answer has the reason in words if it cannot be mapped.
    Map(
        Box<OfferedRing>,
        Answer<std::result::Result<Arc<MappedRing>, String>>,
    ),
    /// Copy the part of an item that was taken. The answer has the batch if the part completes it.
    Take(Box<TakenItem>),
    /// Forget the batch whose parts are coming, and all that was copied ahead. Items before this number are of an epoch
    /// that was left.
    Discard(u64),
    /// Answer when all items that were taken are released. Forget the attachment.
    Settle(Answer<()>),
    /// End.
    End,
}

/// An item that was taken.
pub(super) struct TakenItem {
    pub(super) seq: u64,
    pub(super) item: Item,
    pub(super) ends_batch: bool,
    pub(super) slots: HeldPart,
    pub(super) answer: Answer<Option<UploadedBatch>>,
}

/// A GPU that is ready for the batches of an attachment.
pub(crate) struct OpenDevice {
    pub(super) context: Context,
    /// UUID of the GPU, by which jobs and coordinator tell GPUs apart.
    pub(crate) uuid: String,
    pub(super) layout: Arc<GpuBatchLayout>,
    /// `None` if all fields are copied as they are.
    pub(super) conversion: Option<Arc<Conversion>>,
    /// Reason why images are not converted here, although they should be.
    pub(super) why_unconverted: Option<Arc<str>>,
    /// Reason why the staging area is not pinned, and the processor copies everything first.
    pub(crate) why_bounced: Option<String>,
}

/// Counts and a flag that the upload thread publishes at any time.
#[derive(Default)]
pub(super) struct UploadState {
    /// Copies of parts that were begun.
    pub(super) uploads: AtomicU64,
    /// Bytes of these.
    pub(super) bytes: AtomicU64,
    /// Parts that an uploader had copied to the GPU.
    pub(super) shared: AtomicU64,
    /// `true` while it waits for the user's own work on the GPU, which has still to read all buffers.
    pub(super) waits_for_user: AtomicBool,
}
