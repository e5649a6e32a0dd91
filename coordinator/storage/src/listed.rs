//! Sizes and ETags from the listing of a store, in 20 bytes an object.
//!
//! A dataset may have a hundred million objects, so rare values lie apart: sizes of 4 GiB and more, which no sample has,
//! and ETags that are not 32 hexadecimal digits, such as those of uploads in several parts. An ETag that many objects in a
//! row have, as in a commit of the Hugging Face Hub, lies apart once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

/// Stands for a size that is not known.
const UNKNOWN: u32 = u32::MAX;
/// Stands for a size that lies in [`Listed::large`].
const LARGE: u32 = u32::MAX - 1;
/// Stands for an ETag that lies in [`Listed::other_etags`], or for none. No MD5 sum is known that is all zero.
const OTHER: [u8; 16] = [0; 16];
/// Stands for the ETag that lies in [`Listed::other_etags`] for an object before it.
const SAME: [u8; 16] = [0xff; 16];

/// Sizes and ETags of objects, by their numbers. Empty if all objects are local and read as a whole.
#[derive(Default)]
pub(crate) struct Listed {
    sizes: Vec<u32>,
    large: BTreeMap<u32, u64>,
    etags: Vec<[u8; 16]>,
    other_etags: BTreeMap<u32, Box<str>>,
}

impl Listed {
    /// Adds an object, which is number `object`.
    pub(crate) fn push(&mut self, object: u32, size: Option<u64>, etag: Option<&str>) {
        // Local objects before it have no entries yet.
        self.sizes.resize(object as usize, UNKNOWN);
        self.etags.resize(object as usize, OTHER);
        let short = size.map_or(UNKNOWN, |size| u32::try_from(size).unwrap_or(LARGE));
        match size {
            Some(size) if short >= LARGE => {
                self.large.insert(object, size);
                self.sizes.push(LARGE);
            }
            _ => self.sizes.push(short),
        }
        let packed = etag.map(|etag| packed(etag).unwrap_or_else(|| self.keep_apart(object, etag)));
        self.etags.push(packed.unwrap_or(OTHER));
    }

    /// Keeps an ETag apart. Returns what stands for it.
    fn keep_apart(&mut self, object: u32, etag: &str) -> [u8; 16] {
        let last = self.other_etags.last_key_value();
        if last.is_some_and(|(_, last)| **last == *etag) {
            return SAME;
        }
        self.other_etags.insert(object, etag.into());
        OTHER
    }

    /// Gives spare memory back, when the list is final.
    pub(crate) fn shrink(&mut self) {
        self.sizes.shrink_to_fit();
        self.etags.shrink_to_fit();
    }

    /// Returns the bytes of memory that sizes and ETags take. Of a map, only its entries count.
    pub(crate) fn memory_bytes(&self) -> usize {
        let others = self.other_etags.values();
        self.sizes.capacity() * size_of::<u32>()
            + self.etags.capacity() * size_of::<[u8; 16]>()
            + self.large.len() * size_of::<(u32, u64)>()
            + others
                .map(|etag| etag.len() + size_of::<(u32, Box<str>)>())
                .sum::<usize>()
    }

    /// Returns the size of an object, or `None` if no listing told it.
    pub(crate) fn size(&self, object: u32) -> Option<u64> {
        match *self.sizes.get(object as usize)? {
            UNKNOWN => None,
            LARGE => self.large.get(&object).copied(),
            size => Some(size.into()),
        }
    }

    /// Returns the ETag of an object as its store gave it, or `None` if it has none.
    pub(crate) fn etag(&self, object: u32) -> Option<Cow<'_, str>> {
        match self.etags.get(object as usize)? {
            &OTHER => self.other_etags.get(&object).map(|etag| (&**etag).into()),
            &SAME => {
                let before = self.other_etags.range(..object).next_back();
                before.map(|(_, etag)| (&**etag).into())
            }
            packed => Some(unpacked(packed).into()),
        }
    }

    /// Adds everything to a hash: all sizes, all ETags, and where each of them ends.
    pub(crate) fn identify(&self, hash: &mut Xxh3) {
        let objects = self.sizes.len() as u32;
        for object in 0..objects {
            hash.update(&self.size(object).unwrap_or(u64::MAX).to_le_bytes());
        }
        let etags = || (0..objects).map(|object| self.etag(object).unwrap_or_default());
        etags().for_each(|etag| hash.update(etag.as_bytes()));
        let mut end = 0;
        for etag in etags() {
            end += etag.len() as u64;
            hash.update(&end.to_le_bytes());
        }
    }
}

/// Returns the bytes of an ETag that is an MD5 sum: 32 lower-case hexadecimal digits in quotes.
fn packed(etag: &str) -> Option<[u8; 16]> {
    let digits = etag.strip_prefix('"')?.strip_suffix('"')?;
    let is_sum = digits.len() == 32
        && digits
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_sum)?;
    Some(number.to_be_bytes()).filter(|bytes| ![OTHER, SAME].contains(bytes))
}

fn unpacked(bytes: &[u8; 16]) -> String {
    format!("\"{:032x}\"", u128::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "\"0f2c6a7b8c9d0e1f2a3b4c5d6e7f8091\"";

    #[test]
    fn sizes_and_etags_are_those_of_the_listing_however_rare() {
        let (zero, ones) = (format!("\"{:032}\"", 0), format!("\"{:032x}\"", u128::MAX));
        let etags = [
            Some(SUM),
            Some("\"0f2c6a7b8c9d0e1f2a3b4c5d6e7f8091-12\""),
            Some("\"0F2C6A7B8C9D0E1F2A3B4C5D6E7F8091\""),
            Some("W/\"weak\""),
            Some(&*zero),
            Some(&*ones),
            Some(&*ones),
            Some("0x8DC7"),
            None,
            Some("0x8DC7"),
        ];
        let sizes = [
            0,
            1,
            4_294_967_293,
            4_294_967_294,
            4_294_967_295,
            1 << 40,
            2,
            3,
            4,
        ];
        let mut listed = Listed::default();
        // Local objects come first.
        let entries = || {
            (3u32..).zip(
                etags
                    .iter()
                    .zip(sizes.iter().map(|&s| Some(s)).chain([None])),
            )
        };
        for (object, (etag, size)) in entries() {
            listed.push(object, size, *etag);
        }
        for (object, (etag, size)) in entries() {
            assert_eq!(listed.size(object), size);
            assert_eq!(listed.etag(object).as_deref(), *etag);
        }
        assert_eq!((listed.size(0), listed.etag(0)), (None, None));
        assert_eq!((listed.size(99), listed.etag(99)), (None, None));
        let etags_apart = listed.other_etags.len();
        listed.push(99, Some(1), Some("0x8DC7"));
        assert_eq!(listed.other_etags.len(), etags_apart);
    }

    #[test]
    fn each_size_and_each_etag_is_part_of_the_identity() {
        let identity = |size: u64, etag: &str| {
            let mut listed = Listed::default();
            listed.push(0, Some(size), Some(etag));
            let mut hash = Xxh3::new();
            listed.identify(&mut hash);
            hash.digest128()
        };
        let one = identity(1, SUM);
        assert_ne!(one, identity(2, SUM));
        assert_ne!(one, identity(1, "\"other\""));
        assert_eq!(one, identity(1, SUM));
    }
}
