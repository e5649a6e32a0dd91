//! Datasets: folders of classes, lists of files, tar shards, rows of parquet files, and windows of arrays, local or in a
//! remote store.
//!
//! A dataset is held once, in a few arrays. A sample takes 8 bytes and its name within its folder, and in a store 20 bytes
//! more. The order of samples is that of `torchvision.datasets.ImageFolder`: classes in lexicographic
//! order; within a class, the folders in the order of their paths, links followed; within a folder, the files by name.

mod arrays;
mod blocks;
mod early;
mod labels;
mod other_formats;
mod parquet;
mod remote;
mod spread;
mod windows;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coprep_parquet::ParquetRows;
use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::spec::{FileList, Source, TarShards};
use coprep_shards::{IndexFolder, ShardSamples};
use coprep_storage::{
    DetachedRead, EarlyPart, Extent, LeftOut, ObjectTable, OutageReport, ReadThrottle, Stores,
};

use self::early::EarlySamples;
use self::labels::Labels;
use self::windows::Windows;
use crate::array_pipeline::ArrayForm;
use crate::error::{self, Error, ErrorKind};

/// Endings of file names that make a file of a folder of images a sample, in upper or lower case.
const DECODED: [&str; 4] = [".jpg", ".jpeg", ".png", ".webp"];

/// Further endings that torchvision takes but that are not decoded here.
const NOT_DECODED: [&str; 5] = [".bmp", ".pgm", ".ppm", ".tif", ".tiff"];

/// Endings that make a file of a folder of audio a sample.
const DECODED_AUDIO: [&str; 2] = [".flac", ".wav"];

/// The files of a folder that are samples.
struct FolderKind {
    /// The name of a kind of samples, for people.
    sample: &'static str,
    /// Name of a folder of such samples, for people.
    folder: &'static str,
    /// Example of a path below the folder.
    example: &'static str,
    decoded: &'static [&'static str],
    not_decoded: &'static [&'static str],
}

const IMAGES: FolderKind = FolderKind {
    sample: "image",
    folder: "an image folder",
    example: "root/class/image.jpg",
    decoded: &DECODED,
    not_decoded: &NOT_DECODED,
};

const AUDIO: FolderKind = FolderKind {
    sample: "audio file",
    folder: "a folder of audio",
    example: "root/class/sound.flac",
    decoded: &DECODED_AUDIO,
    not_decoded: &[],
};

/// Bytes that [`Dataset::fetch_head`] reads. Exif data and a colour profile may come before the size.
const HEAD_BYTES: u64 = 256 << 10;

/// An opened source: samples `0..len`, each an extent of an object, with a label.
#[derive(Debug)]
pub struct Dataset {
    classes: Vec<String>,
    labels: Labels,
    objects: ObjectTable,
    places: Places,
    early: EarlySamples,
    /// The form of samples that are tensors already.
    array_form: Option<ArrayForm>,
    ignored: u64,
    left_out: LeftOut,
    fingerprint: u128,
}

/// The places of samples within their objects.
#[derive(Debug)]
enum Places {
    /// Each object is a sample, so the id of a sample is the number of its object.
    Objects,
    /// Images in tar shards.
    Shards(ShardSamples),
    /// Parts of files, all of one length.
    Windows(Windows),
    /// Rows of parquet files. A row group is read at once.
    Rows(ParquetRows),
}

impl Dataset {
    /// Lists the samples of a source, with stores of its own. See [`Dataset::open_in`].
    ///
    /// # Errors
    ///
    /// As [`Dataset::open_in`].
    pub fn open(source: &Source) -> Result<Dataset, Error> {
        Dataset::open_in(source, &Stores::default(), &mut |_| true)
    }

