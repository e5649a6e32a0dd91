//! The objects of a dataset, and the ranges of them that hold its samples.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, ErrorKind, changed, unreadable};
use crate::file;
use crate::health::OutageReport;
use crate::open_files::{LocalObject, OpenFiles};
use crate::remote::{ListedObject, ObjectRef, RemoteStore};
use crate::target::ReadTarget;
use crate::throttle::ReadThrottle;

/// A range of bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position of the object in its [`ObjectTable`].
    pub object: u32,
    /// Offset of the first byte.
    pub at: u64,
    /// Number of bytes, or `None` for all bytes up to the end of the object.
    pub len: Option<u32>,
}

impl Extent {
    /// Returns the extent that covers all of an object.
    #[must_use]
    pub fn whole(object: u32) -> Extent {
        Extent {
            object,
            at: 0,
            len: None,
        }
    }

    /// Returns the first bytes of an extent of known length, at most `most`.
    fn head(self, most: u64) -> Extent {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Extent {
            len: self.len.map(|len| len.min(most)),
            ..self
        }
    }
}

/// Where the objects of a table lie.
enum ObjectHome {
    /// Below a local folder.
    Local(PathBuf),
    /// In a remote store.
    Remote(Arc<RemoteStore>),
}

/// The objects of a dataset, by number.
///
/// Names lie in one arena of bytes. The sizes and ETags of remote objects are those of their listing, so that no request
/// is needed for them.
pub struct ObjectTable {
    homes: Vec<ObjectHome>,
    /// The home of each object, by its position in `homes`. Empty if there is only one.
    home_of: Vec<u16>,
    /// Names, one after another: paths below a local folder, or keys of a store.
    names: Vec<u8>,
    /// End of each name within `names`.
    ends: Vec<u64>,
    listed: Listed,
    /// Local objects that are read in parts.
    open_files: OpenFiles,
    /// The error of each object that was found to be replaced. Empty if no object is read in parts.
    replaced: Vec<OnceLock<Error>>,
    throttle: Option<Arc<ReadThrottle>>,
}

/// What listings say of objects. Empty if all objects are local and read as a whole.
#[derive(Default)]
struct Listed {
    /// Length of each object, or [`UNKNOWN`].
    sizes: Vec<u64>,
    /// ETags, one after another. An object without one has an empty text.
    etags: Vec<u8>,
    etag_ends: Vec<u64>,
}

const UNKNOWN: u64 = u64::MAX;

impl Listed {
    /// Adds an object, which is number `object`.
    fn push(&mut self, object: usize, size: Option<u64>, etag: Option<&str>) {
        // Local objects before it have no entries yet.
        self.sizes.resize(object, UNKNOWN);
        self.etag_ends.resize(object, self.etags.len() as u64);
        self.sizes.push(size.unwrap_or(UNKNOWN));
        self.etags
            .extend_from_slice(etag.unwrap_or_default().as_bytes());
        self.etag_ends.push(self.etags.len() as u64);
    }

    fn size(&self, object: usize) -> Option<u64> {
        self.sizes
            .get(object)
            .copied()
            .filter(|&size| size != UNKNOWN)
    }

    fn etag(&self, object: usize) -> Option<&str> {
        let end = *self.etag_ends.get(object)? as usize;
        let start = object
            .checked_sub(1)
            .map_or(0, |before| self.etag_ends[before] as usize);
        let etag = std::str::from_utf8(&self.etags[start..end]).ok()?;
        Some(etag).filter(|etag| !etag.is_empty())
    }

    fn hash(&self, hash: &mut Xxh3) {
        self.sizes
            .iter()
            .for_each(|size| hash.update(&size.to_le_bytes()));
        hash.update(&self.etags);
        self.etag_ends
            .iter()
            .for_each(|end| hash.update(&end.to_le_bytes()));
    }
}

/// An object of a table, as it is read.
enum ReadableObject<'a> {
    Local(PathBuf),
    Remote(&'a RemoteStore, ObjectRef<'a>),
}

impl ObjectTable {
    /// Returns an empty table of files below a local folder.
    #[must_use]
    pub fn local(root: &Path) -> Self {
        ObjectTable {
            homes: vec![ObjectHome::Local(root.to_owned())],
            home_of: Vec::new(),
            names: Vec::new(),
            ends: Vec::new(),
            listed: Listed::default(),
            open_files: OpenFiles::default(),
            replaced: Vec::new(),
            throttle: None,
        }
    }

