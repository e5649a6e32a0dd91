//! Conversion of images on a GPU: bytes become elements of a tensor, by a table.
#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUmodule};

use crate::context::Context;
use crate::element::ElementType;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::host_buffer::HostBuffer;
use crate::memory::{DeviceMemory, Hold};
use crate::stream::Stream;
use crate::work::{StreamWork, TIMEOUT};

/// The kernels as text, which the driver compiles for its GPU. `make ptx` makes it of `convert.cu`.
const PTX: &str = include_str!("../kernels/convert.ptx");
/// Threads of a block, as the kernels declare it.
const THREADS: u32 = 256;
/// Bytes of the elements that a thread makes at a time for planes, as the kernel does: four stores of 16 bytes.
const ELEMENT_BYTES_OF_PLANES: u32 = 64;
/// Pixels that a thread converts at a time to interleaved elements, as the kernel does.
const PIXELS_OF_INTERLEAVED: u32 = 4;
/// Channels whose interleaved elements a block collects before it stores them.
const COLLECTED_CHANNELS: u32 = 3;
/// Most blocks in the second dimension of a launch, of any GPU.
const MOST_BLOCKS_Y: u32 = 65_535;
/// Most pixels of a plane, so that the kernels count them with 32 bits, and the pixels of a launch beyond them too.
const MOST_PIXELS: u32 = 1 << 30;
/// Most channels: their tables fill the shared memory that each block may have on any GPU, 48 KiB.
const MOST_CHANNELS: usize = 48;

/// The order of the elements of converted images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementOrder {
    /// A plane for each channel, as in `torch.contiguous_format`: NCHW.
    Planes,
    /// All channels of a pixel together, as in `torch.channels_last`: NHWC.
    Interleaved,
}

/// The shape of the images in a staging buffer: planes of bytes, image by image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Number of images.
    pub images: u32,
    /// Number of channels of an image.
    pub channels: u32,
    /// Number of pixels of a plane.
    pub pixels: u32,
}

impl ImageShape {
    /// Returns the number of elements, or `None` if they are more than memory has addresses.
    fn elements(self) -> Option<usize> {
        let plane = self.pixels as usize;
        plane
            .checked_mul(self.channels as usize)?
            .checked_mul(self.images as usize)
    }
}

/// A table in the memory of a GPU: the element for each of the 256 values of a byte, by channel.
pub struct ConvertTable {
    memory: DeviceMemory,
    channels: u32,
    element: ElementType,
}

impl ConvertTable {
    /// Copies the values to the GPU, rounded to elements, and waits for the copy.
    ///
    /// # Errors
    /// If there are no channels or more than 48, or the GPU's memory is short.
    pub fn upload(stream: &Stream, channels: &[[f32; 256]], element: ElementType) -> Result<Self> {
        if channels.is_empty() || channels.len() > MOST_CHANNELS {
            let why = format!(
                "{} channels, from 1 to {MOST_CHANNELS} can be",
                channels.len()
            );
            return Err(invalid("cannot convert images", why));
        }
        let bytes = element.encode(channels.as_flattened());
        let buffer = Arc::new(HostBuffer::allocate(stream.context(), bytes.len())?);
        // SAFETY: the bytes of the vector. The buffer is new, so nobody uses it.
        unsafe { buffer.fill(bytes.as_ptr(), bytes.len()) };
        let memory = DeviceMemory::allocate(stream.context(), bytes.len())?;
        let mut work = StreamWork::begin(stream)?;
        // SAFETY: the buffer has the bytes, and nobody writes it again.
        unsafe { work.upload(buffer.start().as_ptr(), buffer.clone(), &memory) }?;
        work.submit()?.wait(TIMEOUT)?;
        Ok(ConvertTable {
            memory,
            channels: channels.len() as u32,
            element,
        })
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }
}

/// The kernels that convert images, loaded into a context.
pub struct Converter {
    module: Arc<Module>,
    kernels: Kernels,
}

