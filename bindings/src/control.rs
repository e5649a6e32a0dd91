//! What the coordinator is asked without a loader.

use std::path::PathBuf;

use coprep_protocol::size;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::place;

/// The coordinator's status, as JSON.
#[pyfunction]
#[pyo3(signature = (socket=None, slow=0))]
pub(crate) fn status(py: Python<'_>, socket: Option<PathBuf>, slow: u32) -> PyResult<String> {
    let status = py
        .detach(|| coprep_client::control::status(&place(socket), slow))
        .map_err(raise)?;
    serde_json::to_string(&status).map_err(|e| PyValueError::new_err(e.to_string()))
}

/// Ends the coordinator; gives its process id.
#[pyfunction]
#[pyo3(signature = (socket=None))]
pub(crate) fn stop(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<u32> {
    py.detach(|| coprep_client::control::stop(&place(socket)))
        .map_err(raise)
}

/// Bytes of a size such as "8G".
#[pyfunction]
pub(crate) fn parse_size(text: &str) -> PyResult<u64> {
    size::parse(text).map_err(PyValueError::new_err)
}
