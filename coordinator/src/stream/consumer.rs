//! One rank of a job, as its stream sees it: its items that wait to be published, and its items that are published and
//! not yet released.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use coprep_protocol::id_set;
use coprep_protocol::item::{ENDS_BATCH, ENDS_EPOCH, LEFT_OUT, SKIPPED, StallSplit, WANTS_SERVER};
use coprep_protocol::message::{Reply, SampleError, Skipped};
use coprep_scheduler::{Delivery, JobId};
use coprep_shared_memory::handover::{Bell, Full, Item, ItemKind, Sender};
use coprep_shared_memory::staging::Lease;
use roaring::RoaringBitmap;

use crate::connection::reply_queue::ReplyQueue;
use crate::device::GpuKey;
use crate::device::ring::{Ring, RingPlace};
use crate::observe::stalls::StallClock;
use crate::stream::batch::PendingBatch;
use crate::stream::pace::Pace;

/// Something to tell a consumer. The order of the queue is the order of telling.
pub(crate) enum Pending {
    /// A slice of a minibatch, once it is prepared.
    Part {
        batch: Arc<PendingBatch>,
        delivery: Delivery,
    },
    /// The consumer has been given all of its epoch.
    EpochEnd { epoch: u64 },
    /// The sample of this slot failed. Told only when its minibatch is done, so that the order of several errors does
    /// not depend on timing.
    Error {
        batch: Arc<PendingBatch>,
        slot: u32,
        failed: FailureNotice,
    },
    /// Samples are left out of its epochs. Told at once, before anything that waits for a minibatch.
    Skipped {
        ids: RoaringBitmap,
        example: Box<SampleError>,
    },
    /// The stream wants a fork server. Told at once, too.
    WantsServer,
}

/// The notice that a consumer gets of a sample that failed in one of its batches.
pub(crate) enum FailureNotice {
    /// The consumer is told an error.
    Raised {
        /// The number for which the sample was drawn.
        number: u32,
        error: Arc<SampleError>,
        /// `true` if its text was queued for the socket.
        is_told: bool,
    },
    /// The consumer is told the number, because the job skips the sample. A client that attaches again presents the
    /// number with the batch.
    LeftOut { number: u32 },
}

/// A published item that the consumer has not taken.
struct Untaken {
    what: Pending,
    /// `true` if it belongs to an epoch that was left. The consumer skips it, and nobody waits for it.
    is_void: bool,
    /// The buffer of a ring that the item names, if it names one.
    in_ring: Option<Lease>,
}

/// The GPU of a consumer.
pub(super) struct ConsumerGpu {
    pub(super) key: GpuKey,
    /// `true` if it shares uploads.
    pub(super) is_shared: bool,
    /// Number of the ring that it has mapped last.
    pub(super) mapped: Option<u32>,
}

/// The buffer of an item that a consumer has taken.
enum HeldBuffer {
    Staging(Lease),
    Ring(Lease),
}

/// The buffer that an item is to name.
enum ItemBuffer {
    /// The staging buffer. A consumer with a GPU copies it by itself.
    Staging,
    Ring(Lease),
    /// It will be in a ring, or the consumer has to release buffers of the ring first.
    NotYet,
}

/// Buffers of a ring that a consumer may be handed at a time: as many as it copies ahead.
const MOST_OF_RING: usize = 2;
/// Number of minibatches that a consumer will be handed soon, and which are copied to a ring ahead: those that it may be
/// handed, and as many behind them.
const SOON: usize = 2 * MOST_OF_RING;

/// The point at which a rank leaves an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftAt {
    pub(crate) epoch: u64,
    /// Number of batches that it was given of the epoch.
    pub(crate) batches: u64,
}

