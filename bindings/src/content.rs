//! Digests of the contents of arrays, which may be larger than any other part of a dataset.
#![expect(
    unsafe_code,
    reason = "reads the memory of an array, which is known by its address"
)]

use std::sync::Mutex;
use std::thread;

use coprep_shared_memory::lock::lock;
use pyo3::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

/// More threads than this read memory no faster.
const MOST_THREADS: usize = 8;

/// Returns the digest of `length` bytes at `address`, which belong to an array that the caller holds. If there are more
/// than `chunk` bytes, it is the digest of the digests of their chunks, which several threads make.
///
/// The digest does not withstand attacks, and need not: whoever could make two arrays alike is the user whose jobs would
/// share them.
#[pyfunction]
pub(crate) fn content_digest(
    py: Python<'_>,
    address: usize,
    length: usize,
    chunk: usize,
) -> [u8; 16] {
    if length == 0 {
        return digest(&[], chunk);
    }
    // SAFETY: the caller gives the address and the length of a contiguous array, and keeps it while this runs. If another
    // thread writes to it meanwhile, the digest is of no use, as that of any such array.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, length) };
    py.detach(|| digest(bytes, chunk))
}

fn digest(bytes: &[u8], chunk: usize) -> [u8; 16] {
    if bytes.len() <= chunk {
        return xxh3_128(bytes).to_le_bytes();
    }
    let chunk = chunk.max(1);
    let mut digests = vec![[0; 16]; bytes.len().div_ceil(chunk)];
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS));
    let left = Mutex::new(bytes.chunks(chunk).zip(&mut digests));
    let next = || lock(&left).next();
    let work = || {
        while let Some((chunk, digest)) = next() {
            *digest = xxh3_128(chunk).to_le_bytes();
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread this one does all.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    xxh3_128(digests.as_flattened()).to_le_bytes()
}