    /// Lists the samples of a source. A folder is walked or listed; a list of paths is taken as it is; shards are found by
    /// their indexes, which are made if there are none. Of URLs, the folder that they share is listed for their sizes and
    /// ETags. `goes_on` is told the number of objects listed so far
    /// from time to time, and ends the listing by `false`.
    ///
    /// # Errors
    ///
    /// If the folder is missing, has no class folders, or a class has no image of a decoded format;
    /// if labels and paths differ in number; if a shard cannot be used;
    /// if there is no sample, or more than 2^32 - 1;
    /// if a store does not answer, or refuses.
    pub fn open_in(
        source: &Source,
        stores: &Stores,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Dataset, Error> {
        let mut dataset = match source {
            Source::ImageFolder { root } => class_folder(root, &IMAGES, stores, goes_on)?,
            Source::AudioFolder { root } => class_folder(root, &AUDIO, stores, goes_on)?,
            Source::Files(list) => files(list, stores)?,
            Source::TarShards(list) => tar_shards(list, stores, goes_on)?,
            Source::Parquet(list) => parquet::rows(list, stores, goes_on)?,
            Source::Tokens(tokens) => arrays::tokens(tokens, stores)?,
            Source::Arrays(files) => arrays::rows(files, stores)?,
            Source::UserCode(user) => {
                return Err(invalid(format!(
                    "{} is a dataset of a job's own code: only its jobs can open it",
                    user.name
                )));
            }
        };
        // Sample ids are 32-bit numbers.
        if u32::try_from(dataset.labels.len()).is_err() {
            return Err(invalid(format!(
                "{} samples are more than the 4,294,967,295 supported",
                dataset.labels.len()
            )));
        }
        dataset.objects.shrink();
        dataset.labels.shrink();
        dataset.fingerprint = dataset.hash();
        Ok(dataset)
    }

    fn rooted(root: &Path) -> Self {
        Dataset {
            classes: Vec::new(),
            labels: Labels::default(),
            objects: ObjectTable::local(root),
            places: Places::Objects,
            early: EarlySamples::default(),
            array_form: None,
            ignored: 0,
            left_out: LeftOut::default(),
            fingerprint: 0,
        }
    }

    fn push_file(&mut self, parts: &[&[u8]], label: i64) {
        self.objects.push_file(parts);
        self.labels.push(label);
    }

    fn hash(&self) -> u128 {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        self.objects.identify(&mut hash);
        match &self.places {
            Places::Objects => {}
            Places::Shards(shards) => shards.identify(&mut hash),
            Places::Windows(windows) => windows.identify(&mut hash),
            Places::Rows(rows) => rows.identify(&mut hash),
        }
        self.labels
            .iter()
            .for_each(|label| hash.update(&label.to_le_bytes()));
        hash.digest128()
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.labels.len() as u32
    }

    /// Returns `true` if there is no sample, which is never true of an opened dataset.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if samples are read from a remote store.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.objects.is_remote()
    }

