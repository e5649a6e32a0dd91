//! Demand-driven coordinated preparation: which samples the next minibatch holds, and which jobs get it.
//!
//! A pure state machine: no clock, no I/O, no thread, no randomness but what the seed gives. The caller
//! tells it what happened ([`attach`](Scheduler::attach), [`taken`](Scheduler::taken), ...) and asks for
//! the [`next`](Scheduler::next) minibatch. That is why the same code runs in the coordinator, in property
//! tests and in the simulation (`cargo run --release -p coprep-scheduler --example simulate`).
//!
//! # The rule
//!
//! 1. Every job has its *need*, the samples it has still to be given in its epoch, and a bounded queue of
//!    minibatches for each rank. The bound is `clamp(free - empty queues, 1, depth)`: it shrinks with the
//!    free buffers. While it is below `depth`, no more than `low_water` of a queue's minibatches may be such
//!    that nobody else waits for.
//! 2. A minibatch is made when every job has room in its queue, or when some job is about to starve: never
//!    because of a slow job, and never later because of one.
//! 3. It starts with a starving job that has been passed over for more than J minibatches (J: number of
//!    jobs), the longest first; else with a starving job, smallest need first; else with any job with
//!    room. Then every further job with room is taken, smallest need first, while the intersection of
//!    their needs still fills the minibatch.
//! 4. The samples are drawn at random from that intersection and leave those jobs' needs. A need that runs
//!    empty ends that job's epoch and refills. A short last minibatch goes only to jobs whose epoch it
//!    ends.
//! 5. A job leads only in an epoch that one of its ranks has begun, or within so many samples of its beginning as
//!    [`set_ahead`](Scheduler::set_ahead) says. Otherwise it takes part in what is made for others.
//!
//! [`DrawOrder::Ascending`] promises more to each job and shares less. Among equals the job with the smallest
//! next id leads, and is dealt its next ids. A job takes part only if these are its next ids too. A minibatch
//! is cut short where another job stands, so that the two go on together.
//!
//! Ask late: while more than about a minibatch of samples waits for a worker, nothing is won by drawing the
//! next one, and it would be for the jobs as they are now, not as they are when it is prepared.
//! `docs/explanation/scheduler.md` says why all this works, and what it is worth.
//!
//! # Modules
//!
//! | module | what |
//! |---|---|
//! | [`scheduler`](Scheduler) | the rule |
//! | `job` | one job: need, queues, epochs |
//! | `deal` | a job's samples cut into batches and dealt to its ranks |
//! | `draw` | keyed random draws |
//! | `ascending` | ascending order: who takes part, and where jobs meet |
//! | `need` | sets of samples with a fingerprint |
//! | `queue`, `ledger` | what was dealt and not yet taken; what was dealt since a step |
//!
//! # Invariants
//!
//! - Each sample of a job's set is dealt to it exactly once per epoch, but for what `drop_last` drops and
//!   what cannot be read.
//! - With [`DrawOrder::Ascending`], the ids that a job is dealt in an epoch ascend.
//! - All ranks of a job are dealt equally many batches of an epoch, also when they come back from different
//!   steps of it.
//! - A job alone, and a cohort, is dealt a sequence that depends on seed, set and batch size alone.
#![forbid(unsafe_code)]

mod ascending;
mod deal;
mod draw;
mod error;
mod forfeit;
mod job;
mod ledger;
mod need;
mod queue;
mod scheduler;

pub use draw::{below, keyed};
pub use error::AttachError;
pub use job::JobView;
use roaring::RoaringBitmap;
pub use scheduler::Scheduler;

/// What all jobs of a stream have in common.
#[derive(Clone, Debug)]
pub struct Config {
    /// Samples of the dataset; ids are 0..samples.
    pub samples: u32,
    /// Samples of a full minibatch: what a staging buffer holds.
    pub slots: u32,
    /// Most minibatches in a rank's queue.
    pub depth: u32,
    /// A rank with this many minibatches' worth of samples, or fewer, is about to starve.
    pub low_water: u32,
    /// Keys every draw.
    pub seed: u64,
    /// Order in which jobs are dealt the samples of an epoch.
    pub order: DrawOrder,
    /// An epoch has as many samples as [`Scheduler::tell_epoch`] says when it begins, instead of [`samples`](Self::samples).
    /// For jobs without a subset that advance together: they are in one cohort.
    pub is_told: bool,
}

/// Order in which a job is dealt the samples of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawOrder {
    /// At random, from what all jobs of a minibatch need.
    Random,
    /// Ascending ids for every job, whoever else is on the stream. Jobs share a minibatch only where the
    /// next ids that each needs are the same.
    Ascending,
    /// The smallest ids that all jobs of a minibatch need: ascending for a job alone, but not beside others.
    AscendingInCommon,
}

/// A job's number, given by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// What a job wants.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Samples of a batch of one rank.
    pub batch_size: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Leave out what does not fill a batch on every rank.
    pub drop_last: bool,
    /// Its samples; None: all.
    pub subset: Option<RoaringBitmap>,
    /// Where to go on; None: at the beginning.
    pub resume: Option<Resume>,
    /// Starts with its members, and is dealt the same sequence.
    pub cohort: Option<Cohort>,
    /// Samples that were found bad are left out of its epochs.
    pub skip_bad: bool,
}

/// A point within an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Resume {
    /// Counted from 0.
    pub epoch: u64,
    /// Samples that were given in it, those that failed in a batch included.
    pub delivered: RoaringBitmap,
    /// Samples that are known to be bad, by a job that skips such samples.
    pub bad: RoaringBitmap,
}

/// How the ranks of a job come back to an epoch; see [`Scheduler::attach_behind`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Behind<'a> {
    /// By rank: how many batches less it was given than the rank that was given most. Empty: all are level.
    pub batches: &'a [u32],
    /// Some rank was given all of its part of the epoch. What is left is for those that are behind.
    pub others_are_done: bool,
    /// Samples that ranks which have left the job would have been given before it is level. Nobody is given them.
    pub forfeited: u64,
}

/// See [`JobSpec::cohort`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Common to the members.
    pub name: String,
    /// Number of members.
    pub size: u32,
}

/// A sample that is to be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Sample.
    pub id: u32,
    /// Keys its random operators: the epoch, if all its jobs are in the same one, and for a cohort;
    /// otherwise a large number that does not come again.
    pub visit: u64,
}

/// A job that a minibatch is for, and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Job.
    pub job: JobId,
    /// Epoch of the job when it was drawn.
    pub epoch: u64,
}

/// A slice of a minibatch for one rank. In order of preparation, and within one minibatch in order of
/// `start`, a rank's deliveries are its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Job.
    pub job: JobId,
    /// Rank.
    pub rank: u32,
    /// Epoch of the job.
    pub epoch: u64,
    /// First slot.
    pub start: u32,
    /// Number of slots.
    pub len: u32,
    /// It completes a batch.
    pub ends_batch: bool,
    /// It completes the rank's epoch.
    pub ends_epoch: bool,
}

/// What is to be prepared next.
#[derive(Clone, Debug)]
pub struct Minibatch {
    /// Slot by slot.
    pub samples: Vec<Draw>,
    /// Who gets which slots.
    pub deliveries: Vec<Delivery>,
    /// Jobs it is for.
    pub targets: Vec<Target>,
}
