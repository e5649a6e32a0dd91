//! Random histories of jobs that start, die, return and read at random.

use crate::model::{self, DEPTH, Jitter, Plan, Setup};
use crate::random::Random;
use crate::report::{Report, most};
use coprep_scheduler::{Cohort, DrawOrder};

/// Returns one random history. With `ranks`, jobs may have several ranks.
pub(crate) fn random_setup(seed: u64, ranks: bool) -> Setup {
    let mut random = Random::new(seed);
    let jobs = 1 + random.below(16);
    let slots = [8, 16, 32][random.below(3) as usize];
    let samples = slots * (1 + random.below(120)) + random.below(slots);
    let mixed = random.chance(0.3);
    let folds = random.chance(0.25);
    let horizon = 600.0;
    let plan = |random: &mut Random, at: u32| {
        let batch = if mixed {
            1 + random.below(slots)
        } else {
            slots
        };
        let mut plan = Plan::new(
            batch,
            20f64.powf(random.unit()) * f64::from(batch) / f64::from(slots),
        );
        plan.jitter = Jitter::LogNormal(random.unit());
        plan.start = if random.chance(0.5) {
            0.0
        } else {
            random.between(0.0, horizon / 2.0)
        };
        if random.chance(0.3) {
            let again = random.chance(0.5).then(|| random.between(1.0, 100.0));
            plan.dies = Some((plan.start + random.between(1.0, horizon / 2.0), again));
        }
        if folds && samples > 10 * slots {
            plan.spec.subset = Some((0..samples).filter(|id| id % 5 != at % 5).collect());
        }
        plan.spec.drop_last = random.chance(0.3);
        if ranks {
            plan.spec.world_size = 1 + random.below(4);
            plan.spec.skip_bad = random.chance(0.5);
        }
        plan
    };
    let mut plans: Vec<Plan> = (0..jobs).map(|at| plan(&mut random, at)).collect();
    if ranks && !folds && random.chance(0.3) {
        let size = 1 + random.below(jobs);
        for plan in plans.iter_mut().take(size as usize) {
            plan.spec.cohort = Some(Cohort {
                name: "c".into(),
                size,
            });
        }
    }
    let consumers: u32 = plans.iter().map(|p| p.spec.world_size).sum();
    Setup {
        samples,
        slots,
        prep: 1.0 / random.between(0.5, 3.0),
        buffers: consumers + 2 + random.below(3 * consumers + 1),
        horizon,
        seed,
        depth: DEPTH,
        order: DrawOrder::Random,
        windows: None,
        plans,
    }
}

/// Checks that nothing is lost, repeated or out of order (the audit panics), that no job is stuck, and that none
/// starves.
pub(crate) fn histories(report: &mut Report) {
    report.table(
        "Random histories: 1 to 16 jobs of 1 to 4 ranks, late starts, deaths, returns, cohorts, folds, mixed batch sizes",
        &["order", "runs", "minibatches", "lost", "repeated", "out of order", "jobs stuck", "longest wait, in minibatches by consumers"],
    );
    for (name, order, runs) in [
        ("random", DrawOrder::Random, 3000),
        ("ascending", DrawOrder::Ascending, 1000),
    ] {
        let run = |seed| {
            model::run(&Setup {
                order,
                ..random_setup(seed, true)
            })
        };
        let results: Vec<model::Result> = (0..runs).map(run).collect();
        let stuck: usize = results.iter().map(|r| r.stuck).sum();
        let waits = most(results.iter().map(|r| r.waits));
        let prepared: u64 = results.iter().map(|r| r.minibatches).sum();
        let cells = [
            name.into(),
            runs.to_string(),
            prepared.to_string(),
            "0".into(),
            "0".into(),
            "0".into(),
            stuck.to_string(),
            format!("{waits:.2}"),
        ];
        report.row(&cells);
        let bar = |what: &str| format!("histories: {name}: {what}");
        report.at_most(&bar("jobs stuck"), stuck as f64, 0.0);
        report.at_most(&bar("longest wait by number of consumers"), waits, 2.0);
    }
}
