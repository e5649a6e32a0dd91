//! Geometry of the operators: sizes, rectangles, and torchvision's arithmetic for them. This module touches no pixels.

use crate::rng::Rng;

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageSize {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Size of a sample's decoded form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedShape {
    /// Width in pixels; of an array, its bytes; of audio, the samples of a channel.
    pub width: u32,
    /// Height in pixels; of an array, 1; of audio, the channels.
    pub height: u32,
    /// Bytes of a pixel, or of a sample of audio; of an array, 1.
    pub(crate) pixel_bytes: u32,
}

/// A part of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) size: ImageSize,
}

/// Columns and rows of zeros put before an image. The zeros after it follow from the target's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Padding {
    pub(crate) left: u32,
    pub(crate) top: u32,
}

/// Bounds of the area and aspect ratio that [`random_resized`] draws, as in `torchvision.transforms.RandomResizedCrop`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freedom {
    pub(crate) scale: (f64, f64),
    pub(crate) ratio: (f64, f64),
}

impl DecodedShape {
    pub(crate) fn of_image(size: ImageSize) -> Self {
        DecodedShape {
            width: size.width,
            height: size.height,
            pixel_bytes: 3,
        }
    }

    /// Returns the length of the decoded form in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.width as usize * self.height as usize * self.pixel_bytes as usize
    }
}

impl ImageSize {
    pub(crate) const fn new(width: u32, height: u32) -> Self {
        ImageSize { width, height }
    }

    pub(crate) fn pixels(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Returns the length of an 8-bit RGB image of this size, in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.width as usize * self.height as usize * 3
    }

    pub(crate) fn transposed(self) -> Self {
        ImageSize::new(self.height, self.width)
    }

    pub(crate) fn whole(self) -> Rect {
        Rect {
            x: 0,
            y: 0,
            size: self,
        }
    }

    /// Returns the size after a reduction by `1 / denominator`, rounded up as the JPEG decoder does.
    pub(crate) fn reduced(self, denominator: u32) -> Self {
        ImageSize::new(
            self.width.div_ceil(denominator),
            self.height.div_ceil(denominator),
        )
    }
}

impl Rect {
    pub(crate) fn right(self) -> u32 {
        self.x + self.size.width
    }

    pub(crate) fn bottom(self) -> u32 {
        self.y + self.size.height
    }
}

/// Returns the size whose shorter side is `shorter` and whose aspect ratio is that of `size`
/// (`torchvision.transforms.functional.resize` with an integer).
pub(crate) fn shorter_side(size: ImageSize, shorter: u32) -> ImageSize {
    let (short, long) = (size.width.min(size.height), size.width.max(size.height));
    let stretched = u64::from(shorter) * u64::from(long) / u64::from(short.max(1));
    let long = u32::try_from(stretched).unwrap_or(u32::MAX);
    if size.width <= size.height {
        ImageSize::new(shorter, long)
    } else {
        ImageSize::new(long, shorter)
    }
}

/// Returns the part of an image that a central crop keeps, and the zeros put before it where the image is smaller than
/// the crop (`torchvision.transforms.functional.center_crop`).
pub(crate) fn center(size: ImageSize, crop: ImageSize) -> (Rect, Padding) {
    let (x, width, left) = center_side(size.width, crop.width);
    let (y, height, top) = center_side(size.height, crop.height);
    (
        Rect {
            x,
            y,
            size: ImageSize::new(width, height),
        },
        Padding { left, top },
    )
}

/// Returns, for one side, the offset and length of the kept part and the padding before it.
fn center_side(side: u32, crop: u32) -> (u32, u32, u32) {
    if crop > side {
        return (0, side, (crop - side) / 2);
    }
    (half_to_even(side - crop), crop, 0)
}

/// Returns `n / 2`, rounded half to even as Python's `round` does.
fn half_to_even(n: u32) -> u32 {
    let half = n / 2;
    half + (n % 2) * (half % 2)
}

/// Draws a random part of an image (`torchvision.transforms.RandomResizedCrop.get_params`): ten attempts at a uniform
/// area and a log-uniform aspect ratio, then the largest central part within `ratio`.
pub(crate) fn random_resized(size: ImageSize, freedom: Freedom, rng: &mut Rng) -> Rect {
    (0..10)
        .find_map(|_| attempt(size, freedom, rng))
        .unwrap_or_else(|| fallback(size, freedom.ratio))
}

