//! Requests, replies, and the types that they consist of.

mod status;

use rkyv::{Archive, Deserialize, Serialize};

use crate::dataset_url::UrlScheme;
use crate::given_credentials::TimedCredentials;
pub use crate::message::status::{
    CacheStatus, CostStatus, DiskCacheStatus, DiskStatus, FormStatus, GivenWay, GpuStatus,
    JobStatus, OutageStatus, PoolStatus, RingStatus, SampleCost, Stalls, Status, StoreStatus,
    StreamStatus, Totals,
};
use crate::spec::{Field, PipelineSpec, Source};
use crate::store_variables::StoreVariables;

/// A message from a client to the coordinator.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Request {
    /// Greet the coordinator. This is the first message on every connection.
    Hello {
        /// Name of the client, for `status`: the script's name or the command.
        name: String,
        /// Process id of the client, for `status`.
        pid: u32,
    },
    /// Become a consumer, which is one rank of a job. Answered by [`Reply::Attached`] with four descriptors: staging,
    /// deliver, reply and doorbell. If no process runs the job's code yet, the answer is [`Reply::WantServer`], and the
    /// client sends the request again, with the socket of a fork server that it starts.
    Attach(Box<Attach>),
    /// Give credentials of stores that exist only in the client's process. The first ones on a connection are answered by
    /// [`Reply::CredentialsTaken`]; later ones replace them, and have no answer. They serve the requests that name this
    /// connection ([`Attach::provider`]) until it ends.
    GiveCredentials(Box<GiveCredentials>),
    /// Say that the client cannot give credentials now, if it has given some before. There is no answer.
    NoCredentials {
        /// Reason, for people. It holds no text of the user's code, which may hold secrets.
        why: String,
    },
    /// Announce the GPU that this consumer's batches go to. There is no answer. If the consumer shares uploads and another
    /// one on the GPU does too, [`Reply::Ring`] or [`Reply::NoRing`] comes later.
    UseGpu(Box<GpuUse>),
    /// Answer a [`Reply::Ring`]. Only a consumer that has mapped a ring is given items that lie there.
    RingMapped {
        /// Number of the ring.
        pool: u32,
        /// `true` if the ring is mapped. Otherwise the consumer cannot use it, and uploads its batches itself.
        is_mapped: bool,
    },
    /// Announce that the consumer has begun to iterate an epoch. Answered by [`Reply::EpochBegun`] if the stream runs the
    /// jobs' own code in worker processes. Otherwise there is no answer.
    EpochStarted {
        /// Number of the epoch, counted from 0.
        epoch: u64,
    },
    /// Announce that the consumer iterates no epoch at present. Answered by [`Reply::EpochLeft`]. Only consumers of streams
    /// that run the jobs' own code in worker processes say it.
    EpochLeft {
        /// Number of the epoch that it iterated last.
        epoch: u64,
        /// `true` if the consumer was given all of the epoch. Otherwise it left it early, and may soon begin another.
        is_complete: bool,
    },
    /// Give the stream a fork server, whose socket comes with the message. The client starts the process after this
    /// message. There is no answer. A fork server that the coordinator does not need finds its socket closed, and ends.
    GiveServer,
    /// Say that this consumer cannot give a fork server, now or later. There is no answer.
    NoServer {
        /// Reason, for people.
        why: String,
    },
    /// Propose the samples of an epoch, in their order, in a memory file as [`order::write`](crate::order::write) makes
    /// it. The first of several proposals holds. All members receive it in [`Reply::Order`]. There is no answer.
    TellOrder {
        /// Epoch that this consumer begins, or has begun.
        epoch: u64,
        /// Number of samples of the epoch.
        samples: u32,
        /// `true` if this consumer received the order before, from a coordinator that has ended. It then holds,
        /// whatever others propose.
        is_settled: bool,
    },
    /// Leave the epoch early and start the next one. Answered by [`Reply::Restarted`].
    RestartEpoch {
        /// Epoch that was left.
        epoch: u64,
        /// Batches that this rank has been given in that epoch, as in [`ResumePoint::batches`].
        batches: u64,
    },
    /// Leave the job in an orderly way. The other ranks go on without this one, in a later stream too. Valid on a
    /// connection whether it is attached or not. Answered by [`Reply::Left`].
    Leave(Departure),
    /// Ask for the job's state at the point where every rank has been given `batches` batches of its current epoch.
    /// Answered by [`Reply::State`].
    State {
        /// Epoch that the caller is in.
        epoch: u64,
        /// Batches that this rank has been given in that epoch, as in [`ResumePoint::batches`].
        batches: u64,
    },
    /// Ask why this consumer waits. Answered by [`Reply::Explanation`].
    Explain,
    /// Ask whom this consumer waits for. Answered by [`Reply::Awaited`].
    WhoIsAwaited,
    /// Ask for the length and classes of a source, and the output of the pipeline. Answered by [`Reply::Described`].
    Describe(Box<Describe>),
    /// Fill the cache. Answered by [`Reply::Progress`], repeatedly, and then by [`Reply::Warmed`]. Closing the
    /// connection stops the warm-up and keeps the samples that are cached.
    Warm(Box<Warm>),
    /// Ask for the state of the coordinator. Answered by [`Reply::Status`].
    Status {
        /// Number of the most expensive samples of each stream to report.
        slow: u32,
    },
    /// Drop the caches of datasets that no job uses, or only that of the named dataset. Answered by [`Reply::Dropped`].
    Drop {
        /// Root folder or name of the only dataset to drop. `None` drops all.
        name: Option<String>,
    },
    /// Mark the cache of a stream as filled on purpose, as by [`Request::Warm`]. Answered by [`Reply::Warmed`].
    KeepWarm {
        /// Number of the stream.
        stream: u64,
        /// As [`Warm::keep`].
        keep: bool,
    },
    /// Ask how the samples of a stream are made. Answered by [`Reply::Pipeline`].
    Pipeline {
        /// Number of the stream.
        stream: u64,
    },
    /// Slow storage down from now on. Without a rate and a latency, storage is as fast as it is. Answered by
    /// [`Reply::Throttled`].
    Throttle {
        /// Bytes a second that all reads share, or `None` for no bound.
        bytes_per_s: Option<u64>,
        /// Nanoseconds that each read takes in addition.
        latency_ns: u64,
    },
    /// End the coordinator. Jobs lose their connection, and memory is freed. Answered by [`Reply::Stopping`].
    Stop,
}

