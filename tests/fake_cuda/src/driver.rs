//! The driver and its GPUs.
#![expect(
    unsafe_code,
    reason = "exports functions, and writes to the pointers of callers in C"
)]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::call::{Answer, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, give};
use crate::settings::settings;

/// Attributes of a GPU, by CUDA's numbers.
mod attribute {
    pub(super) const COMPUTE_MODE: u32 = 20;
    pub(super) const PCI_BUS: u32 = 33;
    pub(super) const PCI_DEVICE: u32 = 34;
    pub(super) const PCI_DOMAIN: u32 = 50;
    pub(super) const CAPABILITY_MAJOR: u32 = 75;
    pub(super) const CAPABILITY_MINOR: u32 = 76;
    pub(super) const SHARES_MEMORY: u32 = 103;
    pub(super) const PINS_READ_ONLY: u32 = 113;
}

/// The PCI bus of GPU 0, in a domain that no machine has. The others follow it: `00fa:40:00.0`, `00fa:41:00.0`.
const FIRST_PCI_BUS: c_int = 0x40;
const PCI_DOMAIN: c_int = 0xfa;

/// The process that has initialised the driver, or 0. A process that was forked after that must not use it.
static INITIALISED: AtomicU32 = AtomicU32::new(0);

pub(crate) fn check_initialised() -> Answer {
    if INITIALISED.load(Ordering::Relaxed) == std::process::id() {
        Ok(())
    } else {
        Err(NOT_INITIALIZED)
    }
}

pub(crate) fn check_device(device: c_int) -> Answer {
    check_initialised()?;
    if u32::try_from(device).is_ok_and(|device| device < settings().devices) {
        Ok(())
    } else {
        Err(INVALID_DEVICE)
    }
}

functions! {
    fn cuInit(_flags: c_uint) {
        if settings().devices == 0 {
            return Err(NO_DEVICE);
        }
        let earlier = INITIALISED.load(Ordering::Relaxed);
        if earlier != 0 && earlier != std::process::id() {
            return Err(NOT_INITIALIZED);
        }
        INITIALISED.store(std::process::id(), Ordering::Relaxed);
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        give(version, settings().version)
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        check_initialised()?;
        give(count, settings().devices as c_int)
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        check_device(ordinal)?;
        give(device, ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) {
        check_device(device)?;
        let kind = if settings().is_divided { " MIG 1g.5gb" } else { "" };
        let text = format!("Fake GPU{kind}");
        let length = usize::try_from(length).unwrap_or(0);
        let bytes = text.bytes().take(length.saturating_sub(1)).chain([0]);
        for (i, byte) in bytes.enumerate() {
            give(name.wrapping_add(i), byte as c_char)?;
        }
        Ok(())
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        check_device(device)?;
        let mut bytes = [0xfa; 16];
        bytes[15] = device as u8;
        give(uuid, bytes)
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        check_device(device)?;
        give(bytes, settings().memory)
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: u32, device: c_int) {
        check_device(device)?;
        give(value, match attribute {
            attribute::COMPUTE_MODE => settings().compute_mode,
            attribute::PCI_DOMAIN => PCI_DOMAIN,
            attribute::PCI_BUS => FIRST_PCI_BUS + device,
            attribute::PCI_DEVICE => 0,
            attribute::CAPABILITY_MAJOR => 9,
            attribute::CAPABILITY_MINOR => 0,
            attribute::SHARES_MEMORY => c_int::from(settings().shares_memory),
            attribute::PINS_READ_ONLY => c_int::from(settings().pins_read_only),
            _ => return Err(INVALID_VALUE),
        })
    }
}

/// The errors that the driver has words for.
const ERRORS: [(u32, &CStr, &CStr); 16] = [
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (
        34,
        c"CUDA_ERROR_STUB_LIBRARY",
        c"CUDA driver is a stub library",
    ),
    (
        46,
        c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        c"CUDA-capable device(s) is/are busy or unavailable",
    ),
    (
        100,
        c"CUDA_ERROR_NO_DEVICE",
        c"no CUDA-capable device is detected",
    ),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (
        200,
        c"CUDA_ERROR_INVALID_IMAGE",
        c"device kernel image is invalid",
    ),
    (
        201,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    (
        222,
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"the provided PTX was compiled with an unsupported toolchain.",
    ),
    (
        400,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (
        700,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (
        803,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system has unsupported display driver / cuda driver combination",
    ),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

fn give_text(
    code: u32,
    to: *mut *const c_char,
    part: impl Fn(&(u32, &'static CStr, &'static CStr)) -> &'static CStr,
) -> u32 {
    let found = ERRORS.iter().find(|error| error.0 == code);
    let text = found.map_or(std::ptr::null(), |error| part(error).as_ptr());
    match give(to, text) {
        Ok(()) if found.is_some() => 0,
        _ => INVALID_VALUE,
    }
}

// These two have no frame: they work whatever has failed, and are in no trace.

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32 {
    give_text(code, name, |error| error.1)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, text: *mut *const c_char) -> u32 {
    give_text(code, text, |error| error.2)
}
