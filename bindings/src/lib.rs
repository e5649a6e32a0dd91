//! The native part of the Python package, which wraps [`coprep_client`] for Python.
//!
//! | module | contents |
//! |---|---|
//! | `pipeline` | sources and operators, as an immutable builder |
//! | `operators` | arguments of operators from Python, and the same calls back for pickles |
//! | `loader` | one rank of a job: epochs, batches, state |
//! | `options` | the loader's options, read from Python's named tuples |
//! | `credentials` | credentials of stores that Python code of the job makes |
//! | `connect` | the coordinator's paths, and the program that starts it |
//! | `device` | batches on the job's GPU |
//! | `dlpack` | arrays on the GPU, through DLPack |
//! | `array` | a field of a batch, through NumPy's array interface |
//! | `content` | digests of the contents of arrays |
//! | `control` | status, stop, warm-up |
//! | `worker` | a worker process's end of its socket, and its random keys |
//! | `errors` | conversion of errors into exceptions |
//!
//! Python does the argument checks that need no coordinator, the iteration, and the choice of the framework
//! (`python/coprep/_loader.py`). No function here holds the interpreter while it waits.
//!
//! # One build for all versions of Python
//!
//! The module uses the stable interface of CPython 3.10 (`abi3-py310`), so that one wheel serves all later versions. The
//! stable interface has the buffer protocol from 3.11 on only, and nothing here needs it: arrays are given out through
//! NumPy's array interface, and bytes are taken as `bytes`. A free-threaded interpreter before 3.15 has no stable
//! interface. It needs a build of its own, which PyO3 makes from 3.14 on.
//!
//! # Without the GIL
//!
//! `gil_used = false` is true: no state is kept between calls but in the classes. PyO3 requires each class to be `Send` and
//! `Sync`, which the compiler checks: the only unsafe code is that of `dlpack` and `content`, which assert neither. All
//! classes but `WorkerLink` are frozen and lock what changes. Two calls of one `WorkerLink` at a time are refused by PyO3's
//! borrow check, which is atomic.
#![deny(unsafe_code)]

mod array;
mod connect;
mod content;
mod control;
mod credentials;
mod device;
mod dlpack;
mod errors;
mod loader;
mod operators;
mod options;
mod pipeline;
mod worker;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _coprep {
    #[pymodule_export]
    use crate::array::PyArray;
    #[pymodule_export]
    use crate::content::content_digest;
    #[pymodule_export]
    use crate::control::{keep_warm, parse_size, status, stop, warm};
    #[pymodule_export]
    use crate::credentials::PyCredentialLink;
    #[pymodule_export]
    use crate::device::{PyDeviceBatch, check_gpu, normalize_table};
    #[pymodule_export]
    use crate::dlpack::PyDeviceArray;
    #[pymodule_export]
    use crate::loader::PyLoader;
    #[pymodule_export]
    use crate::pipeline::{
        PyPipeline, arrays, audio_folder, files, image_folder, parquet, restore, tokens,
        user_dataset, web_dataset,
    };
    #[pymodule_export]
    use crate::worker::{SampleTask, WorkerLink, keep_freed_memory, sample_key};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("MOST_DRAWS", coprep_protocol::message::MOST_DRAWS)?;
        module.add("MOST_OWN_SAMPLES", coprep_protocol::order::MOST_SAMPLES)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
