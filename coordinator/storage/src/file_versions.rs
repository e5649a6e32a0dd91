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

/// Tells versions of files apart.
#[derive(Debug, Default)]
pub(crate) struct FileVersions {
    /// Whether the inodes of a device stay the same, by the number of the device.
    devices: RwLock<BTreeMap<u64, bool>>,
}

impl FileVersions {
    /// Returns the version of a file, which is never 0: a hash of its size, its times and its inode.
    ///
    /// # Errors
    /// If the file is missing, or the file system cannot tell.
    pub(crate) fn of(&self, path: &Path) -> io::Result<u64> {
        let meta = std::fs::metadata(path)?;
        // A file whose size and time of writing were restored has another time of change.
        let kept = [meta.ino() as i64, meta.ctime(), meta.ctime_nsec()];
        let kept = if self.keeps_inodes(path, &meta) {
            kept
        } else {
            [0; 3]
        };
        let parts = [meta.size() as i64, meta.mtime(), meta.mtime_nsec()];
        let bytes: Vec<u8> = parts
            .iter()
            .chain(&kept)
            .flat_map(|part| part.to_le_bytes())
            .collect();
        Ok(xxh3_64(&bytes).max(1))
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
