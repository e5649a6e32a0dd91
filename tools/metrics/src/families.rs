//! The exported metrics: each name, its meaning and its labels. `docs/reference/metrics.md` has them as a table.
//!
//! There are few labels: numbers of streams and jobs, names that people gave, and words from this file. Samples and
//! their files never appear in them.

use std::collections::BTreeMap;

use coprep_protocol::message::{
    CacheForm, CacheStatus, DiskCacheStatus, DiskStatus, GpuStatus, JobStatus, OutageStatus,
    PoolStatus, Stalls, Status, StoreStatus, StreamStatus,
};

/// Suffix of a counter's name.
pub(super) const TOTAL: &str = "_total";

/// All samples of one metric.
#[derive(Debug)]
pub(super) struct Family {
    /// Name of the metric. A counter's name ends with [`TOTAL`].
    pub(super) name: &'static str,
    /// Help text, without line breaks and backslashes.
    pub(super) help: &'static str,
    /// Samples, each with different labels.
    pub(super) samples: Vec<(Labels, Value)>,
}

/// Names and values of a sample's labels.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A counted or measured number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

impl Family {
    pub(super) fn is_counter(&self) -> bool {
        self.name.ends_with(TOTAL)
    }
}

/// Returns all metrics of a coordinator. Their names do not depend on its state.
pub(super) fn families(status: &Status) -> Vec<Family> {
    let mut all = coordinator(status);
    all.extend(pool(&status.pool));
    all.extend(caches(&status.caches));
    all.extend(disk(status.disk.as_ref()));
    all.extend(streams(&status.streams));
    all.extend(slow_samples(&status.streams));
    all.extend(jobs(&status.streams));
    all.extend(stalls(&status.streams));
    all.extend(gpus(&status.gpus));
    all.extend(stores(&status.stores, &status.outages));
    all
}

fn coordinator(s: &Status) -> Vec<Family> {
    let version = vec![("version", s.version.clone())];
    vec![
        family(
            "coprep_build_info",
            "Version of the coordinator; always 1.",
            vec![(version, 1u32.into())],
        ),
        family(
            "coprep_uptime_seconds",
            "Time since the coordinator began.",
            one(s.uptime_s),
        ),
        family(
            "coprep_cache_budget_bytes",
            "Bytes that all caches may take together.",
            one(s.cache_budget),
        ),
        family(
            "coprep_storage_early_bytes",
            "Bytes of memory of samples that were read when their dataset was opened, and are not used yet.",
            one(s.early_bytes),
        ),
    ]
}

fn pool(p: &PoolStatus) -> Vec<Family> {
    vec![
        family(
            "coprep_pool_cpus",
            "Most threads that decode and run operators at a time.",
            one(p.cpus),
        ),
        family(
            "coprep_pool_threads",
            "Most threads that work at a time; those beyond the processors wait for storage. Reads from a remote store count as \
             threads.",
            one(p.threads),
        ),
        family(
            "coprep_pool_busy_threads",
            "Threads that work now, by stage.",
            by_stage(p.fetching, p.preparing),
        ),
        family(
            "coprep_pool_slow_reads",
            "Reads of datasets whose storage is slow or dead, on threads of their own.",
            one(p.slow_reads),
        ),
        family(
            "coprep_pool_queue_samples",
            "Samples that wait for a thread, by the stage they wait for.",
            by_stage(p.to_fetch, p.to_prepare),
        ),
        family(
            "coprep_pool_samples_total",
            "Samples that went through a stage.",
            by_stage(p.fetched, p.prepared),
        ),
        family(
            "coprep_pool_seconds_total",
            "Thread seconds spent, by stage.",
            by_stage(p.fetch_s, p.prepare_s),
        ),
    ]
}

