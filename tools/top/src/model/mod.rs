//! Computes the content of the screen from two statuses of the coordinator. Pure: the coordinator's uptime is the clock.
//!
//! | module | purpose |
//! |---|---|
//! | `earlier` | the earlier status, from which rates follow |
//! | `waits` | the time for which a job waits, by reason |
//! | `lag` | how far a job is behind the furthest job of its stream |
//! | `sort` | the order of the jobs |

mod earlier;
#[cfg(test)]
pub(crate) mod fixtures;
mod lag;
mod sort;
mod waits;

use coprep_protocol::message::{
    CacheForm, CacheStatus, DiskCacheStatus, FormStatus, GpuStatus, JobStatus, OutageStatus,
    PoolStatus, Stalls, Status, StreamStatus, Totals,
};

use earlier::Earlier;
pub(crate) use lag::Lag;
pub(crate) use sort::{SortBy, sort};
pub(crate) use waits::StallShares;

/// The content of the screen. Rates are `None` where there was no earlier status.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overview {
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) uptime_s: f64,
    pub(crate) pss_bytes: u64,
    pub(crate) pool: PoolRow,
    pub(crate) caches: Vec<CacheRow>,
    pub(crate) streams: Vec<StreamRow>,
    /// Jobs of all streams.
    pub(crate) jobs: Vec<JobRow>,
    pub(crate) gpus: Vec<GpuRow>,
    /// Remote stores that do not answer.
    pub(crate) outages: Vec<OutageStatus>,
}

/// A GPU that batches go to, with its rates.
#[derive(Clone, Debug)]
pub(crate) struct GpuRow {
    pub(crate) status: GpuStatus,
    /// Shared uploads per second.
    pub(crate) shared: Option<f64>,
    /// Uploads per second that consumers made for themselves.
    pub(crate) own: Option<f64>,
    /// Bytes per second of both.
    pub(crate) bytes: Option<f64>,
    /// Share of their time that consumers waited for the GPU between the two statuses.
    pub(crate) waiting: Option<f64>,
}

/// The pool of threads, with the worker processes beside it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolRow {
    pub(crate) status: PoolStatus,
    /// Worker processes of user code.
    pub(crate) processes: u32,
    /// Mean number of threads and processes that fetched between the two statuses. In the first status, threads at that
    /// moment.
    pub(crate) fetching: f64,
    /// The same for preparing.
    pub(crate) preparing: f64,
    /// Samples per second that threads fetched. Processes do not report their fetches.
    pub(crate) fetched: Option<f64>,
    /// Samples per second that threads and processes prepared.
    pub(crate) prepared: Option<f64>,
}

/// A cache of a dataset, in memory or on the local disk.
#[derive(Clone, Debug)]
pub(crate) struct CacheRow {
    /// Name of the cache, unique among the caches of its form.
    pub(crate) name: String,
    pub(crate) status: CacheStatus,
    /// `true` if the samples lie on the local disk.
    pub(crate) is_on_disk: bool,
    /// Lookups per second that found their sample.
    pub(crate) hits: Option<f64>,
    /// Lookups per second that did not find it.
    pub(crate) misses: Option<f64>,
}

/// A stream with its rates.
#[derive(Clone, Debug)]
pub(crate) struct StreamRow {
    pub(crate) status: StreamStatus,
    /// Samples prepared per second.
    pub(crate) prepared: Option<f64>,
    /// Samples delivered per second.
    pub(crate) delivered: Option<f64>,
    /// Delivered samples per prepared sample, since the stream was opened.
    pub(crate) share: Option<f64>,
    /// Delivered samples per prepared sample, between the two statuses.
    pub(crate) share_now: Option<f64>,
}

/// A stream's number and a job's number in it. The latter is unique only within the stream.
pub(crate) type JobKey = (u64, u64);

