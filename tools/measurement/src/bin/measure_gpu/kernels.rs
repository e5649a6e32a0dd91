//! Conversion of a minibatch on a GPU: how long it takes, and whether its bits are those of the CPU.

use coprep_device::{
    Context, ConvertTable, Converter, DeviceMemory, ElementOrder, ElementType, ImageShape,
    StagingSource, Stream, StreamWork, TIMEOUT,
};
use coprep_measurement::Result;
use coprep_protocol::normalize::NormalizeTable;
use serde::Serialize;

use crate::Settings;
use crate::area::{Area, IMAGE_BYTES, fill};
use crate::clock::gpu_time;

const CHANNELS: usize = 3;
const PIXELS: usize = IMAGE_BYTES / CHANNELS;
/// Means and standard deviations of ImageNet.
const MEAN: [f32; CHANNELS] = [0.485, 0.456, 0.406];
const STD: [f32; CHANNELS] = [0.229, 0.224, 0.225];
const ELEMENTS: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::Bf16];
const ORDERS: [ElementOrder; 2] = [ElementOrder::Planes, ElementOrder::Interleaved];
/// Uploads that keep the GPU busy until all launches are in the stream. Each takes about 0.2 ms with 64 images, and a
/// launch takes some microseconds to ask for.
const UPLOADS_BEFORE: usize = 40;
/// Minibatches that are converted in turn. Together they are several times as large as a GPU's cache, which would
/// otherwise have the last one.
const ROTATION: usize = 4;

/// Results for one type and one order of elements.
#[derive(Serialize)]
pub(crate) struct Kernel {
    element: &'static str,
    order: &'static str,
    /// Bytes that the kernel reads and writes.
    bytes_moved: usize,
    us: Vec<f64>,
    /// Bits in which its outputs differ from that of the CPU.
    different_bits: u64,
}

/// A copy in the GPU's memory that reads and writes as many bytes as the conversion to float32.
#[derive(Serialize)]
pub(crate) struct PlainCopy {
    bytes_moved: usize,
    us: Vec<f64>,
}

struct Case {
    element: ElementType,
    order: ElementOrder,
    table: ConvertTable,
    outs: Rotation,
    us: Vec<f64>,
}

/// Memory of a GPU for several minibatches.
type Rotation = Vec<DeviceMemory>;

fn rotation(context: &Context, bytes: usize) -> Result<Rotation> {
    let each = (0..ROTATION).map(|_| DeviceMemory::allocate(context, bytes));
    Ok(each.collect::<std::result::Result<_, _>>()?)
}

/// All types and orders of elements.
pub(crate) struct Bench {
    stream: Stream,
    launches: usize,
    converter: Converter,
    shape: ImageShape,
    source: StagingSource,
    images: Rotation,
    cases: Vec<Case>,
    /// Memory for the plain copy: its sources and its targets.
    copied: [Rotation; 2],
    copy_us: Vec<f64>,
}

impl Bench {
    pub(crate) fn prepare(context: &Context, settings: Settings) -> Result<Self> {
        let stream = Stream::create(context)?;
        let area = Area::filled(IMAGE_BYTES, settings.images, 1)?;
        let source = StagingSource::open(context, area.view()?)?;
        let bytes = area.minibatch_bytes();
        let normalize = NormalizeTable::new(MEAN, STD);
        let mut cases = Vec::new();
        for (element, order) in ELEMENTS.into_iter().flat_map(|e| ORDERS.map(|o| (e, o))) {
            cases.push(Case {
                element,
                order,
                table: ConvertTable::upload(&stream, normalize.channels(), element)?,
                outs: rotation(context, bytes * element.bytes())?,
                us: Vec::new(),
            });
        }
        let half = moved(ElementType::F32, bytes) / 2;
        let bench = Bench {
            converter: Converter::load(context)?,
            shape: ImageShape {
                images: settings.images,
                channels: CHANNELS as u32,
                pixels: PIXELS as u32,
            },
            launches: settings.launches as usize,
            source,
            images: rotation(context, bytes)?,
            cases,
            copied: [rotation(context, half)?, rotation(context, half)?],
            copy_us: Vec::new(),
            stream,
        };
        Ok(bench)
    }

