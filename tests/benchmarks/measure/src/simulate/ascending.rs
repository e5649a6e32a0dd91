//! Jobs in ascending order: how much they share, and whether each makes progress.

use coprep_scheduler::DrawOrder;

use crate::model::{self, Setup};
use crate::random::Random;
use crate::report::{Report, least, most};
use crate::speeds::{against_alone, plans, setup};

pub(crate) fn ascending(report: &mut Report) {
    report.table(
        "Ascending order",
        &[
            "jobs",
            "preparation, against the fastest job",
            "each job's speed against alone",
            "prepared, against the fastest job's own",
            "the same, ascending from what is needed in common",
            "longest wait of a job, in minibatches by jobs",
        ],
    );
    let mut random = Random::new(5);
    let at_random: Vec<f64> = (0..8).map(|_| random.between(0.0, 300.0)).collect();
    let rows: [(&str, f64, &[f64], &[f64]); 8] = [
        ("4 equal, same start", 1.6, &[1.0; 4], &[]),
        (
            "4 equal, within 6 steps",
            1.6,
            &[1.0; 4],
            &[0.0, 2.0, 4.0, 6.0],
        ),
        ("1 .9 .9 .8", 1.6, &[1.0, 0.9, 0.9, 0.8], &[]),
        ("4 equal, started at random", 10.0, &[1.0; 4], &at_random),
        ("4 equal, started at random", 1.6, &[1.0; 4], &at_random),
        ("2 equal, half an epoch apart", 1.0, &[1.0; 2], &[0.0, 50.0]),
        ("8 equal, started at random", 1.6, &[1.0; 8], &at_random),
        ("1 .5 .25", 0.5, &[1.0, 0.5, 0.25], &[0.0, 20.0, 40.0]),
    ];
    for (name, rate, speeds, starts) in rows {
        let strict = Setup {
            order: DrawOrder::Ascending,
            ..setup(1.0 / rate, plans(speeds, starts))
        };
        let in_common = Setup {
            order: DrawOrder::AscendingInCommon,
            ..strict.clone()
        };
        let (ratios, prepared, result) = against_alone(&strict);
        let (low, high) = (least(ratios.iter().copied()), most(ratios));
        report.row(&[
            name.into(),
            rate.to_string(),
            format!("{low:.3} to {high:.3}"),
            format!("{prepared:.3}"),
            format!("{:.3}", prepared_of(&in_common)),
            format!("{:.2}", result.waits),
        ]);
        report.at_most(
            &format!("ascending: {name} at {rate}: longest wait by number of jobs"),
            result.waits,
            2.0,
        );
    }
}

fn prepared_of(setup: &Setup) -> f64 {
    let result = model::run(setup);
    result.prepared as f64 / most(result.jobs.iter().map(|job| job.samples as f64))
}
