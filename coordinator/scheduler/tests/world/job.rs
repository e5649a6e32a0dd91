//! The jobs of a world, with their ranks and the parts of batches that wait for these.

use std::collections::{BTreeMap, VecDeque};

use coprep_scheduler::{CarriedOver, Delivery, Draw, JobSpec};
use roaring::RoaringBitmap;

pub(super) struct Job {
    pub(super) spec: JobSpec,
    /// `true` if each rank must be given its samples in ascending order.
    pub(super) ascends: bool,
    pub(super) paused: bool,
    /// `true` if its batches were taken back, and it has not read since.
    pub(super) absent: bool,
    /// Number of samples of an epoch that may be drawn for it before one of its ranks begins the epoch.
    pub(super) ahead: u64,
    pub(super) ranks: Vec<Rank>,
    /// The epoch in which it attached, or that it resumed.
    pub(super) first_epoch: u64,
    /// The epoch that it resumed, and the steps that its foremost rank had taken in it.
    pub(super) level: (u64, u64),
    /// By epoch: the draws that its first rank was given.
    pub(super) draws: BTreeMap<u64, Vec<Draw>>,
    pub(super) given: BTreeMap<u64, RoaringBitmap>,
    /// The groups that come first in its epoch, as it was told when it left the one before, with that epoch.
    pub(super) carried: (u64, Vec<CarriedOver>),
}

#[derive(Default)]
pub(super) struct Rank {
    pub(super) queue: VecDeque<Part>,
    pub(super) epoch: u64,
    /// Number of batches that it was given in its epoch.
    pub(super) steps: u64,
    /// The epoch that it was given all of, and its steps, until it is given a batch of the next epoch.
    pub(super) before: Option<(u64, u64)>,
    pub(super) batch: Vec<Draw>,
    /// Samples of that batch that could not be read.
    pub(super) failed: Vec<u32>,
    /// The epoch and the sample that it was given last.
    pub(super) last: Option<(u64, u32)>,
    pub(super) parts: u32,
    /// The buffer of the batch that its user works on.
    pub(super) held: Option<u64>,
    /// `true` while it iterates its epoch.
    pub(super) begun: bool,
    pub(super) finished: u64,
}

pub(super) struct Part {
    pub(super) minibatch: u64,
    pub(super) delivery: Delivery,
    pub(super) draws: Vec<Draw>,
    /// By slot: samples that were assigned, including bad ones that others replaced.
    pub(super) assigned: Vec<u32>,
}

impl Rank {
    pub(super) fn presented(&self) -> (u64, u64) {
        self.before.unwrap_or((self.epoch, self.steps))
    }

    pub(super) fn next(&mut self, last_epoch: u64) -> Option<Part> {
        let there = self.queue.front()?.delivery.epoch <= last_epoch;
        if there { self.queue.pop_front() } else { None }
    }
}

impl Job {
    /// Returns the last epoch whose batches may be handed over. Every rank must have taken all of an epoch before the
    /// next one.
    pub(super) fn last_epoch(&self) -> u64 {
        let fronts = self.ranks.iter().filter_map(|rank| rank.queue.front());
        fronts
            .map(|part| part.delivery.epoch)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Returns `true` if all its ranks were given equally much.
    pub(super) fn is_level(&self) -> bool {
        let progress = |r: &Rank| (r.epoch, r.steps);
        self.ranks
            .iter()
            .all(|r| progress(r) == progress(&self.ranks[0]))
    }

    pub(super) fn finished(&self) -> u64 {
        self.ranks.iter().map(|r| r.finished).min().expect("a rank")
    }

    /// Gives a complete batch to the user of a rank.
    pub(super) fn give(&mut self, rank: usize, ends_epoch: bool) {
        let reader = &mut self.ranks[rank];
        reader.parts = 0;
        reader.steps += 1;
        reader.before = None;
        let batch = std::mem::take(&mut reader.batch);
        if self.ascends {
            for id in batch.iter().map(|draw| draw.id) {
                let before = reader.last.replace((reader.epoch, id));
                assert!(before < Some((reader.epoch, id)), "{id} after {before:?}");
            }
        }
        let given = self.given.entry(reader.epoch).or_default();
        given.extend(std::mem::take(&mut reader.failed));
        for draw in &batch {
            assert!(given.insert(draw.id), "{} was given twice", draw.id);
        }
        if rank == 0 {
            self.draws.entry(reader.epoch).or_default().extend(batch);
        }
        if ends_epoch {
            reader.finished += 1;
            reader.begun = false;
            reader.before = Some((reader.epoch, reader.steps));
            reader.epoch += 1;
            reader.steps = 0;
        }
    }
}
