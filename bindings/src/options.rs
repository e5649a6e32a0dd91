//! Options of a loader, read from the named tuples of Python's `coprep._options` and `coprep._ranks`.
//!
//! Each field is read by its name, so a tuple without the field is an `AttributeError`. An unknown field or a missing one
//! is already a `TypeError` when Python makes the tuple.

use std::path::PathBuf;

use coprep_protocol::id_set;
use coprep_protocol::message::{
    Attach, CacheForm, CacheRequest, CarriedOver, CohortRequest, DrawsRequest, ResumePoint,
    UserCode,
};
use coprep_protocol::spec::PipelineSpec;
use coprep_protocol::store_variables::StoreVariables;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use roaring::RoaringBitmap;

/// Options of a job, as Python's `JobOptions` has them.
pub(crate) struct PythonOptions {
    /// Name of the job in `coprep status`.
    pub(crate) name: String,
    pub(crate) socket: Option<PathBuf>,
    /// Seconds to wait for a batch.
    pub(crate) timeout: f64,
    batch_size: u32,
    shuffle: bool,
    shuffle_window: u32,
    draws: Option<DrawsRequest>,
    relaxed: bool,
    seed: Option<u64>,
    drop_last: bool,
    skip_errors: bool,
    /// Sample ids, native-endian, 32 bits each.
    subset: Option<PyBackedBytes>,
    /// Length of the boolean mask that named the subset.
    mask_samples: Option<u32>,
    cohort: Option<CohortRequest>,
    /// `true` if this job proposes the order of each epoch.
    proposes_order: bool,
    cache: CacheRequest,
}

/// The rank of this process within its job, as Python's `RankId` has it.
pub(crate) struct RankOption {
    rank: u32,
    pub(crate) world_size: u32,
    group: String,
}

/// The state at which a job goes on, as Python's `ResumeFrom` has it.
pub(crate) struct ResumeFrom {
    epoch: u64,
    /// Ids that were given in the epoch, as a Roaring bitmap in its portable format.
    delivered: Vec<u8>,
    seed: u64,
    /// Samples of the dataset.
    samples: u32,
    /// Ids of the epoch in their order, native-endian, 32 bits each, if the job proposed its order.
    pub(crate) order: Option<PyBackedBytes>,
    /// The groups that come first in the epoch, each as its epoch, the number of samples given before, and its ids.
    carried: Vec<(u64, u64, Vec<u8>)>,
}

impl PythonOptions {
    pub(crate) fn read(options: &Bound<'_, PyAny>) -> PyResult<Self> {
        let form: Option<PyBackedStr> = field(options, "cache")?;
        Ok(PythonOptions {
            name: field(options, "name")?,
            socket: field(options, "socket")?,
            timeout: field(options, "timeout")?,
            // No dataset has as many samples as the largest number, so such a batch is all of it.
            batch_size: field::<u64>(options, "batch_size")?.min(i32::MAX as u64) as u32,
            shuffle: field(options, "shuffle")?,
            shuffle_window: field(options, "shuffle_window")?,
            draws: optional(options, "draws", draws)?,
            relaxed: field(options, "relaxed")?,
            seed: field(options, "seed")?,
            drop_last: field(options, "drop_last")?,
            skip_errors: field(options, "skip_errors")?,
            subset: field(options, "subset")?,
            mask_samples: field(options, "mask_samples")?,
            cohort: optional(options, "cohort", cohort)?,
            proposes_order: field(options, "proposes_order")?,
            cache: CacheRequest {
                form: cache_form(form.as_deref())?,
                bytes: field(options, "cache_bytes")?,
                lru: field(options, "lru")?,
                reuse: field(options, "reuse")?,
                check_files: field(options, "check_files")?,
            },
        })
    }