fn caches(all: &[CacheStatus]) -> Vec<Family> {
    let sum = |value: fn(&CacheStatus) -> Value| {
        merged(all.iter().map(|c| (cached(c), value(c))), Value::plus)
    };
    let by_form = |value: fn(&CacheStatus, NamedForm) -> Value| {
        // Every form has a series from the start, even while it is 0.
        let rows = |c| FORMS.map(|form| (with(cached(c), "form", form.1), value(c, form)));
        merged(all.iter().flat_map(rows), Value::plus)
    };
    let value_of_memory = |value: fn(&CacheStatus) -> Option<f64>, merge: Merge| {
        let valued = |c| Some((cached(c), value(c)?.into()));
        merged(all.iter().filter_map(valued), merge)
    };
    vec![
        family(
            "coprep_cache_capacity_bytes",
            "Bytes reserved for a cache.",
            sum(|c| c.capacity.into()),
        ),
        family(
            "coprep_cache_used_bytes",
            "Bytes that cached samples take, by the form they lie in.",
            by_form(|c, form| held(c, form).1.into()),
        ),
        family(
            "coprep_cache_entries",
            "Samples that are cached, by the form they lie in.",
            by_form(|c, form| held(c, form).0.into()),
        ),
        family(
            "coprep_cache_hits_total",
            "Lookups that found their sample.",
            sum(|c| c.hits.into()),
        ),
        family(
            "coprep_cache_misses_total",
            "Lookups that did not find their sample.",
            sum(|c| c.misses.into()),
        ),
        family(
            "coprep_cache_streams",
            "Streams that use a cache now.",
            sum(|c| c.users.into()),
        ),
        family(
            "coprep_cache_lambda_seconds_per_byte",
            "Where forms are chosen by price: seconds per epoch that a byte must save.",
            value_of_memory(
                |c| Some(c.lambda_s_per_mib? / f64::from(1 << 20)),
                Value::highest,
            ),
        ),
        family(
            "coprep_cache_saved_seconds",
            "Where forms are chosen by price: thread seconds that the cache saves per epoch.",
            value_of_memory(|c| c.saves_s_per_epoch, Value::plus),
        ),
    ]
}

fn disk(disk: Option<&DiskStatus>) -> Vec<Family> {
    let sum = |value: fn(&DiskCacheStatus) -> u64| {
        let all = disk.map_or(&[][..], |disk| &disk.caches);
        let rows = all
            .iter()
            .map(|c| (vec![("dataset", c.dataset.clone())], value(c).into()));
        merged(rows, Value::plus)
    };
    vec![
        family(
            "coprep_disk_budget_bytes",
            "Bytes that samples on the local disk may take together.",
            disk.map_or(Vec::new(), |disk| one(disk.budget)),
        ),
        family(
            "coprep_disk_capacity_bytes",
            "Bytes reserved on the local disk for a dataset.",
            sum(|c| c.capacity),
        ),
        family(
            "coprep_disk_used_bytes",
            "Bytes that samples on the local disk take.",
            sum(|c| c.used),
        ),
        family(
            "coprep_disk_entries",
            "Samples that are on the local disk.",
            sum(|c| c.entries),
        ),
        family(
            "coprep_disk_hits_total",
            "Lookups on the local disk that found their sample.",
            sum(|c| c.hits),
        ),
        family(
            "coprep_disk_misses_total",
            "Lookups on the local disk that did not find their sample.",
            sum(|c| c.misses),
        ),
        family(
            "coprep_disk_dropped_samples_total",
            "Samples on the local disk that were damaged, and are fetched anew.",
            sum(|c| c.dropped),
        ),
    ]
}

fn streams(all: &[StreamStatus]) -> Vec<Family> {
    let of = |value: fn(&StreamStatus) -> Value| -> Vec<(Labels, Value)> {
        all.iter().map(|s| (stream(s), value(s))).collect()
    };
    let described = |s| {
        let labels = with(stream(s), "pipeline", &s.pipeline);
        (with(labels, "order", order(s)), 1u32.into())
    };
    let seconds = |s: &StreamStatus| {
        let labelled = |(stage, value)| (with(stream(s), "stage", stage), Value::from(value));
        [("fetch", s.totals.fetch_s), ("prep", s.totals.prep_s)].map(labelled)
    };
    vec![
        family(
            "coprep_stream_info",
            "Pipeline and order of a stream; always 1.",
            all.iter().map(described).collect(),
        ),
        family(
            "coprep_stream_dataset_samples",
            "Samples of the stream's dataset.",
            of(|s| s.samples.into()),
        ),
        family(
            "coprep_stream_jobs",
            "Jobs that take part.",
            of(|s| (s.jobs.len() as u64).into()),
        ),
        family(
            "coprep_stream_prepared_samples_total",
            "Samples prepared.",
            of(|s| s.totals.prepared.into()),
        ),
        family(
            "coprep_stream_delivered_samples_total",
            "Samples handed to jobs.",
            of(|s| s.totals.delivered.into()),
        ),
        family(
            "coprep_stream_failed_samples_total",
            "Samples that could not be prepared.",
            of(|s| s.totals.failed.into()),
        ),
        family(
            "coprep_stream_fetched_bytes_total",
            "Bytes read from storage.",
            of(|s| s.totals.fetched_bytes.into()),
        ),
        family(
            "coprep_stream_fetched_files_total",
            "Files read from storage.",
            of(|s| s.totals.fetched.into()),
        ),
        family(
            "coprep_stream_seconds_total",
            "Worker seconds spent, by stage.",
            all.iter().flat_map(seconds).collect(),
        ),
        family(
            "coprep_stream_buffers",
            "Staging buffers.",
            of(|s| s.buffers.into()),
        ),
        family(
            "coprep_stream_free_buffers",
            "Staging buffers that nobody fills, awaits or holds.",
            of(|s| s.buffers_free.into()),
        ),
        family(
            "coprep_stream_staging_bytes",
            "Bytes of the staging area.",
            of(|s| s.staging_bytes.into()),
        ),
        family(
            "coprep_stream_block_bytes",
            "Memory of the parts of shards and the row groups that were read for their samples.",
            of(|s| s.block_bytes.into()),
        ),
        family(
            "coprep_stream_worker_processes",
            "Processes that run user code.",
            of(|s| (s.worker_pids.len() as u64).into()),
        ),
    ]
}