fn attempt(size: ImageSize, freedom: Freedom, rng: &mut Rng) -> Option<Rect> {
    let area = size.pixels() as f64 * rng.between(freedom.scale.0, freedom.scale.1);
    // Uniform in the logarithm, so that 1:2 is as likely as 2:1.
    let ratio = rng
        .between(freedom.ratio.0.ln(), freedom.ratio.1.ln())
        .exp();
    let width = rounded((area * ratio).sqrt());
    let height = rounded((area / ratio).sqrt());
    if width == 0 || height == 0 || width > size.width || height > size.height {
        return None;
    }
    // torchvision draws the row before the column. The order decides which numbers each of them gets.
    let y = rng.below(size.height - height + 1);
    let x = rng.below(size.width - width + 1);
    Some(Rect {
        x,
        y,
        size: ImageSize::new(width, height),
    })
}

fn fallback(size: ImageSize, ratio: (f64, f64)) -> Rect {
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let own = width / height;
    let kept = if own < ratio.0 {
        ImageSize::new(size.width, rounded(width / ratio.0).clamp(1, size.height))
    } else if own > ratio.1 {
        ImageSize::new(rounded(height * ratio.1).clamp(1, size.width), size.height)
    } else {
        size
    };
    Rect {
        x: (size.width - kept.width) / 2,
        y: (size.height - kept.height) / 2,
        size: kept,
    }
}

/// Rounds as Python's `int(round(x))` does, but saturates at the bounds of `u32`.
fn rounded(x: f64) -> u32 {
    x.round_ties_even() as u32
}

/// Returns the strongest reduction (1, 2, 4 or 8) after which `part` is still at least as large as `target`.
pub(crate) fn reduction(part: ImageSize, target: ImageSize) -> u32 {
    let enough = |d: &u32| {
        u64::from(part.width) >= u64::from(target.width) * u64::from(*d)
            && u64::from(part.height) >= u64::from(target.height) * u64::from(*d)
    };
    [8, 4, 2].into_iter().find(enough).unwrap_or(1)
}

/// Pixels decoded around a wanted part. Chroma upsampling reads one chroma sample to each side, which is at most two
/// pixels, and the decoder treats the edge of its region as the edge of the image.
const MARGIN: u32 = 4;

