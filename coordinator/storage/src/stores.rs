//! The remote stores of a process, or of its jobs.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::store_variables::StoreVariables;
use coprep_shared_memory::lock::lock;

use crate::early_reads::EarlyReads;
use crate::error::Error;
use crate::health::OutageReport;
use crate::io_runtime::IoRuntime;
use crate::job_credentials::CredentialPool;
use crate::large_reads::LargeReads;
use crate::remote::RemoteStore;
use crate::traffic::StoreTraffic;
use crate::variables::Variables;

/// Time that a read waits for a store that does not answer, unless the operator chooses another one.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The remote stores that are open. Their threads start when the first one is opened.
pub struct Stores {
    variables: Variables,
    open: Mutex<Vec<Arc<RemoteStore>>>,
    shared: Arc<SharedParts>,
}

/// The parts that the stores of all jobs share.
struct SharedParts {
    patience: Duration,
    io: OnceLock<Arc<IoRuntime>>,
    early_reads: EarlyReads,
    large_reads: LargeReads,
}

impl SharedParts {
    fn new(patience: Duration, early_reads: EarlyReads) -> Arc<Self> {
        Arc::new(SharedParts {
            patience,
            io: OnceLock::new(),
            early_reads,
            large_reads: LargeReads::default(),
        })
    }
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
            variables: Variables::default(),
            open: Mutex::default(),
            shared: SharedParts::new(patience, EarlyReads::new(0)),
        }
    }

    /// Returns an empty table for the datasets of a job, whose stores are described by these variables alone. It shares the
    /// threads, early reads and large reads of this one.
    #[must_use]
    pub fn of_job(&self, variables: &StoreVariables) -> Stores {
        self.described_by(Variables::complete(variables.clone()))
    }

    /// Returns a table as [`of_job`](Self::of_job) does, for stores whose credentials the jobs of this pool give.
    #[must_use]
    pub fn of_providers(&self, variables: &StoreVariables, pool: &Arc<CredentialPool>) -> Stores {
        self.described_by(Variables::complete(variables.clone()).with_pool(pool.clone()))
    }

    fn described_by(&self, variables: Variables) -> Stores {
        Stores {
            variables,
            open: Mutex::default(),
            shared: self.shared.clone(),
        }
    }

    /// Sets a variable for the stores that are opened from now on, as if it were one of this process's environment.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Stores {
        self.variables.set(name, value);
        self
    }

    /// Lets what is read while datasets are opened stay in memory until it is used, `most` bytes of it. Without this,
    /// nothing stays.
    #[must_use]
    pub fn with_early_reads(mut self, most: u64) -> Stores {
        self.shared = SharedParts::new(self.shared.patience, EarlyReads::new(most));
        self
    }

    /// Returns what was read while datasets were opened, and is not used yet.
    #[must_use]
    pub fn early_reads(&self) -> &EarlyReads {
        &self.shared.early_reads
    }

    /// Returns the large reads that are under way while datasets are opened.
    #[must_use]
    pub fn large_reads(&self) -> &LargeReads {
        &self.shared.large_reads
    }

    /// Returns the time that a read waits for a store that does not answer.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.shared.patience
    }

    /// Returns the store of a URL, as this table's variables describe it. No request is made.
    ///
    /// # Errors
    /// If the variables do not describe the store, or the I/O threads cannot be started.
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
            self.shared.patience,
        )?);
        open.push(store.clone());
        Ok(store)
    }

    fn io(&self) -> Result<Arc<IoRuntime>, Error> {
        let io = &self.shared.io;
        if let Some(io) = io.get() {
            return Ok(io.clone());
        }
        let started = Arc::new(IoRuntime::start()?);
        Ok(io.get_or_init(|| started).clone())
    }

    /// Returns `true` if a remote store was opened, by any job.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.shared.io.get().is_some()
    }

    /// Returns the CPU time that the I/O threads spend on `bytes` bytes, as they did so far.
    #[must_use]
    pub fn io_cpu_for(&self, bytes: u64) -> Duration {
        let io = self.shared.io.get();
        io.map_or(Duration::ZERO, |io| io.cpu_for(bytes))
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
        if let Some(io) = self.shared.io.get() {
            io.stop();
        }
        lock(&self.open).iter().for_each(|store| store.stop());
    }
}
