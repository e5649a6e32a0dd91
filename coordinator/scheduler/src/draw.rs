//! Keyed random draws of samples without replacement.
//!
//! The sample at position `t` of epoch `e` is the `r`-th smallest of the remaining samples, where `r` is a hash of
//! (seed, e, t) below their number. So the order of a job that is served alone is a uniformly random permutation that
//! depends only on the seed, the epoch and the set. It does not depend on how it was cut into minibatches, or on
//! whether it was interrupted and resumed.

use roaring::RoaringBitmap;

/// The position of a draw. Its randomness depends on this and nothing else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrawKey {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    /// Number of samples of the epoch that were drawn before.
    pub(crate) position: u64,
    /// Zero where the order is promised to depend only on the other fields. Otherwise it separates the draws of
    /// different leaders at equal positions.
    pub(crate) salt: u64,
}

/// Draws the next `count` samples of `from`, or all if there are fewer. Returns them in the order of their draw.
pub(crate) fn random(from: &RoaringBitmap, count: u32, key: DrawKey) -> Vec<u32> {
    let mut taken: Vec<u64> = Vec::with_capacity(count as usize);
    let left = |i: u64| from.len() - i;
    (0..u64::from(count).min(from.len()))
        .filter_map(|i| {
            let rank = skip(&mut taken, below(key.at(i), left(i)));
            from.select(rank as u32)
        })
        .collect()
}

/// Returns the `count` smallest samples of `from`.
pub(crate) fn ascending(from: &RoaringBitmap, count: u32) -> Vec<u32> {
    from.iter().take(count as usize).collect()
}

/// Draws `count` samples of `from`, each equally likely. Fit for a large `count`: the time depends only on the size of
/// `from`.
pub(crate) fn any_of(from: &RoaringBitmap, count: u64, key: DrawKey) -> RoaringBitmap {
    let (mut left, mut wanted) = (from.len(), count.min(from.len()));
    let takes = |&(i, _): &(u64, u32)| {
        let is_taken = below(key.at(i), left) < wanted;
        left -= 1;
        wanted -= u64::from(is_taken);
        is_taken
    };
    (0..).zip(from).filter(takes).map(|(_, id)| id).collect()
}

/// Returns the position in the whole set of the `rank`-th element that is not among `taken`, and adds it to `taken`,
/// which stays ascending.
fn skip(taken: &mut Vec<u64>, rank: u64) -> u64 {
    let (mut low, mut high) = (0, taken.len());
    // Before `taken[i]` lie `taken[i] - i` elements that are not taken. This number never falls with `i`, so bisection
    // finds it.
    while low < high {
        let middle = (low + high) / 2;
        if taken[middle] - middle as u64 <= rank {
            low = middle + 1
        } else {
            high = middle
        }
    }
    taken.insert(low, rank + low as u64);
    rank + low as u64
}

impl DrawKey {
    pub(crate) fn at(self, further: u64) -> u64 {
        keyed(self.seed, &[self.epoch, self.position + further, self.salt])
    }
}

/// Returns 64 random bits that depend on the seed and on every word, in their order.
#[must_use]
pub fn keyed(seed: u64, words: &[u64]) -> u64 {
    // Only the seed is mixed before the fold. If each word were mixed first, two of them could be exchanged unnoticed.
    words.iter().fold(mix(seed), |hash, word| mix(hash ^ word))
}

/// Returns a number below `bound` from 64 random bits, by Lemire's multiplication without the rejection step. The bias
/// is less than `bound` / 2^64.
#[must_use]
pub fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// Mixes 64 bits well: one step of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// 2014).
pub(crate) fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: DrawKey = DrawKey {
        seed: 7,
        epoch: 3,
        position: 0,
        salt: 0,
    };

    fn one_by_one(mut from: RoaringBitmap, count: u32) -> Vec<u32> {
        let step = |i: u32| {
            let id = random(
                &from,
                1,
                DrawKey {
                    position: u64::from(i),
                    ..KEY
                },
            )[0];
            from.remove(id);
            id
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn seed_and_epoch_do_not_change_places() {
        let from: RoaringBitmap = (0..100).collect();
        let mut orders = std::collections::BTreeSet::new();
        for seed in 0..10 {
            for epoch in 0..10 {
                orders.insert(random(&from, 100, DrawKey { seed, epoch, ..KEY }));
            }
        }
        assert_eq!(orders.len(), 100, "each is another order");
    }

    proptest! {
        #[test]
        fn the_order_does_not_depend_on_how_it_is_cut(ids: std::collections::BTreeSet<u32>) {
            let from: RoaringBitmap = ids.iter().copied().collect();
            let all = random(&from, ids.len() as u32, KEY);
            prop_assert_eq!(&all, &one_by_one(from, ids.len() as u32));
            let drawn: std::collections::BTreeSet<u32> = all.into_iter().collect();
            prop_assert_eq!(drawn, ids);
        }
    }

    #[test]
    fn any_of_a_set_are_so_many_and_each_as_likely() {
        let from: RoaringBitmap = (5..15).collect();
        let mut seen = [0u32; 15];
        for epoch in 0..10_000 {
            let ids = any_of(&from, 4, DrawKey { epoch, ..KEY });
            assert_eq!(ids.len(), 4);
            ids.iter().for_each(|id| seen[id as usize] += 1);
        }
        assert_eq!(seen[..5], [0; 5]);
        assert!(
            seen[5..].iter().all(|n| (3700..4300).contains(n)),
            "{seen:?}"
        );
        assert_eq!(any_of(&from, 100, KEY), from);
        assert_eq!(any_of(&RoaringBitmap::new(), 1, KEY).len(), 0);
    }

    #[test]
    fn every_place_is_equally_likely() {
        let from: RoaringBitmap = (0..10).collect();
        let mut seen = [[0u32; 10]; 10];
        for epoch in 0..10_000 {
            for (position, id) in random(&from, 10, DrawKey { epoch, ..KEY })
                .into_iter()
                .enumerate()
            {
                seen[position][id as usize] += 1;
            }
        }
        // The mean is 1000, the standard deviation 30.
        assert!(
            seen.iter().flatten().all(|&n| (850..1150).contains(&n)),
            "{seen:?}"
        );
    }
}
