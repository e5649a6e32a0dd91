//! Random draws from a window of the dataset, for samples that are read in blocks.
//!
//! The ids of a dataset are cut into *blocks*, which storage reads at once. An epoch goes through the blocks in a random
//! order that depends on the seed and the epoch. A sample is drawn at random from the *window*: the first blocks that
//! have samples which are still needed. So a bounded number of blocks is in use at a time, and each is read once.
//!
//! The draw is a function of the seed, the epoch, the position in it and the samples that are needed, as it is
//! without windows ([`draw`](crate::draw)). It does not depend on how the sequence was cut into minibatches.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::JobId;
use crate::draw::{DrawKey, below, keyed, random};

/// The blocks of a dataset, and the size of the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The end of each block, which is the first id of the next one. Ascending.
    pub block_ends: Arc<[u32]>,
    /// Number of blocks in the window.
    pub open: u32,
}

/// The job that a minibatch is made for in the first place, and its epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lead {
    pub(crate) job: JobId,
    pub(crate) epoch: u64,
}

/// Word that separates the order of blocks from the draws of samples.
const BLOCK_ORDER: u64 = 0x626c_6f63_6b73_0001;

/// The orders of blocks of the epochs that jobs are in.
#[derive(Clone, Debug)]
pub(crate) struct WindowOrders {
    windows: Windows,
    /// The blocks in the order of each epoch.
    orders: BTreeMap<u64, Vec<u32>>,
    /// For each job and epoch, the number of blocks at the beginning of that epoch's order of which the job needs no
    /// sample any more.
    exhausted: BTreeMap<(JobId, u64), usize>,
}

impl WindowOrders {
    pub(crate) fn new(windows: Windows) -> Self {
        WindowOrders {
            windows,
            orders: BTreeMap::new(),
            exhausted: BTreeMap::new(),
        }
    }

    /// Makes the order of the epoch that keys a job's draws, and forgets those of epochs before `oldest`. `need` are the
    /// samples that the job still needs.
    pub(crate) fn prepare(&mut self, seed: u64, lead: Lead, oldest: u64, need: &RoaringBitmap) {
        let Lead { job, epoch } = lead;
        let oldest = oldest.min(epoch);
        self.orders = self.orders.split_off(&oldest);
        self.exhausted.retain(|&(_, of), _| of >= oldest);
        let count = self.windows.block_ends.len() as u32;
        let order = self.orders.entry(epoch).or_insert_with(|| {
            let mut blocks: Vec<u32> = (0..count).collect();
            blocks
                .sort_by_cached_key(|&block| keyed(seed, &[epoch, u64::from(block), BLOCK_ORDER]));
            blocks
        });
        let known = self.exhausted.entry((job, epoch)).or_insert(0);
        // A large dataset has many blocks, and most of them are exhausted near the end of an epoch.
        let is_exhausted = |block| need.range_cardinality(self.windows.ids_of(block)) == 0;
        while order.get(*known).is_some_and(|&block| is_exhausted(block)) {
            *known += 1;
        }
    }

    /// Considers all blocks again, because a job needs samples again that it was assigned before, or has gone.
    pub(crate) fn look_again(&mut self) {
        self.exhausted.clear();
    }

    /// Draws the next `count` samples of `from`, or all if there are fewer. This job needs all of them.
    pub(crate) fn draw(
        &self,
        from: &RoaringBitmap,
        count: u32,
        key: DrawKey,
        job: JobId,
    ) -> Vec<u32> {
        // A sample that takes the place of a bad one may be drawn for an epoch of which nothing was drawn lately.
        let Some(order) = self.orders.get(&key.epoch) else {
            return random(from, count, key);
        };
        let exhausted = self.exhausted.get(&(job, key.epoch)).copied().unwrap_or(0);
        let mut window = Window::default();
        let mut blocks = order[exhausted..].iter();
        let mut drawn = Vec::with_capacity(count as usize);
        for i in 0..u64::from(count).min(from.len()) {
            while window.blocks.len() < self.windows.open.max(1) as usize {
                let Some(&block) = blocks.next() else { break };
                window.add(from, self.windows.ids_of(block));
            }
            if window.len == 0 {
                break;
            }
            drawn.push(window.take(below(key.at(i), window.len)));
        }
        drawn
    }
}

impl Windows {
    fn ids_of(&self, block: u32) -> Range<u32> {
        let at = block as usize;
        let first = at
            .checked_sub(1)
            .map_or(0, |before| self.block_ends[before]);
        first..self.block_ends[at]
    }
}

/// The samples that the next one is drawn from, by block.
#[derive(Default)]
struct Window {
    blocks: Vec<Vec<u32>>,
    len: u64,
}

