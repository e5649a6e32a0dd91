//! The choice of some samples that stand for all.

/// Returns `count` numbers below `all`, evenly spaced.
pub(super) fn evenly(all: u32, count: u32) -> Vec<u32> {
    let count = count.clamp(1, all.max(1));
    let at = |i: u32| (u64::from(i) * u64::from(all) / u64::from(count)) as u32;
    (0..count).map(at).collect()
}

/// Returns `count` samples, about: the first ones of `blocks` blocks, which are evenly spaced. `ends` are the ends of all
/// blocks.
pub(super) fn over_blocks(ends: &[u32], count: u32, blocks: u32) -> Vec<u32> {
    let blocks = evenly(ends.len() as u32, blocks);
    let of_each = count.max(1).div_ceil(blocks.len() as u32);
    let ids = blocks.into_iter().flat_map(|block| {
        let block = block as usize;
        let first = block.checked_sub(1).map_or(0, |before| ends[before]);
        first..ends[block].min(first.saturating_add(of_each))
    });
    ids.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_drawn_evenly_from_all() {
        assert_eq!(evenly(10, 5), [0, 2, 4, 6, 8]);
        assert_eq!(evenly(3, 10), [0, 1, 2]);
        assert_eq!(evenly(1 << 31, 2), [0, 1 << 30]);
    }

    #[test]
    fn a_part_comes_from_few_blocks() {
        let ends = [10, 20, 23, 30];
        assert_eq!(over_blocks(&ends, 4, 2), [0, 1, 20, 21]);
        assert_eq!(over_blocks(&ends, 8, 2), [0, 1, 2, 3, 20, 21, 22]);
        assert_eq!(over_blocks(&ends, 1, 9), [0, 10, 20, 23]);
        assert_eq!(over_blocks(&ends, 0, 0), [0]);
    }
}