fn slow_samples(all: &[StreamStatus]) -> Vec<Family> {
    let of = |value: fn(&StreamStatus) -> Value| -> Vec<(Labels, Value)> {
        all.iter().map(|s| (stream(s), value(s))).collect()
    };
    let budget = |s: &StreamStatus| Some((stream(s), f64::from(s.costs.budget_s?).into()));
    vec![
        family(
            "coprep_stream_measured_samples",
            "Samples whose cost was measured.",
            of(|s| s.costs.measured.into()),
        ),
        family(
            "coprep_stream_mean_sample_seconds",
            "Mean time of the last preparations.",
            of(|s| f64::from(s.costs.mean_s).into()),
        ),
        family(
            "coprep_stream_slow_budget_seconds",
            "Time beyond which a sample counts as slow; absent until enough is known.",
            all.iter().filter_map(budget).collect(),
        ),
        family(
            "coprep_stream_window_minibatches",
            "Minibatches that are drawn ahead because of slow samples.",
            of(|s| s.costs.window.into()),
        ),
        family(
            "coprep_stream_overtaken_samples_total",
            "Slow samples that came in a later minibatch (relaxed order).",
            of(|s| s.costs.overtaken.into()),
        ),
    ]
}

fn jobs(all: &[StreamStatus]) -> Vec<Family> {
    let of = |value: fn(&JobStatus) -> Value| -> Vec<(Labels, Value)> {
        each_job(all).map(|(s, j)| (job(s, j), value(j))).collect()
    };
    vec![
        family(
            "coprep_job_batches_total",
            "Batches that the job's ranks took.",
            of(|j| j.batches.into()),
        ),
        family(
            "coprep_job_delivered_samples_total",
            "Samples handed to the job.",
            of(|j| j.delivered.into()),
        ),
        family(
            "coprep_job_skipped_samples_total",
            "Samples left out of the job's epochs because they could not be prepared, each counted once.",
            of(|j| j.skipped.into()),
        ),
        family(
            "coprep_job_epoch",
            "Epoch the job is in, counted from 0.",
            of(|j| j.epoch.into()),
        ),
        family(
            "coprep_job_epoch_samples",
            "Samples of the job's epoch.",
            of(|j| j.samples.into()),
        ),
        family(
            "coprep_job_need_samples",
            "Samples of the job's epoch that are not yet drawn.",
            of(|j| j.need.into()),
        ),
        family(
            "coprep_job_queued_minibatches",
            "Minibatches that lie ready for the job.",
            of(|j| j.queued.into()),
        ),
        family(
            "coprep_job_held_buffers",
            "Staging buffers that the job holds.",
            of(|j| j.held.into()),
        ),
        family(
            "coprep_job_ranks",
            "Ranks of the job that are here.",
            of(|j| (j.pids.len() as u64).into()),
        ),
        family(
            "coprep_job_age_seconds",
            "Time since the job came.",
            of(|j| j.age_s.into()),
        ),
        family(
            "coprep_job_idle_seconds",
            "Time since the job last took a batch.",
            of(|j| j.idle_s.into()),
        ),
    ]
}

