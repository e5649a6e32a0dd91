//! The values of [`Op::Normalize`](crate::spec::Op::Normalize), for every side that computes them.
//!
//! The pipeline looks them up as it writes a slot. A job whose batches go to a GPU looks them up there. Both take this
//! table, so both get the same bits.

/// Table of `(x / 255 - mean) / std` for each channel and each of the 256 values, computed in the order and precision
/// (float32) of torchvision.
pub struct NormalizeTable([[f32; 256]; 3]);

impl NormalizeTable {
    /// Computes the table. `mean` and `std` are those of the three channels, on a scale from 0 to 1.
    #[must_use]
    pub fn new(mean: [f32; 3], std: [f32; 3]) -> Self {
        let value = |channel: usize, x: usize| (x as f32 / 255.0 - mean[channel]) / std[channel];
        NormalizeTable(std::array::from_fn(|channel| {
            std::array::from_fn(|x| value(channel, x))
        }))
    }

    /// Returns the values of each channel, by the byte that they stand for.
    #[inline]
    #[must_use]
    pub fn channels(&self) -> &[[f32; 256]; 3] {
        &self.0
    }
}

impl std::fmt::Debug for NormalizeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NormalizeTable")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_each_channel_have_the_bits_that_torchvision_computes() {
        let table = NormalizeTable::new([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let ends = table.channels().map(|values| [values[0], values[255]]);
        // torchvision's steps, each rounded to a float32: divide by 255, subtract the mean, divide by the deviation.
        let expected = [
            [-2.117_904, 2.248_908_3],
            [-2.035_714_1, 2.428_571_5],
            [-1.804_444_4, 2.64],
        ];
        assert_eq!(ends, expected);
    }
}
