//! Shuffle quality: how often two samples of one batch are in one batch again in the next epoch, against chance.

use crate::model::{self, DEPTH, Jitter, Outcome, Plan, Setup};
use crate::random::Random;
use crate::report::{Report, least, most};
use coprep_scheduler::{Cohort, DrawOrder};

const SLOTS: u32 = 16;

pub(crate) fn shuffle(report: &mut Report) {
    few_jobs(report);
    many_jobs(report);
}

/// Simulates a few jobs with 100 minibatches per epoch and enough buffers.
fn few_jobs(report: &mut Report) {
    report.table(
        "Two samples of one batch meet again in the next epoch, against chance",
        &["jobs", "worst job", "one standard error"],
    );
    let plans = |speeds: &[f64], starts: &[f64]| -> Vec<Plan> {
        let plan = |(&speed, &start): (&f64, &f64)| Plan {
            start,
            ..Plan::new(SLOTS, 1.0 / speed)
        };
        speeds.iter().zip(starts).map(plan).collect()
    };
    let mut cohort = plans(&[1.0, 1.0, 0.7], &[0.0; 3]);
    for plan in &mut cohort {
        plan.spec.cohort = Some(Cohort {
            name: "c".into(),
            size: 3,
        });
    }
    let rows = [
        ("1 alone", plans(&[1.0], &[0.0]), true),
        ("a cohort of 3", cohort, true),
        ("4 equal, same start", plans(&[1.0; 4], &[0.0; 4]), false),
        (
            "4 equal, joined late",
            plans(&[1.0; 4], &[0.0, 30.0, 55.0, 81.0]),
            false,
        ),
        ("1 .9 .9 .8", plans(&[1.0, 0.9, 0.9, 0.8], &[0.0; 4]), false),
        (
            "1 .5 .5 .25",
            plans(&[1.0, 0.5, 0.5, 0.25], &[0.0; 4]),
            false,
        ),
        (
            "1 x7, .2",
            plans(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2], &[0.0; 8]),
            false,
        ),
    ];
    for (name, plans, must) in rows {
        let setup = Setup {
            samples: 100 * SLOTS,
            slots: SLOTS,
            prep: 1.0 / 1.6,
            buffers: 1000,
            horizon: 10_000.0,
            seed: 3,
            depth: DEPTH,
            order: DrawOrder::Random,
            windows: None,
            plans,
        };
        let Some((ratio, error)) = worst(&setup, &model::run_and_record(&setup).jobs) else {
            continue;
        };
        report.row(&[name.into(), format!("{ratio:.2}"), format!("{error:.2}")]);
        if must {
            report.at_most(
                &format!("shuffle: {name}: off chance, in standard errors"),
                (ratio - 1.0).abs() / error,
                3.0,
            );
        }
    }
}

/// Simulates as many jobs as a large machine may run, with as many buffers as a stream has for usual batches.
fn many_jobs(report: &mut Report) {
    report.table(
        "The same of many jobs, with 40 buffers",
        &[
            "jobs",
            "minibatches an epoch",
            "queues",
            "slowest job's speed against alone",
            "prepared, against the fastest job's own",
            "worst job",
        ],
    );
    let late = |jobs: u32, epoch: f64| -> Vec<Plan> {
        let mut random = Random::new(u64::from(jobs));
        let start = |_| random.between(0.0, 3.0 * epoch);
        (0..jobs).map(start).map(started_at).collect()
    };
    let mut nearly_equal: Vec<Plan> = (0..8).map(|_| Plan::new(SLOTS, 1.0)).collect();
    for (at, plan) in (0..).zip(&mut nearly_equal) {
        plan.step = 1.0 / (0.97 + 0.03 * f64::from(at) / 7.0);
    }
    let mut uneven: Vec<Plan> = (0..8).map(|_| Plan::new(SLOTS, 1.0)).collect();
    for plan in &mut uneven {
        plan.jitter = Jitter::LogNormal(0.5);
    }
    let rows = [
        ("4 equal, joined late", 1000, late(4, 1000.0)),
        ("8 equal, joined late", 1000, late(8, 1000.0)),
        ("16 equal, joined late", 1000, late(16, 1000.0)),
        ("8 of speeds .97 to 1", 1000, nearly_equal),
        ("8 equal of uneven steps", 1000, uneven),
        ("16 equal, joined late", 100, late(16, 100.0)),
        ("32 equal, joined late", 100, late(32, 100.0)),
    ];
    for (name, minibatches, plans) in rows {
        for depth in [8, DEPTH] {
            let setup = Setup {
                samples: minibatches * SLOTS,
                slots: SLOTS,
                prep: 1.0 / 1.6,
                buffers: 40,
                horizon: 16.0 * f64::from(minibatches),
                seed: 3,
                depth,
                order: DrawOrder::Random,
                windows: None,
                plans: plans.clone(),
            };
            row_of_many(report, name, &setup);
        }
    }
}

fn started_at(start: f64) -> Plan {
    Plan {
        start,
        ..Plan::new(SLOTS, 1.0)
    }
}

fn row_of_many(report: &mut Report, name: &str, setup: &Setup) {
    let result = model::run_and_record(setup);
    let speed = |(plan, job): (&Plan, &Outcome)| {
        let alone = (setup.horizon - plan.start) / plan.step * f64::from(SLOTS);
        job.samples as f64 / alone
    };
    let slowest = least(setup.plans.iter().zip(&result.jobs).map(speed));
    let fastest = most(result.jobs.iter().map(|job| job.samples as f64));
    let prepared = result.prepared as f64 / fastest;
    let ratio = worst(setup, &result.jobs).map_or(f64::NAN, |(ratio, _)| ratio);
    let minibatches = setup.samples / SLOTS;
    report.row(&[
        name.into(),
        minibatches.to_string(),
        setup.depth.to_string(),
        format!("{slowest:.3}"),
        format!("{prepared:.3}"),
        format!("{ratio:.1}"),
    ]);
    if setup.depth == DEPTH && minibatches == 1000 {
        let what = |what: &str| format!("shuffle: {name}: {what}");
        report.at_least(&what("slowest job"), slowest, 0.97);
        report.at_most(&what("prepared"), prepared, 1.25);
    }
}

/// Returns the ratio to chance, and the standard error, of the job whose pairs meet again most often.
fn worst(setup: &Setup, jobs: &[Outcome]) -> Option<(f64, f64)> {
    jobs.iter()
        .map(|job| meetings(&job.batches, setup.samples))
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Returns the ratio of pairs that meet again to chance, and the standard error as if pairs were independent.
fn meetings(epochs: &[Vec<Vec<u32>>], samples: u32) -> (f64, f64) {
    let whole: Vec<_> = epochs
        .iter()
        .filter(|e| e.iter().map(Vec::len).sum::<usize>() == samples as usize)
        .collect();
    let (mut met, mut expected) = (0.0, 0.0);
    for pair in whole.windows(2) {
        let mut batch_of = vec![0; samples as usize];
        for (at, batch) in pair[1].iter().enumerate() {
            batch.iter().for_each(|&id| batch_of[id as usize] = at);
        }
        let mut pairs = 0.0;
        for batch in pair[0] {
            for (i, a) in batch.iter().enumerate() {
                let again = batch[..i]
                    .iter()
                    .filter(|b| batch_of[**b as usize] == batch_of[*a as usize]);
                met += again.count() as f64;
                pairs += i as f64;
            }
        }
        let size = f64::from(SLOTS);
        expected += pairs * (size - 1.0) / (f64::from(samples) - 1.0);
    }
    (met / expected, f64::sqrt(met) / expected)
}
