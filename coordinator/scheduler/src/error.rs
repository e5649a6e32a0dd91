//! Errors of attaching a job.

use crate::{Cohort, JobId};

/// The reason why a job cannot be served as it asks. See [`coprep_error`].
pub type Error = coprep_error::Error<ErrorKind>;

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller chose a number that another job uses.
    Duplicate,
    /// A batch must have at least one sample.
    NoBatchSize,
    /// A job has at least one rank.
    NoRanks,
    /// The dataset, or the subset, has no samples.
    NoSamples,
    /// The subset, or the state to resume from, names a sample that does not exist.
    OutOfRange,
    /// Some rank would get no sample.
    FewerSamplesThanRanks,
    /// Batches of one sample cannot be made smaller to even out a rest.
    Uneven,
    /// With `drop_last`, an epoch would be empty.
    AllDropped,
    /// A cohort without members would never start.
    EmptyCohort,
    /// The members disagree about the size of their cohort.
    CohortSize,
    /// The members ask for different samples.
    CohortSubset,
    /// All members of the cohort are attached already.
    CohortFull,
}

pub(crate) fn duplicate(id: JobId) -> Error {
    Error::new(
        ErrorKind::Duplicate,
        format!("job {} is attached already", id.0),
    )
}

/// Returns the error of a number that is zero. `what` says which one is.
pub(crate) fn zero(kind: ErrorKind, what: impl Into<String>) -> Error {
    Error::new(kind, what).with_remedy("it must be at least 1")
}

pub(crate) fn no_samples() -> Error {
    Error::new(
        ErrorKind::NoSamples,
        "there are no samples to deliver: the dataset or the subset is empty",
    )
}

/// Returns the error that `id`, the largest one named, is too large for a dataset of `samples` samples.
pub(crate) fn out_of_range(id: u32, samples: u32) -> Error {
    Error::new(
        ErrorKind::OutOfRange,
        format!("sample {id} does not exist: the dataset has {samples} samples, counted from 0"),
    )
}

/// Returns the error that the samples that `remain` in the epoch cannot be assigned to `ranks` ranks.
pub(crate) fn cannot_be_assigned(remain: u64, batch_size: u32, ranks: u32) -> Error {
    match batch_size {
        1 => Error::new(
            ErrorKind::Uneven,
            format!("{remain} samples cannot be assigned evenly to {ranks} ranks in batches of 1"),
        )
        .with_remedy("use drop_last=True or batch_size >= 2"),
        _ => Error::new(
            ErrorKind::FewerSamplesThanRanks,
            format!(
                "{remain} samples cannot be assigned to {ranks} ranks: every rank needs at least one"
            ),
        )
        .with_remedy("use fewer ranks, or drop_last=True"),
    }
}

pub(crate) fn all_dropped(samples: u64, batch_size: u32, ranks: u32) -> Error {
    Error::new(
        ErrorKind::AllDropped,
        format!(
            "{samples} samples do not fill one batch of {batch_size} for each of {ranks} ranks, and drop_last=True \
             drops what does not"
        ),
    )
    .with_remedy("use a smaller batch_size or drop_last=False")
}

/// Returns the error that a cohort's first member gave another size than `asked`.
pub(crate) fn cohort_size(asked: &Cohort, known: u32) -> Error {
    let Cohort { name, size } = asked;
    Error::new(
        ErrorKind::CohortSize,
        format!("cohort '{name}' has {known} members for its first member and {size} for this one"),
    )
    .with_remedy("give every member the same size")
}

pub(crate) fn cohort_subset(name: &str) -> Error {
    Error::new(
        ErrorKind::CohortSubset,
        format!("the members of cohort '{name}' must have the same subset"),
    )
}

pub(crate) fn cohort_full(full: &Cohort) -> Error {
    let Cohort { name, size } = full;
    Error::new(
        ErrorKind::CohortFull,
        format!("cohort '{name}' has its {size} members already"),
    )
    .with_remedy("use another name")
}
