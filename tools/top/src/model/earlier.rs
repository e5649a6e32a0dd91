//! An earlier status of the coordinator, from which rates follow.

use coprep_protocol::message::{
    CacheForm, CacheStatus, DiskCacheStatus, GpuStatus, JobStatus, Status, StreamStatus, Totals,
};

use super::JobKey;

/// An earlier status of the same coordinator, and the seconds since then.
#[derive(Clone, Copy)]
pub(super) struct Earlier<'a> {
    pub(super) status: &'a Status,
    pub(super) seconds: f64,
}

impl<'a> Earlier<'a> {
    /// Returns `None` for another coordinator, whose counts started at 0.
    pub(super) fn new(before: Option<&'a Status>, now: &Status) -> Option<Self> {
        let status = before.filter(|b| b.pid == now.pid)?;
        let seconds = now.uptime_s - status.uptime_s;
        (seconds > 0.0).then_some(Earlier { status, seconds })
    }

    pub(super) fn stream(self, id: u64) -> Option<&'a StreamStatus> {
        self.status.streams.iter().find(|s| s.id == id)
    }

    pub(super) fn job(self, (stream, id): JobKey) -> Option<&'a JobStatus> {
        self.stream(stream)?.jobs.iter().find(|j| j.id == id)
    }

    pub(super) fn gpu(self, uuid: &str) -> Option<&'a GpuStatus> {
        self.status.gpus.iter().find(|g| g.uuid == uuid)
    }

    /// Returns the same cache in the earlier status. Caches have no numbers, so their features tell.
    pub(super) fn cache(self, now: &CacheStatus) -> Option<&'a CacheStatus> {
        let same = |c: &&CacheStatus| {
            let one = (&c.dataset, c.form, &c.pipeline, &c.policy);
            one == (&now.dataset, now.form, &now.pipeline, &now.policy)
        };
        self.status.caches.iter().find(same)
    }

    /// Returns the same dataset's samples on the local disk in the earlier status.
    pub(super) fn disk_cache(self, now: &DiskCacheStatus) -> Option<&'a DiskCacheStatus> {
        let mut caches = self.status.disk.iter().flat_map(|disk| &disk.caches);
        caches.find(|cache| cache.dataset == now.dataset)
    }

    /// Returns the growth of a count over all streams whose samples worker processes make. Streams that cache prepared
    /// samples are left out: threads deliver these and count them.
    pub(super) fn growth_of_user_code(self, now: &Status, count: fn(&Totals) -> f64) -> f64 {
        let made = now
            .streams
            .iter()
            .filter(|s| !s.worker_pids.is_empty() && s.cache != CacheForm::Prepared);
        let grown = |s: &StreamStatus| {
            let before = self
                .stream(s.id)
                .map_or(0.0, |before| count(&before.totals));
            count(&s.totals) - before
        };
        made.map(grown).sum::<f64>().max(0.0)
    }

    /// Returns a rate per second, or `None` for a count that started again.
    pub(super) fn rate(self, before: u64, now: u64) -> Option<f64> {
        Some(now.checked_sub(before)? as f64 / self.seconds)
    }
}
