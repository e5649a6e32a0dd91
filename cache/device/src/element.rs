//! Types of the elements that a converted image has.

use half::{bf16, f16};

/// The type of an element of a converted image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// `torch.float32`.
    F32,
    /// `torch.float16`.
    F16,
    /// `torch.bfloat16`.
    Bf16,
}

impl ElementType {
    /// Returns the bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            ElementType::F32 => 4,
            ElementType::F16 | ElementType::Bf16 => 2,
        }
    }

    /// Returns the bytes of values as this machine and its GPUs store them. They are rounded as PyTorch rounds: to the
    /// nearest value, and to the even one of two.
    #[must_use]
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        let values = values.iter().copied();
        match self {
            ElementType::F32 => values.flat_map(f32::to_ne_bytes).collect(),
            ElementType::F16 => values
                .flat_map(|x| f16::from_f32(x).to_ne_bytes())
                .collect(),
            ElementType::Bf16 => values
                .flat_map(|x| bf16::from_f32(x).to_ne_bytes())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bits of a value that is stored in two bytes.
    fn bits(element: ElementType, value: f32) -> u16 {
        let bytes = element.encode(&[value]);
        u16::from_ne_bytes(bytes.try_into().expect("two bytes"))
    }

    #[test]
    fn values_between_two_are_rounded_to_the_even_one() {
        // 1 + 2^-11 lies between 1 and the next float16, and 1 + 3 * 2^-11 between that one and its next.
        let step = (2f32).powi(-11);
        assert_eq!(bits(ElementType::F16, 1.0 + step), 0x3c00);
        assert_eq!(bits(ElementType::F16, 1.0 + 3.0 * step), 0x3c02);
        let step = (2f32).powi(-8);
        assert_eq!(bits(ElementType::Bf16, 1.0 + step), 0x3f80);
        assert_eq!(bits(ElementType::Bf16, 1.0 + 3.0 * step), 0x3f82);
    }

    #[test]
    fn values_beyond_the_largest_float16_are_infinite() {
        assert_eq!(bits(ElementType::F16, 70_000.0), 0x7c00);
        assert_eq!(bits(ElementType::Bf16, 70_000.0), 0x4789);
    }
}
