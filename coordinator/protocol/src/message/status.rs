//! The state of a coordinator, as [`Reply::Status`](crate::message::Reply::Status) reports it.

use rkyv::{Archive, Deserialize, Serialize};

use crate::message::CacheForm;

/// The state of a coordinator, as `coprep status` shows it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct Status {
    /// Process id of the coordinator.
    pub pid: u32,
    /// Version of the coordinator.
    pub version: String,
    /// Seconds since the coordinator started.
    pub uptime_s: f64,
    /// State of the thread pool.
    pub pool: PoolStatus,
    /// Proportional share of the coordinator's own memory, bytes.
    pub pss_bytes: u64,
    /// Bytes that all caches may take together.
    pub cache_budget: u64,
    /// State of each cache.
    pub caches: Vec<CacheStatus>,
    /// The last caches that gave way to those of datasets in use, the latest one first.
    pub given_way: Vec<GivenWay>,
    /// State of the local disk that holds samples, or `None` if there is none.
    pub disk: Option<DiskStatus>,
    /// State of each stream.
    pub streams: Vec<StreamStatus>,
    /// Remote stores that were opened.
    pub stores: Vec<StoreStatus>,
    /// Bytes of memory of samples that were read when their dataset was opened, and that no job has used yet.
    pub early_bytes: u64,
    /// Remote stores that do not answer at present.
    pub outages: Vec<OutageStatus>,
    /// Copies to each GPU that jobs use.
    pub gpus: Vec<GpuStatus>,
}

/// Requests to a remote store.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct StoreStatus {
    /// Name of the store, such as `s3://bucket`.
    pub store: String,
    /// Requests that were sent, including repeated ones.
    pub requests: u64,
    /// Requests without an answer, or with one that says that the store fails or refuses. Most are made again.
    pub failed_requests: u64,
    /// Requests that were sent a second time, because the first one was not answered in the usual time.
    pub second_requests: u64,
    /// Bytes of objects that were received.
    pub received_bytes: u64,
}

/// A remote store that does not answer, or refuses every request. Jobs that read from it wait.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct OutageStatus {
    /// Name of the store, such as `s3://bucket`.
    pub store: String,
    /// Seconds since the first request that failed.
    pub lasts_s: f64,
    /// The last answer, or the reason why there was none.
    pub last_answer: String,
    /// Seconds until the next try.
    pub next_try_s: f64,
    /// Reads that wait.
    pub waiting: u32,
    /// Seconds after which the jobs get an error.
    pub patience_s: f64,
}

/// Copies of minibatches to a GPU, for the jobs of the streams that are open.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct GpuStatus {
    /// UUID of the GPU, or of an instance of one that is divided.
    pub uuid: String,
    /// Number of consumers whose batches go there. A consumer is one rank of a job.
    pub consumers: u32,
    /// Number of these consumers that share uploads.
    pub sharing: u32,
    /// Copies that consumers made for themselves.
    pub own_uploads: u64,
    /// Bytes of these copies.
    pub own_bytes: u64,
    /// Seconds that consumers waited for the GPU before they could go on.
    pub wait_s: f64,
    /// Copies that the uploader made, each for all consumers that share.
    pub shared_uploads: u64,
    /// Bytes of these copies.
    pub shared_bytes: u64,
    /// Seconds from the beginning of a copy by the uploader to its end, of all such copies together.
    pub shared_s: f64,
    /// Rings that are open, one for each stream.
    pub rings: Vec<RingStatus>,
    /// Reasons why consumers that would share do not, one sentence for each stream.
    pub notes: Vec<String>,
}

/// Buffers on a GPU to which an uploader copies the minibatches of a stream.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct RingStatus {
    /// Number of the stream.
    pub stream: u64,
    /// Process id of the uploader.
    pub uploader_pid: u32,
    /// Number of buffers.
    pub buffers: u32,
    /// Number of buffers that nobody uses.
    pub buffers_free: u32,
    /// Bytes of the GPU's memory.
    pub bytes: u64,
    /// Reason why the staging area is not pinned, and the uploader's processor copies everything first.
    pub why_bounced: Option<String>,
    /// Number of the GPU's NUMA node, if the uploader runs on its processors alone.
    pub node: Option<u32>,
}

