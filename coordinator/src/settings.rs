//! What the operator of a coordinator chooses.

use std::time::Duration;

use coprep_pipeline::Slowness;
use coprep_protocol::message::CacheForm;

/// Settings of one coordinator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Processors that pipelines may use; None: those that affinity and control group leave, as they change.
    pub cpus: Option<u32>,
    /// Bytes that all caches may take together.
    pub cache_budget: u64,
    /// Form of the samples in a cache whose job does not say.
    pub cache_form: CacheForm,
    /// Named segments instead of anonymous memory: a restarted coordinator takes them over warm.
    pub cache_name: Option<String>,
    /// Bytes of one stream's staging area, within the bounds that correctness asks for.
    pub staging_bytes: u64,
    /// Storage is to be slower than it is, to see what then.
    pub storage: Slowness,
    /// Minibatches are handed over again without being prepared: to see how fast jobs are by themselves.
    pub replay: bool,
    /// Whether the costs of samples are measured; if not, nothing follows from them.
    pub costs: bool,
    /// Whether it is told apart what waits are for; if not, storage that is waited for counts in full for what is cached.
    pub attribution: bool,
    /// Without a connection for this long, the coordinator ends; None: never.
    pub idle: Option<Duration>,
    /// The same, while it holds a warmed cache.
    pub idle_warm: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            cpus: None,
            cache_budget: coprep_cache::memory::available().unwrap_or(0) / 4,
            cache_form: CacheForm::Auto,
            cache_name: None,
            staging_bytes: 256 << 20,
            storage: Slowness::default(),
            replay: false,
            costs: true,
            attribution: true,
            idle: None,
            idle_warm: None,
        }
    }
}
