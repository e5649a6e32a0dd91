//! Effects of the operators, and the rules for their order.
#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{
    DECODED_WHOLE, Jpeg, data, decode, decode_exactly, decoded, key, prepare, random_resized_crop,
};
use coprep_pipeline::{DecodedView, ErrorKind, Pipeline, PipelineRun, SampleKey, Scratch};
use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Dtype, Interpolation, Op, ResizeTo};
use image::ImageEncoder;
use image::codecs::{png::PngEncoder, webp::WebPEncoder};
use turbojpeg::Subsamp;

fn flip(p: f32) -> Op {
    Op::RandomHorizontalFlip { p }
}

fn exactly(ops: &[Op]) -> Pipeline {
    Pipeline::compile(&[&[decode_exactly()], ops].concat()).unwrap()
}

#[test]
fn a_sample_is_a_function_of_seed_id_and_visit() {
    let pipeline = Pipeline::compile(&[decode(), random_resized_crop(16, 16), flip(0.5)]).unwrap();
    let file = Jpeg::new(203, 151, Subsamp::Sub2x2).encode();
    let keys: Vec<SampleKey> = (0..60)
        .map(|i| SampleKey {
            seed: i % 3,
            id: (i / 3 % 4) as u32,
            visit: i / 12,
        })
        .collect();
    let alone: Vec<_> = keys
        .iter()
        .map(|key| prepare(&pipeline, &file, *key).unwrap())
        .collect();

    // The same samples again, in another order, with other images in between, from one scratch.
    let mut scratch = Scratch::new();
    let mut slot = vec![0; alone[0].len()];
    for (key, alone) in keys.iter().zip(&alone).rev() {
        pipeline
            .prepare_encoded(&data("cmyk.jpg"), *key, &mut scratch, || &mut slot)
            .unwrap();
        pipeline
            .prepare_encoded(&file, *key, &mut scratch, || &mut slot)
            .unwrap();
        assert!(slot == *alone, "{key:?}");
    }
    for (i, one) in alone.iter().enumerate() {
        assert!(
            alone[..i].iter().all(|other| other != one),
            "{:?} repeats another key's sample",
            keys[i]
        );
    }
}

#[test]
fn a_flip_mirrors_with_its_probability() {
    let file = data("rgb.png");
    let of = |p| {
        exactly(&[
            flip(p),
            Op::CenterCrop {
                height: 22,
                width: 30,
            },
        ])
    };
    let straight = prepare(&of(0.0), &file, key(0, 0)).unwrap();
    let mirrored: Vec<u8> = straight
        .chunks(30)
        .flat_map(|row| row.iter().rev().copied())
        .collect();
    assert!(prepare(&of(1.0), &file, key(0, 0)).unwrap() == mirrored);

    let pipeline = of(0.25);
    let times = (0..1000)
        .filter(|&visit| prepare(&pipeline, &file, key(0, visit)).unwrap() == mirrored)
        .count();
    // The standard deviation is 14.
    assert!((180..320).contains(&times), "{times} of 1000");
}

#[test]
fn normalizing_is_float32_arithmetic_in_torchvisions_order() {
    let (mean, std) = ([0.485f32, 0.456, 0.406], [0.229f32, 0.224, 0.225]);
    let crop = Op::CenterCrop {
        height: 22,
        width: 30,
    };
    let bytes = prepare(
        &exactly(std::slice::from_ref(&crop)),
        &data("rgb.png"),
        key(0, 0),
    )
    .unwrap();
    let pipeline = exactly(&[crop, Op::Normalize { mean, std }]);
    assert_eq!(
        (pipeline.output().dtype, pipeline.output().shape),
        (Dtype::F32, vec![3, 22, 30])
    );
    let floats = prepare(&pipeline, &data("rgb.png"), key(0, 0)).unwrap();
    let expected = bytes
        .iter()
        .enumerate()
        .map(|(i, &x)| (f32::from(x) / 255.0 - mean[i / 660]) / std[i / 660]);
    let floats = floats
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_ne_bytes(*b));
    assert!(floats.eq(expected));
}

#[test]
fn a_central_crop_pads_with_zeros_where_the_image_is_smaller() {
    let slot = prepare(
        &exactly(&[Op::CenterCrop {
            height: 30,
            width: 41,
        }]),
        &data("rgb.png"),
        key(0, 0),
    )
    .unwrap();
    let (.., whole) = decoded(
        &Pipeline::compile(&DECODED_WHOLE).unwrap(),
        &data("rgb.png"),
    )
    .unwrap();
    for (i, &value) in slot.iter().enumerate() {
        let (channel, y, x) = (i / (30 * 41), i / 41 % 30, i % 41);
        // The padding before the image is (41 - 30) / 2 = 5 columns and (30 - 22) / 2 = 4 rows.
        let inside = (5..35).contains(&x) && (4..26).contains(&y);
        let expected = if inside {
            whole[((y - 4) * 30 + x - 5) * 3 + channel]
        } else {
            0
        };
        assert_eq!(value, expected, "channel {channel}, {x}, {y}");
    }
}

