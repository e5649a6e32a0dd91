//! The rates of storage and processors, each with the other out of the way.
//!
//! Preparing is measured by a job that does nothing but take batches, on samples that lie in the page cache or in
//! coprep's own; storage by reading files that the page cache was asked to forget. A part of the samples is enough, drawn
//! evenly from all: as many as some seconds' work.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coprep_client::loader::Options;
use coprep_client::{Event, Loader, no_pulse};
use coprep_coordinator::{Dataset, Slowness, Throttle};
use coprep_protocol::message::{Attach, CacheForm, CacheRequest};
use coprep_protocol::spec::{Op, PipelineSpec};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use roaring::RoaringBitmap;

use super::private::Private;
use crate::progress::Progress;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What is measured, and how long.
pub(super) struct Plan {
    pub(super) spec: PipelineSpec,
    pub(super) batch_size: u32,
    /// Processors that prepare.
    pub(super) cpus: u32,
    pub(super) storage: Slowness,
    /// Seconds of each measurement.
    pub(super) seconds: f64,
}

/// A rate of preparing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Samples a second.
    pub(super) samples_per_s: f64,
    /// With so many processors.
    pub(super) cpus: f64,
}

impl Rate {
    /// Processor seconds of a sample.
    pub(super) fn cost(&self) -> f64 {
        self.cpus / self.samples_per_s
    }
}

/// How storage reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    /// With as many threads as help.
    pub(super) bytes_per_s: f64,
    pub(super) threads: u32,
    /// Seconds of one file, with one thread.
    pub(super) latency_s: f64,
}

/// Sizes of all samples, estimated from those looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) encoded: f64,
    pub(super) decoded: f64,
    pub(super) pixels: f64,
}

/// Where samples come from when preparing is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    PageCache,
    Cache(CacheForm),
}

/// The samples of most measurements: at least this many batches, and at most so many samples.
const BATCHES: u32 = 8;
const MOST: u32 = 20_000;
/// Samples that are taken to learn how many are enough.
const FIRST: u32 = 256;
/// Threads that read, until more do not help.
const READERS: [u32; 4] = [1, 4, 16, 64];
/// Longest wait for a batch.
const PATIENCE: Duration = Duration::from_secs(120);

/// So many of `all`, evenly.
pub(super) fn evenly(all: u32, count: u32) -> Vec<u32> {
    let count = count.clamp(1, all.max(1));
    let place = |i: u32| (u64::from(i) * u64::from(all) / u64::from(count)) as u32;
    (0..count).map(place).collect()
}

impl Plan {
    pub(super) fn dataset(&self) -> Result<Dataset> {
        let throttle = Arc::new(Throttle::new(self.storage));
        Ok(Dataset::open(&self.spec.source)?.slowed(throttle))
    }

    /// As many samples as `seconds` are enough for.
    pub(super) fn part(&self, all: u32) -> Result<Vec<u32>> {
        let few = evenly(all, FIRST.max(self.batch_size));
        let first = self.prepare(From::PageCache, &few, self.cpus, 0.5)?;
        let enough = (first.samples_per_s * self.seconds / 2.0) as u32;
        Ok(evenly(all, enough.clamp(BATCHES * self.batch_size, MOST)))
    }

    /// The same pipeline, with every sample decoded in full.
    pub(super) fn in_full(&self) -> PipelineSpec {
        let mut spec = self.spec.clone();
        for op in &mut spec.ops {
            if let Op::Decode { scaled, .. } = op {
                *scaled = false;
            }
        }
        spec
    }

    /// Rate at which `ids` are prepared again and again, after once.
    pub(super) fn prepare(&self, from: From, ids: &[u32], cpus: u32, seconds: f64) -> Result<Rate> {
        self.prepare_by(&self.spec, from, ids, cpus, seconds)
    }

    pub(super) fn prepare_by(
        &self,
        spec: &PipelineSpec,
        from: From,
        ids: &[u32],
        cpus: u32,
        seconds: f64,
    ) -> Result<Rate> {
        let form = match from {
            From::PageCache => CacheForm::Off,
            From::Cache(form) => form,
        };
        let coordinator = Private::start(&["--cpus".into(), cpus.to_string()])?;
        let job = self.job(&coordinator, spec, form, ids)?;
        // Fills caches, and tells what samples cost.
        job.epochs(|epochs, _| epochs >= 1)?;
        let before = coordinator.status()?.pool;
        let (samples, time) = job.epochs(|_, time| time >= seconds)?;
        let after = coordinator.status()?.pool;
        job.loader.close();
        if after.fetched > before.fetched && from != From::PageCache {
            return Err(format!(
                "{} samples were not cached: there is too little memory to measure this form",
                after.fetched - before.fetched
            )
            .into());
        }
        Ok(Rate {
            samples_per_s: samples as f64 / time,
            cpus: cpus.into(),
        })
    }

