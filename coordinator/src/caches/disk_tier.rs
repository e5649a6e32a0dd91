//! Encoded samples on a local disk, below the caches in memory.
//!
//! [`coprep_disk_cache`] has the files. This module decides which datasets have one, how large it is, which samples go
//! there, and which file makes room for another:
//!
//! * A dataset gets a file if a sample takes longer to fetch than to read from this disk ([`DiskSpeed`]). Remote stores
//!   always do.
//! * The files of all datasets, also of those that nobody uses at present, fit into one budget. If a dataset finds no
//!   room, files that no stream uses are removed, those that were opened longest ago first. A file in use is never
//!   removed, and nothing is evicted from it.
//! * Where a file has room for all samples of its dataset, it takes all of them, so that a coordinator that starts anew
//!   finds them. Where it has not, it takes those that memory does not hold.
//!
//! A sample is written by a thread of this module, after it was prepared ([`write_queue`](super::write_queue)). It can be
//! read from the moment it is handed over, so that nobody fetches it again while the disk is busy.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use coprep_cache::index::{ALIGNMENT, extent_len};
use coprep_disk_cache::{DiskCache, DiskFolder, DiskOptions, Lookup, StoredFile};
use coprep_pipeline::{Dataset, Pipeline};
use coprep_protocol::message::{CacheForm, DiskCacheStatus, DiskStatus};
use coprep_protocol::size::human;
use coprep_shared_memory::lock::lock;
use fail::fail_point;

use super::SampleBytes;
use super::disk_speed::DiskSpeed;
use super::write_queue::{PendingWrite, WhenFull, WriteQueue};
use crate::error::{from_lower, invalid, os};
use crate::settings::DiskSettings;
use crate::{Error, Result};

/// Bytes of the longest sample. A dataset has none that are longer.
const LONGEST: u64 = coprep_storage::MOST_BYTES;
/// Longest wait for the samples that a warm-up has handed over.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);

/// The disk tier of a coordinator. See the module.
pub(crate) struct DiskTier {
    folder: DiskFolder,
    budget: u64,
    speed: DiskSpeed,
    /// Held while a file is opened or removed, which reads and writes. Nothing else waits for it.
    opening: Mutex<()>,
    /// The files that are open. Locked briefly, never over I/O.
    open: Mutex<Vec<Arc<DatasetDisk>>>,
    queue: Arc<WriteQueue<DiskWrite>>,
    writer: Option<JoinHandle<()>>,
}

/// The samples of one dataset on the disk.
pub(crate) struct DatasetDisk {
    fingerprint: u128,
    dataset: String,
    cache: DiskCache,
    /// `true` if there is room for all samples.
    holds_all: bool,
    /// `true` if local files are worth a copy. Otherwise only samples of remote stores are.
    takes_local: bool,
    hits: AtomicU64,
    misses: AtomicU64,
    dropped: AtomicU64,
    /// `true` if the log has told of a damaged sample.
    damage_is_told: AtomicBool,
    /// The samples that wait to be written.
    waiting: Mutex<HashMap<u32, WaitingSample>>,
    queue: Arc<WriteQueue<DiskWrite>>,
}

/// A sample that can be read although it is not written yet: the version of its file, and its bytes.
type WaitingSample = (u64, Arc<Vec<u8>>);

/// A sample that waits to be written. It can be read until this is dropped, written or not.
struct DiskWrite {
    disk: Arc<DatasetDisk>,
    id: u32,
    version: u64,
    bytes: Arc<Vec<u8>>,
}

impl PendingWrite for DiskWrite {
    fn bytes(&self) -> u64 {
        self.bytes.capacity() as u64
    }

    fn write(self) {
        self.disk.write(self.id, self.version, &self.bytes);
    }
}

impl Drop for DiskWrite {
    fn drop(&mut self) {
        lock(&self.disk.waiting).remove(&self.id);
    }
}

/// A dataset that is opened.
pub(crate) struct DiskCandidate<'a> {
    pub(crate) fingerprint: u128,
    pub(crate) name: &'a str,
    pub(crate) dataset: &'a Dataset,
    pub(crate) pipeline: &'a Pipeline,
}

