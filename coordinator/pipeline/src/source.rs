//! Datasets: folders of classes, and lists of files.
//!
//! A dataset is held once, in two arrays and one byte arena of relative paths. 1.3 million samples take about 60 MB in
//! a few allocations. The order of samples is that of `torchvision.datasets.ImageFolder`: classes in lexicographic
//! order; within a class, the folders in the order of their paths, links followed; within a folder, the files by name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coprep_protocol::spec::{FileList, Source};

use crate::error::{self, Error, ErrorKind};
use crate::file;
use crate::throttle::ReadThrottle;

/// Endings of file names that make a file of a folder a sample, in upper or lower case.
const DECODED: [&str; 4] = [".jpg", ".jpeg", ".png", ".webp"];

/// Further endings that torchvision takes but that are not decoded here.
const NOT_DECODED: [&str; 5] = [".bmp", ".pgm", ".ppm", ".tif", ".tiff"];

/// Bytes that [`Dataset::fetch_head`] reads. Exif data and a colour profile may come before the size.
const HEAD_BYTES: u64 = 256 << 10;

/// An opened source: samples `0..len`, each a file with a label.
#[derive(Debug)]
pub struct Dataset {
    root: PathBuf,
    classes: Vec<String>,
    labels: Vec<i64>,
    /// Paths relative to the root, one after another.
    names: Vec<u8>,
    /// End of each path within `names`.
    ends: Vec<u64>,
    ignored: u64,
    fingerprint: u128,
    throttle: Option<Arc<ReadThrottle>>,
}

impl Dataset {
    /// Lists the samples of a source. A folder is walked; a list is taken as it is.
    ///
    /// # Errors
    ///
    /// If the folder is missing, has no class folders, or a class has no image of a decoded format;
    /// if labels and paths differ in number; if there is no sample, or more than 2^32 - 1.
    pub fn open(source: &Source) -> Result<Dataset, Error> {
        let mut dataset = match source {
            Source::ImageFolder { root } => image_folder(Path::new(root))?,
            Source::Files(list) => files(list)?,
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
        // The list is final, so the spare room of its growth is given back.
        dataset.names.shrink_to_fit();
        dataset.fingerprint = dataset.hash();
        Ok(dataset)
    }

    fn rooted(root: &Path) -> Self {
        Dataset {
            root: root.to_owned(),
            classes: Vec::new(),
            labels: Vec::new(),
            names: Vec::new(),
            ends: Vec::new(),
            ignored: 0,
            fingerprint: 0,
            throttle: None,
        }
    }

    fn push(&mut self, parts: &[&[u8]], label: i64) {
        parts
            .iter()
            .for_each(|part| self.names.extend_from_slice(part));
        self.ends.push(self.names.len() as u64);
        self.labels.push(label);
    }

    fn hash(&self) -> u128 {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        hash.update(self.root.as_os_str().as_bytes());
        // A path contains no zero byte, so this delimits the root from the names.
        hash.update(&[0]);
        hash.update(&self.names);
        self.ends
            .iter()
            .for_each(|end| hash.update(&end.to_le_bytes()));
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
        self.labels.is_empty()
    }

    /// Returns the label of a sample: the position of its class in [`Dataset::classes`], or the number that the list
    /// gave.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn label(&self, id: u32) -> i64 {
        self.labels[id as usize]
    }

    /// Returns the path of a sample's file.
    ///
    /// # Panics
    ///
    /// If `id` is not below [`Dataset::len`].
    #[must_use]
    pub fn path(&self, id: u32) -> PathBuf {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        let name = &self.names[start as usize..self.ends[id] as usize];
        self.root.join(OsStr::from_bytes(name))
    }

    /// Returns the names of the classes, in the order of their labels. A list of files has none.
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

    /// Returns the identity of the list: root, paths, order and labels, but not the contents of the files.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// Returns the same dataset, with reads slowed by `throttle`.
    #[must_use]
    pub fn slowed(self, throttle: Arc<ReadThrottle>) -> Dataset {
        Dataset {
            throttle: Some(throttle),
            ..self
        }
    }

    /// Returns the length of a sample's file.
    ///
    /// # Errors
    ///
    /// If the file is missing or cannot be read.
    pub fn file_len(&self, id: u32) -> Result<u64, Error> {
        let path = self.path(id);
        let length = std::fs::metadata(&path).and_then(|meta| file::length(&meta));
        length.map_err(|e| unreadable_sample(&path, e))
    }

