//! The file format of an index.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `coprepTI` |
//! | 8..12 | version of the format, little-endian |
//! | 12..16 | zero |
//! | 16..24 | bytes of the rest of the file |
//! | 24..32 | XXH3 of the rest of the file |
//! | 32.. | an rkyv archive of [`ShardIndex`] |
//!
//! rkyv is what messages and caches use here already.
//!
//! **Invariant.** A file is not trusted: its length and checksum are compared before the archive is validated, and the
//! content must be consistent and lie within the shard.

use rkyv::rancor;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::samples::SampleTable;

const MAGIC: &[u8; 8] = b"coprepTI";
const VERSION: u32 = 4;
const HEADER: usize = 32;

/// The identity of a shard's content, as its store or file system gives it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardIdentity {
    /// Path or URL.
    pub(crate) shard: String,
    pub(crate) size: u64,
    /// ETag, or the time of the last change of a local file. Empty if the server gives none.
    pub(crate) etag: String,
}

/// The samples of one shard.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardIndex {
    pub(crate) identity: ShardIdentity,
    /// The parts of samples that the table is about.
    pub(crate) parts: String,
    pub(crate) samples: SampleTable,
}

impl ShardIndex {
    /// Returns the content of an index file.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let archive = rkyv::to_bytes::<rancor::Error>(self).map_err(|e| e.to_string())?;
        let mut bytes = Vec::with_capacity(HEADER + archive.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(archive.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&archive).to_le_bytes());
        bytes.extend_from_slice(&archive);
        Ok(bytes)
    }

    /// Reads an index file. Returns `None` if it is damaged or of another version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ShardIndex> {
        let (header, archive) = bytes.split_at_checked(HEADER)?;
        let number = |at: usize| -> Option<u64> {
            let bytes = header.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let is_whole = header.starts_with(MAGIC)
            // The number covers the four bytes behind the version too, which are zero.
            && number(8)? == u64::from(VERSION)
            && number(16)? == archive.len() as u64
            && number(24)? == xxh3_64(archive);
        if !is_whole {
            return None;
        }
        // rkyv reads aligned memory only.
        let mut aligned = AlignedVec::<16>::with_capacity(archive.len());
        aligned.extend_from_slice(archive);
        rkyv::from_bytes::<ShardIndex, rancor::Error>(&aligned).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> ShardIndex {
        ShardIndex {
            identity: ShardIdentity {
                shard: "s3://b/x.tar".into(),
                size: 10_240,
                etag: "\"e\"".into(),
            },
            parts: "jpg cls".into(),
            samples: SampleTable {
                names: "a.jpgb.jpg".into(),
                name_ends: vec![5, 10],
                at: vec![512, 2048],
                lengths: vec![7, 9],
                labels: vec![1, 2],
                checksums: vec![3, 4],
                last_header: 5,
                left_out: 6,
                first_left_out: "a has no image".into(),
            },
        }
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let bytes = index().to_bytes().expect("it is written");
        assert_eq!(ShardIndex::from_bytes(&bytes), Some(index()));
    }

    #[test]
    fn samples_lie_one_behind_the_other() {
        let is_sound = |at: [u64; 2], lengths: [u32; 2]| {
            let mut samples = index().samples;
            (samples.at, samples.lengths) = (at.to_vec(), lengths.to_vec());
            samples.is_sound(10_240, true)
        };
        assert!(is_sound([512, 519], [7, 9]) && is_sound([512, 512], [0, 9]));
        for (at, lengths) in [
            ([512, 518], [7, 9]),
            ([512, 512], [7, 9]),
            ([2048, 512], [9, 7]),
            ([2048, 512], [0, 0]),
            ([u64::MAX, 512], [9, 7]),
            ([512, 10_240], [7, 1]),
        ] {
            assert!(!is_sound(at, lengths), "{at:?} {lengths:?}");
        }
    }

    #[test]
    fn every_damaged_byte_and_every_cut_is_noticed() {
        let bytes = index().to_bytes().expect("it is written");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(ShardIndex::from_bytes(&damaged), None, "byte {at}");
            assert_eq!(ShardIndex::from_bytes(&bytes[..at]), None, "cut at {at}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_no_index(bytes in proptest::collection::vec(0u8.., 0..200)) {
            // With a right checksum, so that the archive itself is looked at.
            let mut file = MAGIC.to_vec();
            file.extend_from_slice(&u64::from(VERSION).to_le_bytes());
            file.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            file.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
            file.extend_from_slice(&bytes);
            if let Some(index) = ShardIndex::from_bytes(&file) {
                // Whatever it says, it must not be taken for a table that can be read from.
                let _ = index.samples.is_sound(index.identity.size, true);
            }
        }
    }
}