#[test]
fn png_and_webp_are_turned_by_their_exif_too() {
    let pixels: [u8; 6] = [250, 0, 0, 0, 0, 250];
    let exif = |orientation: u8| {
        [
            &b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"[..],
            &[orientation, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat()
    };
    let decode = Op::Decode {
        apply_exif_orientation: true,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: true,
    };
    let pipeline = Pipeline::compile(&[
        decode,
        flip(0.0),
        Op::CenterCrop {
            height: 1,
            width: 1,
        },
    ])
    .unwrap();
    let rgb = image::ExtendedColorType::Rgb8;
    for (orientation, swapped) in [
        (1, false),
        (2, true),
        (3, true),
        (4, false),
        (5, false),
        (6, false),
        (7, true),
        (8, true),
    ] {
        let (mut png, mut webp) = (Vec::new(), Vec::new());
        let mut encoder = PngEncoder::new(&mut png);
        encoder.set_exif_metadata(exif(orientation)).unwrap();
        encoder.write_image(&pixels, 2, 1, rgb).unwrap();
        let mut encoder = WebPEncoder::new_lossless(&mut webp);
        encoder.set_exif_metadata(exif(orientation)).unwrap();
        encoder.write_image(&pixels, 2, 1, rgb).unwrap();
        let size = if orientation < 5 { (2, 1) } else { (1, 2) };
        let expected = if swapped {
            [&pixels[3..], &pixels[..3]].concat()
        } else {
            pixels.to_vec()
        };
        for file in [png, webp] {
            let (width, height, found) = decoded(&pipeline, &file).unwrap();
            assert_eq!(
                ((width, height), found),
                (size, expected.clone()),
                "orientation {orientation}"
            );
        }
    }
}

#[test]
fn the_size_of_the_decoded_form_is_known_from_a_files_start() {
    let resize = Op::Resize {
        to: ResizeTo::Shorter(11),
        interpolation: Interpolation::Bilinear,
    };
    for (pipeline, size) in [
        (
            exactly(&[
                flip(0.5),
                Op::CenterCrop {
                    height: 9,
                    width: 9,
                },
            ]),
            (203, 151),
        ),
        (
            exactly(&[
                resize,
                flip(0.5),
                Op::CenterCrop {
                    height: 9,
                    width: 9,
                },
            ]),
            (14, 11),
        ),
    ] {
        let file = Jpeg::new(203, 151, Subsamp::Sub2x2).encode();
        let shape = pipeline.decoded_size(&file[..700]).unwrap();
        assert_eq!((shape.width, shape.height), size);
        assert_eq!(shape, pipeline.decoded_size(&file).unwrap());
    }
}

#[test]
fn lists_that_are_no_pipelines_are_refused_with_the_reason() {
    let crop = || Op::CenterCrop {
        height: 8,
        width: 8,
    };
    let normalize = |std: f32| Op::Normalize {
        mean: [0.5; 3],
        std: [std; 3],
    };
    let area = |scale, ratio| Op::RandomResizedCrop {
        height: 8,
        width: 8,
        scale,
        ratio,
        interpolation: Interpolation::Bilinear,
    };
    let shorter = Op::Resize {
        to: ResizeTo::Shorter(8),
        interpolation: Interpolation::Bilinear,
    };
    let refused: [(Vec<Op>, &str); 13] = [
        (vec![], "begins with decode()"),
        (vec![crop()], "begins with decode()"),
        (vec![decode()], "come out in different sizes"),
        (vec![decode(), flip(0.5)], "come out in different sizes"),
        (vec![decode(), shorter], "keeps each image's aspect ratio"),
        (vec![decode(), decode(), crop()], "decode() comes twice"),
        (vec![decode(), normalize(1.0), crop()], "must be the last"),
        (
            vec![decode(), crop(), normalize(0.0)],
            "std must not be zero",
        ),
        (
            vec![decode(), crop(), normalize(f32::NAN)],
            "must be finite",
        ),
        (
            vec![
                decode(),
                Op::CenterCrop {
                    height: 0,
                    width: 8,
                },
            ],
            "0 x 8 pixels",
        ),
        (vec![decode(), crop(), flip(1.5)], "no probability"),
        (
            vec![decode(), area((0.5, 0.1), (1.0, 1.0))],
            "0 < low <= high",
        ),
        (
            vec![decode(), area((0.1, 1.0), (f32::NAN, 1.0))],
            "0 < low <= high",
        ),
    ];
    for (ops, reason) in refused {
        let error = Pipeline::compile(&ops).unwrap_err();
        assert!(
            *error.kind() == ErrorKind::InvalidPipeline && error.to_string().contains(reason),
            "{ops:?}: {error}"
        );
    }
}

#[test]
fn buffers_of_the_wrong_length_are_refused() {
    let pipeline = exactly(&[
        flip(0.5),
        Op::CenterCrop {
            height: 8,
            width: 8,
        },
    ]);
    let (file, mut scratch) = (data("rgb.png"), Scratch::new());
    let mut slot = [0; 8 * 8 * 3 + 1];
    let view = |pixels| DecodedView {
        width: 2,
        height: 2,
        pixels,
    };
    let refused = [
        pipeline.prepare_encoded(&file, key(0, 0), &mut scratch, || &mut slot),
        pipeline.prepare_decoded(view(&[0; 12]), key(0, 0), &mut scratch, || &mut slot),
        pipeline.prepare_decoded(view(&[0; 11]), key(0, 0), &mut scratch, || &mut slot[1..]),
        pipeline
            .decode_into(&file, &mut scratch, &mut slot)
            .map(|()| PipelineRun::default()),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(*error.kind(), ErrorKind::WrongLength, "{error}");
    }
    pipeline
        .prepare_decoded(view(&[7; 12]), key(0, 0), &mut scratch, || &mut slot[1..])
        .unwrap();
}