/// Form in which samples are cached.
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
    /// Samples are not cached.
    Off,
    /// Samples are cached as fetched.
    Encoded,
    /// Samples are cached after decoding and the deterministic operators.
    Decoded,
    /// Samples are cached after all operators.
    Prepared,
    /// Each sample is cached in the form that saves most for its bytes, or not at all.
    Auto,
}

/// Form and size of the cache that a job asks for.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CacheRequest {
    /// Form of the cache, or `None` for the coordinator's own setting.
    pub form: Option<CacheForm>,
    /// Bytes of the cache. `None` stands for as many as the dataset needs, within the coordinator's budget.
    pub bytes: Option<u64>,
    /// `true` if the least recently used sample is evicted, instead of none ever. This is the baseline, for comparison.
    pub lru: bool,
    /// Number of times that a prepared sample is used before it is made anew; 0 for no limit.
    pub reuse: u32,
    /// `true` if cached samples are compared with their files first, as these are now.
    pub check_files: bool,
}

/// A job's request for minibatches.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Attach {
    /// Pipeline that prepares the samples.
    pub pipeline: PipelineSpec,
    /// The job's variables that describe the stores of the source. Jobs share a stream only if theirs are the same.
    pub store_variables: StoreVariables,
    /// Number from [`Reply::CredentialsTaken`], if the job gives the credentials of the source's stores itself. Jobs
    /// share a stream only if all of them do, or none does.
    pub provider: Option<u128>,
    /// Way to run the job's own code, if that prepares the samples.
    pub code: Option<UserCode>,
    /// Explicit seed, or `None` for the stream's.
    pub seed: Option<u64>,
    /// Seed for a new stream if `seed` is `None`: the one that the job had before its coordinator ended.
    pub seed_hint: Option<u64>,
    /// `true` if the order is random. Otherwise ids ascend.
    pub shuffle: bool,
    /// Number of samples that a random order is drawn from at a time, if those are read in blocks of neighbours; 0 for
    /// all samples, each of which is read by itself.
    pub shuffle_window: u32,
    /// Set if an epoch consists of independent draws, instead of each sample once. `shuffle` is ignored then.
    pub draws: Option<DrawsRequest>,
    /// `true` if the samples of each epoch, and their order, are told when it begins, by the first member of the cohort
    /// to begin it: see [`Request::TellOrder`]. Only for a job of one rank in a cohort; `shuffle` is ignored then.
    /// Positions in that order stand for ids, as the numbers of [`draws`](Self::draws) do.
    pub is_told: bool,
    /// Set if this client was already handed the order ([`Reply::Order`]) of the epoch of `resume`, or else of the
    /// first one. It is the number of that epoch, whose order the client tells again as soon as it is attached.
    pub knows_order_of: Option<u64>,
    /// `true` if a sample that takes long may come in a later minibatch of its epoch.
    pub relaxed: bool,
    /// Form and size of the cache.
    pub cache: CacheRequest,
    /// Samples of one batch of this job. With several ranks, it is the batch of one rank.
    pub batch_size: u32,
    /// `true` if the last batch is left out if it is short.
    pub drop_last: bool,
    /// Rank of this consumer.
    pub rank: u32,
    /// Number of ranks of the job.
    pub world_size: u32,
    /// Name that the ranks of one job share and no other job has. Ignored for a job of one rank.
    pub group: String,
    /// Ids of this job's samples, as a serialised Roaring bitmap, or `None` for all.
    pub subset: Option<Vec<u8>>,
    /// Point at which to go on, or `None` for the beginning.
    pub resume: Option<ResumePoint>,
    /// Number of samples of the dataset for which [`resume`](Self::resume) was taken or, without it, for which the mask
    /// [`subset`](Self::subset) was made. The request is refused if the dataset has another number.
    pub dataset_samples: Option<u32>,
    /// Cohort of jobs that start together and get one reproducible sequence.
    pub cohort: Option<CohortRequest>,
    /// `true` if a sample that fails is counted and replaced instead of raised.
    pub skip_errors: bool,
    /// Jobs that this rank belonged to before it lost its connection, by [`Attached::token`]: the one in which it was
    /// last given a batch, and a later one if it has attached since. Empty if it was given nothing.
    pub tokens: Vec<u128>,
    /// The latest [`Attached::token`] of this rank, or `None` if it was never attached. If another rank has left the
    /// job of this token, then that job had begun, and this rank was in it.
    pub told: Option<u128>,
    /// Ranks of that job that have left it in an orderly way, as far as this rank was told.
    pub departed: Vec<Departure>,
    /// `true` if the job had begun before this client lost its connection: the client was given a batch, or one lay
    /// ready for it.
    pub has_begun: bool,
}

