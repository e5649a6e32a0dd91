//! The orientation that an image's metadata tell, as Pillow's `ImageOps.exif_transpose` finds it, for all formats alike.
//!
//! Each format has its own places for metadata, which [`Metadata`] collects. What they mean is read in one way:
//!
//! 1. The first tag `Orientation` of the EXIF's first directory, an integer of any size.
//! 2. Without EXIF, that of the "Raw profile type exif", in which ImageMagick keeps a PNG's EXIF as text.
//! 3. Where neither has the tag, the first `tiff:Orientation` of the XMP.
//!
//! EXIF that cannot be read turns nothing.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::ZlibDecoder;
use image::metadata::Orientation;

use crate::chunks::{Chunk, jpeg_segments, png_chunks, webp_chunks};
use crate::header::ImageFormat;

const EXIF_PREFIX: &[u8] = b"Exif\0\0";
const XMP_PREFIX: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
/// Most bytes of a compressed text of a PNG, as in Pillow. A longer one is taken for a decompression bomb.
const MOST_TEXT: u64 = 1 << 20;
/// A value that turns nothing, of a tag that is there but tells no orientation.
const NO_TURN: u64 = 0;

/// Returns the orientation of an image.
pub(crate) fn read(format: ImageFormat, bytes: &[u8]) -> Orientation {
    let metadata = match format {
        ImageFormat::Jpeg => Metadata::of_jpeg(bytes),
        ImageFormat::Png => Metadata::of_png(bytes),
        ImageFormat::WebP => Metadata::of_webp(bytes),
    };
    let value = metadata.value().and_then(|value| u8::try_from(value).ok());
    value
        .and_then(Orientation::from_exif)
        .unwrap_or(Orientation::NoTransforms)
}

/// The metadata of a file that may tell its orientation.
#[derive(Default)]
struct Metadata<'a> {
    /// With or without [`EXIF_PREFIX`], as it is stored.
    exif: Option<Cow<'a, [u8]>>,
    /// The text of ImageMagick's profile.
    profile: Option<Cow<'a, [u8]>>,
    xmp: Option<Cow<'a, [u8]>>,
}

impl<'a> Metadata<'a> {
    fn of_jpeg(bytes: &'a [u8]) -> Self {
        const APP1: u8 = 0xe1;
        let mut found = Metadata::default();
        for segment in jpeg_segments(bytes).filter(|segment| segment.marker == APP1) {
            if let Some(part) = segment.body.strip_prefix(EXIF_PREFIX) {
                match &mut found.exif {
                    // EXIF of more than 64 KiB goes on in the next segment.
                    Some(exif) => exif.to_mut().extend_from_slice(part),
                    None => found.exif = Some(part.into()),
                }
            } else if let Some(xmp) = segment.body.strip_prefix(XMP_PREFIX) {
                found.xmp = Some(xmp.into());
            }
        }
        found
    }

    fn of_png(bytes: &'a [u8]) -> Self {
        let mut found = Metadata::default();
        let mut has_pixels = false;
        for chunk in png_chunks(bytes) {
            match &chunk.kind {
                b"eXIf" => found.exif = Some(chunk.body.into()),
                b"IDAT" => has_pixels = true,
                // The second image of an animation starts here, and the metadata of the first end.
                b"fcTL" if has_pixels => break,
                _ => found.add_text(chunk),
            }
        }
        found
    }

    /// Adds a text chunk of a PNG whose keyword stands for metadata.
    fn add_text(&mut self, chunk: Chunk<'a>) {
        let Some((key, rest)) = split_at_zero(chunk.body) else {
            return;
        };
        let place = match key {
            b"exif" if chunk.kind == *b"tEXt" => &mut self.exif,
            b"Raw profile type exif" => &mut self.profile,
            b"XML:com.adobe.xmp" => &mut self.xmp,
            _ => return,
        };
        if let Some(text) = png_text(chunk.kind, rest) {
            *place = Some(text);
        }
    }

    fn of_webp(bytes: &'a [u8]) -> Self {
        let mut found = Metadata::default();
        let mut chunks = webp_chunks(bytes);
        // Only the extended format has metadata, and its flags say which.
        let Some([flags, ..]) = chunks
            .next()
            .filter(|first| first.kind == *b"VP8X")
            .map(|first| first.body)
        else {
            return found;
        };
        for chunk in chunks {
            let place = match &chunk.kind {
                b"EXIF" if flags & 0x08 != 0 => &mut found.exif,
                b"XMP " if flags & 0x04 != 0 => &mut found.xmp,
                _ => continue,
            };
            place.get_or_insert(chunk.body.into());
        }
        found
    }

    /// Returns the value of the orientation, or `None` if there is none.
    fn value(&self) -> Option<u64> {
        let exif = match (&self.exif, &self.profile) {
            (Some(exif), _) => tag_value(exif),
            (None, Some(profile)) => tag_value(&profile_bytes(profile)),
            (None, None) => None,
        };
        exif.or_else(|| xmp_value(self.xmp.as_deref()?))
    }
}

fn split_at_zero(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|&b| b == 0)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