    /// Returns `true` if this sample is read from a remote store.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn is_remote_sample(&self, id: u32) -> bool {
        // In tar shards and parquet files, samples and objects have different numbers.
        self.objects.is_remote_object(self.extent(id).object)
    }

    /// Returns `true` if any sample is a local file of its own, so that it may have a [version](Self::file_version).
    #[must_use]
    pub fn has_file_versions(&self) -> bool {
        !self.has_parts() && self.objects.has_local()
    }

    /// Returns the version of a sample's file, which differs once the file was written anew. Returns `None` if the identity
    /// of the dataset has it: that of an object in a store, of a shard or of an array.
    ///
    /// # Errors
    ///
    /// If the file is missing, or the file system cannot tell.
    pub fn file_version(&self, id: u32) -> Option<std::io::Result<u64>> {
        if self.has_parts() {
            return None;
        }
        self.objects.file_version(id)
    }

    /// Returns the bytes of memory that the list of samples takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let places = match &self.places {
            Places::Objects => 0,
            Places::Shards(shards) => shards.memory_bytes(),
            Places::Windows(windows) => windows.memory_bytes(),
            Places::Rows(rows) => rows.memory_bytes(),
        };
        self.objects.memory_bytes() + self.labels.memory_bytes() + places
    }

    /// Returns the label of a sample: the position of its class in [`Dataset::classes`], or the number that the list
    /// gave.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn label(&self, id: u32) -> i64 {
        self.labels.get(id as usize)
    }

    /// Returns the path of a sample's file, or its URL. After it, for a sample in a shard: `#` and the name of its image
    /// there; for a window: `#bytes`, and the offsets of its first byte and of the byte after its last; for a row of a
    /// parquet file: `#row`, and its position there.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn path(&self, id: u32) -> PathBuf {
        let object = self.extent(id).object;
        let within = match &self.places {
            Places::Objects => return self.objects.path(object),
            Places::Shards(shards) => shards.name(id).to_owned(),
            Places::Windows(windows) => windows.name(id),
            Places::Rows(rows) => rows.name(id),
        };
        let mut path = self.objects.path(object).into_os_string();
        path.push("#");
        path.push(within);
        path.into()
    }

    /// Returns the path or URL of the object that holds a sample: a file of its own, a shard, or a parquet file.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn object_path(&self, id: u32) -> PathBuf {
        self.objects.path(self.extent(id).object)
    }

    /// Returns the bytes that hold a sample. In a parquet file they are compressed, and hold the samples of a row group.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn extent(&self, id: u32) -> Extent {
        match &self.places {
            Places::Objects => Extent::whole(id),
            Places::Shards(shards) => shards.extent(id),
            Places::Windows(windows) => windows.extent(id),
            Places::Rows(rows) => rows.extent(id),
        }
    }

    /// Returns `true` if samples lie in tar shards.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        matches!(self.places, Places::Shards(_))
    }

    /// Returns `true` if samples have labels. Otherwise [`Dataset::label`] is 0 for all, and batches have none.
    #[must_use]
    pub fn has_labels(&self) -> bool {
        self.array_form.is_none() || !matches!(self.labels, Labels::Zeros(_))
    }

    /// Returns `true` if samples are tensors already, so that no operators belong to them.
    #[must_use]
    pub fn is_of_arrays(&self) -> bool {
        self.array_form.is_some()
    }

    /// Returns the form of samples that are tensors already, or `None` if samples are files that are to be decoded.
    pub(crate) fn array_form(&self) -> Option<&ArrayForm> {
        self.array_form.as_ref()
    }

    /// Returns `true` if samples are parts of objects.
    fn has_parts(&self) -> bool {
        !matches!(self.places, Places::Objects)
    }

    /// Returns the names of the classes, in the order of their labels. Lists of files and shards have none.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the number of files of a folder that torchvision would list and this version does not decode (`.bmp`,
    /// `.pgm`, `.ppm`, `.tif`, `.tiff`). They are left out, so ids differ from torchvision's.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Returns the samples that are left out, since their keys cannot be read, or they lack a part.
    #[must_use]
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// Returns the identity of the list: root, paths, order and labels. Of objects in a store it contains the sizes and
    /// ETags too; local files of their own have [versions](Self::file_version) instead.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// Returns the same dataset, with reads slowed by `throttle`.
    #[must_use]
    pub fn slowed(mut self, throttle: Arc<ReadThrottle>) -> Dataset {
        self.objects.slow_by(throttle);
        self
    }

    /// Returns the stores of the samples that do not answer at present.
    pub fn outages(&self) -> impl Iterator<Item = OutageReport> {
        self.objects.outages()
    }

    /// Returns the number of requests to the stores of the samples so far, or `None` if all samples are local.
    #[must_use]
    pub fn requests(&self) -> Option<u64> {
        self.objects.requests()
    }

    /// Returns the CPU time that the threads of remote storage spend on `bytes` bytes of a sample.
    #[must_use]
    pub fn io_cpu_for(&self, id: u32, bytes: u64) -> Duration {
        self.objects.io_cpu_for(self.extent(id).object, bytes)
    }

    /// Returns the length of a sample if the listing told it, so that nobody needs to be asked.
    #[must_use]
    pub fn listed_len(&self, id: u32) -> Option<u64> {
        match &self.places {
            Places::Objects => self.objects.listed_length(id),
            Places::Shards(shards) => Some(shards.length(id)),
            Places::Windows(windows) => Some(windows.length()),
            // Only its row group tells.
            Places::Rows(_) => None,
        }
    }

    /// Returns the length of a sample's file.
    ///
    /// # Errors
    ///
    /// If the file is missing or cannot be read. That of a row of a parquet file is read for it.
    pub fn file_len(&self, id: u32) -> Result<u64, Error> {
        match &self.places {
            Places::Objects => self.objects.length(id).map_err(error::of_storage),
            Places::Shards(shards) => Ok(shards.length(id)),
            Places::Windows(windows) => Ok(windows.length()),
            Places::Rows(rows) => self.of_row(rows, id, |image| image.len() as u64),
        }
    }

    /// Reads a sample's file. Afterwards `into` holds exactly its bytes.
    ///
    /// # Errors
    ///
    /// If the file is missing, cannot be read, is no regular file, or is longer than [`coprep_storage::MOST_BYTES`];
    /// if a sample of a shard has another checksum than in the index.
    pub fn fetch(&self, id: u32, into: &mut Vec<u8>) -> Result<(), Error> {
        if let Places::Rows(rows) = &self.places {
            return self.of_row(rows, id, |image| image.clone_into(into));
        }
        self.read_intact(id, into, |into| self.objects.read(self.extent(id), into))
    }

    /// Returns a read of a sample that no thread waits for, or `None` if a thread has to [fetch](Self::fetch) it, or it was
    /// read already.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn detached_read(&self, id: u32) -> Option<DetachedRead> {
        if !self.may_detach(id) {
            return None;
        }
        let extent = self.extent(id);
        let is_early = !self.early.is_empty() && self.early.head(extent, 0).is_some();
        if is_early {
            return None;
        }
        self.objects.detached_read(extent)
    }

    /// Returns `true` if the sample may be read without a thread that waits.
    #[must_use]
    pub fn may_detach(&self, id: u32) -> bool {
        // A row is found in its row group, which other reads may bring.
        !matches!(self.places, Places::Rows(_)) && self.is_remote_sample(id)
    }

    /// Reads the start of a sample's file, enough for [`crate::Pipeline::decoded_size`].
    ///
    /// # Errors
    ///
    /// If the file is missing or cannot be read.
    pub fn fetch_head(&self, id: u32, into: &mut Vec<u8>) -> Result<(), Error> {
        if self.has_parts() {
            *into = self
                .fetch_heads(&[id])
                .pop()
                .unwrap_or_else(|| Ok(Vec::new()))?;
            return Ok(());
        }
        let read = self.objects.read_head(id, HEAD_BYTES, into);
        read.map_err(error::of_storage)
    }

    /// Reads the starts of several samples' files: at once from a remote store, one after another from a local folder.
    pub fn fetch_heads(&self, ids: &[u32]) -> Vec<Result<Vec<u8>, Error>> {
        if let Places::Rows(rows) = &self.places {
            let head = |&id: &u32| {
                self.of_row(rows, id, |image| {
                    image[..image.len().min(HEAD_BYTES as usize)].to_vec()
                })
            };
            return ids.iter().map(head).collect();
        }
        let heads = if self.has_parts() {
            self.part_heads(ids)
        } else {
            self.objects.read_heads(ids, HEAD_BYTES)
        };
        heads
            .into_iter()
            .map(|head| head.map_err(error::of_storage))
            .collect()
    }

    /// Returns the starts of samples that are parts of objects. Only those that were not read before are read.
    fn part_heads(&self, ids: &[u32]) -> Vec<Result<Vec<u8>, coprep_storage::Error>> {
        let extents = ids.iter().map(|&id| self.extent(id));
        let early = |extent: Extent| self.early.head(extent, HEAD_BYTES).ok_or(extent);
        let heads: Vec<Result<Vec<u8>, Extent>> = extents.map(early).collect();
        let unread = heads.iter().filter_map(|head| head.as_ref().err());
        let unread: Vec<Extent> = unread.copied().collect();
        let mut read = self
            .objects
            .read_part_heads(&unread, HEAD_BYTES)
            .into_iter();
        let head = |head: Result<Vec<u8>, Extent>| match head {
            Ok(head) => Ok(head),
            // One was read for each of them.
            Err(_) => read.next().unwrap_or_else(|| Ok(Vec::new())),
        };
        heads.into_iter().map(head).collect()
    }

    /// Takes a sample that was read when the dataset was opened, if nobody has taken it before.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn take_early(&self, id: u32) -> Option<EarlyPart> {
        // Most datasets have none, and this is asked for every sample.
        (!self.early.is_empty()).then(|| self.early.take(self.extent(id)))?
    }

    /// Reads a sample's file into a buffer of exactly its length.
    ///
    /// # Errors
    ///
    /// If the file is missing, cannot be read, or is not `into.len()` bytes long any more;
    /// if a sample of a shard has another checksum than in the index.
    pub fn fetch_into(&self, id: u32, into: &mut [u8]) -> Result<(), Error> {
        if let Places::Rows(rows) = &self.places {
            return self.of_row(rows, id, |image| parquet::fill(into, image))?;
        }
        self.read_intact(id, into, |into| {
            self.objects.read_into(self.extent(id), into)
        })
    }

    /// Reads a sample, and once more if its bytes are not those of its index. Bytes that changed on their way are right
    /// then, and those that changed in the store are not.
    fn read_intact<Target: AsRef<[u8]> + ?Sized>(
        &self,
        id: u32,
        into: &mut Target,
        mut read: impl FnMut(&mut Target) -> Result<(), coprep_storage::Error>,
    ) -> Result<(), Error> {
        read(into).map_err(error::of_storage)?;
        let Places::Shards(shards) = &self.places else {
            return Ok(());
        };
        if shards.is_intact(id, into.as_ref()) {
            return Ok(());
        }
        read(into).map_err(error::of_storage)?;
        if !shards.is_intact(id, into.as_ref()) {
            return Err(self.not_intact(shards, id));
        }
        let sample = self.path(id);
        tracing::warn!(sample = %sample.display(), "a sample arrived with a wrong checksum, and was right when it was read again");
        Ok(())
    }

    fn not_intact(&self, shards: &ShardSamples, id: u32) -> Error {
        let Extent { object, at, .. } = shards.extent(id);
        let (shard, end) = (self.objects.path(object), at + shards.length(id));
        error::other_checksum(format!(
            "the bytes {at} to {end} of {} are not those that were indexed: their checksum differs",
            shard.display()
        ))
    }
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    error::io(format!("{} cannot be read", path.display()), error)
}