    /// Adds a file of the local folder. `parts` are the parts of its path.
    pub fn push_file(&mut self, parts: &[&[u8]]) {
        self.push_name(0, parts);
    }

    /// Adds an object of a remote store. Without a size its length is not known until it is read.
    pub fn push_object(
        &mut self,
        store: &Arc<RemoteStore>,
        key: &str,
        listed: Option<&ListedObject>,
    ) {
        let object = self.len() as usize;
        let home = self.home(store);
        self.push_name(home, &[key.as_bytes()]);
        let (size, etag) = (
            listed.map(|l| l.size),
            listed.and_then(|l| l.etag.as_deref()),
        );
        self.listed.push(object, size, etag);
    }

    /// Adds a local file that is read in parts. It must keep its size and its `etag`, which stands for its content.
    pub fn push_shard(&mut self, path: &[u8], size: u64, etag: &str) {
        let object = self.len() as usize;
        self.push_name(0, &[path]);
        self.listed.push(object, Some(size), Some(etag));
    }

    /// Prepares for reads of parts, when the list is final. From then on, an object that was found to be replaced is not
    /// asked for again.
    pub fn remember_replaced(&mut self) {
        self.replaced.resize_with(self.ends.len(), OnceLock::new);
    }

    fn push_name(&mut self, home: usize, parts: &[&[u8]]) {
        parts
            .iter()
            .for_each(|part| self.names.extend_from_slice(part));
        let object = self.ends.len();
        self.ends.push(self.names.len() as u64);
        if home > 0 || !self.home_of.is_empty() {
            self.home_of.resize(object, 0);
            self.home_of.push(home as u16);
        }
    }

    /// Returns the position of a store in `homes`, and adds it if it is new.
    fn home(&mut self, store: &Arc<RemoteStore>) -> usize {
        let is_it =
            |home: &ObjectHome| matches!(home, ObjectHome::Remote(s) if Arc::ptr_eq(s, store));
        // The same store as before is the usual case.
        self.homes.iter().position(is_it).unwrap_or_else(|| {
            self.homes.push(ObjectHome::Remote(store.clone()));
            self.homes.len() - 1
        })
    }

    /// Gives spare memory back, when the list is final.
    pub fn shrink(&mut self) {
        self.names.shrink_to_fit();
        self.listed.etags.shrink_to_fit();
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Returns `true` if there is no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns `true` if objects lie in a remote store.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        let is_remote = |home: &ObjectHome| matches!(home, ObjectHome::Remote(_));
        self.homes.iter().any(is_remote)
    }

    /// Returns `true` if this object lies in a remote store.
    ///
    /// # Panics
    ///
    /// If `object` is not below [`ObjectTable::len`].
    #[must_use]
    pub fn is_remote_object(&self, object: u32) -> bool {
        assert!(object < self.len(), "object {object} of {}", self.len());
        matches!(self.home_of(object), ObjectHome::Remote(_))
    }

    /// Adds the identity of all objects to a hash: root, names and order; of remote objects also store, sizes and ETags.
    pub fn identify(&self, hash: &mut Xxh3) {
        for home in &self.homes {
            match home {
                ObjectHome::Local(root) => hash.update(root.as_os_str().as_bytes()),
                ObjectHome::Remote(store) => hash.update(store.name().as_bytes()),
            }
            // Neither contains a zero byte, so this delimits them from the names.
            hash.update(&[0]);
        }
        hash.update(&self.names);
        self.ends
            .iter()
            .for_each(|end| hash.update(&end.to_le_bytes()));
        self.home_of
            .iter()
            .for_each(|home| hash.update(&home.to_le_bytes()));
        self.listed.hash(hash);
    }

    /// Slows reads by `throttle`.
    pub fn slow_by(&mut self, throttle: Arc<ReadThrottle>) {
        self.throttle = Some(throttle);
    }

    fn slow_down(&self, bytes: usize) {
        if let Some(throttle) = &self.throttle {
            throttle.wait(bytes as u64);
        }
    }

    fn name(&self, object: u32) -> &[u8] {
        let object = object as usize;
        let start = if object == 0 {
            0
        } else {
            self.ends[object - 1]
        };
        &self.names[start as usize..self.ends[object] as usize]
    }

    fn home_of(&self, object: u32) -> &ObjectHome {
        let home = self
            .home_of
            .get(object as usize)
            .map_or(0, |&home| usize::from(home));
        &self.homes[home]
    }

