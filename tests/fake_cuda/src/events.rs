//! Events: marks that streams reach.
#![expect(unsafe_code, reason = "exports functions")]

use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::call::{Answer, INVALID_HANDLE, NOT_READY, give, lock};
use crate::contexts::{check_capture, check_context};

/// An event. Each record puts a new mark into a stream.
#[derive(Default)]
pub(crate) struct Event {
    marks: Mutex<Marks>,
    reached: Condvar,
}

#[derive(Default)]
struct Marks {
    /// The last mark that was put into a stream.
    last: u64,
    /// The last mark that a stream has reached.
    reached: u64,
}

impl Event {
    /// A stream comes to a mark.
    pub(crate) fn reach(&self, mark: u64) {
        let mut marks = lock(&self.marks);
        marks.reached = marks.reached.max(mark);
        self.reached.notify_all();
    }

    /// Waits until a stream has come to a mark.
    pub(crate) fn wait(&self, mark: u64) {
        let marks = lock(&self.marks);
        let waited = self.reached.wait_while(marks, |marks| marks.reached < mark);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

static EVENTS: Mutex<Option<HashMap<usize, Arc<Event>>>> = Mutex::new(None);

fn event(handle: usize) -> Answer<Arc<Event>> {
    let events = lock(&EVENTS);
    let found = events.as_ref().and_then(|events| events.get(&handle));
    found.cloned().ok_or(INVALID_HANDLE)
}

/// Returns an event and its last mark.
pub(crate) fn last_mark(handle: usize) -> Answer<(Arc<Event>, u64)> {
    let event = event(handle)?;
    let last = lock(&event.marks).last;
    Ok((event, last))
}

/// Returns an event and a new mark of it.
pub(crate) fn next_mark(handle: usize) -> Answer<(Arc<Event>, u64)> {
    let event = event(handle)?;
    let next = {
        let mut marks = lock(&event.marks);
        marks.last += 1;
        marks.last
    };
    Ok((event, next))
}

functions! {
    fn cuEventCreate(event: *mut usize, _flags: c_uint) {
        check_context()?;
        static LAST: Mutex<usize> = Mutex::new(0x4000);
        let mut last = lock(&LAST);
        *last += 1;
        lock(&EVENTS).get_or_insert_default().insert(*last, Arc::default());
        give(event, *last)
    }

    fn cuEventDestroy_v2(event: usize) {
        check_context()?;
        lock(&EVENTS).get_or_insert_default().remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuEventQuery(handle: usize) {
        check_capture()?;
        let event = event(handle)?;
        let marks = lock(&event.marks);
        if marks.reached < marks.last { Err(NOT_READY) } else { Ok(()) }
    }
}