/// One rank of a job.
pub(crate) struct Consumer {
    pub(crate) pid: u32,
    pub(crate) reply_queue: Arc<ReplyQueue>,
    pub(crate) sender: Sender,
    /// The bell that `sender` rings. Kept for as long as the consumer is here.
    _bell: Bell,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) last_taken: Instant,
    /// Time from which on something that it could take has been unread.
    unread_since: Option<Instant>,
    /// Moving average of the time for which it leaves something unread.
    usually_unread: Duration,
    pub(super) pace: Pace,
    /// The point at which it asked to leave its epoch, while it waits for the other ranks to ask.
    pub(crate) leaves: Option<LeftAt>,
    /// Items that are published and not taken, in order. The first is item `next_taken`.
    published: VecDeque<Untaken>,
    next_taken: u64,
    /// Buffers of the items that are taken and not released, by item.
    held: BTreeMap<u64, HeldBuffer>,
    next_seq: u64,
    /// Time when it attached, until something is begun for it.
    came: Option<Instant>,
    /// Time from attaching until something was begun for it.
    idle: Duration,
    /// The stall clock when it was last given something to take.
    stall_clock: StallClock,
    /// Number of samples that were taken back and will be handed over again. They were counted the first time.
    counted: u64,
    /// The GPU that its batches go to, if they go to one.
    pub(super) gpu: Option<ConsumerGpu>,
    /// The minibatch that it was handed last in a ring.
    last_of_ring: Option<u64>,
    /// `true` if it iterates an epoch.
    pub(super) is_in_pass: bool,
    /// `true` if a fork server that it gives stays between its epochs.
    pub(super) is_persistent: bool,
    /// `true` if it was asked for a fork server and has not answered.
    pub(super) was_asked_for_server: bool,
    /// `true` if it cannot give a fork server.
    pub(super) gives_no_server: bool,
    /// [`Client::is_unproven`](crate::stream::Client::is_unproven) of its client.
    pub(super) is_unproven: Arc<AtomicBool>,
}

/// The actions of a consumer since the last call.
#[derive(Default)]
pub(crate) struct ConsumerProgress {
    /// Number of deliveries that it took.
    pub(crate) deliveries: u32,
    /// `true` if it was told that a sample failed, and has not yet taken the part that holds its slot.
    pub(crate) told: bool,
    /// `true` if it took something.
    pub(crate) took: bool,
    /// `true` if it took or released something.
    pub(crate) any: bool,
}

/// Bounds of the time after which a consumer counts as absent while others lack buffers. It is absent if it leaves an
/// item unread for three times as long as it usually does, and at least for the first of these. The second one bounds
/// the time that is taken to be usual.
const UNREAD_LIMITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(1));

impl Consumer {
    pub(crate) fn new(pid: u32, reply_queue: Arc<ReplyQueue>, sender: Sender, bell: Bell) -> Self {
        let now = Instant::now();
        Consumer {
            pid,
            reply_queue,
            sender,
            _bell: bell,
            pending: VecDeque::new(),
            last_taken: now,
            unread_since: None,
            usually_unread: Duration::ZERO,
            pace: Pace::default(),
            leaves: None,
            published: VecDeque::new(),
            next_taken: 0,
            held: BTreeMap::new(),
            next_seq: 0,
            came: Some(now),
            idle: Duration::ZERO,
            stall_clock: StallClock::default(),
            counted: 0,
            gpu: None,
            last_of_ring: None,
            is_in_pass: false,
            is_persistent: false,
            was_asked_for_server: false,
            gives_no_server: false,
            is_unproven: Arc::default(),
        }
    }

    /// Records that a slice of a minibatch will be for this consumer.
    pub(crate) fn expect(
        &mut self,
        batch: Arc<PendingBatch>,
        delivery: Delivery,
        stall_clock: &StallClock,
    ) {
        if let Some(came) = self.came.take() {
            (self.idle, self.stall_clock) = (came.elapsed(), *stall_clock);
        }
        self.pace.assign(delivery.len);
        self.pending.push_back(Pending::Part { batch, delivery });
    }

    /// Returns how the time since the last minibatch was divided.
    fn shares(&mut self, stall_clock: &StallClock) -> StallSplit {
        let before = std::mem::replace(&mut self.stall_clock, *stall_clock);
        stall_clock.since(&before, std::mem::take(&mut self.idle))
    }

    /// Returns `true` if [`flush`](Self::flush) would publish a minibatch.
    pub(crate) fn has_ready(&self, last_epoch: u64) -> bool {
        self.pending
            .front()
            .is_some_and(|next| !next.is_later_than(last_epoch) && ready(next).is_some())
    }

    /// Returns the epoch of the first part that it has still to take, or `None` if nothing is assigned to it.
    pub(crate) fn oldest_epoch(&self) -> Option<u64> {
        let published = self.published.iter().filter(|item| !item.is_void);
        let untaken = published.map(|item| &item.what).chain(&self.pending);
        untaken.filter_map(Pending::epoch).next()
    }