/// The size of a launch.
struct Grid {
    /// Blocks for a plane, or for an image of interleaved elements.
    blocks_x: u32,
    /// Planes or images. If there are more, each block goes on with another.
    blocks_y: u32,
    /// Memory that the threads of a block share.
    shared_bytes: u32,
}

impl Grid {
    fn new(shape: ImageShape, element: ElementType, order: ElementOrder) -> Self {
        let bytes = element.bytes() as u32;
        let blocks = |pixels_of_thread: u32| shape.pixels.div_ceil(THREADS * pixels_of_thread);
        match order {
            ElementOrder::Planes => Grid {
                blocks_x: blocks(ELEMENT_BYTES_OF_PLANES / bytes),
                blocks_y: shape
                    .images
                    .saturating_mul(shape.channels)
                    .min(MOST_BLOCKS_Y),
                shared_bytes: bytes * 256,
            },
            ElementOrder::Interleaved => Grid {
                blocks_x: blocks(PIXELS_OF_INTERLEAVED),
                blocks_y: shape.images.min(MOST_BLOCKS_Y),
                shared_bytes: bytes * interleaved_shared_elements(shape.channels),
            },
        }
    }
}

/// Returns the number of elements in the shared memory of a block: the table, and what the block collects.
fn interleaved_shared_elements(channels: u32) -> u32 {
    let collected = if channels == COLLECTED_CHANNELS {
        THREADS * PIXELS_OF_INTERLEAVED * channels
    } else {
        0
    };
    channels * 256 + collected
}

struct Kernels {
    planes_16: CUfunction,
    planes_32: CUfunction,
    interleaved_16: CUfunction,
    interleaved_32: CUfunction,
}

// SAFETY: the addresses are only names for the driver, which allows calls with them from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Converter {
    /// Has the driver compile the kernels for the GPU. The first time for a user it takes some tenths of a second;
    /// later the driver finds them in its own cache.
    ///
    /// # Errors
    /// If the driver or the GPU is too old for them ([`ErrorKind::Unsupported`]).
    pub fn load(context: &Context) -> Result<Self> {
        let module = Module::load(context, PTX)?;
        let kernels = Kernels {
            planes_16: module.kernel(c"coprep_planes_16")?,
            planes_32: module.kernel(c"coprep_planes_32")?,
            interleaved_16: module.kernel(c"coprep_interleaved_16")?,
            interleaved_32: module.kernel(c"coprep_interleaved_32")?,
        };
        Ok(Converter {
            module: Arc::new(module),
            kernels,
        })
    }

    /// Puts the conversion of images into the stream of `work`. `out` gets an element for each byte of `images`, in the
    /// given order.
    ///
    /// # Errors
    /// If a size does not fit the shape, or `out` cannot be written.
    pub fn convert(
        &self,
        work: &mut StreamWork<'_>,
        table: &ConvertTable,
        shape: ImageShape,
        images: &DeviceMemory,
        out: &DeviceMemory,
        order: ElementOrder,
    ) -> Result<()> {
        let elements = check(table, shape, images, out)?;
        // The driver refuses a launch without blocks.
        if elements == 0 {
            return Ok(());
        }
        let (mut from, mut to, mut values) =
            (images.address(), out.address(), table.memory.address());
        let (mut channels, mut pixels, mut count) = (shape.channels, shape.pixels, shape.images);
        let mut arguments: [*mut c_void; 6] = [
            (&raw mut from).cast(),
            (&raw mut to).cast(),
            (&raw mut values).cast(),
            (&raw mut channels).cast(),
            (&raw mut pixels).cast(),
            (&raw mut count).cast(),
        ];
        let kernel = self.kernel(table.element, order);
        let grid = Grid::new(shape, table.element, order);
        let stream = work.stream().raw();
        let module: Hold = self.module.clone();
        let holds = [images.hold(), out.hold(), table.memory.hold(), module];
        // SAFETY: the arguments have the number, order and types of the kernel's parameters, and the driver copies them
        // before the call returns. All memory has the size that the kernel uses, as `check` saw, and `holds` keep it
        // and the kernel.
        unsafe {
            work.put(holds, "convert images", |cuda| {
                (cuda.cuLaunchKernel)(
                    kernel,
                    grid.blocks_x,
                    grid.blocks_y,
                    1,
                    THREADS,
                    1,
                    1,
                    grid.shared_bytes,
                    stream,
                    arguments.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            })
        }
    }

    fn kernel(&self, element: ElementType, order: ElementOrder) -> CUfunction {
        let kernels = &self.kernels;
        match (order, element) {
            (ElementOrder::Planes, ElementType::F32) => kernels.planes_32,
            (ElementOrder::Planes, ElementType::F16 | ElementType::Bf16) => kernels.planes_16,
            (ElementOrder::Interleaved, ElementType::F32) => kernels.interleaved_32,
            (ElementOrder::Interleaved, ElementType::F16 | ElementType::Bf16) => {
                kernels.interleaved_16
            }
        }
    }
}

