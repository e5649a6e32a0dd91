//! Rules for operators: the arguments they take, and the operators that may follow each other.
//!
//! Clients check an operator where it is written. The coordinator checks each pipeline that it receives. Both use these
//! functions.

use crate::spec::{LogMel, Op, ResizeTo, Source};

/// Most pixels of a side of an image that an operator makes.
pub const MAX_SIDE: u32 = 16_384;
/// Highest sampling rate that audio is resampled to, in Hz.
pub const MAX_RATE: u32 = 768_000;
/// Most samples of a channel that a crop of audio has: 1 GiB of a slot at most for one channel.
pub const MAX_CROP: u32 = 1 << 28;
/// Most samples of a Fourier transform.
pub const MAX_FFT: u32 = 65_536;
/// Most mel bands.
pub const MAX_MELS: u32 = 1024;

/// Checks all operators of a pipeline, but not whether the pipeline is complete.
///
/// # Errors
///
/// The first mistake, with the remedy.
pub fn check(ops: &[Op]) -> Result<(), String> {
    (0..ops.len()).try_for_each(|at| check_next(&ops[..at], &ops[at]))
}

/// Returns the operators in the order of application, as text for people.
#[must_use]
pub fn describe(ops: &[Op]) -> String {
    let shown = |op: &Op| op.to_string().trim_end_matches("()").to_owned();
    ops.iter().map(shown).collect::<Vec<String>>().join(" > ")
}

/// Checks an operator that follows the operators `before` it, which are valid.
///
/// # Errors
///
/// The mistake, with the remedy.
pub fn check_next(before: &[Op], op: &Op) -> Result<(), String> {
    check_order(before, op)?;
    match *op {
        Op::Decode { max_pixels: 0, .. } => {
            Err("decode: max_pixels is 0, so no image would be accepted".into())
        }
        Op::Decode { .. } | Op::DecodeNpy => Ok(()),
        Op::DecodeAudio { .. }
        | Op::Resample { .. }
        | Op::RandomCrop { .. }
        | Op::Crop { .. }
        | Op::LogMel(_) => check_audio(before, op),
        Op::Resize { to, .. } => {
            let (height, width) = match to {
                ResizeTo::Shorter(side) => (side, side),
                ResizeTo::Exact { height, width } => (height, width),
            };
            check_sides(op, height, width)
        }
        Op::CenterCrop { height, width } => check_sides(op, height, width),
        Op::RandomResizedCrop {
            height,
            width,
            scale,
            ratio,
            ..
        } => {
            check_sides(op, height, width)?;
            check_ranges(scale, ratio)
        }
        Op::RandomHorizontalFlip { p } if (0.0..=1.0).contains(&p) => Ok(()),
        Op::RandomHorizontalFlip { p } => Err(format!(
            "random_horizontal_flip: p = {p} is no probability: it must be from 0 to 1"
        )),
        Op::Normalize { mean, std } => check_statistics(mean, std),
    }
}

/// Checks whether samples of a source can be prepared by an operator.
///
/// # Errors
///
/// The mistake, with the remedy.
pub fn check_source(source: &Source, op: &Op) -> Result<(), String> {
    let name = op.name();
    match (source, op) {
        (Source::Tokens(_) | Source::Arrays(_), _) => Err(format!(
            "{name}() is for files that have to be decoded: samples of Tokens and Arrays are tensors already, so give the \
             pipeline to DataLoader as it is"
        )),
        (Source::ImageFolder { .. }, op) if op.kind() != OpKind::Image => Err(format!(
            "{name}() is not for images, and ImageFolder lists nothing else: use coprep.AudioFolder, or \
             coprep.Files(paths, labels)"
        )),
        (Source::AudioFolder { .. }, op) if op.kind() != OpKind::Audio => Err(format!(
            "{name}() is not for audio, and AudioFolder lists nothing else: begin with decode_audio()"
        )),
        _ => Ok(()),
    }
}

/// The kind of samples that an operator is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpKind {
    Image,
    Array,
    Audio,
}

