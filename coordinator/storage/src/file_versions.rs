//! Versions of local files, which differ if a file was written anew or replaced.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::RwLock;

use coprep_shared_memory::lock::unpoisoned;
use nix::sys::statfs::statfs;
use xxhash_rust::xxh3::xxh3_64;

/// Types of file systems that may give a file another inode at any time: FUSE, and the two of Windows shares. The kernel
/// compares them as 32-bit numbers.
const RENUMBERING: [u32; 3] = [0x6573_5546, 0xff53_4d42, 0xfe53_4d42];

/// The attributes of a file by which its versions are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Length in bytes.
    pub size: i64,
    /// Time of the last write, in nanoseconds.
    pub written_ns: i64,
    /// Time of the last change of the file or of its attributes, in nanoseconds. A file whose size and time of writing were
    /// restored has another one.
    pub changed_ns: i64,
    /// Number of the file.
    pub inode: i64,
}

impl FileStat {
    fn of(meta: &Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(ns);
        FileStat {
            size: meta.size() as i64,
            written_ns: ns(meta.mtime(), meta.mtime_nsec()),
            changed_ns: ns(meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino() as i64,
        }
    }

    /// Returns the same without the attributes that a file system which numbers files anew may change at any time.
    fn lasting(self) -> Self {
        FileStat {
            changed_ns: 0,
            inode: 0,
            ..self
        }
    }
}

/// Tells versions of files apart.
#[derive(Debug, Default)]
pub struct FileVersions {
    /// Maps the number of a device to `true` if inodes on it stay the same.
    devices: RwLock<BTreeMap<u64, bool>>,
}

impl FileVersions {
    /// Returns the version of a file, which is never 0: a hash of its size, its times and its inode.
    ///
    /// # Errors
    /// If the file is missing, or the file system cannot tell.
    pub(crate) fn of(&self, path: &Path) -> io::Result<u64> {
        let (stat, keeps_inodes) = self.stat(path)?;
        let stat = if keeps_inodes { stat } else { stat.lasting() };
        let parts = [stat.size, stat.written_ns, stat.changed_ns, stat.inode];
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        Ok(xxh3_64(&bytes).max(1))
    }

    /// Returns `true` if the file is another one than when it was `before`, or is gone. Returns `None` if the file system
    /// cannot tell.
    #[must_use]
    pub fn has_changed(&self, path: &Path, before: FileStat) -> Option<bool> {
        match self.stat(path) {
            Ok((now, true)) => Some(now != before),
            Ok((now, false)) => Some(now.lasting() != before.lasting()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some(true),
            Err(_) => None,
        }
    }

    /// Returns the attributes of a file, and `true` if its inode stays the same.
    fn stat(&self, path: &Path) -> io::Result<(FileStat, bool)> {
        let meta = std::fs::metadata(path)?;
        Ok((FileStat::of(&meta), self.keeps_inodes(path, &meta)))
    }

    fn keeps_inodes(&self, path: &Path, meta: &Metadata) -> bool {
        if let Some(&keeps) = unpoisoned(self.devices.read()).get(&meta.dev()) {
            return keeps;
        }
        let keeps =
            statfs(path).is_ok_and(|fs| !RENUMBERING.contains(&(fs.filesystem_type().0 as u32)));
        unpoisoned(self.devices.write()).insert(meta.dev(), keeps);
        keeps
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_version_differs_after_every_way_of_writing_a_file_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let set_time = |time| {
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(time)
        };
        let (versions, time) = (
            FileVersions::default(),
            SystemTime::now() - Duration::from_secs(60),
        );
        fs::write(&path, b"old").unwrap();
        set_time(time).unwrap();
        let mut seen = vec![versions.of(&path).unwrap()];
        assert_eq!(versions.of(&path).unwrap(), seen[0]);
        let ways: [&dyn Fn(); 4] = [
            &|| fs::write(&path, b"longer").unwrap(),
            &|| set_time(time - Duration::from_secs(60)).unwrap(),
            &|| {
                let other = folder.path().join("b.png");
                fs::write(&other, b"longer").unwrap();
                fs::rename(&other, &path).unwrap();
            },
            &|| {
                // Size and time of writing are restored.
                let was = fs::metadata(&path).unwrap().modified().unwrap();
                fs::write(&path, b"LONGER").unwrap();
                set_time(was).unwrap();
            },
        ];
        for (number, change) in ways.iter().enumerate() {
            // The kernel tells times in steps of a tick.
            std::thread::sleep(Duration::from_millis(20));
            change();
            let version = versions.of(&path).unwrap();
            assert!(!seen.contains(&version), "way {number}");
            seen.push(version);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(
            versions.of(&path).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
