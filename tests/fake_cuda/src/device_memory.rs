//! Memory of GPUs. All GPUs of the process have one budget.
#![expect(unsafe_code, reason = "exports functions")]

use std::collections::HashMap;
use std::sync::Mutex;

use crate::call::{Answer, INVALID_VALUE, OUT_OF_MEMORY, give, lock};
use crate::contexts::check_context;
use crate::host_memory::{map, unmap};
use crate::settings::settings;

static USED: Mutex<usize> = Mutex::new(0);
/// The bytes of each allocation, by its start.
static ALLOCATED: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// A part of the budget.
pub(crate) struct Share(usize);

impl Share {
    pub(crate) fn take(bytes: usize) -> Answer<Share> {
        let mut used = lock(&USED);
        if bytes > settings().memory - *used {
            return Err(OUT_OF_MEMORY);
        }
        *used += bytes;
        Ok(Share(bytes))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        *lock(&USED) -= self.0;
    }
}

functions! {
    fn cuMemAlloc_v2(address: *mut usize, bytes: usize) {
        check_context()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let share = Share::take(bytes)?;
        let start = map(bytes)?;
        lock(&ALLOCATED).get_or_insert_default().insert(start, bytes);
        // `cuMemFree_v2` gives it back.
        std::mem::forget(share);
        give(address, start)
    }

    // The real one waits for the GPU. This one does not, so that memory which is freed too early is noticed.
    fn cuMemFree_v2(address: usize) {
        check_context()?;
        let freed = lock(&ALLOCATED).get_or_insert_default().remove(&address);
        let bytes = freed.ok_or(INVALID_VALUE)?;
        unmap(address, bytes);
        drop(Share(bytes));
        Ok(())
    }
}
