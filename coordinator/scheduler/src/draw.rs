//! Which samples: keyed random draws without replacement.
//!
//! The sample at position `t` of epoch `e` is the `r`-th smallest of those that remain, with `r` a hash
//! of (seed, e, t) below their number. So the order of a job that is served alone is a uniformly random
//! permutation that depends on the seed, the epoch and the set alone: not on how it was cut into
//! minibatches, and not on whether it was interrupted and resumed.

use roaring::RoaringBitmap;

/// Where a draw stands; with the seed, all that its randomness depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrawKey {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    /// Samples of the epoch drawn before.
    pub(crate) position: u64,
    /// 0 where the order is promised to be a function of the rest; otherwise it keeps the draws of
    /// different leads at equal positions apart.
    pub(crate) salt: u64,
}

/// The next `count` samples of `from`, in the order of their draw. At most as many as there are.
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

/// The `count` smallest of `from`.
pub(crate) fn ascending(from: &RoaringBitmap, count: u32) -> Vec<u32> {
    from.iter().take(count as usize).collect()
}

/// Any `count` samples of `from`, each as likely as any other. For many: its time grows with `from` alone.
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

/// The rank in the whole set of the `rank`-th that is not among `taken`, which is ascending; adds it.
fn skip(taken: &mut Vec<u64>, rank: u64) -> u64 {
    let (mut low, mut high) = (0, taken.len());
    // `taken[i] - i` elements that are not taken lie before `taken[i]`: that number never falls.
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
    fn at(self, further: u64) -> u64 {
        keyed(self.seed, &[self.epoch, self.position + further, self.salt])
    }
}

/// Returns 64 random bits that depend on the seed and on every word, in their order.
#[must_use]
pub fn keyed(seed: u64, words: &[u64]) -> u64 {
    // A word is not mixed before it is added: the seed is, and two that were could change places.
    words.iter().fold(mix(seed), |hash, word| mix(hash ^ word))
}

/// Returns a number below `bound`, of 64 random bits (Lemire's multiplication, without the rejection: off by less than
/// `bound` / 2^64).
#[must_use]
pub fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// A good 64-bit mixer: one step of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
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
            for (place, id) in random(&from, 10, DrawKey { epoch, ..KEY })
                .into_iter()
                .enumerate()
            {
                seen[place][id as usize] += 1;
            }
        }
        // 1000 each, standard deviation 30.
        assert!(
            seen.iter().flatten().all(|&n| (850..1150).contains(&n)),
            "{seen:?}"
        );
    }
}
