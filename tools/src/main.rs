//! The `coprep` command: it parses arguments and dispatches. Anything longer than a few lines is a library
//! below `tools/`, which the command gives options and whose reports it prints.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage.
#![deny(unsafe_code)]

mod analyze;
mod args;
mod bench;
mod check_gpu;
mod doctor;
mod index;
mod logs;
mod output;
mod progress;
mod serve;
mod status;
mod top;
mod warm;

use std::io::Write;
use std::process::ExitCode;

use coprep_error::printable_lines;

use crate::args::{Args, Command};
use crate::output::NobodyReads;

/// Result of a command. `main` prints an error as one line on stderr.
pub(crate) type Outcome<T = ExitCode> = Result<T, Box<dyn std::error::Error>>;

/// Copies minibatches to a GPU, until the coordinator hangs up.
fn upload(uuid: &str) -> Outcome {
    coprep_uploader::run(uuid)?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let args = Args::read();
    let paths = args.paths();
    let outcome = match args.command {
        Command::Serve(serve) => serve::run(paths, &serve),
        Command::Warm(warm) => warm::run(&paths, &warm),
        Command::Index(index) => index::run(&index),
        Command::Status(status) => status::run(&paths, &status),
        Command::Throttle(throttle) => status::throttle(&paths, &throttle),
        Command::Top(top) => top::run(&paths, &top),
        Command::Stop => status::stop(&paths),
        Command::Drop { dataset } => status::drop_caches(&paths, dataset),
        Command::Analyze(analyze) => analyze::run(&analyze),
        Command::Bench(bench) => bench::run(&paths, &bench),
        Command::Doctor(doctor) => doctor::run(&paths, &doctor),
        Command::CheckGpu { number } => check_gpu::run(number),
        Command::Uploader { uuid } => upload(&uuid),
    };
    outcome.unwrap_or_else(|e| {
        if e.is::<NobodyReads>() {
            return ExitCode::SUCCESS;
        }
        // Not `eprintln!`, which panics where stderr is closed or its disk is full.
        let e = e.to_string();
        let _ = writeln!(std::io::stderr(), "coprep: {}", printable_lines(&e));
        ExitCode::from(1)
    })
}
