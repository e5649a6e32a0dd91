//! Marks of threads that read from storage.
//!
//! A read may be part of a sample's preparation. Then only the mark tells a thread that waits for storage from one that
//! decodes.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// The mark of this thread, if it belongs to a pool.
    static MARK: OnceCell<ReadMark> = const { OnceCell::new() };
}

/// Tells whether a thread is reading.
#[derive(Clone, Default)]
pub(super) struct ReadMark(Arc<AtomicBool>);

impl ReadMark {
    /// Makes this the mark of the calling thread.
    pub(super) fn adopt(self) {
        // A thread has one pool, so it adopts a mark once.
        let _ = MARK.with(|mark| mark.set(self));
    }

    pub(super) fn is_reading(&self) -> bool {
        // Relaxed, because the mark protects nothing: an old value is corrected when the pool is next maintained.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, is_reading: bool) {
        self.0.store(is_reading, Ordering::Relaxed);
    }
}

/// Runs `read` with the mark of the calling thread set.
pub(crate) fn marked<T>(read: impl FnOnce() -> T) -> T {
    let _unmark = Unmark;
    set(true);
    read()
}

/// Clears the mark, also if a read panics.
struct Unmark;

impl Drop for Unmark {
    fn drop(&mut self) {
        set(false);
    }
}

fn set(is_reading: bool) {
    MARK.with(|mark| {
        // A thread without a pool has no mark.
        if let Some(mark) = mark.get() {
            mark.set(is_reading);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_marked_while_it_reads_and_not_after_a_panic() {
        let mark = ReadMark::default();
        let of_thread = mark.clone();
        let read = std::thread::spawn(move || {
            of_thread.clone().adopt();
            assert!(marked(|| of_thread.is_reading()));
            marked(|| std::panic::resume_unwind(Box::new("a panic")))
        });
        assert!(read.join().is_err());
        assert!(!mark.is_reading());
    }
}
