//! The samples of one dataset in one file. See the [crate](crate) for the format.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use coprep_cache::index::{
    Bounds, DROPPED, EMPTY, ENTRY, EntryBytes, HEADER, IndexEntry, Scan, SegmentHeader,
    payload_checksum, scan, seed,
};
use coprep_cache::layout::SegmentLayout;
use coprep_cache::{Form, RoomAllocator};
use coprep_shared_memory::lock::lock;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::error::{Error, Result};
use crate::folder::DiskFolder;

/// Number of index entries that are read at a time when a file is taken over: 1 MiB.
const ENTRIES_AT_ONCE: u32 = (1 << 20) / ENTRY as u32;

/// The samples of one dataset on a local disk. See the [crate](crate).
#[derive(Debug)]
pub struct DiskCache {
    file: File,
    layout: SegmentLayout,
    seed: u64,
    longest: u64,
    state: Mutex<FileState>,
    /// `true` if the disk refused a write. Nothing is written any more, and what was written can be read.
    is_broken: AtomicBool,
}

#[derive(Debug)]
struct FileState {
    room: RoomAllocator,
    /// The samples that are not absent.
    samples: HashMap<u32, SampleState>,
    /// Number of samples that can be read.
    placed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SampleState {
    /// A thread writes the sample, or drops it.
    Changing,
    Placed(Placed),
}

/// The place of a sample in the file, and the checksum of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placed {
    position: u32,
    entry: IndexEntry,
}

/// Options of a disk cache.
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Fingerprint of the inputs that determine the payloads. It names the file.
    pub fingerprint: u128,
    /// Number of samples. Every id is less.
    pub samples: u32,
    /// Bytes for payloads. A file that exists keeps its own number, which [`DiskCache::usage`] returns.
    pub capacity: u64,
    /// Bytes that the whole file may take. A larger file is made anew.
    pub most: u64,
    /// Bytes of the longest sample.
    pub longest: u64,
}

/// The result of opening a file that was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TakeOver {
    /// Number of samples taken over. Their bytes are verified when they are read.
    pub entries: u64,
    /// Number of entries that differed from the bytes that were written.
    pub dropped: u64,
    /// `true` if a file was there that could not be used, and was made anew.
    pub replaced: bool,
}

/// Usage of a disk cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskUsage {
    /// Bytes for payloads.
    pub capacity: u64,
    /// Bytes that samples take, with their alignment.
    pub used: u64,
    /// Number of samples.
    pub entries: u64,
}

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The sample was read, and its bytes are those that were written.
    Hit,
    /// The sample is not there, or there is no memory to read it.
    Absent,
    /// The sample could not be read, or its bytes are not those that were written. It was dropped by this call.
    Dropped,
}

/// A buffer for a sample that is read.
enum Buffer<'a> {
    Of(&'a mut [u8]),
    /// The sample has another length than was asked for.
    OtherLength,
    /// There is no memory for it.
    NoMemory,
}

impl DiskCache {
    /// Opens the file of a dataset. A file that is whole is taken over. Otherwise a new one is created, with its room
    /// reserved.
    ///
    /// # Errors
    /// If there is too little room; if the file belongs to another user, or other users may reach it; or if it cannot
    /// be read or written.
    pub fn open(folder: &DiskFolder, options: &DiskOptions) -> Result<(Self, TakeOver)> {
        let mut found = TakeOver::default();
        let existing = match folder.open_file(options.fingerprint)? {
            Some(file) => {
                let layout = whole(&file, options).map_err(|e| folder.os(e))?;
                found.replaced = layout.is_none();
                layout.map(|layout| (file, layout))
            }
            None => None,
        };
        if found.replaced {
            // The old file goes before the new one is made: its room may be needed, and no existing file is overwritten.
            folder.remove(options.fingerprint)?;
        }
        let (file, layout, is_new) = match existing {
            Some((file, layout)) => (file, layout, false),
            None => {
                let layout = SegmentLayout::new(options.capacity, options.samples)
                    .map_err(Error::from_lower)?;
                let file = folder.create_reserved(options.fingerprint, layout.bytes as u64)?;
                let written = write_header(&file, &layout, options.fingerprint);
                written.map_err(|e| folder.os(e))?;
                (file, layout, true)
            }
        };
        // The time tells which file was used least recently. Without it the time of the last write does.
        let _ = file.set_modified(SystemTime::now());
        // Samples are read in random order, so that reading ahead would read in vain.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
        let cache = DiskCache {
            state: Mutex::new(FileState {
                room: RoomAllocator::new(layout.capacity, layout.positions),
                samples: HashMap::new(),
                placed: 0,
            }),
            file,
            layout,
            seed: seed(options.fingerprint),
            longest: options.longest,
            is_broken: AtomicBool::new(false),
        };
        if !is_new {
            let scan = cache.take_over().map_err(|e| folder.os(e))?;
            found.entries = scan.entries.len() as u64;
            found.dropped = scan.dropped.len() as u64;
        }
        Ok((cache, found))
    }

