//! A bound on the memory of large reads while datasets are opened.
//!
//! Many shards are indexed at once, because most of the time goes by until the store answers. Those that are read through
//! need a buffer of megabytes each.

use std::sync::{Condvar, Mutex};

use coprep_shared_memory::lock::{lock, unpoisoned};

/// Number of large reads at a time, which together take 256 MiB.
const AT_ONCE: u32 = 32;
/// Bytes of one. It takes most of its time for the bytes, and not for the answer to begin.
const BYTES: u64 = 8 << 20;

/// The large reads of a process; see the module.
pub struct LargeReads {
    free: Mutex<u32>,
    ended: Condvar,
}

impl Default for LargeReads {
    fn default() -> Self {
        LargeReads {
            free: Mutex::new(AT_ONCE),
            ended: Condvar::new(),
        }
    }
}

/// The right to have one large buffer, until it is dropped.
pub struct LargeRead<'a>(&'a LargeReads);

impl LargeReads {
    /// Most bytes of a large read.
    pub const MOST_BYTES: u64 = BYTES;

    /// Waits until there is memory for a large read. Whoever has one must not ask for another.
    pub fn begin(&self) -> LargeRead<'_> {
        let mut free = lock(&self.free);
        while *free == 0 {
            free = unpoisoned(self.ended.wait(free));
        }
        *free -= 1;
        LargeRead(self)
    }
}

impl Drop for LargeRead<'_> {
    fn drop(&mut self) {
        *lock(&self.0.free) += 1;
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn no_more_large_reads_are_under_way_than_memory_allows() {
        let (reads, now, most) = (LargeReads::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 * AT_ONCE {
                scope.spawn(|| {
                    let _read = reads.begin();
                    most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    std::thread::yield_now();
                    now.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        assert!((1..=AT_ONCE).contains(&most.into_inner()));
        assert_eq!(*lock(&reads.free), AT_ONCE);
    }
}
