//! A client that can get rid of credentials that its store does not accept any more.
//!
//! The library keeps temporary credentials until shortly before the time at which they expire by their own account. If
//! the store refuses them earlier, because they were revoked or a clock is wrong, only another client asks for new ones.
//! Credentials that jobs give are not kept by the library, so that their client stays the same.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_shared_memory::lock::lock;
use object_store::{ObjectStore, Result};

use crate::answer::interpret;
use crate::client::client;
use crate::job_credentials::{CredentialPool, UsableCredentials};
use crate::traffic::TrafficCounters;
use crate::variables::Variables;

/// Least age of a client that is made anew. Hundreds of reads may be refused at the same time, and each new client asks
/// for credentials and opens connections.
const LEAST_AGE: Duration = Duration::from_secs(2);

/// The client of one store; see the module.
#[derive(Debug)]
pub(super) struct RenewableClient {
    url: DatasetUrl,
    variables: Variables,
    /// The jobs that give the credentials, if jobs do.
    pool: Option<Arc<CredentialPool>>,
    counters: Arc<TrafficCounters>,
    current: Mutex<CurrentClient>,
}

#[derive(Debug)]
struct CurrentClient {
    client: Arc<dyn ObjectStore>,
    made: Instant,
}

impl RenewableClient {
    /// Makes the client. No request is made.
    pub(super) fn new(
        url: &DatasetUrl,
        variables: &Variables,
        counters: &Arc<TrafficCounters>,
    ) -> Result<Self> {
        let client = client(url, variables, counters)?;
        Ok(RenewableClient {
            url: url.clone(),
            variables: variables.clone(),
            pool: variables.pool(url.scheme).cloned(),
            counters: counters.clone(),
            current: Mutex::new(CurrentClient {
                client,
                made: Instant::now(),
            }),
        })
    }

    /// Returns the client for one request.
    pub(super) fn get(&self) -> Arc<dyn ObjectStore> {
        lock(&self.current).client.clone()
    }

    /// Returns `true` if jobs give the credentials.
    pub(super) fn is_given_credentials(&self) -> bool {
        self.pool.is_some()
    }

    /// Returns the credentials that a request would have now, if jobs give them.
    pub(super) fn given_credentials(&self) -> Option<Arc<UsableCredentials>> {
        self.pool.as_ref()?.present()
    }

    /// Gets rid of credentials that were refused: makes the client anew, or has the next job give some. `given` are those
    /// that jobs had given before the request. Returns `false` if the present ones are too young for that, or the client
    /// cannot be made.
    pub(super) fn renew(&self, given: Option<&Arc<UsableCredentials>>) -> bool {
        if let Some(pool) = &self.pool {
            return pool.refuse(given);
        }
        let mut current = lock(&self.current);
        if current.made.elapsed() < LEAST_AGE {
            return false;
        }
        match client(&self.url, &self.variables, &self.counters) {
            Ok(client) => {
                *current = CurrentClient {
                    client,
                    made: Instant::now(),
                };
                true
            }
            Err(error) => {
                let store = self.url.store();
                let error = interpret(&error).text;
                tracing::warn!(store, error, "the client of a store cannot be made anew");
                false
            }
        }
    }
}
