//! Requests, replies and the parts they are made of.

use rkyv::{Archive, Deserialize, Serialize};

use crate::spec::{Field, PipelineSpec, Source};

/// From a client to the coordinator.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Request {
    /// First on every connection.
    Hello {
        /// What the client is, for `status`: the script's name or the command.
        name: String,
        /// Process id, for `status`.
        pid: u32,
    },
    /// Become a consumer: one rank of a job. Answered by [`Reply::Attached`] with four descriptors:
    /// staging, deliver, reply and doorbell; or by [`Reply::WantCode`], to be sent again with a memory file
    /// in which [`Attach::code`] finds its dataset.
    Attach(Box<Attach>),
    /// One way: this user code will probably be needed. Until this connection ends, the coordinator keeps a process that
    /// has imported what the code needs, unless it already has one for the dataset of another program.
    Prepare {
        /// How it will be run.
        code: Box<UserCode>,
        /// Name of the dataset, as in its [`UserDataset`](crate::spec::UserDataset).
        dataset: String,
    },
    /// One way: the consumer has begun to iterate this epoch.
    EpochStarted {
        /// Counted from 0.
        epoch: u64,
    },
    /// One way, with a memory file as [`order::write`](crate::order::write) makes it: the samples of an epoch, in their order.
    /// The first of several proposals holds. All members are handed it, in [`Reply::Order`].
    TellOrder {
        /// The epoch that this consumer begins, or has begun.
        epoch: u64,
        /// Samples of the epoch.
        samples: u32,
        /// This consumer was handed it before, by a coordinator that is no more. It holds, whatever others propose.
        is_settled: bool,
    },
    /// The user left the epoch early and starts the next. Answered by [`Reply::Restarted`].
    RestartEpoch {
        /// The epoch that was left.
        epoch: u64,
    },
    /// A rank leaves its job in order: the others go on without it, in a later stream too. Valid on a connection that is
    /// attached, and on one that is not. Answered by [`Reply::Left`].
    Leave(Departure),
    /// The job's state once every rank has been given `batches` batches of its current epoch.
    /// Answered by [`Reply::State`].
    State {
        /// Epoch the caller is in.
        epoch: u64,
        /// Batches this rank has been given in that epoch, as in [`Resume::batches`].
        batches: u64,
    },
    /// What is this consumer waiting for? Answered by [`Reply::Explanation`].
    Explain,
    /// Asks for whom this consumer waits. Answered by [`Reply::Awaited`].
    WhoIsAwaited,
    /// Length and classes of a source, and the output of the pipeline. Answered by [`Reply::Described`].
    Describe(Box<PipelineSpec>),
    /// Fill the cache. Answered by [`Reply::Progress`] until [`Reply::Warmed`]; closing the connection
    /// stops it and keeps what is cached.
    Warm(Box<Warm>),
    /// Answered by [`Reply::Status`].
    Status {
        /// Of each stream so many samples, those that cost most.
        slow: u32,
    },
    /// Drop the caches of datasets no job uses; with a name, the named segment. Answered by [`Reply::Dropped`].
    Drop {
        /// Only the dataset whose source has this root folder or name.
        name: Option<String>,
    },
    /// The cache that a stream uses was filled on purpose, as by [`Request::Warm`]. Answered by [`Reply::Warmed`].
    KeepWarm {
        /// Its number.
        stream: u64,
    },
    /// How a stream's samples are made. Answered by [`Reply::Pipeline`].
    Pipeline {
        /// Its number.
        stream: u64,
    },
    /// Storage is to be slower than it is, from now on; without either, as it is. Answered by [`Reply::Throttled`].
    Throttle {
        /// Bytes a second that all reads together get.
        bytes_per_s: Option<u64>,
        /// Nanoseconds that each read takes beside.
        latency_ns: u64,
    },
    /// Finish: jobs lose their connection, memory is freed. Answered by [`Reply::Stopping`].
    Stop,
}

