//! The kernels that convert images, loaded for a GPU.

use coprep_device::{
    ConvertTable, Converter, DeviceMemory, ElementOrder, ElementType, ErrorKind, ImageShape,
    Stream, StreamWork,
};
use coprep_protocol::normalize::NormalizeTable;
use coprep_protocol::spec::{Dtype, Field};

use crate::device::options::ImageConversion;
use crate::error::{Error, Result};

/// Name of the field with the images of a native pipeline.
const IMAGE: &str = "image";

/// Kernels and table for the conversion of images.
pub(super) struct Conversion {
    converter: Converter,
    table: ConvertTable,
    element: ElementType,
    order: ElementOrder,
}

impl Conversion {
    /// Loads the kernels. Returns the reason in words if this GPU or its driver cannot run them.
    pub(super) fn load(
        stream: &Stream,
        images: &ImageConversion,
    ) -> Result<std::result::Result<Self, String>> {
        let converter = match Converter::load(stream.context()) {
            Ok(converter) => converter,
            // Neither of these says that this GPU cannot run the kernels.
            Err(e) if matches!(e.kind(), ErrorKind::Fault | ErrorKind::OutOfMemory) => {
                return Err(Error::from_lower(e));
            }
            Err(e) => return Ok(Err(e.to_string())),
        };
        // The table of the CPU path, so that both give the same bits.
        let table = NormalizeTable::new(images.mean, images.std);
        let table = ConvertTable::upload(stream, table.channels(), images.element);
        Ok(Ok(Conversion {
            converter,
            table: table.map_err(Error::from_lower)?,
            element: images.element,
            order: images.order,
        }))
    }

    /// Returns the type of the elements, and whether the channels of a pixel lie together, if the field is one of
    /// images.
    pub(super) fn form(&self, field: &Field) -> Option<(Dtype, bool)> {
        image_shape(field, 0)?;
        let dtype = match self.element {
            ElementType::F32 => Dtype::F32,
            ElementType::F16 => Dtype::F16,
            ElementType::Bf16 => Dtype::BF16,
        };
        Some((dtype, self.order == ElementOrder::Interleaved))
    }

    /// Puts the conversion of `samples` images into a stream.
    pub(super) fn put(
        &self,
        work: &mut StreamWork<'_>,
        field: &Field,
        samples: u32,
        from: &DeviceMemory,
        to: &DeviceMemory,
    ) -> coprep_device::Result<()> {
        let Some(shape) = image_shape(field, samples) else {
            return work.copy(from, to);
        };
        self.converter
            .convert(work, &self.table, shape, from, to, self.order)
    }
}

/// Returns the shape of images of three channels of bytes, or `None` if the field has something else.
fn image_shape(field: &Field, images: u32) -> Option<ImageShape> {
    match (field.name.as_str(), field.dtype, field.shape.as_slice()) {
        (IMAGE, Dtype::U8, &[channels @ 3, height, width]) => Some(ImageShape {
            images,
            channels,
            pixels: height.checked_mul(width)?,
        }),
        _ => None,
    }
}
