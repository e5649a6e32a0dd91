//! Streams: queues of work, each with a thread that does it.
#![expect(
    unsafe_code,
    reason = "exports functions, and copies memory of callers"
)]

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use crate::call::{Answer, INVALID_HANDLE, give, hang, is_stalled, lock, trace};
use crate::contexts::check_context;
use crate::events;
use crate::host_memory::is_pinned;
use crate::settings::settings;

type Task = Box<dyn FnOnce() + Send>;

/// Handles of the streams that every process has: the default stream by its three names.
const DEFAULT: [usize; 3] = [0, 1, 2];

/// Queues by handle. A queue that is removed is still worked off.
static QUEUES: Mutex<Option<HashMap<usize, Sender<Task>>>> = Mutex::new(None);

fn start_queue() -> Sender<Task> {
    let (sender, receiver) = channel::<Task>();
    std::thread::spawn(move || receiver.into_iter().for_each(|task| task()));
    sender
}

fn queue(handle: usize) -> Answer<Sender<Task>> {
    let mut queues = lock(&QUEUES);
    let queues = queues.get_or_insert_default();
    if DEFAULT.contains(&handle) {
        return Ok(queues.entry(0).or_insert_with(start_queue).clone());
    }
    queues.get(&handle).cloned().ok_or(INVALID_HANDLE)
}

/// Puts a task into a stream.
pub(crate) fn put(stream: usize, task: impl FnOnce() + Send + 'static) -> Answer {
    // The thread lives as long as the sender.
    queue(stream)?
        .send(Box::new(task))
        .map_err(|_| INVALID_HANDLE)
}

/// Puts work of a GPU into a stream, which takes time and may stall.
pub(crate) fn put_work(name: &str, stream: usize, work: impl FnOnce() + Send + 'static) -> Answer {
    check_context()?;
    let is_stalled = is_stalled(name);
    put(stream, move || {
        if is_stalled {
            hang();
        }
        std::thread::sleep(settings().delay);
        work();
    })
}

/// Copies memory. All addresses are the host's.
fn copy(to: usize, from: usize, bytes: usize) {
    // SAFETY: a caller of CUDA passes ranges that are valid until the work ends. If one is not, a signal tells the test
    // so.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

functions! {
    fn cuStreamCreate(stream: *mut usize, _flags: c_uint) {
        check_context()?;
        static LAST: Mutex<usize> = Mutex::new(0x2000);
        let mut last = lock(&LAST);
        *last += 1;
        lock(&QUEUES).get_or_insert_default().insert(*last, start_queue());
        give(stream, *last)
    }

    fn cuStreamDestroy_v2(stream: usize) {
        check_context()?;
        lock(&QUEUES).get_or_insert_default().remove(&stream).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        check_context()?;
        let (event, mark) = events::last_mark(event)?;
        put(stream, move || event.wait(mark))
    }

    fn cuStreamIsCapturing(stream: usize, status: *mut c_int) {
        queue(stream)?;
        give(status, c_int::from(settings().is_capturing))
    }

    fn cuEventRecord(event: usize, stream: usize) {
        check_context()?;
        let (event, mark) = events::next_mark(event)?;
        put(stream, move || event.reach(mark))
    }

    // From memory that is not pinned the real one copies before it returns, or nearly so.
    fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) {
        let done = Arc::new(events::Event::default());
        let signal = done.clone();
        put_work("cuMemcpyHtoDAsync_v2", stream, move || {
            copy(to, from, bytes);
            signal.reach(1);
        })?;
        if !is_pinned(from, bytes) {
            trace("cuMemcpyHtoDAsync_v2", "pageable");
            done.wait(1);
        }
        Ok(())
    }

    fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) {
        put_work("cuMemcpyDtoDAsync_v2", stream, move || copy(to, from, bytes))
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) {
        put_work("cuMemcpyDtoHAsync_v2", stream, move || copy(to, from, bytes))
    }
}