impl DiskTier {
    /// Locks the folder, and sees whether the disk gives the room that the budget promises.
    ///
    /// # Errors
    /// If another coordinator uses the folder, if other users may reach it, or if there is too little room.
    pub(crate) fn start(settings: &DiskSettings) -> Result<Self> {
        let folder = DiskFolder::open(&settings.folder).map_err(from_lower)?;
        // The files that are there have their room already. This comes before anything is written, because the kernel ends
        // a process whose files are limited at its first write beyond the limit.
        let taken: u64 = files(&folder)?.iter().map(|file| file.bytes).sum();
        // The kernel refuses to reserve 0 bytes.
        let more = settings.bytes.saturating_sub(taken).max(1);
        folder.try_room(more).map_err(from_lower)?;
        let speed = DiskSpeed::measure(folder.path());
        let queue = Arc::new(WriteQueue::default());
        let writing = queue.clone();
        let writer = std::thread::Builder::new()
            .name("disk-writer".into())
            .spawn(move || writing.run())
            .map_err(|e| os("cannot start the thread that writes to the disk cache", e))?;
        let tier = DiskTier {
            folder,
            budget: settings.bytes,
            speed,
            opening: Mutex::new(()),
            open: Mutex::default(),
            queue,
            writer: Some(writer),
        };
        // The budget may be smaller than that of the coordinator before.
        tier.make_room(0, files(&tier.folder)?);
        Ok(tier)
    }