    fn readable(&self, object: u32) -> ReadableObject<'_> {
        match self.home_of(object) {
            ObjectHome::Local(root) => {
                ReadableObject::Local(root.join(OsStr::from_bytes(self.name(object))))
            }
            ObjectHome::Remote(store) => ReadableObject::Remote(store, self.remote(object)),
        }
    }

    fn remote(&self, object: u32) -> ObjectRef<'_> {
        ObjectRef {
            // Keys were pushed as text.
            key: std::str::from_utf8(self.name(object)).unwrap_or_default(),
            size: self.listed.size(object as usize),
            etag: self.listed.etag(object as usize),
        }
    }

    /// Returns the path of a local object, or the URL of a remote one.
    ///
    /// # Panics
    ///
    /// If `object` is not below [`ObjectTable::len`].
    #[must_use]
    pub fn path(&self, object: u32) -> PathBuf {
        match self.readable(object) {
            ReadableObject::Local(path) => path,
            ReadableObject::Remote(store, object) => store.url(object.key).into(),
        }
    }

    /// Returns the stores of these objects that do not answer at present.
    pub fn outages(&self) -> impl Iterator<Item = OutageReport> {
        self.homes.iter().filter_map(|home| match home {
            ObjectHome::Local(_) => None,
            ObjectHome::Remote(store) => store.outage(),
        })
    }

    /// Returns the length of an object if its listing told it.
    #[must_use]
    pub fn listed_length(&self, object: u32) -> Option<u64> {
        self.listed.size(object as usize)
    }

    /// Returns the CPU time that other threads spend on reading `bytes` bytes of an object.
    #[must_use]
    pub fn io_cpu_for(&self, object: u32, bytes: u64) -> Duration {
        match self.home_of(object) {
            ObjectHome::Local(_) => Duration::ZERO,
            ObjectHome::Remote(store) => store.io_cpu_for(bytes),
        }
    }

    /// Returns the length of an object. If it was not listed, the file system or the store is asked.
    ///
    /// # Errors
    ///
    /// If the object is missing or cannot be read.
    pub fn length(&self, object: u32) -> Result<u64, Error> {
        if let Some(size) = self.listed_length(object) {
            return Ok(size);
        }
        match self.readable(object) {
            ReadableObject::Local(path) => {
                let length = std::fs::metadata(&path).and_then(|meta| file::length(&meta));
                length.map_err(|e| unreadable(path.display(), e))
            }
            ReadableObject::Remote(store, object) => store.measure(object),
        }
    }

    /// Reads an extent. Afterwards `into` holds exactly its bytes.
    ///
    /// # Errors
    ///
    /// If the object is missing, cannot be read, was replaced, or is longer than [`crate::MOST_BYTES`].
    pub fn read(&self, extent: Extent, into: &mut Vec<u8>) -> Result<(), Error> {
        if let Some(len) = extent.len {
            // Not cleared, so that bytes of the sample before are overwritten and not zeroed first.
            into.resize(len as usize, 0);
            return self.read_into(extent, into);
        }
        match self.readable(extent.object) {
            ReadableObject::Local(path) => {
                file::read(&path, into).map_err(|e| unreadable(path.display(), e))?;
            }
            ReadableObject::Remote(store, object) => {
                store.read(object, range(extent), &mut ReadTarget::Growing(into))?;
            }
        }
        self.slow_down(into.len());
        Ok(())
    }

    /// Reads an extent into a buffer of exactly its length.
    ///
    /// # Errors
    ///
    /// If the object is missing, cannot be read, or is not as long as expected any more.
    pub fn read_into(&self, extent: Extent, into: &mut [u8]) -> Result<(), Error> {
        if extent.len.is_some() {
            self.read_part(extent, into)?;
        } else {
            match self.readable(extent.object) {
                ReadableObject::Local(path) => read_file_into(&path, into)?,
                ReadableObject::Remote(store, object) => {
                    store.read(object, None, &mut ReadTarget::exact(into))?;
                }
            }
        }
        self.slow_down(into.len());
        Ok(())
    }

    /// Reads a part of an object. An object that was replaced is asked for once, and not once for each of its parts.
    fn read_part(&self, extent: Extent, into: &mut [u8]) -> Result<(), Error> {
        // An empty range is not a range in HTTP.
        if into.is_empty() {
            return Ok(());
        }
        let replaced = self.replaced.get(extent.object as usize);
        if let Some(error) = replaced.and_then(OnceLock::get) {
            return Err(error.clone());
        }
        let read = match self.readable(extent.object) {
            ReadableObject::Local(path) => {
                let local = self.local_object(extent.object, &path);
                self.open_files.read(&local, extent.at, into)
            }
            ReadableObject::Remote(store, object) => {
                store.read(object, range(extent), &mut ReadTarget::exact(into))
            }
        };
        read.inspect_err(|error| {
            if let Some(replaced) = replaced.filter(|_| *error.kind() == ErrorKind::Changed) {
                // Another thread may have found it at the same time, with the same result.
                let _ = replaced.set(error.clone());
            }
        })
    }

    /// Reads a part of an object while a dataset is opened: a store that does not answer is an error within seconds.
    ///
    /// # Errors
    ///
    /// As [`ObjectTable::read_into`].
    pub fn read_at_opening(&self, extent: Extent, into: &mut Vec<u8>) -> Result<(), Error> {
        match self.readable(extent.object) {
            ReadableObject::Local(_) => self.read(extent, into),
            ReadableObject::Remote(store, object) => {
                store.read_at_opening(object, range(extent), into)
            }
        }
    }

    fn local_object<'a>(&'a self, object: u32, path: &'a Path) -> LocalObject<'a> {
        LocalObject {
            number: object,
            path,
            size: self.listed.size(object as usize),
            etag: self.listed.etag(object as usize),
        }
    }

    /// Reads the first bytes of an object, at most `most`.
    ///
    /// # Errors
    ///
    /// If the object is missing or cannot be read.
    pub fn read_head(&self, object: u32, most: u64, into: &mut Vec<u8>) -> Result<(), Error> {
        match self.readable(object) {
            ReadableObject::Local(path) => {
                file::read_head(&path, most, into).map_err(|e| unreadable(path.display(), e))
            }
            ReadableObject::Remote(store, object) => {
                *into = store
                    .heads(&[object], most)
                    .pop()
                    .unwrap_or_else(|| Ok(Vec::new()))?;
                Ok(())
            }
        }
    }

    /// Reads the first bytes of remote objects, all at once, and of local ones, one after another.
    pub fn read_heads(&self, objects: &[u32], most: u64) -> Vec<Result<Vec<u8>, Error>> {
        let home = objects.first().map(|&object| self.home_of(object));
        let (Some(ObjectHome::Remote(store)), true) =
            (home, self.home_of.iter().all(|h| *h == self.home_of[0]))
        else {
            let head = |&object: &u32| {
                let mut head = Vec::new();
                self.read_head(object, most, &mut head).map(|()| head)
            };
            return objects.iter().map(head).collect();
        };
        let objects: Vec<_> = objects.iter().map(|&object| self.remote(object)).collect();
        store.heads(&objects, most)
    }

    /// Reads the first bytes of parts of objects, at most `most` of each: from one store all at once, and otherwise one
    /// after another.
    pub fn read_part_heads(&self, parts: &[Extent], most: u64) -> Vec<Result<Vec<u8>, Error>> {
        let heads: Vec<Extent> = parts.iter().map(|part| part.head(most)).collect();
        let home = heads.first().map(|head| self.home_of(head.object));
        if let Some(ObjectHome::Remote(store)) = home
            && self.home_of.iter().all(|h| *h == self.home_of[0])
        {
            let wanted = heads
                .iter()
                .map(|head| (self.remote(head.object), range(*head)));
            return store.parts(&wanted.collect::<Vec<_>>());
        }
        let read = |head: &Extent| {
            let mut bytes = Vec::new();
            self.read(*head, &mut bytes).map(|()| bytes)
        };
        heads.iter().map(read).collect()
    }
}

impl fmt::Debug for ObjectTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectTable of {}", self.len())
    }
}

/// Returns the range to ask for, or `None` for a whole object. An answer to a request without a range says how long the
/// object is, which shows whether it was replaced.
fn range(extent: Extent) -> Option<std::ops::Range<u64>> {
    let len = u64::from(extent.len?);
    Some(extent.at..extent.at + len)
}

fn read_file_into(path: &Path, into: &mut [u8]) -> Result<(), Error> {
    let changed = || changed(path.display(), "changed its length while it was read");
    match file::read_exactly(path, into) {
        Ok(true) => Ok(()),
        Ok(false) => Err(changed()),
        // The file has become shorter than the length that was read before.
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(changed()),
        Err(e) => Err(unreadable(path.display(), e)),
    }
}
