//! One ring: memory of the GPU, and the copies of one stream's minibatches to it.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coprep_device::{
    Context, ErrorKind, PendingWork, ShareableMemory, StagingSource, Stream, StreamWork,
};
use coprep_protocol::gpu_batch::GpuBatchLayout;
use coprep_protocol::poll_interval::poll_every;
use coprep_protocol::size::human;
use coprep_protocol::spec::Field;
use coprep_protocol::uploader::OpenRing;
use coprep_shared_memory::handover::{Item, Receiver};
use coprep_shared_memory::staging::Layout;
use coprep_shared_memory::view::PinnableView;

use crate::budget::{Budget, BudgetShare};

/// Longest sleep without a look whether the ring is to be closed.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Bounds of the sleep between two looks at a copy. One of some megabytes takes 0.1 ms and more.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// A ring; see the module.
pub(crate) struct Ring {
    layout: GpuBatchLayout,
    buffers: u32,
    memory: ShareableMemory,
    _share: BudgetShare,
    source: StagingSource,
    stream: Stream,
    receiver: Receiver,
}

/// The reason why a ring is not opened.
pub(crate) enum OpenError {
    /// Others may be.
    Refused(String),
    /// The GPU has failed.
    Failed(String),
}

impl From<coprep_device::Error> for OpenError {
    fn from(error: coprep_device::Error) -> Self {
        match error.kind() {
            ErrorKind::Fault => OpenError::Failed(error.to_string()),
            _ => OpenError::Refused(error.to_string()),
        }
    }
}

impl From<coprep_shared_memory::Error> for OpenError {
    fn from(error: coprep_shared_memory::Error) -> Self {
        OpenError::Refused(error.to_string())
    }
}

/// A copy whose item is released when it has ended.
struct Copying {
    seq: u64,
    work: PendingWork,
}

impl Ring {
    pub(crate) fn open(
        context: &Context,
        budget: &Arc<Budget>,
        request: &OpenRing,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, OpenError> {
        let descriptors: Result<[OwnedFd; 4], _> = descriptors.try_into();
        let [staging, deliver, reply, doorbell] =
            descriptors.map_err(|_| OpenError::Refused("descriptors are missing".to_owned()))?;
        let OpenRing { slots, .. } = *request;
        let layout = GpuBatchLayout::new(&request.fields, slots)
            .ok_or_else(|| OpenError::Refused("a minibatch is larger than memory".to_owned()))?;
        let (buffers, share) = take_buffers(budget, request, layout.bytes())?;
        let sizes: Vec<usize> = request.fields.iter().map(Field::sample_bytes).collect();
        let view = PinnableView::open(&staging, Layout::new(&sizes, slots, request.buffers)?)?;
        Ok(Ring {
            // The memory comes first: it is what may be short.
            memory: ShareableMemory::allocate(context, layout.bytes() * buffers as usize)?,
            source: StagingSource::open(context, view)?,
            stream: Stream::create(context)?,
            receiver: Receiver::open(deliver, reply, doorbell)?,
            layout,
            buffers,
            _share: share,
        })
    }

    pub(crate) fn buffers(&self) -> u32 {
        self.buffers
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.memory.memory().bytes() as u64
    }

    pub(crate) fn why_bounced(&self) -> Option<&str> {
        self.source.why_bounced()
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.descriptor()
    }

    /// Copies minibatches as the coordinator hands them over, until the ring is to be closed.
    ///
    /// # Errors
    /// If the GPU fails, with the reason for people.
    pub(crate) fn copy_until(&self, is_closing: &AtomicBool) -> Result<(), String> {
        let mut copying = VecDeque::new();
        let mut sleep = SHORTEST_SLEEP;
        while !is_closing.load(Ordering::Relaxed) {
            let begun = self.begin_copies(&mut copying)?;
            let ended = self.release_copied(&mut copying)?;
            if begun || ended {
                sleep = SHORTEST_SLEEP;
                continue;
            }
            // An item wakes this thread by itself.
            self.receiver.wait(if copying.is_empty() {
                poll_every(POLL_INTERVAL)
            } else {
                sleep
            });
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
        Ok(())
    }

    /// Begins the copies of all items that are there. Returns `true` if there were any.
    fn begin_copies(&self, copying: &mut VecDeque<Copying>) -> Result<bool, String> {
        let mut any = false;
        while let Some((seq, item)) = self.receiver.try_next().map_err(|e| e.to_string())? {
            let layout = self.source.view().layout();
            item.check(layout).map_err(|e| e.to_string())?;
            let work = self.copy(&item).map_err(|e| e.to_string())?;
            copying.push_back(Copying { seq, work });
            any = true;
        }
        Ok(any)
    }

    fn copy(&self, item: &Item) -> coprep_device::Result<PendingWork> {
        let view = self.source.view();
        let mut work = StreamWork::begin(&self.stream)?;
        let slots = item.start..item.start + item.len;
        let buffer = self.layout.bytes() * item.tag as usize;
        for field in self.layout.fields() {
            let from = view.slots(item.buffer, field.number, slots.clone());
            let place = field.place(slots.clone());
            let place = buffer + place.start..buffer + place.end;
            let to = self.memory.memory().part(place)?;
            self.source.upload(&mut work, from, &to)?;
        }
        work.submit()
    }

    /// Releases the items whose copies have ended. Returns `true` if there were any.
    fn release_copied(&self, copying: &mut VecDeque<Copying>) -> Result<bool, String> {
        let mut any = false;
        // The copies of one stream end in their order, so only the first one is asked.
        while let Some(first) = copying.front() {
            if !first.work.is_done().map_err(|e| e.to_string())? {
                break;
            }
            self.receiver
                .release(first.seq)
                .map_err(|e| e.to_string())?;
            copying.pop_front();
            any = true;
        }
        Ok(any)
    }
}

fn take_buffers(
    budget: &Arc<Budget>,
    request: &OpenRing,
    buffer_bytes: usize,
) -> Result<(u32, BudgetShare), OpenError> {
    let buffer_bytes = buffer_bytes as u64;
    if buffer_bytes == 0 {
        return Err(OpenError::Refused("its samples have no bytes".to_owned()));
    }
    let taken = budget.take(buffer_bytes, request.fewest, request.most);
    taken.ok_or_else(|| {
        OpenError::Refused(format!(
            "a ring needs {} buffers of {}, and {} of the GPU's memory are left for rings: raise --device-memory \
             (COPREP_DEVICE_MEMORY; a twentieth of the GPU at most), or choose smaller batches",
            request.fewest,
            human(buffer_bytes),
            human(budget.left())
        ))
    })
}
