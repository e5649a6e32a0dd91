//! Comparison of pixels with those of Pillow 13 (libjpeg-turbo 3) for the same files.
//!
//! `data/make.py` made the expected pixels: `NAME.rgb` is `Image.open(NAME).convert("RGB")`; `rgb.png.FILTER.WxH` is
//! its `resize`; `rgb.png.FILTER.crop.16x16` is `crop((2, 3, 27, 19)).resize((16, 16))`.
#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{DECODED_WHOLE, data, decode, decode_exactly, decoded, interleaved, key, prepare};
use coprep_pipeline::Pipeline;
use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Interpolation, Op, ResizeTo};

const SIZE: (u32, u32) = (30, 22);

fn plain() -> Pipeline {
    Pipeline::compile(&DECODED_WHOLE).unwrap()
}

fn worst(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

/// Returns the mean of `a - b`.
fn bias(a: &[u8], b: &[u8]) -> f64 {
    let sum: i32 = a
        .iter()
        .zip(b)
        .map(|(a, b)| i32::from(*a) - i32::from(*b))
        .sum();
    f64::from(sum) / a.len() as f64
}

/// Returns the mean of `|a - b|`.
fn mean(a: &[u8], b: &[u8]) -> f64 {
    let sum: u32 = a
        .iter()
        .zip(b)
        .map(|(a, b)| u32::from(a.abs_diff(*b)))
        .sum();
    f64::from(sum) / a.len() as f64
}

fn assert_decodes_to(name: &str, expected: &str, tolerance: u8) {
    let (width, height, pixels) = decoded(&plain(), &data(name)).unwrap();
    assert_eq!((width, height), SIZE, "{name}");
    let worst = worst(&pixels, &data(expected));
    assert!(worst <= tolerance, "{name} differs from Pillow by {worst}");
}

#[test]
fn jpegs_decode_as_pillow_decodes_them() {
    for name in ["420.jpg", "progressive.jpg", "cmyk.jpg", "gray.jpg"] {
        assert_decodes_to(name, &format!("{name}.rgb"), 0);
    }
}

#[test]
fn pngs_of_every_colour_type_decode_as_pillow_decodes_them() {
    for name in [
        "rgb.png",
        "palette.png",
        "palette_alpha.png",
        "one_bit.png",
        "gray.png",
        "gray_alpha.png",
    ] {
        assert_decodes_to(name, &format!("{name}.rgb"), 0);
    }
}

#[test]
fn alpha_is_dropped_and_not_blended() {
    assert_decodes_to("rgba.png", "rgb.png.rgb", 0);
    assert_decodes_to("alpha.webp", "rgb.png.rgb", 0);
}

#[test]
fn webp_decodes_as_pillow_decodes_it() {
    assert_decodes_to("lossless.webp", "rgb.png.rgb", 0);
    assert_decodes_to("lossy.webp", "lossy.webp.rgb", 2);
}

#[test]
fn of_sixteen_bits_the_upper_eight_are_kept() {
    let pixels = [0u16, 0x00ff, 0x0100, 0x7fff, 0x80ff, 0xffff];
    let image = image::ImageBuffer::<image::Luma<u16>, _>::from_raw(6, 1, pixels.to_vec()).unwrap();
    let mut png = std::io::Cursor::new(Vec::new());
    image.write_to(&mut png, image::ImageFormat::Png).unwrap();
    let (.., pixels) = decoded(&plain(), png.get_ref()).unwrap();
    assert_eq!(pixels, [0, 0, 1, 0x7f, 0x80, 0xff].map(|v| [v; 3]).concat());
}

fn resize(width: u32, height: u32, interpolation: Interpolation) -> Op {
    Op::Resize {
        to: ResizeTo::Exact { height, width },
        interpolation,
    }
}

fn prepared(ops: &[Op]) -> Vec<u8> {
    let ops = [&[decode_exactly()], ops].concat();
    interleaved(
        &prepare(
            &Pipeline::compile(&ops).unwrap(),
            &data("rgb.png"),
            key(0, 0),
        )
        .unwrap(),
    )
}

/// Pillow goes along rows first, we along columns, and both round to 8 bits in between. Bicubic weights above 1 can
/// double such a difference.
#[test]
fn resizing_is_within_rounding_of_pillow() {
    for (filter, name, tolerance) in [
        (Interpolation::Bilinear, "bilinear", 1),
        (Interpolation::Bicubic, "bicubic", 2),
    ] {
        for (width, height) in [(23, 17), (37, 25)] {
            let ours = prepared(&[resize(width, height, filter)]);
            let theirs = data(&format!("rgb.png.{name}.{width}x{height}"));
            let (worst, bias) = (worst(&ours, &theirs), bias(&ours, &theirs));
            assert!(
                worst <= tolerance && bias.abs() < 0.05,
                "{name} {width} x {height}: {worst}, {bias}"
            );
        }
    }
}

/// The operators are `Resize(36)` and `CenterCrop(32)` of 240 x 180 pixels. A reduced decode begins with 60 x 45.
#[test]
fn a_prepared_jpeg_is_within_rounding_of_pillow_and_close_if_reduced() {
    let shorter = Op::Resize {
        to: ResizeTo::Shorter(36),
        interpolation: Interpolation::Bilinear,
    };
    let reduced = Pipeline::compile(&[
        decode(),
        shorter,
        Op::CenterCrop {
            height: 32,
            width: 32,
        },
    ])
    .unwrap();
    let theirs = data("scene.jpg.central.32x32");
    for (pipeline, tolerance, mean_tolerance) in [(reduced.exact(), 1, 0.25), (reduced, 10, 0.7)] {
        let ours = interleaved(&prepare(&pipeline, &data("scene.jpg"), key(0, 0)).unwrap());
        let (worst, mean) = (worst(&ours, &theirs), mean(&ours, &theirs));
        assert!(
            worst <= tolerance && mean <= mean_tolerance,
            "{pipeline:?}: {worst}, mean {mean}"
        );
    }
}

/// Where a middle falls between two pixels, Pillow takes the left or the right one by the rounding of a running sum.
#[test]
fn the_nearest_pixel_is_pillows_unless_two_are_as_near() {
    for (width, height) in [(23, 17), (37, 25)] {
        let ours = prepared(&[resize(width, height, Interpolation::Nearest)]);
        let theirs = data(&format!("rgb.png.nearest.{width}x{height}"));
        for (i, (a, b)) in ours
            .as_chunks::<3>()
            .0
            .iter()
            .zip(theirs.as_chunks::<3>().0)
            .enumerate()
        {
            let (x, y) = (i as u32 % width, i as u32 / width);
            let tied = ((2 * x + 1) * SIZE.0).is_multiple_of(2 * width);
            assert!(
                a == b || tied,
                "{width} x {height}: pixel {x}, {y} is {a:?}, Pillow's {b:?}"
            );
        }
    }
}

#[test]
fn a_part_is_resized_as_if_nothing_lay_around_it() {
    let filters = [
        (Interpolation::Nearest, "nearest", 0),
        (Interpolation::Bilinear, "bilinear", 1),
        (Interpolation::Bicubic, "bicubic", 1),
    ];
    for (filter, name, tolerance) in filters {
        let ours = prepared(&[
            Op::CenterCrop {
                height: 16,
                width: 25,
            },
            resize(16, 16, filter),
        ]);
        let worst = worst(&ours, &data(&format!("rgb.png.{name}.crop.16x16")));
        assert!(worst <= tolerance, "{name}: {worst}");
    }
}

#[test]
fn orientations_turn_as_exif_says() {
    // The picture's corners: red, green, blue and white, clockwise from the top left.
    let (red, green, blue, white) = ([250, 10, 10], [10, 250, 10], [10, 10, 250], [250, 250, 250]);
    // The same corners after exif_transpose, clockwise from the top left.
    let expected = [
        [red, green, blue, white],
        [green, red, white, blue],
        [blue, white, red, green],
        [white, blue, green, red],
        [red, white, blue, green],
        [white, red, green, blue],
        [blue, green, red, white],
        [green, blue, white, red],
    ];
    let (width, height) = (48u32, 32u32);
    let corner = |x, y| match (x < width / 2, y < height / 2) {
        (true, true) => red,
        (false, true) => green,
        (false, false) => blue,
        (true, false) => white,
    };
    let pixels: Vec<u8> = (0..width * height)
        .flat_map(|i| corner(i % width, i / width))
        .collect();
    let image = turbojpeg::Image {
        pixels: &pixels[..],
        width: width as usize,
        pitch: width as usize * 3,
        height: height as usize,
        format: turbojpeg::PixelFormat::RGB,
    };
    let jpeg = turbojpeg::compress(image, 100, turbojpeg::Subsamp::None).unwrap();
    let decode = Op::Decode {
        apply_exif_orientation: true,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: false,
    };
    let pipeline = Pipeline::compile(&[
        decode,
        Op::RandomHorizontalFlip { p: 0.0 },
        Op::CenterCrop {
            height: 1,
            width: 1,
        },
    ]);
    let pipeline = pipeline.unwrap();
    for (orientation, corners) in (1..=8).zip(expected) {
        let jpeg = common::with_orientation(&jpeg, orientation);
        let (w, h, pixels) = decoded(&pipeline, &jpeg).unwrap();
        assert_eq!(
            (w, h),
            if orientation < 5 {
                (width, height)
            } else {
                (height, width)
            }
        );
        let at = |x: u32, y: u32| &pixels[((y * w + x) * 3) as usize..][..3];
        let found = [at(4, 4), at(w - 5, 4), at(w - 5, h - 5), at(4, h - 5)];
        for (found, expected) in found.into_iter().zip(corners) {
            assert!(
                worst(found, &expected) < 12,
                "orientation {orientation}: {found:?} for {expected:?}"
            );
        }
    }
}

#[test]
fn orientation_is_left_alone_unless_asked_for() {
    let jpeg = data("420.jpg");
    let turned = common::with_orientation(&jpeg, 6);
    assert_eq!(
        decoded(&plain(), &turned).unwrap(),
        decoded(&plain(), &jpeg).unwrap()
    );
}
