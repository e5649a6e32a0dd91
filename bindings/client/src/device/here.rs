//! Values that belong to the process that made them.

use crate::attachment::Owner;

/// A value that is not dropped in a forked child: its locks may have been held at the fork by threads that the child
/// does not have, and CUDA does not work there.
pub(super) struct Here<T> {
    owner: Owner,
    value: Option<T>,
}

impl<T> Here<T> {
    pub(super) fn new(value: T) -> Self {
        Here {
            owner: Owner::current(),
            value: Some(value),
        }
    }

    /// Returns the value, unless this is a forked child.
    pub(super) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.owner.is_here())
    }

    /// Takes the value out, unless this is a forked child.
    pub(super) fn take(&mut self) -> Option<T> {
        if self.owner.is_here() {
            self.value.take()
        } else {
            None
        }
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}
