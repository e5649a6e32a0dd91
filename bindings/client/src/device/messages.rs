//! Requests to the upload thread, and its answers.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use coprep_device::{Context, Stream};
use coprep_protocol::gpu_batch::GpuBatchLayout;
use coprep_shared_memory::handover::Item;

use crate::attachment::Attachment;
use crate::device::assembly::UploadedBatch;
use crate::device::conversion::Conversion;
use crate::device::here::Here;
use crate::device::ring::{HeldPart, MappedRing, OfferedRing};
use crate::error::{Error, Result, invalid};

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
    /// The stream that fills arrays, once there are any.
    pub(super) array_stream: OnceLock<Here<Stream>>,
}

impl OpenDevice {
    /// Returns the stream that fills arrays. There is none before the first array.
    pub(super) fn array_stream(&self) -> Result<&Stream> {
        if self.array_stream.get().is_none() {
            let stream = Stream::create(&self.context).map_err(Error::from_lower)?;
            // Another thread may have been first.
            let _ = self.array_stream.set(Here::new(stream));
        }
        let stream = self.array_stream.get().and_then(Here::get);
        stream.ok_or_else(|| invalid("a GPU cannot be used in a process that was forked later"))
    }
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
