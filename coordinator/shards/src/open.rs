//! Opens shards: finds them, and takes or makes their indexes, many at once.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use coprep_protocol::spec::TarShards;
use coprep_storage::{
    EarlyObject, Error, ErrorKind, Extent, LeftOut, ObjectTable, Stores, in_parallel,
};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::dali::DaliIndex;
use crate::index::{ShardIdentity, ShardIndex};
use crate::index_files::{self, IndexFolder, Readers};
use crate::locate::{FileBeside, FilesBeside, Shard};
use crate::samples::{SampleParts, SampleTable, UNKNOWN_CHECKSUM};
use crate::scan::{EarlyImages, ReadSizes, ScanMemory, ShardReader};
use crate::wids::ListedShards;

/// Times that shards are listed before an opening gives up, because they are replaced again and again meanwhile.
const MOST_LISTINGS: u32 = 3;

/// How the indexes of shards came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexOrigins {
    /// Shards whose index was kept in the user's folder.
    pub kept: usize,
    /// Shards whose index lay beside them.
    pub beside: usize,
    /// Shards that were read for their headers.
    pub scanned: usize,
}

/// The samples of shards. A sample's id is its position in the order of (shard, position in the shard).
#[derive(Debug, Default)]
pub struct ShardSamples {
    /// Number of samples before each shard.
    before: Vec<u64>,
    at: Vec<u64>,
    lengths: Vec<u32>,
    /// Checksums of the images. Shorter than the list if those of the last shards are not known.
    checksums: Vec<u64>,
    names: String,
    name_ends: Vec<u64>,
}

impl ShardSamples {
    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Returns `true` if there is no sample.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Returns the bytes of memory that the places and names take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let wide = self.before.capacity() + self.at.capacity() + self.name_ends.capacity();
        let wide = wide + self.checksums.capacity();
        wide * size_of::<u64>() + self.lengths.capacity() * size_of::<u32>() + self.names.capacity()
    }

    /// Returns the shard of a sample.
    #[must_use]
    pub fn shard(&self, id: u32) -> u32 {
        let after = self
            .before
            .partition_point(|&before| before <= u64::from(id));
        after.saturating_sub(1) as u32
    }

    /// Returns the bytes of a sample's image.
    ///
    /// # Panics
    /// If `id` is not below [`ShardSamples::len`].
    #[must_use]
    pub fn extent(&self, id: u32) -> Extent {
        Extent {
            object: self.shard(id),
            at: self.at[id as usize],
            len: Some(self.lengths[id as usize]),
        }
    }

    /// Returns the length of a sample's image, in bytes.
    ///
    /// # Panics
    /// If `id` is not below [`ShardSamples::len`].
    #[must_use]
    pub fn length(&self, id: u32) -> u64 {
        self.lengths[id as usize].into()
    }

    /// Returns `false` if these are not the bytes of a sample's image, by the checksum of its index. Without a checksum
    /// they count as right.
    #[must_use]
    pub fn is_intact(&self, id: u32, image: &[u8]) -> bool {
        let checksum = self.checksums.get(id as usize).copied();
        checksum
            .filter(|&checksum| checksum != UNKNOWN_CHECKSUM)
            .is_none_or(|checksum| checksum == xxh3_64(image))
    }

    /// Returns the name of a sample's image within its shard.
    ///
    /// # Panics
    /// If `id` is not below [`ShardSamples::len`].
    #[must_use]
    pub fn name(&self, id: u32) -> &str {
        let id = id as usize;
        let start = id.checked_sub(1).map_or(0, |before| self.name_ends[before]);
        &self.names[start as usize..self.name_ends[id] as usize]
    }

    /// Adds the identity of all samples to a hash.
    pub fn identify(&self, hash: &mut Xxh3) {
        self.before
            .iter()
            .for_each(|n| hash.update(&n.to_le_bytes()));
        self.at.iter().for_each(|at| hash.update(&at.to_le_bytes()));
        self.lengths
            .iter()
            .for_each(|n| hash.update(&n.to_le_bytes()));
    }

    fn push(&mut self, table: &SampleTable) {
        if !table.checksums.is_empty() {
            // The shards before may have none, and checksums are found by the ids of their samples.
            self.checksums.resize(self.at.len(), UNKNOWN_CHECKSUM);
            self.checksums.extend_from_slice(&table.checksums);
        }
        self.before.push(self.at.len() as u64);
        self.at.extend_from_slice(&table.at);
        self.lengths.extend_from_slice(&table.lengths);
        let start = self.names.len() as u64;
        self.names.push_str(&table.names);
        self.name_ends
            .extend(table.name_ends.iter().map(|&end| start + u64::from(end)));
    }

    fn shrink(&mut self) {
        self.at.shrink_to_fit();
        self.lengths.shrink_to_fit();
        self.checksums.shrink_to_fit();
        self.names.shrink_to_fit();
        self.name_ends.shrink_to_fit();
    }
}