impl Op {
    fn kind(&self) -> OpKind {
        match self {
            Op::DecodeNpy => OpKind::Array,
            Op::DecodeAudio { .. }
            | Op::Resample { .. }
            | Op::RandomCrop { .. }
            | Op::Crop { .. }
            | Op::LogMel(_) => OpKind::Audio,
            _ => OpKind::Image,
        }
    }

    fn decodes(&self) -> bool {
        matches!(
            self,
            Op::Decode { .. } | Op::DecodeNpy | Op::DecodeAudio { .. }
        )
    }
}

fn check_order(before: &[Op], op: &Op) -> Result<(), String> {
    let name = op.name();
    let (Some(first), Some(last)) = (before.first(), before.last()) else {
        let decode = match op.kind() {
            OpKind::Audio => "decode_audio",
            _ => "decode",
        };
        return if op.decodes() {
            Ok(())
        } else {
            Err(format!(
                "a pipeline begins with {decode}(): put it first, before {name}()"
            ))
        };
    };
    if op.decodes() && op.kind() == first.kind() {
        return Err(format!("{name}() comes twice: remove the second"));
    }
    if *first == Op::DecodeNpy {
        return Err(format!(
            "decode_npy() gives the arrays of the files as they are: no {name}() can follow"
        ));
    }
    if op.kind() != first.kind() {
        return Err(format!(
            "{name}() cannot follow {}(), which is for samples of another kind: remove one of them",
            first.name()
        ));
    }
    if matches!(last, Op::Normalize { .. } | Op::LogMel(_)) {
        return Err(format!(
            "{}() must be the last operator: put {name}() before it",
            last.name()
        ));
    }
    Ok(())
}

/// Returns the sampling rate of the audio that these operators make, if they determine it.
#[must_use]
pub fn audio_rate(ops: &[Op]) -> Option<u32> {
    ops.iter().find_map(|op| match op {
        Op::Resample { rate } => Some(*rate),
        _ => None,
    })
}

/// Checks an operator of audio, whose order is decode_audio, resample, a crop, log_mel.
fn check_audio(before: &[Op], op: &Op) -> Result<(), String> {
    let crop = before.iter().find_map(|op| match op {
        Op::RandomCrop { samples } | Op::Crop { samples } => Some(*samples),
        _ => None,
    });
    match op {
        Op::DecodeAudio { max_samples: 0, .. } => {
            Err("decode_audio: max_samples is 0, so no file would be accepted".into())
        }
        Op::Resample { .. } if before.len() != 1 => {
            Err("resample() comes right after decode_audio(): put it there".into())
        }
        Op::Resample { rate } if !(1..=MAX_RATE).contains(rate) => {
            Err(format!("resample: {rate} Hz must be 1 to {MAX_RATE}"))
        }
        Op::RandomCrop { .. } | Op::Crop { .. } if crop.is_some() => Err(format!(
            "{}() is a second crop: remove one of them",
            op.name()
        )),
        Op::RandomCrop { samples } | Op::Crop { samples } if !(1..=MAX_CROP).contains(samples) => {
            Err(format!(
                "{}: {samples} samples must be 1 to {MAX_CROP}",
                op.name()
            ))
        }
        Op::LogMel(shape) => match (crop, audio_rate(before)) {
            (Some(samples), Some(rate)) => check_mel(shape, samples, rate),
            (None, _) => Err(
                "log_mel() comes after random_crop() or crop(), which fix the number of frames"
                    .into(),
            ),
            (_, None) => Err(
                "log_mel() needs the sampling rate: add resample(rate) after decode_audio()".into(),
            ),
        },
        _ => Ok(()),
    }
}

