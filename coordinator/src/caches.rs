//! Caches of datasets, within one budget for the node.
//!
//! A cache belongs to a dataset and a form. A cache of decoded samples also belongs to the deterministic operators, so
//! that streams which differ only in their random operators share it. The memory of a cache is reserved when it is
//! opened: as much as the dataset needs, or as the budget leaves.
//!
//! Below them, a local disk may hold encoded samples ([`disk_tier`]).

mod disk_speed;
mod disk_tier;
mod file_looks;
mod write_queue;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use coprep_cache::{
    BoundedReuse, Form, LONGEST_NAME, Lru, Meta, NoEviction, SampleCache, Usage, is_name,
    list_named, remove_named,
};
use coprep_costs::{Chooser, Offer};
use coprep_pipeline::{Dataset, Pipeline};
use coprep_protocol::message::{CacheForm, CacheStatus, FormStatus};
use coprep_protocol::operators;
use coprep_protocol::spec::{Op, PipelineSpec};
use coprep_shared_memory::lock::lock;
use coprep_storage::FileVersions;

use crate::Result;
pub use crate::caches::disk_tier::check_disk_folder;
pub(crate) use crate::caches::disk_tier::{DatasetDisk, DiskCandidate, DiskTier};
use crate::caches::file_looks::FileLooks;
pub(crate) use crate::caches::write_queue::WhenFull;
use crate::error::{from_lower, invalid};

/// The key that tells one cache from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CacheKey {
    /// Hash of the dataset, and for the decoded form also of the operators that were applied.
    pub(crate) content: u128,
    pub(crate) form: CacheForm,
    pub(crate) lru: bool,
    /// Number of times that an entry is used; 0 for no limit.
    pub(crate) reuse: u32,
}

impl CacheKey {
    fn policy(&self) -> String {
        match (self.reuse, self.lru) {
            (0, true) => "lru".into(),
            (0, false) => "no-eviction".into(),
            (times, _) => format!("renewed after {times}"),
        }
    }
}

/// The cache of one dataset in one form.
pub(crate) struct DatasetCache {
    pub(crate) key: CacheKey,
    pub(crate) form: CacheForm,
    pub(crate) store: Box<dyn SampleCache>,
    /// The choice of each sample's form by its price; only for [`CacheForm::Auto`].
    pub(crate) forms: Option<Forms>,
    /// Set if samples are made of local files, which may be written anew.
    looks: Option<FileLooks>,
    dataset: String,
    /// A description of the samples, if the coordinator's own pipelines make them.
    cached_pipeline: Option<CachedPipeline>,
    /// Name of the segment that holds the cache, if it is named.
    segment: Option<String>,
    /// `true` if it was filled on purpose before jobs came.
    warmed: AtomicBool,
    /// `true` if it stays though nothing uses it, and another dataset needs the room.
    kept: AtomicBool,
    /// When it was last used, as far as that is known.
    used: Mutex<Instant>,
    /// Bytes that all samples would take.
    wanted: u64,
    /// Number of cached samples that the local disk had when they were cached.
    doubled: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    /// Number of openings and warm-ups under way that use it before a stream does. Raised only under the registry's
    /// lock.
    pins: AtomicU32,
}

/// Keeps a cache from being dropped while a stream or a warm-up that will use it is being opened.
pub(crate) struct Pin(Arc<DatasetCache>);

impl Pin {
    /// Must be called under the registry's lock, which is also held when caches are dropped.
    pub(crate) fn new(cache: &Arc<DatasetCache>) -> Pin {
        // Relaxed, because the registry's lock orders this before any check.
        cache.pins.fetch_add(1, Ordering::Relaxed);
        cache.note_use();
        Pin(cache.clone())
    }

    pub(crate) fn cache(&self) -> &Arc<DatasetCache> {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `is_pinned`, because no lock is held here.
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

/// The content of a native pipeline's cache, in a form that can be compared and shown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CachedPipeline {
    /// Identity of the source.
    pub(crate) source: u128,
    /// Operators that were applied before samples were cached.
    pub(crate) ops: Vec<Op>,
}

impl CachedPipeline {
    pub(crate) fn of(spec: &PipelineSpec, form: CacheForm) -> Self {
        CachedPipeline {
            source: spec.source.fingerprint(),
            ops: Self::ops_of(spec, form),
        }
    }