    /// Returns the sequence number of the next item that will be published.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Returns the staging buffers of the batches that it has taken and not released.
    fn buffers_taken(&self) -> BTreeSet<u32> {
        let staging = |held: &HeldBuffer| match held {
            HeldBuffer::Staging(lease) => Some(lease.buffer()),
            HeldBuffer::Ring(_) => None,
        };
        self.held.values().filter_map(staging).collect()
    }

    /// Returns the buffers of rings that it was handed and has not released.
    fn ring_buffers(&self) -> BTreeSet<u32> {
        let taken = self.held.values().filter_map(|held| match held {
            HeldBuffer::Ring(lease) => Some(lease),
            HeldBuffer::Staging(_) => None,
        });
        let untaken = self
            .published
            .iter()
            .filter_map(|item| item.in_ring.as_ref());
        taken.chain(untaken).map(Lease::buffer).collect()
    }

    /// Returns the number of the ring that it has mapped, if it has one.
    pub(super) fn mapped_ring(&self) -> Option<u32> {
        self.gpu.as_ref()?.mapped
    }

    /// Returns the minibatches that it has still to be handed, in their order, once for each part.
    pub(super) fn minibatches(&self) -> impl Iterator<Item = &Arc<PendingBatch>> {
        self.pending.iter().filter_map(|pending| match pending {
            Pending::Part { batch, .. } => Some(batch),
            _ => None,
        })
    }

    /// Returns those that it could be handed now, if they were in a ring.
    pub(super) fn minibatches_in_reach(&self) -> impl Iterator<Item = &Arc<PendingBatch>> {
        let room = MOST_OF_RING.saturating_sub(self.ring_buffers().len());
        // It has the buffer of the last one, of which further parts may come.
        let last = self.last_of_ring;
        let others = self.minibatches_once();
        others
            .filter(move |batch| Some(batch.number) != last)
            .take(room)
    }

    /// Returns those that it will be handed soon.
    pub(super) fn minibatches_soon(&self) -> impl Iterator<Item = &Arc<PendingBatch>> {
        self.minibatches_once().take(SOON)
    }

    /// Returns the minibatches that it has still to be handed, each once. Parts of one follow each other.
    fn minibatches_once(&self) -> impl Iterator<Item = &Arc<PendingBatch>> {
        let mut before = None;
        self.minibatches()
            .filter(move |batch| before.replace(batch.number) != Some(batch.number))
    }

    /// Returns the buffer that the item of a minibatch is to name.
    fn place(&self, pending: &Pending, ring: Option<&Ring>) -> ItemBuffer {
        let (Some(ring), Pending::Part { batch, .. }) = (ring, pending) else {
            return ItemBuffer::Staging;
        };
        if batch.done().is_none_or(|done| done.slots == 0) {
            return ItemBuffer::Staging;
        }
        let held = self.ring_buffers();
        let has_room = held.len() < MOST_OF_RING;
        match ring.place(batch.number) {
            RingPlace::Ready(lease) if has_room || held.contains(&lease.buffer()) => {
                ItemBuffer::Ring(lease)
            }
            // All buffers of the ring are in use by others. One that was prepared after the ring was filled may yet
            // come into it: whoever prepared it begins the next round.
            RingPlace::Absent if has_room => ItemBuffer::Staging,
            _ => ItemBuffer::NotYet,
        }
    }

    /// Returns the number of buffers that it would hold even if everything else were taken back.
    pub(crate) fn buffers_in_hand(&self) -> u32 {
        self.buffers_taken().len() as u32
    }

    /// Returns the number of staging buffers that it keeps from being reused.
    pub(crate) fn buffers_held(&self) -> u32 {
        let untaken = self.published.iter().filter_map(|item| item.what.buffer());
        let mut buffers = self.buffers_taken();
        buffers.extend(untaken);
        buffers.len() as u32
    }

