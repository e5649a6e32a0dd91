//! Cutting and interpolating RGB pixels.
//!
//! The filters, their support and the antialiasing are Pillow's. Pixels outside the wanted part do not contribute, as
//! when an image is cropped before it is resized.

use coprep_protocol::spec::Interpolation;
use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use crate::codec::View;
use crate::crop::{ImageSize, Padding};
use crate::error::{Error, ErrorKind};

/// Interpolates `view` to exactly `size`, into `out`, which must have exactly the bytes of that size.
pub(crate) fn resize(
    resizer: &mut Resizer,
    view: View<'_>,
    size: ImageSize,
    filter: Interpolation,
    out: &mut [u8],
) -> Result<(), Error> {
    let source =
        TypedImageRef::<U8x3>::from_buffer(view.buffer.width, view.buffer.height, view.pixels)
            .map_err(defect)?;
    let rect = view.rect;
    let source = TypedCroppedImage::new(source, rect.x, rect.y, rect.size.width, rect.size.height)
        .map_err(defect)?;
    let mut target =
        TypedImage::<U8x3>::from_buffer(size.width, size.height, out).map_err(defect)?;
    let options = ResizeOptions::new()
        .resize_alg(algorithm(filter))
        .use_alpha(false);
    // The part of a reduced JPEG lies between pixels, where only the resizer can cut.
    let options = match view.precise {
        Some(part) => options.crop(part.x, part.y, part.width, part.height),
        None => options,
    };
    resizer
        .resize_typed(&source, &mut target, &options)
        .map_err(defect)
}

fn algorithm(filter: Interpolation) -> ResizeAlg {
    match filter {
        Interpolation::Nearest => ResizeAlg::Nearest,
        Interpolation::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
        Interpolation::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
    }
}

fn defect(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::WrongLength, "an image could not be resized").because(error)
}

/// Copies `view` into `out`, an image of `size`, at the offset `padding`. The rest of `out` becomes zero.
pub(crate) fn paste(view: View<'_>, size: ImageSize, padding: Padding, out: &mut [u8]) {
    out.fill(0);
    let pitch = size.width as usize * 3;
    let left = padding.left as usize * 3;
    let rows = out.chunks_exact_mut(pitch).skip(padding.top as usize);
    for (to, from) in rows.zip(view.rows()) {
        to[left..left + from.len()].copy_from_slice(from);
    }
}

/// Copies `view`, mirrored left to right, into `out`, which must have exactly its bytes.
pub(crate) fn mirror(view: View<'_>, out: &mut [u8]) {
    let pitch = view.rect.size.width as usize * 3;
    for (to, from) in out.chunks_exact_mut(pitch).zip(view.rows()) {
        let pixels = from.as_chunks::<3>().0.iter().rev();
        to.as_chunks_mut::<3>()
            .0
            .iter_mut()
            .zip(pixels)
            .for_each(|(to, from)| *to = *from);
    }
}

impl<'a> View<'a> {
    /// Returns the rows of the part, each cut to the part's columns.
    pub(crate) fn rows(self) -> impl Iterator<Item = &'a [u8]> {
        let pitch = self.buffer.width as usize * 3;
        let columns = self.rect.x as usize * 3..self.rect.right() as usize * 3;
        let rows = self.pixels.chunks_exact(pitch).skip(self.rect.y as usize);
        rows.take(self.rect.size.height as usize)
            .map(move |row| &row[columns.clone()])
    }
}