fn stalls(all: &[StreamStatus]) -> Vec<Family> {
    let by_reason = |labels: Labels, waited: &Stalls| {
        [
            ("fetch", waited.fetch_s),
            ("prep", waited.prep_s),
            ("others", waited.others_s),
        ]
        .map(|(reason, seconds)| (with(labels.clone(), "reason", reason), Value::from(seconds)))
    };
    let of_job = |(s, j): (&StreamStatus, &JobStatus)| by_reason(job(s, j), &j.stalls);
    let of_stream = |s: &StreamStatus| by_reason(stream(s), &s.stalls);
    let open = |(s, j): (&StreamStatus, &JobStatus)| (job(s, j), j.stalls.open_s.into());
    vec![
        family(
            "coprep_job_stall_seconds_total",
            "Time that the job's ranks waited for batches, by what was lacking: storage, processors, or other jobs.",
            each_job(all).flat_map(of_job).collect(),
        ),
        family(
            "coprep_stream_stall_seconds_total",
            "The same of all jobs of the stream, those that have left too.",
            all.iter().flat_map(of_stream).collect(),
        ),
        family(
            "coprep_job_open_stall_seconds",
            "Time of waits that last, whose reason is not known yet.",
            each_job(all).map(open).collect(),
        ),
    ]
}

fn gpus(all: &[GpuStatus]) -> Vec<Family> {
    let of = |value: fn(&GpuStatus) -> Value| -> Vec<(Labels, Value)> {
        all.iter().map(|g| (gpu(g), value(g))).collect()
    };
    let by_uploader = |shared: fn(&GpuStatus) -> u64, own: fn(&GpuStatus) -> u64| {
        let rows = |g: &GpuStatus| {
            let labelled = |(by, n): (&str, u64)| (with(gpu(g), "by", by), Value::from(n));
            [("shared", shared(g)), ("own", own(g))].map(labelled)
        };
        all.iter().flat_map(rows).collect::<Vec<_>>()
    };
    vec![
        family(
            "coprep_gpu_consumers",
            "Ranks of jobs whose batches go to the GPU.",
            of(|g| g.consumers.into()),
        ),
        family(
            "coprep_gpu_sharing_consumers",
            "Those that share uploads.",
            of(|g| g.sharing.into()),
        ),
        family(
            "coprep_gpu_uploads_total",
            "Copies of minibatches to the GPU, once for all (shared) or by a job for itself (own).",
            by_uploader(|g| g.shared_uploads, |g| g.own_uploads),
        ),
        family(
            "coprep_gpu_uploaded_bytes_total",
            "Bytes of these copies.",
            by_uploader(|g| g.shared_bytes, |g| g.own_bytes),
        ),
        family(
            "coprep_gpu_upload_seconds_total",
            "Time from the beginning of each shared copy to its end.",
            of(|g| g.shared_s.into()),
        ),
        family(
            "coprep_gpu_wait_seconds_total",
            "Time that jobs waited for the GPU before they could go on.",
            of(|g| g.wait_s.into()),
        ),
        family(
            "coprep_gpu_ring_bytes",
            "Memory of the GPU that rings take.",
            of(|g| g.rings.iter().map(|ring| ring.bytes).sum::<u64>().into()),
        ),
    ]
}

fn stores(all: &[StoreStatus], outages: &[OutageStatus]) -> Vec<Family> {
    let named = |s: &StoreStatus| vec![("store", s.store.clone())];
    let of = |value: fn(&StoreStatus) -> u64| -> Vec<(Labels, Value)> {
        all.iter().map(|s| (named(s), value(s).into())).collect()
    };
    // A store that answers has a series too, so that an alert sees the end of an outage.
    let of_outage = |value: fn(&OutageStatus) -> Value, answers: Value| -> Vec<(Labels, Value)> {
        let outage = |s: &StoreStatus| outages.iter().find(|outage| outage.store == s.store);
        let valued = |s| (named(s), outage(s).map_or(answers, value));
        all.iter().map(valued).collect()
    };
    vec![
        family(
            "coprep_storage_requests_total",
            "Requests to a remote store, those that were made again included.",
            of(|s| s.requests),
        ),
        family(
            "coprep_storage_failed_requests_total",
            "Requests without an answer, or with one that says that the store fails or refuses; most are made again.",
            of(|s| s.failed_requests),
        ),
        family(
            "coprep_storage_second_requests_total",
            "Requests that were sent a second time, because the first one was not answered in the usual time.",
            of(|s| s.second_requests),
        ),
        family(
            "coprep_storage_received_bytes_total",
            "Bytes of objects received.",
            of(|s| s.received_bytes),
        ),
        family(
            "coprep_storage_outage_seconds",
            "Time since a remote store last answered, while it does not; otherwise 0.",
            of_outage(|o| o.lasts_s.into(), 0.0.into()),
        ),
        family(
            "coprep_storage_waiting_reads",
            "Reads that wait for a remote store that does not answer.",
            of_outage(|o| o.waiting.into(), 0u32.into()),
        ),
    ]
}

