//! Batches on the job's GPU, for Python.

use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, PoisonError};

use coprep_client::control;
use coprep_client::device::{DeviceBatch, DeviceField, DeviceOptions, ImageConversion};
use coprep_device::{ElementOrder, ElementType};
use coprep_protocol::message::is_of_driver;
use coprep_protocol::normalize::NormalizeTable;
use coprep_protocol::spec::{Op, PipelineSpec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::connect::program;
use crate::dlpack::PyDeviceArray;
use crate::errors::{raise, signals};
use crate::options::field;
use crate::pipeline::PyPipeline;

/// A batch on the GPU, which is to be written to tensors.
#[pyclass(frozen, name = "DeviceBatch", module = "coprep._coprep")]
pub(crate) struct PyDeviceBatch {
    batch: Mutex<DeviceBatch>,
}

impl PyDeviceBatch {
    pub(crate) fn new(batch: DeviceBatch) -> Self {
        PyDeviceBatch {
            batch: Mutex::new(batch),
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut DeviceBatch) -> T) -> T {
        // The batch changes in one step, so a panic leaves nothing half done.
        look(&mut self.batch.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl PyDeviceBatch {
    /// Tensors to allocate: the type of the elements, the shape, and whether it is `channels_last` in memory.
    #[getter]
    fn fields(&self) -> Vec<(&'static str, Vec<usize>, bool)> {
        let field = |field: &DeviceField| {
            (
                field.dtype.name(),
                field.shape.clone(),
                field.is_channels_last,
            )
        };
        self.with(|batch| batch.fields().iter().map(field).collect())
    }

    /// Ids of the samples, 64 bits each, native-endian.
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes: Vec<u8> = self.with(|batch| {
            let ids = batch.ids().iter();
            ids.flat_map(|id| id.to_ne_bytes()).collect()
        });
        PyBytes::new(py, &bytes)
    }

    /// Number of samples.
    fn __len__(&self) -> usize {
        self.with(|batch| batch.samples() as usize)
    }

    /// Reason why images are not converted, although they should be. `None` if they are.
    #[getter]
    fn why_unconverted(&self) -> Option<String> {
        self.with(|batch| batch.why_unconverted().map(str::to_owned))
    }

    /// Returns the batch as arrays that own their memory, for frameworks other than PyTorch, once.
    fn arrays(&self, py: Python<'_>) -> PyResult<Vec<PyDeviceArray>> {
        let arrays = py.detach(|| self.with(DeviceBatch::arrays));
        let arrays = arrays.map_err(raise)?.into_iter();
        Ok(arrays.map(PyDeviceArray::new).collect())
    }

    /// Puts the work that fills the tensors into a stream, once. `addresses` are those of tensors as `fields` describes
    /// them.
    fn write(&self, py: Python<'_>, addresses: Vec<u64>, stream: u64) -> PyResult<()> {
        py.detach(|| self.with(|batch| batch.write(&addresses, stream)))
            .map_err(raise)
    }
}

/// Reads the form of batches on a GPU from a `coprep._options.DeviceForm`, and takes the normalisation, which is done
/// there, out of the pipeline.
pub(crate) fn device_options(
    form: &Bound<'_, PyAny>,
    pipeline: &mut PipelineSpec,
) -> PyResult<DeviceOptions> {
    let dtype: String = field(form, "dtype")?;
    let element = match dtype.as_str() {
        "float32" => ElementType::F32,
        "float16" => ElementType::F16,
        "bfloat16" => ElementType::Bf16,
        other => return Err(PyValueError::new_err(format!("no elements of {other}"))),
    };
    let order = if field(form, "channels_last")? {
        ElementOrder::Interleaved
    } else {
        ElementOrder::Planes
    };
    Ok(DeviceOptions {
        images: ImageConversion::take_out(pipeline, element, order),
        is_shared: field(form, "shared")?,
        environment: environment_of_driver(),
    })
}

/// Returns the variables that the NVIDIA driver reads. Python changes the environment only while it holds the
/// interpreter's lock, which the caller holds.
fn environment_of_driver() -> Vec<(Vec<u8>, Vec<u8>)> {
    let variables = std::env::vars_os();
    let variables = variables.map(|(name, value)| (name.into_vec(), value.into_vec()));
    variables.filter(|(name, _)| is_of_driver(name)).collect()
}

/// Returns the values that `normalize` gives for each of the 256 values of a byte, by channel: float32, native-endian.
/// `None` if the pipeline does not normalise.
#[pyfunction]
pub(crate) fn normalize_table<'py>(
    py: Python<'py>,
    pipeline: &PyPipeline,
) -> Option<Bound<'py, PyBytes>> {
    let &Op::Normalize { mean, std } = pipeline.spec.ops.last()? else {
        return None;
    };
    let table = NormalizeTable::new(mean, std);
    let values = table.channels().as_flattened().iter();
    let bytes: Vec<u8> = values.flat_map(|value| value.to_ne_bytes()).collect();
    Some(PyBytes::new(py, &bytes))
}

/// Asks the NVIDIA driver, in a process of its own, whether a GPU can be used. Returns the newest version of CUDA that
/// the driver supports.
#[pyfunction]
pub(crate) fn check_gpu(py: Python<'_>, number: u32) -> PyResult<String> {
    let (program, interrupt_check) = (program(py), signals());
    py.detach(|| control::check_gpu(program.as_deref(), number, &interrupt_check))
        .map_err(raise)
}