    /// Returns the bytes that a file with these options takes.
    ///
    /// # Errors
    /// If they are more than the address space.
    pub fn bytes_of(capacity: u64, samples: u32) -> Result<u64> {
        let layout = SegmentLayout::new(capacity, samples).map_err(Error::from_lower)?;
        Ok(layout.bytes as u64)
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.layout.bytes as u64
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        lock(&self.state)
    }

    /// Returns the usage of the file.
    #[must_use]
    pub fn usage(&self) -> DiskUsage {
        let state = self.state();
        DiskUsage {
            capacity: self.layout.capacity,
            used: state.room.used(),
            entries: state.placed,
        }
    }

    /// Returns `true` if the sample can be read.
    #[must_use]
    pub fn has(&self, id: u32) -> bool {
        self.state().placed(id).is_some()
    }

    /// Returns `true` if a sample of `len` bytes could be written: it is absent, and there is room.
    #[must_use]
    pub fn has_room(&self, id: u32, len: u64) -> bool {
        self.takes(id, len) == Some(true)
    }

    /// Returns `true` if a sample of `len` bytes is absent and cannot be written.
    #[must_use]
    pub fn refuses(&self, id: u32, len: u64) -> bool {
        self.takes(id, len) == Some(false)
    }

    /// Returns whether an absent sample could be written, or `None` if it is there or being written.
    fn takes(&self, id: u32, len: u64) -> Option<bool> {
        let is_valid = id < self.layout.samples && len <= self.longest;
        let is_possible = is_valid && !self.is_broken.load(Ordering::Relaxed);
        let state = self.state();
        let is_absent = !state.samples.contains_key(&id);
        is_absent.then(|| is_possible && state.room.has_room(len))
    }

    /// Reads a sample. After a hit, `into` holds exactly its bytes. A sample of another `version` than the one that it was
    /// [written](Self::write) with is dropped.
    pub fn read(&self, id: u32, version: u64, into: &mut Vec<u8>) -> Lookup {
        self.look_up(id, version, |len| {
            into.clear();
            if into.try_reserve_exact(len).is_err() {
                return Buffer::NoMemory;
            }
            into.resize(len, 0);
            Buffer::Of(into.as_mut_slice())
        })
    }

    /// Reads a sample into a buffer of exactly its length. A sample of another length or `version` is not what was asked
    /// for, and is dropped.
    pub fn read_into(&self, id: u32, version: u64, into: &mut [u8]) -> Lookup {
        self.look_up(id, version, |len| {
            if into.len() == len {
                Buffer::Of(into)
            } else {
                Buffer::OtherLength
            }
        })
    }