    /// Returns the operators that are applied before samples are cached in `form`.
    pub(crate) fn ops_of(spec: &PipelineSpec, form: CacheForm) -> Vec<Op> {
        // Files are cached as they were read, before any operator.
        if form == CacheForm::Encoded {
            Vec::new()
        } else {
            spec.cached_ops()
        }
    }
}

/// The choice of forms. It judges each sample once.
pub(crate) struct Forms {
    /// `true` if the decoded form may be chosen.
    with_decoded: bool,
    chooser: Mutex<Chooser>,
    judged: Box<[AtomicU64]>,
}

/// Options of a new cache.
pub(crate) struct CacheOptions<'a> {
    pub(crate) key: CacheKey,
    pub(crate) samples: u32,
    pub(crate) dataset_name: &'a str,
    /// Set only for a native pipeline.
    pub(crate) cached_pipeline: Option<CachedPipeline>,
    pub(crate) sizes: SampleBytes,
    /// Bytes to reserve; see [`SampleBytes::capacity`].
    pub(crate) capacity: u64,
    /// Prefix of a named segment.
    pub(crate) segment: Option<&'a str>,
    /// `true` if samples that are not decoded in full for the cache are decoded with reduction, which is faster.
    pub(crate) reduces: bool,
    /// `true` if samples are made of local files, which may be written anew.
    pub(crate) of_files: bool,
}

/// Total bytes of a dataset's samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleBytes {
    /// Bytes that they take in the cache, at most.
    pub(crate) wanted: u64,
    /// Bytes of the samples where they are stored.
    pub(crate) stored: u64,
}

/// Bytes beyond its payload that a sample takes in an arena, at most, because of alignment.
const PER_SAMPLE: u64 = 64;
/// The decoded form needs room for at least this part (one eighth) of all samples. If any sample of a stream is cached
/// decoded, all of them must be decoded in full, because pixels must not depend on the cache. Decoding in full costs an
/// eighth more than decoding with reduction.
const WORTH_DECODING: u64 = 8;
/// Number of samples that are probed at most to estimate the bytes that a dataset needs.
const PROBES: u32 = 4096;
/// One sample in this many of a remote dataset is probed. Each probe costs a request and up to 256 KiB.
const SAMPLES_PER_HEAD: u32 = 128;
/// Most samples of a remote dataset that are probed.
const MOST_HEADS: u32 = 64;
/// Most row groups that are read for samples to probe.
const MOST_GROUPS: u32 = 4;
/// Margin on an estimate from so few samples.
const FEW_HEADS_MARGIN: f64 = 1.25;

impl DatasetCache {
    pub(crate) fn open(opening: &CacheOptions<'_>) -> Result<DatasetCache> {
        let capacity = opening.capacity;
        // Named segments hold only caches that never evict.
        let is_private = opening.key.lru || opening.key.reuse > 0;
        let segment = opening.segment_name().filter(|_| !is_private);
        let store: Box<dyn SampleCache> = match (opening.key.lru, &segment) {
            _ if opening.key.reuse > 0 => Box::new(BoundedReuse::new(capacity, opening.key.reuse)),
            (true, _) => Box::new(Lru::new(capacity)),
            (false, None) => {
                Box::new(NoEviction::anonymous(capacity, opening.samples).map_err(from_lower)?)
            }
            (false, Some(name)) => Box::new(opening.named(name, capacity)?),
        };
        let forms = (opening.key.form == CacheForm::Auto).then(|| {
            let usage = store.usage();
            let has_room = usage.capacity + PER_SAMPLE > opening.sizes.wanted;
            // Where every sample has room, bytes have no price.
            let left = if has_room {
                u64::MAX
            } else {
                usage.capacity.saturating_sub(usage.used)
            };
            // A segment that was taken over holds samples already, which need no choice.
            let samples = u64::from(opening.samples).saturating_sub(usage.entries());
            let stored =
                opening.sizes.stored as f64 * samples as f64 / f64::from(opening.samples.max(1));
            Forms {
                with_decoded: opening.with_decoded(&usage),
                chooser: Mutex::new(Chooser::new(left, samples as u32, stored as u64)),
                judged: (0..opening.samples.div_ceil(64))
                    .map(|_| AtomicU64::new(0))
                    .collect(),
            }
        });
        Ok(DatasetCache {
            key: opening.key,
            form: opening.key.form,
            store,
            forms,
            looks: opening.of_files.then(|| FileLooks::new(opening.samples)),
            dataset: opening.dataset_name.to_owned(),
            cached_pipeline: opening.cached_pipeline.clone(),
            segment,
            warmed: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            used: Mutex::new(Instant::now()),
            wanted: opening.sizes.wanted,
            doubled: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            pins: AtomicU32::new(0),
        })
    }

