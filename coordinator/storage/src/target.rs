//! Where the bytes of a read go.

/// Memory that a read fills. The bytes are read into memory of the read's own, because it runs on another thread, and
/// then moved or copied.
#[derive(Debug)]
pub(crate) enum ReadTarget<'a> {
    /// Memory of exactly the length to read, to which the bytes are copied.
    Exact(&'a mut [u8]),
    /// Memory that is lent to the read, and so takes the bytes without a copy. The length is `None` if the answer tells it.
    Lent(&'a mut Vec<u8>, Option<u64>),
}

impl<'a> ReadTarget<'a> {
    /// Returns memory for a read whose answer tells the length.
    pub(crate) fn growing(memory: &'a mut Vec<u8>) -> Self {
        ReadTarget::Lent(memory, None)
    }

    /// Returns the length that a read must have, or `None` if any will do.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            ReadTarget::Exact(buffer) => Some(buffer.len() as u64),
            ReadTarget::Lent(_, length) => *length,
        }
    }

    /// Returns memory for the read.
    pub(crate) fn lend(&mut self) -> Vec<u8> {
        match self {
            ReadTarget::Exact(_) => Vec::new(),
            ReadTarget::Lent(memory, _) => std::mem::take(*memory),
        }
    }

    /// Takes the bytes of a read, which have the right [length](Self::length).
    pub(crate) fn fill(&mut self, bytes: Vec<u8>) {
        match self {
            ReadTarget::Exact(buffer) => buffer.copy_from_slice(&bytes),
            ReadTarget::Lent(memory, _) => **memory = bytes,
        }
    }
}
