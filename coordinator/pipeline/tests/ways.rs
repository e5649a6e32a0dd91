//! The two ways to a prepared sample, directly and through the decoded form, give the same pixels, whatever part of a
//! JPEG the first of them decodes.
#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{
    Jpeg, SUBSAMPLINGS, decode, decode_exactly, key, prepare, prepare_in_two_steps,
    random_resized_crop,
};
use coprep_pipeline::{Pipeline, Scratch};
use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Interpolation, Op, ResizeTo};
use turbojpeg::Subsamp;

const SIZES: [(usize, usize); 6] = [(203, 151), (64, 48), (97, 33), (31, 130), (9, 17), (1, 1)];

fn assert_ways_agree(pipeline: &Pipeline, encoded: &[u8], visits: u64, what: &str) {
    for visit in 0..visits {
        let one = prepare(pipeline, encoded, key(1, visit)).unwrap();
        let two = prepare_in_two_steps(pipeline, encoded, key(1, visit)).unwrap();
        assert!(one == two, "{what}, visit {visit}: the ways differ");
    }
}

fn every_jpeg() -> impl Iterator<Item = Jpeg> {
    let of = |subsampling| SIZES.map(|(width, height)| Jpeg::new(width, height, subsampling));
    SUBSAMPLINGS.into_iter().flat_map(of).flat_map(|jpeg| {
        [
            jpeg,
            Jpeg {
                progressive: true,
                ..jpeg
            },
        ]
    })
}

#[test]
fn a_part_of_a_jpeg_decodes_to_the_same_pixels_as_the_whole() {
    let pipeline = Pipeline::compile(&[
        decode_exactly(),
        random_resized_crop(24, 20),
        Op::RandomHorizontalFlip { p: 0.5 },
    ])
    .unwrap();
    for jpeg in every_jpeg() {
        assert_ways_agree(&pipeline, &jpeg.encode(), 40, &format!("{jpeg:?}"));
    }
}

#[test]
fn small_parts_at_every_offset_decode_to_the_same_pixels_as_the_whole() {
    let tiny = Op::RandomResizedCrop {
        height: 4,
        width: 4,
        scale: (0.0005, 0.01),
        ratio: (0.2, 5.0),
        interpolation: Interpolation::Nearest,
    };
    let pipeline = Pipeline::compile(&[decode_exactly(), tiny]).unwrap();
    for subsampling in SUBSAMPLINGS {
        for (width, height) in [(160, 120), (131, 77)] {
            let jpeg = Jpeg::new(width, height, subsampling);
            assert_ways_agree(&pipeline, &jpeg.encode(), 300, &format!("{jpeg:?}"));
        }
    }
}

#[test]
fn a_central_crop_decodes_to_the_same_pixels_as_the_whole() {
    for (height, width) in [(16, 16), (40, 300), (300, 40), (224, 224)] {
        let crop = Op::CenterCrop { height, width };
        let part = Pipeline::compile(&[decode_exactly(), crop.clone()]).unwrap();
        let flip = Op::RandomHorizontalFlip { p: 0.0 };
        let whole = Pipeline::compile(&[decode_exactly(), flip, crop]).unwrap();
        for jpeg in every_jpeg() {
            let encoded = jpeg.encode();
            let two = prepare_in_two_steps(&whole, &encoded, key(0, 0)).unwrap();
            assert!(
                prepare(&part, &encoded, key(0, 0)).unwrap() == two,
                "{jpeg:?} {height} x {width}"
            );
        }
    }
}

#[test]
fn the_ways_agree_for_every_orientation() {
    let decode = Op::Decode {
        apply_exif_orientation: true,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: false,
    };
    let pipeline = Pipeline::compile(&[decode, random_resized_crop(24, 20)]).unwrap();
    for orientation in 1..=8 {
        for subsampling in SUBSAMPLINGS {
            let jpeg =
                common::with_orientation(&Jpeg::new(97, 61, subsampling).encode(), orientation);
            assert_ways_agree(
                &pipeline,
                &jpeg,
                20,
                &format!("orientation {orientation}, {subsampling:?}"),
            );
        }
    }
}

