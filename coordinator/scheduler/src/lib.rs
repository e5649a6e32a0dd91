//! Demand-driven coordinated preparation: chooses the samples of the next minibatch, and the jobs that get it.
//!
//! The crate is a pure state machine. It has no clock, no I/O and no thread, and all its randomness comes from the
//! seed. The caller reports events ([`attach`](Scheduler::attach), [`taken`](Scheduler::taken), ...) and asks
//! for the [`next`](Scheduler::next) minibatch. Therefore the same code runs in the coordinator, in property tests and
//! in the simulation (`cargo run --release -p coprep-benchmarks --bin simulate`).
//!
//! # The rule
//!
//! 1. Every job has a *need*, the samples that it must still be given in its epoch, and a bounded queue of minibatches
//!    for each rank. The bound is `clamp(free - empty queues, 1, depth)`: it shrinks with the free buffers. While the
//!    bound is below `depth`, at most `low_water` minibatches of a queue may be minibatches that no other job waits
//!    for.
//! 2. A minibatch is made when every job has room in its queue, or when some job is about to starve. A slow job neither
//!    causes a minibatch nor delays one.
//! 3. The leader is a starving job that was passed over for more than J minibatches (J: number of jobs), the longest
//!    wait first. Otherwise it is a starving job, smallest need first, or else any job with room. Then every further
//!    job with room joins, smallest need first, while the intersection of their needs still fills the minibatch.
//! 4. The samples are drawn at random from that intersection and leave those jobs' needs. A need that becomes empty
//!    ends that job's epoch and is refilled. A short last minibatch goes only to jobs whose epoch it ends. If the leader
//!    has left an epoch early, its samples that were not given in it come before others.
//! 5. A job leads only in an epoch that one of its ranks has begun, or within the first samples of an epoch, as many as
//!    [`set_ahead`](Scheduler::set_ahead) says. Otherwise it takes part in minibatches that others lead.
//!
//! [`DrawOrder::Ascending`] promises more to each job and shares less. Among equal candidates the job with the smallest
//! next id leads, and is assigned its next ids. A job takes part only if these are its next ids too. A minibatch is cut
//! short at the next id of another job, so that the two continue together. Of `W` ranks, rank `r` is assigned the
//! positions `r`, `r + W`, `r + 2 W`, ... of the job's set. If ranks come back from different steps, or samples cannot be
//! read, a rank is assigned positions of another where its own have run out, so that all have as many batches.
//!
//! Ask late. While more than about a minibatch of samples waits for a worker, drawing the next minibatch gains nothing,
//! and it would be drawn for the jobs as they are now instead of as they are when it is prepared. `docs/explanation/scheduler.md`
//! explains why all this works, and gives the measured gains.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | [`scheduler`](Scheduler) | the rule |
//! | `job` | one job: need, queues, epochs |
//! | `rank_batcher` | cuts a job's samples into batches and assigns them to its ranks |
//! | `draw` | keyed random draws |
//! | `windows` | random draws from a window, for samples that are read in blocks |
//! | `ascending` | ascending order: which jobs take part, and where jobs meet |
//! | `carried` | epochs that continue one that was left early |
//! | `forfeit` | samples that nobody is given, because their rank left |
//! | `need` | sets of samples with a fingerprint |
//! | `queue`, `delivery_log` | deliveries not yet taken; deliveries since a step |
//!
//! # Invariants
//!
//! - Each sample of a job's set is assigned to it exactly once per epoch, except the samples that `drop_last` drops and
//!   samples that cannot be read.
//! - With [`DrawOrder::Ascending`], the ids that each rank of a job is assigned in an epoch ascend, as long as it is
//!   assigned its own positions.
//! - All ranks of a job are assigned equally many batches of an epoch, also when they resume from different steps of
//!   it.
//! - A job that is alone on the stream, or a cohort, is assigned a sequence that depends only on seed, set and batch
//!   size, and on how many batches it was given of the epochs that it [left](Scheduler::leave_epoch) early.
//! - An epoch that continues one that was left early begins with the samples that were not given in that one. If it is
//!   not left itself, it has each sample once.
#![forbid(unsafe_code)]

mod ascending;
mod carried;
mod delivery_log;
mod draw;
mod error;
mod forfeit;
mod job;
mod need;
mod queue;
mod rank_batcher;
mod scheduler;
mod windows;

pub use carried::CarriedOver;
pub use draw::{below, keyed};
pub use error::{Error, ErrorKind};
pub use job::JobView;
use roaring::RoaringBitmap;
pub use scheduler::Scheduler;
pub use windows::Windows;