/// A job with its rates.
#[derive(Clone, Debug)]
pub(crate) struct JobRow {
    pub(crate) stream: u64,
    pub(crate) status: JobStatus,
    /// Samples delivered per second.
    pub(crate) samples: Option<f64>,
    /// Batches taken per second by all ranks.
    pub(crate) batches: Option<f64>,
    /// Waits between the two statuses, by reason.
    pub(crate) wait: Option<StallShares>,
    /// Waits since the job came, by reason.
    pub(crate) wait_in_all: StallShares,
    pub(crate) lag: Lag,
}

impl Overview {
    /// Compares the status `now` with the earlier status `before`, if there was one.
    pub(crate) fn new(before: Option<&Status>, now: &Status) -> Self {
        let earlier = Earlier::new(before, now);
        Overview {
            pid: now.pid,
            version: now.version.clone(),
            uptime_s: now.uptime_s,
            pss_bytes: now.pss_bytes,
            pool: pool(earlier, now),
            caches: caches(earlier, now),
            streams: now.streams.iter().map(|s| stream(earlier, s)).collect(),
            jobs: now.streams.iter().flat_map(|s| jobs(earlier, s)).collect(),
            gpus: now.gpus.iter().map(|g| gpu(earlier, g)).collect(),
            outages: now.outages.clone(),
        }
    }

    pub(crate) fn stream(&self, id: u64) -> Option<&StreamRow> {
        self.streams.iter().find(|s| s.status.id == id)
    }

    pub(crate) fn job(&self, key: JobKey) -> Option<&JobRow> {
        self.jobs.iter().find(|j| j.key() == key)
    }

    /// Returns the job that holds most staging buffers of a stream.
    pub(crate) fn holder(&self, stream: u64) -> Option<&JobRow> {
        let holds = |j: &&JobRow| j.stream == stream && j.status.held > 0;
        self.jobs.iter().filter(holds).max_by_key(|j| j.status.held)
    }
}

impl StreamRow {
    /// Returns `true` if worker processes make its samples.
    pub(crate) fn runs_processes(&self) -> bool {
        !self.status.worker_pids.is_empty()
    }
}

impl JobRow {
    pub(crate) fn key(&self) -> JobKey {
        (self.stream, self.status.id)
    }

    /// Returns the share of the job's epoch that was drawn for it.
    pub(crate) fn done(&self) -> f64 {
        let samples = f64::from(self.status.samples.max(1));
        1.0 - (f64::from(self.status.need) / samples).min(1.0)
    }
}

impl CacheRow {
    /// Returns the share of lookups between the two statuses that found their sample.
    pub(crate) fn hit_share(&self) -> Option<f64> {
        let (hits, misses) = (self.hits?, self.misses?);
        (hits + misses > 0.0).then(|| hits / (hits + misses))
    }
}

fn pool(earlier: Option<Earlier>, now: &Status) -> PoolRow {
    let rate = |count: fn(&PoolStatus) -> u64| {
        earlier.and_then(|s| s.rate(count(&s.status.pool), count(&now.pool)))
    };
    // Threads report their time together, processes per stream.
    let busy = |threads: fn(&PoolStatus) -> f64, processes: fn(&Totals) -> f64| {
        let earlier = earlier?;
        let grown = threads(&now.pool) - threads(&earlier.status.pool);
        let code = earlier.growth_of_user_code(now, processes);
        Some(((grown + code) / earlier.seconds).max(0.0))
    };
    let made = earlier.map(|s| s.growth_of_user_code(now, |t| t.prepared as f64) / s.seconds);
    let streams = now.streams.iter();
    PoolRow {
        status: now.pool.clone(),
        processes: streams.map(|s| s.worker_pids.len() as u32).sum(),
        fetching: busy(|p| p.fetch_s, |t| t.fetch_s).unwrap_or(f64::from(now.pool.fetching)),
        preparing: busy(|p| p.prepare_s, |t| t.prep_s).unwrap_or(f64::from(now.pool.preparing)),
        fetched: rate(|p| p.fetched),
        prepared: rate(|p| p.prepared).zip(made).map(|(p, made)| p + made),
    }
}

