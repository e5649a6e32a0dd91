//! Image headers, read before any pixel is decoded: format and size.
//!
//! The first bytes tell the format; the file's name is never used. A prefix of the file is enough, provided that it
//! reaches the size.

use image::metadata::Orientation;

use crate::chunks::{array, jpeg_segments};
use crate::crop::ImageSize;
use crate::error::{self, Error};

/// An image format that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageFormat {
    Jpeg,
    Png,
    WebP,
}

/// Format and size of an image, as its header states them, and the turn to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageHeader {
    pub(crate) format: ImageFormat,
    /// Size as stored, before the orientation is applied.
    pub(crate) stored: ImageSize,
    /// Turn to apply; [`Orientation::NoTransforms`] unless the caller sets that of [`crate::orientation`].
    pub(crate) orientation: Orientation,
    /// Offset of a JPEG's first scan.
    pub(crate) scan: usize,
}

impl ImageHeader {
    /// Returns the size after the orientation is applied.
    pub(crate) fn size(&self) -> ImageSize {
        if transposes(self.orientation) {
            self.stored.transposed()
        } else {
            self.stored
        }
    }
}

/// Returns `true` if an orientation exchanges rows and columns.
pub(crate) fn transposes(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(
        orientation,
        Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH
    )
}

/// Reads the header, without the orientation. Refuses an image of more than `max_pixels`.
pub(crate) fn read(bytes: &[u8], max_pixels: u64) -> Result<ImageHeader, Error> {
    let header = match format(bytes)? {
        ImageFormat::Jpeg => jpeg(bytes)?,
        ImageFormat::Png => plain(ImageFormat::Png, png_size(bytes)?),
        ImageFormat::WebP => plain(ImageFormat::WebP, webp_size(bytes)?),
    };
    let size = header.stored;
    if size.width == 0 || size.height == 0 {
        return Err(error::damaged(format!(
            "the image is {} x {} pixels",
            size.width, size.height
        )));
    }
    if size.pixels() > max_pixels {
        return Err(error::too_large(
            format!("an image of {} x {} pixels", size.width, size.height),
            max_pixels,
        ));
    }
    Ok(header)
}

fn plain(format: ImageFormat, stored: ImageSize) -> ImageHeader {
    ImageHeader {
        format,
        stored,
        orientation: Orientation::NoTransforms,
        scan: 0,
    }
}

fn format(bytes: &[u8]) -> Result<ImageFormat, Error> {
    match bytes {
        [] => Err(error::not_an_image("the file is empty")),
        [0xff, 0xd8, 0xff, ..] => Ok(ImageFormat::Jpeg),
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Ok(ImageFormat::Png),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Ok(ImageFormat::WebP),
        _ => Err(error::not_an_image(format!(
            "not a known image format (the file starts with {})",
            start(bytes)
        ))),
    }
}

pub(crate) fn start(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(8)
        .map(|b| format!("{b:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}

fn cut(format: &str) -> Error {
    error::damaged(format!("the {format} header is cut short or broken"))
}

fn png_size(bytes: &[u8]) -> Result<ImageSize, Error> {
    let side = |at| array(bytes, at).map(u32::from_be_bytes);
    match (array::<4>(bytes, 12), side(16), side(20)) {
        (Some([b'I', b'H', b'D', b'R']), Some(width), Some(height)) => {
            Ok(ImageSize::new(width, height))
        }
        _ => Err(cut("PNG")),
    }
}

/// Reads the size of a WebP (RFC 9649, sections 2.5 (lossy), 2.6 (lossless) and 2.7 (extended)).
fn webp_size(bytes: &[u8]) -> Result<ImageSize, Error> {
    let kind = array::<4>(bytes, 12).ok_or_else(|| cut("WebP"))?;
    let size = match &kind {
        b"VP8 " => webp_lossy(bytes),
        b"VP8L" => webp_lossless(bytes),
        b"VP8X" => webp_extended(bytes),
        _ => None,
    };
    size.ok_or_else(|| cut("WebP"))
}

fn webp_lossy(bytes: &[u8]) -> Option<ImageSize> {
    let [0x9d, 0x01, 0x2a] = array(bytes, 23)? else {
        return None;
    };
    // The two upper bits are a scale for showing the image, and no part of its size.
    let side = |at| Some(u32::from(u16::from_le_bytes(array(bytes, at)?) & 0x3fff));
    Some(ImageSize::new(side(26)?, side(28)?))
}

fn webp_lossless(bytes: &[u8]) -> Option<ImageSize> {
    let [0x2f] = array(bytes, 20)? else {
        return None;
    };
    // Each side less one has a field of 14 bits.
    let bits = u32::from_le_bytes(array(bytes, 21)?);
    Some(ImageSize::new(
        (bits & 0x3fff) + 1,
        (bits >> 14 & 0x3fff) + 1,
    ))
}

fn webp_extended(bytes: &[u8]) -> Option<ImageSize> {
    let side = |at| {
        let [a, b, c] = array(bytes, at)?;
        Some(u32::from_le_bytes([a, b, c, 0]) + 1)
    };
    Some(ImageSize::new(side(24)?, side(27)?))
}

/// Walks a JPEG's marker segments up to the first scan.
fn jpeg(bytes: &[u8]) -> Result<ImageHeader, Error> {
    let mut header = plain(ImageFormat::Jpeg, ImageSize::new(0, 0));
    let mut framed = false;
    for segment in jpeg_segments(bytes) {
        if is_frame(segment.marker) {
            header.stored = frame_size(segment.body).ok_or_else(|| cut("JPEG"))?;
            framed = true;
        }
        // A prefix of the file may end before the scan. The size is enough then.
        header.scan = segment.end;
    }
    if framed { Ok(header) } else { Err(cut("JPEG")) }
}

/// Returns `true` if a marker starts a frame: SOF0 to SOF15, without DHT (c4), JPG (c8) and DAC (cc), which share the
/// range.
fn is_frame(marker: u8) -> bool {
    (0xc0..=0xcf).contains(&marker) && !matches!(marker, 0xc4 | 0xc8 | 0xcc)
}

fn frame_size(body: &[u8]) -> Option<ImageSize> {
    let side = |at| array(body, at).map(|b| u32::from(u16::from_be_bytes(b)));
    Some(ImageSize::new(side(3)?, side(1)?))
}

/// Returns `true` if an end-of-image marker follows the scans. A file without one is cut short. The marker cannot occur
/// inside a scan, where a zero or a restart marker follows every 0xff.
pub(crate) fn has_end(bytes: &[u8], scan: usize) -> bool {
    bytes
        .get(scan..)
        // The marker is nearly always at the end, so the search begins there.
        .is_some_and(|rest| rest.windows(2).rev().any(|pair| pair == [0xff, 0xd9]))
}

/// Returns `true` if a WebP has all the bytes that its first chunk promises. The decoder of lossy images silently reads
/// zeros after the end of the file; libwebp refuses such a file.
pub(crate) fn is_whole_webp(bytes: &[u8]) -> bool {
    let promised = array(bytes, 4).map(|b| u64::from(u32::from_le_bytes(b)) + 8);
    promised.is_some_and(|promised| promised <= bytes.len() as u64)
}