    /// Reads from the consumer's page which items it took and released.
    ///
    /// # Errors
    /// When the consumer wrote a value there that makes no sense, so that its session must end.
    pub(crate) fn poll(&mut self) -> coprep_shared_memory::Result<ConsumerProgress> {
        // The releases are read first. A consumer may take an item and release it between the two reads. If the takes
        // were read first, the release would be of an item that is not known to be held, and the buffer would stay
        // held.
        let mut released = Vec::new();
        self.sender.poll_released(|seq| released.push(seq))?;
        let taken = self.sender.taken()?;
        let mut progress = self.note_taken(taken);
        progress.any |= !released.is_empty();
        for seq in released {
            self.held.remove(&seq);
        }
        Ok(progress)
    }

    /// Records that the consumer took all items before `taken`.
    fn note_taken(&mut self, taken: u64) -> ConsumerProgress {
        let mut progress = ConsumerProgress::default();
        for seq in self.next_taken..taken {
            (progress.took, progress.any) = (true, true);
            let Some(item) = self.published.pop_front() else {
                continue;
            };
            let Untaken {
                what,
                is_void,
                in_ring,
            } = item;
            // Only the last item counts: a part taken after an error is the delivery that the error belongs to.
            progress.told = matches!(what, Pending::Error { .. }) && !is_void;
            if !is_void {
                self.pace.take(what.epoch(), Instant::now());
            }
            if let Pending::Part { batch, .. } = what {
                progress.deliveries += u32::from(!is_void);
                let staging = || batch.done().map(|done| done.lease.clone());
                let held = match in_ring {
                    Some(lease) => Some(HeldBuffer::Ring(lease)),
                    None => staging().map(HeldBuffer::Staging),
                };
                self.held.extend(held.map(|held| (seq, held)));
            }
        }
        if progress.took {
            self.next_taken = taken;
            self.note_reading();
        }
        progress
    }

    fn note_reading(&mut self) {
        let now = Instant::now();
        self.last_taken = now;
        let next = (!self.published.is_empty()).then_some(now);
        if let Some(since) = std::mem::replace(&mut self.unread_since, next) {
            // A long pause must not count as usual.
            let unread = now.duration_since(since).min(UNREAD_LIMITS.1);
            self.usually_unread = (self.usually_unread * 7 + unread) / 8;
        }
    }

    /// Returns `true` if it sleeps until it is given something. A consumer that says so and leaves something unread
    /// does not sleep.
    pub(crate) fn waits(&self) -> bool {
        self.published.is_empty() && self.sender.is_waiting()
    }

    /// Returns `true` if it has taken all that was handed over, and waits, or soon will, for a minibatch in
    /// preparation.
    pub(crate) fn lacks_a_minibatch(&self) -> bool {
        let next = self.pending.front();
        self.published.iter().all(|item| item.is_void)
            && next.is_some_and(|next| ready(next).is_none())
    }

    /// Returns how much longer something may lie unread until the consumer counts as absent, or `None` if nothing lies
    /// unread.
    pub(crate) fn time_until_absent(&self) -> Option<Duration> {
        let unread = self.unread_since?.elapsed();
        let limit = (self.usually_unread * 3).clamp(UNREAD_LIMITS.0, UNREAD_LIMITS.1 * 3);
        Some(limit.saturating_sub(unread))
    }

