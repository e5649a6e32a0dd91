//! Shared uploads of a stream: its rings are opened, lost and closed.

use std::sync::{Arc, Weak};

use coprep_protocol::gpu_batch::GpuBatchLayout;
use coprep_protocol::message::{GpuStatus, GpuUse};
use coprep_protocol::spec::{BLOB, INDEX, NUMBER};
use coprep_shared_memory::handover::Sender;
use coprep_shared_memory::staging::{Layout, StagingPool};

use crate::Result;
use crate::device::ring::{Ring, RingParts};
use crate::device::{GpuKey, OpenedRing, RING_BUFFERS, RingOffer, RingOwner, Uploaders};
use crate::error::{from_lower, invalid};
use crate::stream::engine::gpus::{RingMemory, SharedRing};
use crate::stream::{RankId, Stream};

/// A stream, as the uploader of a GPU sees it.
struct StreamOnGpu {
    stream: Weak<Stream>,
    key: GpuKey,
    /// Bytes of the GPU's memory for all rings there.
    budget: u64,
}

impl Stream {
    /// Records the GPU of a consumer. Opens a ring there if this consumer makes one worth its memory.
    ///
    /// # Errors
    /// If the consumer names no GPU.
    pub(crate) fn use_gpu(
        self: &Arc<Self>,
        rank_id: RankId,
        gpu: &GpuUse,
        uploaders: &Uploaders,
        budget: u64,
    ) -> Result<()> {
        let key = GpuKey::of(gpu)?;
        // Samples of no fixed size are collated by each job, and do not come from a buffer of a GPU.
        let is_shared = gpu.is_shared && !self.fields.iter().any(|field| field.name == BLOB);
        if !self.engine().use_gpu(rank_id, key.clone(), is_shared) {
            return Ok(());
        }
        let owner = Arc::new(StreamOnGpu {
            stream: Arc::downgrade(self),
            key: key.clone(),
            budget,
        });
        // No lock is held: a process may be started.
        match uploaders.open(gpu, owner.clone()) {
            Ok(handle) => {
                let unwanted = self.engine().keep_handle(&key, handle);
                drop(unwanted);
            }
            Err(e) => owner.refused(&e.to_string()),
        }
        Ok(())
    }

    /// Records whether a consumer has mapped a ring that it was offered.
    pub(crate) fn ring_mapped(self: &Arc<Self>, rank_id: RankId, pool: u32, is_mapped: bool) {
        let mut engine = self.engine();
        engine.ring_mapped(rank_id, pool, is_mapped);
        self.pump(&mut engine);
    }

    pub(crate) fn gpu_status(&self) -> Vec<GpuStatus> {
        self.engine().gpu_status()
    }

    /// Returns the fields that name samples, by their numbers.
    fn id_fields(&self) -> Vec<usize> {
        let number = |name: &&str| self.fields.iter().position(|field| field.name == **name);
        [INDEX, NUMBER].iter().filter_map(number).collect()
    }

    fn ring_offer(&self, budget: u64) -> Result<RingOffer> {
        if budget == 0 {
            return Err(invalid("the coordinator may take no memory of GPUs")
                .with_remedy("start it with --device-memory, or set COPREP_DEVICE_MEMORY"));
        }
        let mut sender =
            Sender::create(RING_BUFFERS.end().next_power_of_two()).map_err(from_lower)?;
        let (deliver, reply) = sender.fds().map_err(from_lower)?;
        let bell = self.doorbell.bell().map_err(from_lower)?;
        let staging = self.pool.reader_fd().map_err(from_lower)?;
        let layout = self.pool.layout();
        Ok(RingOffer {
            fields: self.fields.clone(),
            slots: layout.slots,
            buffers: layout.buffers,
            budget,
            descriptors: [staging, deliver, reply, bell.fd().map_err(from_lower)?],
            sender,
            bell,
        })
    }

    fn shared_ring(&self, opened: OpenedRing) -> Result<SharedRing> {
        let slots = self.pool.layout().slots;
        let id_fields = self.id_fields();
        let sizes = vec![size_of::<i64>(); id_fields.len()];
        let ids = Layout::new(&sizes, slots, opened.buffers).map_err(from_lower)?;
        let ids = StagingPool::create(ids).map_err(from_lower)?;
        let layout = GpuBatchLayout::new(&self.fields, slots);
        let memory = RingMemory {
            on_gpu: opened.memory,
            ids: ids.reader_fd().map_err(from_lower)?,
            bytes: opened.bytes,
            uploader_pid: opened.uploader_pid,
            why_bounced: opened.why_bounced,
            node: opened.node,
        };
        let parts = RingParts {
            pool: self.next_ring(),
            ids,
            id_fields,
            layout: layout.ok_or_else(|| invalid("a minibatch is larger than memory"))?,
            sender: opened.sender,
            _bell: opened.bell,
        };
        Ok(SharedRing {
            ring: Ring::new(parts),
            memory,
        })
    }
}

impl RingOwner for StreamOnGpu {
    fn offer(&self) -> Result<RingOffer> {
        let stream = self.stream.upgrade();
        let stream = stream.ok_or_else(|| invalid("the stream is closed"))?;
        stream.ring_offer(self.budget)
    }

    fn opened(&self, ring: OpenedRing) {
        let Some(stream) = self.stream.upgrade() else {
            return;
        };
        match stream.shared_ring(ring) {
            Ok(shared) => {
                let mut engine = stream.engine();
                engine.ring_opened(&self.key, shared);
                stream.pump(&mut engine);
            }
            Err(e) => self.refused(&e.to_string()),
        }
    }

    fn lost(&self) {
        if let Some(stream) = self.stream.upgrade() {
            let mut engine = stream.engine();
            engine.ring_lost(&self.key);
            stream.pump(&mut engine);
        }
    }

    fn refused(&self, why: &str) {
        let Some(stream) = self.stream.upgrade() else {
            return;
        };
        let gpu = &self.key.uuid;
        tracing::warn!(
            stream = stream.config.id,
            gpu,
            why,
            "uploads are not shared"
        );
        let mut engine = stream.engine();
        let unwanted = engine.ring_refused(&self.key, why);
        stream.pump(&mut engine);
        drop(engine);
        drop(unwanted);
    }
}
