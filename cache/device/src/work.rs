//! Work that a GPU does by itself, while this process goes on.
//!
//! ```text
//! StreamWork (copies and kernels are put into a stream) -> submit -> PendingWork (runs; then it is done)
//! ```
//!
//! The GPU uses memory after the call that asked it to has returned. So both types hold all memory that their work
//! uses. Dropping them waits for the GPU, because that memory may be freed or used again afterwards.
#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::event::Event;
use crate::functions::{Code, Functions};
use crate::memory::{DeviceMemory, Hold};
use crate::stream::Stream;

/// Limit for a wait for a GPU. A copy of a gigabyte takes a fiftieth of this time.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Work that is being put into a stream. The GPU may begin with it at once.
pub struct StreamWork<'a> {
    stream: &'a Stream,
    /// Created beforehand, so that little can fail once there is work in the stream.
    end: Arc<Event>,
    holds: Vec<Hold>,
}

impl<'a> StreamWork<'a> {
    /// Begins work in a stream. It runs after all work that the stream has already.
    ///
    /// # Errors
    /// If the stream is being captured into a CUDA graph.
    pub fn begin(stream: &'a Stream) -> Result<Self> {
        stream.check_not_captured()?;
        Ok(StreamWork {
            stream,
            end: Arc::new(Event::create(stream.context())?),
            holds: Vec::new(),
        })
    }

    /// Copies all of `from` to `to`, both in memory of GPUs.
    ///
    /// # Errors
    /// If the sizes differ, or `to` cannot be written.
    pub fn copy(&mut self, from: &DeviceMemory, to: &DeviceMemory) -> Result<()> {
        to.check_target(from.bytes())?;
        let holds = [from.hold(), to.hold()];
        let (source, target, bytes) = (from.address(), to.address(), from.bytes());
        let stream = self.stream.raw();
        // SAFETY: both have the bytes, which `holds` keeps until the copy has ended.
        unsafe {
            self.put(holds, "copy in memory", |cuda| {
                (cuda.cuMemcpyDtoDAsync_v2)(target, source, bytes, stream)
            })
        }
    }

    /// Copies host memory to the GPU.
    ///
    /// # Safety
    /// From `from` on as many bytes as `to` has can be read, and `source` keeps them. Nobody writes them before the
    /// copy has ended; if somebody does, the copy has a mixture.
    pub(crate) unsafe fn upload(
        &mut self,
        from: *const u8,
        source: Hold,
        to: &DeviceMemory,
    ) -> Result<()> {
        let (target, bytes, stream) = (to.address(), to.bytes(), self.stream.raw());
        to.check_target(bytes)?;
        // SAFETY: both have the bytes, which the holds keep until the copy has ended.
        unsafe {
            self.put([source, to.hold()], "copy to memory", |cuda| {
                (cuda.cuMemcpyHtoDAsync_v2)(target, from.cast(), bytes, stream)
            })
        }
    }

    /// Copies memory of the GPU to the host.
    ///
    /// # Safety
    /// From `to` on as many bytes as `from` has can be written, and `target` keeps them. Nobody uses them before the
    /// copy has ended.
    pub(crate) unsafe fn download(
        &mut self,
        from: &DeviceMemory,
        to: *mut u8,
        target: Hold,
    ) -> Result<()> {
        let (source, bytes, stream) = (from.address(), from.bytes(), self.stream.raw());
        // SAFETY: both have the bytes, which the holds keep until the copy has ended.
        unsafe {
            self.put([from.hold(), target], "copy from memory", |cuda| {
                (cuda.cuMemcpyDtoHAsync_v2)(to.cast(), source, bytes, stream)
            })
        }
    }

    /// Puts something into the stream by a call of the driver, and keeps `holds` until it has ended.
    ///
    /// # Safety
    /// The call puts work into this stream, and `holds` keep all that the work uses.
    pub(crate) unsafe fn put(
        &mut self,
        holds: impl IntoIterator<Item = Hold>,
        task: &str,
        call: impl FnOnce(&Functions) -> Code,
    ) -> Result<()> {
        // Before the call: one that fails may have begun.
        self.holds.extend(holds);
        self.stream.context().call(|| task.to_owned(), call)
    }

    /// Returns the stream.
    #[must_use]
    pub fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// Ends the list of work.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn submit(mut self) -> Result<PendingWork> {
        self.close()
    }

    fn close(&mut self) -> Result<PendingWork> {
        let holds = std::mem::take(&mut self.holds);
        if let Err(error) = self.end.record(self.stream) {
            // Nothing tells when the work ends, so the memory that it uses is never freed.
            std::mem::forget(holds);
            return Err(error);
        }
        Ok(PendingWork {
            end: self.end.clone(),
            submitted: Instant::now(),
            is_over: AtomicBool::new(false),
            holds,
        })
    }
}

impl Drop for StreamWork<'_> {
    fn drop(&mut self) {
        if !self.holds.is_empty() {
            // Work was put into the stream, and then something failed. Dropping it waits for it.
            drop(self.close());
        }
    }
}

/// Work that a GPU does, or has done. It holds the memory that the work uses.
///
/// Dropping it waits for the GPU, but not beyond [`TIMEOUT`] after it was submitted. If the work takes longer, or the GPU
/// failed, the memory that it uses is never freed: nothing says that the GPU no longer uses it.
#[must_use = "dropping it waits for the GPU"]
pub struct PendingWork {
    end: Arc<Event>,
    submitted: Instant,
    /// True once the work is known to be done. Then the driver need not be asked again.
    is_over: AtomicBool,
    holds: Vec<Hold>,
}

impl PendingWork {
    /// Returns true if the work is done.
    ///
    /// # Errors
    /// If it failed.
    pub fn is_done(&self) -> Result<bool> {
        if !self.is_over() && self.end.is_past()? {
            self.set_over();
        }
        Ok(self.is_over())
    }

    /// Waits until the work is done.
    ///
    /// # Errors
    /// If it failed, or takes longer than the limit.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        if !self.is_over() {
            self.end.wait(limit)?;
            self.set_over();
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        // Pairs with the release below: another thread may have had the driver's answer.
        self.is_over.load(Ordering::Acquire)
    }

    fn set_over(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Lets work that is put into `stream` from now on begin only after this work.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn precede(&self, stream: &Stream) -> Result<()> {
        self.end.precede(stream)
    }
}

impl Drop for PendingWork {
    fn drop(&mut self) {
        let rest = TIMEOUT.saturating_sub(self.submitted.elapsed());
        if self.wait(rest).is_err() {
            std::mem::forget(std::mem::take(&mut self.holds));
        }
    }
}
