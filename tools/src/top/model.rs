//! Computes the content of the screen from two looks at the coordinator. Pure: the coordinator's uptime is the clock.

use coprep_protocol::message::{
    CacheForm, CacheStatus, JobStatus, PoolStatus, Stalls, Status, StreamStatus, Totals,
};

/// The content of the screen. Rates are `None` where there was no earlier look.
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
}

/// The pool of threads, with the worker processes beside it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolRow {
    pub(crate) status: PoolStatus,
    /// Worker processes of user code.
    pub(crate) processes: u32,
    /// Mean number of threads and processes that fetched between the two looks. At the first look, threads at that
    /// moment.
    pub(crate) fetching: f64,
    /// The same for preparing.
    pub(crate) preparing: f64,
    /// Samples per second that threads fetched. Processes do not report their fetches.
    pub(crate) fetched: Option<f64>,
    /// Samples per second that threads and processes prepared.
    pub(crate) prepared: Option<f64>,
}

/// A cache of a dataset.
#[derive(Clone, Debug)]
pub(crate) struct CacheRow {
    /// Name of the cache, unique among the caches of its form.
    pub(crate) name: String,
    pub(crate) status: CacheStatus,
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
    /// Delivered samples per prepared sample, between the two looks.
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
    /// Waits between the two looks, by reason.
    pub(crate) wait: Option<Split>,
    /// Waits since the job came, by reason.
    pub(crate) wait_in_all: Split,
    pub(crate) lag: Lag,
}

/// Shares of wall time for which a job waited, by the thing it lacked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Split {
    pub(crate) fetch: f64,
    pub(crate) prep: f64,
    pub(crate) others: f64,
    /// Share of a wait that still lasts, whose reason is not known yet.
    pub(crate) open: f64,
}

impl Split {
    pub(crate) fn total(&self) -> f64 {
        self.fetch + self.prep + self.others + self.open
    }
}

/// Distance between a job and the furthest job of its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lag {
    pub(crate) samples: u64,
    /// The furthest job; `None` if it is this one.
    pub(crate) behind: Option<u64>,
    /// Samples per second by which the distance grows.
    pub(crate) growth: Option<f64>,
}

impl Overview {
    /// Compares the look `now` with the earlier look `before`, if there was one.
    pub(crate) fn new(before: Option<&Status>, now: &Status) -> Self {
        let since = Since::new(before, now);
        Overview {
            pid: now.pid,
            version: now.version.clone(),
            uptime_s: now.uptime_s,
            pss_bytes: now.pss_bytes,
            pool: pool(since, now),
            caches: now.caches.iter().map(|c| cache(since, now, c)).collect(),
            streams: now.streams.iter().map(|s| stream(since, s)).collect(),
            jobs: now.streams.iter().flat_map(|s| jobs(since, s)).collect(),
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
    /// Returns whether worker processes make its samples.
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
    /// Returns the share of lookups between the two looks that found their sample.
    pub(crate) fn hit_share(&self) -> Option<f64> {
        let (hits, misses) = (self.hits?, self.misses?);
        (hits + misses > 0.0).then(|| hits / (hits + misses))
    }
}

/// An earlier look at the same coordinator, and the seconds since then.
#[derive(Clone, Copy)]
struct Since<'a> {
    status: &'a Status,
    seconds: f64,
}

impl<'a> Since<'a> {
    /// Returns `None` for another coordinator, whose counts started at 0.
    fn new(before: Option<&'a Status>, now: &Status) -> Option<Self> {
        let status = before.filter(|b| b.pid == now.pid)?;
        let seconds = now.uptime_s - status.uptime_s;
        (seconds > 0.0).then_some(Since { status, seconds })
    }

    fn stream(self, id: u64) -> Option<&'a StreamStatus> {
        self.status.streams.iter().find(|s| s.id == id)
    }