/// Returns the number of elements, if all sizes fit them.
fn check(
    table: &ConvertTable,
    shape: ImageShape,
    images: &DeviceMemory,
    out: &DeviceMemory,
) -> Result<usize> {
    let wrong = |why: String| Err(invalid("cannot convert images", why));
    if shape.channels != table.channels {
        return wrong(format!(
            "they have {} channels, and the table has {}",
            shape.channels, table.channels
        ));
    }
    let elements = shape.elements();
    let sizes = elements.zip(elements.and_then(|n| n.checked_mul(table.element.bytes())));
    let Some((elements, bytes)) = sizes else {
        return wrong(format!("{shape:?} is larger than memory"));
    };
    images.check_bytes(elements)?;
    out.check_target(bytes)?;
    // A store to such an address is a fault of the GPU, after which no call of this process succeeds.
    if !out.address().is_multiple_of(table.element.bytes() as u64) {
        return wrong("the elements would begin at an odd address".to_owned());
    }
    if shape.pixels > MOST_PIXELS {
        return wrong(format!(
            "a plane has {} pixels, at most {MOST_PIXELS} can be",
            shape.pixels
        ));
    }
    Ok(elements)
}

/// Code that was loaded into a context.
struct Module {
    context: Context,
    raw: CUmodule,
}

// SAFETY: the address is only a name for the driver, which allows calls with it from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    fn load(context: &Context, ptx: &str) -> Result<Self> {
        let text = CString::new(ptx).map_err(|e| {
            Error::new(
                ErrorKind::Invalid,
                "cannot load the kernels that convert images",
            )
            .because(e)
        })?;
        let mut raw = std::ptr::null_mut();
        context.call(
            || "load the kernels that convert images".to_owned(),
            // SAFETY: the context is current; the text ends with a zero; both pointers live until the call returns.
            |cuda| unsafe { (cuda.cuModuleLoadData)(&mut raw, text.as_ptr().cast()) },
        )?;
        Ok(Module {
            context: context.clone(),
            raw,
        })
    }

    fn kernel(&self, name: &CStr) -> Result<CUfunction> {
        let mut kernel = std::ptr::null_mut();
        self.context.call(
            || format!("find the kernel {}", name.to_string_lossy()),
            // SAFETY: the module lives; both pointers live until the call returns.
            |cuda| unsafe { (cuda.cuModuleGetFunction)(&mut kernel, self.raw, name.as_ptr()) },
        )?;
        Ok(kernel)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let raw = self.raw;
        // SAFETY: it was loaded here and is unloaded once. All work that runs its kernels holds this. There is no
        // remedy for an error.
        self.context
            .code(|cuda| unsafe { (cuda.cuModuleUnload)(raw) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_are_made_of_the_source_beside_them() {
        let source = include_bytes!("../kernels/convert.cu");
        let expected = format!("(CRC-32 {:08x})", crc32fast::hash(source));
        let first = PTX.lines().next().unwrap_or_default();
        assert!(
            first.contains(&expected),
            "{first}: convert.cu has changed, run `make ptx`"
        );
    }

    #[test]
    fn every_driver_since_the_first_gpu_that_is_supported_reads_the_kernels() {
        assert!(PTX.contains("\n.version 6.3\n.target sm_75\n"));
    }
}
