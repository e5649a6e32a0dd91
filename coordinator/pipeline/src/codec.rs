//! Decoding of encoded bytes to 8-bit RGB: a whole image, or a part of one.
//!
//! | stored as | becomes |
//! |---|---|
//! | gray, 1 to 16 bits | the gray value in all three channels |
//! | palette | the palette's colours |
//! | alpha of any kind | dropped (not blended), as by Pillow's `convert("RGB")` |
//! | 16 bits per channel | the upper 8 (`v >> 8`) |
//! | CMYK, YCCK | as Pillow: inverted as Adobe stores them, then `(255 - ink) * (255 - black) / 255` |
//!
//! Only a JPEG can be decoded in part or reduced. The other formats are decoded whole and then cut. Colour profiles and
//! gamma chunks are not applied, as in Pillow and torchvision.

use std::io::Cursor;

use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, Limits};

use crate::crop::{ImageSize, Rect, decode_region, reduction};
use crate::error::{self, Error};
use crate::header::{self, ImageFormat, ImageHeader};
use crate::jpeg::{Colours, JpegDecoder, JpegHeader};

/// Decoder buffers that one thread uses again for every image.
#[derive(Default)]
pub(crate) struct Codec {
    /// Pixels as the decoder wrote them, in the format's own colours, for images that are not stored as RGB.
    raw: Vec<u8>,
    rgb: Vec<u8>,
    turned: Vec<u8>,
}

/// A part of a buffer of decoded RGB pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// Rows of `buffer.width` pixels.
    pub(crate) pixels: &'a [u8],
    pub(crate) buffer: ImageSize,
    /// The part, in whole pixels of the buffer.
    pub(crate) rect: Rect,
    /// The same part in fractions of a pixel, relative to `rect`. It is set if the part does not fill `rect`, which
    /// happens when the image was reduced while decoding.
    pub(crate) precise: Option<Fraction>,
}

/// A rectangle whose edges may lie between pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fraction {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// Size of the decoded buffer and, within it, the part that the caller asked for.
struct Decoded {
    size: ImageSize,
    wanted: Fraction,
}

impl<'a> View<'a> {
    /// Returns a view of the whole image.
    pub(crate) fn whole(pixels: &'a [u8], size: ImageSize) -> Self {
        View {
            pixels,
            buffer: size,
            rect: size.whole(),
            precise: None,
        }
    }
}

