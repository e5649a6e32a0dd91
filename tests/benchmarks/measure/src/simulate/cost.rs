//! The cost of a decision on this machine: the only figures here that are not virtual.

use std::time::{Duration, Instant};

use coprep_scheduler::{Config, DrawOrder, JobId, Scheduler};

use crate::model::{DEPTH, Plan};
use crate::report::{Report, most};

const SAMPLES: u32 = 1_280_000;

pub(crate) fn cost(report: &mut Report) {
    report.table(
        "Cost of a decision: 1.28 million samples, minibatches of 64",
        &["jobs", "mean, microseconds", "longest"],
    );
    let rows: [(&str, &[u32]); 4] = [
        ("1", &[1]),
        ("8 in step", &[1; 8]),
        ("8 of different speeds", &[1, 2, 3, 4, 5, 6, 7, 8]),
        ("8 of speeds 1 to 1.7", &[10, 11, 12, 13, 14, 15, 16, 17]),
    ];
    for (name, periods) in rows {
        let times = times(periods);
        let mean = times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64;
        let longest = most(times.iter().map(Duration::as_secs_f64));
        report.row(&[
            name.into(),
            format!("{:.0}", mean * 1e6),
            format!("{:.0}", longest * 1e6),
        ]);
        report.at_most(&format!("cost: {name}: mean seconds"), mean, 0.001);
    }
}

/// Measures each decision while jobs take a batch each at multiples of their periods, until the fastest has done one
/// and a half epochs.
fn times(periods: &[u32]) -> Vec<Duration> {
    let config = Config {
        samples: SAMPLES,
        slots: 64,
        depth: DEPTH,
        // The coordinator has the same bound.
        low_water: 2,
        seed: 1,
        order: DrawOrder::Random,
        is_told: false,
        windows: None,
    };
    let mut scheduler = Scheduler::new(config);
    for at in 0..periods.len() as u64 {
        scheduler
            .attach(JobId(at), Plan::new(64, 1.0).spec)
            .unwrap_or_else(|e| panic!("{e}"));
    }
    let mut times = Vec::new();
    for beat in 0..SAMPLES / 64 * 3 / 2 * periods[0] {
        for (id, period) in (0..).map(JobId).zip(periods) {
            let queued = scheduler.job(id).map_or(0, |view| view.queued(0));
            if beat % period == 0 && queued > 0 {
                scheduler.taken(id, 0, 1);
                let epoch = scheduler.job(id).map_or(0, |view| view.epoch);
                scheduler.epoch_started(id, 0, epoch);
            }
        }
        loop {
            let began = Instant::now();
            let minibatch = scheduler.next(1000);
            times.push(began.elapsed());
            if minibatch.is_none() {
                // Finding that nothing is to be prepared is no decision.
                times.pop();
                break;
            }
        }
    }
    times
}
