//! A pipeline to measure, the conditions of the measurement, and a job that can be measured several times.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use coprep_coordinator::{Dataset, ReadThrottle, Slowness};
use coprep_protocol::message::CacheForm;
use coprep_protocol::spec::{Op, PipelineSpec};
use serde::{Deserialize, Serialize};

use crate::job::{JobOptions, MeasuredJob};
use crate::private::PrivateCoordinator;
use crate::progress::Progress;
use crate::quiet::{self, Observed};
use crate::{Result, interrupt};

/// A pipeline to measure, and the conditions of the measurement.
pub struct MeasurementPlan {
    /// The `coprep` program, which runs the coordinators of the measurement.
    pub program: PathBuf,
    /// The pipeline.
    pub spec: PipelineSpec,
    /// Samples of a batch.
    pub batch_size: u32,
    /// Processors that prepare.
    pub cpus: u32,
    /// Factor by which storage is slowed down.
    pub storage: Slowness,
    /// Seconds of each measurement.
    pub seconds: f64,
}

/// Sizes of all samples together, and the mean pixels of one, estimated from a part of them.
#[derive(Clone, Copy, Debug)]
pub struct SizeEstimate {
    /// Bytes of all samples as they are in storage.
    pub encoded: f64,
    /// Bytes of all samples decoded.
    pub decoded: f64,
    /// Mean pixels of a sample.
    pub pixels: f64,
}

/// Source of the samples when preparing is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleSource {
    /// Files that the kernel has in its page cache. coprep caches nothing.
    PageCache,
    /// coprep's cache, with all samples as they are read.
    Encoded,
    /// coprep's cache, with all samples decoded.
    Decoded,
}

impl SampleSource {
    /// Returns the form in which the job asks for cached samples.
    pub fn form(self) -> CacheForm {
        match self {
            SampleSource::PageCache => CacheForm::Off,
            SampleSource::Encoded => CacheForm::Encoded,
            SampleSource::Decoded => CacheForm::Decoded,
        }
    }

    /// Checks a measurement of a cache. `fetched` is the number of samples that were read from files.
    ///
    /// # Errors
    /// If samples should have come from the cache and were read from files.
    pub fn check(self, fetched: u64) -> Result<()> {
        if fetched > 0 && self != SampleSource::PageCache {
            Err(format!(
                "{fetched} samples were not cached: there is too little memory to measure this form"
            )
            .into())
        } else {
            Ok(())
        }
    }
}

/// Fewest batches whose samples a measurement takes.
const FEWEST_BATCHES: u32 = 8;
/// Most samples of a measurement.
const MOST_SAMPLES: u32 = 20_000;
/// Samples whose headers are read at once, if they lie in a remote store.
const HEADS_AT_A_TIME: usize = 64;
/// Samples of the first measurement, which tells how many are enough.
const FIRST_SAMPLES: u32 = 256;

/// Returns `count` samples, evenly spaced. Rows of parquet files come by whole row groups, as jobs read them.
fn part(dataset: &Dataset, count: u32) -> Vec<u32> {
    let ends = dataset.block_ends(0).filter(|_| dataset.is_in_row_groups());
    let groups = ends.map_or(1, |ends| ends.len() as u32);
    let of_one = (dataset.len() / groups.max(1)).max(1);
    dataset.spread(count, count.div_ceil(of_one))
}

impl MeasurementPlan {
    /// Opens the dataset, as slow as the plan asks for.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn dataset(&self) -> Result<Dataset> {
        let throttle = Arc::new(ReadThrottle::new(self.storage));
        Ok(Dataset::open(&self.spec.source)?.slowed(throttle))
    }

    /// Returns the samples to measure: as many as `seconds` are enough for, and few enough to fit into a cache decoded.
    ///
    /// # Errors
    /// If the samples cannot be read or prepared.
    pub fn choose_samples(
        &self,
        dataset: &Dataset,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u32>> {
        let all = dataset.len();
        let few = part(dataset, FIRST_SAMPLES.max(self.batch_size));
        let each = estimate_sizes(dataset, &few, &self.spec)?.decoded / f64::from(all);
        // Half of a cache's default size, which is a quarter of the available memory.
        let room = coprep_shared_memory::memory::available().unwrap_or(u64::MAX) as f64 / 8.0;
        let fitting = (room / each.max(1.0)) as u32;
        let first = self.prepare(&self.spec, SampleSource::PageCache, &few, 0.5, progress)?;
        let enough = (first * self.seconds / 4.0) as u32;
        let enough = enough.clamp(FEWEST_BATCHES * self.batch_size, MOST_SAMPLES);
        Ok(part(dataset, enough.min(fitting)))
    }

    /// Returns the same pipeline with every sample decoded in full.
    pub fn in_full(&self) -> PipelineSpec {
        let mut spec = self.spec.clone();
        for op in &mut spec.ops {
            if let Op::Decode { scaled, .. } = op {
                *scaled = false;
            }
        }
        spec
    }

    /// Measures samples per second, with `ids` prepared once before and then again and again.
    fn prepare(
        &self,
        spec: &PipelineSpec,
        source: SampleSource,
        ids: &[u32],
        seconds: f64,
        progress: &mut dyn Progress,
    ) -> Result<f64> {
        let serve = [format!("--cpus={}", self.cpus)];
        self.open(spec, source, ids, &serve, progress)?
            .rate_once(seconds, progress)
    }

    /// Starts a coordinator with the arguments `serve`, and a job on it. The job takes `ids` once, which fills the
    /// cache.
    ///
    /// # Errors
    /// If the coordinator does not start, or if the samples cannot be prepared.
    pub fn open(
        &self,
        spec: &PipelineSpec,
        source: SampleSource,
        ids: &[u32],
        serve: &[String],
        progress: &mut dyn Progress,
    ) -> Result<Probe> {
        let coordinator = PrivateCoordinator::start(&self.program, serve)?;
        let job = MeasuredJob::attach(&JobOptions {
            paths: &coordinator.paths,
            spec,
            form: source.form(),
            ids,
            batch_size: self.batch_size,
        })?;
        epochs(&job, 0.0, progress)?;
        Ok(Probe {
            job,
            coordinator,
            source,
        })
    }
}

