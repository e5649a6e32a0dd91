//! The description of a sample's bytes.

use rkyv::{Archive, Deserialize, Serialize};

/// Degree of preparation of a sample in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Archive, Serialize, Deserialize)]
#[repr(u8)]
pub enum Form {
    /// As fetched from storage.
    Encoded = 0,
    /// After decoding and the deterministic operators.
    Decoded = 1,
    /// After all operators, as it lies in a staging buffer.
    Prepared = 2,
}

impl Form {
    /// Number of forms.
    pub const COUNT: usize = 3;
}

/// Description of a sample's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Degree of preparation.
    pub form: Form,
    /// Width in pixels. Only the caller uses it.
    pub width: u32,
    /// Height in pixels. Only the caller uses it.
    pub height: u32,
    /// Version of the file that the sample was made from, or 0 if it has none. Only the caller uses it.
    pub version: u64,
}

impl Meta {
    /// Describes a sample that is not an image.
    #[must_use]
    pub const fn of(form: Form) -> Self {
        Meta {
            form,
            width: 0,
            height: 0,
            version: 0,
        }
    }
}