fn check_mel(shape: &LogMel, samples: u32, rate: u32) -> Result<(), String> {
    let wrong = |what: String| Err(format!("log_mel: {what}"));
    let LogMel {
        n_fft,
        win_length,
        hop_length,
        n_mels,
        ..
    } = *shape;
    // The frames at the edges reflect half a frame, which the crop must be long enough for.
    if !(2..=MAX_FFT).contains(&n_fft) || n_fft / 2 >= samples {
        return wrong(format!(
            "n_fft={n_fft} must be 2 to {MAX_FFT}, and at most twice the {samples} samples of the crop"
        ));
    }
    if !(1..=n_fft).contains(&win_length) || hop_length == 0 {
        return wrong(format!(
            "win_length={win_length} must be 1 to n_fft={n_fft}, and hop_length={hop_length} 1 or more"
        ));
    }
    if !(1..=MAX_MELS).contains(&n_mels) {
        return wrong(format!("n_mels={n_mels} must be 1 to {MAX_MELS}"));
    }
    let high = shape.f_max.unwrap_or((rate / 2) as f32);
    // The comparison is negated, because it is false for NaN too.
    if !(shape.f_min >= 0.0 && shape.f_min < high && high.is_finite()) {
        return wrong(format!(
            "f_min={:?} and f_max={high:?} must be frequencies with 0 <= f_min < f_max",
            shape.f_min
        ));
    }
    if !(shape.floor > 0.0 && shape.floor.is_finite()) {
        return wrong(format!("floor={:?} must be positive", shape.floor));
    }
    Ok(())
}

fn check_sides(op: &Op, height: u32, width: u32) -> Result<(), String> {
    let allowed = 1..=MAX_SIDE;
    if allowed.contains(&height) && allowed.contains(&width) {
        return Ok(());
    }
    Err(format!(
        "{}: {height} x {width} pixels; each side must be 1 to {MAX_SIDE}",
        op.name()
    ))
}

fn check_ranges(scale: (f32, f32), ratio: (f32, f32)) -> Result<(), String> {
    let is_range = |(low, high): (f32, f32)| 0.0 < low && low <= high && high.is_finite();
    if is_range(scale) && is_range(ratio) {
        return Ok(());
    }
    Err(format!(
        "random_resized_crop: scale {scale:?} and ratio {ratio:?} must be (low, high) with 0 < low <= high"
    ))
}

fn check_statistics(mean: [f32; 3], std: [f32; 3]) -> Result<(), String> {
    if mean.iter().chain(&std).all(|x| x.is_finite()) && !std.contains(&0.0) {
        return Ok(());
    }
    Err(format!(
        "normalize: mean {mean:?} and std {std:?} must be finite, and std must not be zero"
    ))
}

impl Op {
    /// Returns the name that users write.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Decode { .. } => "decode",
            Op::DecodeNpy => "decode_npy",
            Op::DecodeAudio { .. } => "decode_audio",
            Op::Resample { .. } => "resample",
            Op::RandomCrop { .. } => "random_crop",
            Op::Crop { .. } => "crop",
            Op::LogMel(_) => "log_mel",
            Op::Resize { .. } => "resize",
            Op::CenterCrop { .. } => "center_crop",
            Op::RandomResizedCrop { .. } => "random_resized_crop",
            Op::RandomHorizontalFlip { .. } => "random_horizontal_flip",
            Op::Normalize { .. } => "normalize",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::DEFAULT_MAX_PIXELS;

    const FLIP: Op = Op::RandomHorizontalFlip { p: 0.5 };
    const DECODE: Op = Op::Decode {
        apply_exif_orientation: false,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: true,
    };
    const NORMALIZE: Op = Op::Normalize {
        mean: [0.5; 3],
        std: [0.2; 3],
    };

    #[test]
    fn an_operator_in_the_wrong_place_is_named() {
        assert_eq!(check(&[DECODE, FLIP, NORMALIZE]), Ok(()));
        let wrong = |ops: &[Op], words: &str| {
            let message = check(ops).expect_err("it is wrong");
            assert!(message.contains(words), "{message}");
        };
        wrong(&[FLIP], "before random_horizontal_flip()");
        wrong(&[DECODE, FLIP, DECODE], "twice");
        wrong(
            &[DECODE, NORMALIZE, FLIP],
            "put random_horizontal_flip() before it",
        );
    }
}
