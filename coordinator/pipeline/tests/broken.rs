//! Files that are cut, damaged, empty, huge or not images: each call gives the sample or one clear error.
#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{DECODED_WHOLE, decode, decoded, flipped_bytes, key, prepare, random_resized_crop};
use coprep_pipeline::{Error, ErrorKind, Pipeline};
use coprep_protocol::spec::Op;
use proptest::prelude::*;

const FILES: [&str; 14] = [
    "420.jpg",
    "progressive.jpg",
    "cmyk.jpg",
    "gray.jpg",
    "rgb.png",
    "rgba.png",
    "palette.png",
    "palette_alpha.png",
    "one_bit.png",
    "gray.png",
    "gray_alpha.png",
    "lossless.webp",
    "alpha.webp",
    "lossy.webp",
];

fn whole() -> Pipeline {
    Pipeline::compile(&DECODED_WHOLE).unwrap()
}

fn part() -> Pipeline {
    Pipeline::compile(&[decode(), random_resized_crop(8, 8)]).unwrap()
}

/// Returns the failure, which must be the same for both ways.
fn failure(encoded: &[u8]) -> Error {
    let error = decoded(&whole(), encoded).unwrap_err();
    assert_eq!(
        prepare(&part(), encoded, key(0, 0)).unwrap_err().kind(),
        error.kind()
    );
    error
}

fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(*error.kind(), kind, "{error}");
    for word in words.iter().chain(&["on_error=\"skip\""]) {
        assert!(
            error.to_string().contains(word),
            "{word:?} is not in: {error}"
        );
    }
}

#[test]
fn what_is_no_image_is_named_by_its_first_bytes() {
    assert_says(&failure(b""), ErrorKind::NotAnImage, &["empty"]);
    assert_says(
        &failure(b"<html><body>404"),
        ErrorKind::NotAnImage,
        &["3c 68 74 6d 6c", "JPEG, PNG and WebP"],
    );
    assert_says(
        &failure(b"GIF89a\x01\0\x01\0"),
        ErrorKind::NotAnImage,
        &["47 49 46 38"],
    );
}

