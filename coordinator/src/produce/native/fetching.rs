//! Fetches a sample from the local disk, from the early reads, from its block, or from storage.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_cache::Meta;
use coprep_costs::MeasuredTimes;
use coprep_pipeline::Dataset;
use coprep_protocol::message::CacheForm;
use coprep_storage::{DetachedRead, ReadBytes};
use fail::fail_point;

use crate::caches::DatasetCache;
use crate::observe::preparation_cost::PreparationCost;
use crate::produce::failure::Failure;
use crate::produce::native::thread_usage::{ThreadUsage, thread_cpu};
use crate::produce::native::{AdmittedFile, Fetched, FetchedAt, Prepared, Recipe};
use crate::produce::threads::marked;

impl Recipe {
    /// Returns `true` if the sample may be read without a thread that waits.
    pub(crate) fn may_detach(&self, id: u32) -> bool {
        self.blocks.is_none() && self.dataset.may_detach(id)
    }

    /// Returns a read of the sample that no thread waits for, or `None` if a thread has to fetch it.
    pub(crate) fn detached_read(&self, id: u32) -> Option<DetachedRead> {
        let is_on_disk = self.disk_of(id).is_some_and(|disk| disk.has(id));
        if is_on_disk || !self.may_detach(id) {
            return None;
        }
        self.dataset.detached_read(id)
    }

    /// Returns `true` if the bytes that a detached read has brought may be used.
    pub(crate) fn is_intact(&self, id: u32, arrived: &ReadBytes) -> bool {
        self.dataset.is_intact(id, &arrived.bytes)
    }

    /// Fetches a sample that is not cached. It goes into the cache if its file is to be cached as it is. With
    /// `is_looking`, its header is read to predict its cost, unless the cost is known. `arrived` are its bytes, if a
    /// detached read has brought them.
    pub(crate) fn fetch_ahead(
        &self,
        id: u32,
        is_looking: bool,
        mut arrived: Option<ReadBytes>,
    ) -> Result<Fetched, Failure> {
        let before = ThreadUsage::now();
        let is_read_here = arrived.is_none();
        let (mut file, mut version) = (Vec::new(), 0);
        let (cost, fetched_at, bytes) = match self.fetch_into_cache(id, &mut arrived)? {
            Some(admitted) => (admitted.cost, FetchedAt::InCache, admitted.bytes),
            None => {
                version = self.version(id);
                let cost = self.fetch_file(id, version, &mut file, &mut arrived)?;
                (cost, FetchedAt::InMemory, file.len() as u64)
            }
        };
        let wall = cost.times.fetch_seconds();
        let (cpu, at_work) = before.spent(wall);
        // A thread that did not wait for the read was not at work during all of it.
        let at_work = if is_read_here { at_work } else { cpu.min(wall) };
        // Threads of remote storage work for the fetch while this one waits.
        let elsewhere = self
            .dataset
            .io_cpu_for(id, cost.fetched_bytes)
            .as_secs_f32();
        let (cpu, at_work) = (cpu + elsewhere, (at_work + elsewhere).min(wall));
        let mut expected = self.expected(id);
        if expected.is_none() && is_looking && fetched_at == FetchedAt::InMemory {
            // A broken file is reported when it is decoded.
            let header_info = self.inspect_header(&file).ok();
            let predicted = header_info.and_then(|picture| self.costs.predict(picture.features));
            expected = predicted.map(|cost| cost.prep());
        }
        Ok(Fetched {
            file,
            fetched_at,
            version,
            bytes,
            cost: PreparationCost {
                times: MeasuredTimes {
                    cpu: Some(cpu).filter(|cpu| *cpu > 0.0),
                    ..cost.times
                },
                ..cost
            },
            at_work,
            expected,
        })
    }

    /// Reads the file into the cache. Returns `None` if it is not to be cached as it is, or there is no room.
    fn fetch_into_cache(
        &self,
        id: u32,
        arrived: &mut Option<ReadBytes>,
    ) -> Result<Option<AdmittedFile>, Failure> {
        let encoded = |cache: &&Arc<DatasetCache>| {
            cache.form == CacheForm::Encoded && !self.is_of_unknown_length(id)
        };
        let Some(cache) = self.cache.as_ref().filter(encoded) else {
            return Ok(None);
        };
        self.admit_encoded(cache, id, arrived)
    }

    /// Fetches a sample into memory, unless it was before.
    pub(super) fn fetch(&self, id: u32, fetched: Option<Fetched>) -> Result<Fetched, Failure> {
        if let Some(fetched) = fetched.filter(|f| f.fetched_at == FetchedAt::InMemory) {
            return Ok(fetched);
        }
        self.count_from_here();
        let (mut file, version) = (Vec::new(), self.version(id));
        let cost = self.fetch_file(id, version, &mut file, &mut None)?;
        Ok(Fetched::in_memory(file, version, cost))
    }

    /// Restarts the thread's CPU clock before a fetch. A thread that waits for storage uses less CPU time than its
    /// stages take, so CPU time from before this sample could be counted with it.
    pub(super) fn count_from_here(&self) {
        if self.costs.is_on() {
            thread_cpu();
        }
    }

