//! One rank of a job, for Python.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coprep_client::connection::ConnectOptions;
use coprep_client::loader::LoaderOptions;
use coprep_client::{Error, Event, Loader as Client, SLICE};
use coprep_protocol::id_set;
use coprep_protocol::message::{
    Attach, CacheForm, CacheRequest, CohortRequest, DrawsRequest, ResumePoint, SampleError,
    UserCode,
};
use coprep_protocol::nap::nap;
use coprep_protocol::spec::{Field, NUMBER};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use roaring::RoaringBitmap;

use crate::array::Array;
use crate::errors::{raise, signals, warnings};
use crate::pipeline::Pipeline;
use crate::place;

/// Longest time to find a coordinator again, or to start one.
const RECONNECT: Duration = Duration::from_secs(60);

/// Returns the path of the `coprep` command of this Python environment.
pub(crate) fn program(py: Python<'_>) -> Option<PathBuf> {
    let scripts = py
        .import("sysconfig")
        .and_then(|m| m.call_method1("get_path", ("scripts",)));
    scripts
        .and_then(|path| path.extract::<PathBuf>())
        .ok()
        .map(|folder| folder.join("coprep"))
}

/// State to resume: epoch, samples given in it, seed, samples of the dataset, order of the epoch.
type ResumeFrom = (u64, Vec<u8>, u64, u32, Option<Vec<u8>>);
/// State to resume, and whether it covers all ranks.
type RankedResume<'py> = (
    u64,
    Bound<'py, PyBytes>,
    u64,
    u32,
    Option<Bound<'py, PyBytes>>,
    bool,
);

/// Reads native-endian 32-bit ids.
fn ids_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let ids = bytes.as_chunks::<4>().0.iter();
    ids.map(|&id| u32::from_ne_bytes(id))
}

/// The native part of `coprep.DataLoader`, which has checked the arguments.
#[pyclass(frozen, module = "coprep._coprep")]
pub(crate) struct Loader {
    client: Arc<Client>,
    /// Whether the job has other ranks.
    has_others: bool,
}

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

/// Way to run workers.
#[derive(FromPyObject)]
pub(crate) struct Launch {
    command: Vec<Vec<u8>>,
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    directory: Vec<u8>,
    workers: u32,
    patience_ms: u64,
    process: String,
    prelude: String,
}

impl From<Launch> for UserCode {
    fn from(launch: Launch) -> Self {
        UserCode {
            command: launch.command,
            environment: launch.environment,
            directory: launch.directory,
            workers: launch.workers,
            patience_ms: launch.patience_ms,
            process: launch.process,
            prelude: launch.prelude,
        }
    }
}

/// Announces a dataset, so that the coordinator imports its modules early, as long as this object lives.
#[pyclass(frozen, module = "coprep._coprep")]
pub(crate) struct Preparation {
    /// `None` once a loader has taken it over.
    client: Mutex<Option<coprep_client::Preparation>>,
}

impl Preparation {
    fn take(&self) -> Option<coprep_client::Preparation> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.take()
    }
}

#[pymethods]
impl Preparation {
    /// Returns at once and never fails. The connection is made in the background.
    #[new]
    #[pyo3(signature = (launch, *, dataset, name, socket))]
    fn new(
        py: Python<'_>,
        launch: Launch,
        dataset: String,
        name: String,
        socket: Option<PathBuf>,
    ) -> Self {
        let how = ConnectOptions {
            program: program(py),
            ..ConnectOptions::start(name)
        };
        let client = coprep_client::Preparation::begin(place(socket), how, launch.into(), dataset);
        Preparation {
            client: Mutex::new(Some(client)),
        }
    }
}

/// Warns in the job, once, that samples are left out. If the user turns warnings into errors, the warning raises.
fn warn_skipped(py: Python<'_>, example: SampleError) -> PyResult<()> {
    let SampleError {
        id,
        path,
        stage,
        message,
        ..
    } = example;
    let arguments = (id, path, stage, message);
    py.import("coprep._errors")?
        .call_method1("warn_skipped", arguments)?;
    Ok(())
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|&word| f64::from_ne_bytes(word)).collect()
}

