//! Arrays on the GPU, which other frameworks take over through [DLPack](https://dmlc.github.io/dlpack/latest/).
//!
//! The structs are those of `dlpack.h`, version 1.0, and of the versions before it. A consumer gets one of them in a
//! capsule. If it takes the array over, it renames the capsule, and later calls the struct's `deleter`. If it does not, the
//! capsule's own destructor calls it. So the deleter runs once, in any thread, and with or without the interpreter.
#![expect(unsafe_code, reason = "gives structs of C out, and takes them back")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use coprep_client::device::{DeviceArray, DeviceField};
use coprep_protocol::spec::Dtype;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::errors::raise;

/// `kDLCUDA`.
const CUDA: i32 = 2;
/// The default stream, by its handle in CUDA. DLPack takes a missing stream for it, and refuses 0, which could be the
/// default stream of the thread too.
const DEFAULT_STREAM: i64 = 1;
/// The consumer says that it orders its work itself.
const NO_STREAM: i64 = -1;

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, of the versions before 1.0.
#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// A struct that a consumer may take over.
trait Managed: Sized + 'static {
    /// Name of the capsule that holds one which is not taken over.
    const NAME: &'static CStr;

    fn new(tensor: Tensor) -> Self;
}

impl Managed for Unversioned {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: Tensor) -> Self {
        Unversioned {
            tensor,
            context: std::ptr::null_mut(),
            deleter: Some(delete::<Self>),
        }
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: Tensor) -> Self {
        Versioned {
            version: [1, 0],
            context: std::ptr::null_mut(),
            deleter: Some(delete::<Self>),
            flags: 0,
            tensor,
        }
    }
}

/// A struct, and all that it points to. The struct comes first, so that its address is that of the whole.
#[repr(C)]
struct Exported<M> {
    managed: M,
    _array: DeviceArray,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
}

/// Gives back a struct and its share of the array.
///
/// # Safety
/// The address is that of the first field of a boxed [`Exported<M>`] that was leaked, and this is called once for it.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: the first field of a `repr(C)` struct has the address of the whole, which was boxed, and which nobody else
    // gives back.
    drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
}

/// Deletes the struct of a capsule that nobody has taken over. Otherwise the capsule has another name by now.
unsafe extern "C" fn destroy<M: Managed>(capsule: *mut PyObject) {
    let name = M::NAME.as_ptr();
    // SAFETY: the interpreter calls this with a capsule that it is about to free, and holds its lock.
    let managed = unsafe {
        if PyCapsule_IsValid(capsule, name) == 0 {
            return;
        }
        PyCapsule_GetPointer(capsule, name)
    };
    // SAFETY: the capsule was made of a leaked box, and still has its first name, so no consumer calls the deleter.
    unsafe { delete::<M>(managed.cast()) };
}

/// Returns a capsule with a share of the array.
fn export<'py, M: Managed>(
    py: Python<'py>,
    array: &DeviceArray,
) -> PyResult<Bound<'py, PyCapsule>> {
    let address = array.address().ok_or_else(|| {
        PyBufferError::new_err(
            "the array is of a process that has forked this one: CUDA does not work here",
        )
    })?;
    let mut shape: Box<[i64]> = array.field().shape.iter().map(|&n| n as i64).collect();
    let mut strides = strides(array.field());
    let tensor = Tensor {
        data: address as *mut c_void,
        device: device(array),
        dimensions: shape.len() as i32,
        dtype: data_type(array.field().dtype),
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let exported = Box::new(Exported {
        managed: M::new(tensor),
        _array: array.clone(),
        _shape: shape,
        _strides: strides,
    });
    let pointer = NonNull::from(Box::leak(exported)).cast();
    // SAFETY: the pointer is that of a leaked box, which lives until `destroy` or the consumer deletes it. Both may do so
    // in any thread, because arrays are `Send`. If there is no memory for a capsule, the box stays.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, M::NAME, Some(destroy::<M>)) }
}

fn device(array: &DeviceArray) -> Device {
    Device {
        kind: CUDA,
        number: array.gpu() as i32,
    }
}

/// Returns the distance of the elements of each dimension, in elements.
fn strides(field: &DeviceField) -> Box<[i64]> {
    let mut strides = vec![0; field.shape.len()];
    let mut order: Vec<usize> = (0..strides.len()).collect();
    if field.is_channels_last {
        // The second dimension is the innermost one.
        let channels = order.remove(1);
        order.push(channels);
    }
    let mut stride = 1;
    for dimension in order.into_iter().rev() {
        strides[dimension] = stride;
        stride *= field.shape[dimension] as i64;
    }
    strides.into()
}

/// Returns the type as `DLDataType`, by the codes of `DLDataTypeCode`.
fn data_type(dtype: Dtype) -> DataType {
    const INT: u8 = 0;
    const UNSIGNED: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;
    const COMPLEX: u8 = 5;
    const BOOL: u8 = 6;
    let code = match dtype {
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => INT,
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => UNSIGNED,
        Dtype::F16 | Dtype::F32 | Dtype::F64 => FLOAT,
        Dtype::BF16 => BFLOAT,
        Dtype::C64 | Dtype::C128 => COMPLEX,
        Dtype::Bool => BOOL,
    };
    DataType {
        code,
        bits: 8 * dtype.size() as u8,
        lanes: 1,
    }
}

/// A field of a batch on a GPU, which frameworks take over by `from_dlpack`.
#[pyclass(frozen, name = "DeviceArray", module = "coprep._coprep")]
pub(crate) struct PyDeviceArray {
    array: DeviceArray,
}

impl PyDeviceArray {
    pub(crate) fn new(array: DeviceArray) -> Self {
        PyDeviceArray { array }
    }
}

#[pymethods]
impl PyDeviceArray {
    /// Shape, samples first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.array.field().shape)
    }

    /// Name of the type of the elements, such as `bfloat16`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.array.field().dtype.name()
    }

    /// DLPack's number for CUDA, and the number of the GPU in this process.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let Device { kind, number } = device(&self.array);
        (kind, number)
    }

    /// Returns a capsule with the array, for a consumer that uses it in `stream`.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            let (_, gpu) = self.__dlpack_device__();
            let why = format!(
                "the array is on cuda:{gpu}, and is not copied elsewhere: leave out dl_device"
            );
            return Err(PyBufferError::new_err(why));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "the array is given out as it is: leave out copy=True, and copy what you get",
            ));
        }
        match stream.unwrap_or(DEFAULT_STREAM) {
            NO_STREAM => {}
            stream @ 1.. => {
                let array = &self.array;
                py.detach(|| array.precede(stream as u64)).map_err(raise)?;
            }
            stream => {
                let why = format!(
                    "stream={stream}: 1 is the default stream, 2 that of the thread, -1 none"
                );
                return Err(PyValueError::new_err(why));
            }
        }
        match max_version {
            Some((1.., _)) => export::<Versioned>(py, &self.array),
            _ => export::<Unversioned>(py, &self.array),
        }
    }

    fn __repr__(&self) -> String {
        let field = self.array.field();
        format!(
            "<coprep array of {}{:?} on cuda:{}, for from_dlpack>",
            field.dtype.name(),
            field.shape,
            self.array.gpu()
        )
    }
}
