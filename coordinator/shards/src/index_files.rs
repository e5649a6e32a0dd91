//! Index files: those in the cache folder of the user, and those beside shards.

use std::fs::{DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use coprep_storage::open_regular;
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::xxh3_128;

use crate::index::{ShardIdentity, ShardIndex};

/// Ending that the name of a shard gets for the index beside it.
pub(crate) const BESIDE: &str = ".coprep";

/// Most bytes of an index beside a shard, which is read whole. It is enough for a million samples.
const MOST_BESIDE: u64 = 64 << 20;
/// Bytes that an index beside a shard may have however small the shard is.
const FREE_BESIDE: u64 = 64 << 10;

/// Returns the most bytes that the index beside a shard of `size` bytes may have. A sample has headers of 512 bytes at
/// least, which an index tells by less.
pub(crate) fn most_beside(size: u64) -> u64 {
    size.clamp(FREE_BESIDE, MOST_BESIDE)
}

/// The folder in which indexes are kept for the next opening.
#[derive(Clone, Debug)]
pub struct IndexFolder(Option<PathBuf>);

impl IndexFolder {
    /// Returns the user's folder: `coprep/shards` in `$XDG_CACHE_HOME`, or in `~/.cache`. Without a home, nothing is kept.
    #[must_use]
    pub fn of_user() -> IndexFolder {
        // As its specification says, a relative path is ignored.
        let absolute = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        IndexFolder(cache.map(|cache| cache.join("coprep/shards")))
    }

    /// Returns another folder.
    #[must_use]
    pub fn at(path: &Path) -> IndexFolder {
        IndexFolder(Some(path.to_owned()))
    }

    fn file(&self, shard: &str, parts: &str) -> Option<PathBuf> {
        // The name has neither size nor ETag, so that the index of a shard that was replaced is overwritten.
        let key = format!("{shard}\0{parts}");
        let name = format!("{:032x}.index", xxh3_128(key.as_bytes()));
        Some(self.0.as_ref()?.join(name))
    }

    /// Returns the index of a shard if there is one that fits.
    pub(crate) fn find(&self, identity: &ShardIdentity, parts: &str) -> Option<ShardIndex> {
        let path = self.file(&identity.shard, parts)?;
        let index =
            ShardIndex::from_bytes(&read(&path, u64::MAX)?).filter(|index| index.parts == parts);
        if index.is_none() {
            tracing::warn!(path = %path.display(), shard = identity.shard, "an index is damaged or of another version, and is made anew");
        }
        index.filter(|index| index.identity == *identity)
    }

    /// Keeps an index. A folder that cannot be written to costs time when the shard is opened again, and nothing else.
    pub(crate) fn keep(&self, index: &ShardIndex) {
        let Some(path) = self.file(&index.identity.shard, &index.parts) else {
            return;
        };
        let kept = index
            .to_bytes()
            .and_then(|bytes| write(&path, &bytes, Readers::User).map_err(|e| e.to_string()));
        if let Err(error) = kept {
            tracing::warn!(path = %path.display(), error, "an index cannot be kept");
        }
    }
}

/// Returns the content of an index file, or `None` if there is none that can be read, or it has more than `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    let (mut file, length) = open_regular(path).ok()?;
    if length > most {
        too_large(&path.to_string_lossy(), length);
        return None;
    }
    // There is a byte to spare, so that the vector need not grow for the last read, which finds the end.
    let mut bytes = Vec::with_capacity(length as usize + 1);
    Read::by_ref(&mut file)
        .take(length)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

/// Tells that an index file is not used.
pub(crate) fn too_large(name: &str, bytes: u64) {
    tracing::warn!(
        name,
        bytes,
        "an index file is too large for its shard, and the shard is read instead"
    );
}

/// The users who may read a file.
#[derive(Clone, Copy)]
pub(crate) enum Readers {
    /// The user who writes it, alone.
    User,
    /// All users.
    All,
}

/// Writes a file in one step: nobody sees a part of it, also if two processes write it at the same time. A folder that
/// is missing is made for the same readers.
pub(crate) fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    // The kernel takes the user's mask away from the mode of a folder, as with `mkdir`.
    let (folder_mode, mode) = match readers {
        Readers::User => (0o700, 0o600),
        Readers::All => (0o777, 0o644),
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(folder_mode)
        .create(folder)?;
    // The file begins in the same folder, since it can be renamed only within its file system.
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    // A temporary file is readable for its user alone.
    file.as_file()
        .set_permissions(Permissions::from_mode(mode))?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::SampleTable;

    fn index(etag: &str) -> ShardIndex {
        ShardIndex {
            identity: ShardIdentity {
                shard: "/data/x.tar".into(),
                size: 1024,
                etag: etag.into(),
            },
            parts: "jpg".into(),
            samples: SampleTable::default(),
        }
    }

    #[test]
    fn an_index_is_found_for_the_same_content_only() {
        let scratch = tempfile::tempdir().expect("a folder");
        let root = scratch.path().join("new/folder");
        let folder = IndexFolder::at(&root);
        let (old, new) = (index("1"), index("2"));
        assert_eq!(folder.find(&old.identity, "jpg"), None);
        folder.keep(&old);
        assert_eq!(folder.find(&old.identity, "jpg"), Some(old.clone()));
        assert_eq!(folder.find(&old.identity, "png"), None);
        assert_eq!(folder.find(&new.identity, "jpg"), None);
        folder.keep(&new);
        assert_eq!(folder.find(&old.identity, "jpg"), None);
        let files: Vec<_> = std::fs::read_dir(&root)
            .expect("it is there")
            .flatten()
            .collect();
        assert_eq!(files.len(), 1);
        let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&root), mode(&files[0].path())), (0o700, 0o600));
    }

    #[test]
    fn a_file_for_all_users_lies_in_a_folder_for_all_users() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
        // A folder that is made without further ado shows the mask of this process.
        let usual = scratch.path().join("usual");
        std::fs::create_dir(&usual).expect("it is made");
        let file = scratch.path().join("new/folder/x.tar.coprep");
        write(&file, b"x", Readers::All).expect("it is written");
        for folder in file.ancestors().skip(1).take(2) {
            assert_eq!(mode(folder), mode(&usual), "{}", folder.display());
        }
        assert_eq!(mode(&file), 0o644);
    }

    #[test]
    fn a_damaged_index_is_none_and_is_written_anew() {
        let scratch = tempfile::tempdir().expect("a folder");
        let folder = IndexFolder::at(scratch.path());
        let index = index("1");
        folder.keep(&index);
        let path = folder
            .file("/data/x.tar", "jpg")
            .expect("there is a folder");
        std::fs::write(&path, b"damaged").expect("it is written");
        assert_eq!(folder.find(&index.identity, "jpg"), None);
        folder.keep(&index);
        assert_eq!(folder.find(&index.identity, "jpg"), Some(index));
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_no_error() {
        let scratch = tempfile::tempdir().expect("a folder");
        let file = scratch.path().join("file");
        std::fs::write(&file, b"").expect("it is written");
        let folder = IndexFolder::at(&file.join("below"));
        folder.keep(&index("1"));
        assert_eq!(folder.find(&index("1").identity, "jpg"), None);
    }
}
