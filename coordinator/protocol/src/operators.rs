//! Rules for operators: the arguments they take, and the operators that may follow each other.
//!
//! Clients check an operator where it is written. The coordinator checks each pipeline that it receives. Both use these
//! functions.

use crate::spec::{Op, ResizeTo, Source};

/// Most pixels of a side of an image that an operator makes.
pub const MAX_SIDE: u32 = 16_384;

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
        (Source::ImageFolder { .. }, Op::DecodeNpy) => Err(
            "ImageFolder lists images only: give .npy files by coprep.Files(paths, labels)".into(),
        ),
        _ => Ok(()),
    }
}

fn check_order(before: &[Op], op: &Op) -> Result<(), String> {
    let name = op.name();
    match (before.last(), op) {
        (None, Op::Decode { .. } | Op::DecodeNpy) => Ok(()),
        (None, _) => Err(format!(
            "a pipeline begins with decode(): put it first, before {name}()"
        )),
        (Some(Op::DecodeNpy), _) => Err(format!(
            "decode_npy() gives the arrays of the files as they are: no {name}() can follow"
        )),
        (Some(_), Op::Decode { .. }) => Err("decode() comes twice: remove the second".into()),
        (Some(_), Op::DecodeNpy) => {
            Err("decode_npy() is for files of arrays, and must be the only operator".into())
        }
        (Some(Op::Normalize { .. }), _) => Err(format!(
            "normalize() gives float32 and must be the last operator: put {name}() before it"
        )),
        (Some(_), _) => Ok(()),
    }
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
