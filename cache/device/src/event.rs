//! Marks in a stream, by which the host sees how far its work has come.
#![expect(unsafe_code, reason = "calls the driver")]

use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent;

use crate::context::Context;
use crate::error::{Result, timeout};
use crate::stream::Stream;

/// `CU_EVENT_DISABLE_TIMING`: an event without a time costs less.
const WITHOUT_TIME: u32 = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: u32 = 600;
/// Bounds of the sleep between two looks at an event. A copy of some megabytes takes 0.1 ms and more.
const SHORTEST_SLEEP: Duration = Duration::from_micros(10);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// A mark in a stream.
pub(crate) struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: the address is only a name for the driver, which allows calls with it from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn create(context: &Context) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        context.call(
            || "create an event".to_owned(),
            // SAFETY: the context is current, and the pointer is to a variable that lives until the call returns.
            |cuda| unsafe { (cuda.cuEventCreate)(&mut raw, WITHOUT_TIME) },
        )?;
        Ok(Event {
            context: context.clone(),
            raw,
        })
    }

    /// Puts the mark behind all work that the stream has. An earlier mark is moved.
    pub(crate) fn record(&self, stream: &Stream) -> Result<()> {
        self.context.call(
            || "record an event".to_owned(),
            // SAFETY: event and stream live.
            |cuda| unsafe { (cuda.cuEventRecord)(self.raw, stream.raw()) },
        )
    }

    /// Lets later work of a stream begin only after this event.
    pub(crate) fn precede(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the event lives.
        unsafe { stream.wait_for(self.raw) }
    }

    /// Returns true if the GPU has come past the mark, or if there is no mark.
    ///
    /// # Errors
    /// If the work before the mark failed.
    pub(crate) fn is_past(&self) -> Result<bool> {
        // SAFETY: the event lives.
        let code = self
            .context
            .code(|cuda| unsafe { (cuda.cuEventQuery)(self.raw) });
        if code == NOT_READY {
            return Ok(false);
        }
        let gpu = self.context.gpu();
        let failed = || format!("work on {gpu} failed");
        gpu.driver().check(code, failed).map(|()| true)
    }

    /// Waits until the GPU has come past the mark.
    ///
    /// CUDA's own wait has no bound, so this looks again and again.
    ///
    /// # Errors
    /// If the work before the mark failed, or does not end in time.
    pub(crate) fn wait(&self, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        let mut sleep = SHORTEST_SLEEP;
        while !self.is_past()? {
            let waited = begin.elapsed();
            if waited >= limit {
                let context = format!("waited for work on {}", self.context.gpu());
                return Err(timeout(context, waited.as_secs_f64()));
            }
            std::thread::sleep(sleep.min(limit - waited));
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let raw = self.raw;
        // SAFETY: the event was created here and is destroyed once. The driver keeps what it needs of one that is still
        // waited for. There is no remedy for an error.
        self.context
            .code(|cuda| unsafe { (cuda.cuEventDestroy_v2)(raw) });
    }
}