/// Returns the URL that a source names, or `None` for a path.
fn url(text: &str) -> Result<Option<DatasetUrl>, Error> {
    DatasetUrl::parse(text).map_err(|e| invalid(e.to_string()))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidSource, what)
}

/// Returns the error of samples that are not there. As with torchvision, programs get it as `FileNotFoundError`.
fn not_found(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotFound, what)
}

fn files(list: &FileList, stores: &Stores) -> Result<Dataset, Error> {
    if list.paths.is_empty() {
        return Err(invalid("the list of files is empty").with_remedy("give at least one path"));
    }
    if !list.labels.is_empty() && list.labels.len() != list.paths.len() {
        let (paths, labels) = (list.paths.len(), list.labels.len());
        return Err(invalid(format!("{paths} paths and {labels} labels"))
            .with_remedy("give one label per path, or none"));
    }
    let mut dataset = Dataset::rooted(Path::new(""));
    let label = |i: usize| list.labels.get(i).copied().unwrap_or(0);
    dataset.labels = (0..list.paths.len()).map(label).collect();
    remote::push_files(&mut dataset.objects, &list.paths, stores)?;
    Ok(dataset)
}

fn tar_shards(
    list: &TarShards,
    stores: &Stores,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Dataset, Error> {
    let folder = IndexFolder::of_user();
    let open = coprep_shards::open(list, stores, &folder, goes_on).map_err(Error::from_lower)?;
    let mut dataset = Dataset::rooted(Path::new(""));
    // Without a label part every label is 0, as in a list of files without labels.
    let label = |i: usize| open.labels.get(i).copied().unwrap_or(0);
    dataset.labels = (0..open.samples.len()).map(label).collect();
    dataset.objects = open.objects;
    dataset.places = Places::Shards(open.samples);
    dataset.early = EarlySamples::new(open.early);
    dataset.left_out = open.left_out;
    Ok(dataset)
}

/// Lists a folder with one subfolder per class, local or in a store.
fn class_folder(
    root: &str,
    kind: &FolderKind,
    stores: &Stores,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Dataset, Error> {
    match url(root)? {
        Some(url) => remote::class_folder(&url, kind, stores, goes_on),
        None => local_class_folder(Path::new(root), kind),
    }
}

fn local_class_folder(root: &Path, kind: &FolderKind) -> Result<Dataset, Error> {
    let classes = class_folders(root, kind)?;
    let mut dataset = Dataset::rooted(root);
    let mut empty = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let before = dataset.labels.len();
        add_class(&mut dataset, root, class, (kind, label as i64))?;
        if dataset.labels.len() == before {
            empty.push(class.to_string_lossy());
        }
    }
    refuse_empty(&root.display().to_string(), &empty, kind)?;
    dataset.classes = classes
        .into_iter()
        .map(|c| c.to_string_lossy().into_owned())
        .collect();
    Ok(dataset)
}

/// Refuses a folder in which these classes have no sample.
fn refuse_empty(root: &str, empty: &[impl AsRef<str>], kind: &FolderKind) -> Result<(), Error> {
    if empty.is_empty() {
        return Ok(());
    }
    Err(not_found(format!(
        "{root}: no {} in the class folder{} {}",
        kind.sample,
        if empty.len() == 1 { "" } else { "s" },
        some_of(empty),
    ))
    .with_remedy(format!(
        "files whose names end in {} are samples: add some or remove the folder",
        kind.decoded.join(", "),
    )))
}

/// Returns the error of a folder without class folders.
fn no_classes(root: impl std::fmt::Display, kind: &FolderKind) -> Error {
    not_found(format!(
        "{root} has no class folders: {} has one subfolder per class ({})",
        kind.folder, kind.example
    ))
    .with_remedy("for other layouts give a list of files")
}

fn some_of(names: &[impl AsRef<str>]) -> String {
    let shown = names
        .iter()
        .take(5)
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > 5 {
        format!("{shown} and {} more", names.len() - 5)
    } else {
        shown
    }
}

fn class_folders(root: &Path, kind: &FolderKind) -> Result<Vec<OsString>, Error> {
    let entries = std::fs::read_dir(root).map_err(|e| unreadable(root, e))?;
    let mut classes = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| unreadable(root, e))?;
        // This follows links, as os.DirEntry.is_dir does.
        if entry.path().is_dir() {
            classes.push(entry.file_name());
        }
    }
    if classes.is_empty() {
        return Err(no_classes(root.display(), kind));
    }
    classes.sort();
    Ok(classes)
}