/// Shards that are open.
#[derive(Debug)]
pub struct OpenShards {
    /// The shards. A sample is an extent of one of them.
    pub objects: ObjectTable,
    /// The samples.
    pub samples: ShardSamples,
    /// The label of each sample. Empty if no label is used.
    pub labels: Vec<i64>,
    /// The images of each shard that were read when its index was made, and are not used yet. Empty if there are none.
    pub early: Vec<Option<Arc<EarlyObject>>>,
    /// Where the indexes came from.
    pub origins: IndexOrigins,
    /// Samples that cannot be used.
    pub left_out: LeftOut,
}

/// Opens shards. Indexes that are not there yet are made, and kept in `folder`. `goes_on` is told the number of shards
/// that are open, and ends the opening by `false`.
///
/// # Errors
/// If a shard is missing, compressed, cut off, or no tar file; if no sample can be used; if a store does not answer.
pub fn open(
    list: &TarShards,
    stores: &Stores,
    folder: &IndexFolder,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<OpenShards, Error> {
    let IndexedShards {
        opening,
        indexes,
        origins,
    } = Opening::of(list, stores, Checksums::IfFree, folder, goes_on)?;
    let mut samples = ShardSamples::default();
    let mut labels = Vec::new();
    let left_out = left_out(&indexes);
    for index in indexes {
        samples.push(&index.samples);
        labels.extend_from_slice(&index.samples.labels);
    }
    samples.shrink();
    labels.shrink_to_fit();
    let early = opening.early_images();
    let mut objects = opening.objects;
    objects.shrink();
    objects.remember_replaced();
    Ok(OpenShards {
        objects,
        samples,
        labels,
        early,
        origins,
        left_out,
    })
}

/// Returns the samples of all shards that cannot be used.
fn left_out(indexes: &[ShardIndex]) -> LeftOut {
    let mut all = LeftOut::default();
    for index in indexes {
        let table = &index.samples;
        all.add(table.left_out, || {
            format!(
                "in the shard {}, {}",
                index.identity.shard, table.first_left_out
            )
        });
    }
    all
}

/// Result of [`write_indexes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSummary {
    /// Number of shards.
    pub shards: usize,
    /// Number of samples.
    pub samples: u64,
    /// Samples that cannot be used.
    pub left_out: LeftOut,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Where the indexes came from.
    pub origins: IndexOrigins,
}

/// The images that get a checksum when an index is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Those of shards that are read through anyway, because their samples are small.
    IfFree,
    /// All of them. The shards are read to their ends, also those that have an index.
    All,
}