    fn open_files(&self) -> MutexGuard<'_, Vec<Arc<DatasetDisk>>> {
        lock(&self.open)
    }

    /// Opens the file of a dataset. Returns `None` if its samples are not worth a copy.
    ///
    /// # Errors
    /// If there is no room for the file, or it cannot be used.
    pub(crate) fn open(&self, candidate: &DiskCandidate<'_>) -> Result<Option<Arc<DatasetDisk>>> {
        if let Some(disk) = self.opened(candidate) {
            return Ok(Some(disk));
        }
        let DiskCandidate {
            dataset, pipeline, ..
        } = candidate;
        let is_remote = dataset.is_remote();
        // Storage may be slow or dead, so that no lock is held while it is asked.
        if !is_remote && !self.speed.is_worth(dataset) {
            return Ok(None);
        }
        let wanted = wanted_bytes(dataset, pipeline)?;
        let _opening = lock(&self.opening);
        // Another job may have opened it meanwhile.
        if let Some(disk) = self.opened(candidate) {
            return Ok(Some(disk));
        }
        let disk = Arc::new(self.open_file(candidate, wanted)?);
        self.open_files().push(disk.clone());
        Ok(Some(disk))
    }

    fn opened(&self, candidate: &DiskCandidate<'_>) -> Option<Arc<DatasetDisk>> {
        let open = self.open_files();
        let is_it = |disk: &&Arc<DatasetDisk>| disk.fingerprint == candidate.fingerprint;
        open.iter().find(is_it).cloned()
    }

    fn open_file(&self, candidate: &DiskCandidate<'_>, wanted: u64) -> Result<DatasetDisk> {
        let options = self.options(candidate, wanted)?;
        let (cache, found) = DiskCache::open(&self.folder, &options).map_err(from_lower)?;
        tracing::info!(
            dataset = candidate.name,
            entries = found.entries,
            dropped = found.dropped,
            replaced = found.replaced,
            "disk cache opened"
        );
        Ok(DatasetDisk {
            fingerprint: candidate.fingerprint,
            dataset: candidate.name.to_owned(),
            holds_all: cache.usage().capacity >= wanted,
            takes_local: !candidate.dataset.is_remote(),
            cache,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            damage_is_told: AtomicBool::new(false),
            waiting: Mutex::default(),
            queue: self.queue.clone(),
        })
    }

    /// Makes room for the file of a dataset, and returns its size.
    fn options(&self, candidate: &DiskCandidate<'_>, wanted: u64) -> Result<DiskOptions> {
        let samples = candidate.dataset.len();
        let whole = DiskCache::bytes_of(wanted, samples).map_err(from_lower)?;
        let (own, others): (Vec<_>, Vec<_>) = files(&self.folder)?
            .into_iter()
            .partition(|file| file.fingerprint == candidate.fingerprint);
        // A file that is there keeps its size, because its content is worth more than a better size.
        let own = own.first().map(|file| file.bytes);
        let own = own.filter(|&bytes| bytes <= self.budget);
        let left = self.make_room(own.unwrap_or(whole).min(self.budget), others);
        let index = whole - wanted;
        let capacity = wanted.min(left.saturating_sub(index));
        // A file that is there and fits is taken over even if a new one would have no room for a sample.
        if capacity == 0 && own.is_none_or(|bytes| bytes > left) {
            return Err(self.no_room(candidate.name, left));
        }
        Ok(DiskOptions {
            fingerprint: candidate.fingerprint,
            samples,
            capacity,
            most: left,
            longest: LONGEST,
        })
    }

    fn no_room(&self, name: &str, left: u64) -> Error {
        let (taken, budget) = (human(self.budget - left), human(self.budget));
        invalid(format!(
            "no room for {name} in the disk cache {}: the files of other datasets in use take {taken} of {budget}",
            self.folder.path().display()
        ))
        .with_remedy("give a larger --disk-bytes")
    }

    /// Removes unused files of other datasets until there is room for `needed` bytes. Returns the bytes that are left
    /// of the budget.
    fn make_room(&self, needed: u64, mut others: Vec<StoredFile>) -> u64 {
        let mut taken: u64 = others.iter().map(|file| file.bytes).sum();
        others.sort_by_key(|file| file.used);
        for file in others {
            if taken.saturating_add(needed) <= self.budget {
                break;
            }
            if self.remove_unused(file.fingerprint) {
                taken -= file.bytes;
            }
        }
        self.budget.saturating_sub(taken)
    }

    /// Removes a file, unless a stream uses it. Returns `true` if it is gone.
    fn remove_unused(&self, fingerprint: u128) -> bool {
        {
            let mut open = self.open_files();
            let position = open.iter().position(|d| d.fingerprint == fingerprint);
            if let Some(position) = position {
                // All other owners got it from this table, and `opening` is held, so nobody else can get it now.
                if Arc::strong_count(&open[position]) > 1 {
                    return false;
                }
                open.remove(position);
            }
        }
        match self.folder.remove(fingerprint) {
            Ok(bytes) => {
                tracing::info!(
                    bytes,
                    "a file of the disk cache that nobody uses was removed"
                );
                true
            }
            Err(e) => {
                tracing::warn!(error = %e, "a file of the disk cache cannot be removed");
                false
            }
        }
    }

    /// Removes the files that no stream uses: those of one dataset, or all. Returns their bytes.
    pub(crate) fn drop_unused(&self, name: Option<&str>) -> u64 {
        let _opening = lock(&self.opening);
        // The folder is read before the table is locked, which status and each opening look into.
        let mut files = files(&self.folder).unwrap_or_default();
        if let Some(name) = name {
            let open = self.open_files();
            let is_named = |file: &StoredFile| {
                let disk = open.iter().find(|d| d.fingerprint == file.fingerprint);
                disk.is_some_and(|disk| disk.dataset == name)
            };
            files.retain(is_named);
        }
        let gone = files
            .into_iter()
            .filter(|file| self.remove_unused(file.fingerprint));
        gone.map(|file| file.bytes).sum()
    }

    /// Waits until all samples that were handed over so far are written.
    pub(crate) fn flush(&self) {
        self.queue.wait_until_empty(FLUSH_PATIENCE);
    }

    pub(crate) fn status(&self) -> DiskStatus {
        DiskStatus {
            folder: self.folder.path().display().to_string(),
            budget: self.budget,
            caches: self.open_files().iter().map(|d| d.status()).collect(),
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.queue.stop();
        if let Some(writer) = self.writer.take() {
            // A panic of the writer has been logged.
            let _ = writer.join();
        }
    }
}