/// Returns the region of an image reduced by `denominator` that a JPEG decoder must decode so that `part` of the
/// full-size image comes out right. The left edge is a multiple of `align`.
pub(crate) fn decode_region(image: ImageSize, part: Rect, denominator: u32, align: u32) -> Rect {
    let reduced = image.reduced(denominator);
    // All edges are rounded outwards, so that no wanted pixel is lost.
    let left = (part.x / denominator).saturating_sub(MARGIN) / align * align;
    let top = (part.y / denominator).saturating_sub(MARGIN);
    let right = (part.right().div_ceil(denominator) + MARGIN).min(reduced.width);
    let bottom = (part.bottom().div_ceil(denominator) + MARGIN).min(reduced.height);
    Rect {
        x: left,
        y: top,
        size: ImageSize::new(right - left, bottom - top),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::{Rng, SampleKey};

    const FREEDOM: Freedom = Freedom {
        scale: (0.08, 1.0),
        ratio: (0.75, 4.0 / 3.0),
    };

    fn rect(x: u32, y: u32, width: u32, height: u32) -> Rect {
        Rect {
            x,
            y,
            size: ImageSize::new(width, height),
        }
    }

    fn drawn(size: ImageSize, freedom: Freedom, seed: u64) -> Rect {
        random_resized(
            size,
            freedom,
            &mut Rng::new(SampleKey {
                seed,
                id: 0,
                visit: 0,
            }),
        )
    }

    fn sizes(most: u32) -> impl Strategy<Value = ImageSize> {
        (1..most, 1..most).prop_map(|(width, height)| ImageSize::new(width, height))
    }

    /// The values are from `torchvision.transforms.functional.center_crop`, whose `round` goes to even.
    #[test]
    fn central_crops_are_torchvisions() {
        let none = Padding::default();
        assert_eq!(
            center(ImageSize::new(256, 341), ImageSize::new(224, 224)),
            (rect(16, 58, 224, 224), none)
        );
        assert_eq!(
            center(ImageSize::new(11, 13), ImageSize::new(8, 8)),
            (rect(2, 2, 8, 8), none)
        );
        assert_eq!(
            center(ImageSize::new(5, 10), ImageSize::new(8, 8)),
            (rect(0, 1, 5, 8), Padding { left: 1, top: 0 })
        );
    }

    #[test]
    fn the_shorter_side_is_met_and_the_longer_truncated() {
        assert_eq!(
            shorter_side(ImageSize::new(500, 375), 256),
            ImageSize::new(341, 256)
        );
        assert_eq!(
            shorter_side(ImageSize::new(375, 500), 256),
            ImageSize::new(256, 341)
        );
        assert_eq!(shorter_side(ImageSize::new(7, 7), 3), ImageSize::new(3, 3));
    }

    #[test]
    fn an_image_too_long_for_any_attempt_keeps_its_middle() {
        let freedom = Freedom {
            scale: (0.9, 1.0),
            ..FREEDOM
        };
        assert_eq!(
            drawn(ImageSize::new(1000, 30), freedom, 1),
            rect(480, 0, 40, 30)
        );
        assert_eq!(
            drawn(ImageSize::new(30, 1000), freedom, 1),
            rect(0, 480, 30, 40)
        );
    }

    #[test]
    fn random_areas_and_ratios_fill_their_ranges_evenly() {
        let size = ImageSize::new(1000, 1000);
        let drawn: Vec<ImageSize> = (0..4000)
            .map(|seed| drawn(size, FREEDOM, seed).size)
            .collect();
        // A narrow part always fits, so its area is uniform: below 0.5 the average is (0.08 + 0.5) / 2.
        let areas: Vec<f64> = drawn
            .iter()
            .map(|s| s.pixels() as f64 / 1e6)
            .filter(|&area| area < 0.5)
            .collect();
        let mean = areas.iter().sum::<f64>() / areas.len() as f64;
        assert!((mean - 0.29).abs() < 0.01, "{mean}");
        let wide = drawn.iter().filter(|s| s.width > s.height).count();
        assert!(
            (1800..2200).contains(&wide),
            "{wide} of 4000 are wider than high"
        );
    }

    #[test]
    fn the_reduction_never_leaves_less_than_the_target() {
        let target = ImageSize::new(224, 224);
        let side = |side| reduction(ImageSize::new(side, side), target);
        assert_eq!(
            [223, 447, 448, 895, 896, 1791, 1792, 9999].map(side),
            [1, 1, 2, 2, 4, 4, 8, 8]
        );
        assert_eq!(reduction(ImageSize::new(9999, 448), target), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_random_part_lies_in_the_image_and_within_its_bounds(size in sizes(3000), seed: u64) {
            let part = drawn(size, FREEDOM, seed);
            prop_assert!(part.size.pixels() > 0);
            prop_assert!(part.right() <= size.width && part.bottom() <= size.height);
            // Rounding a side to whole pixels changes the ratio by up to one pixel's share.
            let (width, height) = (f64::from(part.size.width), f64::from(part.size.height));
            let slack = 1.0 + 2.0 / width.min(height);
            prop_assert!((0.75 / slack..=4.0 / 3.0 * slack).contains(&(width / height)), "{:?}", part);
        }

        #[test]
        fn what_is_decoded_covers_the_part_and_lies_in_the_image(
            size in sizes(3000), seed: u64, by in prop::sample::select(vec![1u32, 2, 4, 8]),
            mcu in prop::sample::select(vec![8u32, 16, 32]),
        ) {
            let part = drawn(size, FREEDOM, seed);
            let align = mcu.div_ceil(by);
            let region = decode_region(size, part, by, align);
            let reduced = size.reduced(by);
            prop_assert!(region.x.is_multiple_of(align));
            prop_assert!(region.x * by <= part.x && region.y * by <= part.y);
            prop_assert!(region.right() <= reduced.width && region.bottom() <= reduced.height);
            prop_assert!(region.right() * by >= part.right() && region.bottom() * by >= part.bottom());
        }
    }
}
