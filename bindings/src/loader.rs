//! One rank of a job, for Python.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use coprep_client::device::UserStream;
use coprep_client::loader::LoaderOptions;
use coprep_client::{DeviceEvent, Error, ErrorKind, Event, JobCode, Loader, POLL_INTERVAL};
use coprep_error::{printable, printable_lines};
use coprep_protocol::id_set;
use coprep_protocol::message::{SampleError, UserCode};
use coprep_protocol::poll_interval::poll_every;
use coprep_protocol::spec::{Field, NUMBER};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::array::PyArray;
use crate::connect::{coordinator_paths, program};
use crate::credentials::link_of;
use crate::device::{PyDeviceBatch, device_options};
use crate::errors::{raise, signals, warnings};
use crate::options::{PythonOptions, RankOption, ResumeFrom, field, ids_of, optional};
use crate::pipeline::PyPipeline;

/// Longest time to find a coordinator again, or to start one.
const RECONNECT: Duration = Duration::from_secs(60);

/// The native part of `coprep.DataLoader`, which has checked the arguments.
#[pyclass(frozen, name = "Loader", module = "coprep._coprep")]
pub(crate) struct PyLoader {
    client: Arc<Loader>,
    /// `true` if the job has other ranks, which wait for this one until it leaves.
    has_others: bool,
    /// A `coprep._servers.JobCode`, if worker processes make the samples.
    code: Option<Py<PyAny>>,
}

/// The state of a job, which Python gets as a dictionary.
#[derive(IntoPyObject)]
struct JobState<'py> {
    epoch: u64,
    /// Ids that were given in the epoch, as a Roaring bitmap in its portable format.
    delivered: Bound<'py, PyBytes>,
    seed: u64,
    /// Samples of the dataset.
    samples: u32,
    /// Ids of the epoch in their order, native-endian, 32 bits each, if the job proposed its order.
    order: Option<Bound<'py, PyBytes>>,
    /// The groups that come first in the epoch, each as its epoch, the number of samples given before, and its ids.
    carried: Vec<(u64, u64, Bound<'py, PyBytes>)>,
    /// `true` if the ids are those of all ranks of the job.
    all_ranks: bool,
}

/// A batch, as Python gets it.
#[derive(IntoPyObject)]
enum PyBatch {
    /// One array for each field.
    Host(Vec<PyArray>),
    Device(PyDeviceBatch),
}

/// Warns in the job, once, that samples are left out. If the user turns warnings into errors, the warning raises.
///
/// `by` is a module or an object with a method `warn_skipped`.
fn warn_skipped(by: &Bound<'_, PyAny>, example: SampleError) -> PyResult<()> {
    let SampleError {
        id,
        path,
        stage,
        message,
        ..
    } = example;
    let arguments = (id, printable(&path), stage, printable_lines(&message));
    by.call_method1("warn_skipped", arguments)?;
    Ok(())
}

/// The job's own code, as Python's `coprep._servers.JobCode`. An exception ends the call of the loader, which raises it.
struct PyJobCode(Py<PyAny>);

impl JobCode for PyJobCode {
    fn is_current(&self) -> Result<bool, Error> {
        Python::attach(|py| self.0.call_method0(py, "is_current")?.extract(py)).map_err(interrupted)
    }

    fn start_server(&self, socket: UnixStream) -> Result<(), Error> {
        let started = Python::attach(|py| {
            self.0
                .call_method1(py, "start_server", (socket.as_raw_fd(),))
                .map(drop)
        });
        started.map_err(interrupted)
    }

    fn server_ends(&self, pid: u32) {
        // It only reaps a process, and reports no error.
        Python::attach(|py| drop(self.0.call_method1(py, "server_ends", (pid,))));
    }
}

fn interrupted(error: PyErr) -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted").because(error)
}

/// Returns the way to run the code of a `coprep._servers.JobCode`.
fn user_code(code: &Bound<'_, PyAny>) -> PyResult<UserCode> {
    Ok(UserCode {
        workers: field(code, "workers")?,
        sample_timeout_ms: field(code, "sample_timeout_ms")?,
        is_persistent: field(code, "is_persistent")?,
        has_shadows: field(code, "has_shadows")?,
    })
}

#[pymethods]
impl PyLoader {
    /// Creates a loader, which has not attached yet.
    ///
    /// - `options`: a `coprep._options.JobOptions`.
    /// - `rank_id`: a `coprep._ranks.RankId`.
    /// - `resume`: a `coprep._options.ResumeFrom`.
    /// - `code`: a `coprep._servers.JobCode`, if worker processes make the samples.
    #[new]
    #[pyo3(signature = (pipeline, options, *, rank_id, resume, code))]
    fn new(
        py: Python<'_>,
        pipeline: &PyPipeline,
        options: &Bound<'_, PyAny>,
        rank_id: &Bound<'_, PyAny>,
        resume: Option<&Bound<'_, PyAny>>,
        code: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut spec = pipeline.spec.clone();
        let device = optional(options, "device", |form| device_options(form, &mut spec))?;
        let mut options = PythonOptions::read(options)?;
        let rank = RankOption::read(rank_id)?;
        let mut resume = resume.map(ResumeFrom::read).transpose()?;
        let user_code = code.as_ref().map(user_code).transpose()?;
        let has_others = rank.world_size > 1;
        let order = resume.as_mut().and_then(|resume| resume.order.take());
        let job_code = code.as_ref().map(|code| code.clone().unbind());
        let credentials = link_of(
            pipeline.provided.as_ref(),
            &options.name,
            options.socket.clone(),
        );
        // They are read with the GIL, which Python holds while it sets variables.
        let variables = pipeline.store_variables(py)?;
        let client = Loader::new(LoaderOptions {
            paths: coordinator_paths(options.socket.take()),
            credentials: credentials.map(Arc::new),
            name: std::mem::take(&mut options.name),
            program: program(py),
            // Infinity, or a number beyond the range, means no limit.
            timeout: Duration::try_from_secs_f64(options.timeout).unwrap_or(Duration::MAX),
            attach: options.attach_request(spec, variables, rank, resume, user_code),
            device,
            code: code.map(|code| Arc::new(PyJobCode(code.unbind())) as Arc<dyn JobCode>),
            reconnect: RECONNECT,
            interrupt_check: signals(),
            notice: warnings(),
        })
        .map_err(raise)?;
        if let Some(order) = order {
            let ids = ids_of(&order).collect();
            client.resume_order(ids).map_err(raise)?;
        }
        Ok(PyLoader {
            client,
            has_others,
            code: job_code,
        })
    }

