//! A client that can be made anew, to get rid of credentials that its store does not accept any more.
//!
//! The library keeps temporary credentials until shortly before the time at which they expire by their own account. If
//! the store refuses them earlier, because they were revoked or a clock is wrong, only another client asks for new ones.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_shared_memory::lock::lock;
use object_store::{ObjectStore, Result};

use crate::answer::interpret;
use crate::client::client;
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

    /// Makes the client anew. Returns `false` if it is too young for that, or cannot be made.
    pub(super) fn renew(&self) -> bool {
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
