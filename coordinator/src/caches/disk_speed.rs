//! The worth of a local copy: how long a dataset's samples take to fetch, against how long this disk takes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use coprep_pipeline::Dataset;
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

/// Bytes of a read that is timed: a photo.
const READ_BYTES: usize = 128 << 10;
/// Number of reads that are timed.
const READS: u32 = 8;
/// Time after which no further sample of a dataset is timed.
const LONGEST_PROBE: Duration = Duration::from_secs(1);
/// Number of times that fetching a sample must take as long as reading it from the disk. Below that, the copy would win little,
/// and a disk that was busy for a moment could decide.
const WORTH_A_COPY: f64 = 2.0;

/// The measured speed of the disk that holds the cache.
pub(super) struct DiskSpeed {
    /// The file system. `None` if it could not be asked.
    device: Option<u64>,
    /// Seconds of a read of [`READ_BYTES`] that the page cache does not answer.
    read_seconds: f64,
}

impl DiskSpeed {
    /// Measures the disk of a folder.
    pub(super) fn measure(folder: &Path) -> Self {
        DiskSpeed {
            device: folder.metadata().ok().map(|found| found.dev()),
            // Next to a disk that cannot be measured, no local file is worth a copy.
            read_seconds: time_reads(folder).unwrap_or(f64::INFINITY),
        }
    }

    /// Returns `true` if the samples of a local dataset take so long to fetch that a copy on this disk is worth its
    /// room.
    pub(super) fn is_worth(&self, dataset: &Dataset) -> bool {
        let first = dataset.path(0);
        let device = first.metadata().ok().map(|found| found.dev());
        // A copy on the same disk gains nothing, whatever was measured.
        if device.is_none() || device == self.device {
            return false;
        }
        let (mut seconds, mut bytes) = (0.0, 0u64);
        let mut file = Vec::new();
        let (began, mut reads) = (Instant::now(), 0);
        let step = (dataset.len() / READS).max(1) as usize;
        for id in (0..dataset.len()).step_by(step).take(READS as usize) {
            forget_cached(&dataset.path(id));
            let start = Instant::now();
            // A sample that cannot be read says nothing.
            if dataset.fetch(id, &mut file).is_ok() {
                seconds += start.elapsed().as_secs_f64();
                bytes += file.len() as u64;
                reads += 1;
            }
            if began.elapsed() > LONGEST_PROBE {
                break;
            }
        }
        self.gains(seconds, bytes, reads)
    }

    /// Compares `reads` reads of `bytes` bytes in `seconds` with the same reads from this disk.
    fn gains(&self, seconds: f64, bytes: u64, reads: u32) -> bool {
        // A short read takes as long as a long one, up to the length that was timed.
        let by_bytes = bytes as f64 / READ_BYTES as f64 * self.read_seconds;
        let from_disk = by_bytes.max(f64::from(reads) * self.read_seconds);
        reads > 0 && seconds > WORTH_A_COPY * from_disk
    }
}

/// Times reads of a file that is written for this purpose.
fn time_reads(folder: &Path) -> io::Result<f64> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let file = options.custom_flags(OFlag::O_TMPFILE.bits()).open(folder)?;
    let mut bytes = vec![0x5a; READ_BYTES];
    for number in 0..u64::from(READS) {
        file.write_all_at(&bytes, number * READ_BYTES as u64)?;
    }
    // Pages that are not written yet stay in the page cache.
    file.sync_data()?;
    forget_pages(&file);
    let start = Instant::now();
    // Backwards, so that nothing is read ahead.
    for number in (0..u64::from(READS)).rev() {
        file.read_exact_at(&mut bytes, number * READ_BYTES as u64)?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(READS))
}

/// Removes a file's pages from the page cache, if it can, so that a read shows what storage takes.
fn forget_cached(path: &Path) {
    if let Ok((file, _)) = coprep_storage::open_regular(path) {
        forget_pages(&file);
    }
}

fn forget_pages(file: &File) {
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

#[cfg(test)]
mod tests {
    use coprep_protocol::spec::{FileList, Source};

    use super::*;

    #[test]
    fn only_reads_that_take_much_longer_than_the_disk_are_worth_a_copy() {
        let disk = DiskSpeed {
            device: Some(1),
            read_seconds: 0.001,
        };
        let photos = 8 * READ_BYTES as u64;
        assert!(disk.gains(0.020, photos, 8));
        assert!(!disk.gains(0.015, photos, 8));
        // Small files take as long as large ones, and very large ones take longer.
        assert!(!disk.gains(0.015, 8, 8));
        assert!(!disk.gains(0.150, 10 * photos, 8));
        assert!(!disk.gains(1.0, 0, 0), "nothing could be read");
    }

    #[test]
    fn files_on_the_same_disk_are_never_worth_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jpg");
        std::fs::write(&path, [1; 5000]).unwrap();
        let paths = vec![path.to_string_lossy().into_owned()];
        let labels = Vec::new();
        let dataset = Dataset::open(&Source::Files(FileList { paths, labels })).unwrap();
        let mut speed = DiskSpeed::measure(folder.path());
        assert!(!speed.is_worth(&dataset));
        // On another disk that takes no time they are.
        speed = DiskSpeed {
            device: speed.device.map(|device| device + 1),
            read_seconds: 0.0,
        };
        assert!(speed.is_worth(&dataset));
    }
}