impl Codec {
    /// Decodes `part` of an image; `part` is given in the image's turned frame.
    ///
    /// If the part will be shrunk to `target` anyway, a JPEG is reduced while it is decoded. The part then lies between
    /// pixels.
    pub(crate) fn part(
        &mut self,
        bytes: &[u8],
        header: &ImageHeader,
        part: Rect,
        target: Option<ImageSize>,
    ) -> Result<View<'_>, Error> {
        let stored = untwist(part, header);
        let decoded = match header.format {
            ImageFormat::Jpeg => {
                self.jpeg(bytes, header, stored, target.map(|t| oriented(t, header)))?
            }
            _ => {
                self.rgb.resize(header.stored.bytes(), 0);
                decode_other(bytes, header, &mut self.raw, &mut self.rgb)?;
                Decoded {
                    size: header.stored,
                    wanted: stored.into(),
                }
            }
        };
        Ok(self.turn(decoded, header.orientation))
    }

    /// Decodes a whole image, without reducing it, into `out`, which must have exactly the bytes of the turned size.
    pub(crate) fn whole_into(
        &mut self,
        bytes: &[u8],
        header: &ImageHeader,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let size = header.size();
        if out.len() != size.bytes() {
            return Err(error::wrong_length("decoded form", size.bytes(), out.len()));
        }
        // Turning copies every pixel, so the decoder cannot write into `out` directly.
        if header.orientation != Orientation::NoTransforms {
            out.copy_from_slice(self.part(bytes, header, size.whole(), None)?.pixels);
            return Ok(());
        }
        match header.format {
            ImageFormat::Jpeg => {
                let mut jpeg = open_jpeg(bytes, header)?;
                jpeg.decode(bytes, 1, header.stored.whole(), &mut self.raw, out)
            }
            _ => decode_other(bytes, header, &mut self.raw, out),
        }
    }

    fn jpeg(
        &mut self,
        bytes: &[u8],
        header: &ImageHeader,
        part: Rect,
        target: Option<ImageSize>,
    ) -> Result<Decoded, Error> {
        let mut jpeg = open_jpeg(bytes, header)?;
        let by = target.map_or(1, |target| reduction(part.size, target));
        // The decoder can start at the left edge of an MCU only. A reduction makes MCUs narrower.
        let region = match jpeg.header.mcu_width {
            Some(mcu) => decode_region(header.stored, part, by, mcu.div_ceil(by)),
            None => header.stored.reduced(by).whole(),
        };
        self.rgb.resize(region.size.bytes(), 0);
        jpeg.decode(bytes, by, region, &mut self.raw, &mut self.rgb)?;
        Ok(Decoded {
            size: region.size,
            wanted: Fraction::from(part).reduced(by).moved(region),
        })
    }

    /// Turns the decoded buffer as the orientation says, and returns a view of the wanted part.
    fn turn(&mut self, decoded: Decoded, orientation: Orientation) -> View<'_> {
        let Decoded { size, wanted } = decoded;
        let pixels = &self.rgb[..size.bytes()];
        if orientation == Orientation::NoTransforms {
            return view(pixels, size, wanted);
        }
        turn_pixels(pixels, size, orientation, &mut self.turned);
        let size_turned = if header::transposes(orientation) {
            size.transposed()
        } else {
            size
        };
        view(&self.turned, size_turned, wanted.turned(size, orientation))
    }
}

fn view(pixels: &[u8], buffer: ImageSize, wanted: Fraction) -> View<'_> {
    let rect = wanted.outer(buffer);
    let inner = wanted.moved(rect);
    let precise = (inner != Fraction::from(rect.size.whole())).then_some(inner);
    View {
        pixels,
        buffer,
        rect,
        precise,
    }
}

struct OpenJpeg {
    decoder: JpegDecoder,
    header: JpegHeader,
}

fn open_jpeg(bytes: &[u8], header: &ImageHeader) -> Result<OpenJpeg, Error> {
    if !header::has_end(bytes, header.scan) {
        return Err(error::damaged(
            "the JPEG is cut short (it has no end-of-image marker)",
        ));
    }
    let mut decoder = JpegDecoder::new()?;
    let own = decoder.read_header(bytes)?;
    // Buffers are sized by our own reading of the header, so the decoder must not find another size.
    if own.size != header.stored {
        return Err(error::damaged(
            "the JPEG has several headers that contradict each other",
        ));
    }
    Ok(OpenJpeg {
        decoder,
        header: own,
    })
}

