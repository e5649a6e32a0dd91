//! Measures how fast storage reads files that the page cache was asked to forget, or objects of a remote store.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use coprep_coordinator::Dataset;
use coprep_measurement::progress::Progress;
use coprep_measurement::{Result, interrupt};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// Speed of storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storage {
    /// Bytes per second with `threads` readers.
    pub(crate) bytes_per_s: f64,
    /// The number of readers beyond which more do not help.
    pub(crate) threads: u32,
    /// Seconds per file with one reader.
    pub(crate) latency_s: f64,
}

/// Numbers of readers to try, until more do not help. Remote stores answer late, but serve many reads at a time.
const READERS: &[u32] = &[1, 4, 16, 64];
const REMOTE_READERS: &[u32] = &[1, 4, 16, 64, 256];

/// Measures with more and more readers, until more do not help.
pub(crate) fn storage(
    dataset: &Dataset,
    ids: &[u32],
    seconds: f64,
    progress: &mut dyn Progress,
) -> Result<Storage> {
    let mut best = Storage {
        bytes_per_s: 0.0,
        threads: 0,
        latency_s: 0.0,
    };
    let readers = if dataset.is_remote() {
        REMOTE_READERS
    } else {
        READERS
    };
    for &threads in readers {
        interrupt::check()?;
        forget(dataset, ids);
        let (files, bytes, time) = read(dataset, ids, threads, seconds / readers.len() as f64)?;
        progress.tick();
        let rate = bytes as f64 / time;
        if threads == 1 {
            best.latency_s = time / files.max(1) as f64;
        }
        // A gain of less than a tenth may be chance.
        if rate < best.bytes_per_s * 1.1 {
            break;
        }
        (best.bytes_per_s, best.threads) = (rate, threads);
    }
    Ok(best)
}

/// Asks the kernel to drop the samples from its page cache.
fn forget(dataset: &Dataset, ids: &[u32]) {
    dataset.release_row_groups();
    for &id in ids {
        let extent = dataset.extent(id);
        // What the kernel does not forget is read fast, which the rate shows.
        if let Ok(file) = File::open(dataset.object_path(id)) {
            let (at, len) = (extent.at as i64, extent.len.unwrap_or(0).into());
            let _ = posix_fadvise(
                file.as_fd(),
                at,
                len,
                PosixFadviseAdvice::POSIX_FADV_DONTNEED,
            );
        }
    }
}

/// Reads the files with `threads` readers for `seconds`. Returns the number of files, their bytes, and the seconds from
/// the first read to the end of the last one that began in time.
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
    // Readers that find no file left have counted past the end.
    let files = next.into_inner().min(ids.len()) as u64;
    Ok((files, bytes.into_inner(), began.elapsed().as_secs_f64()))
}
