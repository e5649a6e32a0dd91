//! The objects of a dataset, and the ranges of them that hold its samples.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, ErrorKind, changed, unreadable};
use crate::file;
use crate::file_versions::FileVersions;
use crate::health::OutageReport;
use crate::listed::Listed;
use crate::names::Names;
use crate::open_files::{LocalObject, OpenFiles};
use crate::remote::{DetachedRead, ListedObject, ObjectRef, RemoteStore};
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

/// Objects with one home, up to the next run.
struct HomeRun {
    /// Number of the first object.
    first: u32,
    /// Position of the home in [`ObjectTable::homes`].
    home: u16,
}

/// The objects of a dataset, by number.
///
/// The sizes and ETags of remote objects are those of their listing, so that no request
/// is needed for them.
pub struct ObjectTable {
    homes: Vec<ObjectHome>,
    /// Where objects of another home begin. Before the first of them they lie in the first home.
    home_runs: Vec<HomeRun>,
    /// Paths below a local folder, or keys of a store.
    names: Names,
    listed: Listed,
    /// Local objects that are read in parts.
    open_files: OpenFiles,
    file_versions: FileVersions,
    /// The error of each object that was found to be replaced. Empty if no object is read in parts.
    replaced: Vec<OnceLock<Error>>,
    throttle: Option<Arc<ReadThrottle>>,
}

/// An object of a table, as it is read.
enum ReadableObject<'a> {
    Local(PathBuf),
    Remote(&'a RemoteStore, ObjectRef),
}

impl ObjectTable {
    /// Returns an empty table of files below a local folder.
    #[must_use]
    pub fn local(root: &Path) -> Self {
        ObjectTable {
            homes: vec![ObjectHome::Local(root.to_owned())],
            home_runs: Vec::new(),
            names: Names::default(),
            listed: Listed::default(),
            open_files: OpenFiles::default(),
            file_versions: FileVersions::default(),
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
        let object = self.len();
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
        let object = self.len();
        self.push_name(0, &[path]);
        self.listed.push(object, Some(size), Some(etag));
    }

    /// Prepares for reads of parts, when the list is final. From then on, an object that was found to be replaced is not
    /// asked for again.
    pub fn remember_replaced(&mut self) {
        self.replaced
            .resize_with(self.names.len() as usize, OnceLock::new);
    }

    fn push_name(&mut self, home: usize, parts: &[&[u8]]) {
        let first = self.names.len();
        self.names.push(parts);
        let home = home as u16;
        if self.home_runs.last().map_or(0, |run| run.home) != home {
            self.home_runs.push(HomeRun { first, home });
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
        self.names.shrink();
        self.listed.shrink();
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.names.len()
    }

    /// Returns the bytes of memory that the table takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.names.memory_bytes()
            + self.listed.memory_bytes()
            + self.home_runs.capacity() * size_of::<HomeRun>()
    }

    /// Returns `true` if there is no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if objects lie in a remote store.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        let is_remote = |home: &ObjectHome| matches!(home, ObjectHome::Remote(_));
        self.homes.iter().any(is_remote)
    }

    /// Returns `true` if any object is a local file.
    #[must_use]
    pub fn has_local(&self) -> bool {
        let is_local =
            |run: &HomeRun| matches!(self.homes[usize::from(run.home)], ObjectHome::Local(_));
        self.home_runs.first().is_none_or(|run| run.first > 0)
            || self.home_runs.iter().any(is_local)
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
        self.names.identify(hash);
        for run in &self.home_runs {
            hash.update(&run.first.to_le_bytes());
            hash.update(&run.home.to_le_bytes());
        }
        self.listed.identify(hash);
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

    fn home_of(&self, object: u32) -> &ObjectHome {
        let after = self.home_runs.partition_point(|run| run.first <= object);
        let run = after.checked_sub(1).map(|at| &self.home_runs[at]);
        let home = run.map_or(0, |run| usize::from(run.home));
        &self.homes[home]
    }

    fn readable(&self, object: u32) -> ReadableObject<'_> {
        match self.home_of(object) {
            ObjectHome::Local(root) => {
                ReadableObject::Local(root.join(OsStr::from_bytes(&self.names.get(object))))
            }
            ObjectHome::Remote(store) => ReadableObject::Remote(store, self.remote(object)),
        }
    }

    fn remote(&self, object: u32) -> ObjectRef {
        ObjectRef {
            // Keys were pushed as text.
            key: String::from_utf8(self.names.get(object)).unwrap_or_default(),
            size: self.listed.size(object),
            etag: self.listed.etag(object).map(Cow::into_owned),
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
            ReadableObject::Remote(store, object) => store.url(&object.key).into(),
        }
    }

    /// Returns the version of a file that is read as a whole, which differs once the file was written anew. Returns `None`
    /// for an object whose size and ETag are part of the table's identity.
    ///
    /// # Errors
    ///
    /// If the file is missing, or the file system cannot tell.
    pub fn file_version(&self, object: u32) -> Option<io::Result<u64>> {
        match self.readable(object) {
            ReadableObject::Local(path) if self.listed.etag(object).is_none() => {
                Some(self.file_versions.of(&path))
            }
            _ => None,
        }
    }

    /// Returns the stores of these objects that do not answer at present.
    pub fn outages(&self) -> impl Iterator<Item = OutageReport> {
        self.homes.iter().filter_map(|home| match home {
            ObjectHome::Local(_) => None,
            ObjectHome::Remote(store) => store.outage(),
        })
    }