    fn job(self, (stream, id): JobKey) -> Option<&'a JobStatus> {
        self.stream(stream)?.jobs.iter().find(|j| j.id == id)
    }

    /// Returns the same cache at the earlier look. Caches have no numbers, so their features tell.
    fn cache(self, now: &CacheStatus) -> Option<&'a CacheStatus> {
        let same = |c: &&CacheStatus| {
            let one = (&c.dataset, c.form, &c.pipeline, &c.policy);
            one == (&now.dataset, now.form, &now.pipeline, &now.policy)
        };
        self.status.caches.iter().find(same)
    }

    /// Returns the growth of a count over all streams whose samples worker processes make. Streams that cache prepared
    /// samples are left out: threads deliver these and count them.
    fn of_code(self, now: &Status, count: fn(&Totals) -> f64) -> f64 {
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
    fn rate(self, before: u64, now: u64) -> Option<f64> {
        Some(now.checked_sub(before)? as f64 / self.seconds)
    }
}

fn pool(since: Option<Since>, now: &Status) -> PoolRow {
    let rate = |count: fn(&PoolStatus) -> u64| {
        since.and_then(|s| s.rate(count(&s.status.pool), count(&now.pool)))
    };
    // Threads report their time together, processes per stream.
    let busy = |threads: fn(&PoolStatus) -> f64, processes: fn(&Totals) -> f64| {
        let since = since?;
        let grown = threads(&now.pool) - threads(&since.status.pool);
        let code = since.of_code(now, processes);
        Some(((grown + code) / since.seconds).max(0.0))
    };
    let made = since.map(|s| s.of_code(now, |t| t.prepared as f64) / s.seconds);
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

fn cache(since: Option<Since>, status: &Status, now: &CacheStatus) -> CacheRow {
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
        since.and_then(|s| s.rate(count(s.cache(now)?), count(now)))
    };
    CacheRow {
        name,
        status: now.clone(),
        hits: rate(|c| c.hits),
        misses: rate(|c| c.misses),
    }
}

