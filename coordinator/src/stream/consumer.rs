//! One rank of a job, as its stream sees it: what waits to be published, what is published and not yet
//! released.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::handover::{Item, ItemKind, Sender};
use coprep_cache::staging::Lease;
use coprep_protocol::message::SampleError;
use coprep_scheduler::Delivery;

use crate::outbox::Outbox;
use crate::stalls::{Lacks, Shares};
use crate::stream::batch::Batch;

/// Something a consumer will be told, in this order.
pub(crate) enum Pending {
    /// A slice of a minibatch, once it is prepared.
    Part {
        batch: Arc<Batch>,
        delivery: Delivery,
    },
    /// The consumer has been given its epoch.
    EpochEnd { epoch: u64 },
    /// The sample of this slot failed. Told when its minibatch is done: which of several comes first must not depend on
    /// who was quicker.
    Error {
        batch: Arc<Batch>,
        slot: u32,
        error: Arc<SampleError>,
    },
}

/// A published item that the consumer has not released.
struct Published {
    lease: Option<Lease>,
    /// A delivery of the scheduler's, still valid: taking it is reported.
    counts: bool,
}

/// One rank.
pub(crate) struct Consumer {
    pub(crate) pid: u32,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) sender: Sender,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) last_taken: Instant,
    /// It asked to leave its epoch, and waits for the other ranks to ask.
    pub(crate) wants_restart: bool,
    published: BTreeMap<u64, Published>,
    next_taken: u64,
    next_seq: u64,
    /// When it came, as long as nothing was begun for it.
    came: Option<Instant>,
    /// For how long that was.
    idle: Duration,
    /// What had been lacking when it was last given something to take.
    lacks: Lacks,
}

/// What a consumer did since the last look.
#[derive(Default)]
pub(crate) struct Progress {
    /// Deliveries it took.
    pub(crate) deliveries: u32,
    /// Anything at all.
    pub(crate) any: bool,
}

/// The consumer wrote nonsense into its page: its session ends.
pub(crate) struct Misbehaved(pub(crate) String);

const ENDS_BATCH: u32 = 1;
const ENDS_EPOCH: u32 = 2;

impl Consumer {
    pub(crate) fn new(pid: u32, outbox: Arc<Outbox>, sender: Sender) -> Self {
        let now = Instant::now();
        Consumer {
            pid,
            outbox,
            sender,
            pending: VecDeque::new(),
            last_taken: now,
            wants_restart: false,
            published: BTreeMap::new(),
            next_taken: 0,
            next_seq: 0,
            came: Some(now),
            idle: Duration::ZERO,
            lacks: Lacks::default(),
        }
    }

    /// A slice of a minibatch will be for it.
    pub(crate) fn expect(&mut self, batch: Arc<Batch>, delivery: Delivery, lacks: &Lacks) {
        if let Some(came) = self.came.take() {
            (self.idle, self.lacks) = (came.elapsed(), *lacks);
        }
        self.pending.push_back(Pending::Part { batch, delivery });
    }

    /// How the time since the last minibatch was divided.
    fn shares(&mut self, lacks: &Lacks) -> Shares {
        let before = std::mem::replace(&mut self.lacks, *lacks);
        lacks.since(&before, std::mem::take(&mut self.idle))
    }

    /// Whether [`flush`](Self::flush) would publish a minibatch.
    pub(crate) fn has_ready(&self) -> bool {
        self.pending
            .front()
            .is_some_and(|next| ready(next).is_some())
    }

    /// Sequence number of the next item that will be published.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Staging buffers that it keeps from being used again.
    pub(crate) fn buffers_held(&self) -> u32 {
        let leases = self.published.values().filter_map(|p| p.lease.as_ref());
        let buffers: std::collections::BTreeSet<u32> = leases.map(Lease::buffer).collect();
        buffers.len() as u32
    }

    /// Reads the consumer's page: what it took and released.
    pub(crate) fn poll(&mut self) -> Result<Progress, Misbehaved> {
        let taken = self.sender.taken().map_err(|e| Misbehaved(e.to_string()))?;
        let mut progress = Progress::default();
        for seq in self.next_taken..taken {
            let counts = self.published.get(&seq).is_some_and(|p| p.counts);
            progress.deliveries += u32::from(counts);
            progress.any = true;
        }
        if progress.any {
            self.next_taken = taken;
            self.last_taken = Instant::now();
        }
        let published = &mut self.published;
        let released = self.sender.poll_released(|seq| {
            published.remove(&seq);
            progress.any = true;
        });
        released.map_err(|e| Misbehaved(e.to_string()))?;
        Ok(progress)
    }

    /// Publishes what is ready, in order; gives the number of samples handed over.
    pub(crate) fn flush(&mut self, lacks: &Lacks) -> Result<u64, Misbehaved> {
        let mut samples = 0;
        while let Some(next) = self.pending.front() {
            let Some((mut item, lease)) = ready(next) else {
                break;
            };
            if self.sender.is_full() {
                break;
            }
            if !self.is_announced() {
                break;
            }
            if lease.is_some() {
                item.tag = self.shares(lacks).pack();
            }
            let seq = self
                .sender
                .publish(item)
                .map_err(|e| Misbehaved(e.to_string()))?;
            self.next_seq = seq + 1;
            self.published.insert(
                seq,
                Published {
                    counts: lease.is_some(),
                    lease,
                },
            );
            samples += if item.kind == ItemKind::Part as u32 {
                u64::from(item.len)
            } else {
                0
            };
            self.pending.pop_front();
        }
        Ok(samples)
    }

    /// Queues an error's text for the socket before its item is published. Returns `false` if the client has
    /// not read so much that no more is queued: the error, and what follows it, is published when it has.
    fn is_announced(&self) -> bool {
        match self.pending.front() {
            Some(Pending::Error { error, .. }) => self.outbox.tell(error),
            _ => true,
        }
    }

    /// Puts an error before the part of `batch` that holds `slot`, those of earlier slots before it. False: this consumer
    /// has none.
    pub(crate) fn insert_error(
        &mut self,
        batch: &Arc<Batch>,
        slot: u32,
        error: &Arc<SampleError>,
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
            error: error.clone(),
        };
        self.pending.insert(at, told);
        true
    }

    /// Forgets everything that is not yet published; what is published and not taken counts no more.
    pub(crate) fn void(&mut self) {
        for pending in self.pending.drain(..) {
            if let Pending::Part { batch, .. } = pending {
                batch.one_delivery_less();
            }
        }
        self.published.values_mut().for_each(|p| p.counts = false);
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.void();
    }
}

fn ready(pending: &Pending) -> Option<(Item, Option<Lease>)> {
    match pending {
        Pending::Part { batch, delivery } => {
            let done = batch.done()?;
            let (start, len) = done.place(delivery.start, delivery.len);
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
            Some((item, Some(done.lease.clone())))
        }
        Pending::EpochEnd { epoch } => Some((notice(ItemKind::EpochEnd, *epoch, 0), None)),
        Pending::Error { batch, error, .. } => {
            batch.done()?;
            Some((notice(ItemKind::Error, 0, error.tag), None))
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