    /// Measures each case, and the plain copy, once.
    pub(crate) fn measure_each(&mut self) -> Result<()> {
        for at in 0..self.cases.len() {
            let us = self.us(|work, turn| self.convert(work, &self.cases[at], turn))?;
            self.cases[at].us.push(us);
        }
        let [from, to] = &self.copied;
        let us = self.us(|work, turn| Ok(work.copy(&from[turn], &to[turn])?))?;
        self.copy_us.push(us);
        Ok(())
    }

    fn convert(&self, work: &mut StreamWork<'_>, case: &Case, turn: usize) -> Result<()> {
        let (table, order) = (&case.table, case.order);
        let (images, out) = (&self.images[turn], &case.outs[turn]);
        Ok(self
            .converter
            .convert(work, table, self.shape, images, out, order)?)
    }

    /// Returns the microseconds that the GPU takes for something that it does with one minibatch after the other.
    fn us(&self, once: impl Fn(&mut StreamWork<'_>, usize) -> Result<()>) -> Result<f64> {
        let upload_all = |work: &mut StreamWork<'_>| {
            let mut images = self.images.iter().cycle().take(UPLOADS_BEFORE);
            images.try_for_each(|to| Ok(self.source.upload(work, 0..to.bytes(), to)?))
        };
        let measured = |work: &mut StreamWork<'_>| {
            (0..self.launches).try_for_each(|number| once(work, number % ROTATION))
        };
        let time = gpu_time(&self.stream, upload_all, measured)?;
        Ok(time.as_secs_f64() * 1e6 / self.launches as f64)
    }

    /// Compares the last outputs with the CPU's, and returns all results.
    pub(crate) fn results(self) -> Result<(Vec<Kernel>, PlainCopy)> {
        let plain_copy = PlainCopy {
            bytes_moved: 2 * self.copied[0][0].bytes(),
            us: self.copy_us,
        };
        let mut images = vec![0; self.images[0].bytes()];
        for (number, image) in images.chunks_mut(IMAGE_BYTES).enumerate() {
            fill(image, u32::try_from(number)?);
        }
        let mut kernels = Vec::new();
        for case in self.cases {
            let expected = case.element.encode(&normalized(&images, case.order));
            let mut different = 0;
            for out in case.outs.iter().take(self.launches) {
                different += different_bits(&out.read(&self.stream, TIMEOUT)?, &expected);
            }
            kernels.push(Kernel {
                element: element_name(case.element),
                order: order_name(case.order),
                bytes_moved: moved(case.element, images.len()),
                us: case.us,
                different_bits: different,
            });
        }
        Ok((kernels, plain_copy))
    }
}

/// Returns the bytes that a conversion reads and writes.
fn moved(element: ElementType, images: usize) -> usize {
    images + images * element.bytes()
}

/// Normalises images on the CPU, by the table that pipelines use.
fn normalized(images: &[u8], order: ElementOrder) -> Vec<f32> {
    let table = NormalizeTable::new(MEAN, STD);
    let mut values = vec![0.0; images.len()];
    for (at, &byte) in images.iter().enumerate() {
        let (image, channel, pixel) = (at / IMAGE_BYTES, at / PIXELS % CHANNELS, at % PIXELS);
        let to = match order {
            ElementOrder::Planes => at,
            ElementOrder::Interleaved => (image * PIXELS + pixel) * CHANNELS + channel,
        };
        values[to] = table.channels()[channel][usize::from(byte)];
    }
    values
}

/// Returns the number of different bits. Those that one side lacks are different too.
fn different_bits(left: &[u8], right: &[u8]) -> u64 {
    let pairs = left.iter().zip(right);
    let different: u64 = pairs.map(|(l, r)| u64::from((l ^ r).count_ones())).sum();
    different + 8 * left.len().abs_diff(right.len()) as u64
}

fn element_name(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 => "float32",
        ElementType::F16 => "float16",
        ElementType::Bf16 => "bfloat16",
    }
}

fn order_name(order: ElementOrder) -> &'static str {
    match order {
        ElementOrder::Planes => "NCHW",
        ElementOrder::Interleaved => "NHWC",
    }
}
