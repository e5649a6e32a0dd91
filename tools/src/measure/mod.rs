//! Measures how fast samples are prepared. A job that only takes batches reads samples from the page cache or from
//! coprep's cache. A part of the samples is enough: drawn evenly from all, and as many as take some seconds to prepare.
//!
//! | module | purpose |
//! |---|---|
//! | [`private`] | the coordinator |
//! | [`job`] | the job |
//! | [`group`] | processes that are measured, and end with the measurement |
//! | [`quiet`] | whether other programs used the processors meanwhile |

pub(crate) mod group;
pub(crate) mod job;
pub(crate) mod private;
pub(crate) mod quiet;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Instant;

use coprep_coordinator::{Dataset, ReadThrottle, Slowness};
use coprep_protocol::message::CacheForm;
use coprep_protocol::spec::{Op, PipelineSpec};
use tempfile::TempDir;

use crate::interrupt;
use crate::progress::Steps;
use job::{JobOptions, MeasuredJob};
use private::Private;
use quiet::Observed;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A pipeline to measure, and the conditions of the measurement.
pub(crate) struct MeasurementPlan {
    pub(crate) spec: PipelineSpec,
    pub(crate) batch_size: u32,
    /// Processors that prepare.
    pub(crate) cpus: u32,
    pub(crate) storage: Slowness,
    /// Seconds of each measurement.
    pub(crate) seconds: f64,
}

/// Sizes of all samples together, and the mean pixels of one, estimated from a part of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeEstimate {
    pub(crate) encoded: f64,
    pub(crate) decoded: f64,
    pub(crate) pixels: f64,
}

/// Source of the samples when preparing is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    PageCache,
    Cache(CacheForm),
}

impl From {
    /// Returns the form in which the job asks for cached samples.
    pub(crate) fn form(self) -> CacheForm {
        match self {
            From::PageCache => CacheForm::Off,
            From::Cache(form) => form,
        }
    }

    /// Checks a measurement of a cache: all samples must come from it. `fetched` is the number of samples read from
    /// files.
    pub(crate) fn check(self, fetched: u64) -> Result<()> {
        if fetched > 0 && self != From::PageCache {
            Err(format!(
                "{fetched} samples were not cached: there is too little memory to measure this form"
            )
            .into())
        } else {
            Ok(())
        }
    }
}

/// Returns the processors that this process may use under its affinity and control group.
pub(crate) fn usable() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// Fewest batches whose samples a measurement takes.
const BATCHES: u32 = 8;
/// Most samples of a measurement.
const MOST: u32 = 20_000;
/// Samples of the first measurement, which tells how many are enough.
const FIRST: u32 = 256;

/// Returns `count` numbers below `all`, evenly spaced.
pub(crate) fn evenly(all: u32, count: u32) -> Vec<u32> {
    let count = count.clamp(1, all.max(1));
    let place = |i: u32| (u64::from(i) * u64::from(all) / u64::from(count)) as u32;
    (0..count).map(place).collect()
}

impl MeasurementPlan {
    /// Opens the dataset, as slow as the plan asks for.
    pub(crate) fn dataset(&self) -> Result<Dataset> {
        let throttle = Arc::new(ReadThrottle::new(self.storage));
        Ok(Dataset::open(&self.spec.source)?.slowed(throttle))
    }

    /// Returns the samples to measure: as many as `seconds` are enough for, and few enough to fit into a cache decoded.
    pub(crate) fn part(&self, dataset: &Dataset, steps: &mut Steps) -> Result<Vec<u32>> {
        let all = dataset.len();
        let few = evenly(all, FIRST.max(self.batch_size));
        let each = sizes(dataset, &few, &self.spec)?.decoded / f64::from(all);
        // Half of a cache's default size, which is a quarter of the available memory.
        let room = coprep_cache::memory::available().unwrap_or(u64::MAX) as f64 / 8.0;
        let fitting = (room / each.max(1.0)) as u32;
        let first = self.prepare(&self.spec, From::PageCache, &few, 0.5, steps)?;
        let enough = (first * self.seconds / 4.0) as u32;
        let enough = enough.clamp(BATCHES * self.batch_size, MOST);
        Ok(evenly(all, enough.min(fitting)))
    }

    /// Returns the same pipeline with every sample decoded in full.
    pub(crate) fn in_full(&self) -> PipelineSpec {
        let mut spec = self.spec.clone();
        for op in &mut spec.ops {
            if let Op::Decode { scaled, .. } = op {
                *scaled = false;
            }
        }
        spec
    }

    /// Measures samples per second, with `ids` prepared once before and then again and again.
    pub(crate) fn prepare(
        &self,
        spec: &PipelineSpec,
        from: From,
        ids: &[u32],
        seconds: f64,
        steps: &mut Steps,
    ) -> Result<f64> {
        let serve = [format!("--cpus={}", self.cpus)];
        self.open(spec, from, ids, &serve, steps)?
            .rate_once(seconds, steps)
    }