/// In which form samples are cached.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum CacheForm {
    /// Nothing is cached.
    Off,
    /// As fetched.
    Encoded,
    /// After decode and the deterministic operators.
    Decoded,
    /// After everything.
    Prepared,
    /// For each sample the form that saves most for its bytes, or none.
    Auto,
}

/// What to cache, and within how many bytes.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CacheRequest {
    /// None: the coordinator's own setting.
    pub form: Option<CacheForm>,
    /// None: as much as the dataset needs, within the coordinator's budget.
    pub bytes: Option<u64>,
    /// Evict the least recently used sample instead of never evicting: the baseline, for comparison.
    pub lru: bool,
    /// Times that a prepared sample is used before it is made anew; 0: always.
    pub reuse: u32,
}

/// A job's wish to be given minibatches.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Attach {
    /// What to prepare.
    pub pipeline: PipelineSpec,
    /// How to run the job's own code, if that is what prepares.
    pub code: Option<UserCode>,
    /// Explicit seed; None takes the stream's.
    pub seed: Option<u64>,
    /// Seed for a new stream when `seed` is None: what the job had before its coordinator died.
    pub seed_hint: Option<u64>,
    /// Random order; false: ascending ids.
    pub shuffle: bool,
    /// An epoch is so many independent draws, instead of each sample once; `shuffle` does not matter then.
    pub draws: Option<Draws>,
    /// The samples of each epoch, and their order, are told when it begins, by the first member of the cohort to begin it:
    /// see [`Request::TellOrder`]. For a job of one rank, in a cohort; `shuffle` does not matter then. Numbers of samples in
    /// that order stand for ids, as they do with [`draws`](Self::draws).
    pub is_told: bool,
    /// The epoch of `resume`, or the first one, if this client was handed its order ([`Reply::Order`]): it tells it again as
    /// soon as it is attached.
    pub knows_order_of: Option<u64>,
    /// A sample that takes long may come in a later minibatch of its epoch.
    pub relaxed: bool,
    /// Caching.
    pub cache: CacheRequest,
    /// Samples of one batch of this job (of one rank).
    pub batch_size: u32,
    /// Leave out the last, short batch.
    pub drop_last: bool,
    /// This consumer's rank.
    pub rank: u32,
    /// Consumers of the job.
    pub world_size: u32,
    /// What the ranks of one job have in common and no other job has. Ignored for one rank.
    pub group: String,
    /// Ids of this job's samples, a serialised Roaring bitmap; None: all.
    pub subset: Option<Vec<u8>>,
    /// Where to go on; None: at the beginning.
    pub resume: Option<Resume>,
    /// Samples of the dataset that [`resume`](Self::resume) is of, or else that [`subset`](Self::subset), a mask, is of;
    /// another number is refused.
    pub dataset_samples: Option<u32>,
    /// Jobs that start together and get one reproducible sequence.
    pub cohort: Option<Cohort>,
    /// A sample that fails is counted and replaced instead of raised.
    pub skip_errors: bool,
    /// The job that this rank belonged to before it lost its connection, as [`Attached::token`] said when it was last
    /// given a batch, and since. Empty: it was given nothing.
    pub tokens: Vec<u128>,
    /// The latest [`Attached::token`] of this rank; `None`: it was never attached. If another rank has left the job of
    /// this token, then that job had begun, and this rank was in it.
    pub told: Option<u128>,
    /// Ranks of that job that have left it in order, as far as this rank was told.
    pub departed: Vec<Departure>,
    /// The job had begun before this client lost its connection: the client was given a batch, or one lay ready for it.
    pub has_begun: bool,
}

impl Attach {
    /// Returns whether its dataset can only be iterated ([`is_iterated`](crate::spec::UserDataset::is_iterated)).
    #[must_use]
    pub fn is_iterated(&self) -> bool {
        matches!(&self.pipeline.source, Source::UserCode(user) if user.is_iterated)
    }

