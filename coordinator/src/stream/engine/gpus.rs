//! The GPUs that a stream's batches go to, and the rings there.
//!
//! A consumer that shares uploads on a GPU is offered the ring that is open there. It is handed items of the ring once it
//! has mapped it. Where no ring is open, and for minibatches that are not in the ring, items name the staging buffer, and
//! the consumer copies it by itself. So nothing has to be switched when a ring comes or goes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use coprep_protocol::message::{GpuStatus, Reply, RingStatus};
use coprep_scheduler::JobId;
use coprep_shared_memory::handover::Account;

use crate::device::ring::{Ring, RingRequest, UploadCounts};
use crate::device::{GpuKey, RingHandle};
use crate::stream::RankId;
use crate::stream::batch::PendingBatch;
use crate::stream::consumer::{Consumer, ConsumerGpu};
use crate::stream::engine::Engine;

/// Consumers of a GPU from which on a ring is worth its memory.
const SHARING_FROM: usize = 2;
/// Most copies under way for consumers that do not need the minibatch yet. A minibatch that is needed waits for these.
const COPIES_AHEAD: usize = 2;
const HANGS: &str = "does not get on: a copy has not ended after 5 s";
const MISBEHAVES: &str = "wrote an invalid value into shared memory";

/// A GPU that batches of the stream go to.
#[derive(Default)]
pub(super) struct StreamGpu {
    state: GpuState,
    /// Keeps the ring open, whatever its state.
    handle: Option<RingHandle>,
    /// Copies of rings that are no more.
    past: UploadCounts,
    /// Reports of consumers that have left.
    gone: Account,
}

#[derive(Default)]
enum GpuState {
    /// Consumers copy by themselves.
    #[default]
    Own,
    Opening,
    Open(Box<SharedRing>),
    /// There is no ring, for this reason.
    Refused(String),
}

/// A ring that is open.
pub(in crate::stream) struct SharedRing {
    pub(in crate::stream) ring: Ring,
    pub(in crate::stream) memory: RingMemory,
}

/// The memory of a ring, as consumers map it.
pub(in crate::stream) struct RingMemory {
    /// Memory of the GPU.
    pub(in crate::stream) on_gpu: OwnedFd,
    /// Memory of the host with the ids.
    pub(in crate::stream) ids: OwnedFd,
    pub(in crate::stream) bytes: u64,
    pub(in crate::stream) uploader_pid: u32,
    pub(in crate::stream) why_bounced: Option<String>,
    pub(in crate::stream) node: Option<u32>,
}

impl SharedRing {
    /// Offers the ring to a consumer. One that cannot be told goes on without it.
    fn offer(&self, consumer: &Consumer) {
        let offer = Reply::Ring {
            pool: self.ring.pool(),
            buffers: self.ring.buffers().0,
            bytes: self.memory.bytes,
        };
        let descriptors = [&self.memory.on_gpu, &self.memory.ids].map(OwnedFd::try_clone);
        let descriptors: std::io::Result<Vec<OwnedFd>> = descriptors.into_iter().collect();
        let told = descriptors.is_ok_and(|descriptors| {
            let posted = consumer.reply_queue.post_with(&offer, descriptors);
            posted.is_ok()
        });
        if !told {
            let pid = consumer.pid;
            tracing::warn!(parent: None, pid, "a job cannot be offered shared uploads");
        }
    }

    fn status(&self, stream: u64) -> RingStatus {
        let (buffers, buffers_free) = self.ring.buffers();
        RingStatus {
            stream,
            uploader_pid: self.memory.uploader_pid,
            buffers,
            buffers_free,
            bytes: self.memory.bytes,
            why_bounced: self.memory.why_bounced.clone(),
            node: self.memory.node,
        }
    }
}

impl StreamGpu {
    fn open(&self) -> Option<&SharedRing> {
        match &self.state {
            GpuState::Open(shared) => Some(shared),
            _ => None,
        }
    }

    fn open_mut(&mut self) -> Option<&mut SharedRing> {
        match &mut self.state {
            GpuState::Open(shared) => Some(shared),
            _ => None,
        }
    }

    /// Puts another state in the place of the present one, and adds up the copies of its ring.
    fn change_to(&mut self, state: GpuState) {
        if let Some(shared) = self.open() {
            let counts = shared.ring.counts();
            self.past.add(counts);
        }
        self.state = state;
    }