    /// Chooses the form that is worth most among `offers`: form, bytes, and seconds that it saves per epoch. The first
    /// offer is the sample as it is stored. Returns `None` if no form is worth its bytes, or the sample was judged
    /// before.
    pub(crate) fn choose(&self, id: u32, offers: &[(Form, usize, f32)]) -> Option<Form> {
        let forms = self.forms.as_ref()?;
        if !forms.judge(id) {
            return None;
        }
        let size = offers.first().map_or(0, |&(_, bytes, _)| bytes as u64);
        let is_kept = |form| form != Form::Decoded || forms.with_decoded;
        let (offered, priced): (Vec<Form>, Vec<Offer>) = offers
            .iter()
            .filter(|offer| is_kept(offer.0))
            .map(|&(form, bytes, saves)| {
                let bytes = (bytes as u64).next_multiple_of(PER_SAMPLE);
                let saves = f64::from(saves);
                (form, Offer { bytes, saves })
            })
            .unzip();
        let usage = self.store.usage();
        let mut chooser = self.chooser()?;
        let chosen = chooser.decide(size, &priced)?;
        // The chooser accepted it, but the cache is full: it gets its bytes back.
        if usage.used + priced[chosen].bytes > usage.capacity {
            chooser.give_back(chosen, priced[chosen]);
            return None;
        }
        Some(offered[chosen])
    }