    /// Returns the request that attaches one rank of the job.
    pub(crate) fn attach_request(
        self,
        pipeline: PipelineSpec,
        store_variables: StoreVariables,
        rank: RankOption,
        resume: Option<ResumeFrom>,
        code: Option<UserCode>,
    ) -> Attach {
        let ids = |bytes: &[u8]| -> RoaringBitmap { ids_of(bytes).collect() };
        Attach {
            store_variables,
            // The loader itself fills it in when it attaches.
            provider: None,
            pipeline,
            code,
            seed: self.seed,
            seed_hint: resume.as_ref().map(|resume| resume.seed),
            shuffle: self.shuffle,
            shuffle_window: self.shuffle_window,
            draws: self.draws,
            is_told: self.proposes_order,
            knows_order_of: None,
            relaxed: self.relaxed,
            cache: self.cache,
            batch_size: self.batch_size,
            drop_last: self.drop_last,
            rank: rank.rank,
            world_size: rank.world_size,
            group: rank.group,
            subset: self.subset.map(|bytes| id_set::serialize(&ids(&bytes))),
            // A state knows the length of its dataset. Without one, a mask may.
            dataset_samples: resume
                .as_ref()
                .map_or(self.mask_samples, |resume| Some(resume.samples)),
            resume: resume.map(|resume| ResumePoint {
                epoch: resume.epoch,
                delivered: resume.delivered,
                batches: 0,
                is_done: false,
                skipped: Vec::new(),
                carried: resume.carried.into_iter().map(carried_over).collect(),
            }),
            cohort: self.cohort,
            skip_errors: self.skip_errors,
            // The loader itself fills in the rest when it attaches again.
            tokens: Vec::new(),
            told: None,
            departed: Vec::new(),
            has_begun: false,
        }
    }
}

impl RankOption {
    pub(crate) fn read(rank_id: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(RankOption {
            rank: field(rank_id, "rank")?,
            world_size: field(rank_id, "world_size")?,
            group: field(rank_id, "group")?,
        })
    }
}

impl ResumeFrom {
    pub(crate) fn read(resume: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(ResumeFrom {
            epoch: field(resume, "epoch")?,
            delivered: field(resume, "delivered")?,
            seed: field(resume, "seed")?,
            samples: field(resume, "samples")?,
            order: field(resume, "order")?,
            carried: field(resume, "carried")?,
        })
    }
}

fn carried_over((epoch, before, ids): (u64, u64, Vec<u8>)) -> CarriedOver {
    CarriedOver { epoch, before, ids }
}

fn draws(draws: &Bound<'_, PyAny>) -> PyResult<DrawsRequest> {
    let weights: Option<PyBackedBytes> = field(draws, "weights")?;
    Ok(DrawsRequest {
        count: field(draws, "length")?,
        weights: weights.map(|bytes| floats(&bytes)),
    })
}

fn cohort(cohort: &Bound<'_, PyAny>) -> PyResult<CohortRequest> {
    Ok(CohortRequest {
        name: argument(cohort, "name", "cohort")?,
        size: argument(cohort, "size", "cohort_size")?,
    })
}

/// Returns the form of cache of this name.
pub(crate) fn cache_form(name: Option<&str>) -> PyResult<Option<CacheForm>> {
    match name {
        None => Ok(None),
        Some("off") => Ok(Some(CacheForm::Off)),
        Some("encoded") => Ok(Some(CacheForm::Encoded)),
        Some("decoded") => Ok(Some(CacheForm::Decoded)),
        Some("auto") => Ok(Some(CacheForm::Auto)),
        Some("prepared") => Ok(Some(CacheForm::Prepared)),
        Some(other) => Err(PyValueError::new_err(format!(
            "unknown form of cache '{other}'"
        ))),
    }
}

/// Reads native-endian 32-bit ids.
pub(crate) fn ids_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let ids = bytes.as_chunks::<4>().0.iter();
    ids.map(|&id| u32::from_ne_bytes(id))
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|&word| f64::from_ne_bytes(word)).collect()
}

/// Reads one field of a named tuple, which has the name of the data loader's argument.
pub(crate) fn field<'py, T>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
where
    T: FromPyObjectOwned<'py>,
{
    argument(object, name, name)
}

/// Reads one field of a named tuple. If its value has a wrong type, a note on the error names the argument of the data
/// loader that it comes from, as PyO3 does for arguments of a function.
fn argument<'py, T>(object: &Bound<'py, PyAny>, name: &str, argument: &str) -> PyResult<T>
where
    T: FromPyObjectOwned<'py>,
{
    let value = object.getattr(name)?;
    value.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        let note = format!("while processing '{argument}'");
        // Exceptions of Python 3.10 have no notes. The error is raised without it.
        let _ = error.value(object.py()).call_method1("add_note", (note,));
        error
    })
}

/// Reads one field of a named tuple that is a named tuple itself, or `None`.
pub(crate) fn optional<T>(
    object: &Bound<'_, PyAny>,
    name: &str,
    read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    let value = object.getattr(name)?;
    if value.is_none() {
        Ok(None)
    } else {
        read(&value).map(Some)
    }
}