    fn counts(&self) -> UploadCounts {
        let mut counts = self.past;
        if let Some(shared) = self.open() {
            counts.add(shared.ring.counts());
        }
        counts
    }

    /// Has the uploader ended, which does not get on with the ring. Consumers go on without it.
    fn give_up_ring(&mut self, why: &'static str) {
        let pid = self.open().map(|shared| shared.memory.uploader_pid);
        if let (Some(pid), Some(handle)) = (pid, &self.handle) {
            handle.kill_process(pid, why);
        }
        self.change_to(GpuState::Opening);
    }
}

impl Engine {
    // Consumers.

    /// Records the GPU of a consumer. Returns `true` if the caller must open a ring there.
    pub(in crate::stream) fn use_gpu(
        &mut self,
        rank_id: RankId,
        key: GpuKey,
        is_shared: bool,
    ) -> bool {
        // A connection has one GPU.
        let consumer = self.consumer(rank_id).filter(|c| c.gpu.is_none());
        let Some(consumer) = consumer else {
            return false;
        };
        consumer.gpu = Some(ConsumerGpu {
            key: key.clone(),
            is_shared,
            mapped: None,
        });
        self.gpus.entry(key.clone()).or_default();
        if self.shares_on_several(rank_id.job) {
            self.scheduler.align_ranks(JobId(rank_id.job));
        }
        is_shared && self.offer_ring(rank_id, &key)
    }

    /// Returns `true` if all ranks of a job share uploads, and not all on one GPU. A minibatch that is assigned to ranks
    /// on several GPUs is copied to each of these.
    fn shares_on_several(&self, job: u64) -> bool {
        let Some(job) = self.jobs.get(&job) else {
            return false;
        };
        let gpus = job.ranks.iter().map(|rank| rank.as_ref()?.gpu.as_ref());
        let keys = gpus.map(|gpu| gpu.filter(|gpu| gpu.is_shared).map(|gpu| &gpu.key));
        let keys: Option<BTreeSet<&GpuKey>> = keys.collect();
        keys.is_some_and(|keys| keys.len() > 1)
    }

    /// Offers a consumer the ring of its GPU, if there is one. Returns `true` if one must be opened.
    fn offer_ring(&mut self, rank_id: RankId, key: &GpuKey) -> bool {
        let sharing = self.sharing(key).count();
        let Some((gpu, consumer)) = self.gpu_and_consumer(rank_id, key) else {
            return false;
        };
        match &gpu.state {
            GpuState::Own if sharing >= SHARING_FROM => {
                gpu.state = GpuState::Opening;
                return true;
            }
            GpuState::Own | GpuState::Opening => {}
            GpuState::Open(shared) => shared.offer(consumer),
            GpuState::Refused(why) => tell_refused(consumer, why),
        }
        false
    }

    fn gpu_and_consumer(
        &mut self,
        rank_id: RankId,
        key: &GpuKey,
    ) -> Option<(&mut StreamGpu, &Consumer)> {
        let job = self.jobs.get(&rank_id.job)?;
        let consumer = job.ranks.get(rank_id.rank as usize)?.as_ref()?;
        Some((self.gpus.get_mut(key)?, consumer))
    }

    /// Returns the consumers that share uploads on a GPU.
    fn sharing<'a>(&'a self, key: &'a GpuKey) -> impl Iterator<Item = &'a Consumer> {
        let consumers = self
            .jobs
            .values()
            .flat_map(|job| job.ranks.iter().flatten());
        consumers.filter(move |consumer| {
            let gpu = consumer.gpu.as_ref();
            gpu.is_some_and(|gpu| gpu.is_shared && gpu.key == *key)
        })
    }

    /// Records whether a consumer has mapped a ring that it was offered.
    pub(in crate::stream) fn ring_mapped(&mut self, rank_id: RankId, pool: u32, is_mapped: bool) {
        let gpu = self.consumer(rank_id).and_then(|c| c.gpu.as_mut());
        if let Some(gpu) = gpu {
            // The ring may have been lost meanwhile. Then no other one has its number.
            gpu.mapped = is_mapped.then_some(pool);
        }
    }