fn caches(earlier: Option<Earlier>, now: &Status) -> Vec<CacheRow> {
    let in_memory = now.caches.iter().map(|c| cache(earlier, now, c));
    let on_disk = now.disk.iter().flat_map(|disk| &disk.caches);
    in_memory
        .chain(on_disk.map(|c| disk_cache(earlier, c)))
        .collect()
}

/// Returns the row of a dataset's samples on the local disk, which are all encoded.
fn disk_cache(earlier: Option<Earlier>, now: &DiskCacheStatus) -> CacheRow {
    let rate = |count: fn(&DiskCacheStatus) -> u64| {
        earlier.and_then(|s| s.rate(count(s.disk_cache(now)?), count(now)))
    };
    let encoded = FormStatus {
        form: CacheForm::Encoded,
        entries: now.entries,
        bytes: now.used,
    };
    CacheRow {
        name: now.dataset.clone(),
        status: CacheStatus {
            dataset: now.dataset.clone(),
            form: CacheForm::Encoded,
            pipeline: String::new(),
            warmed: false,
            kept: false,
            policy: "no-eviction".into(),
            capacity: now.capacity,
            used: now.used,
            entries: now.entries,
            by_form: vec![encoded],
            lambda_s_per_mib: None,
            saves_s_per_epoch: None,
            hits: now.hits,
            misses: now.misses,
            users: 0,
        },
        is_on_disk: true,
        hits: rate(|c| c.hits),
        misses: rate(|c| c.misses),
    }
}

fn cache(earlier: Option<Earlier>, status: &Status, now: &CacheStatus) -> CacheRow {
    let differs = |c: &CacheStatus| {
        (&c.dataset, c.form) == (&now.dataset, now.form) && c.pipeline != now.pipeline
    };
    // Screens are narrow: show the operators before the cache only where they tell two caches apart.
    let name = if status.caches.iter().any(differs) {
        format!("{} {}", now.dataset, now.pipeline)
    } else {
        now.dataset.clone()
    };
    let rate = |count: fn(&CacheStatus) -> u64| {
        earlier.and_then(|s| s.rate(count(s.cache(now)?), count(now)))
    };
    CacheRow {
        name,
        status: now.clone(),
        is_on_disk: false,
        hits: rate(|c| c.hits),
        misses: rate(|c| c.misses),
    }
}

fn stream(earlier: Option<Earlier>, now: &StreamStatus) -> StreamRow {
    let rate = |count: fn(&StreamStatus) -> u64| {
        earlier.and_then(|s| s.rate(count(s.stream(now.id)?), count(now)))
    };
    let (prepared, delivered) = (rate(|s| s.totals.prepared), rate(|s| s.totals.delivered));
    let share = |delivered: f64, prepared: f64| (prepared > 0.0).then(|| delivered / prepared);
    StreamRow {
        prepared,
        delivered,
        share: share(now.totals.delivered as f64, now.totals.prepared as f64),
        share_now: delivered.zip(prepared).and_then(|(d, p)| share(d, p)),
        status: now.clone(),
    }
}

fn gpu(earlier: Option<Earlier>, now: &GpuStatus) -> GpuRow {
    let before = earlier.and_then(|s| Some((s, s.gpu(&now.uuid)?)));
    let rate =
        |count: fn(&GpuStatus) -> u64| before.and_then(|(s, b)| s.rate(count(b), count(now)));
    let waiting = before.map(|(s, b)| {
        // Each consumer waits by itself, so the time counts once for each.
        let all = s.seconds * f64::from(now.consumers.max(1));
        ((now.wait_s - b.wait_s) / all).clamp(0.0, 1.0)
    });
    GpuRow {
        status: now.clone(),
        shared: rate(|g| g.shared_uploads),
        own: rate(|g| g.own_uploads),
        bytes: rate(|g| g.shared_bytes.saturating_add(g.own_bytes)),
        waiting,
    }
}

