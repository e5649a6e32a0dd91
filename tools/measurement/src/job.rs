//! A job that takes batches and does nothing else.

use std::sync::Arc;
use std::time::Duration;

use coprep_client::loader::LoaderOptions;
use coprep_client::{Event, InterruptCheck, Loader};
use coprep_protocol::id_set;
use coprep_protocol::message::{Attach, CacheForm, CacheRequest};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::poll_interval::poll_every;
use coprep_protocol::spec::PipelineSpec;
use coprep_protocol::store_variables::StoreVariables;
use roaring::RoaringBitmap;

use crate::{Result, interrupt};

/// Longest wait for a batch.
const BATCH_TIMEOUT: Duration = Duration::from_secs(120);

/// The samples that a job takes, and the coordinator that serves them.
pub struct JobOptions<'a> {
    /// Address of the coordinator.
    pub paths: &'a CoordinatorPaths,
    /// The pipeline, which is the stream's too.
    pub spec: &'a PipelineSpec,
    /// Form in which the job asks for cached samples.
    pub form: CacheForm,
    /// Samples of an epoch.
    pub ids: &'a [u32],
    /// Samples of a batch.
    pub batch_size: u32,
}

/// A job that takes batches and does nothing else.
pub struct MeasuredJob {
    loader: Arc<Loader>,
}

impl MeasuredJob {
    /// Attaches a job. Jobs with the same options share one stream.
    ///
    /// # Errors
    /// If the coordinator refuses the job.
    pub fn attach(options: &JobOptions<'_>) -> Result<MeasuredJob> {
        let loader = Loader::new(LoaderOptions {
            paths: options.paths.clone(),
            name: "coprep".into(),
            program: None,
            attach: attach(options)?,
            device: None,
            code: None,
            credentials: None,
            timeout: BATCH_TIMEOUT,
            // The coordinator is private: when it ends, the measurement has failed.
            reconnect: Duration::ZERO,
            interrupt_check: interrupt_check(),
            notice: coprep_client::no_notice(),
        })?;
        Ok(MeasuredJob { loader })
    }

    /// Takes one epoch. `each` gets the number of samples of each batch, and 0 now and then while no batch comes.
    ///
    /// # Errors
    /// The error of `each`, or of the coordinator.
    pub fn epoch(&self, mut each: impl FnMut(u64) -> Result<()>) -> Result<()> {
        self.loader.start_epoch()?;
        loop {
            match self.loader.next(poll_every(coprep_client::POLL_INTERVAL))? {
                Event::Batch(batch) => each(u64::from(batch.samples()))?,
                Event::EndOfEpoch => return Ok(()),
                Event::NotYet | Event::Skipped(_) => each(0)?,
            }
        }
    }

    /// Leaves the stream.
    pub fn close(&self) {
        self.loader.close();
    }
}

fn interrupt_check() -> InterruptCheck {
    Arc::new(|| Ok(interrupt::check()?))
}

/// Builds the request with which the job joins a stream.
fn attach(options: &JobOptions<'_>) -> Result<Attach> {
    let subset: RoaringBitmap = options.ids.iter().copied().collect();
    Ok(Attach {
        pipeline: options.spec.clone(),
        store_variables: StoreVariables::of(&options.spec.source),
        provider: None,
        code: None,
        // A fixed seed, so that jobs with the same options share.
        seed: Some(0),
        seed_hint: None,
        draws: None,
        is_told: false,
        knows_order_of: None,
        shuffle: true,
        shuffle_window: 0,
        relaxed: false,
        cache: CacheRequest {
            form: Some(options.form),
            bytes: None,
            lru: false,
            reuse: 0,
            check_files: true,
        },
        batch_size: options.batch_size,
        drop_last: false,
        rank: 0,
        world_size: 1,
        group: String::new(),
        subset: Some(id_set::serialize(&subset)),
        resume: None,
        dataset_samples: None,
        cohort: None,
        // A broken file must not end a measurement.
        skip_errors: true,
        tokens: Vec::new(),
        told: None,
        departed: Vec::new(),
        has_begun: false,
    })
}
