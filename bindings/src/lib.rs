//! The native part of the Python package, which wraps [`coprep_client`] for Python.
//!
//! | module | contents |
//! |---|---|
//! | `pipeline` | sources and operators, as an immutable builder |
//! | `operators` | arguments of operators from Python, and the same calls back for pickles |
//! | `loader` | one rank of a job: epochs, batches, state |
//! | `array` | a field of a batch, through NumPy's array interface |
//! | `control` | status, stop, warm-up |
//! | `worker` | a worker process's end of its socket, and its random keys |
//! | `errors` | conversion of errors into exceptions |
//!
//! Python does the argument checks that need no coordinator, the iteration, and the choice of the framework
//! (`python/coprep/_loader.py`). No function here holds the interpreter while it waits.
#![forbid(unsafe_code)]

mod array;
mod control;
mod errors;
mod loader;
mod operators;
mod pipeline;
mod worker;

use coprep_protocol::paths::CoordinatorPaths;
use pyo3::prelude::*;

/// Returns the coordinator's paths: at the given socket, or as the environment selects.
fn place(socket: Option<std::path::PathBuf>) -> CoordinatorPaths {
    socket.map_or_else(CoordinatorPaths::from_env, CoordinatorPaths::at)
}

#[pymodule(gil_used = false)]
mod _coprep {
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::control::{keep_warm, parse_size, status, stop, warm};
    #[pymodule_export]
    use crate::loader::{Loader, Preparation};
    #[pymodule_export]
    use crate::pipeline::{Pipeline, files, image_folder, restore, user_dataset};
    #[pymodule_export]
    use crate::worker::{WorkerLink, keep_freed_memory, sample_key};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("MOST_DRAWS", coprep_protocol::message::MOST_DRAWS)?;
        module.add("MOST_OWN_SAMPLES", coprep_protocol::order::MOST_SAMPLES)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
