//! The upload thread.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use coprep_device::{
    Context, Driver, Gpu, PendingWork, StagingSource, Stream, StreamWork, TIMEOUT,
};
use coprep_protocol::gpu_batch::GpuBatchLayout;
use coprep_protocol::item::ENDS_BATCH;
use coprep_shared_memory::handover::{Item, ItemKind};

use crate::attachment::Attachment;
use crate::device::assembly::{Assembly, UploadedPart};
use crate::device::buffers::BufferPool;
use crate::device::conversion::Conversion;
use crate::device::messages::{Answer, Command, OpenDevice, TakenItem, UploadState};
use crate::device::options::DeviceOptions;
use crate::device::ring::{HeldPart, MappedRing, OfferedRing};
use crate::error::{Error, Result, gpu_hangs, invalid, violation};

/// Batches that are copied ahead of the one that is taken.
const AHEAD: usize = 2;
/// Bounds of the sleep between two looks at the GPU. A copy of some megabytes takes 0.1 ms and more.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// The upload thread of a loader.
pub(super) struct UploadThread {
    options: DeviceOptions,
    /// Number of the GPU.
    gpu: u32,
    /// Most samples of a batch.
    samples: u32,
    commands: Receiver<Command>,
    state: Arc<UploadState>,
    device: Option<Device>,
    pool: Option<Arc<BufferPool>>,
    area: Option<Area>,
    /// Number of the item after the last one that was taken, or after those of an epoch that was left.
    next_seq: u64,
    /// Batches on their way. Only the first one has parts that were taken.
    batches: VecDeque<Assembly>,
    /// Items that were taken and are being copied, in the order of the copies.
    copying: VecDeque<Copying>,
    /// An item that was taken and waits for a buffer.
    waiting: Option<Box<TakenItem>>,
    settling: Vec<Answer<()>>,
    /// The error after which nothing more is copied.
    failure: Option<Error>,
}

/// The GPU, as long as the thread lives.
struct Device {
    context: Context,
    stream: Stream,
    conversion: Option<Arc<Conversion>>,
    why_unconverted: Option<Arc<str>>,
}

/// The staging area of an attachment.
struct Area {
    attachment: Arc<Attachment>,
    source: StagingSource,
    layout: Arc<GpuBatchLayout>,
    /// Rings of uploaders, the one that was mapped first before the others.
    rings: Vec<Arc<MappedRing>>,
}

/// An item that is released when its copy has ended.
struct Copying {
    // The copy comes first: dropping it waits for the GPU, and dropping the slots releases them.
    copy: Arc<PendingWork>,
    _slots: HeldPart,
    since: Instant,
}

impl Device {
    fn open(gpu: u32, options: &DeviceOptions) -> Result<Self> {
        let open = || {
            let context = Context::retain(Gpu::at(Driver::load()?, gpu)?)?;
            let stream = Stream::create(&context)?;
            Ok((context, stream))
        };
        let (context, stream) = open().map_err(Error::from_lower)?;
        let loaded = options.images.as_ref();
        let loaded = loaded.map(|images| Conversion::load(&stream, images));
        let (conversion, why) = match loaded.transpose()? {
            None => (None, None),
            Some(Ok(conversion)) => (Some(Arc::new(conversion)), None),
            Some(Err(why)) => (None, Some(why.into())),
        };
        Ok(Device {
            context,
            stream,
            conversion,
            why_unconverted: why,
        })
    }
}

impl UploadThread {
    pub(super) fn new(
        options: DeviceOptions,
        gpu: u32,
        samples: u32,
        commands: Receiver<Command>,
        state: Arc<UploadState>,
    ) -> Self {
        UploadThread {
            options,
            gpu,
            samples,
            commands,
            state,
            device: None,
            pool: None,
            area: None,
            next_seq: 0,
            batches: VecDeque::new(),
            copying: VecDeque::new(),
            waiting: None,
            settling: Vec::new(),
            failure: None,
        }
    }

