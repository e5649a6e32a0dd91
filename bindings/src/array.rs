//! A field of a batch.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Memory of one field of a batch, for `numpy.asarray`: no copy, writable, kept as long as the result lives.
#[pyclass(frozen, module = "coprep._coprep")]
pub(crate) struct Array {
    array: coprep_client::Array,
}

impl Array {
    pub(crate) fn new(array: coprep_client::Array) -> Self {
        Array { array }
    }
}

#[pymethods]
impl Array {
    /// `image`, `label` or `index`.
    #[getter]
    fn name(&self) -> &str {
        &self.array.name
    }

    /// NumPy's array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.array.shape)?)?;
        interface.set_item("typestr", typestr(self.array.dtype))?;
        interface.set_item("data", (self.array.address(), false))?;
        Ok(interface)
    }
}

fn typestr(dtype: coprep_protocol::spec::Dtype) -> &'static str {
    use coprep_protocol::spec::Dtype::{F32, I64, U8};
    match (dtype, cfg!(target_endian = "little")) {
        (U8, _) => "|u1",
        (F32, true) => "<f4",
        (F32, false) => ">f4",
        (I64, true) => "<i8",
        (I64, false) => ">i8",
    }
}