fn jobs(earlier: Option<Earlier>, stream: &StreamStatus) -> impl Iterator<Item = JobRow> {
    let furthest = stream.jobs.iter().max_by_key(|j| lag::position(j));
    stream
        .jobs
        .iter()
        .filter_map(move |j| Some(job(earlier, stream.id, j, furthest?)))
}

fn job(earlier: Option<Earlier>, stream: u64, now: &JobStatus, furthest: &JobStatus) -> JobRow {
    let before = earlier.and_then(|s| Some((s, s.job((stream, now.id))?)));
    let rate =
        |count: fn(&JobStatus) -> u64| before.and_then(|(s, b)| s.rate(count(b), count(now)));
    // Waits are sums over the job's ranks, so the time counts once for each.
    let ranks = now.pids.len().max(1) as f64;
    let nothing = Stalls::default();
    JobRow {
        stream,
        status: now.clone(),
        samples: rate(|j| j.delivered),
        batches: rate(|j| j.batches),
        wait: before.map(|(s, b)| waits::stall_shares(&b.stalls, &now.stalls, s.seconds * ranks)),
        wait_in_all: waits::stall_shares(&nothing, &now.stalls, now.age_s * ranks),
        lag: lag::lag(earlier, stream, now, furthest),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use coprep_protocol::message::DiskStatus;

    use super::fixtures::{a_cache, two_statuses};
    use super::*;

    pub(crate) fn overview((before, now): &(Status, Status)) -> Overview {
        Overview::new(Some(before), now)
    }

    #[test]
    fn rates_are_what_was_counted_per_second_of_the_coordinators_time() {
        let mut statuses = two_statuses();
        let stream = &mut statuses.1.streams[0];
        stream.totals.prepared += 300;
        stream.totals.delivered += 900;
        stream.jobs[1].delivered += 450;
        stream.jobs[1].batches += 7;
        statuses.1.caches[0].hits += 30;
        statuses.1.caches[0].misses += 10;
        statuses.1.pool.fetched += 5;
        statuses.1.pool.prepared += 50;
        let report = overview(&statuses);
        assert_eq!(
            (report.streams[0].prepared, report.streams[0].delivered),
            (Some(150.0), Some(450.0))
        );
        assert_eq!(
            (report.jobs[1].samples, report.jobs[1].batches),
            (Some(225.0), Some(3.5))
        );
        assert_eq!(report.jobs[0].samples, Some(0.0));
        assert_eq!(
            (report.caches[0].hits, report.caches[0].misses),
            (Some(15.0), Some(5.0))
        );
        assert_eq!(report.caches[0].hit_share(), Some(0.75));
        assert_eq!(
            (report.pool.fetched, report.pool.prepared),
            (Some(2.5), Some(25.0))
        );
    }

    #[test]
    fn samples_on_the_local_disk_are_a_row_of_their_own() {
        let mut statuses = two_statuses();
        let on_disk = |hits| DiskCacheStatus {
            dataset: "s3://bucket/train".into(),
            capacity: 100,
            used: 40,
            entries: 4,
            hits,
            misses: 10,
            dropped: 0,
        };
        let disk = |hits| DiskStatus {
            caches: vec![on_disk(hits)],
            ..DiskStatus::default()
        };
        (statuses.0.disk, statuses.1.disk) = (Some(disk(10)), Some(disk(30)));
        let row = &overview(&statuses).caches[1];
        assert!(row.is_on_disk && row.name == "s3://bucket/train");
        assert_eq!((row.hits, row.misses), (Some(10.0), Some(0.0)));
        assert_eq!(row.status.by_form[0].bytes, 40);
    }

    #[test]
    fn caches_that_differ_in_what_was_done_before_have_different_names() {
        let mut statuses = two_statuses();
        assert_eq!(overview(&statuses).caches[0].name, "/data/train");
        statuses.1.caches.push(CacheStatus {
            pipeline: "decode > resize(256)".into(),
            ..a_cache()
        });
        let names: Vec<String> = overview(&statuses)
            .caches
            .into_iter()
            .map(|c| c.name)
            .collect();
        assert_eq!(
            names,
            ["/data/train decode", "/data/train decode > resize(256)"]
        );
    }

    #[test]
    fn worker_processes_are_at_work_beside_threads() {
        let mut statuses = two_statuses();
        for status in [&mut statuses.0, &mut statuses.1] {
            status.streams[0].worker_pids = vec![1, 2, 3, 4];
            status.streams[1].worker_pids = vec![5];
            // Threads deliver prepared samples from the cache, and count them.
            status.streams[1].cache = CacheForm::Prepared;
        }
        for stream in &mut statuses.1.streams {
            stream.totals.fetch_s += 1.0;
            stream.totals.prep_s += 6.0;
            stream.totals.prepared += 500;
        }
        statuses.1.pool.prepared += 50;
        let pool = overview(&statuses).pool;
        assert_eq!(pool.processes, 5);
        assert_eq!((pool.fetching, pool.preparing), (3.5, 5.0));
        assert_eq!(pool.prepared, Some(275.0));
        let first = Overview::new(None, &statuses.1).pool;
        assert_eq!(
            (first.fetching, first.preparing, first.prepared),
            (3.0, 2.0, None)
        );
    }

    #[test]
    fn jobs_of_the_same_number_in_two_streams_are_two() {
        let mut statuses = two_statuses();
        statuses.1.streams[1].jobs[0].delivered += 100;
        let report = overview(&statuses);
        assert_eq!(report.job((1, 1)).unwrap().samples, Some(0.0));
        assert_eq!(report.job((2, 1)).unwrap().samples, Some(50.0));
    }

    #[test]
    fn the_share_factor_is_told_in_all_and_since_the_last_status() {
        let mut statuses = two_statuses();
        statuses.1.streams[0].totals.prepared += 100;
        statuses.1.streams[0].totals.delivered += 300;
        let report = overview(&statuses);
        assert_eq!(report.streams[0].share, Some(4200.0 / 1100.0));
        assert_eq!(report.streams[0].share_now, Some(3.0));
        // Nothing was prepared between the statuses.
        assert_eq!(
            (report.streams[1].share, report.streams[1].share_now),
            (Some(3.9), None)
        );
    }

    #[test]
    fn there_are_no_rates_without_an_earlier_look_at_the_same_coordinator() {
        let (before, now) = two_statuses();
        let mut other = before.clone();
        other.pid += 1;
        for before in [None, Some(&other), Some(&now)] {
            let report = Overview::new(before, &now);
            assert_eq!(report.jobs[0].samples, None);
            assert_eq!(report.jobs[0].wait, None);
            assert_eq!(report.streams[0].delivered, None);
            assert_eq!(report.caches[0].hit_share(), None);
            // Numbers that need only one status are present.
            assert_eq!(report.streams[0].share, Some(3.9));
        }
    }

    #[test]
    fn what_came_between_the_statuses_or_began_anew_has_no_rate() {
        let (mut before, now) = two_statuses();
        before.streams[0].jobs.remove(1);
        before.streams[0].jobs[0].delivered += 1;
        before.streams.remove(1);
        let report = Overview::new(Some(&before), &now);
        assert_eq!(
            report.jobs.iter().map(|j| j.samples).collect::<Vec<_>>(),
            [None; 3]
        );
        assert_eq!(report.streams[0].delivered, Some(0.0));
        assert_eq!(report.streams[1].delivered, None);
    }

    #[test]
    fn the_holder_is_the_job_of_the_stream_with_most_buffers() {
        let mut statuses = two_statuses();
        statuses.1.streams[0].jobs[1].held = 9;
        statuses.1.streams[1].jobs[0].held = 0;
        let report = overview(&statuses);
        assert_eq!(report.holder(1).unwrap().key(), (1, 2));
        assert!(report.holder(2).is_none());
    }
}