impl DatasetDisk {
    /// Returns `true` if this sample of the dataset may be on the disk.
    pub(crate) fn takes(&self, dataset: &Dataset, id: u32) -> bool {
        self.takes_local || dataset.is_remote_sample(id)
    }

    /// Returns `true` if there is room for all samples.
    pub(crate) fn holds_all(&self) -> bool {
        self.holds_all
    }

    /// Returns the number of samples on the disk.
    pub(crate) fn entries(&self) -> u64 {
        self.cache.usage().entries
    }

    /// Returns `true` if the sample is on the disk, or waits to be written.
    pub(crate) fn has(&self, id: u32) -> bool {
        lock(&self.waiting).contains_key(&id) || self.cache.has(id)
    }

    /// Returns a sample that waits to be written. Callers ask the file after this, not before: a sample is removed from this
    /// table once it is in the file.
    fn waiting(&self, id: u32, version: u64) -> Option<Arc<Vec<u8>>> {
        let waiting = lock(&self.waiting);
        let of_version = waiting.get(&id).filter(|waiting| waiting.0 == version);
        of_version.map(|(_, bytes)| bytes.clone())
    }

    /// Reads a sample of a file of this `version`. Returns `false` if it is not on the disk.
    pub(crate) fn read(&self, id: u32, version: u64, into: &mut Vec<u8>) -> bool {
        let lookup = match self.waiting(id, version) {
            Some(bytes) => {
                bytes.as_slice().clone_into(into);
                Lookup::Hit
            }
            None => self.cache.read(id, version, into),
        };
        self.count(id, lookup)
    }

    /// Reads a sample of a file of this `version` into a buffer of its length. Returns `false` if it is not on the disk.
    pub(crate) fn read_into(&self, id: u32, version: u64, into: &mut [u8]) -> bool {
        let lookup = match self.waiting(id, version) {
            Some(bytes) if bytes.len() == into.len() => {
                into.copy_from_slice(&bytes);
                Lookup::Hit
            }
            _ => self.cache.read_into(id, version, into),
        };
        self.count(id, lookup)
    }

    fn count(&self, id: u32, lookup: Lookup) -> bool {
        let counter = match lookup {
            Lookup::Hit => &self.hits,
            Lookup::Absent => &self.misses,
            Lookup::Dropped => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                if !self.damage_is_told.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        dataset = self.dataset,
                        sample = id,
                        "a sample in the disk cache was damaged: it is fetched anew, and so are others; further ones \
                         are only counted"
                    );
                }
                &self.misses
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        lookup == Lookup::Hit
    }

    /// Returns `true` if a sample of `len` bytes is to be written. `in_memory` says that memory holds it.
    pub(crate) fn is_to_keep(&self, id: u32, len: u64, in_memory: bool) -> bool {
        let is_for_disk = self.holds_all || !in_memory;
        // The sample may be written between the last two checks. `DiskCache::write` then refuses the second copy.
        is_for_disk && self.cache.has_room(id, len) && !lock(&self.waiting).contains_key(&id)
    }

    /// Returns `true` if a sample of `len` bytes is not on the disk and will not be, for lack of room.
    pub(crate) fn refuses(&self, id: u32, len: u64) -> bool {
        self.cache.refuses(id, len)
    }

    /// Hands a sample of a file of this `version` to the thread that writes it, unless it waits to be written already.
    pub(crate) fn keep(
        self: &Arc<Self>,
        id: u32,
        version: u64,
        bytes: Vec<u8>,
        when_full: WhenFull,
    ) {
        let bytes = Arc::new(bytes);
        match lock(&self.waiting).entry(id) {
            Entry::Occupied(_) => return,
            Entry::Vacant(absent) => absent.insert((version, bytes.clone())),
        };
        let write = DiskWrite {
            disk: self.clone(),
            id,
            version,
            bytes,
        };
        self.queue.push(write, when_full);
    }

    fn write(&self, id: u32, version: u64, bytes: &[u8]) {
        fail_point!("disk-write");
        // After an error the file takes no further samples, so this is told once.
        if let Err(e) = self.cache.write(id, version, bytes) {
            tracing::warn!(
                dataset = self.dataset,
                error = %e,
                "the disk cache cannot be written: samples that are not on the disk are fetched each time"
            );
        }
    }

    pub(crate) fn status(&self) -> DiskCacheStatus {
        let usage = self.cache.usage();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskCacheStatus {
            dataset: self.dataset.clone(),
            capacity: usage.capacity,
            used: usage.used,
            entries: usage.entries,
            hits: load(&self.hits),
            misses: load(&self.misses),
            dropped: load(&self.dropped),
        }
    }
}