    /// Takes back all items that are published and not taken, and puts them first in `pending`. Returns the progress
    /// that the consumer made before that.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub(crate) fn take_back(&mut self) -> coprep_shared_memory::Result<ConsumerProgress> {
        let first = self.sender.take_back()?;
        let progress = self.note_taken(first);
        // The shared count has moved past these items, so they come again under new numbers.
        self.next_taken = self.next_seq;
        self.unread_since = None;
        let mut skipped = Vec::new();
        for Untaken { what, is_void, .. } in self.published.drain(..).rev() {
            match what {
                // Notices of skipped samples stay before everything else.
                Pending::Skipped { ids, example } if !is_void => skipped.push((ids, example)),
                // Another consumer is asked instead of one that does not read.
                Pending::WantsServer => {}
                what if !is_void => {
                    self.counted += what.samples();
                    self.pending.push_front(what);
                }
                _ => {}
            }
        }
        for (ids, example) in skipped {
            self.insert_skipped(&ids, &example);
        }
        Ok(progress)
    }

    /// Lets `epoch` go on with everything that is assigned to it and not taken. None of that is published.
    pub(crate) fn go_on_in(&mut self, epoch: u64) {
        self.pending
            .retain(|pending| !matches!(pending, Pending::EpochEnd { .. }));
        for pending in &mut self.pending {
            if let Pending::Part { delivery, .. } = pending {
                delivery.epoch = epoch;
            }
        }
    }

    /// Answers a rank that asked to leave its epoch.
    pub(crate) fn tell_restarted(&mut self, restarted: &Reply) {
        self.leaves = None;
        // A rank that is never answered would wait in vain. After a hang-up it attaches again.
        if self.reply_queue.post(restarted).is_err() {
            self.reply_queue.hang_up();
        }
    }

    /// Drops the last `deliveries` pending deliveries of `job`, with all errors that were to be told of them.
    pub(crate) fn void_last(&mut self, deliveries: u32, job: JobId) {
        let mut left = deliveries;
        let goes = |last: &Pending, left: u32| match last {
            Pending::Part { .. } | Pending::EpochEnd { .. } => left > 0,
            // An error stands before its part, so it goes with it.
            Pending::Error { .. } => true,
            // These notices belong to no delivery.
            Pending::Skipped { .. } | Pending::WantsServer => false,
        };
        while let Some(last) = self.pending.pop_back_if(|last| goes(last, left)) {
            if let Pending::Part { batch, delivery } = last {
                left -= 1;
                self.pace.void(delivery.len);
                batch.one_delivery_less();
                batch.remove_target(job);
            }
        }
    }

    /// Publishes all items that are ready, in order, up to the end of `last_epoch`. Minibatches lie in `ring` if the
    /// consumer has mapped one that is open. Returns the number of samples handed over.
    ///
    /// # Errors
    /// [`Full`], which would be a defect: the ring is only given an item after it was found to have room.
    pub(crate) fn flush(
        &mut self,
        stall_clock: &StallClock,
        last_epoch: u64,
        ring: Option<&Ring>,
    ) -> Result<u64, Full> {
        let mut samples = 0;
        while let Some(next) = self.pending.front() {
            if next.is_later_than(last_epoch) || self.sender.is_full() {
                break;
            }
            let Some(mut item) = ready(next) else {
                break;
            };
            let in_ring = match self.place(next, ring) {
                ItemBuffer::Staging => None,
                ItemBuffer::Ring(lease) => Some(lease),
                ItemBuffer::NotYet => break,
            };
            if let (Some(ring), Some(lease)) = (ring, &in_ring) {
                (item.pool, item.buffer) = (ring.pool(), lease.buffer());
            }
            if !self.is_announced() {
                break;
            }
            if item.kind == ItemKind::Part as u32 {
                item.tag = self.shares(stall_clock).pack();
                samples += u64::from(item.len);
            }
            let seq = self.sender.publish(item)?;
            self.next_seq = seq + 1;
            self.unread_since.get_or_insert_with(Instant::now);
            let what = self.pending.pop_front();
            if let (Some(_), Some(Pending::Part { batch, .. })) = (&in_ring, &what) {
                self.last_of_ring = Some(batch.number);
            }
            self.published.extend(what.map(|what| Untaken {
                what,
                is_void: false,
                in_ring,
            }));
        }
        // Samples that come again after they were taken back were counted the first time.
        let again = samples.min(self.counted);
        self.counted -= again;
        Ok(samples - again)
    }

    /// Queues the text of a notice for the socket before its item is published. The text of an error is queued only
    /// once, even if the item was taken back. Returns `false` if the client has left too much unread to queue more. The
    /// notice and the items behind it are then published when there is room.
    fn is_announced(&mut self) -> bool {
        match self.pending.front_mut() {
            Some(Pending::Error {
                failed: FailureNotice::Raised { error, is_told, .. },
                ..
            }) => {
                *is_told = *is_told || self.reply_queue.queue_error(error);
                *is_told
            }
            Some(Pending::Skipped { ids, example }) => {
                let skipped = Skipped {
                    ids: id_set::serialize(ids),
                    example: (**example).clone(),
                };
                self.reply_queue
                    .queue_reply(&Reply::Skipped(Box::new(skipped)))
            }
            _ => true,
        }
    }

    /// Puts a notice of skipped samples before everything else. If one is still unpublished, it takes in the new
    /// samples, so that any number of them wait as one.
    pub(crate) fn insert_skipped(&mut self, ids: &RoaringBitmap, example: &SampleError) {
        if let Some(Pending::Skipped { ids: known, .. }) = self.pending.front_mut() {
            *known |= ids;
            return;
        }
        self.pending.push_front(Pending::Skipped {
            ids: ids.clone(),
            example: Box::new(example.clone()),
        });
    }

    /// Asks it for a fork server.
    pub(super) fn ask_for_server(&mut self) {
        self.was_asked_for_server = true;
        if !matches!(self.pending.front(), Some(Pending::WantsServer)) {
            self.pending.push_front(Pending::WantsServer);
        }
    }

    /// Records that it does not iterate `epoch` any more.
    pub(super) fn leave_pass(&mut self, epoch: u64) {
        // The message may be late, and another epoch may have begun.
        self.is_in_pass &= self.pace.epoch().is_some_and(|own| own > epoch);
    }

    /// Puts an error before the part of `batch` that holds `slot`, behind errors of earlier slots. Returns `false` if
    /// this consumer has no such part.
    pub(crate) fn insert_error(
        &mut self,
        batch: &Arc<PendingBatch>,
        slot: u32,
        failed: FailureNotice,
    ) -> bool {
        let holds = |p: &Pending| match p {
            Pending::Part {
                batch: b,
                delivery: d,
            } => Arc::ptr_eq(b, batch) && (d.start..d.start + d.len).contains(&slot),
            _ => false,
        };
        let Some(mut at) = self.pending.iter().position(holds) else {
            return false;
        };
        let is_later =
            |p: &Pending| matches!(p, Pending::Error { slot: other, .. } if *other > slot);
        while at > 0 && is_later(&self.pending[at - 1]) {
            at -= 1;
        }
        let told = Pending::Error {
            batch: batch.clone(),
            slot,
            failed,
        };
        self.pending.insert(at, told);
        true
    }

    /// Forgets everything that is not yet published, except notices of skipped samples. Items that are published and
    /// not taken become void.
    pub(crate) fn void(&mut self) {
        self.pending.retain(|pending| {
            if let Pending::Part { batch, .. } = pending {
                batch.one_delivery_less();
            }
            matches!(pending, Pending::Skipped { .. })
        });
        self.published
            .iter_mut()
            .for_each(|item| item.is_void = true);
        self.unread_since = None;
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.void();
    }
}