    fn chooser(&self) -> Option<MutexGuard<'_, Chooser>> {
        let chooser = &self.forms.as_ref()?.chooser;
        Some(lock(chooser))
    }

    /// Returns `true` if samples may be kept decoded. All samples must then be decoded in full.
    pub(crate) fn keeps_decoded(&self) -> bool {
        match &self.forms {
            Some(forms) => forms.with_decoded,
            None => self.form == CacheForm::Decoded,
        }
    }

    /// Returns `true` if a sample that is not in the cache might still be admitted.
    pub(crate) fn may_admit(&self, id: u32) -> bool {
        let usage = self.store.usage();
        usage.used < usage.capacity && self.forms.as_ref().is_none_or(|f| !f.was_judged(id))
    }

    /// Returns `true` if there is room for a sample that the local disk has too. Samples that it does not have come
    /// first: there are `elsewhere` of them, of `samples` in all.
    pub(crate) fn has_room_for_double(&self, elsewhere: u64, samples: u64) -> bool {
        let usage = self.store.usage();
        let doubled = self.doubled.load(Ordering::Relaxed);
        let held = usage.entries().saturating_sub(doubled);
        let to_come = elsewhere.saturating_sub(held) as f64 + 1.0;
        let bytes_each = self.wanted as f64 / samples.max(1) as f64;
        usage.used as f64 + to_come * bytes_each <= usage.capacity as f64
    }

    /// Counts a sample that was cached although the local disk has it.
    pub(crate) fn count_double(&self) {
        self.doubled.fetch_add(1, Ordering::Relaxed);
    }

    /// Compares cached samples with their files once more before they are used: a job has started, for which the files
    /// count as they are now.
    pub(crate) fn begin_looks(&self) {
        if let Some(looks) = &self.looks {
            looks.begin();
        }
    }

    /// Returns `true` if the sample is cached and is to be compared with its file first.
    pub(crate) fn is_to_look(&self, id: u32) -> bool {
        let is_due = |looks: &FileLooks| looks.due(id).is_some();
        self.looks.as_ref().is_some_and(is_due) && self.store.has(id)
    }

    /// Compares a cached sample with its file, if that is due, and removes it if that has changed. `has_changed` looks at
    /// the file, and returns `None` if it cannot tell. Returns `true` if it did.
    pub(crate) fn look(
        &self,
        id: u32,
        has_changed: impl FnOnce(Meta, &FileVersions) -> Option<bool>,
    ) -> bool {
        let looks = self.looks.as_ref();
        let due = looks.and_then(|looks| Some((looks, looks.due(id)?, self.store.meta(id)?)));
        let Some((looks, round, cached)) = due else {
            return false;
        };
        let has_changed = has_changed(cached, &looks.versions);
        if has_changed == Some(true) {
            self.remove(id, cached);
        }
        looks.looked(id, round);
        has_changed.is_some()
    }

    /// Removes a sample, so that it is cached anew.
    fn remove(&self, id: u32, cached: Meta) {
        tracing::debug!(dataset = self.dataset, sample = id, "a file has changed");
        let bytes = self.store.get(id).map_or(0, |hit| hit.len() as u64);
        self.store.remove(id);
        if let Some(forms) = &self.forms {
            forms.forget(id, cached.form, bytes.next_multiple_of(PER_SAMPLE));
        }
    }

    /// Copies a sample into the cache, if there is room.
    pub(crate) fn keep(&self, id: u32, meta: Meta, bytes: &[u8]) {
        if let Some(mut reservation) = self.store.reserve(id, bytes.len(), meta) {
            reservation.as_mut_slice().copy_from_slice(bytes);
            reservation.commit();
        }
    }

    pub(crate) fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.store.usage().capacity
    }

    /// Frees the memory and removes the named segment. Returns the number of bytes freed.
    pub(crate) fn discard(self: Arc<Self>) -> u64 {
        let (bytes, segment) = (self.capacity(), self.segment.clone());
        // The segment counts as used as long as this process maps it.
        drop(self);
        if let Some(name) = segment
            && let Err(e) = remove_named(&name)
        {
            tracing::warn!(name, error = %e, "a cache's segment stays");
        }
        bytes
    }

    /// Marks the cache as warmed: jobs that name no form take it from now on, and the coordinator stays longer without
    /// connections.
    pub(crate) fn mark_warmed(&self) {
        self.warmed.store(true, Ordering::Relaxed);
    }

    /// Keeps the cache though nothing uses it, until it is dropped on demand.
    pub(crate) fn keep_unused(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// Notes that it is used now, or was until now.
    pub(crate) fn note_use(&self) {
        *lock(&self.used) = Instant::now();
    }

    pub(crate) fn last_used(&self) -> Instant {
        *lock(&self.used)
    }

    /// Returns the bytes that it would reserve if there was room for all samples.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted
    }

    pub(crate) fn is_named(&self) -> bool {
        self.segment.is_some()
    }

    pub(crate) fn is_warmed(&self) -> bool {
        self.warmed.load(Ordering::Relaxed)
    }

    pub(crate) fn cached_pipeline(&self) -> Option<&CachedPipeline> {
        self.cached_pipeline.as_ref()
    }

    pub(crate) fn dataset(&self) -> &str {
        &self.dataset
    }

    pub(crate) fn belongs_to(&self, name: &str) -> bool {
        self.dataset == name
    }

    pub(crate) fn status(&self, users: u32) -> CacheStatus {
        let usage = self.store.usage();
        CacheStatus {
            dataset: self.dataset.clone(),
            form: self.form,
            pipeline: self
                .cached_pipeline
                .as_ref()
                .map_or(String::new(), |o| operators::describe(&o.ops)),
            warmed: self.is_warmed(),
            kept: self.is_kept(),
            policy: self.key.policy(),
            capacity: usage.capacity,
            used: usage.used,
            entries: usage.entries(),
            by_form: by_form(&usage),
            lambda_s_per_mib: self.chooser().map(|c| c.lambda() * f64::from(1 << 20)),
            saves_s_per_epoch: self.chooser().map(|c| c.saved()),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            users,
        }
    }
}

impl Forms {
    fn bit(&self, id: u32) -> Option<(&AtomicU64, u64)> {
        Some((self.judged.get(id as usize / 64)?, 1 << (id % 64)))
    }