    /// Returns whether its epochs are those of its cohort: their samples become known when they are iterated.
    #[must_use]
    pub fn is_of_cohort(&self) -> bool {
        self.is_told || self.is_iterated()
    }
}

/// Most draws of an epoch. At its border their set is gone through once, under the stream's lock.
pub const MOST_DRAWS: u32 = 1 << 26;

/// An epoch of independent draws with replacement. Part of what tells streams apart.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Draws {
    /// Draws of an epoch: at least one, and at most [`MOST_DRAWS`]. Where samples of a job are counted or named by what was
    /// given ([`Resume::delivered`]), numbers of draws, `0..count`, stand for ids.
    pub count: u32,
    /// Weight of each sample of the dataset: finite and not negative, with a positive sum. `None`: all are equally likely.
    pub weights: Option<Vec<f64>>,
}

/// How to run a job's own code: as in the job's own process, but for the streams and descriptors.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
pub struct UserCode {
    /// Program and arguments of the host that starts workers.
    pub command: Vec<Vec<u8>>,
    /// Environment: names and values.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory.
    pub directory: Vec<u8>,
    /// Workers; 0: as many as the coordinator has.
    pub workers: u32,
    /// Longest time for one sample, milliseconds: then its worker is replaced.
    pub patience_ms: u64,
    /// The process that is the job, by a name that no other process has. Hosts of one process may share what was imported
    /// for them; another process may have been started after a module was changed.
    pub process: String,
    /// What hosts have to import before they load the dataset, in words of the language that the code is written in.
    pub prelude: String,
}

/// Epochs have smaller numbers than this, so that counting on from one that another process names does not overflow.
pub const MOST_EPOCHS: u64 = 1 << 62;

/// A point within a job's epoch.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Counted from 0, below [`MOST_EPOCHS`].
    pub epoch: u64,
    /// Samples already given in it, a serialised Roaring bitmap. A sample that failed in a batch was given with it.
    pub delivered: Vec<u8>,
    /// Batches that this rank was given in it since the job was begun or resumed by its user: ranks that
    /// come back from different steps are made level.
    pub batches: u64,
    /// This rank was given all of its part of the epoch: what is left is for the other ranks.
    pub is_done: bool,
    /// Samples that the job was told are left out of its epochs, a serialised Roaring bitmap; empty: none.
    pub skipped: Vec<u8>,
}

/// A rank that has left its job in order, and where it stood. It does not come back.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The job, as [`Attached::token`] said.
    pub token: u128,
    /// The rank that has left.
    pub rank: u32,
    /// What it would present if it attached again.
    pub resume: Resume,
}

/// See [`Attach::cohort`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Common to its members.
    pub name: String,
    /// How many members to wait for.
    pub size: u32,
}

/// See [`Request::Warm`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Warm {
    /// What the jobs will prepare.
    pub pipeline: PipelineSpec,
    /// Caching.
    pub cache: CacheRequest,
}

