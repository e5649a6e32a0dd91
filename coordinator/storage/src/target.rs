//! Where the bytes of a read go.

/// Memory that a read fills: a buffer of exactly the length to read, or one that grows.
#[derive(Debug)]
pub(crate) enum ReadTarget<'a> {
    Exact { buffer: &'a mut [u8], filled: usize },
    Growing(&'a mut Vec<u8>),
}

impl<'a> ReadTarget<'a> {
    pub(crate) fn exact(buffer: &'a mut [u8]) -> Self {
        ReadTarget::Exact { buffer, filled: 0 }
    }

    /// Forgets everything that was read, and prepares for `length` bytes. Returns `false` if there is no room for them.
    pub(crate) fn restart(&mut self, length: u64) -> bool {
        match self {
            ReadTarget::Exact { buffer, filled } => {
                *filled = 0;
                buffer.len() as u64 == length
            }
            ReadTarget::Growing(buffer) => {
                buffer.clear();
                buffer.reserve(length as usize);
                true
            }
        }
    }

    /// Adds bytes. Returns `false` if there is no room for them.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        match self {
            ReadTarget::Exact { buffer, filled } => {
                let Some(room) = buffer.get_mut(*filled..*filled + bytes.len()) else {
                    return false;
                };
                room.copy_from_slice(bytes);
                *filled += bytes.len();
                true
            }
            ReadTarget::Growing(buffer) => {
                buffer.extend_from_slice(bytes);
                true
            }
        }
    }

    /// Returns the number of bytes that were read.
    pub(crate) fn filled(&self) -> u64 {
        match self {
            ReadTarget::Exact { filled, .. } => *filled as u64,
            ReadTarget::Growing(buffer) => buffer.len() as u64,
        }
    }
}