    /// Reads from storage. While it lasts, the pool sees that the thread reads. A panic says nothing about the sample, which
    /// must not be left out for it.
    pub(super) fn read<T>(
        &self,
        id: u32,
        read: impl FnOnce(&Dataset, u32) -> Result<T, coprep_pipeline::Error>,
    ) -> Result<T, Failure> {
        let read = || {
            fail_point!(&format!("read {}", self.dataset.path(id).display()));
            read(&self.dataset, id).map_err(Failure::fetch)
        };
        let read = catch_unwind(AssertUnwindSafe(|| marked(read)));
        read.unwrap_or_else(|_| Err(Failure::defect_of_fetch()))
    }

    /// Takes a sample from its block. Returns `false` if it must be read by itself.
    fn take_from_block(&self, id: u32, take: impl FnOnce(&[u8])) -> Result<bool, Failure> {
        let Some(blocks) = &self.blocks else {
            return Ok(false);
        };
        self.read(id, |dataset, id| blocks.take_sample(dataset, id, take))
    }

    /// Compares a cached sample with its file, if that is due. A sample whose file has changed is not cached then. Returns
    /// `true` if the file was looked at.
    pub(crate) fn look(&self, id: u32) -> bool {
        let has_changed = |cached: Meta, _: &_| match self.look_at_file(id)? {
            Ok(version) => Some(version != cached.version),
            // The sample is then read, and found missing.
            Err(e) if e.kind() == ErrorKind::NotFound => Some(true),
            // Storage that does not answer now says nothing about the sample.
            Err(_) => None,
        };
        let cache = self.cache.as_ref();
        cache.is_some_and(|cache| cache.look(id, has_changed))
    }

    fn look_at_file(&self, id: u32) -> Option<std::io::Result<u64>> {
        marked(|| self.dataset.file_version(id))
    }

    /// Returns the version of a sample's file, if the sample may be cached, or 0. It is asked for before the file is read:
    /// a file that changes in between is then found to have changed, and never taken for the one that was read.
    pub(super) fn version(&self, id: u32) -> u64 {
        if self.cache.is_none() && self.disk.is_none() {
            return 0;
        }
        // A file that cannot be looked at cannot be read either, which is reported.
        self.look_at_file(id).map_or(0, Result::unwrap_or_default)
    }

    fn fetch_file(
        &self,
        id: u32,
        version: u64,
        into: &mut Vec<u8>,
        arrived: &mut Option<ReadBytes>,
    ) -> Prepared {
        if let Some(arrived) = arrived.take() {
            *into = arrived.bytes;
            return Ok(PreparationCost {
                fetched_bytes: into.len() as u64,
                ..fetch_time(arrived.took).into()
            });
        }
        let start = Instant::now();
        if let Some(disk) = self.disk_of(id)
            && marked(|| disk.read(id, version, into))
        {
            return Ok(fetch_time(start.elapsed()).into());
        }
        let took = self.read_whole(id, into, start)?;
        Ok(PreparationCost {
            fetched_bytes: into.len() as u64,
            ..fetch_time(took).into()
        })
    }

    /// Reads a sample that is not on the local disk. Returns the time since `start`, or the time that reading it took when
    /// its dataset was opened: a later epoch has to read it again.
    fn read_whole(&self, id: u32, into: &mut Vec<u8>, start: Instant) -> Result<Duration, Failure> {
        if let Some(mut early) = self.dataset.take_early(id) {
            *into = std::mem::take(&mut early.bytes);
            return Ok(early.took);
        }
        let is_read = self.take_from_block(id, |bytes| bytes.clone_into(into))?;
        if !is_read {
            self.read(id, |dataset, id| dataset.fetch(id, into))?;
        }
        Ok(start.elapsed())
    }

    /// Does the same with a buffer of exactly the sample's length.
    pub(super) fn read_into(
        &self,
        id: u32,
        into: &mut [u8],
        start: Instant,
    ) -> Result<Duration, Failure> {
        if let Some(early) = self.dataset.take_early(id) {
            into.copy_from_slice(&early.bytes);
            return Ok(early.took);
        }
        let is_read = self.take_from_block(id, |bytes| into.copy_from_slice(bytes))?;
        if !is_read {
            self.read(id, |dataset, id| dataset.fetch_into(id, into))?;
        }
        Ok(start.elapsed())
    }

    /// Returns `true` if only a request, or its row group, tells how long the sample is. It is then read into memory and
    /// copied, since its room in the cache cannot be reserved before it is read.
    pub(super) fn is_of_unknown_length(&self, id: u32) -> bool {
        let is_measured = self.dataset.is_remote() || self.dataset.is_in_row_groups();
        is_measured && self.dataset.listed_len(id).is_none()
    }
}

pub(super) fn fetch_time(time: Duration) -> MeasuredTimes {
    MeasuredTimes {
        fetch: MeasuredTimes::stage(time),
        ..MeasuredTimes::default()
    }
}
