//! Requests to the coordinator that need no loader.

use std::path::PathBuf;

use coprep_client::control;
use coprep_protocol::message::{CacheRequest, Warm, WarmProgress};
use coprep_protocol::size;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::connect::{coordinator_paths, start_or_find};
use crate::credentials::link_of;
use crate::errors::raise;
use crate::options::cache_form;
use crate::pipeline::PyPipeline;

/// Returns the coordinator's status as JSON.
#[pyfunction]
#[pyo3(signature = (socket=None, slow=0))]
pub(crate) fn status(py: Python<'_>, socket: Option<PathBuf>, slow: u32) -> PyResult<String> {
    let status = py
        .detach(|| coprep_client::control::status(&coordinator_paths(socket), slow))
        .map_err(raise)?;
    serde_json::to_string(&status).map_err(|e| PyValueError::new_err(e.to_string()))
}

/// Fills the cache of a native pipeline, and starts a coordinator if there is none. Calls `report` with the
/// progress, as JSON, several times a second. Returns the last progress.
#[pyfunction]
#[pyo3(signature = (pipeline, report, *, socket=None, cache=None, cache_bytes=None, keep=false))]
pub(crate) fn warm(
    py: Python<'_>,
    pipeline: &PyPipeline,
    report: Py<PyAny>,
    socket: Option<PathBuf>,
    cache: Option<&str>,
    cache_bytes: Option<u64>,
    keep: bool,
) -> PyResult<String> {
    const NAME: &str = "coprep warm";
    let request = Warm {
        store_variables: pipeline.store_variables(py)?,
        provider: None,
        pipeline: pipeline.spec.clone(),
        cache: CacheRequest {
            form: cache_form(cache)?,
            bytes: cache_bytes,
            check_files: true,
            ..CacheRequest::default()
        },
        keep,
    };
    let connect = start_or_find(py, NAME);
    let credentials = link_of(pipeline.provided.as_ref(), NAME, socket.clone());
    let mut reported = Ok(());
    let done = py.detach(|| {
        let credentials = credentials.as_ref();
        control::warm_with(
            &coordinator_paths(socket),
            &connect,
            request,
            credentials,
            |progress| {
                // After an exception in `report`, it is not called again; the exception is raised when the warm-up ends.
                if reported.is_ok() {
                    let json = serde_json::to_string(progress).unwrap_or_default();
                    reported = Python::attach(|py| report.call1(py, (json,)).map(drop));
                }
            },
        )
    });
    reported?;
    as_json(&done.map_err(raise)?)
}

/// Keeps the cache of a stream like one that was warmed; with `keep` it never gives way to another. Returns its counts as JSON.
#[pyfunction]
#[pyo3(signature = (stream, socket=None, keep=false))]
pub(crate) fn keep_warm(
    py: Python<'_>,
    stream: u64,
    socket: Option<PathBuf>,
    keep: bool,
) -> PyResult<String> {
    let kept = py.detach(|| control::keep_warm(&coordinator_paths(socket), stream, keep));
    as_json(&kept.map_err(raise)?)
}

fn as_json(progress: &WarmProgress) -> PyResult<String> {
    serde_json::to_string(progress).map_err(|e| PyValueError::new_err(e.to_string()))
}

/// Ends the coordinator. Returns its process id.
#[pyfunction]
#[pyo3(signature = (socket=None))]
pub(crate) fn stop(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<u32> {
    py.detach(|| coprep_client::control::stop(&coordinator_paths(socket)))
        .map_err(raise)
}

/// Returns the number of bytes that a size such as "8G" stands for.
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> PyResult<u64> {
    size::parse(text).map_err(PyValueError::new_err)
}