    /// Starts a coordinator with the arguments `serve`, and a job on it. The job takes `ids` once, which fills the
    /// cache.
    pub(crate) fn open(
        &self,
        spec: &PipelineSpec,
        from: From,
        ids: &[u32],
        serve: &[String],
        steps: &mut Steps,
    ) -> Result<Probe> {
        let coordinator = Private::start(serve)?;
        let job = MeasuredJob::attach(&JobOptions {
            place: &coordinator.place,
            spec,
            form: from.form(),
            ids,
            batch_size: self.batch_size,
        })?;
        epochs(&job, 0.0, steps)?;
        Ok(Probe {
            job,
            coordinator,
            from,
        })
    }
}

/// A job that can be measured several times, and is idle in between.
pub(crate) struct Probe {
    job: MeasuredJob,
    coordinator: Private,
    from: From,
}

impl Probe {
    /// Measures samples per second, for `seconds` or one epoch. Repeats it if other programs used the processors.
    pub(crate) fn rate(&self, seconds: f64, steps: &mut Steps) -> Result<Observed<f64>> {
        quiet::measure(|| self.rate_once(seconds, steps))
    }

    /// Measures samples per second once.
    fn rate_once(&self, seconds: f64, steps: &mut Steps) -> Result<f64> {
        // Take the batches that were prepared while the job was idle: they do not count.
        epochs(&self.job, 0.0, steps)?;
        // Count samples where they are prepared: how many batches are ahead at the end of an epoch is chance.
        let (began, before) = (Instant::now(), self.coordinator.status()?.pool);
        epochs(&self.job, seconds, steps)?;
        let (time, after) = (began.elapsed(), self.coordinator.status()?.pool);
        self.from.check(after.fetched - before.fetched)?;
        Ok((after.prepared - before.prepared) as f64 / time.as_secs_f64())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.job.close();
    }
}

/// Takes whole epochs until they took `seconds` together, and at least one.
fn epochs(job: &MeasuredJob, seconds: f64, steps: &mut Steps) -> Result<()> {
    let began = Instant::now();
    loop {
        job.epoch(|_| {
            steps.tick();
            Ok(interrupt::check()?)
        })?;
        if began.elapsed().as_secs_f64() >= seconds {
            return Ok(());
        }
    }
}

/// Longest path of a folder that leaves room for the names of sockets in it.
const LONGEST_FOLDER: usize = 48;

/// Makes a folder for sockets and logs: among the temporary files, or in `/tmp` if that path is too long for sockets.
pub(crate) fn scratch() -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    // A coordinator accepts no folder that other users can enter.
    builder
        .prefix("coprep-")
        .permissions(std::fs::Permissions::from_mode(0o700));
    if std::env::temp_dir().as_os_str().len() > LONGEST_FOLDER {
        builder.tempdir_in("/tmp")
    } else {
        builder.tempdir()
    }
}

/// Reads samples so that the page cache holds them.
pub(crate) fn read_all(dataset: &Dataset, ids: &[u32], steps: &mut Steps) -> Result<()> {
    let mut file = Vec::new();
    for &id in ids {
        dataset.fetch(id, &mut file)?;
        steps.tick();
        interrupt::check()?;
    }
    Ok(())
}

/// Estimates the sizes of all samples from the files of `ids`.
pub(crate) fn sizes(dataset: &Dataset, ids: &[u32], spec: &PipelineSpec) -> Result<SizeEstimate> {
    let pipeline = coprep_coordinator::Pipeline::compile(&spec.ops)?;
    let (mut head, mut looked) = (Vec::new(), 0.0);
    let mut sum = SizeEstimate {
        encoded: 0.0,
        decoded: 0.0,
        pixels: 0.0,
    };
    for &id in ids {
        sum.encoded += dataset.file_len(id)? as f64;
        dataset.fetch_head(id, &mut head)?;
        // A file that is no image has bytes, but no pixels.
        if let Ok(picture) = pipeline.look(&head) {
            looked += 1.0;
            sum.decoded += picture.decoded.bytes() as f64;
            sum.pixels += picture.pixels as f64;
        }
    }
    let (all, few) = (f64::from(dataset.len()), ids.len() as f64);
    Ok(SizeEstimate {
        encoded: sum.encoded / few * all,
        decoded: sum.decoded / f64::max(looked, 1.0) * all,
        pixels: sum.pixels / f64::max(looked, 1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_drawn_evenly_from_all() {
        assert_eq!(evenly(10, 5), [0, 2, 4, 6, 8]);
        assert_eq!(evenly(3, 10), [0, 1, 2]);
        assert_eq!(evenly(1 << 31, 2), [0, 1 << 30]);
    }
}
