//! Random numbers that are a pure function of a sample's key.
//!
//! `SplitMix64` (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*, OOPSLA 2014),
//! started from the xxh3 hash of the key, so that neighbouring keys give unrelated sequences.

/// Key of a sample's random numbers: together with the sample itself, it determines every random operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleKey {
    /// The stream's seed.
    pub seed: u64,
    /// The sample's id.
    pub id: u32,
    /// Number of earlier preparations of the sample.
    pub visit: u64,
}

/// The random number generator of one sample at one visit.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(key: SampleKey) -> Self {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&key.seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&key.visit.to_le_bytes());
        bytes[16..].copy_from_slice(&key.id.to_le_bytes());
        Rng(xxhash_rust::xxh3::xxh3_64(&bytes))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform number in `0.0..1.0`, with 53 random bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (-53f64).exp2()
    }

    /// Returns a uniform number in `low..high`, or `low` if they are equal.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns a uniform integer in `0..n`, or 0 if `n` is 0, by Lemire's multiplication. Its bias is below `n / 2^64`.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SampleKey = SampleKey {
        seed: 1,
        id: 2,
        visit: 3,
    };

    fn first(key: SampleKey) -> u64 {
        Rng::new(key).next()
    }

    #[test]
    fn the_sequence_is_a_function_of_the_key_alone() {
        let draw = || {
            (0..100).map({
                let mut rng = Rng::new(KEY);
                move |_| rng.next()
            })
        };
        assert!(draw().eq(draw()));
    }

    #[test]
    fn the_sequence_stays_the_same_between_versions() {
        // Runs are reproducible across releases, so a change of this number needs a note in the changelog.
        assert_eq!(first(KEY), 0xfe94_3454_e249_018a);
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let others = [
            SampleKey { seed: 2, ..KEY },
            SampleKey { id: 3, ..KEY },
            SampleKey { visit: 4, ..KEY },
            SampleKey {
                seed: 1 << 40,
                ..KEY
            },
            SampleKey {
                visit: 1 << 40,
                ..KEY
            },
        ];
        assert!(others.iter().all(|&k| first(k) != first(KEY)));
    }

    #[test]
    fn draws_are_uniform() {
        let mut counts = [0u32; 10];
        for id in 0..100_000 {
            counts[Rng::new(SampleKey { id, ..KEY }).below(10) as usize] += 1;
        }
        // The standard deviation is 95.
        assert!(
            counts.iter().all(|&c| c.abs_diff(10_000) < 500),
            "{counts:?}"
        );
    }

    #[test]
    fn an_empty_range_gives_its_bound() {
        assert_eq!(Rng::new(KEY).below(0), 0);
        assert_eq!(Rng::new(KEY).between(0.5, 0.5), 0.5);
    }
}