/// From the coordinator to a client.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Reply {
    /// Answer to [`Request::Hello`].
    Welcome {
        /// Process id of the coordinator.
        pid: u32,
        /// Its version.
        version: String,
    },
    /// Answer to [`Request::Attach`].
    Attached(Box<Attached>),
    /// Answer to [`Request::Attach`]: nobody runs this code yet, send it.
    WantCode,
    /// Says what somebody else has to do before this client can go on; `None`: nothing. Answers
    /// [`Request::WhoIsAwaited`], and comes unasked, perhaps several times, before [`Reply::Attached`],
    /// [`Reply::Described`] or [`Reply::Warmed`] if that takes long.
    Awaited(Option<Awaited>),
    /// A sample failed: sent before the error's item is published in the consumer's queue.
    SampleError(SampleError),
    /// Samples are left out of the job's epochs: sent before the notice's item is published in the consumer's queue.
    Skipped(Box<Skipped>),
    /// Comes unasked, with a memory file as [`order::write`](crate::order::write) makes it: the samples of an epoch, in their
    /// order. Before it has come, nothing of the epoch is handed to a user.
    Order {
        /// Counted from 0.
        epoch: u64,
        /// Samples of the epoch.
        samples: u32,
    },
    /// Answer to [`Request::RestartEpoch`].
    Restarted {
        /// The epoch that begins.
        epoch: u64,
        /// Items before this sequence number belong to the epoch that was left.
        first_seq: u64,
    },
    /// Answer to [`Request::Leave`]: the other ranks that are here have been told.
    Left,
    /// Comes unasked: another rank has left the job. To be presented in [`Attach::departed`].
    Departed(Departure),
    /// Answer to [`Request::State`].
    State(Resume),
    /// Answer to [`Request::Explain`].
    Explanation(String),
    /// Answer to [`Request::Describe`].
    Described {
        /// Number of samples.
        samples: u32,
        /// Class names, by label.
        classes: Vec<String>,
        /// Tensors of a batch.
        fields: Vec<Field>,
    },
    /// How far a warm-up has come.
    Progress(WarmProgress),
    /// A warm-up is over.
    Warmed(WarmProgress),
    /// Answer to [`Request::Status`].
    Status(Box<Status>),
    /// Answer to [`Request::Drop`].
    Dropped {
        /// What was freed.
        bytes: u64,
    },
    /// Answer to [`Request::Pipeline`]; None: by the jobs' own code.
    Pipeline(Option<Box<PipelineSpec>>),
    /// Answer to [`Request::Throttle`].
    Throttled,
    /// Answer to [`Request::Stop`].
    Stopping,
    /// The request was refused or failed.
    Refused(Refusal),
}

/// What a client waits for that is not its own, or that nothing can hurry.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Who has to do what, for people.
    pub what: String,
    /// Milliseconds since it was begun.
    pub for_ms: u64,
    /// What to do about it; empty if there is nothing to do.
    pub remedy: String,
}

/// Why a request was refused.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which error the client raises.
    pub kind: RefusalKind,
    /// What, where, remedy.
    pub message: String,
    /// The sample on which user code failed before anything could be prepared.
    pub sample: Option<Box<SampleError>>,
}

/// Classes of refusal.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// An argument is wrong.
    Invalid,
    /// A file or folder is missing or unreadable.
    NotFound,
    /// Memory is short.
    Memory,
    /// The job's own code cannot be run, or failed.
    Code,
    /// Something takes too long.
    Late,
    /// Anything else.
    Internal,
}

/// What a new consumer needs to know.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Attached {
    /// Stream the job takes part in.
    pub stream: u64,
    /// The job's number.
    pub job: u64,
    /// Seed in force.
    pub seed: u64,
    /// Samples of the dataset.
    pub dataset_samples: u32,
    /// Samples of this job's epoch.
    pub job_samples: u32,
    /// Class names, by label.
    pub classes: Vec<String>,
    /// Tensors of a batch, in the order of the staging layout.
    pub fields: Vec<Field>,
    /// Samples of one staging buffer.
    pub slots: u32,
    /// Staging buffers.
    pub buffers: u32,
    /// Bytes that samples which are larger than their slots may take in all; 0: there are none.
    pub large_bytes: u64,
    /// Epoch the job is in.
    pub epoch: u64,
    /// How user code makes batches of the fields; empty for others.
    pub structure: Vec<u8>,
    /// Why a warmed cache of the same samples is not used; one sentence for each cache.
    pub notes: Vec<String>,
    /// Tells the job from every other, those of the same group too. To be presented in [`Attach::token`].
    pub token: u128,
}

/// A sample that could not be prepared.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct SampleError {
    /// Matches the `tag` of the error's item.
    pub tag: u64,
    /// Sample id.
    pub id: u32,
    /// Its file.
    pub path: String,
    /// `fetch`, `decode` or `prepare`; for user code `dataset` or `transform`.
    pub stage: String,
    /// What went wrong, with the remedy.
    pub message: String,
    /// The worker that ran user code, for people; else empty.
    pub worker: String,
    /// The exception of user code, as its worker packed it; else empty.
    pub exception: Vec<u8>,
}

