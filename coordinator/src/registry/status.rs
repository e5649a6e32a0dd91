//! The status that `coprep status` shows.

use std::sync::{Arc, Weak};

use coprep_protocol::message::{OutageStatus, Status};
use coprep_storage::OutageReport;

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
        streams: registry.stream_status(slow),
        outages: outages(registry),
    }
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

/// Returns this process's proportional share of its memory, or 0 where the kernel does not tell.
fn pss_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Pss:"));
    let kib = line
        .and_then(|l| l.trim().strip_suffix("kB"))
        .and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
