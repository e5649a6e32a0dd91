//! Conversion of errors into Python exceptions.

use std::ffi::CString;
use std::sync::Arc;

use coprep_client::{Error, ErrorKind, InterruptCheck, Notice};
use coprep_error::printable_lines;
use coprep_protocol::message::{RefusalKind, STORAGE_STAGE};
use pyo3::exceptions::{PyFileNotFoundError, PyMemoryError, PyValueError};
use pyo3::prelude::*;

mod python {
    pyo3::import_exception!(coprep._errors, CoprepError);
    pyo3::import_exception!(coprep._errors, SampleError);
    pyo3::import_exception!(coprep._errors, StorageError);
    pyo3::import_exception!(coprep._errors, TimeoutError);
    pyo3::import_exception!(coprep._errors, WaitingWarning);
}

/// Converts an error into a standard exception if Python has one that fits, or else into one of `coprep._errors`.
pub(crate) fn raise(error: Error) -> PyErr {
    let text = error.to_string();
    // The exception of the user's code is the cause, since it may be of any kind.
    if *error.kind() == ErrorKind::Credentials {
        return not_given(&error, text);
    }
    // An exception that ended a wait is raised as it is.
    if let Some(raised) = error.source_as::<PyErr>() {
        return Python::attach(|py| raised.clone_ref(py));
    }
    match error.into_kind() {
        ErrorKind::Sample(s) if s.stage == STORAGE_STAGE => python::StorageError::new_err(text),
        ErrorKind::Sample(s) => {
            let exception: std::borrow::Cow<'static, [u8]> = s.exception.into();
            python::SampleError::new_err((text, s.id, s.path, s.stage, s.worker, exception))
        }
        ErrorKind::Timeout => python::TimeoutError::new_err(text),
        ErrorKind::Invalid => PyValueError::new_err(text),
        ErrorKind::Refused(kind) => match kind {
            RefusalKind::Invalid => PyValueError::new_err(text),
            RefusalKind::NotFound => PyFileNotFoundError::new_err(text),
            RefusalKind::Memory => PyMemoryError::new_err(text),
            RefusalKind::Storage => python::StorageError::new_err(text),
            RefusalKind::Late => python::TimeoutError::new_err(text),
            RefusalKind::Code | RefusalKind::Internal => python::CoprepError::new_err(text),
        },
        _ => python::CoprepError::new_err(text),
    }
}

/// Returns the exception of a provider that gave no credentials.
fn not_given(error: &Error, text: String) -> PyErr {
    let raised = python::StorageError::new_err(text);
    Python::attach(|py| {
        let cause = error.source_as::<PyErr>().map(|cause| cause.clone_ref(py));
        raised.set_cause(py, cause);
    });
    raised
}

/// Returns a check that lets Python's signal handlers run during waits, so that Ctrl-C ends them.
pub(crate) fn signals() -> InterruptCheck {
    Arc::new(|| Python::attach(|py| py.check_signals()).map_err(|e| Box::new(e) as _))
}

/// Returns a notice that warns of long waits for somebody else. The warning points at the line of the user's code that
/// waits.
pub(crate) fn warnings() -> Notice {
    Arc::new(|text| Python::attach(|py| warn(py, text)).map_err(|e| Box::new(e) as _))
}

/// Stack level of the warning: the frames of this package between the user's code and the native loader, and the user's
/// frame.
const STACK: i32 = 2;

fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    let category = py.get_type::<python::WaitingWarning>();
    let text = printable_lines(text);
    PyErr::warn(py, &category, &CString::new(text.as_ref())?, STACK)
}
