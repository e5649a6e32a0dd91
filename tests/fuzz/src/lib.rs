//! Helpers that the fuzz targets share.

use std::path::Path;

/// Writes first inputs into the corpus, the folder among the fuzzer's arguments. The code under test makes them, so
/// they have its present formats.
pub fn seed(inputs: &[Vec<u8>]) {
    let folder = std::env::args()
        .skip(1)
        .find(|argument| Path::new(argument).is_dir());
    let Some(folder) = folder else { return };
    for (number, input) in inputs.iter().enumerate() {
        let path = Path::new(&folder).join(format!("seed-{number}"));
        std::fs::write(path, input).expect("the corpus can be written");
    }
}

/// An input that is read piece by piece, and gives zeros once it is used up.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Returns the next `count` bytes, or fewer if the input ends before.
    pub fn some(&mut self, count: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(count.min(self.0.len()));
        self.0 = tail;
        head
    }

    /// Returns the next `N` bytes.
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let some = self.some(N);
        taken[..some.len()].copy_from_slice(some);
        taken
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    /// Returns the number in the next two bytes.
    pub fn small(&mut self) -> u64 {
        u16::from_le_bytes(self.take()).into()
    }
}
