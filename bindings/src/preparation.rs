//! Announcement of a dataset before its loader is used.

use std::path::PathBuf;
use std::sync::Mutex;

use coprep_client::connection::ConnectOptions;
use coprep_protocol::message::UserCode;
use coprep_shared_memory::lock::lock;
use pyo3::prelude::*;

use crate::connect::{coordinator_paths, program};

/// The start of worker processes, read from Python's `coprep._usercode.Launch`.
#[derive(FromPyObject)]
pub(crate) struct Launch {
    command: Vec<Vec<u8>>,
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    directory: Vec<u8>,
    workers: u32,
    sample_timeout_ms: u64,
    process: String,
    prelude: String,
}

impl From<Launch> for UserCode {
    fn from(launch: Launch) -> Self {
        UserCode {
            command: launch.command,
            environment: launch.environment,
            directory: launch.directory,
            workers: launch.workers,
            sample_timeout_ms: launch.sample_timeout_ms,
            process: launch.process,
            prelude: launch.prelude,
        }
    }
}

/// Announces a dataset, so that the coordinator imports its modules early, as long as this object lives.
#[pyclass(frozen, name = "Preparation", module = "coprep._coprep")]
pub(crate) struct PyPreparation {
    /// `None` once a loader has taken it over.
    client: Mutex<Option<coprep_client::Preparation>>,
}

impl PyPreparation {
    /// Hands the announcement over to a loader. The second loader gets `None`.
    pub(crate) fn hand_over(&self) -> Option<coprep_client::Preparation> {
        let mut client = lock(&self.client);
        client.take()
    }
}

#[pymethods]
impl PyPreparation {
    /// Returns at once and never fails. The connection is made in the background.
    #[new]
    #[pyo3(signature = (launch, *, dataset, name, socket))]
    fn new(
        py: Python<'_>,
        launch: Launch,
        dataset: String,
        name: String,
        socket: Option<PathBuf>,
    ) -> Self {
        // A thread of the client connects, which runs no signal handlers of Python, so signals are not checked.
        let connect = ConnectOptions {
            program: program(py),
            ..ConnectOptions::start(name)
        };
        let client = coprep_client::Preparation::begin(
            coordinator_paths(socket),
            connect,
            launch.into(),
            dataset,
        );
        PyPreparation {
            client: Mutex::new(Some(client)),
        }
    }
}