    fn job(
        &self,
        coordinator: &Private,
        spec: &PipelineSpec,
        form: CacheForm,
        ids: &[u32],
    ) -> Result<Job> {
        let subset: RoaringBitmap = ids.iter().copied().collect();
        let mut bytes = Vec::new();
        subset.serialize_into(&mut bytes)?;
        let attach = Attach {
            pipeline: spec.clone(),
            code: None,
            seed: Some(0),
            seed_hint: None,
            shuffle: true,
            relaxed: false,
            cache: CacheRequest {
                form: Some(form),
                bytes: None,
                lru: false,
                reuse: 0,
            },
            batch_size: self.batch_size,
            drop_last: false,
            rank: 0,
            world_size: 1,
            group: String::new(),
            subset: Some(bytes),
            resume: None,
            dataset_samples: None,
            cohort: None,
            skip_errors: true,
        };
        let loader = Loader::new(Options {
            place: coordinator.place.clone(),
            name: "coprep analyze".into(),
            program: None,
            attach,
            code: None,
            timeout: PATIENCE,
            reconnect: Duration::ZERO,
            pulse: no_pulse(),
        })?;
        Ok(Job { loader })
    }
}

/// A job that takes batches and does nothing else.
struct Job {
    loader: Arc<Loader>,
}

impl Job {
    /// Whole epochs, until it is enough: by their number and the seconds they took. Gives samples and seconds.
    fn epochs(&self, is_enough: impl Fn(u32, f64) -> bool) -> Result<(u64, f64)> {
        let (began, mut samples, mut epochs) = (Instant::now(), 0, 0);
        loop {
            self.loader.start_epoch()?;
            loop {
                match self.loader.next(coprep_client::SLICE)? {
                    Event::Batch(batch) => samples += u64::from(batch.samples()),
                    Event::EndOfEpoch => break,
                    Event::NotYet => {}
                }
            }
            epochs += 1;
            let time = began.elapsed().as_secs_f64();
            if is_enough(epochs, time) {
                return Ok((samples, time));
            }
        }
    }
}

/// Reads samples that the page cache was asked to forget, with more and more threads until that does not help.
pub(super) fn storage(
    dataset: &Dataset,
    ids: &[u32],
    seconds: f64,
    progress: &mut Progress,
) -> Result<Storage> {
    let mut best = Storage {
        bytes_per_s: 0.0,
        threads: 0,
        latency_s: 0.0,
    };
    for threads in READERS {
        forget(dataset, ids);
        let (files, bytes, time) = read(dataset, ids, threads, seconds / READERS.len() as f64)?;
        progress.update(
            u64::from(threads),
            u64::from(READERS[READERS.len() - 1]),
            "",
        );
        let rate = bytes as f64 / time;
        if threads == 1 {
            best.latency_s = time / files.max(1) as f64;
        }
        // A tenth is chance.
        if rate < best.bytes_per_s * 1.1 {
            break;
        }
        (best.bytes_per_s, best.threads) = (rate, threads);
    }
    Ok(best)
}

fn forget(dataset: &Dataset, ids: &[u32]) {
    for &id in ids {
        // What cannot be forgotten is read fast: seen in the rate.
        if let Ok(file) = std::fs::File::open(dataset.path(id)) {
            let _ = posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
    }
}

/// Files, bytes, and the seconds from the first read to the last that was begun in time.
fn read(dataset: &Dataset, ids: &[u32], threads: u32, seconds: f64) -> Result<(u64, u64, f64)> {
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let began = Instant::now();
    let one = || -> Result<()> {
        let mut file = Vec::new();
        while began.elapsed().as_secs_f64() < seconds {
            let Some(&id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return Ok(());
            };
            dataset.fetch(id, &mut file)?;
            bytes.fetch_add(file.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| one().map_err(|e| e.to_string())))
            .collect();
        readers.into_iter().try_for_each(|r| {
            r.join()
                .map_err(|_| "a reader panicked".to_owned())
                .and_then(|done| done)
        })
    })?;
    let files = next.into_inner().min(ids.len()) as u64;
    Ok((files, bytes.into_inner(), began.elapsed().as_secs_f64()))
}

/// Of all samples, from the files of `ids`.
pub(super) fn sizes(dataset: &Dataset, ids: &[u32], spec: &PipelineSpec) -> Result<Sizes> {
    let pipeline = coprep_coordinator::Pipeline::compile(&spec.ops)?;
    let (mut head, mut looked) = (Vec::new(), 0.0);
    let mut sum = Sizes {
        encoded: 0.0,
        decoded: 0.0,
        pixels: 0.0,
    };
    for &id in ids {
        sum.encoded += dataset.file_len(id)? as f64;
        dataset.fetch_head(id, &mut head)?;
        if let Ok(picture) = pipeline.look(&head) {
            looked += 1.0;
            sum.decoded += picture.decoded.bytes() as f64;
            sum.pixels += picture.pixels as f64;
        }
    }
    let (all, few) = (f64::from(dataset.len()), ids.len() as f64);
    Ok(Sizes {
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