#[test]
fn a_format_is_told_by_its_bytes_and_a_bare_signature_is_damaged() {
    for signature in [
        &b"\xff\xd8\xff\xe0"[..],
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\x20\0\0\0WEBP",
    ] {
        assert_says(
            &failure(signature),
            ErrorKind::Damaged,
            &["header", "replace the file"],
        );
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error_or_the_whole_picture() {
    for name in FILES {
        let file = common::data(name);
        let complete = decoded(&whole(), &file).unwrap();
        for length in 0..file.len() {
            if let Ok(found) = decoded(&whole(), &file[..length]) {
                assert!(
                    found == complete,
                    "{name}, cut to {length} of {} bytes",
                    file.len()
                );
            }
        }
    }
}

#[test]
fn a_jpeg_cut_behind_the_wanted_part_is_an_error_all_the_same() {
    let file = common::Jpeg::new(400, 400, turbojpeg::Subsamp::Sub2x2).encode();
    let visits = |file: &[u8]| {
        (0..20)
            .map(|visit| prepare(&part(), file, key(0, visit)).err())
            .collect::<Vec<_>>()
    };
    assert!(visits(&file).iter().all(Option::is_none));
    // Like torchvision. Pillow takes other bytes behind the scan for its end, also where pixels lack.
    let zeros_behind = [&file[..file.len() - 2], &[0; 100]].concat();
    let cut = [visits(&file[..file.len() - 20]), visits(&zeros_behind)];
    for error in cut.into_iter().flatten() {
        assert_says(&error.unwrap(), ErrorKind::Damaged, &["cut short"]);
    }
}

#[test]
fn a_jpeg_garbled_inside_but_complete_is_decoded_as_it_is() {
    let file = common::data("scene.jpg");
    let mut garbled = file.clone();
    garbled[file.len() / 2..][..4].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
    let (sound, found) = (
        decoded(&whole(), &file).unwrap(),
        decoded(&whole(), &garbled).unwrap(),
    );
    assert!(sound != found && sound.2[..3000] == found.2[..3000]);
}

#[test]
fn an_image_of_one_pixel_is_an_image() {
    for format in [image::ImageFormat::Png, image::ImageFormat::WebP] {
        let one = image::RgbImage::from_pixel(1, 1, image::Rgb([9, 200, 31]));
        let mut file = std::io::Cursor::new(Vec::new());
        one.write_to(&mut file, format).unwrap();
        assert_eq!(
            decoded(&whole(), file.get_ref()).unwrap(),
            (1, 1, vec![9, 200, 31])
        );
        let slot = prepare(&part(), file.get_ref(), key(0, 0)).unwrap();
        assert!(slot == [[9; 64], [200; 64], [31; 64]].concat());
    }
    let jpeg = common::Jpeg::new(1, 1, turbojpeg::Subsamp::Sub2x2).encode();
    let slot = prepare(&part(), &jpeg, key(0, 0)).unwrap();
    assert!(
        slot.chunks(64)
            .all(|plane| plane.iter().all(|x| *x == plane[0]))
    );
}

/// Returns headers of 20,000 x 20,000 pixels with nothing after them.
fn huge() -> [Vec<u8>; 3] {
    let side = 20_000u32;
    let [high, low] = (side as u16).to_be_bytes();
    let jpeg = [
        &[
            0xff, 0xd8, 0xff, 0xc0, 0, 11, 8, high, low, high, low, 1, 1, 0x11, 0,
        ][..],
        &[0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 0xff, 0xd9],
    ];
    let png = [
        b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR",
        &side.to_be_bytes()[..],
        &side.to_be_bytes(),
        &[8, 2, 0, 0, 0, 0, 0, 0, 0],
    ];
    let sides = (side - 1).to_le_bytes();
    let webp = [
        b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0",
        &sides[..3],
        &sides[..3],
    ];
    [jpeg.concat(), png.concat(), webp.concat()]
}

#[test]
fn an_image_of_too_many_pixels_is_refused_by_its_header() {
    for file in huge() {
        assert_says(
            &failure(&file),
            ErrorKind::TooLarge,
            &[
                "20000 x 20000",
                "max_pixels = 178956970",
                "raise max_pixels",
            ],
        );
        assert_eq!(
            *whole().decoded_size(&file).unwrap_err().kind(),
            ErrorKind::TooLarge
        );
    }
    let peak = peak_memory();
    assert!(
        peak < 400 << 20,
        "{peak} bytes were taken for images of 1.2 GB that were refused"
    );
}

/// Returns the most memory that this process ever had resident.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn max_pixels_is_the_last_size_accepted() {
    let file = common::data("rgb.png");
    let limited = |max_pixels| {
        let decode = Op::Decode {
            apply_exif_orientation: false,
            max_pixels,
            scaled: true,
        };
        Pipeline::compile(&[decode, random_resized_crop(8, 8)]).unwrap()
    };
    prepare(&limited(30 * 22), &file, key(0, 0)).unwrap();
    let error = prepare(&limited(30 * 22 - 1), &file, key(0, 0)).unwrap_err();
    assert_says(
        &error,
        ErrorKind::TooLarge,
        &["30 x 22", "max_pixels = 659"],
    );
}

#[test]
fn a_resize_that_would_stretch_a_sliver_beyond_max_pixels_is_refused() {
    let sliver = image::RgbImage::new(20_000, 1);
    let mut png = std::io::Cursor::new(Vec::new());
    sliver.write_to(&mut png, image::ImageFormat::Png).unwrap();
    let resize = Op::Resize {
        to: coprep_protocol::spec::ResizeTo::Shorter(256),
        interpolation: coprep_protocol::spec::Interpolation::Bilinear,
    };
    let pipeline = Pipeline::compile(&[
        decode(),
        resize,
        Op::CenterCrop {
            height: 8,
            width: 8,
        },
    ])
    .unwrap();
    let error = prepare(&pipeline, png.get_ref(), key(0, 0)).unwrap_err();
    assert_says(&error, ErrorKind::TooLarge, &["resized to 5120000 x 256"]);
}

#[test]
fn an_image_without_pixels_is_damaged() {
    let mut png = common::data("rgb.png");
    png[16..20].fill(0);
    assert_says(&failure(&png), ErrorKind::Damaged, &["0 x 22"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Whatever the damage, nothing panics, and the two ways agree on whether there is a sample.
    #[test]
    fn no_damage_makes_it_panic(file in 0..FILES.len(), damage in flipped_bytes(), cut in 0..2000u32) {
        let mut file = common::data(FILES[file]);
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(file.len() * cut as usize / 1000);
        let limit = Op::Decode { apply_exif_orientation: true, max_pixels: 1 << 16, scaled: false };
        let pipeline = Pipeline::compile(&[limit, random_resized_crop(8, 8)]).unwrap();
        let whole = decoded(&pipeline, &file);
        let part = prepare(&pipeline, &file, key(0, 0));
        prop_assert_eq!(whole.is_ok(), part.is_ok(), "{:?}, {:?}", whole.err(), part.err());
    }
}
