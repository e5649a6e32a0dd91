//! Samples that are parts of files, all of one length. Their places are computed, so they take no memory each.

use coprep_storage::Extent;
use xxhash_rust::xxh3::Xxh3;

/// Windows, by the ids of their samples. Ids follow (file, position).
#[derive(Debug)]
pub(super) struct Windows {
    /// Bytes of a window.
    length: u32,
    /// Bytes from the beginning of one window to the next.
    stride: u64,
    files: Vec<WindowFile>,
    /// Number of all windows.
    samples: u64,
}

/// The windows of one file.
#[derive(Debug)]
struct WindowFile {
    /// Number of windows in the files before.
    before: u64,
    /// Offset of the first window.
    first: u64,
    /// Offset of the last window, which may be less than a stride behind the one before.
    last: u64,
}

impl Windows {
    pub(super) fn new(length: u32, stride: u64) -> Self {
        Windows {
            length,
            stride,
            files: Vec::new(),
            samples: 0,
        }
    }

    /// Adds the next file, with `count` windows.
    pub(super) fn push(&mut self, first: u64, last: u64, count: u64) {
        self.files.push(WindowFile {
            before: self.samples,
            first,
            last,
        });
        self.samples += count;
    }

    /// Returns the number of windows.
    pub(super) fn len(&self) -> u64 {
        self.samples
    }

    /// Returns the bytes of each window.
    pub(super) fn length(&self) -> u64 {
        self.length.into()
    }

    /// Returns the bytes of a sample.
    ///
    /// # Panics
    /// If `id` is not below [`Windows::len`].
    pub(super) fn extent(&self, id: u32) -> Extent {
        let id = u64::from(id);
        assert!(id < self.samples, "window {id} of {}", self.samples);
        let after = self.files.partition_point(|file| file.before <= id);
        let object = after - 1;
        let file = &self.files[object];
        let at = file.first + (id - file.before) * self.stride;
        Extent {
            object: object as u32,
            at: at.min(file.last),
            len: Some(self.length),
        }
    }

    /// Returns the name of a sample within its file.
    pub(super) fn name(&self, id: u32) -> String {
        let at = self.extent(id).at;
        format!("bytes{}-{}", at, at + u64::from(self.length))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.files.capacity() * size_of::<WindowFile>()
    }

    /// Adds the identity of all places to a hash.
    pub(super) fn identify(&self, hash: &mut Xxh3) {
        hash.update(&self.length.to_le_bytes());
        hash.update(&self.stride.to_le_bytes());
        for WindowFile {
            before,
            first,
            last,
        } in &self.files
        {
            [before, first, last]
                .into_iter()
                .for_each(|number| hash.update(&number.to_le_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_files_and_the_last_window_ends_with_its_file() {
        let mut windows = Windows::new(6, 4);
        // Windows at 8, 12 and 14; and one at 0.
        windows.push(8, 14, 3);
        windows.push(0, 0, 1);
        let places: Vec<(u32, u64)> = (0..4)
            .map(|id| windows.extent(id))
            .map(|extent| (extent.object, extent.at))
            .collect();
        assert_eq!(places, [(0, 8), (0, 12), (0, 14), (1, 0)]);
        assert_eq!(windows.name(2), "bytes14-20");
    }
}
