//! The remote stores of a process.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_shared_memory::lock::lock;

use crate::early_reads::EarlyReads;
use crate::error::Error;
use crate::health::OutageReport;
use crate::io_runtime::IoRuntime;
use crate::large_reads::LargeReads;
use crate::remote::RemoteStore;
use crate::traffic::StoreTraffic;
use crate::variables::Variables;

/// Time that a read waits for a store that does not answer, unless the operator chooses another one.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The remote stores that are open. Their threads start when the first one is opened.
pub struct Stores {
    variables: Variables,
    patience: Duration,
    io: OnceLock<Arc<IoRuntime>>,
    open: Mutex<Vec<Arc<RemoteStore>>>,
    early_reads: EarlyReads,
    large_reads: LargeReads,
}

impl Default for Stores {
    fn default() -> Self {
        Stores::new(PATIENCE)
    }
}

impl Stores {
    /// Returns an empty table. A read waits for `patience` for a store that does not answer.
    #[must_use]
    pub fn new(patience: Duration) -> Stores {
        Stores {
            variables: Variables::new(),
            patience,
            io: OnceLock::new(),
            open: Mutex::default(),
            early_reads: EarlyReads::new(0),
            large_reads: LargeReads::default(),
        }
    }

    /// Sets a variable for the stores that are opened from now on, as if it were one of this process's environment.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Stores {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets what is read while datasets are opened stay in memory until it is used, `most` bytes of it. Without this,
    /// nothing stays.
    #[must_use]
    pub fn with_early_reads(mut self, most: u64) -> Stores {
        self.early_reads = EarlyReads::new(most);
        self
    }

    /// Returns what was read while datasets were opened, and is not used yet.
    #[must_use]
    pub fn early_reads(&self) -> &EarlyReads {
        &self.early_reads
    }

    /// Returns the large reads that are under way while datasets are opened.
    #[must_use]
    pub fn large_reads(&self) -> &LargeReads {
        &self.large_reads
    }

    /// Returns the time that a read waits for a store that does not answer.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Returns the store of a URL, with the credentials of this process's environment. No request is made.
    ///
    /// # Errors
    /// If the environment does not describe the store, or the I/O threads cannot be started.
    pub fn of(&self, url: &DatasetUrl) -> Result<Arc<RemoteStore>, Error> {
        let name = url.store();
        // Held over the opening, which makes no request, so that there is one store for each name.
        let mut open = lock(&self.open);
        if let Some(store) = open.iter().find(|store| store.name() == name) {
            return Ok(store.clone());
        }
        let store = Arc::new(RemoteStore::open(
            url,
            &self.variables,
            self.io()?,
            self.patience,
        )?);
        open.push(store.clone());
        Ok(store)
    }

    fn io(&self) -> Result<Arc<IoRuntime>, Error> {
        if let Some(io) = self.io.get() {
            return Ok(io.clone());
        }
        let io = Arc::new(IoRuntime::start()?);
        Ok(self.io.get_or_init(|| io).clone())
    }

    /// Returns `true` if a remote store was opened.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.io.get().is_some()
    }

    /// Returns the CPU time that the I/O threads spend on `bytes` bytes, as they did so far.
    #[must_use]
    pub fn io_cpu_for(&self, bytes: u64) -> Duration {
        self.io.get().map_or(Duration::ZERO, |io| io.cpu_for(bytes))
    }

    /// Returns the stores that do not answer.
    #[must_use]
    pub fn outages(&self) -> Vec<OutageReport> {
        lock(&self.open)
            .iter()
            .filter_map(|store| store.outage())
            .collect()
    }

    /// Returns the numbers of requests to each store.
    #[must_use]
    pub fn traffic(&self) -> Vec<StoreTraffic> {
        lock(&self.open)
            .iter()
            .map(|store| store.traffic())
            .collect()
    }

    /// Ends all waits for remote stores, because the process ends.
    pub fn stop(&self) {
        if let Some(io) = self.io.get() {
            io.stop();
        }
        lock(&self.open).iter().for_each(|store| store.stop());
    }
}
