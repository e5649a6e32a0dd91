//! Memory of a GPU.
#![expect(unsafe_code, reason = "calls the driver")]

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use coprep_shared_memory::memory::sizes;
use cudarc::driver::sys::CUdeviceptr;

use crate::context::Context;
use crate::error::{Result, invalid};

/// Keeps something alive that a GPU uses.
pub(crate) type Hold = Arc<dyn Any + Send + Sync>;

/// A part of a GPU's memory. A clone, and a [`part`](Self::part), refer to the same memory, which is freed with the
/// last of them.
#[derive(Clone)]
pub struct DeviceMemory {
    address: CUdeviceptr,
    bytes: usize,
    is_writable: bool,
    owner: Hold,
}

impl DeviceMemory {
    /// Allocates memory for this process alone. Its contents are undefined.
    ///
    /// # Errors
    /// If the GPU's memory is short.
    pub fn allocate(context: &Context, bytes: usize) -> Result<Self> {
        let mut address = 0;
        context.call(
            || format!("allocate {} of memory", sizes(bytes as u64)),
            // SAFETY: the context is current, and the pointer is to a variable that lives until the call returns.
            |cuda| unsafe { (cuda.cuMemAlloc_v2)(&mut address, bytes) },
        )?;
        let owner = Allocation {
            context: context.clone(),
            address,
        };
        Ok(Self::of(owner, address, bytes, true))
    }

    /// Returns memory of the caller, such as that of a tensor of PyTorch. It is not freed here.
    ///
    /// # Safety
    /// From `address` on there are `bytes` bytes in a context of this process. They stay there, and nobody else writes
    /// them, until all work that was given this value has ended.
    #[must_use]
    pub unsafe fn of_caller(address: u64, bytes: usize) -> Self {
        Self::of((), address, bytes, true)
    }

    /// Returns memory that `owner` frees when it is dropped.
    pub(crate) fn of(
        owner: impl Any + Send + Sync,
        address: CUdeviceptr,
        bytes: usize,
        is_writable: bool,
    ) -> Self {
        DeviceMemory {
            address,
            bytes,
            is_writable,
            owner: Arc::new(owner),
        }
    }

    /// Returns a part of the memory.
    ///
    /// # Errors
    /// If the range is not in the memory.
    pub fn part(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.bytes {
            let why = format!("{range:?} of {} bytes", self.bytes);
            return Err(invalid("no such part of a GPU's memory", why));
        }
        Ok(DeviceMemory {
            address: self.address + range.start as CUdeviceptr,
            bytes: range.len(),
            is_writable: self.is_writable,
            owner: self.owner.clone(),
        })
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the first byte, which other users of the GPU in this process may be told.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn hold(&self) -> Hold {
        self.owner.clone()
    }

    /// Fails unless this process may write the memory, and it has `bytes` bytes.
    pub(crate) fn check_target(&self, bytes: usize) -> Result<()> {
        if !self.is_writable {
            return Err(invalid(
                "cannot write a GPU's memory",
                "it belongs to another process",
            ));
        }
        self.check_bytes(bytes)
    }

    /// Fails unless the memory has `bytes` bytes.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<()> {
        if self.bytes == bytes {
            Ok(())
        } else {
            let why = format!("{bytes} bytes are wanted, and it has {}", self.bytes);
            Err(invalid("the size of a GPU's memory is wrong", why))
        }
    }
}

/// Memory that the driver allocated.
struct Allocation {
    context: Context,
    address: CUdeviceptr,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let address = self.address;
        // SAFETY: it was allocated here and is freed once. All work that uses it holds this. There is no remedy for an
        // error.
        self.context
            .code(|cuda| unsafe { (cuda.cuMemFree_v2)(address) });
    }
}