/// Checks a folder for [`DiskSettings::folder`], before a coordinator is started with it.
///
/// # Errors
/// When it is relative. A coordinator that a job starts has another working directory than the job.
pub fn check_disk_folder(folder: &str) -> Result<PathBuf> {
    let path = PathBuf::from(folder);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(invalid(format!("the folder {folder:?} is a relative path"))
            .with_remedy("give an absolute one"))
    }
}

fn files(folder: &DiskFolder) -> Result<Vec<StoredFile>> {
    folder.files().map_err(from_lower)
}

/// Returns the bytes that the samples take in a file.
fn wanted_bytes(dataset: &Dataset, pipeline: &Pipeline) -> Result<u64> {
    let lengths = (0..dataset.len())
        .filter(|&id| dataset.is_remote_sample(id))
        .map(|id| dataset.listed_len(id).and_then(extent_len));
    // Without a listing the lengths are estimated from a few samples.
    match lengths.sum::<Option<u64>>() {
        Some(bytes) if dataset.is_remote() => Ok(bytes),
        _ => {
            let bytes = SampleBytes::of(dataset, pipeline, CacheForm::Encoded)?.wanted;
            Ok(bytes.next_multiple_of(ALIGNMENT))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_waits_to_be_written_is_read_already() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = DiskFolder::open(&scratch.path().join("cache")).unwrap();
        let options = DiskOptions {
            fingerprint: 1,
            samples: 4,
            capacity: 4096,
            most: 1 << 20,
            longest: 2000,
        };
        let (cache, _) = DiskCache::open(&folder, &options).unwrap();
        let disk = Arc::new(DatasetDisk {
            fingerprint: 1,
            dataset: "photos".to_owned(),
            cache,
            holds_all: true,
            takes_local: false,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            damage_is_told: AtomicBool::new(false),
            waiting: Mutex::default(),
            queue: Arc::default(),
        });
        let is_read = |id| {
            let (mut whole, mut exact) = (Vec::new(), [0; 5]);
            let both = (
                disk.read(id, 0, &mut whole),
                disk.read_into(id, 0, &mut exact),
            );
            both == (true, true) && whole == b"photo" && exact == *b"photo"
        };
        assert!(!is_read(1) && disk.is_to_keep(1, 5, false));
        // Nothing is written yet. The second one is the same sample, fetched by another thread.
        disk.keep(1, 0, b"photo".to_vec(), WhenFull::Drop);
        disk.keep(1, 0, b"photo".to_vec(), WhenFull::Drop);
        assert!(disk.has(1) && is_read(1) && !disk.is_to_keep(1, 5, false));
        assert!(!disk.read_into(1, 0, &mut [0; 4]), "it has another length");
        assert_eq!(disk.entries(), 0);
        disk.queue.stop();
        disk.queue.run();
        assert!(disk.has(1) && is_read(1) && !disk.is_to_keep(1, 5, false));
        assert_eq!((disk.entries(), disk.status().hits), (1, 4));
        // A queue that was stopped gives a sample up, which then cannot be read either.
        disk.keep(2, 0, b"photo".to_vec(), WhenFull::Drop);
        assert!(!disk.has(2) && lock(&disk.waiting).is_empty());
    }
}