fn stream(since: Option<Since>, now: &StreamStatus) -> StreamRow {
    let rate = |count: fn(&StreamStatus) -> u64| {
        since.and_then(|s| s.rate(count(s.stream(now.id)?), count(now)))
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

fn jobs(since: Option<Since>, stream: &StreamStatus) -> impl Iterator<Item = JobRow> {
    let furthest = stream.jobs.iter().max_by_key(|j| position(j));
    stream
        .jobs
        .iter()
        .filter_map(move |j| Some(job(since, stream.id, j, furthest?)))
}

fn job(since: Option<Since>, stream: u64, now: &JobStatus, furthest: &JobStatus) -> JobRow {
    let before = since.and_then(|s| Some((s, s.job((stream, now.id))?)));
    let rate =
        |count: fn(&JobStatus) -> u64| before.and_then(|(s, b)| s.rate(count(b), count(now)));
    let ranks = now.pids.len().max(1) as f64;
    let nothing = Stalls::default();
    JobRow {
        stream,
        status: now.clone(),
        samples: rate(|j| j.delivered),
        batches: rate(|j| j.batches),
        wait: before.map(|(s, b)| split(&b.stalls, &now.stalls, s.seconds * ranks)),
        wait_in_all: split(&nothing, &now.stalls, now.age_s * ranks),
        lag: lag(since, stream, now, furthest),
    }
}

/// Returns the waits between two accounts as shares of `wall` seconds. When a wait ends, its open time gets its
/// reasons, all at once. The reasons are then those of the whole wait, while the time is only that between the
/// accounts.
fn split(before: &Stalls, now: &Stalls, wall: f64) -> Split {
    let grown = |of: fn(&Stalls) -> f64| of(now) - of(before);
    let [fetch, prep, others] = [
        grown(|s| s.fetch_s),
        grown(|s| s.prep_s),
        grown(|s| s.others_s),
    ]
    .map(|s| s.max(0.0));
    let opened = grown(|s| s.open_s);
    let named = fetch + prep + others;
    let open = opened.max(0.0);
    if wall <= 0.0 || named + open <= 0.0 {
        return Split::default();
    }
    // `opened` is negative when a wait has ended, which takes off the time that earlier looks have shown already.
    let share = (named + opened).clamp(0.0, wall) / wall / (named + open);
    Split {
        fetch: fetch * share,
        prep: prep * share,
        others: others * share,
        open: open * share,
    }
}

/// Returns the samples drawn for a job since its first epoch began.
fn position(job: &JobStatus) -> u64 {
    let samples = u64::from(job.samples);
    let drawn = samples.saturating_sub(u64::from(job.need));
    job.epoch.saturating_mul(samples).saturating_add(drawn)
}

/// Returns the distance of a job from the furthest one, and its growth since the earlier look.
fn lag(since: Option<Since>, stream: u64, now: &JobStatus, furthest: &JobStatus) -> Lag {
    let samples = position(furthest).saturating_sub(position(now));
    if samples == 0 {
        return Lag::default();
    }
    let growth = since.and_then(|s| {
        let before = |id| s.job((stream, id)).map(position);
        let lag = before(furthest.id)? as f64 - before(now.id)? as f64;
        Some((samples as f64 - lag) / s.seconds)
    });
    Lag {
        samples,
        behind: Some(furthest.id),
        growth,
    }
}

/// The column by which jobs are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SortBy {
    #[default]
    StreamRow,
    Name,
    Done,
    Rate,
    Wait,
    Lag,
    Held,
    Idle,
}

impl SortBy {
    /// Returns the next column in the cycle.
    pub(crate) fn next(self) -> Self {
        match self {
            SortBy::StreamRow => SortBy::Name,
            SortBy::Name => SortBy::Done,
            SortBy::Done => SortBy::Rate,
            SortBy::Rate => SortBy::Wait,
            SortBy::Wait => SortBy::Lag,
            SortBy::Lag => SortBy::Held,
            SortBy::Held => SortBy::Idle,
            SortBy::Idle => SortBy::StreamRow,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            SortBy::StreamRow => "stream",
            SortBy::Name => "name",
            SortBy::Done => "done",
            SortBy::Rate => "rate",
            SortBy::Wait => "wait",
            SortBy::Lag => "lag",
            SortBy::Held => "held",
            SortBy::Idle => "idle",
        }
    }

    /// Returns whether the greatest come first, unless reversed.
    pub(crate) fn descends(self) -> bool {
        !matches!(self, SortBy::StreamRow | SortBy::Name)
    }

    /// Returns the number by which jobs are sorted in this column.
    fn number(self, job: &JobRow) -> f64 {
        match self {
            SortBy::StreamRow | SortBy::Name => 0.0,
            SortBy::Done => job.done(),
            // Jobs without a rate come behind jobs that stand still.
            SortBy::Rate => job.samples.unwrap_or(-1.0),
            SortBy::Wait => job.wait.map_or(-1.0, |w| w.total()),
            SortBy::Lag => job.lag.samples as f64,
            SortBy::Held => f64::from(job.status.held),
            SortBy::Idle => job.status.idle_s,
        }
    }
}

/// Sorts the jobs. Equal ones stay in the order of their streams and numbers.
pub(crate) fn sort(jobs: &mut [JobRow], by: SortBy, reversed: bool) {
    jobs.sort_by(|a, b| {
        let (first, second) = if by.descends() != reversed {
            (b, a)
        } else {
            (a, b)
        };
        let order = match by {
            SortBy::StreamRow => first.key().cmp(&second.key()),
            SortBy::Name => first.status.name.cmp(&second.status.name),
            _ => by.number(first).total_cmp(&by.number(second)),
        };
        order.then(a.key().cmp(&b.key()))
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use coprep_protocol::message::{CostStatus, FormStatus, SampleCost};

    use super::*;

    pub(crate) fn a_job(id: u64) -> JobStatus {
        JobStatus {
            id,
            name: format!("train_{id}.py"),
            pids: vec![4000 + id as u32],
            batch_size: 64,
            epoch: 2,
            need: 600,
            samples: 1000,
            delivered: 2400,
            queued: 3,
            held: 2,
            skipped: 0,
            idle_s: 0.1,
            batches: 38,
            age_s: 10.0,
            stalls: Stalls::default(),
        }
    }

    pub(crate) fn a_stream(id: u64, jobs: Vec<JobStatus>) -> StreamStatus {
        let slow = |id| SampleCost {
            id,
            path: format!("/data/train/class{id}/a_picture_with_a_long_name_{id:05}.jpg"),
            fetch_s: 0.001,
            decode_s: 0.050,
            fixed_s: 0.0,
            random_s: 0.002,
            cpu_s: 0.052,
        };
        StreamStatus {
            id,
            dataset: "/data/train".into(),
            samples: 1000,
            pipeline: "decode > random_resized_crop 224".into(),
            seed: 7,
            cache: CacheForm::Auto,
            relaxed: false,
            costs: CostStatus {
                measured: 1000,
                mean_s: 0.0024,
                budget_s: Some(0.0051),
                slowest: (1..=8).map(slow).collect(),
                ..CostStatus::default()
            },
            worker_pids: Vec::new(),
            busy_workers: 0,
            differs: Vec::new(),
            notes: Vec::new(),
            slots: 64,
            buffers: 14,
            buffers_free: 12,
            staging_bytes: 256 << 20,
            stalls: Stalls::default(),
            totals: Totals {
                prepared: 1000,
                delivered: 3900,
                ..Totals::default()
            },
            jobs,
        }
    }

    pub(crate) fn a_cache() -> CacheStatus {
        let form = |form, bytes| FormStatus {
            form,
            entries: 10,
            bytes,
        };
        CacheStatus {
            dataset: "/data/train".into(),
            form: CacheForm::Auto,
            pipeline: "decode".into(),
            warmed: false,
            policy: "no-eviction".into(),
            capacity: 1000,
            used: 750,
            entries: 20,
            by_form: vec![form(CacheForm::Encoded, 250), form(CacheForm::Decoded, 500)],
            lambda_s_per_mib: Some(0.001),
            saves_s_per_epoch: Some(1.0),
            hits: 100,
            misses: 50,
            users: 1,
        }
    }

    /// Returns two looks, two seconds apart.
    pub(crate) fn two_looks() -> (Status, Status) {
        let mut now = Status {
            pid: 4711,
            version: "0.1.0".into(),
            uptime_s: 100.0,
            pool: PoolStatus {
                cpus: 2,
                threads: 8,
                fetching: 3,
                preparing: 2,
                to_fetch: 40,
                to_prepare: 5,
                fetched: 1000,
                prepared: 900,
                ..PoolStatus::default()
            },
            pss_bytes: 412 << 20,
            cache_budget: 1 << 30,
            caches: vec![a_cache()],
            streams: vec![
                a_stream(1, vec![a_job(1), a_job(2)]),
                a_stream(2, vec![a_job(1)]),
            ],
        };
        let before = now.clone();
        now.uptime_s += 2.0;
        now.pool.fetch_s += 6.0;
        now.pool.prepare_s += 4.0;
        (before, now)
    }

    fn report((before, now): &(Status, Status)) -> Overview {
        Overview::new(Some(before), now)
    }

    #[test]
    fn rates_are_what_was_counted_per_second_of_the_coordinators_time() {
        let mut looks = two_looks();
        let stream = &mut looks.1.streams[0];
        stream.totals.prepared += 300;
        stream.totals.delivered += 900;
        stream.jobs[1].delivered += 450;
        stream.jobs[1].batches += 7;
        looks.1.caches[0].hits += 30;
        looks.1.caches[0].misses += 10;
        looks.1.pool.fetched += 5;
        looks.1.pool.prepared += 50;
        let report = report(&looks);
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
    fn caches_that_differ_in_what_was_done_before_have_different_names() {
        let mut looks = two_looks();
        assert_eq!(report(&looks).caches[0].name, "/data/train");
        looks.1.caches.push(CacheStatus {
            pipeline: "decode > resize(256)".into(),
            ..a_cache()
        });
        let names: Vec<String> = report(&looks).caches.into_iter().map(|c| c.name).collect();
        assert_eq!(
            names,
            ["/data/train decode", "/data/train decode > resize(256)"]
        );
    }

    #[test]
    fn worker_processes_are_at_work_beside_threads() {
        let mut looks = two_looks();
        for status in [&mut looks.0, &mut looks.1] {
            status.streams[0].worker_pids = vec![1, 2, 3, 4];
            status.streams[1].worker_pids = vec![5];
            // Threads deliver prepared samples from the cache, and count them.
            status.streams[1].cache = CacheForm::Prepared;
        }
        for stream in &mut looks.1.streams {
            stream.totals.fetch_s += 1.0;
            stream.totals.prep_s += 6.0;
            stream.totals.prepared += 500;
        }
        looks.1.pool.prepared += 50;
        let pool = report(&looks).pool;
        assert_eq!(pool.processes, 5);
        assert_eq!((pool.fetching, pool.preparing), (3.5, 5.0));
        assert_eq!(pool.prepared, Some(275.0));
        let first = Overview::new(None, &looks.1).pool;
        assert_eq!(
            (first.fetching, first.preparing, first.prepared),
            (3.0, 2.0, None)
        );
    }

    #[test]
    fn jobs_of_the_same_number_in_two_streams_are_two() {
        let mut looks = two_looks();
        looks.1.streams[1].jobs[0].delivered += 100;
        let report = report(&looks);
        assert_eq!(report.job((1, 1)).unwrap().samples, Some(0.0));
        assert_eq!(report.job((2, 1)).unwrap().samples, Some(50.0));
    }

    #[test]
    fn the_share_factor_is_told_in_all_and_since_the_last_look() {
        let mut looks = two_looks();
        looks.1.streams[0].totals.prepared += 100;
        looks.1.streams[0].totals.delivered += 300;
        let report = report(&looks);
        assert_eq!(report.streams[0].share, Some(4200.0 / 1100.0));
        assert_eq!(report.streams[0].share_now, Some(3.0));
        // Nothing was prepared between the looks.
        assert_eq!(
            (report.streams[1].share, report.streams[1].share_now),
            (Some(3.9), None)
        );
    }

    #[test]
    fn there_are_no_rates_without_an_earlier_look_at_the_same_coordinator() {
        let (before, now) = two_looks();
        let mut other = before.clone();
        other.pid += 1;
        for before in [None, Some(&other), Some(&now)] {
            let report = Overview::new(before, &now);
            assert_eq!(report.jobs[0].samples, None);
            assert_eq!(report.jobs[0].wait, None);
            assert_eq!(report.streams[0].delivered, None);
            assert_eq!(report.caches[0].hit_share(), None);
            // Numbers that need only one look are present.
            assert_eq!(report.streams[0].share, Some(3.9));
        }
    }

    #[test]
    fn what_came_between_the_looks_or_began_anew_has_no_rate() {
        let (mut before, now) = two_looks();
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

    fn stalls(fetch_s: f64, prep_s: f64, others_s: f64, open_s: f64) -> Stalls {
        Stalls {
            fetch_s,
            prep_s,
            others_s,
            open_s,
        }
    }

    fn assert_close(split: Split, [fetch, prep, others, open]: [f64; 4]) {
        let pairs = [
            (split.fetch, fetch),
            (split.prep, prep),
            (split.others, others),
            (split.open, open),
        ];
        assert!(pairs.iter().all(|(a, b)| (a - b).abs() < 1e-9), "{split:?}");
    }

    #[test]
    fn waits_are_shares_of_wall_time() {
        let split = split(
            &stalls(1.0, 1.0, 1.0, 0.0),
            &stalls(1.5, 1.25, 1.0, 0.25),
            2.0,
        );
        assert_close(split, [0.25, 0.125, 0.0, 0.125]);
        assert!((split.total() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_long_wait_is_not_counted_again_when_its_reason_is_known() {
        // Open for 3 s at the last look; over 0.5 s later.
        let over = split(
            &stalls(0.0, 0.0, 0.0, 3.0),
            &stalls(2.8, 0.7, 0.0, 0.0),
            1.0,
        );
        assert_close(over, [0.4, 0.1, 0.0, 0.0]);
    }

    #[test]
    fn the_parts_of_a_wait_never_exceed_the_time_and_add_up() {
        let times = [0.0, 0.3, 1.0, 7.0];
        for (i, a) in times.iter().enumerate() {
            for (b, c) in times.iter().zip(times.iter().cycle().skip(i)) {
                let split = split(&stalls(0.0, 0.0, 0.0, *c), &stalls(*a, *b, *c, *a), 2.0);
                let parts = [split.fetch, split.prep, split.others, split.open];
                assert!(
                    parts.iter().all(|p| *p >= 0.0) && split.total() <= 1.0 + 1e-9,
                    "{split:?}"
                );
                let waited = (a + b + c + a - c).clamp(0.0, 2.0) / 2.0;
                assert!((split.total() - waited).abs() < 1e-9, "{split:?} {waited}");
            }
        }
    }

    #[test]
    fn waits_of_two_ranks_are_shares_of_twice_the_time() {
        let mut looks = two_looks();
        let job = &mut looks.1.streams[0].jobs[0];
        job.pids.push(5000);
        job.stalls = stalls(0.0, 2.0, 0.0, 0.0);
        let report = report(&looks);
        assert_close(report.jobs[0].wait.unwrap(), [0.0, 0.5, 0.0, 0.0]);
        // 10 s, two ranks.
        assert_close(report.jobs[0].wait_in_all, [0.0, 0.1, 0.0, 0.0]);
    }

    #[test]
    fn a_job_lags_by_the_samples_that_the_furthest_was_given_more() {
        let mut looks = two_looks();
        // 2,400 samples in at the first look; now 2,900 and 2,500.
        looks.1.streams[0].jobs[0].need = 100;
        looks.1.streams[0].jobs[1].need = 500;
        let report = report(&looks);
        assert_eq!(report.jobs[0].lag, Lag::default());
        let lag = Lag {
            samples: 400,
            behind: Some(1),
            growth: Some(200.0),
        };
        assert_eq!(report.jobs[1].lag, lag);
        // Another stream's job is not compared with them.
        assert_eq!(report.jobs[2].lag, Lag::default());
    }

    #[test]
    fn an_epoch_more_is_further_than_a_smaller_need() {
        let mut looks = two_looks();
        looks.1.streams[0].jobs[0].epoch = 3;
        looks.1.streams[0].jobs[0].need = 1000;
        looks.1.streams[0].jobs[1].need = 1;
        let report = report(&looks);
        assert_eq!(
            (report.jobs[0].lag.samples, report.jobs[1].lag.samples),
            (0, 1)
        );
    }

    #[test]
    fn the_holder_is_the_job_of_the_stream_with_most_buffers() {
        let mut looks = two_looks();
        looks.1.streams[0].jobs[1].held = 9;
        looks.1.streams[1].jobs[0].held = 0;
        let report = report(&looks);
        assert_eq!(report.holder(1).unwrap().key(), (1, 2));
        assert!(report.holder(2).is_none());
    }

    /// Sorts the jobs by a column, and returns their keys.
    fn order(jobs: &mut [JobRow], by: SortBy, reversed: bool) -> Vec<JobKey> {
        sort(jobs, by, reversed);
        jobs.iter().map(JobRow::key).collect()
    }

    #[test]
    fn jobs_are_sorted_by_each_column_greatest_first_and_the_other_way_round() {
        let mut looks = two_looks();
        let jobs = &mut looks.1.streams[0].jobs;
        (jobs[0].delivered, jobs[1].delivered) = (2500, 2600);
        (jobs[0].need, jobs[1].need) = (500, 400);
        jobs[0].stalls.prep_s = 1.0;
        (jobs[0].held, jobs[1].held) = (1, 5);
        (jobs[0].idle_s, jobs[1].idle_s) = (3.0, 1.0);
        looks.1.streams[1].jobs[0].name = "a.py".into();
        let mut jobs = report(&looks).jobs;
        let (one, two, three) = ((1, 1), (1, 2), (2, 1));
        for (by, expected) in [
            (SortBy::StreamRow, [one, two, three]),
            (SortBy::Name, [three, one, two]),
            (SortBy::Done, [two, one, three]),
            (SortBy::Rate, [two, one, three]),
            (SortBy::Wait, [one, two, three]),
            (SortBy::Lag, [one, two, three]),
            (SortBy::Held, [two, three, one]),
            (SortBy::Idle, [one, two, three]),
        ] {
            assert_eq!(order(&mut jobs, by, false), expected, "{by:?}");
        }
        assert_eq!(order(&mut jobs, SortBy::Held, true), [one, three, two]);
        assert_eq!(order(&mut jobs, SortBy::Name, true), [two, one, three]);
    }

    #[test]
    fn the_sort_key_comes_back_to_where_it_began_after_every_column() {
        let all: Vec<SortBy> = std::iter::successors(Some(SortBy::default()), |by| Some(by.next()))
            .take(8)
            .collect();
        assert_eq!(all[7].next(), all[0]);
        let words: std::collections::BTreeSet<_> = all.iter().map(|by| by.word()).collect();
        assert_eq!(words.len(), 8);
    }
}
