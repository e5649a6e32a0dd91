//! Contexts: one for each GPU, which is current in threads.
#![expect(
    unsafe_code,
    reason = "exports functions, and reads the variables of callers in C"
)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Mutex;

use crate::call::{Answer, CAPTURE_UNSUPPORTED, CONTEXT_IS_DESTROYED, INVALID_CONTEXT, give, lock};
use crate::driver::check_device;
use crate::settings::settings;

/// The handle of GPU 0's context. The others follow it.
const FIRST: usize = 0x1000;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

/// Number of times that the context of each GPU is retained.
static RETAINED: Mutex<Option<HashMap<usize, u32>>> = Mutex::new(None);

thread_local! {
    /// The contexts of this thread. The last one is current. 0 is no context.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The restrictions by captures of other threads. 0 is CUDA's default: a capture forbids most calls.
    static MODE: Cell<u32> = const { Cell::new(0) };
}

fn current() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Fails if another thread captures a graph, and this thread has not said that its calls do not matter to it.
pub(crate) fn check_capture() -> Answer {
    if settings().another_thread_captures && MODE.get() != RELAXED {
        Err(CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// Fails unless this thread has a context that somebody retains, and may use it.
pub(crate) fn check_context() -> Answer {
    check_capture()?;
    match current() {
        0 => Err(INVALID_CONTEXT),
        context => check_retained(context),
    }
}

fn check_retained(context: usize) -> Answer {
    let retained = lock(&RETAINED);
    let count = retained.as_ref().and_then(|counts| counts.get(&context));
    match count {
        Some(1..) => Ok(()),
        _ => Err(CONTEXT_IS_DESTROYED),
    }
}

functions! {
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        check_device(device)?;
        let handle = FIRST + device as usize;
        give(context, handle)?;
        *lock(&RETAINED).get_or_insert_default().entry(handle).or_default() += 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        check_device(device)?;
        let handle = FIRST + device as usize;
        check_retained(handle)?;
        *lock(&RETAINED).get_or_insert_default().entry(handle).or_default() -= 1;
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) {
        // SAFETY: a caller of CUDA passes a pointer to a variable.
        let new = unsafe { mode.read() };
        give(mode, MODE.replace(new))
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        give(context, current())
    }

    fn cuCtxSetCurrent(context: usize) {
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.push(context);
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        check_retained(context)?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut usize) {
        let popped = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        give(context, popped)
    }
}
