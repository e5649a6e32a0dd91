//! Fields and sizes of the samples of user code.

use coprep_protocol::code::{self, Probed};
use coprep_protocol::spec::{BLOB, Dtype, Field, SPARE};

use crate::Result;
use crate::error::code_failed;

/// Factor by which the room for a blob in a slot exceeds the bytes of a typical blob.
const BLOB_MARGIN: u64 = 2;
/// Least room for a blob. If the blob is too large for the slot, this room says where the blob lies.
const LEAST_BLOB: u64 = 64;

/// Fields and sizes of the samples of a dataset.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleShape {
    /// Fields, the blob among them, without the index.
    pub(crate) fields: Vec<Field>,
    /// Bytes that the parts without a fixed size take in most samples.
    typical_blob: u64,
    /// Bytes of the packed deterministic part.
    pub(crate) kept: u64,
    /// Instructions for making batches of the fields, for the job.
    pub(crate) structure: Vec<u8>,
    /// `true` if the dataset can be asked for the samples of a minibatch together.
    pub(crate) at_once: bool,
}

impl SampleShape {
    /// Returns the shape that a worker found. `most_blob` is the largest room that a slot may have for a blob.
    pub(super) fn of(probed: Probed, most_blob: u64) -> Result<Self> {
        let field = |(name, dtype, shape): (String, String, Vec<u32>)| {
            let dtype = Dtype::of_name(&dtype)
                .ok_or_else(|| code_failed(format!("a field of the unknown type {dtype}")))?;
            Ok(Field { name, dtype, shape })
        };
        let mut fields = probed
            .fields
            .into_iter()
            .map(field)
            .collect::<Result<Vec<_>>>()?;
        let (name, room) = match probed.blob {
            0 => (SPARE, LEAST_BLOB as u32),
            typical => (BLOB, blob_room(typical, most_blob)),
        };
        fields.push(Field {
            name: name.into(),
            dtype: Dtype::U8,
            shape: vec![room],
        });
        Ok(SampleShape {
            fields,
            typical_blob: probed.blob,
            kept: probed.kept,
            at_once: probed.at_once,
            structure: code::unhex(&probed.structure).map_err(code_failed)?,
        })
    }

    /// Returns the room in a slot for the parts of a sample that have no fixed size.
    pub(super) fn blob(&self) -> u64 {
        let blob = self.fields.iter().find(|f| f.may_be_large());
        blob.map_or(0, |f| f.sample_bytes() as u64)
    }

    /// Returns `true` if samples have parts without a fixed size.
    pub(crate) fn is_uneven(&self) -> bool {
        self.typical_blob > 0
    }

    /// Returns the bytes of a sample in a slot that are the same for all samples.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let fixed = self.fields.iter().filter(|f| !f.may_be_large());
        fixed.map(|f| f.sample_bytes() as u64).sum()
    }

    /// Returns the bytes that most samples take in the cache in their prepared form.
    pub(crate) fn prepared_bytes(&self) -> u64 {
        let blob = if self.is_uneven() {
            self.typical_blob.max(self.blob())
        } else {
            0
        };
        self.fixed_bytes() + blob
    }
}

/// Returns the room that slots have for blobs, most of which take `typical` bytes. If that is more than a slot may
/// have, all blobs lie elsewhere, and room for them in slots would be of no use.
fn blob_room(typical: u64, most: u64) -> u32 {
    let most = most.min(u64::from(u32::MAX / 2));
    let room = if typical > most {
        0
    } else {
        typical.saturating_mul(BLOB_MARGIN).min(most)
    };
    room.max(LEAST_BLOB).next_multiple_of(LEAST_BLOB) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_room_for_most_blobs_or_for_none() {
        let rooms = [1, 100, 3000, 5000, 6001, u64::MAX].map(|typical| blob_room(typical, 6000));
        assert_eq!(rooms, [64, 256, 6016, 6016, 64, 64]);
    }
}
