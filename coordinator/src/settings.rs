//! Settings that the operator of a coordinator chooses.

use std::path::PathBuf;
use std::time::Duration;

use coprep_protocol::message::CacheForm;
use coprep_storage::Slowness;

/// Settings of one coordinator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of processors that pipelines may use. `None` means all that affinity and control group allow, also as
    /// they change.
    pub cpus: Option<u32>,
    /// Bytes that all caches may take together.
    pub cache_budget: u64,
    /// Form of the cached samples of a job that names none.
    pub cache_form: CacheForm,
    /// Prefix of named segments, which replace anonymous memory. A restarted coordinator takes them over warm.
    pub cache_name: Option<String>,
    /// The local disk that holds samples below the caches in memory, or `None` for none.
    pub disk: Option<DiskSettings>,
    /// Bytes of one stream's staging area, within the bounds that correctness asks for.
    pub staging_bytes: u64,
    /// Bytes of each GPU's memory that its rings may take together, and at most a twentieth of the GPU; 0 for no rings.
    pub device_memory: u64,
    /// Artificial slowness of the storage, to see its effect.
    pub storage: Slowness,
    /// Time that reads wait for remote storage that does not answer, before their jobs get an error.
    pub storage_patience: Duration,
    /// `true` if minibatches are handed over again without being prepared, to see how fast jobs are by themselves.
    pub replay: bool,
    /// `true` if the costs of samples are measured. Without it, nothing is decided by cost.
    pub costs: bool,
    /// `true` if waits are attributed to their causes. Without it, waiting for storage counts in full in the worth of a
    /// cached sample.
    pub attribution: bool,
    /// `true` if cached samples are compared with their files for each job that starts.
    pub check_files: bool,
    /// Time without a connection after which the coordinator ends, or `None` to stay.
    pub idle: Option<Duration>,
    /// Time without a connection after which the coordinator ends while it holds a warmed cache.
    pub idle_warm: Option<Duration>,
}

/// Where samples are kept on a local disk.
#[derive(Clone, Debug)]
pub struct DiskSettings {
    /// Folder of the files. It is created if it is missing.
    pub folder: PathBuf,
    /// Bytes that all files may take together.
    pub bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            cpus: None,
            cache_budget: coprep_shared_memory::memory::available().unwrap_or(0) / 4,
            cache_form: CacheForm::Auto,
            cache_name: None,
            disk: None,
            staging_bytes: 256 << 20,
            device_memory: 1 << 30,
            storage: Slowness::default(),
            storage_patience: coprep_storage::PATIENCE,
            replay: false,
            costs: true,
            attribution: true,
            check_files: true,
            idle: None,
            idle_warm: None,
        }
    }
}