    pub(super) fn run(mut self) {
        let mut sleep = SHORTEST_SLEEP;
        loop {
            let next = if self.is_idle() {
                self.commands.recv().map_err(RecvTimeoutError::from)
            } else {
                self.commands.recv_timeout(sleep)
            };
            match next {
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(command) => {
                    sleep = SHORTEST_SLEEP;
                    self.obey(command);
                }
                Err(RecvTimeoutError::Timeout) => sleep = (sleep * 2).min(LONGEST_SLEEP),
            }
            self.advance();
        }
    }

    /// Returns `true` if nothing is awaited but a command.
    fn is_idle(&self) -> bool {
        self.copying.is_empty() && self.waiting.is_none()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open(attachment, answer) => {
                let opened = self.open(attachment);
                // Nobody waits for the answer if the loader was closed meanwhile. So it is with the others below.
                let _ = answer.send(opened);
            }
            Command::Map(offered, answer) => {
                let mapped = self.map(*offered);
                let _ = answer.send(mapped);
            }
            Command::Take(taken) => self.waiting = Some(taken),
            Command::Discard(first_seq) => {
                self.forget_all();
                self.next_seq = first_seq;
            }
            Command::Settle(answer) => {
                self.forget_all();
                self.area = None;
                self.settling.push(answer);
            }
            Command::End => {}
        }
    }

    fn advance(&mut self) {
        let advanced = match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => self.step(),
        };
        if let Err(error) = advanced {
            self.fail(error);
        }
        if self.copying.is_empty() {
            for answer in self.settling.drain(..) {
                let _ = answer.send(Ok(()));
            }
        }
    }

    fn step(&mut self) -> Result<()> {
        self.release_copied()?;
        self.answer_taken()?;
        self.copy_ahead()
    }

    fn fail(&mut self, error: Error) {
        if let Some(taken) = self.waiting.take() {
            let _ = taken.answer.send(Err(error.clone()));
        }
        self.batches.clear();
        self.copying.clear();
        self.failure = Some(error);
    }

    fn open(&mut self, attachment: Arc<Attachment>) -> Result<OpenDevice> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.forget_all();
        self.area = None;
        self.next_seq = 0;
        let device = match self.device.take() {
            Some(device) => device,
            None => Device::open(self.gpu, &self.options)?,
        };
        let device = self.device.insert(device);
        let layout = GpuBatchLayout::new(&attachment.fields, self.samples);
        let too_large = || invalid(format!("a batch of {} samples is too large", self.samples));
        let layout = Arc::new(layout.ok_or_else(too_large)?);
        // The fields are the same after a reconnection.
        if self.pool.is_none() {
            self.pool = Some(BufferPool::allocate(&device.context, &layout)?);
        }
        let view = attachment.pinnable().map_err(Error::from_lower)?;
        let source = StagingSource::open(&device.context, view).map_err(Error::from_lower)?;
        let uuid = device.context.gpu().uuid().map_err(Error::from_lower)?;
        let opened = OpenDevice {
            context: device.context.clone(),
            uuid: uuid.to_string(),
            layout: layout.clone(),
            conversion: device.conversion.clone(),
            why_unconverted: device.why_unconverted.clone(),
            why_bounced: source.why_bounced().map(str::to_owned),
            array_stream: OnceLock::new(),
        };
        self.area = Some(Area {
            attachment,
            source,
            layout,
            rings: Vec::new(),
        });
        Ok(opened)
    }

    /// Maps a ring, or returns the reason why it cannot. Without the ring, this thread copies by itself, so that no
    /// failure to map is an error of the job: if the GPU itself has failed, the next copy says so.
    ///
    /// # Errors
    /// If no staging area is open.
    fn map(
        &mut self,
        offered: OfferedRing,
    ) -> Result<std::result::Result<Arc<MappedRing>, String>> {
        let (Some(device), Some(area)) = (&self.device, &mut self.area) else {
            return Err(violation("a ring before the staging area is open"));
        };
        let mapped = match MappedRing::map(&device.context, &area.attachment, offered) {
            Ok(ring) => Arc::new(ring),
            Err(e) => return Ok(Err(e.to_string())),
        };
        area.rings.push(mapped.clone());
        Ok(Ok(mapped))
    }

    /// Releases the items whose copies have ended.
    fn release_copied(&mut self) -> Result<()> {
        while let Some(copying) = self.copying.front() {
            if !copying.copy.is_done().map_err(Error::from_lower)? {
                let waited = copying.since.elapsed();
                return if waited < TIMEOUT {
                    Ok(())
                } else {
                    Err(gpu_hangs(self.gpu, waited))
                };
            }
            self.copying.pop_front();
        }
        Ok(())
    }

    /// Copies the item that was taken, unless that was done ahead or there is no buffer for it yet.
    fn answer_taken(&mut self) -> Result<()> {
        let Some(taken) = &self.waiting else {
            return Ok(());
        };
        let (seq, item, ends_batch) = (taken.seq, taken.item, taken.ends_batch);
        if self.batches.front().and_then(Assembly::next) != Some(seq) {
            self.forget_untaken();
            if !self.copy(seq, &item, ends_batch)? {
                let waits = self.pool.as_ref().is_some_and(|pool| pool.waits_for_user());
                self.state.waits_for_user.store(waits, Relaxed);
                return Ok(());
            }
        }
        self.state.waits_for_user.store(false, Relaxed);
        self.hand_over();
        Ok(())
    }

    /// Answers for the item that waits, whose part is the next one of the first batch.
    fn hand_over(&mut self) {
        let copy = self.batches.front_mut().and_then(Assembly::take);
        let (Some(copy), Some(taken)) = (copy, self.waiting.take()) else {
            return;
        };
        self.next_seq = taken.seq + 1;
        if let Some(area) = &mut self.area {
            area.forget_rings_before(taken.item.pool);
        }
        self.copying.push_back(Copying {
            copy,
            _slots: taken.slots,
            since: Instant::now(),
        });
        let is_taken = self.batches.front().is_some_and(Assembly::is_taken);
        let batch = if is_taken {
            self.batches.pop_front().and_then(Assembly::finish)
        } else {
            None
        };
        let _ = taken.answer.send(Ok(batch));
    }

    /// Forgets all batches, and the item that waits for a buffer. Nobody waits for them any more.
    fn forget_all(&mut self) {
        self.batches.clear();
        self.waiting = None;
    }

    /// Forgets what was copied ahead: the coordinator has taken it back.
    fn forget_untaken(&mut self) {
        self.batches.truncate(1);
        let has_taken = self.batches.front_mut().map(Assembly::forget_untaken);
        if has_taken == Some(false) {
            self.batches.clear();
        }
    }

    /// Copies the next batches that are published.
    fn copy_ahead(&mut self) -> Result<()> {
        let Some(area) = &self.area else {
            return Ok(());
        };
        // A copy ahead could take the buffer that the item waits for.
        if self.waiting.is_some() {
            return Ok(());
        }
        let attachment = area.attachment.clone();
        let untaken = self.batches.iter().find_map(Assembly::next);
        let untaken = untaken.unwrap_or(self.next_seq);
        let last = self.batches.back().and_then(Assembly::last);
        let mut wanted = last.map_or(self.next_seq, |last| last + 1);
        loop {
            // The coordinator has taken back what was copied, or the user's thread has just taken the first item of it.
            // Either way the next item that is taken decides.
            let first = attachment.receiver.peek(0).map(|(seq, _)| seq);
            let Some(first) = first.filter(|&first| first <= untaken) else {
                return Ok(());
            };
            let next = attachment.receiver.peek((wanted - first) as usize);
            let Some((seq, item)) = next.filter(|&(seq, _)| seq == wanted) else {
                return Ok(());
            };
            wanted += 1;
            if item.kind() != Some(ItemKind::Part) {
                continue;
            }
            let is_full = self.batches.len() >= AHEAD && !self.is_next_further_part();
            // An item that was taken back meanwhile may be a mixture of two, or of another batch.
            if is_full
                || !self.area.as_ref().is_some_and(|area| area.has(&item))
                || !self.has_room(&item)
                || !self.copy(seq, &item, item.flags & ENDS_BATCH != 0)?
            {
                return Ok(());
            }
        }
    }

    /// Returns `true` if the last batch lacks parts.
    fn is_next_further_part(&self) -> bool {
        self.batches.back().is_some_and(|batch| !batch.is_whole())
    }

    /// Returns `true` if an item does not make its batch larger than batches are.
    fn has_room(&self, item: &Item) -> bool {
        let last = self.batches.back().filter(|batch| !batch.is_whole());
        let samples = last.map_or(0, Assembly::samples);
        samples.saturating_add(item.len) <= self.samples
    }

    /// Begins to copy an item. Returns `false` if there is no buffer for it.
    fn copy(&mut self, seq: u64, item: &Item, ends_batch: bool) -> Result<bool> {
        if !self.has_room(item) {
            let (most, len) = (self.samples, item.len);
            return Err(violation(format!(
                "{len} samples more for a batch of {most}"
            )));
        }
        let (Some(area), Some(device), Some(pool)) = (&self.area, &self.device, &self.pool) else {
            return Err(violation("an item before the staging area is open"));
        };
        if item.pool != 0 && area.ring(item).is_none() {
            return Err(violation(format!(
                "an item of ring {}, which is not mapped",
                item.pool
            )));
        }
        let is_further_part = self.batches.back().is_some_and(|batch| !batch.is_whole());
        if !is_further_part {
            let Some(buffer) = pool.take()? else {
                return Ok(false);
            };
            self.batches.push_back(Assembly::new(buffer));
        }
        let Some(batch) = self.batches.back_mut() else {
            return Ok(false);
        };
        let samples = batch.samples();
        let copy = area.copy(device, batch, item, samples..samples + item.len);
        let (copy, bytes) = copy.map_err(Error::from_lower)?;
        if item.pool == 0 {
            self.state.uploads.fetch_add(1, Relaxed);
            self.state.bytes.fetch_add(bytes, Relaxed);
        } else {
            self.state.shared.fetch_add(1, Relaxed);
        }
        batch.push(UploadedPart {
            seq,
            samples: item.len,
            ends_batch,
            copy: Arc::new(copy),
        });
        Ok(true)
    }
}