impl Attach {
    /// Returns true if the dataset can only be iterated ([`is_iterated`](crate::spec::UserDataset::is_iterated)).
    #[must_use]
    pub fn is_iterated(&self) -> bool {
        matches!(&self.pipeline.source, Source::UserCode(user) if user.is_iterated)
    }

    /// Returns true if the job's epochs are those of its cohort: their samples are known only when they are told or
    /// iterated.
    #[must_use]
    pub fn is_of_cohort(&self) -> bool {
        self.is_told || self.is_iterated()
    }
}

/// Most draws of an epoch. When an epoch ends, their set is walked once under the stream's lock, which bounds how long
/// others wait.
pub const MOST_DRAWS: u32 = 1 << 26;

/// Request for epochs of independent draws with replacement. It is part of the identity of a stream.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct DrawsRequest {
    /// Draws of an epoch, from 1 to [`MOST_DRAWS`]. Where samples of a job are counted or named
    /// ([`ResumePoint::delivered`]), the numbers of draws, `0..count`, stand for ids.
    pub count: u32,
    /// Weight of each sample of the dataset: finite, not negative, with a positive sum. `None` makes all samples
    /// equally likely.
    pub weights: Option<Vec<f64>>,
}

/// Way to run a job's own code in worker processes.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
pub struct UserCode {
    /// Number of workers; 0 for the coordinator's own number.
    pub workers: u32,
    /// Longest time for one sample, in milliseconds. After it, the sample's worker is replaced.
    pub sample_timeout_ms: u64,
    /// `true` if workers stay between the epochs of the job.
    pub is_persistent: bool,
    /// `true` if some samples are to be made from the job's memory too, and compared, before it shares.
    pub has_shadows: bool,
}

