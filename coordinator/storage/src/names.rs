//! Names of objects, by number: paths below a local folder, or keys of a store.
//!
//! Objects of one folder follow each other, so each folder lies once, and of each object only the name within its
//! folder. Without folders in common, a name takes 12 bytes more than its length.

use xxhash_rust::xxh3::Xxh3;

/// Number of names that have one base, from which their ends count in 32 bits.
const BLOCK: usize = 1 << 16;

/// A list of names; see the module.
#[derive(Default)]
pub(crate) struct Names {
    folders: Vec<Folder>,
    /// The folders, one after another, each with a slash at its end.
    folder_text: Vec<u8>,
    /// The names within the folders, one after another.
    text: Vec<u8>,
    /// The start of each block of names within `text`.
    bases: Vec<u64>,
    /// The end of each name, counted from the start of its block.
    ends: Vec<u32>,
}

/// A folder, up to the next one in the list.
struct Folder {
    /// Number of its first object.
    first: u32,
    /// End of its text.
    end: u64,
}

impl Names {
    /// Adds a name, which is made of `parts`.
    pub(crate) fn push(&mut self, parts: &[&[u8]]) {
        let name = parts.concat();
        let slash = name.iter().rposition(|&byte| byte == b'/');
        let (folder, rest) = name.split_at(slash.map_or(0, |at| at + 1));
        let is_same = match self.folders.len().checked_sub(1) {
            None => folder.is_empty(),
            Some(last) => self.folder_at(last) == folder,
        };
        if !is_same {
            self.folder_text.extend_from_slice(folder);
            self.folders.push(Folder {
                first: self.ends.len() as u32,
                end: self.folder_text.len() as u64,
            });
        }
        if self.ends.len().is_multiple_of(BLOCK) {
            self.bases.push(self.text.len() as u64);
        }
        self.text.extend_from_slice(rest);
        let base = self.bases.last().copied().unwrap_or_default();
        // A name has at most some KiB, so a block of them has less than 4 GiB.
        self.ends.push((self.text.len() as u64 - base) as u32);
    }

    /// Gives spare memory back, when the list is final.
    pub(crate) fn shrink(&mut self) {
        self.folders.shrink_to_fit();
        self.folder_text.shrink_to_fit();
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Returns the bytes of memory that the names take.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.folders.capacity() * size_of::<Folder>()
            + self.folder_text.capacity()
            + self.text.capacity()
            + self.bases.capacity() * size_of::<u64>()
            + self.ends.capacity() * size_of::<u32>()
    }

    pub(crate) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    fn folder_at(&self, position: usize) -> &[u8] {
        let start = position
            .checked_sub(1)
            .map_or(0, |before| self.folders[before].end);
        &self.folder_text[start as usize..self.folders[position].end as usize]
    }

    /// Returns the folder of an object with a slash at its end, or an empty text, and the name within the folder.
    fn parts(&self, object: u32) -> [&[u8]; 2] {
        let after = self
            .folders
            .partition_point(|folder| folder.first <= object);
        let folder = after.checked_sub(1).map(|at| self.folder_at(at));
        let object = object as usize;
        let base = self.bases[object / BLOCK];
        let start = if object.is_multiple_of(BLOCK) {
            0
        } else {
            self.ends[object - 1]
        };
        let text = base + u64::from(start)..base + u64::from(self.ends[object]);
        [
            folder.unwrap_or_default(),
            &self.text[text.start as usize..text.end as usize],
        ]
    }

    /// Returns a name.
    ///
    /// # Panics
    /// If `object` is not below [`Names::len`].
    pub(crate) fn get(&self, object: u32) -> Vec<u8> {
        self.parts(object).concat()
    }

    /// Adds all names to a hash, and where each of them ends.
    pub(crate) fn identify(&self, hash: &mut Xxh3) {
        let all = || (0..self.len()).map(|object| self.parts(object));
        all().for_each(|[folder, name]| {
            hash.update(folder);
            hash.update(name);
        });
        let mut end = 0;
        for [folder, name] in all() {
            end += (folder.len() + name.len()) as u64;
            hash.update(&end.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_were_pushed_with_folders_or_without() {
        let pushed = ["x", "a/1", "a/2", "a/b/1", "a/3", "/abs/1", "", "y", "/"];
        let mut names = Names::default();
        pushed
            .iter()
            .for_each(|name| names.push(&[name.as_bytes()]));
        names.shrink();
        assert_eq!(names.len(), pushed.len() as u32);
        for (object, name) in pushed.iter().enumerate() {
            assert_eq!(names.get(object as u32), name.as_bytes());
        }
    }

    #[test]
    fn names_beyond_a_block_are_found() {
        let mut names = Names::default();
        let name = |i: usize| format!("folder{}/{i}", i / 40_000);
        let all = 2 * BLOCK + 3;
        (0..all).for_each(|i| names.push(&[name(i).as_bytes()]));
        for i in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, all - 1] {
            assert_eq!(names.get(i as u32), name(i).as_bytes());
        }
    }

    #[test]
    fn the_identity_is_that_of_all_names_and_of_their_borders() {
        let identity = |pushed: &[&str]| {
            let mut names = Names::default();
            pushed
                .iter()
                .for_each(|name| names.push(&[name.as_bytes()]));
            let mut hash = Xxh3::new();
            names.identify(&mut hash);
            hash.digest128()
        };
        let mut whole = Xxh3::new();
        whole.update(b"a/1a/2b");
        [3u64, 6, 7]
            .iter()
            .for_each(|end| whole.update(&end.to_le_bytes()));
        assert_eq!(identity(&["a/1", "a/2", "b"]), whole.digest128());
        assert_ne!(identity(&["a/1", "a/2b"]), identity(&["a/1a", "/2b"]));
    }
}
