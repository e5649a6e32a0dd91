//! The NVIDIA driver of this process.
#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

use crate::error::{Result, refused};
use crate::functions::{Code, Functions};

/// The NVIDIA driver, loaded into this process and initialised.
///
/// Nothing of it is linked: `libcuda.so.1` is looked for when this is made, so that one build of coprep runs on
/// machines with and without a GPU. Loading it starts threads of the driver, so a process that will fork does not load
/// it.
#[derive(Clone, Copy)]
pub struct Driver {
    functions: &'static Functions,
}

impl Driver {
    /// Loads the driver and initialises it. It takes up to some seconds the first time, and nothing later.
    ///
    /// # Errors
    /// If this process has no driver that it can use, or no GPU. Each way has an
    /// [`ErrorKind`](crate::ErrorKind) and a remedy. The next call tries again.
    pub fn load() -> Result<Self> {
        static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
        let functions = match FUNCTIONS.get() {
            Some(functions) => functions,
            None => {
                let found = Functions::load()?;
                FUNCTIONS.get_or_init(|| found)
            }
        };
        let driver = Driver { functions };
        // SAFETY: it takes no pointer, may be called from any thread, and may be repeated.
        let code = unsafe { (functions.cuInit)(0) };
        driver.check(code, || "cannot initialise the NVIDIA driver".to_owned())?;
        Ok(driver)
    }

    /// Returns the newest version of CUDA that the driver supports.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn version(self) -> Result<CudaVersion> {
        let mut version: c_int = 0;
        // SAFETY: the pointer is to a variable that lives until the call returns.
        let code = unsafe { (self.functions.cuDriverGetVersion)(&mut version) };
        self.check(code, || {
            "cannot get the version of the NVIDIA driver".to_owned()
        })?;
        Ok(CudaVersion(version.unsigned_abs()))
    }

    pub(crate) fn functions(self) -> &'static Functions {
        self.functions
    }

    /// Turns the answer of a call into a result. `context` says what failed and on what.
    pub(crate) fn check(self, code: Code, context: impl FnOnce() -> String) -> Result<()> {
        match code {
            0 => Ok(()),
            code => Err(refused(context(), code, self.describe(code))),
        }
    }

    /// Returns the driver's words for an error, such as `out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)`.
    fn describe(self, code: Code) -> String {
        let functions = self.functions;
        let name = text(functions.cuGetErrorName, code);
        let words = text(functions.cuGetErrorString, code);
        match (name, words) {
            (Some(name), Some(words)) if name != words => format!("{words} ({name}, {code})"),
            (Some(name), _) => format!("{name} ({code})"),
            (None, _) => format!("CUDA error {code}"),
        }
    }
}

/// Asks for a text about an error. The driver knows no text for the number of another version.
fn text<E>(ask: unsafe extern "C" fn(E, *mut *const c_char) -> Code, code: Code) -> Option<String> {
    const { assert!(size_of::<E>() == size_of::<Code>()) };
    // SAFETY: `E` is cudarc's enum of errors, of 32 bits. The C function takes any number of 32 bits, and it is called
    // with one, because an enum without that value would be undefined behaviour.
    let ask: unsafe extern "C" fn(Code, *mut *const c_char) -> Code =
        unsafe { std::mem::transmute(ask) };
    let mut text = std::ptr::null();
    // SAFETY: the pointer is to a variable that lives until the call returns.
    if unsafe { ask(code, &mut text) } != 0 || text.is_null() {
        return None;
    }
    // SAFETY: the driver's texts end with a zero and are never freed.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// A version of CUDA, shown as `13.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(u32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}
