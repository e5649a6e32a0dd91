//! A field of a batch, through NumPy's array interface.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Memory of one field of a batch, for `numpy.asarray`: not copied, writable, and kept as long as the result lives.
#[pyclass(frozen, name = "Array", module = "coprep._coprep")]
pub(crate) struct PyArray {
    array: coprep_client::Array,
    /// Rows whose values are larger than a row of the array, with these values.
    large: Vec<(u32, Py<PyArray>)>,
}

impl PyArray {
    pub(crate) fn new(py: Python<'_>, mut array: coprep_client::Array) -> PyResult<Self> {
        let large = std::mem::take(&mut array.large).into_iter();
        let large = large.map(|(row, value)| Ok((row, Py::new(py, PyArray::new(py, value)?)?)));
        Ok(PyArray {
            large: large.collect::<PyResult<_>>()?,
            array,
        })
    }
}

#[pymethods]
impl PyArray {
    /// Name of the field: `image`, `label` or `index`.
    #[getter]
    fn name(&self) -> &str {
        &self.array.name
    }

    /// Rows whose values are larger than a row of this array, with these values. They do not lie in the array itself.
    #[getter]
    fn large(&self, py: Python<'_>) -> Vec<(u32, Py<PyArray>)> {
        let large = self.large.iter();
        large
            .map(|(row, value)| (*row, value.clone_ref(py)))
            .collect()
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
    use coprep_protocol::spec::Dtype::{
        BF16, Bool, C64, C128, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64,
    };
    // The types are in the byte order of this machine.
    match dtype {
        Bool => "=b1",
        U8 => "=u1",
        I8 => "=i1",
        // NumPy does not have bfloat16, so Python gets its bits as integers.
        U16 | BF16 => "=u2",
        I16 => "=i2",
        U32 => "=u4",
        I32 => "=i4",
        U64 => "=u8",
        I64 => "=i8",
        F16 => "=f2",
        F32 => "=f4",
        F64 => "=f8",
        C64 => "=c8",
        C128 => "=c16",
    }
}
