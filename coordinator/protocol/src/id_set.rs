//! Sets of ids in messages, in Roaring's own format.

use std::io;

use roaring::RoaringBitmap;

/// Returns the bytes of a set.
#[must_use]
pub fn serialize(set: &RoaringBitmap) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(set.serialized_size());
    // Writing to memory cannot fail.
    let _ = set.serialize_into(&mut bytes);
    bytes
}

/// Reads a set. The bytes are checked while they are read.
///
/// # Errors
/// If they are no set.
pub fn deserialize(bytes: &[u8]) -> io::Result<RoaringBitmap> {
    RoaringBitmap::deserialize_from(bytes)
}