    /// Forgets the GPU of a consumer that leaves. The ring is closed with the last one that shares.
    pub(super) fn leave_gpu(&mut self, consumer: &Consumer) {
        let Some(ConsumerGpu { key, .. }) = &consumer.gpu else {
            return;
        };
        let is_used = self.sharing(key).next().is_some();
        let Some(gpu) = self.gpus.get_mut(key) else {
            return;
        };
        add_uploads(&mut gpu.gone, &consumer.sender.account());
        if !is_used {
            gpu.change_to(GpuState::Own);
            gpu.handle = None;
        }
    }

    // Rings, as their uploader tells.

    /// Keeps the handle of a ring that was asked for. Returns it if no consumer shares any more.
    pub(in crate::stream) fn keep_handle(
        &mut self,
        key: &GpuKey,
        handle: RingHandle,
    ) -> Option<RingHandle> {
        match self.gpus.get_mut(key) {
            Some(gpu) if matches!(gpu.state, GpuState::Opening | GpuState::Open(_)) => {
                gpu.handle.replace(handle)
            }
            _ => Some(handle),
        }
    }

    /// Takes a ring that was opened, and offers it to the consumers that share.
    pub(in crate::stream) fn ring_opened(&mut self, key: &GpuKey, shared: SharedRing) {
        let is_awaited = self.gpus.get(key);
        if !is_awaited.is_some_and(|gpu| matches!(gpu.state, GpuState::Opening)) {
            return;
        }
        self.sharing(key)
            .for_each(|consumer| shared.offer(consumer));
        if let Some(gpu) = self.gpus.get_mut(key) {
            gpu.state = GpuState::Open(Box::new(shared));
        }
    }

    /// Gives up a ring whose uploader has ended. Another one will be opened.
    pub(in crate::stream) fn ring_lost(&mut self, key: &GpuKey) {
        if let Some(gpu) = self.gpus.get_mut(key)
            && matches!(gpu.state, GpuState::Open(_))
        {
            gpu.change_to(GpuState::Opening);
        }
    }

    /// Records that there will be no ring, and tells the consumers that share. Returns the handle that is of no more use.
    pub(in crate::stream) fn ring_refused(
        &mut self,
        key: &GpuKey,
        why: &str,
    ) -> Option<RingHandle> {
        if matches!(self.gpus.get(key)?.state, GpuState::Own) {
            return None;
        }
        self.sharing(key)
            .for_each(|consumer| tell_refused(consumer, why));
        let gpu = self.gpus.get_mut(key)?;
        gpu.change_to(GpuState::Refused(why.to_owned()));
        gpu.handle.take()
    }

    // The round.

    /// Reads which copies have ended. A ring whose uploader does not get on is given up. Returns `true` if something
    /// changed.
    pub(super) fn poll_rings(&mut self, now: Instant) -> bool {
        let mut progress = false;
        for gpu in self.gpus.values_mut() {
            let Some(shared) = gpu.open_mut() else {
                continue;
            };
            match shared.ring.poll(now) {
                Ok(any) => progress |= any,
                Err(violation) => {
                    tracing::warn!(parent: None, error = %violation, "an uploader is ended");
                    gpu.give_up_ring(MISBEHAVES);
                    progress = true;
                    continue;
                }
            }
            if shared.ring.deadline().is_some_and(|end| end <= now) {
                gpu.give_up_ring(HANGS);
                progress = true;
            }
        }
        progress
    }

    /// Begins to copy minibatches: first those that a consumer needs now, for which the ring makes room, and then a few
    /// ahead.
    pub(super) fn fill_rings(&mut self, now: Instant) {
        for gpu in self.gpus.values_mut() {
            let GpuState::Open(shared) = &mut gpu.state else {
                continue;
            };
            let pool = shared.ring.pool();
            let consumers = || {
                let all = self
                    .jobs
                    .values()
                    .flat_map(|job| job.ranks.iter().flatten());
                all.filter(|consumer| consumer.mapped_ring() == Some(pool))
            };
            let wanted = consumers().flat_map(Consumer::minibatches);
            let wanted: BTreeMap<u64, bool> = wanted
                .map(|batch| (batch.number, batch.done().is_some()))
                .collect();
            shared.ring.begin_round(wanted);
            let needed = ready(consumers().flat_map(Consumer::minibatches_in_reach));
            let soon = ready(consumers().flat_map(Consumer::minibatches_soon));
            shared.ring.copy_needed(&needed, &soon, now);
            shared.ring.copy_ahead(&soon, COPIES_AHEAD, now);
        }
    }

