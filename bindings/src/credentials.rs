//! Credentials of stores that Python code of the job makes.
//!
//! A thread of Python calls the user's code, and not one of Rust: a thread that returns to an interpreter which is ending is
//! ended where it is, and only Python's own frames can stand that. `coprep._credentials` is its Python side.

use std::path::PathBuf;
use std::sync::Arc;

use coprep_client::credentials::{CredentialLink, OwnedLink};
use coprep_client::{Error, ErrorKind, not_given};
use coprep_protocol::dataset_url::UrlScheme;
use coprep_protocol::given_credentials::{StoreCredentials, TimedCredentials};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::connect::coordinator_paths;

/// Code of the job that makes credentials.
#[derive(Clone)]
pub(crate) struct ProvidedCredentials {
    pub(crate) provider: Arc<Py<PyAny>>,
    /// Kind of the stores.
    pub(crate) scheme: UrlScheme,
}

/// The end of a link that Python's thread serves.
#[pyclass(frozen, name = "CredentialLink", module = "coprep._coprep")]
pub(crate) struct PyCredentialLink {
    link: Arc<CredentialLink>,
}

#[pymethods]
impl PyCredentialLink {
    /// Waits until credentials are wanted. Returns `False` once nobody will want any.
    fn wait(&self, py: Python<'_>) -> bool {
        py.detach(|| self.link.wait())
    }

    /// Gives credentials to the coordinator. The arguments are those of one kind of store.
    #[expect(
        clippy::too_many_arguments,
        reason = "they are the keys of the dictionaries that users return"
    )]
    #[pyo3(signature = (*, expires_ms, access_key_id=None, secret_access_key=None, token=None, access_key=None, sas_token=None))]
    fn give(
        &self,
        py: Python<'_>,
        expires_ms: Option<u64>,
        access_key_id: Option<String>,
        secret_access_key: Option<String>,
        token: Option<String>,
        access_key: Option<String>,
        sas_token: Option<Vec<(String, String)>>,
    ) -> PyResult<()> {
        let credentials = match (
            access_key_id,
            secret_access_key,
            access_key,
            sas_token,
            token,
        ) {
            (Some(key_id), Some(secret_key), None, None, token) => StoreCredentials::Keys {
                key_id,
                secret_key,
                token,
            },
            (None, None, Some(key), None, None) => StoreCredentials::AccountKey(key),
            (None, None, None, Some(query), None) => StoreCredentials::Signature(query),
            (None, None, None, None, Some(token)) => StoreCredentials::Token(token),
            _ => {
                return Err(PyValueError::new_err(
                    "these are no credentials of one kind of store",
                ));
            }
        };
        let given = TimedCredentials {
            credentials,
            expires_ms,
        };
        py.detach(|| self.link.give(given));
        Ok(())
    }

    /// Reports that the user's code has failed with an exception, which the job's own request raises. `kind` says it to the
    /// coordinator, and has no text of the user's code in it.
    fn fail(&self, py: Python<'_>, exception: Bound<'_, PyAny>, kind: &str) {
        let error = not_given(PyErr::from_value(exception));
        py.detach(|| self.link.fail(error, kind));
    }

    /// Ends the link: nobody will want credentials.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.link.close());
    }
}

/// Returns the link over which a pipeline's credentials are given, or `None` if its code makes none. `name` is that of the
/// job in `coprep status`.
pub(crate) fn link_of(
    provided: Option<&ProvidedCredentials>,
    name: &str,
    socket: Option<PathBuf>,
) -> Option<OwnedLink> {
    let provided = provided?.clone();
    let scheme = provided.scheme;
    let start = move |link: Arc<CredentialLink>| {
        let started = Python::attach(|py| {
            let thread = py.import("coprep._credentials")?;
            let link = PyCredentialLink { link };
            let arguments = (provided.provider.bind(py), scheme.as_str(), link);
            thread.call_method1("start", arguments).map(drop)
        });
        started.map_err(|e: PyErr| Error::new(ErrorKind::Interrupted, "interrupted").because(e))
    };
    let paths = coordinator_paths(socket);
    Some(OwnedLink::new(paths, name, scheme, Box::new(start)))
}
