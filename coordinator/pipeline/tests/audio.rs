//! Audio: a sample is the same however it is prepared, and no bytes make a pipeline panic.

use coprep_pipeline::{DecodedView, Error, ErrorKind, Pipeline, SampleKey, Scratch};
use coprep_protocol::spec::{AudioChannels, LogMel, Op};

/// Two channels of 9,000 samples at 44.1 kHz, written by libsndfile.
const FLAC: &[u8] = include_bytes!("../../../tests/support/audio_reference.flac");

const DECODE: Op = Op::DecodeAudio {
    channels: AudioChannels::All(2),
    max_samples: 100_000,
};

/// Returns a WAV file of two channels of 16 bits.
fn wav(frames: u32, rate: u32) -> Vec<u8> {
    let bytes = frames * 4;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x02\0");
    file.extend(rate.to_le_bytes());
    file.extend((rate * 4).to_le_bytes());
    file.extend(b"\x04\0\x10\0data");
    file.extend(bytes.to_le_bytes());
    let sample = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 16) as i16) / 2;
    file.extend((0..frames * 2).flat_map(|i| sample(i).to_le_bytes()));
    file
}

fn prepare(pipeline: &Pipeline, file: &[u8], visit: u64) -> Result<Vec<u8>, Error> {
    let mut slot = vec![0; pipeline.output().sample_bytes()];
    let key = SampleKey {
        visit,
        ..SampleKey::default()
    };
    pipeline.prepare_encoded(file, key, &mut Scratch::new(), || &mut slot)?;
    Ok(slot)
}

#[test]
fn a_sample_is_the_same_from_its_file_and_from_its_decoded_form() {
    let mel = Op::LogMel(LogMel::of(256, 200, 20));
    let (random, first) = (
        Op::RandomCrop { samples: 900 },
        Op::Crop { samples: 20_000 },
    );
    let resample = Op::Resample { rate: 16_000 };
    for ops in [
        vec![DECODE, random.clone()],
        vec![DECODE, resample.clone(), random.clone()],
        vec![DECODE, resample.clone(), random, mel.clone()],
        vec![DECODE, resample, first, mel],
    ] {
        let pipeline = Pipeline::compile(&ops).expect("valid");
        for file in [FLAC, &wav(7_001, 48_000), &wav(700, 16_000)] {
            let mut scratch = Scratch::new();
            let shape = pipeline.decoded_size(file).expect("it is audio");
            let mut pixels = vec![0; shape.bytes()];
            pipeline
                .decode_into(file, &mut scratch, &mut pixels)
                .expect("it is whole");
            for visit in 0..4 {
                let view = DecodedView {
                    width: shape.width,
                    height: shape.height,
                    pixels: &pixels,
                };
                let mut slot = vec![0; pipeline.output().sample_bytes()];
                let key = SampleKey {
                    visit,
                    ..SampleKey::default()
                };
                pipeline
                    .prepare_decoded(view, key, &mut scratch, || &mut slot)
                    .expect("it fits");
                let encoded = prepare(&pipeline, file, visit).expect("it is whole");
                assert!(slot == encoded, "{ops:?}, visit {visit}");
            }
        }
    }
}

#[test]
fn an_rf64_that_was_written_into_a_pipe_has_samples_up_to_its_end() {
    let closed = wav(700, 16_000);
    let (format, samples) = (&closed[12..40], &closed[44..]);
    let unknown = u32::MAX.to_le_bytes();
    let piped = |magic: &[u8]| {
        let sizes = [0; 28];
        let head = [magic, &unknown, b"WAVEds64\x1c\0\0\0", &sizes].concat();
        [&head, format, &unknown, samples].concat()
    };
    let ops = [DECODE, Op::Crop { samples: 700 }];
    let pipeline = Pipeline::compile(&ops).expect("valid");
    let expected = prepare(&pipeline, &closed, 0).expect("it is whole");
    for magic in [b"RF64", b"BW64"] {
        let audio = prepare(&pipeline, &piped(magic), 0);
        assert!(audio.expect("it is whole") == expected);
    }
}

#[test]
fn damaged_bytes_give_a_sample_or_one_error() {
    let ops = [
        DECODE,
        Op::Resample { rate: 16_000 },
        Op::RandomCrop { samples: 900 },
    ];
    let pipeline = Pipeline::compile(&ops).expect("valid");
    let wav = wav(500, 44_100);
    let mut errors = 0;
    for file in [FLAC, &wav] {
        for end in (0..file.len()).step_by(97) {
            errors += usize::from(prepare(&pipeline, &file[..end], end as u64).is_err());
        }
        // All of the headers, and some of the rest.
        for at in (0..200)
            .chain((200..file.len()).step_by(61))
            .filter(|&at| at < file.len())
        {
            let mut damaged = file.to_vec();
            damaged[at] ^= 1 << (at % 8) | 0x10;
            errors += usize::from(prepare(&pipeline, &damaged, at as u64).is_err());
        }
    }
    assert!(errors > 100, "only {errors} errors");
}

#[test]
fn a_file_that_is_too_long_is_refused_by_its_header() {
    let max_samples = 8_999;
    let channels = AudioChannels::Mixed;
    let ops = [
        Op::DecodeAudio {
            channels,
            max_samples,
        },
        Op::Crop { samples: 10 },
    ];
    let pipeline = Pipeline::compile(&ops).expect("valid");
    let error = prepare(&pipeline, FLAC, 0).expect_err("it is too long");
    assert_eq!(error.into_kind(), ErrorKind::TooLarge);
}