/// Adds the samples of a class in the order of (path of the folder, name).
fn add_class(
    dataset: &mut Dataset,
    root: &Path,
    class: &OsStr,
    (kind, label): (&FolderKind, i64),
) -> Result<(), Error> {
    let top = root.join(class);
    let mut found = Vec::new();
    for entry in walkdir::WalkDir::new(&top).follow_links(true).min_depth(1) {
        let Some(path) = file_of(entry, &top)? else {
            continue;
        };
        match kind.of(path.file_name().unwrap_or_default().as_bytes()) {
            Kind::Sample => found.push(split(&path, root)),
            Kind::NotDecoded => dataset.ignored += 1,
            Kind::Other => {}
        }
    }
    // The walk follows the order of the file system, which differs between machines.
    found.sort();
    for (folder, name) in found {
        dataset.push_file(&[&folder, b"/", &name], label);
    }
    Ok(())
}

fn file_of(
    entry: walkdir::Result<walkdir::DirEntry>,
    top: &Path,
) -> Result<Option<PathBuf>, Error> {
    match entry {
        Ok(entry) if entry.file_type().is_dir() => Ok(None),
        Ok(entry) => Ok(Some(entry.into_path())),
        Err(error) => {
            let path = error.path().unwrap_or(top).to_owned();
            if error.loop_ancestor().is_some() {
                let what = format!("{} is a link to a folder above itself", path.display());
                return Err(invalid(what).with_remedy("remove it"));
            }
            match error.io_error().map(std::io::Error::kind) {
                // A broken link is listed, and fails when it is read.
                Some(std::io::ErrorKind::NotFound) => Ok(Some(path)),
                _ => Err(unreadable(&path, error.into())),
            }
        }
    }
}

enum Kind {
    Sample,
    NotDecoded,
    Other,
}

impl FolderKind {
    /// Returns what a file with this name is.
    fn of(&self, name: &[u8]) -> Kind {
        let name = name.to_ascii_lowercase();
        let is_in = |list: &[&str]| list.iter().any(|ending| name.ends_with(ending.as_bytes()));
        match () {
            () if is_in(self.decoded) => Kind::Sample,
            () if is_in(self.not_decoded) => Kind::NotDecoded,
            () => Kind::Other,
        }
    }
}

/// Splits a path into its folder, relative to the root, and its name.
fn split(path: &Path, root: &Path) -> (Vec<u8>, Vec<u8>) {
    let folder = path
        .parent()
        .and_then(|p| p.strip_prefix(root).ok())
        .unwrap_or(Path::new(""));
    let bytes = |s: &OsStr| s.to_owned().into_vec();
    (
        bytes(folder.as_os_str()),
        path.file_name().map(bytes).unwrap_or_default(),
    )
}