    /// Reads a sample into the buffer that `buffer` returns for its length.
    fn look_up<'a>(
        &self,
        id: u32,
        version: u64,
        buffer: impl FnOnce(usize) -> Buffer<'a>,
    ) -> Lookup {
        let Some(placed) = self.state().placed(id) else {
            return Lookup::Absent;
        };
        if placed.entry.version != version {
            // It is as it was written, so it does not count as damaged.
            self.drop_sample(id, &placed);
            return Lookup::Absent;
        }
        // `longest` bounds the length, which therefore fits.
        let is_intact = match buffer(placed.entry.len as usize) {
            // The sample is as good as before, and there may be memory the next time.
            Buffer::NoMemory => return Lookup::Absent,
            Buffer::OtherLength => false,
            Buffer::Of(into) => {
                let at = self.layout.payloads_at as u64 + placed.entry.offset;
                self.file.read_exact_at(into, at).is_ok()
                    && payload_checksum(into) == placed.entry.payload_checksum
            }
        };
        if is_intact {
            return Lookup::Hit;
        }
        // Another thread may have dropped the sample while this one read it, and its room may be another sample's by
        // now.
        if self.drop_sample(id, &placed) {
            Lookup::Dropped
        } else {
            Lookup::Absent
        }
    }

    /// Drops a sample that is damaged or of another version. Returns `false` if it is not in this place any more.
    fn drop_sample(&self, id: u32, damaged: &Placed) -> bool {
        {
            let mut state = self.state();
            if state.placed(id) != Some(*damaged) {
                return false;
            }
            state.samples.insert(id, SampleState::Changing);
            state.placed -= 1;
        }
        // First, so that the room goes to another sample only after the index no longer names it. If the write fails,
        // the entry comes back at the next take-over, and then fails its checksum, or conflicts with a later one.
        if self.write_entry(damaged.position, &DROPPED).is_err() {
            self.is_broken.store(true, Ordering::Relaxed);
        }
        let mut state = self.state();
        state.room.vacate(damaged.position, &damaged.entry);
        state.samples.remove(&id);
        true
    }

    /// Writes a sample of a file of this `version`. Returns `false` if it is there already, or there is no room.
    ///
    /// # Errors
    /// If the disk refuses. The cache then takes no further samples.
    pub fn write(&self, id: u32, version: u64, bytes: &[u8]) -> io::Result<bool> {
        let len = bytes.len() as u64;
        // `begin` sees to the room alone. A broken disk, and a sample that is too long, are refused here.
        if !self.has_room(id, len) {
            return Ok(false);
        }
        let Some(offset) = self.state().begin(id, len) else {
            return Ok(false);
        };
        let entry = IndexEntry {
            offset,
            len,
            payload_checksum: payload_checksum(bytes),
            version,
            id,
            width: 0,
            height: 0,
            form: Form::Encoded,
        };
        let at = self.layout.payloads_at as u64 + offset;
        let encoded = entry.to_bytes(self.seed);
        let written = self.file.write_all_at(bytes, at);
        let encoded = written.and_then(|()| encoded.ok_or(io::ErrorKind::OutOfMemory.into()));
        let encoded = encoded.inspect_err(|_| {
            self.is_broken.store(true, Ordering::Relaxed);
            let mut state = self.state();
            state.room.give_back(offset, len);
            state.samples.remove(&id);
        })?;
        // The entry follows its payload, so that a process that is killed in between leaves no entry without its bytes.
        let position = self.state().room.publish();
        let written = self.write_entry(position, &encoded);
        let mut state = self.state();
        match &written {
            Ok(()) => {
                let placed = Placed { position, entry };
                state.samples.insert(id, SampleState::Placed(placed));
                state.placed += 1;
            }
            Err(_) => {
                self.is_broken.store(true, Ordering::Relaxed);
                state.room.vacate(position, &entry);
                state.samples.remove(&id);
            }
        }
        written.map(|()| true)
    }

    fn write_entry(&self, position: u32, bytes: &EntryBytes) -> io::Result<()> {
        let at = self.layout.offset(position) as u64;
        self.file.write_all_at(bytes, at)
    }

    /// Reads the index that another process left.
    fn take_over(&self) -> io::Result<Scan> {
        let bounds = Bounds {
            samples: self.layout.samples,
            capacity: self.layout.capacity,
            seed: self.seed,
        };
        let mut failed = None;
        let mut scan = scan(IndexReader::new(self, &mut failed), &bounds);
        if let Some(error) = failed {
            return Err(error);
        }
        let is_sample =
            |entry: &IndexEntry| entry.len <= self.longest && entry.form == Form::Encoded;
        let others = scan.entries.extract_if(.., |(_, entry)| !is_sample(entry));
        scan.dropped.extend(others.map(|(position, _)| position));
        // Dropped for good. Otherwise an entry could come back once its rival has been written elsewhere.
        for position in &scan.dropped {
            self.write_entry(*position, &DROPPED)?;
        }
        let mut state = self.state();
        state.room.take_over(&scan);
        for (position, entry) in &scan.entries {
            let placed = Placed {
                position: *position,
                entry: *entry,
            };
            state.samples.insert(entry.id, SampleState::Placed(placed));
        }
        state.placed = scan.entries.len() as u64;
        Ok(scan)
    }
}

