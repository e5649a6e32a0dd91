//! Errors of attaching a job.

use crate::JobId;

/// The reason why a job cannot be served as it asks, and the change that would make it possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The caller chose a number that another job uses.
    #[error("job {} is attached already", .0.0)]
    Duplicate(JobId),
    /// A batch must have at least one sample.
    #[error("batch_size is 0: it must be at least 1")]
    NoBatchSize,
    /// A job has at least one rank.
    #[error("world_size is 0: it must be at least 1")]
    NoRanks,
    /// The dataset, or the subset, has no samples.
    #[error("there are no samples to deliver: the dataset or the subset is empty")]
    NoSamples,
    /// The subset, or the state to resume from, names a sample that does not exist.
    #[error("sample {id} does not exist: the dataset has {samples} samples, counted from 0")]
    OutOfRange {
        /// The largest id named.
        id: u32,
        /// Samples of the dataset.
        samples: u32,
    },
    /// Some rank would get no sample.
    #[error(
        "{remaining} samples cannot be dealt to {ranks} ranks: every rank needs at least one; \
         use fewer ranks, or drop_last=True"
    )]
    FewerSamplesThanRanks {
        /// Samples that are left in the epoch.
        remaining: u64,
        /// Ranks of the job.
        ranks: u32,
    },
    /// Batches of one sample cannot be made smaller to even out a rest.
    #[error(
        "{remaining} samples cannot be dealt evenly to {ranks} ranks in batches of 1: \
         use drop_last=True or batch_size >= 2"
    )]
    Uneven {
        /// Samples that are left in the epoch.
        remaining: u64,
        /// Ranks of the job.
        ranks: u32,
    },
    /// With `drop_last`, an epoch would be empty.
    #[error(
        "{samples} samples do not fill one batch of {batch_size} for each of {ranks} ranks, \
         and drop_last=True drops what does not: use a smaller batch_size or drop_last=False"
    )]
    AllDropped {
        /// Samples of the job.
        samples: u64,
        /// Samples of a batch.
        batch_size: u32,
        /// Ranks of the job.
        ranks: u32,
    },
    /// A cohort without members would never start.
    #[error("cohort '{0}' has size 0: it must be at least 1")]
    EmptyCohort(String),
    /// The members disagree about the size of their cohort.
    #[error("cohort '{name}' has {known} members for its first member and {asked} for this one")]
    CohortSize {
        /// Name of the cohort.
        name: String,
        /// Size that its first member gave.
        known: u32,
        /// Size that this member gives.
        asked: u32,
    },
    /// The members ask for different samples.
    #[error("the members of cohort '{0}' must have the same subset")]
    CohortSubset(String),
    /// All members of the cohort are attached already.
    #[error("cohort '{name}' has its {size} members already: use another name")]
    CohortFull {
        /// Name of the cohort.
        name: String,
        /// Number of its members.
        size: u32,
    },
}