/// Makes the indexes of shards that have none, and keeps them in `folder`. With `out`, all indexes are also written
/// there, with the names that they need beside the shards.
///
/// # Errors
/// As [`open`], and if `out` cannot be written to, or two shards have one name.
pub fn write_indexes(
    list: &TarShards,
    stores: &Stores,
    folder: &IndexFolder,
    out: Option<&Path>,
    checksums: Checksums,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<IndexSummary, Error> {
    // Before the shards are read, since a person waits for the answer.
    let files_in = |out| files_in(out, &ListedShards::of(list, stores)?.names);
    let files = out.map(files_in).transpose()?;
    let IndexedShards {
        indexes, origins, ..
    } = Opening::of(list, stores, checksums, folder, goes_on)?;
    for (index, file) in indexes.iter().zip(files.iter().flatten()) {
        let failed = |why: String| {
            Error::new(
                ErrorKind::Read,
                format!("{} cannot be written", file.display()),
            )
            .because(why)
        };
        let bytes = index.to_bytes().map_err(failed)?;
        // An index is copied beside its shard, where whoever reads the shard has to read it too.
        index_files::write(file, &bytes, Readers::All).map_err(|e| failed(e.to_string()))?;
    }
    let shards = indexes.iter();
    Ok(IndexSummary {
        shards: indexes.len(),
        samples: shards.clone().map(|index| index.samples.len() as u64).sum(),
        left_out: left_out(&indexes),
        bytes: shards.map(|index| index.identity.size).sum(),
        origins,
    })
}

/// Returns the names of the index files of shards in one folder.
fn files_in(out: &Path, shards: &[String]) -> Result<Vec<std::path::PathBuf>, Error> {
    let base = |shard: &String| shard.rsplit('/').next().unwrap_or(shard).to_owned();
    let names: Vec<String> = shards.iter().map(base).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        let what = format!(
            "two shards have the name {}, and one folder cannot hold the indexes of both",
            twice[0]
        );
        return Err(Error::new(ErrorKind::Invalid, what)
            .with_remedy("index each folder of shards by itself"));
    }
    let file = |name: &String| out.join(format!("{name}{}", index_files::BESIDE));
    Ok(names.iter().map(file).collect())
}

/// Shards whose indexes are looked for.
struct Opening<'a> {
    stores: &'a Stores,
    shards: Vec<Shard>,
    objects: ObjectTable,
    parts: SampleParts,
    parts_text: String,
    listed: ListedShards,
    checksums: Checksums,
}

/// Shards with their indexes, in their order.
struct IndexedShards<'a> {
    opening: Opening<'a>,
    indexes: Vec<ShardIndex>,
    origins: IndexOrigins,
}

