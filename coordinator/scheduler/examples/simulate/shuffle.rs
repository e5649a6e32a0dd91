//! Shuffle quality: how often two samples of one batch are in one batch again in the next epoch, against
//! chance.

use crate::model::{self, Plan, Setup};
use crate::report::Report;
use coprep_scheduler::{Cohort, DrawOrder};

const SLOTS: u32 = 16;
const SAMPLES: u32 = SLOTS * 100;

pub(crate) fn shuffle(report: &mut Report) {
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
            samples: SAMPLES,
            slots: SLOTS,
            prep: 1.0 / 1.6,
            buffers: 1000,
            horizon: 10_000.0,
            seed: 3,
            depth: 8,
            order: DrawOrder::Random,
            plans,
        };
        let jobs = model::run_and_record(&setup).jobs;
        let worst = jobs
            .iter()
            .map(|job| meetings(&job.batches))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((ratio, error)) = worst else {
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

/// Pairs that meet again, against chance; and the standard error, as if pairs were independent.
fn meetings(epochs: &[Vec<Vec<u32>>]) -> (f64, f64) {
    let whole: Vec<_> = epochs
        .iter()
        .filter(|e| e.iter().map(Vec::len).sum::<usize>() == SAMPLES as usize)
        .collect();
    let (mut met, mut expected) = (0.0, 0.0);
    for pair in whole.windows(2) {
        let mut batch_of = vec![0; SAMPLES as usize];
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
        expected += pairs * (size - 1.0) / (f64::from(SAMPLES) - 1.0);
    }
    (met / expected, f64::sqrt(met) / expected)
}
