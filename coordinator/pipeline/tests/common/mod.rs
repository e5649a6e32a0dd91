//! Images that tests make for themselves, and pipelines for them.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses a part of it"
)]

use coprep_pipeline::{DecodedView, Error, Pipeline, SampleKey, Scratch};
use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Interpolation, Op};
use proptest::prelude::*;
use proptest::sample::Index;
use turbojpeg::{Colorspace, Compressor, Image, PixelFormat, Subsamp};

pub(crate) const SUBSAMPLINGS: [Subsamp; 6] = [
    Subsamp::None,
    Subsamp::Sub2x1,
    Subsamp::Sub2x2,
    Subsamp::Gray,
    Subsamp::Sub1x2,
    Subsamp::Sub4x1,
];

/// Returns smooth waves with sharp colour edges, so that misplaced chroma shows.
pub(crate) fn picture(width: usize, height: usize) -> Vec<u8> {
    let pixel = |i: usize| {
        let (x, y) = (i % width, i / width);
        let edge = if (x / 5 + y / 7) % 2 == 0 { 90 } else { 0 };
        [
            (x * 7 + y * 3) % 166 + edge,
            (x * x / 9 + y) % 166 + edge / 2,
            (y * 11 + x / 2) % 256,
        ]
    };
    (0..width * height)
        .flat_map(|i| pixel(i).map(|v| v as u8))
        .collect()
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Jpeg {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) subsampling: Subsamp,
    pub(crate) progressive: bool,
    pub(crate) optimized: bool,
    pub(crate) colours: Option<Colorspace>,
}

impl Jpeg {
    pub(crate) fn new(width: usize, height: usize, subsampling: Subsamp) -> Self {
        Jpeg {
            width,
            height,
            subsampling,
            progressive: false,
            optimized: false,
            colours: None,
        }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut compressor = Compressor::new().unwrap();
        compressor.set_quality(90).unwrap();
        compressor.set_subsamp(self.subsampling).unwrap();
        compressor.set_progressive(self.progressive).unwrap();
        compressor.set_optimize(self.optimized).unwrap();
        if let Some(colours) = self.colours {
            compressor.set_colorspace(colours).unwrap();
        }
        let pixels = picture(self.width, self.height);
        let image = Image {
            pixels: &pixels[..],
            width: self.width,
            pitch: self.width * 3,
            height: self.height,
            format: PixelFormat::RGB,
        };
        compressor.compress_to_vec(image).unwrap()
    }
}

/// Returns the bytes of a checked-in file.
pub(crate) fn data(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Generates the positions of bytes to replace, and their new values.
pub(crate) fn flipped_bytes() -> impl Strategy<Value = Vec<(Index, u8)>> {
    proptest::collection::vec((any::<Index>(), any::<u8>()), 0..8)
}

/// Operators whose decoded form is the whole image.
pub(crate) const DECODED_WHOLE: [Op; 3] = [
    Op::Decode {
        apply_exif_orientation: false,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: false,
    },
    Op::RandomHorizontalFlip { p: 0.0 },
    Op::CenterCrop {
        height: 1,
        width: 1,
    },
];

/// Inserts an Exif segment with the given orientation after a JPEG's first marker.
pub(crate) fn with_orientation(jpeg: &[u8], orientation: u16) -> Vec<u8> {
    let mut exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
    exif.extend(orientation.to_le_bytes());
    exif.extend([0; 6]);
    let length = (exif.len() + 2) as u16;
    let segment = [&[0xff, 0xe1][..], &length.to_be_bytes(), &exif].concat();
    [&jpeg[..2], &segment, &jpeg[2..]].concat()
}

pub(crate) fn decode() -> Op {
    Op::Decode {
        apply_exif_orientation: false,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: true,
    }
}

pub(crate) fn decode_exactly() -> Op {
    Op::Decode {
        apply_exif_orientation: false,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: false,
    }
}

pub(crate) fn random_resized_crop(height: u32, width: u32) -> Op {
    Op::RandomResizedCrop {
        height,
        width,
        scale: (0.08, 1.0),
        ratio: (0.75, 4.0 / 3.0),
        interpolation: Interpolation::Bilinear,
    }
}

pub(crate) fn key(id: u32, visit: u64) -> SampleKey {
    SampleKey {
        seed: 11,
        id,
        visit,
    }
}

/// Returns the decoded form with its width and height.
pub(crate) fn decoded(pipeline: &Pipeline, encoded: &[u8]) -> Result<(u32, u32, Vec<u8>), Error> {
    let shape = pipeline.decoded_size(encoded)?;
    let mut pixels = vec![0; shape.bytes()];
    pipeline.decode_into(encoded, &mut Scratch::new(), &mut pixels)?;
    Ok((shape.width, shape.height, pixels))
}

pub(crate) fn prepare(
    pipeline: &Pipeline,
    encoded: &[u8],
    key: SampleKey,
) -> Result<Vec<u8>, Error> {
    let mut slot = vec![0xaa; pipeline.output().sample_bytes()];
    pipeline.prepare_encoded(encoded, key, &mut Scratch::new(), || &mut slot)?;
    Ok(slot)
}

/// Prepares a sample through its decoded form.
pub(crate) fn prepare_in_two_steps(
    pipeline: &Pipeline,
    encoded: &[u8],
    key: SampleKey,
) -> Result<Vec<u8>, Error> {
    let (width, height, pixels) = decoded(pipeline, encoded)?;
    let mut slot = vec![0x55; pipeline.output().sample_bytes()];
    let view = DecodedView {
        width,
        height,
        pixels: &pixels,
    };
    pipeline.prepare_decoded(view, key, &mut Scratch::new(), || &mut slot)?;
    Ok(slot)
}

/// Turns planes back into interleaved pixels.
pub(crate) fn interleaved(planes: &[u8]) -> Vec<u8> {
    let n = planes.len() / 3;
    (0..n)
        .flat_map(|i| [planes[i], planes[n + i], planes[2 * n + i]])
        .collect()
}
