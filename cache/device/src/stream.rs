//! Queues of work on a GPU.
#![expect(unsafe_code, reason = "calls the driver")]

use cudarc::driver::sys::{CUevent, CUstream};

use crate::context::Context;
use crate::error::{Result, invalid};

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the default stream, nor the default stream for it.
const NON_BLOCKING: u32 = 1;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: this is the default stream, and a stream that waits for it is being captured.
const CAPTURED_WITH_ANOTHER: u32 = 906;

/// A queue of work on a GPU. The work of one stream runs in its order, that of several streams side by side.
pub struct Stream {
    context: Context,
    raw: CUstream,
    /// False if the stream belongs to the caller, such as PyTorch.
    is_own: bool,
}

// SAFETY: the address is only a name for the driver, which allows calls with it from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn create(context: &Context) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        context.call(
            || "create a stream".to_owned(),
            // SAFETY: the context is current, and the pointer is to a variable that lives until the call returns.
            |cuda| unsafe { (cuda.cuStreamCreate)(&mut raw, NON_BLOCKING) },
        )?;
        Ok(Stream {
            context: context.clone(),
            raw,
            is_own: true,
        })
    }

    /// Returns the caller's stream, such as `torch.cuda.current_stream().cuda_stream`. It is not destroyed when this is
    /// dropped. 0 is the default stream.
    ///
    /// # Safety
    /// The handle is a stream of this context, and stays one while the value lives.
    #[must_use]
    pub unsafe fn of_caller(context: &Context, handle: u64) -> Self {
        Stream {
            context: context.clone(),
            raw: handle as CUstream,
            is_own: false,
        }
    }

    /// Returns the context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Fails while the work of the stream is being recorded into a CUDA graph. The recorded work would run later, any
    /// number of times, when the memory that it uses may belong to another batch.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) while it is being captured.
    pub fn check_not_captured(&self) -> Result<()> {
        let mut status = 0u32;
        // SAFETY: the stream lives. The driver writes an enum of 32 bits to the variable, which has these, and lives
        // until the call returns.
        let code = self
            .context
            .code(|cuda| unsafe { (cuda.cuStreamIsCapturing)(self.raw, (&raw mut status).cast()) });
        let gpu = self.context.gpu();
        let context = || format!("cannot put a batch on {gpu}");
        if status != 0 || code == CAPTURED_WITH_ANOTHER {
            return Err(invalid(
                context(),
                "the current stream is being captured into a CUDA graph",
            )
            .with_remedy("take the batch before the capture begins"));
        }
        gpu.driver().check(code, context)
    }

    /// Lets later work of this stream begin only after an event.
    ///
    /// # Safety
    /// The event lives.
    pub(crate) unsafe fn wait_for(&self, event: CUevent) -> Result<()> {
        self.context.call(
            || "let a stream wait".to_owned(),
            // SAFETY: the stream lives, and so does the event, as the caller promises.
            |cuda| unsafe { (cuda.cuStreamWaitEvent)(self.raw, event, 0) },
        )
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_own {
            let raw = self.raw;
            // SAFETY: the stream was created here and is destroyed once. Work that is in it still runs to its end.
            // There is no remedy for an error.
            self.context
                .code(|cuda| unsafe { (cuda.cuStreamDestroy_v2)(raw) });
        }
    }
}