impl Window {
    fn add(&mut self, from: &RoaringBitmap, ids: Range<u32>) {
        let ids: Vec<u32> = from.range(ids).collect();
        self.len += ids.len() as u64;
        if !ids.is_empty() {
            self.blocks.push(ids);
        }
    }

    /// Removes the sample with this number, counted block by block.
    fn take(&mut self, mut number: u64) -> u32 {
        self.len -= 1;
        for at in 0..self.blocks.len() {
            let block = &mut self.blocks[at];
            if number < block.len() as u64 {
                let id = block.remove(number as usize);
                if block.is_empty() {
                    self.blocks.remove(at);
                }
                return id;
            }
            number -= block.len() as u64;
        }
        unreachable!("the number is below the length of the window")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const BLOCK: u32 = 10;
    const SAMPLES: u32 = 400;
    const JOB: JobId = JobId(1);

    fn orders(window: u32, needs: &RoaringBitmap, epoch: u64) -> WindowOrders {
        let ends: Vec<u32> = (1..=SAMPLES / BLOCK).map(|n| n * BLOCK).collect();
        let mut orders = WindowOrders::new(Windows {
            block_ends: ends.into(),
            open: window,
        });
        orders.prepare(7, Lead { job: JOB, epoch }, 0, needs);
        orders
    }

    fn key(epoch: u64, position: u64) -> DrawKey {
        DrawKey {
            seed: 7,
            epoch,
            position,
            salt: 0,
        }
    }

    /// Draws an epoch in minibatches of these sizes, one after another and again from the first.
    fn epoch(window: u32, epoch: u64, cuts: &[u32]) -> Vec<u32> {
        let mut need: RoaringBitmap = (0..SAMPLES).collect();
        let mut all = Vec::new();
        for cut in cuts.iter().cycle() {
            let drawn =
                orders(window, &need, epoch).draw(&need, *cut, key(epoch, all.len() as u64), JOB);
            if drawn.is_empty() {
                return all;
            }
            drawn.iter().for_each(|id| assert!(need.remove(*id)));
            all.extend(drawn);
        }
        all
    }

    #[test]
    fn an_epoch_has_each_sample_once_and_does_not_depend_on_its_cuts() {
        for window in [1, 3, 12, 1000] {
            let order = epoch(window, 3, &[16]);
            assert_eq!(
                order.iter().collect::<BTreeSet<_>>().len(),
                SAMPLES as usize
            );
            assert_eq!(order, epoch(window, 3, &[1, 7, 64]));
            assert_ne!(order, epoch(window, 4, &[16]));
        }
    }

    #[test]
    fn few_blocks_are_in_use_at_a_time_and_each_is_used_once() {
        for window in [1, 3, 12] {
            let order = epoch(window, 0, &[16]);
            let block = |at: usize| order[at] / BLOCK;
            let spans: Vec<(usize, usize)> = (0..SAMPLES / BLOCK)
                .map(|wanted| {
                    let mut uses = (0..order.len()).filter(|&at| block(at) == wanted);
                    let first = uses.next().expect("a use of every block");
                    (first, uses.next_back().unwrap_or(first))
                })
                .collect();
            let in_use = |at: usize| {
                spans
                    .iter()
                    .filter(|(a, b)| (*a..=*b).contains(&at))
                    .count()
            };
            let seen = (0..order.len()).map(in_use).max().unwrap_or(0);
            assert_eq!(seen, window as usize);
        }
    }

    #[test]
    fn a_window_of_the_whole_dataset_draws_any_sample_first() {
        let need: RoaringBitmap = (0..SAMPLES).collect();
        let first =
            |epoch| orders(SAMPLES / BLOCK, &need, epoch).draw(&need, 1, key(epoch, 0), JOB)[0];
        let firsts: BTreeSet<u32> = (0..4000).map(first).collect();
        assert_eq!(firsts.len(), SAMPLES as usize);
    }

    #[test]
    fn exhausted_blocks_are_considered_again_if_their_samples_are_needed_again() {
        let all: RoaringBitmap = (0..SAMPLES).collect();
        let mut orders = orders(2, &all, 0);
        let first: RoaringBitmap = orders.draw(&all, 40, key(0, 0), JOB).into_iter().collect();
        let left = &all - &first;
        orders.prepare(7, Lead { job: JOB, epoch: 0 }, 0, &left);
        orders.look_again();
        orders.prepare(7, Lead { job: JOB, epoch: 0 }, 0, &all);
        let again: RoaringBitmap = orders.draw(&all, 40, key(0, 0), JOB).into_iter().collect();
        assert_eq!(first, again);
    }
}