/// Samples that are left out of a job's epochs, because they could not be prepared. See [`Attach::skip_errors`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Ids, a serialised Roaring bitmap.
    pub ids: Vec<u8>,
    /// How one of them failed. Its `tag` is that of the notice's item.
    pub example: SampleError,
}

/// Counts of a warm-up.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Debug,
    PartialEq,
    Default,
)]
#[serde(default)]
pub struct WarmProgress {
    /// Samples looked at.
    pub done: u64,
    /// Samples of the dataset.
    pub total: u64,
    /// Samples cached in all.
    pub cached: u64,
    /// Bytes cached in the encoded form.
    pub encoded_bytes: u64,
    /// Bytes cached in the decoded form.
    pub decoded_bytes: u64,
    /// Bytes the cache may hold.
    pub capacity: u64,
    /// Bytes read from storage by this warm-up.
    pub fetched_bytes: u64,
    /// Samples that failed.
    pub failed: u64,
    /// The first failure.
    pub first_failure: Option<String>,
    /// The cache is full: the rest will be prepared as it is needed.
    pub full: bool,
    /// Form of the cache.
    pub form: Option<CacheForm>,
}

/// Everything `coprep status` shows.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct Status {
    /// Process id.
    pub pid: u32,
    /// Version.
    pub version: String,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// What the threads do.
    pub pool: PoolStatus,
    /// Proportional share of the coordinator's own memory, bytes.
    pub pss_bytes: u64,
    /// Bytes all caches may take together.
    pub cache_budget: u64,
    /// Caches.
    pub caches: Vec<CacheStatus>,
    /// Streams.
    pub streams: Vec<StreamStatus>,
}

/// The pool of threads that fetches and prepares samples of native pipelines, for all streams.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct PoolStatus {
    /// Most threads that decode and run operators at a time: the CPUs that may be used.
    pub cpus: u32,
    /// Most threads that work at a time; those beyond `cpus` wait for storage. Follows what is measured.
    pub threads: u32,
    /// Threads that fetch now.
    pub fetching: u32,
    /// Threads that decode or run operators now.
    pub preparing: u32,
    /// Samples that wait to be fetched.
    pub to_fetch: u32,
    /// Samples that wait for a CPU: fetched, or cached.
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

/// Time that a job waited for batches, by what the coordinator lacked, in seconds.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Default,
)]
pub struct Stalls {
    /// Storage.
    pub fetch_s: f64,
    /// Processors.
    pub prep_s: f64,
    /// Other jobs: the rest of a cohort, a rank, or a buffer that somebody holds.
    pub others_s: f64,
    /// Of a wait that lasts: not known yet.
    pub open_s: f64,
}

/// One dataset's cache.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct CacheStatus {
    /// The dataset.
    pub dataset: String,
    /// Form of its samples.
    pub form: CacheForm,
    /// What was done to them before they were cached, readable; empty for user code, and for files as they are.
    pub pipeline: String,
    /// It was filled by [`Request::Warm`].
    pub warmed: bool,
    /// `no-eviction` or `lru`.
    pub policy: String,
    /// Bytes reserved.
    pub capacity: u64,
    /// Bytes used.
    pub used: u64,
    /// Samples cached.
    pub entries: u64,
    /// The same, by form.
    pub by_form: Vec<FormStatus>,
    /// Where forms are chosen by price: seconds per epoch that a MiB must save.
    pub lambda_s_per_mib: Option<f64>,
    /// Where forms are chosen by price: worker seconds that what is cached saves per epoch.
    pub saves_s_per_epoch: Option<f64>,
    /// Lookups that found their sample.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Streams that use it now.
    pub users: u32,
}

