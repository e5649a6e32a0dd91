//! Jobs of different speeds, and preparation as the bottleneck.

use crate::model::{self, DEPTH, Plan, Setup};
use crate::random::Random;
use crate::report::{Report, least, most};
use coprep_scheduler::DrawOrder;

pub(crate) const SLOTS: u32 = 16;
pub(crate) const MINIBATCHES: u32 = 100;
/// Duration in steps of a job of speed 1: 40 of its epochs.
const HORIZON: f64 = 4000.0;

pub(crate) fn setup(prep: f64, plans: Vec<Plan>) -> Setup {
    Setup {
        samples: SLOTS * MINIBATCHES,
        slots: SLOTS,
        prep,
        buffers: 2 * DEPTH * plans.len() as u32 + 2,
        horizon: HORIZON,
        seed: 1,
        depth: DEPTH,
        order: DrawOrder::Random,
        windows: None,
        plans,
    }
}

pub(crate) fn plans(speeds: &[f64], starts: &[f64]) -> Vec<Plan> {
    let plan = |(at, &speed): (usize, &f64)| {
        let start = starts.get(at).copied().unwrap_or(0.0);
        Plan {
            start,
            ..Plan::new(SLOTS, 1.0 / speed)
        }
    };
    speeds.iter().enumerate().map(plan).collect()
}

/// Returns the samples of each job against running alone, the preparation against the largest job, and the result.
pub(crate) fn against_alone(setup: &Setup) -> (Vec<f64>, f64, model::Result) {
    let together = model::run(setup);
    // Each job keeps its index, so its steps take the same time when it is alone.
    let alone = |at: usize| {
        let mut alone = setup.clone();
        for (other, plan) in alone
            .plans
            .iter_mut()
            .enumerate()
            .filter(|(other, _)| *other != at)
        {
            // The others begin when the simulation is over.
            plan.start = setup.horizon + 1.0 + other as f64;
        }
        model::run(&alone).jobs[at].samples as f64
    };
    let ratios = together
        .jobs
        .iter()
        .enumerate()
        .map(|(at, job)| job.samples as f64 / alone(at));
    let ratios = ratios.collect();
    let fastest = most(together.jobs.iter().map(|job| job.samples as f64));
    (ratios, together.prepared as f64 / fastest, together)
}

/// Jobs that are slower than preparation.
pub(crate) fn speeds(report: &mut Report) {
    report.table(
        "Jobs of different speeds; preparation 1.6 times as fast as the fastest job",
        &[
            "jobs' speeds",
            "each job's speed against alone",
            "prepared, against the fastest job's own",
        ],
    );
    let mut random = Random::new(5);
    let at_random: Vec<f64> = (0..4).map(|_| random.between(0.0, 300.0)).collect();
    let rows: [(&str, &[f64], &[f64]); 5] = [
        ("1 1 1 1, same start", &[1.0; 4], &[]),
        ("1 1 1 1, started at random", &[1.0; 4], &at_random),
        ("1 .9 .9 .8", &[1.0, 0.9, 0.9, 0.8], &[]),
        ("1 .5 .5 .25", &[1.0, 0.5, 0.5, 0.25], &[]),
        ("1 x7, .2", &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2], &[]),
    ];
    for (name, speeds, starts) in rows {
        let (ratios, prepared, _) = against_alone(&setup(1.0 / 1.6, plans(speeds, starts)));
        let (low, high) = (least(ratios.iter().copied()), most(ratios));
        report.row(&[
            name.into(),
            format!("{low:.3} to {high:.3}"),
            format!("{prepared:.3}"),
        ]);
        report.at_least(
            &format!("speeds: {name}: slowest job against alone"),
            low,
            0.97,
        );
        report.at_most(&format!("speeds: {name}: prepared"), prepared, 1.08);
    }
}

/// Preparation that is slower than the fastest job.
pub(crate) fn prep_bound(report: &mut Report) {
    report.table(
        "Preparation is the bottleneck",
        &[
            "jobs",
            "preparation, against the fastest job",
            "jobs served by a minibatch",
            "at best",
            "each job's speed against alone",
        ],
    );
    let geometric: Vec<f64> = (0..16).map(|i| 13f64.powf(-f64::from(i) / 15.0)).collect();
    for (name, speeds, rate) in [
        ("4 equal", vec![1.0; 4], 0.3),
        ("4 equal", vec![1.0; 4], 0.9),
        ("16 over 13-fold speeds", geometric.clone(), 0.9),
        ("16 over 13-fold speeds", geometric, 0.3),
    ] {
        let (ratios, _, result) = against_alone(&setup(1.0 / rate, plans(&speeds, &[])));
        let given: u64 = result.jobs.iter().map(|job| job.samples).sum();
        let served = given as f64 / result.prepared as f64;
        let best = speeds.iter().map(|s| s.min(rate)).sum::<f64>() / rate;
        let (low, high) = (least(ratios.iter().copied()), most(ratios));
        let cells = [
            name.into(),
            rate.to_string(),
            format!("{served:.2}"),
            format!("{best:.2}"),
            format!("{low:.2} to {high:.2}"),
        ];
        report.row(&cells);
        let bar = if name.starts_with('4') { 0.99 } else { 0.85 };
        report.at_least(
            &format!("prep: {name} at {rate}: jobs served, against the best"),
            served / best,
            bar,
        );
    }
}

/// Cross-validation, where every job leaves out its part of the samples.
pub(crate) fn folds(report: &mut Report) {
    report.table(
        "Overlapping subsets; preparation at half the jobs' speed",
        &[
            "jobs",
            "each job's speed against alone",
            "jobs served by a minibatch",
            "longest wait of a job, in minibatches by jobs",
        ],
    );
    for jobs in [3u32, 5, 10] {
        let mut plans = plans(&vec![1.0; jobs as usize], &[]);
        for (fold, plan) in (0..).zip(&mut plans) {
            let samples = 0..SLOTS * MINIBATCHES;
            plan.spec.subset = Some(samples.filter(|id| id % jobs != fold).collect());
        }
        row_of_folds(
            report,
            &format!("{jobs} folds of {jobs}"),
            &setup(2.0, plans),
        );
    }
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let jobs = 2 + random.below(15);
        let speeds: Vec<f64> = (0..jobs).map(|_| 20f64.powf(-random.unit())).collect();
        let mut plans = plans(&speeds, &[]);
        for plan in &mut plans {
            let share = random.between(0.05, 1.0);
            plan.spec.subset = Some(
                (0..SLOTS * MINIBATCHES)
                    .filter(|_| random.chance(share))
                    .collect(),
            );
        }
        let setup = setup(2.0, plans);
        if seed < 3 {
            row_of_folds(report, &format!("{jobs} random subsets"), &setup);
        } else {
            check_waits(
                report,
                &format!("{jobs} random subsets"),
                &model::run(&setup),
            );
        }
    }
}

fn row_of_folds(report: &mut Report, name: &str, setup: &Setup) {
    let (ratios, _, result) = against_alone(setup);
    let given: u64 = result.jobs.iter().map(|job| job.samples).sum();
    let cells = [
        name.into(),
        format!(
            "{:.2} to {:.2}",
            least(ratios.iter().copied()),
            most(ratios)
        ),
        format!("{:.2}", given as f64 / result.prepared as f64),
        format!("{:.2}", result.waits),
    ];
    report.row(&cells);
    check_waits(report, name, &result);
}

fn check_waits(report: &mut Report, name: &str, result: &model::Result) {
    report.at_most(
        &format!("folds: {name}: longest wait by number of jobs"),
        result.waits,
        2.0,
    );
}
