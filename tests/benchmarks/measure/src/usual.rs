//! The operators of most trainings on images, for programs that measure.

use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Interpolation, Op};

/// Returns `RandomResizedCrop(224)` and a flip. With `scaled`, large images are decoded at a fraction of their size.
pub(crate) fn operators(scaled: bool) -> Vec<Op> {
    vec![
        Op::Decode {
            apply_exif_orientation: false,
            max_pixels: DEFAULT_MAX_PIXELS,
            scaled,
        },
        Op::RandomResizedCrop {
            height: 224,
            width: 224,
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            interpolation: Interpolation::Bilinear,
        },
        Op::RandomHorizontalFlip { p: 0.5 },
    ]
}