    /// Returns the number of requests to the stores of these objects so far, or `None` if all objects are local.
    #[must_use]
    pub fn requests(&self) -> Option<u64> {
        let requests = self.homes.iter().filter_map(|home| match home {
            ObjectHome::Local(_) => None,
            ObjectHome::Remote(store) => Some(store.traffic().requests),
        });
        self.is_remote().then(|| requests.sum())
    }

    /// Returns the length of an object if its listing told it.
    #[must_use]
    pub fn listed_length(&self, object: u32) -> Option<u64> {
        self.listed.size(object)
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
            ReadableObject::Remote(store, object) => store.measure(&object),
        }
    }

    /// Reads an extent. Afterwards `into` holds exactly its bytes.
    ///
    /// # Errors
    ///
    /// If the object is missing, cannot be read, was replaced, or is longer than [`crate::MOST_BYTES`].
    pub fn read(&self, extent: Extent, into: &mut Vec<u8>) -> Result<(), Error> {
        if let Some(len) = extent.len {
            if let ObjectHome::Remote(store) = self.home_of(extent.object) {
                self.read_part_of(store, extent, &mut ReadTarget::Lent(into, Some(len.into())))?;
                self.slow_down(into.len());
                return Ok(());
            }
            // Not cleared, so that bytes of the sample before are overwritten and not zeroed first.
            into.resize(len as usize, 0);
            return self.read_into(extent, into);
        }
        match self.readable(extent.object) {
            ReadableObject::Local(path) => {
                file::read(&path, into).map_err(|e| unreadable(path.display(), e))?;
            }
            ReadableObject::Remote(store, object) => {
                store.read(&object, None, &mut ReadTarget::growing(into))?;
            }
        }
        self.slow_down(into.len());
        Ok(())
    }

    /// Returns a read of an extent that no thread waits for. Returns `None` if a thread has to read it: if it is local, its
    /// store does not answer, its object was replaced, or reads are slowed.
    #[must_use]
    pub fn detached_read(&self, extent: Extent) -> Option<DetachedRead> {
        let ObjectHome::Remote(store) = self.home_of(extent.object) else {
            return None;
        };
        let is_slowed = self.throttle.as_ref().is_some_and(|t| t.is_on());
        // An empty range is not a range in HTTP.
        let is_empty = extent.len == Some(0);
        if is_slowed || is_empty || self.known_error(extent.object).is_some() {
            return None;
        }
        store.detached_read(self.remote(extent.object), range(extent))
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
                    store.read(&object, None, &mut ReadTarget::Exact(into))?;
                }
            }
        }
        self.slow_down(into.len());
        Ok(())
    }

    /// Reads a part of an object into memory of its length.
    fn read_part(&self, extent: Extent, into: &mut [u8]) -> Result<(), Error> {
        if into.is_empty() {
            return Ok(());
        }
        match self.home_of(extent.object) {
            ObjectHome::Local(root) => self.unless_replaced(extent.object, || {
                let path = root.join(OsStr::from_bytes(&self.names.get(extent.object)));
                let local = self.local_object(extent.object, &path);
                self.open_files.read(&local, extent.at, into)
            }),
            ObjectHome::Remote(store) => {
                self.read_part_of(store, extent, &mut ReadTarget::Exact(into))
            }
        }
    }

    /// Reads a part of an object of a store.
    fn read_part_of(
        &self,
        store: &RemoteStore,
        extent: Extent,
        target: &mut ReadTarget<'_>,
    ) -> Result<(), Error> {
        // An empty range is not a range in HTTP.
        if extent.len == Some(0) {
            target.fill(Vec::new());
            return Ok(());
        }
        self.unless_replaced(extent.object, || {
            store.read(&self.remote(extent.object), range(extent), target)
        })
    }

    /// Reads a part of an object, unless the object is known to be replaced: such an object is asked for once, and not
    /// once for each of its parts.
    fn unless_replaced(
        &self,
        object: u32,
        read: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(error) = self.known_error(object) {
            return Err(error.clone());
        }
        read().inspect_err(|error| {
            let replaced = self.replaced.get(object as usize);
            if let Some(replaced) = replaced.filter(|_| *error.kind() == ErrorKind::Changed) {
                // Another thread may have found it at the same time, with the same result.
                let _ = replaced.set(error.clone());
            }
        })
    }

    /// Returns the error of an object that is known to be replaced.
    fn known_error(&self, object: u32) -> Option<&Error> {
        self.replaced.get(object as usize)?.get()
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
            size: self.listed.size(object),
            etag: self.listed.etag(object),
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

    /// Returns the store of all objects, if they lie in one.
    fn only_store(&self) -> Option<&RemoteStore> {
        let is_one_home = match self.home_runs.as_slice() {
            [] => true,
            [run] => run.first == 0,
            _ => false,
        };
        match self.home_of(0) {
            ObjectHome::Remote(store) if is_one_home => Some(store),
            _ => None,
        }
    }

    /// Reads the first bytes of remote objects, all at once, and of local ones, one after another.
    pub fn read_heads(&self, objects: &[u32], most: u64) -> Vec<Result<Vec<u8>, Error>> {
        let Some(store) = self.only_store() else {
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
        if let Some(store) = self.only_store() {
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
