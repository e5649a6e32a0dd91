//! Epochs that follow each other at once: the jobs' speed, which shows their waits at the borders, and the amount of
//! preparation.

use coprep_scheduler::DrawOrder;

use crate::model::{self, DEPTH, Setup};
use crate::random::Random;
use crate::report::{Report, least, most};
use crate::speeds::{SLOTS, plans};

/// Simulates jobs that stop after 40 epochs, with preparation 1.6 times as fast as the jobs.
pub(crate) fn borders(report: &mut Report) {
    report.table(
        "Epochs that follow each other at once, 40 of them",
        &[
            "minibatches an epoch",
            "jobs",
            "slowest job's speed, against no wait",
            "prepared, against the fastest job's own",
        ],
    );
    for minibatches in [5, 13, 25, 100, 1000] {
        let mut random = Random::new(5);
        let starts: Vec<f64> = (0..4)
            .map(|_| random.between(0.0, 3.0 * f64::from(minibatches)))
            .collect();
        row(report, minibatches, "1", &[1.0], &[]);
        row(report, minibatches, "4 equal, same start", &[1.0; 4], &[]);
        row(
            report,
            minibatches,
            "4 equal, started at random",
            &[1.0; 4],
            &starts,
        );
    }
}

fn row(report: &mut Report, minibatches: u32, name: &str, speeds: &[f64], starts: &[f64]) {
    let setup = Setup {
        samples: minibatches * SLOTS,
        slots: SLOTS,
        prep: 1.0 / 1.6,
        buffers: 2 * DEPTH * speeds.len() as u32 + 2,
        horizon: 40.0 * f64::from(minibatches),
        seed: 1,
        depth: DEPTH,
        order: DrawOrder::Random,
        windows: None,
        plans: plans(speeds, starts),
    };
    let result = model::run(&setup);
    let speed = |(plan, job): (&model::Plan, &model::Outcome)| {
        let without = (setup.horizon - plan.start) / plan.step * f64::from(SLOTS);
        job.samples as f64 / without
    };
    let slowest = least(setup.plans.iter().zip(&result.jobs).map(speed));
    let fastest = most(result.jobs.iter().map(|job| job.samples as f64));
    let prepared = result.prepared as f64 / fastest;
    report.row(&[
        minibatches.to_string(),
        name.into(),
        format!("{slowest:.3}"),
        format!("{prepared:.3}"),
    ]);
    if minibatches >= 25 {
        let what = |what: &str| format!("borders: {minibatches} minibatches, {name}: {what}");
        report.at_least(&what("slowest job"), slowest, 0.98);
        report.at_most(&what("prepared"), prepared, 1.08);
    }
}
