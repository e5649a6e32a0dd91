//! Reading a GPU's memory, for checks.
#![expect(unsafe_code, reason = "reads memory that a GPU has written")]

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::host_buffer::HostBuffer;
use crate::memory::DeviceMemory;
use crate::stream::Stream;
use crate::work::StreamWork;

impl DeviceMemory {
    /// Returns a copy of the memory's bytes, as they are after all work that `stream` has. It waits for that work.
    ///
    /// # Errors
    /// If the work failed, or does not end within the limit.
    pub fn read(&self, stream: &Stream, limit: Duration) -> Result<Vec<u8>> {
        if self.bytes() == 0 {
            return Ok(Vec::new());
        }
        let buffer = Arc::new(HostBuffer::allocate(stream.context(), self.bytes())?);
        let mut work = StreamWork::begin(stream)?;
        // SAFETY: the buffer has the bytes, and this function reads them only after the copy has ended.
        unsafe { work.download(self, buffer.start().as_ptr(), buffer.clone()) }?;
        work.submit()?.wait(limit)?;
        // SAFETY: in bounds; the copy, which has ended, has initialised all bytes; nobody else has the buffer.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.start().as_ptr(), self.bytes()) };
        Ok(bytes.to_vec())
    }
}
