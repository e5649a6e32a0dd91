//! The native part of the Python package: [`coprep_client`] as Python sees it.
//!
//! | module | what |
//! |---|---|
//! | `pipeline` | sources and operators, as an immutable builder |
//! | `operators` | arguments of operators in; the same calls out, for pickles |
//! | `loader` | one rank of a job: epochs, batches, state |
//! | `array` | a field of a batch, through NumPy's array interface |
//! | `control` | status, stop |
//! | `worker` | a worker process's end of its socket |
//! | `errors` | which exception an error becomes |
//!
//! Argument checks that need no coordinator, the iterator and the choice of framework are Python's
//! (`python/coprep/_loader.py`). Nothing here holds the interpreter while it waits.
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

/// Where the coordinator is: as the caller says, or as the environment does.
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