/// The pool of threads that fetches and prepares samples of native pipelines, for all streams.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct PoolStatus {
    /// Most threads that decode and run operators at a time, which is the number of usable CPUs.
    pub cpus: u32,
    /// Most threads that work at a time. Threads beyond `cpus` wait for storage. The number follows measurements.
    pub threads: u32,
    /// Threads that fetch at present.
    pub fetching: u32,
    /// Threads that decode or run operators at present.
    pub preparing: u32,
    /// Reads of datasets whose storage is slow or dead. Threads of their own wait for them, beyond `threads`.
    pub slow_reads: u32,
    /// Samples that wait to be fetched.
    pub to_fetch: u32,
    /// Samples that are fetched or cached and wait for a CPU.
    pub to_prepare: u32,
    /// Samples fetched since the start.
    pub fetched: u64,
    /// Samples prepared since the start.
    pub prepared: u64,
    /// Thread seconds spent in fetching since the start.
    pub fetch_s: f64,
    /// Thread seconds spent in preparing since the start.
    pub prepare_s: f64,
}

/// Time that a job waited for batches, by the resource that was short, in seconds.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Default,
)]
pub struct Stalls {
    /// Seconds of waiting for storage.
    pub fetch_s: f64,
    /// Seconds of waiting for processors.
    pub prep_s: f64,
    /// Seconds of waiting for other jobs: the rest of a cohort, a rank, or a buffer that somebody holds.
    pub others_s: f64,
    /// Seconds of a wait that still lasts, and whose cause is not known yet.
    pub open_s: f64,
}

/// State of one dataset's cache.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct CacheStatus {
    /// Name of the dataset.
    pub dataset: String,
    /// Form of the samples.
    pub form: CacheForm,
    /// Operators that were applied before the samples were cached, readable. Empty for user code, and for files as they
    /// are.
    pub pipeline: String,
    /// `true` if the cache was filled by [`Request::Warm`](crate::message::Request::Warm).
    pub warmed: bool,
    /// `true` if it never gives way to the cache of another dataset ([`Warm::keep`](crate::message::Warm::keep)).
    pub kept: bool,
    /// Eviction policy, `no-eviction` or `lru`.
    pub policy: String,
    /// Bytes reserved for the cache.
    pub capacity: u64,
    /// Bytes used by samples.
    pub used: u64,
    /// Number of samples cached.
    pub entries: u64,
    /// Samples and bytes by form.
    pub by_form: Vec<FormStatus>,
    /// Price of memory where forms are chosen by it: seconds per epoch that a MiB must save. `None` elsewhere.
    pub lambda_s_per_mib: Option<f64>,
    /// Worker seconds per epoch that the cached samples save, where forms are chosen by price. `None` elsewhere.
    pub saves_s_per_epoch: Option<f64>,
    /// Lookups that found their sample.
    pub hits: u64,
    /// Lookups that did not find their sample.
    pub misses: u64,
    /// Streams that use the cache at present.
    pub users: u32,
}

/// A cache that nothing used, and that was freed because a dataset in use needed the room.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct GivenWay {
    /// Name of the dataset.
    pub dataset: String,
    /// Form of its samples.
    pub form: CacheForm,
    /// Bytes that it had reserved.
    pub bytes: u64,
    /// Name of the dataset that needed them.
    pub to: String,
    /// Seconds since then.
    pub ago_s: f64,
}

/// State of the local disk that holds samples below the caches in memory.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct DiskStatus {
    /// Folder of the files.
    pub folder: String,
    /// Bytes that all files may take together.
    pub budget: u64,
    /// State of each dataset's file, as far as this coordinator has opened it.
    pub caches: Vec<DiskCacheStatus>,
}

/// State of one dataset's file on the local disk.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct DiskCacheStatus {
    /// Name of the dataset.
    pub dataset: String,
    /// Bytes for samples, reserved when the file was made.
    pub capacity: u64,
    /// Bytes used by samples.
    pub used: u64,
    /// Number of samples.
    pub entries: u64,
    /// Lookups that found their sample.
    pub hits: u64,
    /// Lookups that did not find their sample, or found it damaged.
    pub misses: u64,
    /// Samples that were dropped because they were damaged.
    pub dropped: u64,
}

/// Samples of a cache that are in one form.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct FormStatus {
    /// Form of these samples.
    pub form: CacheForm,
    /// Number of these samples.
    pub entries: u64,
    /// Bytes of these samples.
    pub bytes: u64,
}

/// Costs of a sample, as means of its measurements, in seconds.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct SampleCost {
    /// Sample id.
    pub id: u32,
    /// Path of the sample's file. Empty for user code.
    pub path: String,
    /// Wall time of reading the file from storage. For user code, time off the processor.
    pub fetch_s: f32,
    /// Wall time from bytes to pixels. For user code, that of `dataset[i]`.
    pub decode_s: f32,
    /// Wall time of the operators before the first random one.
    pub fixed_s: f32,
    /// Wall time of the rest. For user code, that of `transform`.
    pub random_s: f32,
    /// CPU time of all stages together.
    pub cpu_s: f32,
}