impl Pending {
    /// Returns the epoch of a part, or `None` for anything else.
    fn epoch(&self) -> Option<u64> {
        match self {
            Pending::Part { delivery, .. } => Some(delivery.epoch),
            _ => None,
        }
    }

    fn is_later_than(&self, epoch: u64) -> bool {
        self.epoch().is_some_and(|own| own > epoch)
    }

    /// Returns the number of samples that a part hands over.
    fn samples(&self) -> u64 {
        match self {
            Pending::Part { batch, delivery } => batch.done().map_or(0, |done| {
                u64::from(done.without_gaps(delivery.start, delivery.len).1)
            }),
            _ => 0,
        }
    }

    /// Returns the staging buffer of a part, or `None` for anything else.
    fn buffer(&self) -> Option<u32> {
        match self {
            Pending::Part { batch, .. } => Some(batch.buffer),
            _ => None,
        }
    }
}

/// Returns the item to publish, or `None` while its minibatch is being prepared.
fn ready(pending: &Pending) -> Option<Item> {
    match pending {
        Pending::Part { batch, delivery } => {
            let done = batch.done()?;
            let (start, len) = done.without_gaps(delivery.start, delivery.len);
            let flags = u32::from(delivery.ends_batch) * ENDS_BATCH
                + u32::from(delivery.ends_epoch) * ENDS_EPOCH;
            let item = Item {
                kind: ItemKind::Part as u32,
                buffer: batch.buffer,
                start,
                len,
                flags,
                pool: 0,
                epoch: delivery.epoch,
                tag: 0,
            };
            Some(item)
        }
        Pending::EpochEnd { epoch } => Some(notice(ItemKind::EpochEnd, *epoch, 0)),
        Pending::Error { batch, failed, .. } => {
            batch.done()?;
            Some(match failed {
                FailureNotice::Raised { number, error, .. } => Item {
                    start: *number,
                    ..notice(ItemKind::Error, 0, error.tag)
                },
                FailureNotice::LeftOut { number } => Item {
                    start: *number,
                    flags: LEFT_OUT,
                    ..notice(ItemKind::Error, 0, 0)
                },
            })
        }
        Pending::Skipped { example, .. } => {
            let item = Item {
                flags: SKIPPED,
                ..notice(ItemKind::Error, 0, example.tag)
            };
            Some(item)
        }
        Pending::WantsServer => {
            let item = Item {
                flags: WANTS_SERVER,
                ..notice(ItemKind::Error, 0, 0)
            };
            Some(item)
        }
    }
}

