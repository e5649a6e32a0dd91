//! Datasets: folders of classes, lists of files, and tar shards, local or in a remote store.
//!
//! A dataset is held once, in a few arrays. A sample takes 8 bytes and its name within its folder, and in a store 20 bytes
//! more. The order of samples is that of `torchvision.datasets.ImageFolder`: classes in lexicographic
//! order; within a class, the folders in the order of their paths, links followed; within a folder, the files by name.

mod labels;
mod remote;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::spec::{FileList, Source, TarShards};
use coprep_shards::{IndexFolder, ShardSamples};
use coprep_storage::{Extent, ObjectTable, OutageReport, ReadThrottle, Stores};

use self::labels::Labels;
use crate::error::{self, Error, ErrorKind};

/// Endings of file names that make a file of a folder a sample, in upper or lower case.
const DECODED: [&str; 4] = [".jpg", ".jpeg", ".png", ".webp"];

/// Further endings that torchvision takes but that are not decoded here.
const NOT_DECODED: [&str; 5] = [".bmp", ".pgm", ".ppm", ".tif", ".tiff"];

/// Bytes that [`Dataset::fetch_head`] reads. Exif data and a colour profile may come before the size.
const HEAD_BYTES: u64 = 256 << 10;

/// An opened source: samples `0..len`, each an extent of an object, with a label.
#[derive(Debug)]
pub struct Dataset {
    classes: Vec<String>,
    labels: Labels,
    /// The objects. Without `shards`, each is a sample, so the id of a sample is the number of its object.
    objects: ObjectTable,
    /// The places of samples within objects that are tar shards.
    shards: Option<ShardSamples>,
    ignored: u64,
    fingerprint: u128,
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
    /// if labels and paths differ in number; if a shard or a sample in it cannot be used;
    /// if there is no sample, or more than 2^32 - 1;
    /// if a store does not answer, or refuses.
    pub fn open_in(
        source: &Source,
        stores: &Stores,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Dataset, Error> {
        let mut dataset = match source {
            Source::ImageFolder { root } => match url(root)? {
                Some(url) => remote::image_folder(&url, stores, goes_on)?,
                None => image_folder(Path::new(root))?,
            },
            Source::Files(list) => files(list, stores)?,
            Source::TarShards(list) => tar_shards(list, stores, goes_on)?,
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
            shards: None,
            ignored: 0,
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
        if let Some(shards) = &self.shards {
            shards.identify(&mut hash);
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
        // In tar shards, samples and objects have different numbers.
        self.objects.is_remote_object(self.extent(id).object)
    }

    /// Returns the bytes of memory that the list of samples takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let shards = self.shards.as_ref().map_or(0, ShardSamples::memory_bytes);
        self.objects.memory_bytes() + self.labels.memory_bytes() + shards
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
    /// there.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn path(&self, id: u32) -> PathBuf {
        let Some(shards) = &self.shards else {
            return self.objects.path(id);
        };
        let mut path = self.objects.path(shards.shard(id)).into_os_string();
        path.push("#");
        path.push(shards.name(id));
        path.into()
    }

    /// Returns the path or URL of the object that holds a sample: a file of its own, or a shard.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn object_path(&self, id: u32) -> PathBuf {
        self.objects.path(self.extent(id).object)
    }

    /// Returns the bytes that hold a sample.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn extent(&self, id: u32) -> Extent {
        match &self.shards {
            Some(shards) => shards.extent(id),
            None => Extent::whole(id),
        }
    }

    /// Returns `true` if samples lie in tar shards.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.shards.is_some()
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

