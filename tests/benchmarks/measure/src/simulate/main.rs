//! Measures the gains of the scheduler's rule with jobs in virtual time. Every run gives the same figures.
//!
//! `cargo run --release -p coprep-benchmarks --bin simulate [SECTION...]` prints the tables of
//! `docs/explanation/scheduler.md`, and ends with code 1 if a bar is missed. Sections: speeds, prep, ascending, pools,
//! folds, shuffle, windows, histories, cost, pauses, borders, left.
#![expect(clippy::print_stdout, reason = "it prints tables")]

mod ascending;
#[expect(dead_code, reason = "the property tests do more to jobs")]
#[path = "../../../../../coordinator/scheduler/tests/audit/mod.rs"]
mod audit;
mod borders;
mod cost;
mod histories;
mod left;
mod model;
mod pools;
mod random;
mod report;
mod shuffle;
mod speeds;
mod windows;

use report::Report;

type Section = fn(&mut Report);

fn main() -> std::process::ExitCode {
    let sections: [(&str, Section); 12] = [
        ("speeds", speeds::speeds),
        ("borders", borders::borders),
        ("left", left::left),
        ("prep", speeds::prep_bound),
        ("ascending", ascending::ascending),
        ("pools", pools::pools),
        ("pauses", pools::pauses),
        ("folds", speeds::folds),
        ("shuffle", shuffle::shuffle),
        ("windows", windows::windows),
        ("histories", histories::histories),
        ("cost", cost::cost),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut report = Report::default();
    for (name, section) in sections {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            section(&mut report);
        }
    }
    report.end()
}