fn gpu(g: &GpuStatus) -> Labels {
    vec![("gpu", g.uuid.clone())]
}

fn family(name: &'static str, help: &'static str, samples: Vec<(Labels, Value)>) -> Family {
    Family {
        name,
        help,
        samples,
    }
}

fn one(value: impl Into<Value>) -> Vec<(Labels, Value)> {
    vec![(Labels::new(), value.into())]
}

fn by_stage<T: Into<Value>>(fetch: T, prep: T) -> Vec<(Labels, Value)> {
    let labelled = |(stage, value): (&str, T)| (with(Labels::new(), "stage", stage), value.into());
    [("fetch", fetch), ("prep", prep)].map(labelled).into()
}

fn with(mut labels: Labels, name: &'static str, value: &str) -> Labels {
    labels.push((name, value.to_owned()));
    labels
}

/// Returns the labels of a stream.
fn stream(s: &StreamStatus) -> Labels {
    vec![("stream", s.id.to_string()), ("dataset", s.dataset.clone())]
}

/// Returns the labels of a job. `job` and `instance` are taken: Prometheus names the scraped target with these.
fn job(s: &StreamStatus, j: &JobStatus) -> Labels {
    vec![
        ("stream", s.id.to_string()),
        ("job_id", j.id.to_string()),
        ("job_name", j.name.clone()),
    ]
}

fn each_job(all: &[StreamStatus]) -> impl Iterator<Item = (&StreamStatus, &JobStatus)> {
    all.iter().flat_map(|s| s.jobs.iter().map(move |j| (s, j)))
}

fn order(s: &StreamStatus) -> &'static str {
    if s.relaxed {
        "relaxed"
    } else {
        "deterministic"
    }
}