#[test]
fn the_ways_agree_for_any_order_of_operators() {
    let exact = |height, width| Op::Resize {
        to: ResizeTo::Exact { height, width },
        interpolation: Interpolation::Bicubic,
    };
    let shorter = |side| Op::Resize {
        to: ResizeTo::Shorter(side),
        interpolation: Interpolation::Bilinear,
    };
    let flip = || Op::RandomHorizontalFlip { p: 0.5 };
    let crop = |height, width| Op::CenterCrop { height, width };
    let chains: [Vec<Op>; 6] = [
        vec![shorter(40), crop(32, 32), flip()],
        vec![
            flip(),
            random_resized_crop(20, 30),
            flip(),
            crop(25, 25),
            flip(),
        ],
        vec![crop(90, 90), random_resized_crop(16, 16), exact(20, 10)],
        vec![
            exact(33, 44),
            flip(),
            crop(50, 20),
            random_resized_crop(8, 8),
        ],
        vec![random_resized_crop(64, 64), shorter(20)],
        vec![exact(151, 203), flip()],
    ];
    let jpeg = Jpeg::new(203, 151, Subsamp::Sub2x2).encode();
    for operators in chains {
        let operators = [vec![decode()], operators].concat();
        let pipeline = Pipeline::compile(&operators).unwrap().exact();
        assert_ways_agree(&pipeline, &jpeg, 20, &format!("{operators:?}"));
    }
}

#[test]
fn a_reduced_decode_stays_close_to_the_exact_one() {
    let operators = [decode(), random_resized_crop(32, 32)];
    let reduced = Pipeline::compile(&operators).unwrap();
    for subsampling in SUBSAMPLINGS {
        let (width, height) = (640, 480);
        // The pixels are smooth, as photographs are at this scale.
        let pixels: Vec<u8> = (0..width * height)
            .flat_map(|i| {
                [(i % width) * 255 / width, (i / width) * 255 / height, 128].map(|v| v as u8)
            })
            .collect();
        let image = turbojpeg::Image {
            pixels: &pixels[..],
            width,
            pitch: width * 3,
            height,
            format: turbojpeg::PixelFormat::RGB,
        };
        let jpeg = turbojpeg::compress(image, 95, subsampling).unwrap();
        for visit in 0..30 {
            let one = prepare(&reduced, &jpeg, key(0, visit)).unwrap();
            let two = prepare(&reduced.exact(), &jpeg, key(0, visit)).unwrap();
            let worst = one.iter().zip(&two).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(
                worst <= Some(6),
                "{subsampling:?}, visit {visit}: {worst:?}"
            );
        }
    }
}

#[test]
fn reduced_decoding_is_used_where_the_sample_shrinks() {
    let operators = [decode(), random_resized_crop(32, 32)];
    let reduced = Pipeline::compile(&operators).unwrap();
    let jpeg = Jpeg::new(640, 480, Subsamp::Sub2x2).encode();
    let differs = |visit| {
        prepare(&reduced, &jpeg, key(0, visit)).unwrap()
            != prepare(&reduced.exact(), &jpeg, key(0, visit)).unwrap()
    };
    assert!((0..10).all(differs));
}

#[test]
fn a_sample_does_not_depend_on_the_samples_before_it() {
    // An image without Huffman tables means the standard ones, not those of the previous image.
    let bare = without_huffman_tables(&Jpeg::new(64, 48, Subsamp::Sub2x2).encode());
    let other = Jpeg {
        optimized: true,
        ..Jpeg::new(90, 70, Subsamp::None)
    }
    .encode();
    let pipeline = Pipeline::compile(&[decode(), random_resized_crop(24, 24)]).unwrap();
    let fresh = prepare(&pipeline, &bare, key(3, 0)).unwrap();

    let mut scratch = Scratch::new();
    let mut slot = vec![0; fresh.len()];
    pipeline
        .prepare_encoded(&other, key(4, 0), &mut scratch, || &mut slot)
        .unwrap();
    pipeline
        .prepare_encoded(&other[..other.len() / 2], key(4, 0), &mut scratch, || {
            &mut slot
        })
        .unwrap_err();
    pipeline
        .prepare_encoded(&bare, key(3, 0), &mut scratch, || &mut slot)
        .unwrap();
    assert!(slot == fresh);
}

fn without_huffman_tables(jpeg: &[u8]) -> Vec<u8> {
    let mut out = jpeg[..2].to_vec();
    let mut at = 2;
    while jpeg[at + 1] != 0xda {
        let end = at + 2 + usize::from(u16::from_be_bytes([jpeg[at + 2], jpeg[at + 3]]));
        if jpeg[at + 1] != 0xc4 {
            out.extend(&jpeg[at..end]);
        }
        at = end;
    }
    out.extend(&jpeg[at..]);
    out
}