impl Area {
    /// Returns `true` if an item is a part of a batch and inside the area that it names.
    fn has(&self, item: &Item) -> bool {
        self.attachment.has(item) || self.ring(item).is_some_and(|ring| ring.has(item))
    }

    fn ring(&self, item: &Item) -> Option<&Arc<MappedRing>> {
        self.rings.iter().find(|ring| ring.pool == item.pool)
    }

    /// Unmaps earlier rings. Their uploader has ended, and after an item of this ring none of them comes.
    fn forget_rings_before(&mut self, pool: u32) {
        self.rings.retain(|ring| ring.pool >= pool);
    }

    /// Copies the slots of an item to their places in the buffer of a batch. Returns the copies and their bytes.
    fn copy(
        &self,
        device: &Device,
        batch: &Assembly,
        item: &Item,
        samples: std::ops::Range<u32>,
    ) -> coprep_device::Result<(PendingWork, u64)> {
        let mut work = StreamWork::begin(&device.stream)?;
        let mut bytes = 0;
        let slots = item.start..item.start + item.len;
        let ring = self.ring(item);
        for field in self.layout.fields() {
            let to = batch.buffer.part(field.place(samples.clone()))?;
            bytes += to.bytes() as u64;
            match ring {
                Some(_) if to.bytes() == 0 => {}
                Some(ring) => work.copy(&ring.part(item.buffer, field, slots.clone())?, &to)?,
                None => {
                    let view = self.source.view();
                    let from = view.slots(item.buffer, field.number, slots.clone());
                    self.source.upload(&mut work, from, &to)?;
                }
            }
        }
        Ok((work.submit()?, bytes))
    }
}
