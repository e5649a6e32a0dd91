//! What the fuzz targets have in common.

use std::path::Path;

/// Puts inputs to begin with into the corpus, the folder that the fuzzer is called with. They are made by the
/// code under test, so they are of its present formats.
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

/// Reads an input piece by piece; zeros once it is used up.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next ones, as many as there are up to `count`.
    pub fn some(&mut self, count: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(count.min(self.0.len()));
        self.0 = tail;
        head
    }

    /// The next `N`.
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let some = self.some(N);
        taken[..some.len()].copy_from_slice(some);
        taken
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    /// Two bytes.
    pub fn small(&mut self) -> u64 {
        u16::from_le_bytes(self.take()).into()
    }
}