/// The GPU that a consumer's batches go to.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct GpuUse {
    /// UUID of the GPU, or of an instance of one that is divided, as `CUDA_VISIBLE_DEVICES` takes it.
    pub uuid: String,
    /// `true` if an uploader may copy the minibatches, once for all such consumers on the GPU.
    pub is_shared: bool,
    /// The variables of the consumer's environment that the NVIDIA driver reads, as names and values. The uploader gets
    /// them. Consumers with another [`MPS_DIRECTORY`] use another uploader.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Variable that names the folder of the MPS server, which processes of one GPU may go through.
pub const MPS_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Returns `true` if the NVIDIA driver reads a variable of the environment, or the loader that finds the driver does.
#[must_use]
pub fn is_of_driver(variable: &[u8]) -> bool {
    variable == b"LD_LIBRARY_PATH"
        || variable.starts_with(b"CUDA_")
        || variable.starts_with(b"NVIDIA_")
}

/// Bound of epoch numbers: all epochs have smaller numbers, so that counting on from a number that another process
/// names does not overflow.
pub const MOST_EPOCHS: u64 = 1 << 62;

/// A point within an epoch of a job.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Number of the epoch, counted from 0, below [`MOST_EPOCHS`].
    pub epoch: u64,
    /// Samples that were already given in the epoch, as a serialised Roaring bitmap. A sample that failed in a batch
    /// was given with it.
    pub delivered: Vec<u8>,
    /// Batches that this rank was given in the epoch since the user began or resumed the job. The coordinator levels
    /// ranks that come back from different steps.
    pub batches: u64,
    /// `true` if this rank was given all of its part of the epoch. The remaining samples are for the other ranks.
    pub is_done: bool,
    /// Samples that are left out of the job's epochs, as the job was told, as a serialised Roaring bitmap. Empty if
    /// there are none.
    pub skipped: Vec<u8>,
    /// The groups of samples that come first in the epoch, because it continues one that was left early.
    pub carried: Vec<CarriedOver>,
}

/// Largest number of groups that are carried over. Three come of epochs that are left at one step again and again.
pub const MOST_CARRIED: usize = 64;

/// A group of samples that an epoch which was left early carries over to the next.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct CarriedOver {
    /// Epoch that keys their draws, below [`MOST_EPOCHS`].
    pub epoch: u64,
    /// Number of samples that the job was given from the beginning of that epoch to that of its present one, below
    /// [`MOST_EPOCHS`].
    pub before: u64,
    /// The samples, as a serialised Roaring bitmap.
    pub ids: Vec<u8>,
}

/// A rank that has left its job in an orderly way, and the point where it stood. It does not come back.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Token of the job, from [`Attached::token`].
    pub token: u128,
    /// Rank that has left.
    pub rank: u32,
    /// Point that the rank would present if it attached again.
    pub resume: ResumePoint,
}

/// A cohort that a job wants to join. See [`Attach::cohort`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct CohortRequest {
    /// Name that the cohort's members share.
    pub name: String,
    /// Number of members to wait for.
    pub size: u32,
}

/// Credentials of the stores of one kind. See [`Request::GiveCredentials`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct GiveCredentials {
    /// Scheme of the stores' URLs.
    pub scheme: UrlScheme,
    /// The credentials.
    pub given: TimedCredentials,
}

/// Parameters of a description. See [`Request::Describe`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Describe {
    /// The source, and operators or none.
    pub pipeline: PipelineSpec,
    /// The client's variables that describe the stores of the source.
    pub store_variables: StoreVariables,
    /// As [`Attach::provider`].
    pub provider: Option<u128>,
}

/// Parameters of a warm-up. See [`Request::Warm`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Warm {
    /// Pipeline that the jobs will use.
    pub pipeline: PipelineSpec,
    /// The client's variables that describe the stores of the source.
    pub store_variables: StoreVariables,
    /// As [`Attach::provider`].
    pub provider: Option<u128>,
    /// Form and size of the cache.
    pub cache: CacheRequest,
    /// `true` if the cache stays though nothing uses it and another dataset needs the room.
    pub keep: bool,
}