/// A form of cached samples, and its label.
type NamedForm = (CacheForm, &'static str);

/// Forms in which a sample may be cached.
const FORMS: [NamedForm; 3] = [
    (CacheForm::Encoded, "encoded"),
    (CacheForm::Decoded, "decoded"),
    (CacheForm::Prepared, "prepared"),
];

/// Returns the labels of a cache.
fn cached(c: &CacheStatus) -> Labels {
    let kind = format!("{:?}", c.form).to_lowercase();
    vec![
        ("dataset", c.dataset.clone()),
        ("cache", kind),
        ("policy", c.policy.clone()),
    ]
}

/// Returns the number of samples in one form, and their bytes.
fn held(c: &CacheStatus, form: NamedForm) -> (u64, u64) {
    let held = c.by_form.iter().find(|f| f.form == form.0);
    held.map_or((0, 0), |f| (f.entries, f.bytes))
}

/// Function that merges the values of two samples with equal labels.
type Merge = fn(Value, Value) -> Value;

/// Merges samples with equal labels. Caches have no numbers, so those of two lists of equally many files look the same.
fn merged(samples: impl Iterator<Item = (Labels, Value)>, merge: Merge) -> Vec<(Labels, Value)> {
    let mut all: BTreeMap<Labels, Value> = BTreeMap::new();
    for (labels, value) in samples {
        all.entry(labels)
            .and_modify(|known| *known = merge(*known, value))
            .or_insert(value);
    }
    all.into_iter().collect()
}

impl Value {
    fn plus(self, other: Value) -> Value {
        match (self, other) {
            (Value::Whole(a), Value::Whole(b)) => Value::Whole(a.saturating_add(b)),
            _ => Value::Real(self.real() + other.real()),
        }
    }

    fn highest(self, other: Value) -> Value {
        Value::Real(self.real().max(other.real()))
    }

    fn real(self) -> f64 {
        match self {
            Value::Whole(n) => n as f64,
            Value::Real(x) => x,
        }
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Self {
        Value::Whole(n.into())
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Value::Whole(n)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Value::Real(x)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use coprep_protocol::message::{
        CacheForm, CacheStatus, FormStatus, GpuStatus, Stalls, Status, Totals,
    };

    use super::{Family, JobStatus, StreamStatus, Value, families};

    fn cache(hits: u64, lambda: f64) -> CacheStatus {
        CacheStatus {
            dataset: "2 files".into(),
            form: CacheForm::Auto,
            pipeline: "decode".into(),
            warmed: false,
            kept: false,
            policy: "no-eviction".into(),
            capacity: 100,
            used: 10,
            entries: 1,
            by_form: vec![FormStatus {
                form: CacheForm::Encoded,
                entries: 1,
                bytes: 10,
            }],
            lambda_s_per_mib: Some(lambda),
            saves_s_per_epoch: None,
            hits,
            misses: 0,
            users: 1,
        }
    }

    fn job(id: u64) -> JobStatus {
        JobStatus {
            id,
            name: "train.py".into(),
            pids: vec![1],
            batch_size: 8,
            epoch: 0,
            need: 0,
            samples: 2,
            delivered: 0,
            queued: 0,
            held: 0,
            skipped: 0,
            idle_s: 0.0,
            batches: 0,
            age_s: 1.0,
            stalls: Stalls {
                fetch_s: 1.5,
                ..Stalls::default()
            },
        }
    }

    fn stream(id: u64, jobs: Vec<JobStatus>) -> StreamStatus {
        StreamStatus {
            id,
            dataset: "2 files".into(),
            samples: 2,
            pipeline: "decode".into(),
            seed: 0,
            cache: CacheForm::Auto,
            relaxed: false,
            costs: Default::default(),
            worker_pids: Vec::new(),
            busy_workers: 0,
            differs: Vec::new(),
            notes: Vec::new(),
            slots: 8,
            buffers: 12,
            buffers_free: 12,
            staging_bytes: 0,
            block_bytes: 0,
            totals: Totals::default(),
            stalls: Stalls::default(),
            jobs,
        }
    }

    fn gpu(uuid: &str) -> GpuStatus {
        GpuStatus {
            uuid: uuid.into(),
            ..GpuStatus::default()
        }
    }

    fn busy() -> Status {
        Status {
            caches: vec![cache(1, 0.25), cache(2, 0.5)],
            streams: vec![stream(1, vec![job(0), job(1)]), stream(2, vec![job(0)])],
            gpus: ["GPU-1", "GPU-2"].map(gpu).into(),
            ..Status::default()
        }
    }

    fn of(name: &str) -> Family {
        let found = families(&busy()).into_iter().find(|f| f.name == name);
        found.unwrap_or_else(|| panic!("{name} is not exported"))
    }

    #[test]
    fn no_name_and_no_labels_are_exported_twice() {
        let all = families(&busy());
        let names: BTreeSet<_> = all.iter().map(|f| f.name).collect();
        assert_eq!(names.len(), all.len());
        for family in &all {
            let labels: BTreeSet<_> = family.samples.iter().map(|s| &s.0).collect();
            assert_eq!(labels.len(), family.samples.len(), "{}", family.name);
        }
    }

    #[test]
    fn an_idle_coordinator_exports_the_same_names() {
        let names = |status: &Status| families(status).iter().map(|f| f.name).collect::<Vec<_>>();
        assert_eq!(names(&Status::default()), names(&busy()));
    }

    #[test]
    fn names_follow_prometheus_conventions() {
        for family in families(&busy()) {
            assert!(family.name.starts_with("coprep_"));
            assert!(family.help.ends_with('.'));
            assert!(!family.help.contains(['\n', '\\']));
            let reserved = ["job", "instance", "le", "quantile"];
            let labels = family.samples.iter().flat_map(|s| &s.0);
            assert!(labels.into_iter().all(|(name, _)| !reserved.contains(name)));
        }
    }

    #[test]
    fn caches_of_equal_labels_count_as_one() {
        let only = |name| of(name).samples.iter().map(|s| s.1).collect::<Vec<_>>();
        assert_eq!(only("coprep_cache_hits_total"), [Value::Whole(3)]);
        let lambda = 0.5 / f64::from(1 << 20);
        assert_eq!(
            only("coprep_cache_lambda_seconds_per_byte"),
            [Value::Real(lambda)]
        );
        assert!(only("coprep_cache_saved_seconds").is_empty());
        let whole = |n| Value::Whole(n);
        assert_eq!(
            only("coprep_cache_entries"),
            [whole(0), whole(2), whole(0)],
            "decoded, encoded, prepared"
        );
    }

    #[test]
    fn a_stall_has_its_reason() {
        let stalls = of("coprep_job_stall_seconds_total");
        assert_eq!(stalls.samples.len(), 9);
        let (labels, value) = &stalls.samples[0];
        assert_eq!(labels.last(), Some(&("reason", "fetch".to_owned())));
        assert_eq!(*value, Value::Real(1.5));
    }
}
