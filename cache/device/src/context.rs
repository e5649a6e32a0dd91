//! The context of a GPU in this process.
#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUstreamCaptureMode};

use crate::error::Result;
use crate::functions::{Code, Functions};
use crate::gpu::Gpu;

/// The primary context of a GPU: the state that this process has there. PyTorch uses the same one, so that both may use
/// each other's memory and streams.
///
/// It takes some hundred MiB of the GPU's memory when the first user in the process retains it. It goes when the last
/// one has released it. A clone refers to the same context. Memory, streams and kernels keep theirs alive.
///
/// **Threads.** All methods of this crate may be called from any thread. Each makes the context current for its own
/// calls only, and then restores the context that the thread had: a thread of PyTorch notices nothing.
///
/// **CUDA graphs.** While a thread captures one, by default no other thread may make calls such as asking for an event:
/// they fail, and the capture too. The calls here are exempted, because they never belong to somebody's graph.
#[derive(Clone)]
pub struct Context {
    retained: Arc<Retained>,
}

struct Retained {
    gpu: Gpu,
    raw: CUcontext,
}

// SAFETY: the address is only a name for the driver, which allows calls with it from any thread.
unsafe impl Send for Retained {}
// SAFETY: as above.
unsafe impl Sync for Retained {}

impl Context {
    /// Retains the primary context, and makes it if this process has none yet.
    ///
    /// # Errors
    /// If the GPU takes no further process, or its memory is short.
    pub fn retain(gpu: Gpu) -> Result<Self> {
        let driver = gpu.driver();
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a variable that lives until the call returns.
        let code = unsafe { (driver.functions().cuDevicePrimaryCtxRetain)(&mut raw, gpu.raw()) };
        driver.check(code, || format!("cannot begin to use {gpu}"))?;
        Ok(Context {
            retained: Arc::new(Retained { gpu, raw }),
        })
    }

    /// Returns the GPU.
    #[must_use]
    pub fn gpu(&self) -> Gpu {
        self.retained.gpu
    }

    /// Makes a call of the driver while this context is current in this thread. `task` says what the call does, such as
    /// "create a stream".
    pub(crate) fn call(
        &self,
        task: impl FnOnce() -> String,
        call: impl FnOnce(&Functions) -> Code,
    ) -> Result<()> {
        let code = self.code(call);
        let gpu = self.gpu();
        gpu.driver()
            .check(code, || format!("cannot {} on {gpu}", task()))
    }

    /// As [`call`](Self::call), but returns the driver's answer.
    pub(crate) fn code(&self, call: impl FnOnce(&Functions) -> Code) -> Code {
        let functions = self.gpu().driver().functions();
        // SAFETY: `Retained` keeps the context until it is dropped.
        let entered = unsafe { (functions.cuCtxPushCurrent_v2)(self.retained.raw) };
        if entered != 0 {
            return entered;
        }
        // The driver writes an enum of 32 bits, which may have a value that is not known here.
        let mut mode: u32 = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        let mode = (&raw mut mode).cast();
        // SAFETY: the driver reads the mode and writes the thread's former one. The pointer is to a variable that lives
        // until the call returns.
        let exempted = unsafe { (functions.cuThreadExchangeStreamCaptureMode)(mode) };
        let code = call(functions);
        let mut popped = std::ptr::null_mut();
        // SAFETY: the calls take back those above. The pointers are to variables that live until the calls return. An
        // error here would be the one of `call` again.
        unsafe {
            if exempted == 0 {
                (functions.cuThreadExchangeStreamCaptureMode)(mode);
            }
            (functions.cuCtxPopCurrent_v2)(&mut popped);
        }
        code
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: it takes back the one call that retained the context. Nothing that uses the context is left, since
        // each user holds an `Arc` of this. There is no remedy for an error.
        unsafe { (self.gpu.driver().functions().cuDevicePrimaryCtxRelease_v2)(self.gpu.raw()) };
    }
}