/// Returns the text of a PNG's text chunk, given what follows its keyword.
fn png_text(kind: [u8; 4], rest: &[u8]) -> Option<Cow<'_, [u8]>> {
    match (&kind, rest) {
        (b"tEXt", text) => Some(text.into()),
        (b"zTXt", [0, compressed @ ..]) => inflate(compressed),
        (b"iTXt", [is_compressed, method, rest @ ..]) => {
            let (_language, rest) = split_at_zero(rest)?;
            let (_keyword, text) = split_at_zero(rest)?;
            match (is_compressed, method) {
                (0, _) => Some(text.into()),
                (_, 0) => inflate(text),
                _ => None,
            }
        }
        _ => None,
    }
}

fn inflate(compressed: &[u8]) -> Option<Cow<'static, [u8]>> {
    let mut text = Vec::new();
    let mut decoder = ZlibDecoder::new(compressed).take(MOST_TEXT + 1);
    decoder.read_to_end(&mut text).ok()?;
    (text.len() as u64 <= MOST_TEXT).then_some(text.into())
}

/// Returns the bytes of ImageMagick's profile: an empty line, its name and its length, a line each, and then hexadecimal
/// digits.
fn profile_bytes(profile: &[u8]) -> Vec<u8> {
    let lines = profile.split(|&b| b == b'\n').skip(3);
    let digits = lines.flatten().map(|&b| char::from(b).to_digit(16));
    let digits: Vec<u8> = digits.flatten().map(|digit| digit as u8).collect();
    let pairs = digits.as_chunks::<2>().0.iter();
    pairs.map(|[high, low]| high << 4 | low).collect()
}

/// Returns the value of the tag in EXIF, [`NO_TURN`] if EXIF or value cannot be read, or `None` if there is no such tag.
fn tag_value(exif: &[u8]) -> Option<u64> {
    // Some programs write the prefix although the place implies it, and some write it twice.
    let exif = exif.strip_prefix(EXIF_PREFIX).unwrap_or(exif);
    let exif = exif.strip_prefix(EXIF_PREFIX).unwrap_or(exif);
    let is_big = match exif {
        [] => return None,
        // The second form of each is wrong, but written.
        [b'M', b'M', 0, 42, ..] | [b'M', b'M', 42, 0, ..] => true,
        [b'I', b'I', 42, 0, ..] | [b'I', b'I', 0, 42, ..] => false,
        _ => return Some(NO_TURN),
    };
    Tiff {
        bytes: exif,
        is_big,
    }
    .orientation()
}

/// The TIFF structure that EXIF is (EXIF 3.0, section 4.6.2).
struct Tiff<'a> {
    bytes: &'a [u8],
    /// `true` if numbers are big-endian.
    is_big: bool,
}

impl Tiff<'_> {
    fn orientation(&self) -> Option<u64> {
        const ORIENTATION: u64 = 0x0112;
        let directory = self.number(4, 4)? as usize;
        let entries = self.number(directory, 2)? as usize;
        let mut bytes_outside = 0;
        for entry in (0..entries).map(|index| directory + 2 + 12 * index) {
            let field = |at, size| self.number(entry + at, size);
            let (tag, kind, count, place) =
                (field(0, 2)?, field(2, 2)?, field(4, 4)?, field(8, 4)?);
            let Some(size) = size_of_kind(kind).filter(|_| count > 0) else {
                continue;
            };
            let length = count * size as u64;
            let mut at = entry + 8;
            // Values of more than four bytes lie elsewhere. Pillow leaves out a tag whose values cannot fit, and ends
            // at one whose values are cut off.
            if length > 4 {
                bytes_outside += length;
                if bytes_outside > self.bytes.len() as u64 {
                    continue;
                }
                at = place as usize;
                self.bytes.get(at..at + length as usize)?;
            }
            if tag == ORIENTATION {
                let value = is_integer(kind).then(|| self.number(at, size));
                return Some(value.flatten().unwrap_or(NO_TURN));
            }
        }
        None
    }

    /// Returns the unsigned number of `size` bytes at `at`.
    fn number(&self, at: usize, size: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..at.checked_add(size)?)?.iter();
        let join = |sum: u64, &byte: &u8| sum << 8 | u64::from(byte);
        Some(if self.is_big {
            bytes.fold(0, join)
        } else {
            bytes.rev().fold(0, join)
        })
    }
}

/// Returns the bytes of a value of a TIFF type, or `None` for an unknown type.
fn size_of_kind(kind: u64) -> Option<usize> {
    match kind {
        1 | 2 | 6 | 7 => Some(1),
        3 | 8 => Some(2),
        4 | 9 | 11 | 13 => Some(4),
        5 | 10 | 12 | 16 => Some(8),
        _ => None,
    }
}

/// Returns `true` for SHORT, LONG and the like. BYTE (1) is none, as in Pillow, which takes its values for text.
fn is_integer(kind: u64) -> bool {
    matches!(kind, 3 | 4 | 6 | 8 | 9 | 13 | 16)
}

/// Returns the digit that follows the first `tiff:Orientation`, an attribute or an element.
fn xmp_value(xmp: &[u8]) -> Option<u64> {
    (0..xmp.len()).find_map(|at| {
        let rest = xmp[at..].strip_prefix(b"tiff:Orientation")?;
        let digits = rest
            .strip_prefix(b"=\"")
            .or_else(|| rest.strip_prefix(b">"))?;
        let digit = digits.first().filter(|digit| digit.is_ascii_digit())?;
        Some(u64::from(digit - b'0'))
    })
}
