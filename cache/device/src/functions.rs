//! The functions of the NVIDIA driver that this crate calls, found by name before the first of them is called.
//!
//! cudarc's own functions look for their symbol at their first call, and panic if it is missing. So this module only
//! takes cudarc's library handle, types and signatures. It finds all functions at once, and names those that a driver
//! lacks. What is not in the list cannot be called, so nothing can be called that was not looked for.
#![expect(unsafe_code, reason = "finds functions of a library by name")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::panic::catch_unwind;

use cudarc::driver::sys;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmodule, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUuuid,
};

use crate::error::{Result, lacks, no_driver};

/// The answer of a driver function: 0 if it succeeded, else the number of an error.
///
/// cudarc declares it as an enum of the errors that it knows. A driver that is newer than cudarc may answer with
/// another number, and an enum with a value that it does not have is undefined behaviour. A number is not.
pub(crate) type Code = u32;

macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?);)*) => {
        /// Addresses of the driver's functions. Each has its CUDA name and its documentation in CUDA's manual.
        #[expect(non_snake_case, reason = "CUDA's names")]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            /// Loads the driver's library, and finds all functions.
            ///
            /// The library is never unloaded.
            #[expect(non_snake_case, reason = "CUDA's names")]
            pub(crate) fn load() -> Result<Self> {
                // SAFETY: loading a library runs its initialisation, which NVIDIA's driver allows in any thread. It is
                // the only library with such a name.
                if !unsafe { sys::is_culib_present() } {
                    return Err(no_driver());
                }
                // The library was there a moment ago. If it has been removed since, cudarc panics.
                // SAFETY: as above.
                let library = catch_unwind(|| unsafe { sys::culib() }).map_err(|_| no_driver())?;
                let mut missing = Vec::new();
                $(
                    // SAFETY: the signature is that of CUDA's header, as the assertion below has the compiler check
                    // against cudarc's bindings. The result is an enum of 32 bits there, and a number of 32 bits here.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> Code>(stringify!($name).as_bytes())
                    };
                    let $name = $name
                        .map(|found| *found)
                        .inspect_err(|_| missing.push(stringify!($name)))
                        .ok();
                )*
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok(Functions { $($name,)* }),
                    _ => Err(lacks(&missing)),
                }
            }
        }

        /// The signatures are those of cudarc's bindings.
        const _: () = {
            $(let _: unsafe fn($($argument),*) -> CUresult = sys::$name;)*
        };
    };
}

functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(CUresult, *mut *const c_char);
    cuGetErrorString(CUresult, *mut *const c_char);

    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);

    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxPushCurrent_v2(CUcontext);
    cuCtxPopCurrent_v2(*mut CUcontext);
    cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);

    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);

    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
    cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
    cuMemRelease(CUmemGenericAllocationHandle);
    cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
    cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
    cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    cuMemAddressFree(CUdeviceptr, usize);
    cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    cuMemUnmap(CUdeviceptr, usize);
    cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);

    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);

    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuEventDestroy_v2(CUevent);

    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
        *mut *mut c_void,
    );
}
