//! Locking whatever the poison state.
//!
//! A thread that panics while it holds a mutex poisons it. The state behind the mutexes that are locked by this module
//! is consistent at every place where a thread could panic, or the panic is reported by other means and ends the owner
//! of the state. So the other threads go on with it. A mutex for which that does not hold, such as the one of a
//! stream's engine, is locked by other means.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Returns the value of a lock, or of a wait for a condition, poisoned or not.
pub fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_of_the_holder_keeps_nobody_from_locking() {
        let mutex = Mutex::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            *lock(&mutex) = 2;
            let _held = lock(&mutex);
            std::panic::resume_unwind(Box::new(()))
        }));
        assert!(panicked.is_err() && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
        assert_eq!(unpoisoned(mutex.into_inner()), 2);
    }
}