    /// Returns the identity of the list: root, paths, order and labels. Of objects in a store it contains the sizes and
    /// ETags too; the contents of local files are no part of it.
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
        match &self.shards {
            Some(shards) => Some(shards.length(id)),
            None => self.objects.listed_length(id),
        }
    }

    /// Returns the length of a sample's file.
    ///
    /// # Errors
    ///
    /// If the file is missing or cannot be read.
    pub fn file_len(&self, id: u32) -> Result<u64, Error> {
        match &self.shards {
            Some(shards) => Ok(shards.length(id)),
            None => self.objects.length(id).map_err(error::of_storage),
        }
    }

    /// Reads a sample's file. Afterwards `into` holds exactly its bytes.
    ///
    /// # Errors
    ///
    /// If the file is missing, cannot be read, is no regular file, or is longer than [`coprep_storage::MOST_BYTES`].
    pub fn fetch(&self, id: u32, into: &mut Vec<u8>) -> Result<(), Error> {
        let read = self.objects.read(self.extent(id), into);
        read.map_err(error::of_storage)
    }

    /// Reads the start of a sample's file, enough for [`crate::Pipeline::decoded_size`].
    ///
    /// # Errors
    ///
    /// If the file is missing or cannot be read.
    pub fn fetch_head(&self, id: u32, into: &mut Vec<u8>) -> Result<(), Error> {
        if self.is_sharded() {
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
        let heads = if self.is_sharded() {
            let extents: Vec<Extent> = ids.iter().map(|&id| self.extent(id)).collect();
            self.objects.read_part_heads(&extents, HEAD_BYTES)
        } else {
            self.objects.read_heads(ids, HEAD_BYTES)
        };
        heads
            .into_iter()
            .map(|head| head.map_err(error::of_storage))
            .collect()
    }

    /// Reads a sample's file into a buffer of exactly its length.
    ///
    /// # Errors
    ///
    /// If the file is missing, cannot be read, or is not `into.len()` bytes long any more.
    pub fn fetch_into(&self, id: u32, into: &mut [u8]) -> Result<(), Error> {
        let read = self.objects.read_into(self.extent(id), into);
        read.map_err(error::of_storage)
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
    dataset.shards = Some(open.samples);
    Ok(dataset)
}

fn image_folder(root: &Path) -> Result<Dataset, Error> {
    let classes = class_folders(root)?;
    let mut dataset = Dataset::rooted(root);
    let mut empty = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let before = dataset.labels.len();
        add_class(&mut dataset, root, class, label as i64)?;
        if dataset.labels.len() == before {
            empty.push(class.to_string_lossy());
        }
    }
    refuse_empty(&root.display().to_string(), &empty)?;
    dataset.classes = classes
        .into_iter()
        .map(|c| c.to_string_lossy().into_owned())
        .collect();
    Ok(dataset)
}

/// Refuses a folder in which these classes have no image.
fn refuse_empty(root: &str, empty: &[impl AsRef<str>]) -> Result<(), Error> {
    if empty.is_empty() {
        return Ok(());
    }
    Err(invalid(format!(
        "{root}: no image in the class folder{} {}",
        if empty.len() == 1 { "" } else { "s" },
        some_of(empty),
    ))
    .with_remedy(format!(
        "files whose names end in {} are samples: add some or remove the folder",
        DECODED.join(", "),
    )))
}

/// Returns the error of a folder without class folders.
fn no_classes(root: impl std::fmt::Display) -> Error {
    invalid(format!(
        "{root} has no class folders: an image folder has one subfolder per class (root/class/image.jpg)"
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

fn class_folders(root: &Path) -> Result<Vec<OsString>, Error> {
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
        return Err(no_classes(root.display()));
    }
    classes.sort();
    Ok(classes)
}

/// Adds the samples of a class in the order of (path of the folder, name).
fn add_class(dataset: &mut Dataset, root: &Path, class: &OsStr, label: i64) -> Result<(), Error> {
    let top = root.join(class);
    let mut found = Vec::new();
    for entry in walkdir::WalkDir::new(&top).follow_links(true).min_depth(1) {
        let Some(path) = file_of(entry, &top)? else {
            continue;
        };
        match kind(path.file_name().unwrap_or_default().as_bytes()) {
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

fn kind(name: &[u8]) -> Kind {
    let name = name.to_ascii_lowercase();
    let is_in = |list: &[&str]| list.iter().any(|ending| name.ends_with(ending.as_bytes()));
    match () {
        () if is_in(&DECODED) => Kind::Sample,
        () if is_in(&NOT_DECODED) => Kind::NotDecoded,
        () => Kind::Other,
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