fn notice(kind: ItemKind, epoch: u64, tag: u64) -> Item {
    Item {
        kind: kind as u32,
        buffer: 0,
        start: 0,
        len: 0,
        flags: 0,
        pool: 0,
        epoch,
        tag,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;

    use coprep_protocol::gpu_batch::GpuBatchLayout;
    use coprep_protocol::spec::{Dtype, Field};
    use coprep_shared_memory::handover::{Doorbell, Receiver};
    use coprep_shared_memory::staging::{Layout, StagingPool};

    use super::*;
    use crate::connection::reply_queue::ReplyWriter;
    use crate::device::ring::{RingParts, RingRequest};

    /// Both ends of a hand-over.
    struct HandOver {
        sender: Sender,
        bell: Bell,
        receiver: Receiver,
        doorbell: Doorbell,
    }

    impl HandOver {
        fn new() -> Self {
            let doorbell = Doorbell::new().unwrap();
            let mut sender = Sender::create(8).unwrap();
            let (deliver, reply) = sender.fds().unwrap();
            let bell = doorbell.bell().unwrap();
            let receiver = Receiver::open(deliver, reply, bell.fd().unwrap()).unwrap();
            HandOver {
                sender,
                bell,
                receiver,
                doorbell,
            }
        }
    }

    /// A consumer, and the other ends of its connection.
    struct Connected {
        consumer: Consumer,
        receiver: Receiver,
        _ends: (UnixStream, ReplyWriter, Doorbell),
    }

    impl Connected {
        fn new() -> Self {
            let (socket, client) = UnixStream::pair().unwrap();
            let writer = ReplyWriter::start().unwrap();
            let reply_queue = ReplyQueue::new(&socket, &writer).unwrap();
            let of = HandOver::new();
            Connected {
                consumer: Consumer::new(0, reply_queue, of.sender, of.bell),
                receiver: of.receiver,
                _ends: (client, writer, of.doorbell),
            }
        }
    }

    fn minibatch(pool: &StagingPool, number: u64) -> Option<Arc<PendingBatch>> {
        let (slots, unfinished) = pool.allocate()?.split(1);
        let batch = Arc::new(PendingBatch::new(number, Vec::new(), 1, 1, unfinished));
        drop(slots);
        batch.finish();
        Some(batch)
    }

    fn whole() -> Delivery {
        Delivery {
            job: JobId(0),
            rank: 0,
            epoch: 0,
            start: 0,
            len: 1,
            ends_batch: true,
            ends_epoch: false,
        }
    }

    #[test]
    fn a_batch_that_is_released_as_soon_as_it_is_taken_keeps_no_buffer() {
        let pool = StagingPool::create(Layout::new(&[8], 1, 4).unwrap()).unwrap();
        let mut connected = Connected::new();
        let (consumer, receiver) = (&mut connected.consumer, &connected.receiver);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if let Some((seq, _)) = receiver.try_next().unwrap() {
                        receiver.release(seq).unwrap();
                    }
                }
            });
            for _ in 0..2_000_000 {
                if let Some(batch) = minibatch(&pool, 0) {
                    consumer.expect(batch, whole(), &StallClock::default());
                }
                let flushed = consumer.flush(&StallClock::default(), 0, None);
                assert!(flushed.is_ok() && consumer.poll().is_ok());
            }
            while !consumer.published.is_empty() {
                assert!(consumer.poll().is_ok());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(consumer.poll().is_ok());
        assert_eq!((consumer.buffers_held(), pool.free()), (0, 4));
    }

    /// A ring of four buffers of one sample, and the end of its uploader.
    fn ring() -> (Ring, Receiver, Doorbell) {
        let labels = Field {
            name: "label".into(),
            dtype: Dtype::I64,
            shape: Vec::new(),
        };
        let of_uploader = HandOver::new();
        let ring = Ring::new(RingParts {
            pool: 1,
            ids: StagingPool::create(Layout::new(&[8], 1, 4).unwrap()).unwrap(),
            id_fields: vec![0],
            layout: GpuBatchLayout::new(&[labels], 1).unwrap(),
            sender: of_uploader.sender,
            _bell: of_uploader.bell,
        });
        (ring, of_uploader.receiver, of_uploader.doorbell)
    }

    /// Begins to copy a minibatch to a ring, if a buffer is free there.
    fn copy(ring: &mut Ring, batch: &PendingBatch) {
        let request = RingRequest {
            minibatch: batch.number,
            staging: &batch.done().unwrap().lease,
            slots: 1,
        };
        ring.copy_ahead(&[request], 4, Instant::now());
    }

    /// Ends the copies that an uploader was asked for.
    fn end_copies(ring: &mut Ring, uploader: &Receiver) {
        while let Some((seq, _)) = uploader.try_next().unwrap() {
            uploader.release(seq).unwrap();
        }
        assert!(ring.poll(Instant::now()).unwrap());
    }

    #[test]
    fn a_consumer_that_takes_nothing_is_handed_two_buffers_of_a_ring() {
        let (mut ring, uploader, _doorbell) = ring();
        let pool = StagingPool::create(Layout::new(&[8], 1, 8).unwrap()).unwrap();
        let mut connected = Connected::new();
        let consumer = &mut connected.consumer;
        for number in 0..4 {
            let batch = minibatch(&pool, number).unwrap();
            copy(&mut ring, &batch);
            consumer.expect(batch, whole(), &StallClock::default());
        }
        end_copies(&mut ring, &uploader);
        let flush = |consumer: &mut Consumer| {
            let flushed = consumer.flush(&StallClock::default(), 0, Some(&ring));
            assert!(flushed.is_ok() && consumer.poll().is_ok());
            (consumer.ring_buffers().len(), consumer.pending.len())
        };
        // All four lie in the ring.
        assert_eq!(flush(consumer), (MOST_OF_RING, 2));
        assert_eq!(flush(consumer), (MOST_OF_RING, 2));
        let (seq, item) = connected.receiver.try_next().unwrap().unwrap();
        assert_eq!(item.pool, 1);
        assert_eq!(flush(consumer), (MOST_OF_RING, 2), "it holds what it took");
        connected.receiver.release(seq).unwrap();
        assert!(consumer.poll().is_ok());
        assert_eq!(flush(consumer), (MOST_OF_RING, 1));
    }

    #[test]
    fn a_minibatch_that_is_prepared_as_the_ring_is_filled_waits_for_the_next_round() {
        let (mut ring, uploader, _doorbell) = ring();
        let pool = StagingPool::create(Layout::new(&[8], 1, 8).unwrap()).unwrap();
        let mut connected = Connected::new();
        let consumer = &mut connected.consumer;
        let batch = minibatch(&pool, 7).unwrap();
        consumer.expect(batch.clone(), whole(), &StallClock::default());
        let handed_pool = |consumer: &mut Consumer, ring: &Ring| {
            let flushed = consumer.flush(&StallClock::default(), 0, Some(ring));
            assert!(flushed.is_ok());
            let next = connected.receiver.try_next().unwrap();
            next.map(|(_, item)| item.pool)
        };
        ring.begin_round(BTreeMap::from([(7, false)]));
        assert_eq!(handed_pool(consumer, &ring), None, "no copy of its own");
        ring.begin_round(BTreeMap::from([(7, true)]));
        copy(&mut ring, &batch);
        assert_eq!(handed_pool(consumer, &ring), None, "it is being copied");
        end_copies(&mut ring, &uploader);
        assert_eq!(handed_pool(consumer, &ring), Some(1));
        // The consumer copies one that the ring was offered and did not take.
        let batch = minibatch(&pool, 8).unwrap();
        consumer.expect(batch, whole(), &StallClock::default());
        ring.begin_round(BTreeMap::from([(8, true)]));
        assert_eq!(handed_pool(consumer, &ring), Some(0));
    }
}