/// A message from the coordinator to a client.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Reply {
    /// Answer to [`Request::Hello`].
    Welcome {
        /// Process id of the coordinator.
        pid: u32,
        /// Version of the coordinator.
        version: String,
    },
    /// Answer to [`Request::Attach`].
    Attached(Box<Attached>),
    /// Answer to [`Request::Attach`]: no process runs this code yet, so the client must start a fork server.
    WantServer,
    /// Answer to [`Request::EpochStarted`].
    EpochBegun {
        /// `true` if the stream has no fork server. The client should give one ([`Request::GiveServer`]).
        wants_server: bool,
    },
    /// Answer to [`Request::EpochLeft`].
    EpochLeft {
        /// Process id of the fork server that ends now, since no consumer iterates an epoch; 0 if none does.
        ended_server: u32,
    },
    /// Answer to the first [`Request::GiveCredentials`] of a connection.
    CredentialsTaken {
        /// Number by which requests on other connections name these credentials.
        provider: u128,
    },
    /// Asks for new credentials, because a store has refused the last ones, or they have expired. It comes unasked, after
    /// [`Reply::CredentialsTaken`]. Answered by [`Request::GiveCredentials`] or [`Request::NoCredentials`].
    WantCredentials,
    /// Names the party that must act before this client can go on, or `None` if nobody must. It answers
    /// [`Request::WhoIsAwaited`]. It also comes unasked, perhaps several times, before [`Reply::Attached`],
    /// [`Reply::Described`] or [`Reply::Warmed`], if one of these takes long.
    Awaited(Option<Awaited>),
    /// A sample failed. It is sent before the error's item is published in the consumer's queue.
    SampleError(SampleError),
    /// Samples are left out of the job's epochs. It is sent before the notice's item is published in the consumer's
    /// queue.
    Skipped(Box<Skipped>),
    /// The samples of an epoch, in their order, in a memory file as [`order::write`](crate::order::write) makes it. It
    /// comes unasked. Until it has come, no sample of the epoch is handed to a user.
    Order {
        /// Number of the epoch, counted from 0.
        epoch: u64,
        /// Number of samples of the epoch.
        samples: u32,
    },
    /// A ring is open that the consumer may map. Two descriptors come with it: the memory of the GPU, and a staging area on
    /// the host with the ids of the samples ([`INDEX`](crate::spec::INDEX), then [`NUMBER`](crate::spec::NUMBER) if the
    /// stream has it). It comes unasked. Answered by [`Request::RingMapped`].
    Ring {
        /// Number of the ring, by which items name it. It is not 0.
        pool: u32,
        /// Number of buffers. Each is laid out by
        /// [`GpuBatchLayout`](crate::gpu_batch::GpuBatchLayout) for as many samples as a staging buffer has.
        buffers: u32,
        /// Bytes of the GPU's memory.
        bytes: u64,
    },
    /// There is no ring, and will be none as long as the consumers stay: each uploads its batches itself. It comes unasked.
    NoRing {
        /// Reason, with the remedy.
        why: String,
    },
    /// Answer to [`Request::RestartEpoch`].
    Restarted {
        /// Epoch that begins.
        epoch: u64,
        /// First item of that epoch. Items with smaller sequence numbers belong to the epoch that was left.
        first_seq: u64,
        /// `true` if the epoch goes on with the batch that is in hand: parts of it that were taken belong to it.
        goes_on: bool,
        /// As [`ResumePoint::carried`], of that epoch.
        carried: Vec<CarriedOver>,
    },
    /// Answer to [`Request::Leave`]: the other ranks that are attached have been told.
    Left {
        /// `true` if all other ranks of the job are attached, or have left as well. Otherwise the departure is lost if the
        /// coordinator ends before they come.
        is_known: bool,
    },
    /// Another rank has left the job. It comes unasked. The client presents it in [`Attach::departed`].
    Departed(Departure),
    /// Answer to [`Request::State`].
    State(ResumePoint),
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
    /// Progress of a warm-up.
    Progress(WarmProgress),
    /// A warm-up is finished, with these counts.
    Warmed(WarmProgress),
    /// Answer to [`Request::Status`].
    Status(Box<Status>),
    /// Answer to [`Request::Drop`].
    Dropped {
        /// Bytes that were freed.
        bytes: u64,
    },
    /// Answer to [`Request::Pipeline`]. `None` means that the jobs' own code makes the samples.
    Pipeline(Option<Box<PipelineSpec>>),
    /// Answer to [`Request::Throttle`].
    Throttled,
    /// Answer to [`Request::Stop`].
    Stopping,
    /// The request was refused or failed.
    Refused(Refusal),
}

/// An event that a client waits for and cannot bring about by itself, or that nobody can hurry.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Party that has to act, and its task, in words for people.
    pub what: String,
    /// Milliseconds since that step began; 0 if this is not known.
    pub for_ms: u64,
    /// Remedy for the user. Empty if there is none.
    pub remedy: String,
}