/// Asks Python for the packed dataset.
fn packed(give: &Py<PyAny>) -> Result<Box<dyn AsRef<[u8]>>, Error> {
    let bytes = Python::attach(|py| {
        give.call0(py)?
            .extract::<PyBackedBytes>(py)
            .map_err(PyErr::from)
    });
    let bytes = bytes.map_err(|e: PyErr| Error::Interrupted(Box::new(e)))?;
    Ok(Box::new(bytes))
}

#[pymethods]
impl Loader {
    /// Creates a loader.
    ///
    /// - `subset`: native-endian 32-bit unsigned ids, as bytes.
    /// - `draws`: number of draws of an epoch, and native-endian 64-bit weights, as bytes, unless all samples are
    ///   equally likely.
    /// - `resume`: (epoch, delivered, seed, samples, order).
    /// - `is_told`: whether the order of each epoch is told, as bytes like those of `subset`.
    /// - `code`: way to run workers, and a function that returns the packed dataset.
    /// - `preparation`: an announcement, which the loader takes over.
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "they are the data loader's, by keyword"
    )]
    #[pyo3(signature = (
        pipeline, *, name, socket, timeout, batch_size, shuffle, draws, relaxed, seed, drop_last, rank, world_size, group,
        skip_errors, subset, mask_samples, cohort, is_told, cache, cache_bytes, lru, reuse, resume, code, preparation
    ))]
    fn new(
        py: Python<'_>,
        pipeline: &Pipeline,
        name: String,
        socket: Option<PathBuf>,
        timeout: f64,
        batch_size: u32,
        shuffle: bool,
        draws: Option<(u32, Option<PyBackedBytes>)>,
        relaxed: bool,
        seed: Option<u64>,
        drop_last: bool,
        rank: u32,
        world_size: u32,
        group: String,
        skip_errors: bool,
        subset: Option<&[u8]>,
        mask_samples: Option<u32>,
        cohort: Option<(String, u32)>,
        is_told: bool,
        cache: Option<&str>,
        cache_bytes: Option<u64>,
        lru: bool,
        reuse: u32,
        resume: Option<ResumeFrom>,
        code: Option<(Launch, Py<PyAny>)>,
        preparation: Option<Bound<'_, Preparation>>,
    ) -> PyResult<Self> {
        let (code, give) = code.map(|(launch, give)| (launch.into(), give)).unzip();
        let ids = |bytes: &[u8]| -> RoaringBitmap { ids_of(bytes).collect() };
        let (resume, order) = resume
            .map(|(epoch, delivered, seed, samples, order)| {
                ((epoch, delivered, seed, samples), order)
            })
            .unzip();
        let attach = Attach {
            pipeline: pipeline.spec.clone(),
            code,
            seed,
            seed_hint: resume.as_ref().map(|&(_, _, seed, _)| seed),
            shuffle,
            draws: draws.map(|(count, weights)| DrawsRequest {
                count,
                weights: weights.map(|bytes| floats(&bytes)),
            }),
            is_told,
            knows_order_of: None,
            relaxed,
            cache: CacheRequest {
                form: cache_form(cache)?,
                bytes: cache_bytes,
                lru,
                reuse,
            },
            batch_size,
            drop_last,
            rank,
            world_size,
            group,
            subset: subset.map(|bytes| id_set::serialize(&ids(bytes))),
            // A state knows the length of its dataset. Without one, a mask may.
            dataset_samples: resume.as_ref().map_or(mask_samples, |r| Some(r.3)),
            resume: resume.map(|(epoch, delivered, _, _)| ResumePoint {
                epoch,
                delivered,
                batches: 0,
                is_done: false,
                skipped: Vec::new(),
            }),
            cohort: cohort.map(|(name, size)| CohortRequest { name, size }),
            skip_errors,
            tokens: Vec::new(),
            told: None,
            departed: Vec::new(),
            has_begun: false,
        };
        let options = LoaderOptions {
            place: place(socket),
            name,
            program: program(py),
            attach,
            code: give
                .map(|give| Arc::new(move || packed(&give)) as Arc<coprep_client::loader::Code>),
            // Infinity, or a number beyond the range, means no limit.
            timeout: Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX),
            reconnect: RECONNECT,
            interrupt_check: signals(),
            notice: warnings(),
        };
        let client = Client::new(options).map_err(raise)?;
        if let Some(order) = order.flatten() {
            let ids = ids_of(&order).collect();
            client.resume_order(ids).map_err(raise)?;
        }
        let prepared = preparation.and_then(|preparation| preparation.get().take());
        if let Some(prepared) = prepared {
            client.use_preparation(prepared).map_err(raise)?;
        }
        Ok(Loader {
            client,
            has_others: world_size > 1,
        })
    }

    /// Begins an epoch and returns its number. `order` has the ids of its samples, 32 bits each, if the order is told.
    #[pyo3(signature = (order=None))]
    fn start_epoch(&self, py: Python<'_>, order: Option<&[u8]>) -> PyResult<u64> {
        let order = order.map(|bytes| ids_of(bytes).collect());
        py.detach(|| self.client.start_epoch_with(order))
            .map_err(raise)
    }

    /// Returns the next batch, one array per field, or `None` when the epoch has ended.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Vec<Array>>> {
        loop {
            match py.detach(|| self.client.next(nap(SLICE))).map_err(raise)? {
                Event::Batch(batch) => {
                    let arrays = batch.arrays().into_iter();
                    let arrays = arrays.map(|array| Array::new(py, array));
                    return Ok(Some(arrays.collect::<PyResult<_>>()?));
                }
                Event::EndOfEpoch => return Ok(None),
                Event::Skipped(example) => warn_skipped(py, *example)?,
                // Ctrl-C must take effect while no batch comes.
                Event::NotYet => py.check_signals()?,
            }
        }
    }

    /// Returns the number of batches of this rank in an epoch.
    fn batches_per_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.client.batches_per_epoch()).map_err(raise)
    }

    /// Returns the coordinator's answer to attaching: seed, samples, classes, fields.
    fn attached<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let attached = py.detach(|| self.client.attached()).map_err(raise)?;
        let fields: Vec<_> = attached
            .fields
            .iter()
            // The numbers of draws are internal.
            .filter(|f: &&Field| f.name != NUMBER)
            .map(|f: &Field| (&f.name, f.dtype.name(), &f.shape))
            .collect();
        let info = PyDict::new(py);
        info.set_item("stream", attached.stream)?;
        info.set_item("job", attached.job)?;
        info.set_item("seed", attached.seed)?;
        info.set_item("samples", attached.job_samples)?;
        info.set_item("dataset_samples", attached.dataset_samples)?;
        info.set_item("classes", &attached.classes)?;
        info.set_item("fields", fields)?;
        info.set_item("structure", PyBytes::new(py, &attached.structure))?;
        info.set_item("notes", &attached.notes)?;
        Ok(info)
    }

    /// Returns (epoch, delivered, seed, samples of the dataset, order, whether it covers all ranks), for `resume`.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<RankedResume<'py>> {
        let state = py.detach(|| self.client.state()).map_err(raise)?;
        let delivered = PyBytes::new(py, &id_set::serialize(&state.delivered));
        Ok((
            state.epoch,
            delivered,
            state.seed,
            state.dataset_samples,
            state.order.map(|ids| {
                let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
                PyBytes::new(py, &bytes)
            }),
            state.all_ranks,
        ))
    }

    /// Returns the epoch that is being iterated, or the next one.
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.client.epoch()).map_err(raise)
    }

    /// Returns the counts since the loader was made.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.client.stats());
        let counts = PyDict::new(py);
        counts.set_item("batches", stats.batches)?;
        counts.set_item("samples", stats.samples)?;
        counts.set_item("wait_s", stats.wait.as_secs_f64())?;
        counts.set_item("fetch_stall_s", stats.fetch_stall.as_secs_f64())?;
        counts.set_item("prep_stall_s", stats.prep_stall.as_secs_f64())?;
        counts.set_item("others_stall_s", stats.others_stall.as_secs_f64())?;
        counts.set_item("copies", stats.copies)?;
        counts.set_item("copied_bytes", stats.copied_bytes)?;
        counts.set_item("reconnects", stats.reconnects)?;
        counts.set_item("errors", stats.errors)?;
        counts.set_item("skipped", stats.skipped)?;
        Ok(counts)
    }

    /// Leaves the coordinator.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.client.close());
    }
}

impl Drop for Loader {
    /// A rank whose loader is dropped has left the job, and the other ranks have to know.
    fn drop(&mut self) {
        if self.has_others {
            // The interpreter is released, because the thread that looks after the connection may hold the lock and
            // need it.
            Python::try_attach(|py| py.detach(|| self.client.close()));
        }
    }
}