/// What a cache holds in one form.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct FormStatus {
    /// The form.
    pub form: CacheForm,
    /// Samples.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a sample costs: means of what was measured, in seconds.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct SampleCost {
    /// Sample id.
    pub id: u32,
    /// Its file; empty for user code.
    pub path: String,
    /// Wall time of reading it from storage; of user code, time off the processor.
    pub fetch_s: f32,
    /// Wall time from bytes to pixels; of user code, `dataset[i]`.
    pub decode_s: f32,
    /// Wall time of the operators before the first random one.
    pub fixed_s: f32,
    /// Wall time of the rest; of user code, `transform`.
    pub random_s: f32,
    /// CPU time of all of it.
    pub cpu_s: f32,
}

/// What is known of the costs of a stream's samples.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Default)]
pub struct CostStatus {
    /// Samples that were measured.
    pub measured: u32,
    /// Bytes that this takes.
    pub bytes: u64,
    /// Mean seconds of the last preparations.
    pub mean_s: f32,
    /// Seconds beyond which a sample counts as slow; None: too little is known.
    pub budget_s: Option<f32>,
    /// Minibatches that are drawn ahead because of slow samples.
    pub window: u32,
    /// Samples that were overtaken (relaxed order).
    pub overtaken: u64,
    /// Those that cost most, if they were asked for.
    pub slowest: Vec<SampleCost>,
}

/// One stream.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct StreamStatus {
    /// Number.
    pub id: u64,
    /// The dataset.
    pub dataset: String,
    /// Its samples.
    pub samples: u32,
    /// Operators, readable.
    pub pipeline: String,
    /// Seed.
    pub seed: u64,
    /// Form of the cache.
    pub cache: CacheForm,
    /// Whether slow samples may come later in their epoch.
    pub relaxed: bool,
    /// What its samples cost.
    pub costs: CostStatus,
    /// Process ids of the workers that run user code.
    pub worker_pids: Vec<u32>,
    /// Of these, how many have a sample to make. 0 if the coordinator does not attribute waits.
    pub busy_workers: u32,
    /// In what it differs from another stream that looks like it.
    pub differs: Vec<String>,
    /// As [`Attached::notes`], at this moment.
    pub notes: Vec<String>,
    /// Samples of one staging buffer.
    pub slots: u32,
    /// Staging buffers.
    pub buffers: u32,
    /// Of these, free.
    pub buffers_free: u32,
    /// Bytes of the staging area.
    pub staging_bytes: u64,
    /// Totals since the stream was opened.
    pub totals: Totals,
    /// What all its jobs waited for, those that have left too.
    pub stalls: Stalls,
    /// Jobs taking part.
    pub jobs: Vec<JobStatus>,
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
    /// Worker seconds spent in fetching.
    pub fetch_s: f64,
    /// Worker seconds spent in decoding and operators.
    pub prep_s: f64,
    /// Bytes read from storage for each sample's first preparation, its second, and so on: for a job
    /// alone, by epoch. The first 256.
    pub fetched_by_visit: Vec<u64>,
}

/// One job of a stream.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct JobStatus {
    /// Number.
    pub id: u64,
    /// What it called itself.
    pub name: String,
    /// Process ids, by rank.
    pub pids: Vec<u32>,
    /// Samples of a batch.
    pub batch_size: u32,
    /// Epoch it is in.
    pub epoch: u64,
    /// Samples of its epoch not yet drawn.
    pub need: u32,
    /// Samples of its epoch.
    pub samples: u32,
    /// Samples handed to it.
    pub delivered: u64,
    /// Minibatches in its queues.
    pub queued: u32,
    /// Staging buffers it holds.
    pub held: u32,
    /// Samples of its set that are left out of its epochs, because they could not be prepared. Each counts once.
    pub skipped: u64,
    /// Seconds since it last took a batch.
    pub idle_s: f64,
    /// Batches that its ranks took.
    pub batches: u64,
    /// Seconds since it came (its first rank).
    pub age_s: f64,
    /// What its ranks waited for, together.
    pub stalls: Stalls,
}
