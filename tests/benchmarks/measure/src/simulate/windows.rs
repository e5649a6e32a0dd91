//! Draws from windows: what they cost jobs that share, how often storage is read, and how well they shuffle.

use std::collections::{BTreeSet, VecDeque};

use coprep_scheduler::{DrawOrder, Windows};

use crate::model::{self, DEPTH, Plan, Setup};
use crate::report::{Report, mean, most};

const SLOTS: u32 = 16;
/// Samples of a block, as 8 MiB have of 100 KB each.
const BLOCK: u32 = 80;
const SAMPLES: u32 = 400 * BLOCK;

pub(crate) fn windows(report: &mut Report) {
    report.table(
        "Draws from a window of 400 blocks of 80 samples",
        &[
            "jobs",
            "blocks in the window",
            "prepared, against the fastest job's own",
            "reads, against blocks, if all samples are cached",
            "distance from the order of the blocks, against a whole shuffle",
        ],
    );
    let epoch = f64::from(SAMPLES / SLOTS);
    let started = |starts: &[f64], speeds: &[f64]| -> Vec<Plan> {
        let plan = |(&start, &speed): (&f64, &f64)| Plan {
            start: start * epoch,
            ..Plan::new(SLOTS, 1.0 / speed)
        };
        starts.iter().zip(speeds).map(plan).collect()
    };
    let rows = [
        ("1 alone", started(&[0.0], &[1.0])),
        (
            "4 equal, joined late",
            started(&[0.0, 0.3, 0.55, 0.81], &[1.0; 4]),
        ),
        ("1 .9 .9 .8", started(&[0.0; 4], &[1.0, 0.9, 0.9, 0.8])),
        (
            "8 equal, a minibatch apart",
            started(&[0.0, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 7e-3], &[1.0; 8]),
        ),
    ];
    for (name, plans) in rows {
        let of_all = row(report, name, &plans, None);
        for open in [4, 16, 64] {
            let prepared = row(report, name, &plans, Some(open));
            report.at_most(
                &format!("windows: {name}, {open} blocks: prepared"),
                prepared / of_all,
                1.05,
            );
        }
    }
}

/// Adds a row. Returns the samples prepared, against those of the fastest job.
fn row(report: &mut Report, name: &str, plans: &[Plan], open: Option<u32>) -> f64 {
    let windows = open.map(|open| Windows {
        block_ends: (1..=SAMPLES / BLOCK).map(|n| n * BLOCK).collect(),
        open,
    });
    let setup = Setup {
        samples: SAMPLES,
        slots: SLOTS,
        prep: 1.0 / 1.6,
        buffers: 200,
        horizon: 3.0 * f64::from(SAMPLES / SLOTS),
        seed: 3,
        depth: DEPTH,
        order: DrawOrder::Random,
        windows,
        plans: plans.to_vec(),
    };
    let result = model::run_and_record(&setup);
    let fastest = most(result.jobs.iter().map(|job| job.samples as f64));
    let prepared = result.prepared as f64 / fastest;
    let reads = match open {
        Some(open) => reads(&result.drawn, open + open / 2 + 4),
        // Each sample is read by itself.
        None => f64::from(BLOCK),
    };
    if let Some(open) = open {
        report.at_most(
            &format!("windows: {name}, {open} blocks: reads"),
            reads,
            2.0,
        );
    }
    report.row(&[
        name.into(),
        open.map_or("all".into(), |open| open.to_string()),
        format!("{prepared:.3}"),
        format!("{reads:.2}"),
        format!("{:.2}", distance(&result.drawn[..SAMPLES as usize])),
    ]);
    prepared
}

/// Returns how often a block is read, on average, if `held` blocks stay in memory and every sample that was prepared
/// once is cached.
fn reads(drawn: &[u32], held: u32) -> f64 {
    let (mut cached, mut blocks, mut reads) = (BTreeSet::new(), VecDeque::new(), 0);
    for id in drawn {
        if !cached.insert(*id) {
            continue;
        }
        let block = id / BLOCK;
        match blocks.iter().position(|&other| other == block) {
            Some(at) => {
                blocks.remove(at);
            }
            None => reads += 1,
        }
        blocks.push_back(block);
        if blocks.len() > held as usize {
            blocks.pop_front();
        }
    }
    f64::from(reads) / f64::from(SAMPLES / BLOCK)
}

/// Returns the mean distance in an epoch of two samples that are neighbours in storage, divided by that of a whole
/// shuffle, a third of the epoch.
fn distance(epoch: &[u32]) -> f64 {
    let mut at = vec![0u32; SAMPLES as usize];
    for (position, id) in (0..).zip(epoch) {
        at[*id as usize] = position;
    }
    let pairs = at
        .windows(2)
        .map(|pair| f64::from(pair[0].abs_diff(pair[1])));
    mean(pairs) / (f64::from(SAMPLES) / 3.0)
}