impl<'a> Opening<'a> {
    /// Finds the shards, and takes or makes their indexes.
    fn of(
        list: &TarShards,
        stores: &'a Stores,
        checksums: Checksums,
        folder: &IndexFolder,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<IndexedShards<'a>, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            let listed = ListedShards::of(list, stores)?;
            let opening = Opening::begin(list, listed, stores, checksums)?;
            match opening.indexes(folder, goes_on) {
                Ok((indexes, origins)) => {
                    return Ok(IndexedShards {
                        opening,
                        indexes,
                        origins,
                    });
                }
                // No job uses the shards yet, so one that was replaced after it was listed may be listed anew. Indexes
                // that were made are kept, so that only the others are read again.
                Err(e) if *e.kind() == ErrorKind::Changed && tries < MOST_LISTINGS => {
                    tracing::info!(error = %e, "a shard was replaced while it was opened, and is listed anew");
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Finds the shards that `listed` names. `list` names the parts of their samples.
    fn begin(
        list: &TarShards,
        listed: ListedShards,
        stores: &'a Stores,
        checksums: Checksums,
    ) -> Result<Opening<'a>, Error> {
        let shards = Shard::find_all(&listed.names, "shard", stores)?;
        let mut objects = ObjectTable::local(Path::new(""));
        shards.iter().for_each(|shard| shard.push_to(&mut objects));
        let parts = SampleParts::of(list);
        Ok(Opening {
            stores,
            shards,
            objects,
            parts_text: parts.text(),
            parts,
            listed,
            checksums,
        })
    }

    /// Returns the indexes of all shards, in their order.
    fn indexes(
        &self,
        folder: &IndexFolder,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(Vec<ShardIndex>, IndexOrigins), Error> {
        let (indexes, origins) = self.find_or_make(folder, goes_on)?;
        self.listed.check(&indexes)?;
        refuse_without_samples(&indexes)?;
        Ok((indexes, origins))
    }

    fn find_or_make(
        &self,
        folder: &IndexFolder,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(Vec<ShardIndex>, IndexOrigins), Error> {
        let kept = |shard: &Shard| {
            let index = folder.find(&shard.identity, &self.parts_text);
            index.filter(|index| self.checksums == Checksums::IfFree && self.is_sound(index))
        };
        let mut indexes: Vec<Option<ShardIndex>> = self.shards.iter().map(kept).collect();
        let missing: Vec<usize> = (0..indexes.len())
            .filter(|&i| indexes[i].is_none())
            .collect();
        let mut origins = IndexOrigins {
            kept: indexes.len() - missing.len(),
            ..IndexOrigins::default()
        };
        if missing.is_empty() {
            return Ok((indexes.into_iter().flatten().collect(), origins));
        }
        let shards: Vec<&Shard> = missing.iter().map(|&i| &self.shards[i]).collect();
        let beside = FilesBeside::find_all(&shards, self.stores)?;
        self.stores.early_reads().make_room();
        let work: Vec<(usize, FilesBeside)> = missing.into_iter().zip(beside).collect();
        let mut is_awaited = true;
        let mut done = origins.kept as u64;
        let mut failed: Option<(usize, Error)> = None;
        let is_remote = self.shards.iter().any(Shard::is_remote);
        let make = |piece: usize| self.make(work[piece].0, &work[piece].1);
        in_parallel(work.len(), is_remote, &make, &mut |piece, made| {
            let shard = work[piece].0;
            match made {
                Ok((index, was_beside)) => {
                    folder.keep(&index);
                    indexes[shard] = Some(index);
                    origins.beside += usize::from(was_beside);
                    origins.scanned += usize::from(!was_beside);
                    done += 1;
                    is_awaited = is_awaited && goes_on(done);
                }
                // Of several bad shards, the first is named, in whatever order they were found.
                Err(error) if failed.as_ref().is_none_or(|(first, _)| shard < *first) => {
                    failed = Some((shard, error));
                }
                Err(_) => {}
            }
            is_awaited && failed.is_none()
        });
        if let Some((_, error)) = failed {
            return Err(error);
        }
        if !is_awaited {
            let what = "nobody waits for the shards any more";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok((indexes.into_iter().flatten().collect(), origins))
    }

    /// Takes the index beside a shard, or makes one. The second value says whether there was one.
    fn make(&self, number: usize, beside: &FilesBeside) -> Result<(ShardIndex, bool), Error> {
        let shard = &self.shards[number];
        let read = |range: Range<u64>, into: &mut Vec<u8>| self.read(number, range, into);
        let reader = ShardReader {
            shard: &shard.identity.shard,
            size: shard.identity.size,
            sizes: if shard.is_remote() {
                ReadSizes::REMOTE
            } else {
                ReadSizes::LOCAL
            },
            reads_images: self.checksums == Checksums::All,
            read: &read,
            memory: ScanMemory {
                // Kept images are found by the ETag of their shard. Without one, those of a shard that was replaced
                // since would count as its own.
                early_reads: shard
                    .has_content_identity()
                    .then(|| self.stores.early_reads()),
                large_reads: self.stores.large_reads(),
            },
        };
        let found = match self.checksums {
            Checksums::IfFree => self.take_beside(shard, &reader, beside)?,
            Checksums::All => None,
        };
        let ((samples, early), was_beside) = match found {
            Some(found) => (found, true),
            None => (reader.scan(&self.parts)?, false),
        };
        let content = self.content_key(shard);
        self.stores.early_reads().keep(content, early);
        let index = ShardIndex {
            identity: shard.identity.clone(),
            parts: self.parts_text.clone(),
            samples,
        };
        Ok((index, was_beside))
    }

    /// Takes the samples from an index beside a shard, if there is one that fits.
    fn take_beside(
        &self,
        shard: &Shard,
        reader: &ShardReader<'_>,
        beside: &FilesBeside,
    ) -> Result<Option<(SampleTable, EarlyImages)>, Error> {
        let most = index_files::most_beside(reader.size);
        let large_reads = self.stores.large_reads();
        let read = |file: &Option<FileBeside>| file.as_ref()?.read(most, large_reads);
        let own = read(&beside.own).and_then(|content| ShardIndex::from_bytes(&content.bytes));
        if let Some(index) = own
            && self.is_sound(&index)
            && is_of(&index, &shard.identity, reader)?
        {
            return Ok(Some((index.samples, EarlyImages::new())));
        }
        let dali = read(&beside.dali);
        let dali =
            dali.and_then(|content| DaliIndex::parse(std::str::from_utf8(&content.bytes).ok()?));
        dali.map_or(Ok(None), |index| reader.follow(&index, &self.parts))
    }

    /// Returns the images of each shard that were read when its index was made, now or before, and are not used yet.
    fn early_images(&self) -> Vec<Option<Arc<EarlyObject>>> {
        let early_reads = self.stores.early_reads();
        if early_reads.is_empty() {
            return Vec::new();
        }
        let of = |shard: &Shard| early_reads.find(&self.content_key(shard));
        self.shards.iter().map(of).collect()
    }

    /// Returns a text that differs for shards with different contents, and for different parts of their samples.
    fn content_key(&self, shard: &Shard) -> String {
        let ShardIdentity { shard, size, etag } = &shard.identity;
        format!("{shard}\0{size}\0{etag}\0{}", self.parts_text)
    }

    /// Returns `true` if an index is about the wanted parts and can be read from.
    fn is_sound(&self, index: &ShardIndex) -> bool {
        index.parts == self.parts_text
            && index.samples.len() as u64 + index.samples.left_out > 0
            && index
                .samples
                .is_sound(index.identity.size, self.parts.has_label())
    }

    fn read(&self, shard: usize, range: Range<u64>, into: &mut Vec<u8>) -> Result<(), Error> {
        let extent = Extent {
            object: shard as u32,
            at: range.start,
            // Windows are at most some megabytes, and labels and extensions are bounded.
            len: Some((range.end - range.start) as u32),
        };
        self.objects.read_at_opening(extent, into)
    }
}

/// Refuses shards of which no sample can be used. Mostly the wrong parts are asked for.
fn refuse_without_samples(indexes: &[ShardIndex]) -> Result<(), Error> {
    if indexes.iter().any(|index| index.samples.len() > 0) {
        return Ok(());
    }
    let left_out = left_out(indexes);
    if left_out.count() == 0 {
        let what = format!("no shard of {} has a sample: all are empty", indexes.len());
        return Err(Error::new(ErrorKind::Invalid, what).with_remedy("give shards with samples"));
    }
    let what = format!(
        "no sample can be used, of {}. The first: {}",
        left_out.count(),
        left_out.first()
    );
    Err(Error::new(ErrorKind::Invalid, what)
        .with_remedy("choose other parts by image= and label=, where None stands for no labels"))
}

/// Returns `true` if an index beside a shard is that of its content.
fn is_of(
    index: &ShardIndex,
    shard: &ShardIdentity,
    reader: &ShardReader<'_>,
) -> Result<bool, Error> {
    if index.identity.size != shard.size {
        return Ok(false);
    }
    // It was made where the shard lies now. A shard that was replaced since has another identity, also if its size is the
    // same: an archive whose labels were corrected is as long as before.
    if index.identity.shard == shard.shard && !shard.etag.is_empty() {
        return Ok(index.identity.etag == shard.etag);
    }
    // A copy has another path and time. Its headers are the same, with the times of the files in them.
    let Some(last) = index.samples.last() else {
        return Ok(false);
    };
    Ok(reader.header(&last)? == Some(index.samples.last_header))
}
