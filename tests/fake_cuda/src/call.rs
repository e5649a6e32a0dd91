//! The frame of each function: faults, then the function, then the trace.
#![expect(unsafe_code, reason = "writes to the pointers of callers in C")]

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::settings::{Effect, settings};

/// The answer of a function: an error has its number.
pub(crate) type Answer<T = ()> = Result<T, u32>;

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_IMAGE: u32 = 200;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_FOUND: u32 = 500;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
pub(crate) const ALREADY_REGISTERED: u32 = 712;
pub(crate) const NOT_REGISTERED: u32 = 713;
pub(crate) const NOT_SUPPORTED: u32 = 801;
pub(crate) const CAPTURE_UNSUPPORTED: u32 = 900;

/// Code with which the process ends at a fault that says so.
const DEATH: i32 = 66;

/// Defines functions of the driver. The body's answer becomes the number that CUDA returns.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $kind),*) -> u32 {
            $crate::call::call(stringify!($name), || $body)
        }
    )*};
}

/// An error that all calls return from now on, or 0.
static STICKY: AtomicU32 = AtomicU32::new(0);

pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Answer) -> u32 {
    let code = enter(name).and_then(|()| body()).err().unwrap_or(0);
    trace(name, &code.to_string());
    code
}

/// Counts the call, and carries out the fault that is set for it.
fn enter(name: &str) -> Answer {
    match effect_of(name) {
        Some(Effect::Die) => {
            // SAFETY: it ends the process at once, which is the purpose.
            unsafe { libc::_exit(DEATH) }
        }
        Some(Effect::Hang) => hang(),
        Some(Effect::Fail(code)) => return Err(code),
        Some(Effect::Sticky(code)) => STICKY.store(code, Ordering::Relaxed),
        // The call that stalls succeeds. Its work does not end; see `is_stalled`.
        Some(Effect::Stall) | None => {}
    }
    match STICKY.load(Ordering::Relaxed) {
        0 => Ok(()),
        code => Err(code),
    }
}

fn effect_of(name: &str) -> Option<Effect> {
    // An empty name counts all calls.
    let (all, own) = (count(""), count(name));
    let happens = settings()
        .faults
        .iter()
        .find(|fault| match &fault.function {
            Some(function) => function == name && fault.call == own,
            None => fault.call == all,
        });
    happens.map(|fault| fault.effect)
}

static COUNTS: Mutex<Option<HashMap<String, u64>>> = Mutex::new(None);

fn count(name: &str) -> u64 {
    let mut counts = lock(&COUNTS);
    let count = counts
        .get_or_insert_default()
        .entry(name.to_owned())
        .or_default();
    *count += 1;
    *count
}

/// Returns true if the work of the present call never ends.
pub(crate) fn is_stalled(name: &str) -> bool {
    let calls = lock(&COUNTS)
        .as_ref()
        .and_then(|counts| counts.get(name).copied());
    settings().faults.iter().any(|fault| {
        fault.effect == Effect::Stall
            && fault.function.as_deref() == Some(name)
            && calls == Some(fault.call)
    })
}

pub(crate) fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// Appends a line to the trace, if there is one.
pub(crate) fn trace(name: &str, answer: &str) {
    let Some(path) = &settings().trace else {
        return;
    };
    // The line is one write, so that those of several processes do not mix.
    let line = format!("{} {name} {answer}\n", std::process::id());
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|e| panic!("FAKE_CUDA: trace {}: {e}", path.display()));
}

/// Writes a result to the pointer of a caller.
pub(crate) fn give<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a caller of CUDA passes pointers to variables of the type in CUDA's header.
    unsafe { to.write(value) };
    Ok(())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
