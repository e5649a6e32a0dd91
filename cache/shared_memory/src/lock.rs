//! Locks of one process, taken whatever their poison state. No lock lies in shared memory.
//!
//! A thread that panics while it holds a lock poisons it. The state behind the locks of this crate and of the sample
//! cache is consistent at every point where a thread could panic, so the other threads go on with it.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Returns the guard of a lock, or of a wait for a condition, poisoned or not.
pub fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_holder_keeps_nobody_from_locking() {
        let mutex = Mutex::new(1);
        std::thread::scope(|scope| {
            let panics = || {
                let mut held = lock(&mutex);
                *held = 2;
                std::panic::resume_unwind(Box::new(()))
            };
            assert!(scope.spawn(panics).join().is_err());
        });
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