/// The refusal of a request.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Class of the error that the client raises.
    pub kind: RefusalKind,
    /// The failure, its location, and the remedy.
    pub message: String,
    /// Sample on which user code failed before anything could be prepared.
    pub sample: Option<Box<SampleError>>,
}

/// Classes of refusal.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// An argument is wrong.
    Invalid,
    /// A file or folder is missing or unreadable.
    NotFound,
    /// Memory does not suffice.
    Memory,
    /// The job's own code cannot be run, or failed.
    Code,
    /// A step takes longer than its limit.
    Late,
    /// Remote storage does not answer, or refuses.
    Storage,
    /// Any other failure.
    Internal,
}

/// The coordinator's answer to a new consumer.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Attached {
    /// Stream that the job takes part in.
    pub stream: u64,
    /// Number of the job.
    pub job: u64,
    /// Seed that the stream uses.
    pub seed: u64,
    /// Number of samples of the dataset.
    pub dataset_samples: u32,
    /// Number of samples of this job's epoch.
    pub job_samples: u32,
    /// Class names, by label.
    pub classes: Vec<String>,
    /// Tensors of a batch, in the order of the staging layout.
    pub fields: Vec<Field>,
    /// Samples of one staging buffer.
    pub slots: u32,
    /// Number of staging buffers.
    pub buffers: u32,
    /// Bytes that samples larger than their slots may take together; 0 if there are no such samples.
    pub large_bytes: u64,
    /// Epoch that the job is in.
    pub epoch: u64,
    /// Description of how user code makes batches of the fields. Empty for native pipelines.
    pub structure: Vec<u8>,
    /// Reasons why a warmed cache of the same samples is not used, one sentence for each cache.
    pub notes: Vec<String>,
    /// Why the job does not share with jobs that use the same class of dataset, one sentence for each of their streams.
    pub unshared: Vec<String>,
    /// A sentence on the samples of the dataset that are left out, with their number and the first of them, or `None`.
    pub left_out: Option<String>,
    /// Distinguishes the job from every other, including those of the same group. To be presented in
    /// [`Attach::tokens`].
    pub token: u128,
}

/// A sample that could not be prepared.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct SampleError {
    /// Number that equals the `tag` of the error's item.
    pub tag: u64,
    /// Sample id.
    pub id: u32,
    /// Path of the sample's file.
    pub path: String,
    /// Stage that failed: `fetch`, `decode` or `prepare`; for user code `dataset` or `transform`; [`STORAGE_STAGE`].
    pub stage: String,
    /// Reason of the failure, with the remedy.
    pub message: String,
    /// Worker that ran user code, for people. Empty for native pipelines.
    pub worker: String,
    /// The exception of user code, as its worker packed it. Empty for native pipelines.
    pub exception: Vec<u8>,
}

/// Stage of a failure of storage. It says nothing about the sample, so it is an error for every job, also for jobs that
/// skip samples.
pub const STORAGE_STAGE: &str = "storage";

/// Samples that are left out of a job's epochs because they could not be prepared. See [`Attach::skip_errors`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Ids of the samples, as a serialised Roaring bitmap.
    pub ids: Vec<u8>,
    /// The failure of one of them. Its `tag` is that of the notice's item.
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
    /// Number of samples that were processed so far.
    pub done: u64,
    /// Samples of the dataset.
    pub total: u64,
    /// Samples cached in all.
    pub cached: u64,
    /// Bytes cached in the encoded form.
    pub encoded_bytes: u64,
    /// Bytes cached in the decoded form.
    pub decoded_bytes: u64,
    /// Bytes that the cache may hold.
    pub capacity: u64,
    /// Bytes read from storage by this warm-up.
    pub fetched_bytes: u64,
    /// Requests to the dataset's remote stores since this warm-up began, those of other jobs included. `None` for local
    /// files.
    pub requests: Option<u64>,
    /// Samples that failed.
    pub failed: u64,
    /// Text of the first failure.
    pub first_failure: Option<String>,
    /// `true` if the cache is full. The other samples are prepared as they are needed.
    pub full: bool,
    /// Form of the cache, or `None` if memory holds nothing.
    pub form: Option<CacheForm>,
    /// Samples on the local disk in all.
    pub on_disk: u64,
    /// Bytes that they take.
    pub disk_bytes: u64,
    /// Bytes that the disk may hold of this dataset; 0 without a disk.
    pub disk_capacity: u64,
}
