//! Modules, and the kernels of `coprep-device`: a module is a text with their names, and each kernel is computed here.
#![expect(
    unsafe_code,
    reason = "exports functions, and computes on memory of callers"
)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Mutex;

use crate::call::{Answer, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, give, lock};
use crate::contexts::check_context;
use crate::streams::put_work;

/// A kernel that converts images.
#[derive(Clone, Copy)]
struct Kernel {
    name: &'static str,
    element_bytes: usize,
    is_interleaved: bool,
}

/// Threads of a block. The real kernels take fewer too; the product starts them with as many as they declare.
const THREADS: c_uint = 256;

impl Kernel {
    /// Returns the size of the memory that the threads of a block share: the values of one channel for planes, else
    /// those of all channels, and for three channels the elements of four pixels for each thread.
    fn shared_bytes(self, channels: usize) -> usize {
        let elements = match (self.is_interleaved, channels) {
            (false, _) => 256,
            (true, 3) => 3 * 256 + THREADS as usize * 3 * 4,
            (true, _) => channels * 256,
        };
        elements * self.element_bytes
    }
}

const fn kernel(name: &'static str, element_bytes: usize, is_interleaved: bool) -> Kernel {
    Kernel {
        name,
        element_bytes,
        is_interleaved,
    }
}

const KERNELS: [Kernel; 4] = [
    kernel("coprep_planes_16", 2, false),
    kernel("coprep_planes_32", 4, false),
    kernel("coprep_interleaved_16", 2, true),
    kernel("coprep_interleaved_32", 4, true),
];
/// The handle of the first kernel. The others follow it.
const FIRST: usize = 0x3000;

/// The arguments of a launch, in the order of the kernels' parameters.
#[derive(Clone, Copy)]
struct Arguments {
    images: usize,
    out: usize,
    table: usize,
    channels: usize,
    pixels: usize,
    count: usize,
}

impl Arguments {
    /// Reads the arguments of a launch.
    fn read(parameters: *mut *mut c_void) -> Self {
        // SAFETY: a caller passes an array with a pointer to each argument of the kernel, which has its type: three
        // addresses and three numbers of 32 bits.
        let address = |i: usize| unsafe { parameters.add(i).read().cast::<u64>().read() as usize };
        // SAFETY: as above.
        let number = |i: usize| unsafe { parameters.add(i).read().cast::<u32>().read() as usize };
        Arguments {
            images: address(0),
            out: address(1),
            table: address(2),
            channels: number(3),
            pixels: number(4),
            count: number(5),
        }
    }

    /// Computes the elements: each is the value of the table for a byte and its channel.
    fn compute(self, kernel: Kernel) {
        let Arguments {
            channels,
            pixels,
            count,
            ..
        } = self;
        let bytes = kernel.element_bytes;
        let elements = count * channels * pixels;
        // SAFETY: a caller passes memory of these sizes, which nobody else uses until the work ends. If it is not
        // there, a signal tells the test so.
        let (images, table, out) = unsafe {
            (
                std::slice::from_raw_parts(self.images as *const u8, elements),
                std::slice::from_raw_parts(self.table as *const u8, 256 * channels * bytes),
                std::slice::from_raw_parts_mut(self.out as *mut u8, elements * bytes),
            )
        };
        for (i, &byte) in images.iter().enumerate() {
            let (image, channel, pixel) =
                (i / pixels / channels, i / pixels % channels, i % pixels);
            let to = if kernel.is_interleaved {
                (image * pixels + pixel) * channels + channel
            } else {
                i
            };
            let from = 256 * channel + byte as usize;
            out[to * bytes..][..bytes].copy_from_slice(&table[from * bytes..][..bytes]);
        }
    }
}

/// The texts of loaded modules, by handle.
static MODULES: Mutex<Option<HashMap<usize, String>>> = Mutex::new(None);

fn text(pointer: *const c_char) -> Answer<String> {
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a caller passes a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(text.to_string_lossy().into_owned())
}

functions! {
    fn cuModuleLoadData(module: *mut usize, image: *const c_char) {
        check_context()?;
        let text = text(image)?;
        if !text.contains("\n.version ") {
            return Err(INVALID_IMAGE);
        }
        static LAST: Mutex<usize> = Mutex::new(0x6000);
        let mut last = lock(&LAST);
        *last += 1;
        lock(&MODULES).get_or_insert_default().insert(*last, text);
        give(module, *last)
    }

    fn cuModuleUnload(module: usize) {
        check_context()?;
        lock(&MODULES).get_or_insert_default().remove(&module).map(drop).ok_or(INVALID_HANDLE)
    }

    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        check_context()?;
        let name = text(name)?;
        let modules = lock(&MODULES);
        let code = modules.as_ref().and_then(|modules| modules.get(&module)).ok_or(INVALID_HANDLE)?;
        let known = KERNELS.iter().position(|kernel| kernel.name == name);
        let number = known.filter(|_| code.contains(&format!(".entry {name}("))).ok_or(NOT_FOUND)?;
        give(function, FIRST + number)
    }

    fn cuLaunchKernel(
        function: usize,
        blocks_x: c_uint,
        blocks_y: c_uint,
        blocks_z: c_uint,
        threads_x: c_uint,
        threads_y: c_uint,
        threads_z: c_uint,
        shared_bytes: c_uint,
        stream: usize,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) {
        let kernel = *KERNELS.get(function.wrapping_sub(FIRST)).ok_or(INVALID_HANDLE)?;
        let arguments = Arguments::read(parameters);
        let shared = kernel.shared_bytes(arguments.channels);
        let is_right = blocks_x > 0
            && (1..=65_535).contains(&blocks_y)
            && [blocks_z, threads_y, threads_z] == [1; 3]
            && threads_x == THREADS
            && shared_bytes as usize == shared
            && shared <= 48 << 10;
        if !is_right {
            return Err(INVALID_VALUE);
        }
        put_work("cuLaunchKernel", stream, move || arguments.compute(kernel))
    }
}
