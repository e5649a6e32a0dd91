//! Connecting to the coordinator: the paths of its socket, and the program that starts it.

use std::path::PathBuf;

use coprep_client::connection::ConnectOptions;
use coprep_protocol::paths::CoordinatorPaths;
use pyo3::prelude::*;

use crate::errors::signals;

/// Returns the coordinator's paths: at the given socket, or as the environment selects.
pub(crate) fn coordinator_paths(socket: Option<PathBuf>) -> CoordinatorPaths {
    socket.map_or_else(CoordinatorPaths::from_env, CoordinatorPaths::at)
}

/// Returns the path of the `coprep` command of this Python environment.
pub(crate) fn program(py: Python<'_>) -> Option<PathBuf> {
    let scripts = py
        .import("sysconfig")
        .and_then(|m| m.call_method1("get_path", ("scripts",)));
    scripts
        .and_then(|path| path.extract::<PathBuf>())
        .ok()
        .map(|folder| folder.join("coprep"))
}

/// Returns the options of a connection that starts a coordinator if none runs, and that Ctrl-C interrupts. `name` is
/// the name of the client in `coprep status`.
pub(crate) fn start_or_find(py: Python<'_>, name: &str) -> ConnectOptions {
    ConnectOptions {
        program: program(py),
        interrupt_check: signals(),
        ..ConnectOptions::start(name)
    }
}
