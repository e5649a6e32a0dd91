//! Epochs that are left early: how evenly the samples come, and the amount of preparation.

use coprep_scheduler::DrawOrder;

use crate::model::{self, DEPTH, Outcome, Plan, Setup};
use crate::random::Random;
use crate::report::{Report, least, mean, most};
use crate::speeds::{MINIBATCHES, SLOTS};

const EPOCHS: u32 = 40;

/// Jobs that share the dataset.
struct Case {
    name: &'static str,
    speeds: &'static [f64],
    /// Batch sizes against minibatches, by job.
    sizes: &'static [f64],
    /// `true` if they start within three epochs, at random.
    are_apart: bool,
}

const CASES: [Case; 8] = [
    Case {
        name: "1",
        speeds: &[1.0],
        sizes: &[1.0],
        are_apart: false,
    },
    Case {
        name: "2 equal, same start",
        speeds: &[1.0; 2],
        sizes: &[1.0; 2],
        are_apart: false,
    },
    Case {
        name: "2 equal, started at random",
        speeds: &[1.0; 2],
        sizes: &[1.0; 2],
        are_apart: true,
    },
    Case {
        name: "4 equal, started at random",
        speeds: &[1.0; 4],
        sizes: &[1.0; 4],
        are_apart: true,
    },
    Case {
        name: "8 equal, started at random",
        speeds: &[1.0; 8],
        sizes: &[1.0; 8],
        are_apart: true,
    },
    Case {
        name: "1 .9 .9 .8",
        speeds: &[1.0, 0.9, 0.9, 0.8],
        sizes: &[1.0; 4],
        are_apart: true,
    },
    Case {
        name: "1 .5 .25",
        speeds: &[1.0, 0.5, 0.25],
        sizes: &[1.0; 3],
        are_apart: true,
    },
    Case {
        name: "batches of 1, 1/2, 1/4",
        speeds: &[1.0, 2.0, 4.0],
        sizes: &[1.0, 0.5, 0.25],
        are_apart: true,
    },
];

/// Simulates jobs that leave each epoch after a part of it, and compares them with jobs whose epochs are whole and as
/// long as that part.
pub(crate) fn left(report: &mut Report) {
    report.table(
        "Epochs that are left early, 40 of them, of a dataset of 100 minibatches",
        &[
            "jobs",
            "minibatches of an epoch",
            "variance of counts, against independent parts",
            "fewest and most, mean",
            "prepared, against the fastest job's own",
            "with whole epochs of that length",
        ],
    );
    for case in &CASES {
        for share in [0.05, 0.15, 0.3, 0.47, 0.5, 0.65, 0.8, 0.95] {
            row(
                report,
                case,
                (share * f64::from(MINIBATCHES)).round() as u32,
            );
        }
    }
}

fn row(report: &mut Report, case: &Case, part: u32) {
    let result = model::run_and_record(&setup(case, MINIBATCHES, Some(part)));
    let whole = model::run(&setup(case, part, None));
    let counts: Vec<Vec<u32>> = result.jobs.iter().map(counts).collect();
    let share = f64::from(part) / f64::from(MINIBATCHES);
    let chance = f64::from(EPOCHS) * share * (1.0 - share);
    let variance = most(counts.iter().map(|counts| variance(counts))) / chance;
    let all = || counts.iter().flatten().map(|&count| f64::from(count));
    let (prepared, of_whole) = (prepared(&result), prepared(&whole));
    report.row(&[
        case.name.into(),
        part.to_string(),
        format!("{variance:.2}"),
        format!("{} {}, {:.1}", least(all()), most(all()), mean(all())),
        format!("{prepared:.3}"),
        format!("{of_whole:.3}"),
    ]);
    if share > 0.9 {
        return;
    }
    let what = |what: &str| format!("left: {}, {part} minibatches: {what}", case.name);
    report.at_most(&what("variance"), variance, 1.2);
    report.at_most(&what("prepared"), prepared / of_whole, 1.25);
    if share >= 0.2 {
        report.at_least(&what("fewest"), least(all()), 1.0);
    }
}

fn setup(case: &Case, minibatches: u32, leaves: Option<u32>) -> Setup {
    let mut random = Random::new(11);
    let part = f64::from(leaves.unwrap_or(minibatches));
    let plan = |(&speed, &size): (&f64, &f64)| Plan {
        start: if case.are_apart {
            random.between(0.0, 3.0 * part)
        } else {
            0.0
        },
        leaves: leaves.map(|part| (f64::from(part) / size) as u32),
        ..Plan::new((f64::from(SLOTS) * size) as u32, 1.0 / speed)
    };
    let plans: Vec<Plan> = case.speeds.iter().zip(case.sizes).map(plan).collect();
    // The slowest job, too, has all its epochs within the horizon.
    let slowest = least(
        case.speeds
            .iter()
            .zip(case.sizes)
            .map(|(speed, size)| speed * size),
    );
    Setup {
        samples: minibatches * SLOTS,
        slots: SLOTS,
        prep: 1.0 / 1.6,
        buffers: 2 * DEPTH * plans.len() as u32 + 2,
        horizon: (f64::from(EPOCHS) * 1.05 + 3.0) * part / slowest,
        seed: 1,
        depth: DEPTH,
        order: DrawOrder::Random,
        windows: None,
        plans,
    }
}

/// Returns how often each sample came in a job's first epochs.
fn counts(job: &Outcome) -> Vec<u32> {
    let mut counts = vec![0; (MINIBATCHES * SLOTS) as usize];
    assert!(job.batches.len() > EPOCHS as usize);
    let given = job.batches.iter().take(EPOCHS as usize).flatten().flatten();
    given.for_each(|&id| counts[id as usize] += 1);
    counts
}

fn variance(counts: &[u32]) -> f64 {
    let average = mean(counts.iter().map(|&count| f64::from(count)));
    mean(
        counts
            .iter()
            .map(|&count| (f64::from(count) - average).powi(2)),
    )
}

fn prepared(result: &model::Result) -> f64 {
    let fastest = most(result.jobs.iter().map(|job| job.samples as f64));
    result.prepared as f64 / fastest
}
