//! The status that `coprep status` shows.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use coprep_protocol::message::{GpuStatus, OutageStatus, Status, StoreStatus};
use coprep_storage::{OutageReport, StoreTraffic};

use crate::caches::DiskTier;
use crate::registry::Registry;

/// Observes a coordinator from within its process, without keeping it alive.
#[derive(Clone)]
pub struct Monitor(Weak<Registry>);

impl Monitor {
    pub(crate) fn of(registry: &Arc<Registry>) -> Self {
        Monitor(Arc::downgrade(registry))
    }

    /// Returns the status that `coprep status` shows, without the memory, which takes the kernel long to sum where
    /// caches are large. Returns `None` if the coordinator has ended.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.0.upgrade().map(|registry| snapshot(&registry, 0))
    }
}

pub(crate) fn status(registry: &Arc<Registry>, slow: u32) -> Status {
    Status {
        pss_bytes: pss_bytes(),
        ..snapshot(registry, slow)
    }
}

fn snapshot(registry: &Arc<Registry>, slow: u32) -> Status {
    let caches = registry.caches();
    Status {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_s: registry.started.elapsed().as_secs_f64(),
        pool: registry.workers.status(),
        pss_bytes: 0,
        cache_budget: registry.settings.cache_budget,
        caches: caches.iter().map(|c| c.status(registry.users(c))).collect(),
        given_way: registry.given_way(),
        disk: registry.disk.as_ref().map(DiskTier::status),
        streams: registry.stream_status(slow),
        stores: stores(registry),
        early_bytes: registry.stores.early_reads().held(),
        outages: outages(registry),
        gpus: gpus(registry),
    }
}

fn stores(registry: &Registry) -> Vec<StoreStatus> {
    let status = |traffic: StoreTraffic| StoreStatus {
        store: traffic.store,
        requests: traffic.requests,
        failed_requests: traffic.failed,
        second_requests: traffic.second,
        received_bytes: traffic.received,
    };
    registry.stores.traffic().into_iter().map(status).collect()
}

fn outages(registry: &Registry) -> Vec<OutageStatus> {
    let patience = registry.stores.patience();
    let status = |outage: OutageReport| OutageStatus {
        store: outage.store,
        lasts_s: outage.lasts.as_secs_f64(),
        last_answer: outage.last_answer,
        next_try_s: outage.next_try.as_secs_f64(),
        waiting: outage.waiting,
        patience_s: patience.as_secs_f64(),
    };
    registry.stores.outages().into_iter().map(status).collect()
}

/// Returns the copies to each GPU, for all streams together.
fn gpus(registry: &Arc<Registry>) -> Vec<GpuStatus> {
    let mut all: BTreeMap<String, GpuStatus> = BTreeMap::new();
    for gpu in registry.streams().iter().flat_map(|s| s.gpu_status()) {
        let sum = all.entry(gpu.uuid.clone()).or_default();
        add_gpu(sum, gpu);
    }
    all.into_values().collect()
}

fn add_gpu(sum: &mut GpuStatus, gpu: GpuStatus) {
    sum.uuid = gpu.uuid;
    sum.consumers += gpu.consumers;
    sum.sharing += gpu.sharing;
    // Clients write these numbers, so the sums must not overflow.
    sum.own_uploads = sum.own_uploads.saturating_add(gpu.own_uploads);
    sum.own_bytes = sum.own_bytes.saturating_add(gpu.own_bytes);
    sum.wait_s += gpu.wait_s;
    sum.shared_uploads += gpu.shared_uploads;
    sum.shared_bytes += gpu.shared_bytes;
    sum.shared_s += gpu.shared_s;
    sum.rings.extend(gpu.rings);
    sum.notes.extend(gpu.notes);
}

/// Returns this process's proportional share of its memory, or 0 where the kernel does not tell.
fn pss_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Pss:"));
    let kib = line
        .and_then(|l| l.trim().strip_suffix("kB"))
        .and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