impl OpenJpeg {
    fn decode(
        &mut self,
        bytes: &[u8],
        by: u32,
        region: Rect,
        raw: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<(), Error> {
        match self.header.colours {
            Colours::Rgb => self.decoder.decode(bytes, &self.header, by, region, out),
            Colours::Cmyk => {
                raw.resize(region.size.bytes() / 3 * 4, 0);
                self.decoder.decode(bytes, &self.header, by, region, raw)?;
                rgb_from_cmyk(raw, out);
                Ok(())
            }
        }
    }
}

/// Converts CMYK to RGB as Pillow does (`CMYK;I` and `cmyk2rgb`).
fn rgb_from_cmyk(cmyk: &[u8], rgb: &mut [u8]) {
    for (ink, out) in cmyk
        .as_chunks::<4>()
        .0
        .iter()
        .zip(rgb.as_chunks_mut::<3>().0)
    {
        // Adobe stores inks inverted: the stored value for black is already 255 - black.
        let white = ink[3];
        *out = [0, 1, 2].map(|c| white.saturating_sub(product(255 - ink[c], white)));
    }
}

/// Returns `a * b / 255`, rounded to the nearest integer.
fn product(a: u8, b: u8) -> u8 {
    let x = u32::from(a) * u32::from(b) + 128;
    (((x >> 8) + x) >> 8) as u8
}

fn decode_other(
    bytes: &[u8],
    header: &ImageHeader,
    raw: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<(), Error> {
    match header.format {
        ImageFormat::Png => decode_with(
            PngDecoder::with_limits(Cursor::new(bytes), limits(header)),
            header,
            raw,
            out,
        ),
        _ if !header::is_whole_webp(bytes) => Err(error::damaged("the WebP is cut short")),
        _ => decode_with(WebPDecoder::new(Cursor::new(bytes)), header, raw, out),
    }
}

/// Bounds the PNG decoder's memory at 16 bytes per pixel plus 64 MiB, enough for any valid file of this size.
fn limits(header: &ImageHeader) -> Limits {
    let mut limits = Limits::default();
    limits.max_alloc = Some(
        header
            .stored
            .pixels()
            .saturating_mul(16)
            .saturating_add(64 << 20),
    );
    limits
}

fn decode_with<D: ImageDecoder>(
    decoder: image::ImageResult<D>,
    header: &ImageHeader,
    raw: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<(), Error> {
    let decoder = decoder.map_err(broken)?;
    // The buffers were sized by our own reading of the header, so the decoder must agree with it.
    if decoder.dimensions() != (header.stored.width, header.stored.height) {
        return Err(error::damaged(
            "the image has several headers that contradict each other",
        ));
    }
    let colours = decoder.color_type();
    // These pixels need no conversion, so they are decoded in place.
    if colours == ColorType::Rgb8 {
        return decoder.read_image(out).map_err(broken);
    }
    let length = header.stored.pixels() as usize * usize::from(colours.bytes_per_pixel());
    raw.resize(length, 0);
    decoder.read_image(raw).map_err(broken)?;
    to_rgb(colours, raw, out)
}

/// Converts an error of the `image` crate.
fn broken(error: image::ImageError) -> Error {
    match error {
        image::ImageError::Unsupported(e) => error::unsupported(e),
        e => error::damaged(e),
    }
}

fn to_rgb(colours: ColorType, raw: &[u8], out: &mut [u8]) -> Result<(), Error> {
    match colours {
        ColorType::L8 => repack::<1>(raw, out, |[l]| [l; 3]),
        ColorType::La8 => repack::<2>(raw, out, |[l, _]| [l; 3]),
        ColorType::Rgba8 => repack::<4>(raw, out, |[r, g, b, _]| [r, g, b]),
        ColorType::L16 => repack::<2>(raw, out, |l| [high(l); 3]),
        ColorType::La16 => repack::<4>(raw, out, |[a, b, ..]| [high([a, b]); 3]),
        ColorType::Rgb16 => repack::<6>(raw, out, |[a, b, c, d, e, f]| {
            [high([a, b]), high([c, d]), high([e, f])]
        }),
        ColorType::Rgba16 => {
            repack::<8>(raw, out, |[a, b, c, d, e, f, ..]| {
                [high([a, b]), high([c, d]), high([e, f])]
            });
        }
        other => {
            return Err(error::unsupported(format!(
                "an image with colours of type {other:?}"
            )));
        }
    }
    Ok(())
}

/// Returns the upper byte of a 16-bit channel.
fn high(native: [u8; 2]) -> u8 {
    (u16::from_ne_bytes(native) >> 8) as u8
}

fn repack<const N: usize>(raw: &[u8], out: &mut [u8], pixel: impl Fn([u8; N]) -> [u8; 3]) {
    for (from, to) in raw
        .as_chunks::<N>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<3>().0)
    {
        *to = pixel(*from);
    }
}

fn oriented(size: ImageSize, header: &ImageHeader) -> ImageSize {
    if header::transposes(header.orientation) {
        size.transposed()
    } else {
        size
    }
}

/// Maps a part of the turned image back to the stored image.
fn untwist(part: Rect, header: &ImageHeader) -> Rect {
    // Only the two rotations by a right angle are not their own inverse.
    let back = match header.orientation {
        Orientation::Rotate90 => Orientation::Rotate270,
        Orientation::Rotate270 => Orientation::Rotate90,
        own => own,
    };
    Fraction::from(part)
        .turned(header.size(), back)
        .outer(header.stored)
}

impl From<Rect> for Fraction {
    fn from(rect: Rect) -> Self {
        Fraction {
            x: rect.x.into(),
            y: rect.y.into(),
            width: rect.size.width.into(),
            height: rect.size.height.into(),
        }
    }
}

impl Fraction {
    fn reduced(self, by: u32) -> Self {
        let by = f64::from(by);
        Fraction {
            x: self.x / by,
            y: self.y / by,
            width: self.width / by,
            height: self.height / by,
        }
    }

    /// Returns the rectangle relative to the corner of `origin`.
    fn moved(self, origin: Rect) -> Self {
        Fraction {
            x: self.x - f64::from(origin.x),
            y: self.y - f64::from(origin.y),
            ..self
        }
    }

    /// Returns the smallest rectangle of whole pixels that covers this one, within an image of `size`.
    fn outer(self, size: ImageSize) -> Rect {
        let (x, y) = (self.x as u32, self.y as u32);
        let right = ((self.x + self.width).ceil() as u32).min(size.width);
        let bottom = ((self.y + self.height).ceil() as u32).min(size.height);
        Rect {
            x,
            y,
            size: ImageSize::new(right - x, bottom - y),
        }
    }

    /// Returns where the rectangle lies after an image of `size` was turned.
    fn turned(self, size: ImageSize, orientation: Orientation) -> Self {
        let Fraction {
            x,
            y,
            width,
            height,
        } = self;
        let right = f64::from(size.width) - x - width;
        let below = f64::from(size.height) - y - height;
        match orientation {
            Orientation::NoTransforms => self,
            Orientation::FlipHorizontal => Fraction { x: right, ..self },
            Orientation::FlipVertical => Fraction { y: below, ..self },
            Orientation::Rotate180 => Fraction {
                x: right,
                y: below,
                width,
                height,
            },
            Orientation::Rotate90 => Fraction {
                x: below,
                y: x,
                width: height,
                height: width,
            },
            Orientation::Rotate270 => Fraction {
                x: y,
                y: right,
                width: height,
                height: width,
            },
            Orientation::Rotate90FlipH => Fraction {
                x: y,
                y: x,
                width: height,
                height: width,
            },
            Orientation::Rotate270FlipH => Fraction {
                x: below,
                y: right,
                width: height,
                height: width,
            },
        }
    }
}

/// Turns an image. Afterwards `out` holds exactly the turned image.
fn turn_pixels(pixels: &[u8], size: ImageSize, orientation: Orientation, out: &mut Vec<u8>) {
    out.resize(size.bytes(), 0);
    let (width, height) = (size.width as usize, size.height as usize);
    let columns = if header::transposes(orientation) {
        height
    } else {
        width
    };
    let source = pixels.as_chunks::<3>().0;
    for (i, to) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let (x, y) = (i % columns, i / columns);
        let (from_x, from_y) = match orientation {
            Orientation::NoTransforms => (x, y),
            Orientation::FlipHorizontal => (width - 1 - x, y),
            Orientation::FlipVertical => (x, height - 1 - y),
            Orientation::Rotate180 => (width - 1 - x, height - 1 - y),
            Orientation::Rotate90 => (y, height - 1 - x),
            Orientation::Rotate270 => (width - 1 - y, x),
            Orientation::Rotate90FlipH => (y, x),
            Orientation::Rotate270FlipH => (width - 1 - y, height - 1 - x),
        };
        *to = source[from_y * width + from_x];
    }
}