impl FileState {
    fn placed(&self, id: u32) -> Option<Placed> {
        match self.samples.get(&id) {
            Some(SampleState::Placed(placed)) => Some(*placed),
            _ => None,
        }
    }

    /// Claims an absent sample, and allocates its room.
    fn begin(&mut self, id: u32, len: u64) -> Option<u64> {
        let Entry::Vacant(absent) = self.samples.entry(id) else {
            return None;
        };
        let offset = self.room.allocate(len)?;
        absent.insert(SampleState::Changing);
        Some(offset)
    }
}

/// Reads the positions of an index, many at a time.
struct IndexReader<'a> {
    cache: &'a DiskCache,
    next: u32,
    read: std::vec::IntoIter<EntryBytes>,
    failed: &'a mut Option<io::Error>,
}

impl<'a> IndexReader<'a> {
    fn new(cache: &'a DiskCache, failed: &'a mut Option<io::Error>) -> Self {
        IndexReader {
            cache,
            next: 0,
            read: Vec::new().into_iter(),
            failed,
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        let DiskCache { file, layout, .. } = self.cache;
        let count = (layout.positions - self.next).min(ENTRIES_AT_ONCE);
        if count == 0 {
            return Ok(());
        }
        let mut entries = vec![EMPTY; count as usize];
        let at = layout.offset(self.next) as u64;
        file.read_exact_at(entries.as_flattened_mut(), at)?;
        self.next += count;
        self.read = entries.into_iter();
        Ok(())
    }
}

impl Iterator for IndexReader<'_> {
    type Item = EntryBytes;

    fn next(&mut self) -> Option<EntryBytes> {
        if self.read.len() == 0
            && let Err(e) = self.read_more()
        {
            *self.failed = Some(e);
            return None;
        }
        self.read.next()
    }
}

fn write_header(file: &File, layout: &SegmentLayout, fingerprint: u128) -> io::Result<()> {
    let header = layout.header(fingerprint).to_bytes();
    let header = header.ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?;
    // Written after the room was reserved, so a file that has one is whole.
    file.write_all_at(&header, 0)
}

/// Returns the layout of a file that can be taken over, or `None` if it has to be made anew.
fn whole(file: &File, options: &DiskOptions) -> io::Result<Option<SegmentLayout>> {
    let size = file.metadata()?.len();
    let mut bytes = [0; HEADER];
    // A process was killed before it had reserved the room, or somebody cut the file.
    if size < HEADER as u64 || size > options.most {
        return Ok(None);
    }
    file.read_exact_at(&mut bytes, 0)?;
    let layout = SegmentHeader::from_bytes(&bytes).and_then(|header| {
        let layout = SegmentLayout::of(&header, size)?;
        let is_it = header == layout.header(options.fingerprint);
        (is_it && header.samples == options.samples).then_some(layout)
    });
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_finds_no_memory_is_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = DiskFolder::open(&scratch.path().join("cache")).unwrap();
        let options = DiskOptions {
            fingerprint: 1,
            samples: 2,
            capacity: 4096,
            most: 1 << 20,
            longest: 2000,
        };
        let (cache, _) = DiskCache::open(&folder, &options).unwrap();
        assert!(cache.write(1, 7, b"intact").unwrap());
        assert_eq!(cache.look_up(1, 7, |_| Buffer::NoMemory), Lookup::Absent);
        let mut bytes = Vec::new();
        assert_eq!(cache.read(1, 7, &mut bytes), Lookup::Hit);
        assert_eq!(bytes, b"intact");
    }
}
