//! Memory of a GPU that other processes map: the ring of an uploader.
//!
//! It lives as long as any process has a mapping or a descriptor of it. So the death of the process that made it takes
//! nothing from the others.
#![expect(unsafe_code, reason = "calls the driver")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use coprep_shared_memory::memory::sizes;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::memory::DeviceMemory;

const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Memory of a GPU that this process writes and others may map for reading.
pub struct ShareableMemory {
    memory: DeviceMemory,
    descriptor: OwnedFd,
}

impl ShareableMemory {
    /// Allocates memory and exports it. Its contents are undefined.
    ///
    /// # Errors
    /// If the GPU's memory is short, or it cannot be shared.
    pub fn allocate(context: &Context, bytes: usize) -> Result<Self> {
        let physical = Physical::allocate(context, bytes)?;
        Ok(ShareableMemory {
            descriptor: physical.export()?,
            memory: physical.map(bytes, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)?,
        })
    }

    /// Returns the memory.
    #[must_use]
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Returns a descriptor of the memory. A process that is sent it may [`import`] the memory.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Maps memory that another process exported, for reading only. `bytes` are those that the other process asked for.
///
/// # Errors
/// If the descriptor is not one of such memory on this GPU, or the memory is smaller.
pub fn import(context: &Context, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<DeviceMemory> {
    Physical::import(context, descriptor)?
        .map(bytes, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ)
}

/// A reference to memory that has no address in this process yet.
struct Physical {
    context: Context,
    handle: CUmemGenericAllocationHandle,
}

impl Physical {
    fn allocate(context: &Context, bytes: usize) -> Result<Self> {
        let task = || format!("allocate {} of memory to share", sizes(bytes as u64));
        if !context.gpu().shares_memory()? {
            let context = format!("cannot {} on {}", task(), context.gpu());
            let why = "its memory cannot be shared by descriptors";
            return Err(Error::new(ErrorKind::Unsupported, context).because(why));
        }
        let properties = properties(context);
        let rounded = rounded(context, bytes)?;
        let mut handle = 0;
        context.call(
            task,
            // SAFETY: the context is current, and the pointers are to variables that live until the call returns.
            |cuda| unsafe { (cuda.cuMemCreate)(&mut handle, rounded, &properties, 0) },
        )?;
        Ok(Physical {
            context: context.clone(),
            handle,
        })
    }

    fn import(context: &Context, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let mut handle = 0;
        // The call takes the descriptor's number in place of a pointer, and leaves the descriptor open.
        let number = descriptor.as_raw_fd() as usize as *mut std::ffi::c_void;
        context.call(
            || "take memory that another process shares".to_owned(),
            // SAFETY: the context is current, the pointer is to a variable that lives until the call returns, and the
            // descriptor is open.
            |cuda| unsafe {
                (cuda.cuMemImportFromShareableHandle)(&mut handle, number, DESCRIPTOR)
            },
        )?;
        Ok(Physical {
            context: context.clone(),
            handle,
        })
    }

    fn export(&self) -> Result<OwnedFd> {
        let mut number = -1i32;
        self.context.call(
            || "share memory".to_owned(),
            // SAFETY: the handle lives. For a descriptor the driver writes an `int`.
            |cuda| unsafe {
                let target = (&raw mut number).cast();
                (cuda.cuMemExportToShareableHandle)(target, self.handle, DESCRIPTOR, 0)
            },
        )?;
        // SAFETY: the driver has opened it for the caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        // The driver need not have set close-on-exec. A clone has it.
        let inherited = |e| {
            let context = format!("cannot share memory of {}", self.context.gpu());
            Error::new(ErrorKind::Refused, context).because(e)
        };
        descriptor.try_clone().map_err(inherited)
    }

    /// Maps the first bytes. The mapping keeps the memory, so that the reference is no longer needed.
    fn map(&self, bytes: usize, access: CUmemAccess_flags) -> Result<DeviceMemory> {
        let rounded = rounded(&self.context, bytes)?;
        let addresses = Addresses::reserve(&self.context, rounded)?;
        let start = addresses.start;
        self.context.call(
            || format!("map {} of shared memory", sizes(bytes as u64)),
            // SAFETY: the addresses are reserved and nothing is mapped there; the handle lives.
            |cuda| unsafe { (cuda.cuMemMap)(start, rounded, 0, self.handle, 0) },
        )?;
        let mapped = Mapped { addresses };
        let access = CUmemAccessDesc {
            location: location(&self.context),
            flags: access,
        };
        self.context.call(
            || "get access to shared memory".to_owned(),
            // SAFETY: all of the range was just mapped, and the pointer is to a variable that lives until the call
            // returns.
            |cuda| unsafe { (cuda.cuMemSetAccess)(start, rounded, &access, 1) },
        )?;
        let is_writable = access.flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        Ok(DeviceMemory::of(mapped, start, bytes, is_writable))
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: the handle is released once. Mappings keep the memory. There is no remedy for an error.
        self.context
            .code(|cuda| unsafe { (cuda.cuMemRelease)(handle) });
    }
}

/// A reserved range of addresses.
struct Addresses {
    context: Context,
    start: CUdeviceptr,
    bytes: usize,
}

impl Addresses {
    fn reserve(context: &Context, bytes: usize) -> Result<Self> {
        let mut start = 0;
        context.call(
            || "reserve addresses".to_owned(),
            // SAFETY: the pointer is to a variable that lives until the call returns.
            |cuda| unsafe { (cuda.cuMemAddressReserve)(&mut start, bytes, 0, 0, 0) },
        )?;
        Ok(Addresses {
            context: context.clone(),
            start,
            bytes,
        })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let (start, bytes) = (self.start, self.bytes);
        // SAFETY: the range was reserved here and is freed once; nothing is mapped there, since `Mapped` has unmapped
        // it. There is no remedy for an error.
        self.context
            .code(|cuda| unsafe { (cuda.cuMemAddressFree)(start, bytes) });
    }
}

/// A range of addresses with memory.
struct Mapped {
    addresses: Addresses,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Addresses { start, bytes, .. } = self.addresses;
        // SAFETY: all of the range was mapped by one call and is unmapped once. All work that uses it holds this. There
        // is no remedy for an error.
        self.addresses
            .context
            .code(|cuda| unsafe { (cuda.cuMemUnmap)(start, bytes) });
    }
}

fn location(context: &Context) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: context.gpu().raw(),
    }
}

fn properties(context: &Context) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: DESCRIPTOR,
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Rounds a size up to whole pages of the GPU's memory. Both sides do so, and come to the same number.
fn rounded(context: &Context, bytes: usize) -> Result<usize> {
    let properties = properties(context);
    let mut page = 0;
    context.call(
        || "get the page size of the memory".to_owned(),
        // SAFETY: the pointers are to variables that live until the call returns.
        |cuda| unsafe {
            let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
            (cuda.cuMemGetAllocationGranularity)(&mut page, &properties, least)
        },
    )?;
    bytes
        .checked_next_multiple_of(page.max(1))
        .ok_or_else(|| invalid("cannot share memory", format!("{bytes} bytes are too many")))
}