    fn was_judged(&self, id: u32) -> bool {
        // An id beyond the table counts as judged, so that it is never admitted.
        self.bit(id)
            .is_none_or(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Marks a sample as judged. Returns `true` to the first caller only.
    fn judge(&self, id: u32) -> bool {
        self.bit(id)
            .is_some_and(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    /// Lets a sample be judged again, whose `bytes` bytes are free.
    fn forget(&self, id: u32, form: Form, bytes: u64) {
        if let Some((word, bit)) = self.bit(id) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        lock(&self.chooser).give_back(form as usize, Offer { bytes, saves: 0.0 });
    }
}

fn by_form(usage: &Usage) -> Vec<FormStatus> {
    let forms = [
        (Form::Encoded, CacheForm::Encoded),
        (Form::Decoded, CacheForm::Decoded),
        (Form::Prepared, CacheForm::Prepared),
    ];
    let status = |&(form, shown): &(Form, CacheForm)| FormStatus {
        form: shown,
        entries: usage.entries_by_form[form as usize],
        bytes: usage.bytes_by_form[form as usize],
    };
    let held = forms.iter().map(status);
    held.filter(|status| status.entries > 0).collect()
}

impl CacheOptions<'_> {
    /// Returns `true` if the decoded form is worth offering. A segment that was taken over keeps its size and its
    /// samples, so decoded samples in it decide.
    fn with_decoded(&self, usage: &Usage) -> bool {
        !self.reduces
            || usage.entries_by_form[Form::Decoded as usize] > 0
            || usage.capacity.saturating_mul(WORTH_DECODING) >= self.sizes.wanted
    }

    fn fingerprint(&self) -> u128 {
        self.key.content ^ self.key.form as u128
    }

    fn segment_name(&self) -> Option<String> {
        let suffix = format!(".{:016x}", self.fingerprint() as u64);
        debug_assert_eq!(suffix.len(), SEGMENT_SUFFIX);
        self.segment.map(|prefix| format!("{prefix}{suffix}"))
    }

    fn named(&self, name: &str, capacity: u64) -> Result<NoEviction> {
        let named = NoEviction::named(name, capacity, self.samples, self.fingerprint());
        let (cache, found) = named.map_err(from_lower)?;
        tracing::info!(
            name,
            entries = found.entries,
            bytes = found.bytes,
            dropped = found.dropped,
            "cache segment opened"
        );
        Ok(cache)
    }
}

/// Bytes of the suffix that is appended to the operator's cache name to tell the segments apart.
const SEGMENT_SUFFIX: usize = 17;

/// Checks a name for [`Settings::cache_name`](crate::Settings::cache_name), before a cache is opened with it.
///
/// # Errors
/// When it is empty, too long, or has other characters than a segment's name may have.
pub fn check_cache_name(name: &str) -> Result<()> {
    let longest = LONGEST_NAME - SEGMENT_SUFFIX;
    if is_name(name, longest) {
        return Ok(());
    }
    Err(invalid(format!(
        "a name of caches is made of 1 to {longest} letters, digits, '.', '_' and '-'"
    )))
}

/// Removes the named segments that ended coordinators left behind. Returns their bytes.
///
/// # Errors
/// When `/dev/shm` cannot be read, or a segment cannot be removed.
pub fn drop_left_segments() -> Result<u64> {
    let mut bytes = 0;
    for segment in list_named()
        .map_err(from_lower)?
        .into_iter()
        .filter(|s| !s.in_use)
    {
        if remove_named(&segment.name).map_err(from_lower)? {
            bytes += segment.bytes;
        }
    }
    Ok(bytes)
}

impl SampleBytes {
    /// Returns the number of bytes to reserve for these samples. `bytes` is the size that the job asked for, and `room`
    /// the memory that the node has left for caches.
    pub(crate) fn capacity(&self, bytes: Option<u64>, room: u64) -> u64 {
        // An explicit size is taken as it is: if it is too large, the reservation reports the error.
        self.wanted.min(bytes.unwrap_or(room))
    }

    /// Returns the bytes of all samples cached in a form.
    ///
    /// # Errors
    /// When samples lie in a store that does not let them be read.
    pub(crate) fn of(
        dataset: &Dataset,
        pipeline: &Pipeline,
        form: CacheForm,
    ) -> Result<SampleBytes> {
        if dataset.is_remote() || dataset.is_in_row_groups() {
            SampleBytes::of_listed(dataset, pipeline, form)
        } else {
            Ok(SampleBytes::of_local(dataset, pipeline, form))
        }
    }

    /// Returns the bytes of samples in local files. For a large dataset this is an estimate from every n-th sample.
    fn of_local(dataset: &Dataset, pipeline: &Pipeline, form: CacheForm) -> SampleBytes {
        let step = dataset.len().div_ceil(PROBES).max(1);
        let mut head = Vec::new();
        let (mut kept, mut stored, mut probes) = (0u64, 0u64, 0u32);
        for id in (0..dataset.len()).step_by(step as usize) {
            // A file without a length counts as 0 bytes. It is reported when a job asks for it.
            let file = dataset.file_len(id).unwrap_or(0);
            kept += PER_SAMPLE
                + match form {
                    CacheForm::Encoded => file,
                    _ => decoded_bytes(dataset, pipeline, id, &mut head),
                };
            stored += file;
            probes += 1;
        }
        // An estimate gets a margin of 5 %.
        let margin = if step > 1 { kept / 20 } else { 0 };
        let all = |probed: u64| {
            u128::from(probed) * u128::from(dataset.len()) / u128::from(probes.max(1))
        };
        SampleBytes {
            wanted: (kept + margin).saturating_mul(u64::from(step)).max(1 << 20),
            stored: u64::try_from(all(stored)).unwrap_or(u64::MAX),
        }
    }

    /// Returns the bytes of samples in a store. Their lengths were listed, so that only a few samples are asked for: all
    /// at once, for the ratio of their decoded to their stored bytes. They also show whether the store lets anybody read.
    fn of_listed(dataset: &Dataset, pipeline: &Pipeline, form: CacheForm) -> Result<SampleBytes> {
        let count = (dataset.len() / SAMPLES_PER_HEAD).clamp(1, MOST_HEADS);
        let ids = dataset.spread(count, MOST_GROUPS);
        let (mut probed, mut decoded) = (0u64, 0u64);
        for (&id, head) in ids.iter().zip(dataset.fetch_heads(&ids)) {
            let head = match head {
                Ok(head) => head,
                Err(e) if e.kind().is_unavailable() => return Err(from_lower(e)),
                // A sample that cannot be read counts as 0 bytes. It is reported when a job asks for it.
                Err(_) => continue,
            };
            // Without a listing the head is the best that is known: all of a small file. The row group of a row is held.
            let length = match dataset.listed_len(id) {
                Some(length) => length,
                None if dataset.is_in_row_groups() => dataset.file_len(id).unwrap_or(0),
                None => head.len() as u64,
            };
            probed = probed.saturating_add(length);
            let shape = pipeline.decoded_size(&head);
            decoded += shape.map_or(0, |shape| shape.bytes() as u64);
        }
        let mean = probed / (ids.len() as u64).max(1);
        let length = |id| dataset.listed_len(id).unwrap_or(mean);
        // A listing may claim any length.
        let of_all = || (0..dataset.len()).map(length).fold(0, u64::saturating_add);
        let stored: u64 = dataset.row_bytes().unwrap_or_else(of_all);
        let kept = match form {
            CacheForm::Encoded => stored,
            _ => (stored as f64 * decoded as f64 / probed.max(1) as f64 * FEW_HEADS_MARGIN) as u64,
        };
        let each = PER_SAMPLE * u64::from(dataset.len());
        Ok(SampleBytes {
            wanted: kept.saturating_add(each).max(1 << 20),
            stored,
        })
    }

    /// Returns the bytes of `samples` samples of about `sample_bytes` bytes each.
    pub(crate) fn by_sample(sample_bytes: u64, samples: u32) -> SampleBytes {
        let each = sample_bytes.saturating_add(sample_bytes / 4 + PER_SAMPLE);
        let all = each.saturating_mul(u64::from(samples));
        SampleBytes {
            wanted: all.max(1 << 20),
            stored: all,
        }
    }

    /// Returns the same with at least `bytes` wanted bytes.
    pub(crate) fn at_least(self, bytes: u64) -> SampleBytes {
        SampleBytes {
            wanted: self.wanted.max(bytes),
            ..self
        }
    }
}

fn decoded_bytes(dataset: &Dataset, pipeline: &Pipeline, id: u32, head: &mut Vec<u8>) -> u64 {
    // A sample that cannot be read counts as 0 bytes here. It is reported when a job asks for it.
    let shape = dataset
        .fetch_head(id, head)
        .and_then(|()| pipeline.decoded_size(head));
    shape.map_or(0, |s| s.bytes() as u64)
}

/// Refuses a combination of form and size that makes no sense.
pub(crate) fn check_form(form: CacheForm, bytes: Option<u64>) -> Result<()> {
    match (form, bytes) {
        (CacheForm::Off, Some(_)) => Err(invalid("cache_bytes was given with cache=\"off\"")
            .with_remedy("leave it out, or choose \"encoded\" or \"decoded\"")),
        _ => Ok(()),
    }
}
