//! The files that user code opened while it made a value. The worker lists them behind the value in the cache.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use coprep_storage::{FileStat, FileVersions};

/// Ends the list. The bytes of all entries come before it.
const MAGIC: &[u8; 8] = b"CPRPopen";

/// Returns `true` if a file of which a cached value was made is another one by now, or is gone. Returns `None` if the
/// file system cannot tell.
pub(super) fn have_changed(value: &[u8], versions: &FileVersions) -> Option<bool> {
    let mut rest = entries(value);
    let mut changed = Some(false);
    while let Some((path, before, behind)) = entry(rest) {
        rest = behind;
        match versions.has_changed(path, before) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => changed = None,
        }
    }
    changed
}

/// Returns the bytes of the entries. A list that a worker has written is not trusted: without a valid end it has none.
fn entries(value: &[u8]) -> &[u8] {
    let list = value.strip_suffix(MAGIC).and_then(|value| {
        let (value, length) = value.split_last_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        value.get(value.len().checked_sub(length)?..)
    });
    list.unwrap_or_default()
}

/// Returns the first entry and what follows it.
fn entry(bytes: &[u8]) -> Option<(&Path, FileStat, &[u8])> {
    let (numbers, rest) = bytes.split_at_checked(4 * size_of::<i64>())?;
    let (numbers, _) = numbers.as_chunks();
    let [size, written_ns, changed_ns, inode] =
        [0, 1, 2, 3].map(|n| i64::from_le_bytes(numbers[n]));
    let (length, rest) = rest.split_first_chunk()?;
    let (path, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let stat = FileStat {
        size,
        written_ns,
        changed_ns,
        inode,
    };
    Some((Path::new(OsStr::from_bytes(path)), stat, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[u8], length: u64) -> Vec<u8> {
        [b"value", entries, &length.to_le_bytes(), MAGIC].concat()
    }

    #[test]
    fn a_value_without_a_valid_list_has_no_files() {
        let versions = FileVersions::default();
        let cut = &[1; 40][..];
        let values = [
            Vec::new(),
            b"value".to_vec(),
            MAGIC.to_vec(),
            list(&[], 0),
            list(&[], 6),
            list(&[], u64::MAX),
            list(cut, 40),
            list(cut, 7),
        ];
        for value in values {
            assert_eq!(have_changed(&value, &versions), Some(false), "{value:?}");
        }
    }

    #[test]
    fn a_file_that_is_gone_has_changed() {
        let path = b"/no/such/file";
        let entry = [&[0; 32], &(path.len() as u32).to_le_bytes()[..], path].concat();
        let value = list(&entry, entry.len() as u64);
        assert_eq!(have_changed(&value, &FileVersions::default()), Some(true));
    }
}