/// A job that can be measured several times, and is idle in between.
pub struct Probe {
    job: MeasuredJob,
    coordinator: PrivateCoordinator,
    source: SampleSource,
}

impl Probe {
    /// Measures samples per second, for `seconds` or one epoch. Repeats it if other programs used the processors.
    ///
    /// # Errors
    /// If the samples cannot be prepared, or do not come from the source of the probe.
    pub fn rate(&self, seconds: f64, progress: &mut dyn Progress) -> Result<Observed<f64>> {
        quiet::measure(|| self.rate_once(seconds, progress))
    }

    /// Measures samples per second once.
    fn rate_once(&self, seconds: f64, progress: &mut dyn Progress) -> Result<f64> {
        // Take the batches that were prepared while the job was idle: they do not count.
        epochs(&self.job, 0.0, progress)?;
        // Count samples where they are prepared: how many batches are ahead at the end of an epoch is chance.
        let (began, before) = (Instant::now(), self.coordinator.status()?.pool);
        epochs(&self.job, seconds, progress)?;
        let (time, after) = (began.elapsed(), self.coordinator.status()?.pool);
        self.source.check(after.fetched - before.fetched)?;
        Ok((after.prepared - before.prepared) as f64 / time.as_secs_f64())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.job.close();
    }
}

/// Takes whole epochs until they took `seconds` together, and at least one.
fn epochs(job: &MeasuredJob, seconds: f64, progress: &mut dyn Progress) -> Result<()> {
    let began = Instant::now();
    loop {
        job.epoch(|_| {
            progress.tick();
            Ok(interrupt::check()?)
        })?;
        if began.elapsed().as_secs_f64() >= seconds {
            return Ok(());
        }
    }
}

/// Reads samples so that the page cache holds them.
///
/// # Errors
/// If a file cannot be read, or if a signal has come.
pub fn read_all(dataset: &Dataset, ids: &[u32], progress: &mut dyn Progress) -> Result<()> {
    let mut file = Vec::new();
    for &id in ids {
        dataset.fetch(id, &mut file)?;
        progress.tick();
        interrupt::check()?;
    }
    Ok(())
}

/// Estimates the sizes of all samples from the files of `ids`.
///
/// # Errors
/// If a file cannot be read.
pub fn estimate_sizes(dataset: &Dataset, ids: &[u32], spec: &PipelineSpec) -> Result<SizeEstimate> {
    let pipeline = coprep_coordinator::Pipeline::for_dataset(&spec.ops, dataset)?;
    let mut images = 0.0;
    let mut sum = SizeEstimate {
        encoded: 0.0,
        decoded: 0.0,
        pixels: 0.0,
    };
    for ids in ids.chunks(HEADS_AT_A_TIME) {
        for (&id, head) in ids.iter().zip(dataset.fetch_heads(ids)) {
            sum.encoded += dataset.file_len(id)? as f64;
            // A file that is no image has bytes, but no pixels.
            if let Ok(picture) = pipeline.inspect(&head?) {
                images += 1.0;
                sum.decoded += picture.decoded.bytes() as f64;
                sum.pixels += picture.pixels as f64;
            }
        }
    }
    let (all, few) = (f64::from(dataset.len()), ids.len() as f64);
    Ok(SizeEstimate {
        encoded: sum.encoded / few * all,
        decoded: sum.decoded / f64::max(images, 1.0) * all,
        pixels: sum.pixels / f64::max(images, 1.0),
    })
}