    /// Reads a sample's file. Afterwards `into` holds exactly its bytes.
    ///
    /// # Errors
    ///
    /// If the file is missing, cannot be read, is no regular file, or is longer than [`crate::MOST_BYTES`].
    pub fn fetch(&self, id: u32, into: &mut Vec<u8>) -> Result<(), Error> {
        let path = self.path(id);
        file::read(&path, into).map_err(|e| unreadable_sample(&path, e))?;
        self.slow_down(into.len());
        Ok(())
    }

    fn slow_down(&self, bytes: usize) {
        if let Some(throttle) = &self.throttle {
            throttle.wait(bytes as u64);
        }
    }

    /// Reads the start of a sample's file, enough for [`crate::Pipeline::decoded_size`].
    ///
    /// # Errors
    ///
    /// If the file is missing or cannot be read.
    pub fn fetch_head(&self, id: u32, into: &mut Vec<u8>) -> Result<(), Error> {
        let path = self.path(id);
        file::read_head(&path, HEAD_BYTES, into).map_err(|e| unreadable_sample(&path, e))
    }

    /// Reads a sample's file into a buffer of exactly its length.
    ///
    /// # Errors
    ///
    /// If the file is missing, cannot be read, or is not `into.len()` bytes long any more.
    pub fn fetch_into(&self, id: u32, into: &mut [u8]) -> Result<(), Error> {
        let path = self.path(id);
        match file::read_exactly(&path, into) {
            Ok(true) => {
                self.slow_down(into.len());
                Ok(())
            }
            Ok(false) => Err(changed(&path)),
            // The file has become shorter than the length that was read before.
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(changed(&path)),
            Err(e) => Err(unreadable_sample(&path, e)),
        }
    }
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    error::io(format!("{} cannot be read", path.display()), error)
}

fn unreadable_sample(path: &Path, error: std::io::Error) -> Error {
    error::of_sample(unreadable(path, error))
}

fn changed(path: &Path) -> Error {
    let what = format!("{} changed its length while it was read", path.display());
    Error::new(ErrorKind::Read, what).with_remedy("a dataset in use must not change")
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidSource, what)
}

fn files(list: &FileList) -> Result<Dataset, Error> {
    if list.paths.is_empty() {
        return Err(invalid("the list of files is empty").with_remedy("give at least one path"));
    }
    if !list.labels.is_empty() && list.labels.len() != list.paths.len() {
        let (paths, labels) = (list.paths.len(), list.labels.len());
        return Err(invalid(format!("{paths} paths and {labels} labels"))
            .with_remedy("give one label per path, or none"));
    }
    let mut dataset = Dataset::rooted(Path::new(""));
    for (i, path) in list.paths.iter().enumerate() {
        dataset.push(&[path.as_bytes()], list.labels.get(i).copied().unwrap_or(0));
    }
    Ok(dataset)
}

fn image_folder(root: &Path) -> Result<Dataset, Error> {
    let classes = class_folders(root)?;
    let mut dataset = Dataset::rooted(root);
    let mut empty = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let before = dataset.labels.len();
        add_class(&mut dataset, class, label as i64)?;
        if dataset.labels.len() == before {
            empty.push(class.to_string_lossy());
        }
    }
    if !empty.is_empty() {
        return Err(invalid(format!(
            "{}: no image in the class folder{} {}",
            root.display(),
            if empty.len() == 1 { "" } else { "s" },
            some_of(&empty),
        ))
        .with_remedy(format!(
            "files whose names end in {} are samples: add some or remove the folder",
            DECODED.join(", "),
        )));
    }
    dataset.classes = classes
        .into_iter()
        .map(|c| c.to_string_lossy().into_owned())
        .collect();
    Ok(dataset)
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
        return Err(invalid(format!(
            "{} has no class folders: an image folder has one subfolder per class (root/class/image.jpg)",
            root.display()
        ))
        .with_remedy("for other layouts give a list of files"));
    }
    classes.sort();
    Ok(classes)
}

/// Adds the samples of a class in the order of (path of the folder, name).
fn add_class(dataset: &mut Dataset, class: &OsStr, label: i64) -> Result<(), Error> {
    let top = dataset.root.join(class);
    let mut found = Vec::new();
    for entry in walkdir::WalkDir::new(&top).follow_links(true).min_depth(1) {
        let Some(path) = file_of(entry, &top)? else {
            continue;
        };
        match kind(&path) {
            Kind::Sample => found.push(split(&path, &dataset.root)),
            Kind::NotDecoded => dataset.ignored += 1,
            Kind::Other => {}
        }
    }
    // The walk follows the order of the file system, which differs between machines.
    found.sort();
    for (folder, name) in found {
        dataset.push(&[&folder, b"/", &name], label);
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

fn kind(path: &Path) -> Kind {
    let name = path
        .file_name()
        .unwrap_or_default()
        .as_bytes()
        .to_ascii_lowercase();
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
