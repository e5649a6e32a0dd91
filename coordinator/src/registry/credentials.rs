//! The jobs that give credentials of their stores themselves.
//!
//! A job gives them over a connection of its own, and names that connection in its requests by a number. Before the stores
//! that it shares with other jobs use its credentials, they are tried alone, by a request for one object of each store of the
//! dataset. A job that is refused gets the store's error, and the others never use its credentials.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, Weak};

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::message::{GiveCredentials, Reply};
use coprep_protocol::spec::Source;
use coprep_protocol::store_variables::StoreVariables;
use coprep_shared_memory::lock::lock;
use coprep_storage::{JobProvider, Stores};

use super::Registry;
use super::job_stores::{JobStores, Provided};
use crate::Result;
use crate::error::{from_lower, invalid};
use crate::stream::Client;

/// The jobs that give credentials, by the numbers of their connections.
#[derive(Default)]
pub(super) struct Providers(Mutex<Vec<(u128, Weak<JobProvider>)>>);

/// The credentials that come over one connection. They are forgotten when this is dropped.
pub(crate) struct GivenByClient {
    provider: Arc<JobProvider>,
    /// The number of the connection.
    pub(crate) number: u128,
}

impl GivenByClient {
    pub(crate) fn provider(&self) -> &JobProvider {
        &self.provider
    }
}

impl Drop for GivenByClient {
    fn drop(&mut self) {
        self.provider.end();
    }
}

impl Registry {
    /// Takes the first credentials that a client gives on its connection.
    pub(crate) fn take_credentials(
        &self,
        request: &GiveCredentials,
        client: &Client,
    ) -> Result<GivenByClient> {
        let job = format!("process {} ({})", client.pid, client.name);
        let queue = client.reply_queue.clone();
        // A client that is gone is noticed by its session.
        let ask = move || drop(queue.post(&Reply::WantCredentials));
        let provider = JobProvider::new(job, request.scheme, &request.given, ask);
        let provider = provider.map_err(from_lower)?;
        let number = random_number();
        let mut known = lock(&self.providers.0);
        known.retain(|(_, provider)| provider.strong_count() > 0);
        known.push((number, Arc::downgrade(&provider)));
        Ok(GivenByClient { provider, number })
    }

    /// Returns the stores of a request. `provider` is the number of the connection over which its job gives credentials, if
    /// it does. Then they are tried on the source first.
    pub(crate) fn stores_of(
        &self,
        variables: &StoreVariables,
        provider: Option<u128>,
        source: &Source,
    ) -> Result<Arc<JobStores>> {
        let Some(number) = provider else {
            return Ok(self.stores.of(variables, None));
        };
        let provider = self.provider(number)?;
        self.stores
            .with_own(variables, &provider, |own| check_access(source, own))?;
        let provided = Provided {
            scheme: provider.scheme(),
            source: source.fingerprint(),
        };
        let stores = self.stores.of(variables, Some(provided));
        if let Some(pool) = &stores.pool {
            pool.admit(&provider);
        }
        Ok(stores)
    }

    fn provider(&self, number: u128) -> Result<Arc<JobProvider>> {
        let known = lock(&self.providers.0);
        let found = known.iter().find(|(known, _)| *known == number);
        let provider = found.and_then(|(_, provider)| provider.upgrade());
        provider
            .ok_or_else(|| invalid("the connection over which the job gives credentials has ended"))
    }
}

/// Objects of a store that are asked for, if they do not exist, until one does.
const MOST_TRIES: u32 = 16;

/// Checks that the stores' credentials may read a source, by one object of each store.
fn check_access(source: &Source, stores: &Stores) -> Result<()> {
    let is_folder = matches!(
        source,
        Source::ImageFolder { .. } | Source::AudioFolder { .. }
    );
    let mut tries = BTreeMap::<String, u32>::new();
    for text in source.locations() {
        // Local files need no credentials, and an URL that is not accepted is reported when the dataset is opened.
        let Ok(Some(url)) = DatasetUrl::parse(text) else {
            continue;
        };
        let name = url.store();
        let left = tries.entry(name).or_insert(MOST_TRIES);
        if url.scheme.is_http() || *left == 0 {
            continue;
        }
        let store = stores.of(&url).map_err(from_lower)?;
        let is_checked = store.check_access(&url.key, is_folder);
        let is_checked = is_checked.map_err(from_lower)?;
        *left = if is_checked { 0 } else { *left - 1 };
    }
    Ok(())
}

/// Returns a number that no other coordinator has given out, so that a job cannot mistake this one for the one before.
fn random_number() -> u128 {
    // The standard library's hashers are keyed by the operating system's randomness.
    let half = || std::hash::RandomState::new().build_hasher().finish();
    u128::from(half()) << 64 | u128::from(half())
}