    /// Begins an epoch and returns its number. `order` has the ids of its samples, 32 bits each, if this
    /// job proposes the order.
    #[pyo3(signature = (order=None))]
    fn start_epoch(&self, py: Python<'_>, order: Option<&[u8]>) -> PyResult<u64> {
        let order = order.map(|bytes| ids_of(bytes).collect());
        py.detach(|| self.client.start_epoch_with(order))
            .map_err(raise)
    }

    /// Returns the next batch, one array per field, or `None` when the epoch has ended.
    ///
    /// `stream` is the number of a GPU and the handle of a stream there. With it, and with options for a GPU, batches come
    /// there, unless their samples are of no fixed size.
    #[pyo3(signature = (stream=None))]
    fn next(&self, py: Python<'_>, stream: Option<(u32, u64)>) -> PyResult<Option<PyBatch>> {
        let stream = stream.map(|(gpu, stream)| UserStream { gpu, stream });
        loop {
            let event = match py.detach(|| self.next_event(stream)).map_err(raise)? {
                DeviceEvent::Host(event) => event,
                DeviceEvent::Batch(batch) => {
                    let batch = PyDeviceBatch::new(batch);
                    return Ok(Some(PyBatch::Device(batch)));
                }
            };
            match event {
                Event::Batch(batch) => {
                    let arrays = batch.arrays().into_iter();
                    let arrays = arrays.map(|array| PyArray::new(py, array));
                    return Ok(Some(PyBatch::Host(arrays.collect::<PyResult<_>>()?)));
                }
                Event::EndOfEpoch => return Ok(None),
                Event::Skipped(example) => match &self.code {
                    Some(code) => warn_skipped(code.bind(py), *example)?,
                    None => warn_skipped(py.import("coprep._errors")?.as_any(), *example)?,
                },
                // Ctrl-C must take effect while no batch comes.
                Event::NotYet => py.check_signals()?,
            }
        }
    }

    /// Returns the number of batches of this rank in an epoch.
    fn batches_per_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.client.batches_per_epoch()).map_err(raise)
    }

    /// Returns `True` if it has attached.
    fn is_attached(&self, py: Python<'_>) -> bool {
        py.detach(|| self.client.is_attached())
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
        let texts = |texts: &[String]| -> Vec<String> {
            let text = |text: &String| printable(text).into_owned();
            texts.iter().map(text).collect()
        };
        info.set_item("notes", texts(&attached.notes))?;
        info.set_item("unshared", texts(&attached.unshared))?;
        info.set_item("left_out", &attached.left_out)?;
        Ok(info)
    }

    /// Returns the state of the job. All of it but `all_ranks` makes a `coprep._options.ResumeFrom`.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<JobState<'py>> {
        let state = py.detach(|| self.client.state()).map_err(raise)?;
        let order = state.order.map(|ids| {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
            PyBytes::new(py, &bytes)
        });
        Ok(JobState {
            epoch: state.epoch,
            delivered: PyBytes::new(py, &id_set::serialize(&state.delivered)),
            seed: state.seed,
            samples: state.dataset_samples,
            order,
            carried: state
                .carried
                .iter()
                .map(|group| (group.epoch, group.before, PyBytes::new(py, &group.ids)))
                .collect(),
            all_ranks: state.all_ranks,
        })
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
        counts.set_item("uploads", stats.uploads)?;
        counts.set_item("uploaded_bytes", stats.uploaded_bytes)?;
        counts.set_item("shared_uploads", stats.shared_uploads)?;
        counts.set_item("upload_wait_s", stats.upload_wait.as_secs_f64())?;
        if let Some(why) = stats.bounced {
            counts.set_item("not_pinned", why)?;
        }
        if let Some(why) = stats.not_shared {
            counts.set_item("not_shared", why)?;
        }
        Ok(counts)
    }

    /// Announces that the user iterates no epoch any more, and has not been given all of the last one.
    fn leave_pass(&self, py: Python<'_>) {
        py.detach(|| self.client.leave_pass(false));
    }

    /// Leaves the coordinator.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.client.close());
    }
}

impl PyLoader {
    fn next_event(&self, stream: Option<UserStream>) -> Result<DeviceEvent, Error> {
        let slice = poll_every(POLL_INTERVAL);
        match stream {
            Some(stream) => self.client.next_on(slice, stream),
            None => self.client.next(slice).map(DeviceEvent::Host),
        }
    }
}

impl Drop for PyLoader {
    /// A rank whose loader is dropped has left the job, and the other ranks have to know.
    fn drop(&mut self) {
        if self.has_others {
            // The interpreter is released, because the thread that looks after the connection may hold the lock and
            // need it.
            // It does nothing while the interpreter ends. The end of the process then closes the connection.
            Python::try_attach(|py| py.detach(|| self.client.close()));
        }
    }
}