    /// Returns when the next copy must have ended, or `None` if none is under way.
    pub(in crate::stream) fn copy_deadline(&self) -> Option<Instant> {
        let open = self.gpus.values().filter_map(StreamGpu::open);
        open.filter_map(|shared| shared.ring.deadline()).min()
    }

    pub(super) fn arm_rings(&self) {
        let open = self.gpus.values().filter_map(StreamGpu::open);
        open.for_each(|shared| shared.ring.arm());
    }

    pub(super) fn disarm_rings(&self) {
        let open = self.gpus.values().filter_map(StreamGpu::open);
        open.for_each(|shared| shared.ring.disarm());
    }

    // Status.

    pub(in crate::stream) fn gpu_status(&self) -> Vec<GpuStatus> {
        let status = |(key, gpu): (&GpuKey, &StreamGpu)| self.status_of(key, gpu);
        self.gpus.iter().map(status).collect()
    }

    fn status_of(&self, key: &GpuKey, gpu: &StreamGpu) -> GpuStatus {
        let all = self
            .jobs
            .values()
            .flat_map(|job| job.ranks.iter().flatten());
        let here = || {
            let is_here = |c: &&Consumer| c.gpu.as_ref().is_some_and(|gpu| gpu.key == *key);
            all.clone().filter(is_here)
        };
        let mut own = gpu.gone;
        here().for_each(|consumer| add_uploads(&mut own, &consumer.sender.account()));
        let shared = gpu.counts();
        GpuStatus {
            uuid: key.uuid.clone(),
            consumers: here().count() as u32,
            sharing: self.sharing(key).count() as u32,
            own_uploads: own.uploads,
            own_bytes: own.upload_bytes,
            wait_s: own.upload_wait_ns as f64 / 1e9,
            shared_uploads: shared.uploads,
            shared_bytes: shared.bytes,
            shared_s: shared.time.as_secs_f64(),
            rings: gpu
                .open()
                .map(|ring| ring.status(self.stream))
                .into_iter()
                .collect(),
            notes: match &gpu.state {
                GpuState::Refused(why) => vec![why.clone()],
                _ => Vec::new(),
            },
        }
    }
}

/// Returns the ring that a consumer has mapped, if it is still open.
pub(super) fn ring_of<'a>(
    gpus: &'a BTreeMap<GpuKey, StreamGpu>,
    consumer: &Consumer,
) -> Option<&'a Ring> {
    let gpu = consumer.gpu.as_ref()?;
    let ring = &gpus.get(&gpu.key)?.open()?.ring;
    (gpu.mapped == Some(ring.pool())).then_some(ring)
}

/// Returns the minibatches that are prepared, each once, in their order.
fn ready<'a>(batches: impl Iterator<Item = &'a Arc<PendingBatch>>) -> Vec<RingRequest<'a>> {
    let mut seen = BTreeSet::new();
    let even = batches.filter(|batch| !batch.has_large());
    let prepared = even.filter_map(|batch| Some((batch.number, batch.done()?)));
    let new = prepared.filter(|(number, done)| done.slots > 0 && seen.insert(*number));
    new.map(|(minibatch, done)| RingRequest {
        minibatch,
        staging: &done.lease,
        slots: done.slots,
    })
    .collect()
}

fn tell_refused(consumer: &Consumer, why: &str) {
    let refused = Reply::NoRing {
        why: why.to_owned(),
    };
    // A consumer that does not hear of it goes on alike, and without a warning.
    let _ = consumer.reply_queue.post(&refused);
}

/// Adds what a consumer reports. It writes these numbers, so the sums must not overflow.
fn add_uploads(sum: &mut Account, account: &Account) {
    let add = |sum: &mut u64, number: u64| *sum = sum.saturating_add(number);
    add(&mut sum.uploads, account.uploads);
    add(&mut sum.upload_bytes, account.upload_bytes);
    add(&mut sum.upload_wait_ns, account.upload_wait_ns);
}
