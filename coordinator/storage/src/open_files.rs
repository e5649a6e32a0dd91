//! Local files that are read at many places, kept open.
//!
//! A shard is read once for each of its samples. Opening it each time would cost more than the read, above all on a
//! network file system. The number of files that are kept open is bounded, because a dataset may have more shards than a
//! process has descriptors.

use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use coprep_shared_memory::lock::lock;
use lru::LruCache;

use crate::error::{Error, changed, unreadable};
use crate::file;

/// Most files that a table keeps open. Processes are usually allowed 1,024 descriptors, and jobs need some too.
const MOST_OPEN: NonZeroUsize = NonZeroUsize::new(128).expect("it is not zero");

/// Files by the number of their object; see the module.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    files: Mutex<LruCache<u32, Arc<File>>>,
}

impl Default for OpenFiles {
    fn default() -> Self {
        OpenFiles {
            files: Mutex::new(LruCache::new(MOST_OPEN)),
        }
    }
}

/// A file, with its identity when it was listed.
pub(crate) struct LocalObject<'a> {
    pub(crate) number: u32,
    pub(crate) path: &'a Path,
    pub(crate) size: Option<u64>,
    pub(crate) etag: Option<Cow<'a, str>>,
}

impl LocalObject<'_> {
    fn check(&self, meta: &Metadata) -> Result<(), Error> {
        let is_other_size = self.size.is_some_and(|size| size != meta.len());
        if is_other_size
            || self
                .etag
                .as_ref()
                .is_some_and(|etag| *etag != file_etag(meta))
        {
            return Err(self.changed());
        }
        Ok(())
    }

    fn changed(&self) -> Error {
        changed(self.path.display(), "was replaced since it was opened")
    }
}

/// The identity of a local file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalIdentity {
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change, which stands for the ETag of an object.
    pub etag: String,
}

/// Returns the identity of a regular file.
///
/// # Errors
/// If it is missing, cannot be read, or is something else.
pub fn local_identity(path: &Path) -> Result<LocalIdentity, Error> {
    let meta = std::fs::metadata(path).and_then(|meta| file::check_kind(&meta).map(|()| meta));
    let meta = meta.map_err(|e| unreadable(path.display(), e))?;
    Ok(LocalIdentity {
        size: meta.len(),
        etag: file_etag(&meta),
    })
}

fn file_etag(meta: &Metadata) -> String {
    format!("{}.{:09}", meta.mtime(), meta.mtime_nsec())
}

impl OpenFiles {
    /// Fills `into` with the bytes of a file from `at` on.
    ///
    /// # Errors
    /// If the file is missing, cannot be read, or is not the one that was listed.
    pub(crate) fn read(
        &self,
        object: &LocalObject<'_>,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), Error> {
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::UnexpectedEof => object.changed(),
            _ => unreadable(object.path.display(), e),
        };
        let file = self.open(object).map_err(failed)?;
        file.read_exact_at(into, at).map_err(failed)?;
        // The check follows each read, because a file may be written to in place while it is open, and while it is read.
        object.check(&file.metadata().map_err(failed)?)
    }

    fn open(&self, object: &LocalObject<'_>) -> io::Result<Arc<File>> {
        if let Some(file) = lock(&self.files).get(&object.number) {
            return Ok(file.clone());
        }
        // Not under the lock: opening may take long on a network file system.
        let (file, _) = file::open_of_any_length(object.path)?;
        let file = Arc::new(file);
        lock(&self.files).put(object.number, file.clone());
        Ok(file)
    }
}