/// Costs of a stream's samples, as far as they are known.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct CostStatus {
    /// Number of samples that were measured.
    pub measured: u32,
    /// Bytes that the records take.
    pub bytes: u64,
    /// Mean seconds of the latest preparations.
    pub mean_s: f32,
    /// Seconds above which a sample counts as slow, or `None` if too little is known.
    pub budget_s: Option<f32>,
    /// Minibatches that are drawn ahead because of slow samples.
    pub window: u32,
    /// Samples that were overtaken by faster ones (relaxed order).
    pub overtaken: u64,
    /// The most expensive samples, if the request asked for them.
    pub slowest: Vec<SampleCost>,
}

/// State of one stream.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct StreamStatus {
    /// Number of the stream.
    pub id: u64,
    /// Name of the dataset.
    pub dataset: String,
    /// Number of samples of the dataset.
    pub samples: u32,
    /// Operators, readable.
    pub pipeline: String,
    /// Seed of the stream.
    pub seed: u64,
    /// Form of the cache.
    pub cache: CacheForm,
    /// `true` if slow samples may come later in their epoch.
    pub relaxed: bool,
    /// Costs of the stream's samples.
    pub costs: CostStatus,
    /// Process ids of the workers that run user code.
    pub worker_pids: Vec<u32>,
    /// Number of these workers that have a sample to make; 0 if the coordinator does not attribute waits.
    pub busy_workers: u32,
    /// Ways in which the stream differs from another one that looks like it.
    pub differs: Vec<String>,
    /// The present notes, as in [`Attached::notes`](crate::message::Attached::notes) and
    /// [`Attached::left_out`](crate::message::Attached::left_out).
    pub notes: Vec<String>,
    /// Samples of one staging buffer.
    pub slots: u32,
    /// Number of staging buffers.
    pub buffers: u32,
    /// Number of staging buffers that are free.
    pub buffers_free: u32,
    /// Bytes of the staging area.
    pub staging_bytes: u64,
    /// Bytes of the parts of shards and the row groups that are in memory for their samples. Streams that read the same
    /// parquet files share the row groups, and each reports them.
    pub block_bytes: u64,
    /// Totals since the stream was opened.
    pub totals: Totals,
    /// Waits of all its jobs, including jobs that have left.
    pub stalls: Stalls,
    /// State of each job that takes part.
    pub jobs: Vec<JobStatus>,
}

impl StreamStatus {
    /// Returns the seed if it may mean something to a person. One that nobody chose has 19 digits or so.
    #[must_use]
    pub fn chosen_seed(&self) -> Option<u64> {
        (self.seed <= u64::from(u32::MAX)).then_some(self.seed)
    }
}

/// Counts since a stream was opened.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct Totals {
    /// Samples prepared.
    pub prepared: u64,
    /// Samples handed to jobs.
    pub delivered: u64,
    /// Bytes read from storage.
    pub fetched_bytes: u64,
    /// Files read from storage.
    pub fetched: u64,
    /// Samples that failed.
    pub failed: u64,
    /// Worker seconds spent on fetching.
    pub fetch_s: f64,
    /// Worker seconds spent on decoding and operators.
    pub prep_s: f64,
    /// Bytes read from storage for each sample's first preparation, its second, and so on, for the first 256. For a job
    /// alone, this is by epoch.
    pub fetched_by_visit: Vec<u64>,
}

/// State of one job of a stream.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct JobStatus {
    /// Number of the job.
    pub id: u64,
    /// Name that the job gave itself.
    pub name: String,
    /// Process ids of the ranks, in their order.
    pub pids: Vec<u32>,
    /// Samples of a batch.
    pub batch_size: u32,
    /// Epoch that the job is in.
    pub epoch: u64,
    /// Samples of the job's epoch that are not drawn yet.
    pub need: u32,
    /// Samples of the job's epoch.
    pub samples: u32,
    /// Samples handed to the job.
    pub delivered: u64,
    /// Minibatches in the job's queues.
    pub queued: u32,
    /// Staging buffers that the job holds.
    pub held: u32,
    /// Samples of the job's set that are left out of its epochs because they could not be prepared. Each counts once.
    pub skipped: u64,
    /// Seconds since the job last took a batch.
    pub idle_s: f64,
    /// Batches that the job's ranks took.
    pub batches: u64,
    /// Seconds since the job's first rank attached.
    pub age_s: f64,
    /// Waits of the job's ranks, together.
    pub stalls: Stalls,
}