/// Settings that all jobs of a stream have in common.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of samples of the dataset. Ids are `0..samples`.
    pub samples: u32,
    /// Samples of a full minibatch, which is the size of a staging buffer.
    pub slots: u32,
    /// Largest number of minibatches in a rank's queue.
    pub depth: u32,
    /// A rank is about to starve when its queue holds this many minibatches' worth of samples, or fewer.
    pub low_water: u32,
    /// Seed that keys every draw.
    pub seed: u64,
    /// Order in which jobs are assigned the samples of an epoch.
    pub order: DrawOrder,
    /// `true` if [`Scheduler::tell_epoch`] sets the length of each epoch when it begins, in place of
    /// [`samples`](Self::samples). Only for jobs without a subset that advance together in one cohort.
    pub is_told: bool,
    /// Set if [`DrawOrder::Random`] draws from windows of the dataset. The other orders ignore it.
    pub windows: Option<Windows>,
}

/// Order in which a job is assigned the samples of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawOrder {
    /// At random, from the samples that all jobs of a minibatch need.
    Random,
    /// Ascending ids for every job, whichever other jobs are on the stream. Jobs share a minibatch only where the next
    /// ids that each needs are the same.
    Ascending,
    /// The smallest ids that all jobs of a minibatch need. They ascend for a job that is alone, but not for jobs that
    /// share.
    AscendingInCommon,
}

/// A job's number, given by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// A job's request to be attached.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Number of samples in a batch of one rank.
    pub batch_size: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Leaves out the samples that do not fill a batch on every rank.
    pub drop_last: bool,
    /// The samples of the job, or `None` for all samples of the dataset.
    pub subset: Option<RoaringBitmap>,
    /// The point to continue from, or `None` for the beginning of the first epoch.
    pub resume: Option<Resume>,
    /// The cohort of the job. Its members start together and are assigned the same sequence.
    pub cohort: Option<Cohort>,
    /// Leaves samples that were found to be bad out of its epochs.
    pub skip_bad: bool,
}

/// A point within an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resume {
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Samples that the job was given in this epoch, including the ones that failed in a batch.
    pub delivered: RoaringBitmap,
    /// Samples that are known to be bad, if the job skips such samples.
    pub bad: RoaringBitmap,
    /// The groups of samples that come first in the epoch, because it continues one that was left early. See
    /// [`Scheduler::leave_epoch`].
    pub carried: Vec<CarriedOver>,
}

/// The positions of a job's ranks when they come back to an epoch; see [`Scheduler::attach_behind`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Behind<'a> {
    /// By rank: how many batches fewer it was given than the rank that was given most. Empty if all ranks are level.
    pub batches: &'a [u32],
    /// `true` if some rank was given all of its part of the epoch. The rest is then for the ranks that are behind.
    pub others_are_done: bool,
    /// Number of samples that ranks which left the job would have been given before the job is level. Nobody is given
    /// them.
    pub forfeited: u64,
}

/// A group of jobs that start together and are assigned the same sequence; see [`JobSpec::cohort`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Name that the members have in common.
    pub name: String,
    /// Number of members.
    pub size: u32,
}

/// A sample to prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Id of the sample.
    pub id: u32,
    /// Key of its random operators. It is the epoch if all its jobs are in the same epoch, and always for a cohort. For
    /// a sample that all its jobs have carried over from one epoch, it is that one. Otherwise it is a large number that
    /// is used only once.
    pub visit: u64,
}

/// A job that a minibatch is for, with its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The job.
    pub job: JobId,
    /// The job's epoch when the minibatch was drawn.
    pub epoch: u64,
}

/// A slice of a minibatch for one rank. A rank's deliveries form its batches in order of preparation, and within one
/// minibatch in order of `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The job.
    pub job: JobId,
    /// The rank.
    pub rank: u32,
    /// The job's epoch.
    pub epoch: u64,
    /// The first slot.
    pub start: u32,
    /// The number of slots.
    pub len: u32,
    /// `true` if it completes a batch.
    pub ends_batch: bool,
    /// `true` if it completes the rank's epoch.
    pub ends_epoch: bool,
}

/// The next minibatch to prepare.
#[derive(Clone, Debug)]
pub struct Minibatch {
    /// The sample of each slot.
    pub samples: Vec<Draw>,
    /// The slots that each rank gets.
    pub deliveries: Vec<Delivery>,
    /// The jobs that it is for.
    pub targets: Vec<Target>,
}
