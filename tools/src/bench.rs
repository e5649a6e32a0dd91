//! `coprep bench`: measures all loaders and prints the report, or runs one of the jobs.

use std::io::{BufReader, stdin, stdout};
use std::process::ExitCode;

use coprep_bench::BenchOptions;
use coprep_measurement::interrupt;
use coprep_protocol::paths::CoordinatorPaths;
use coprep_terminal::is_coloured;

use crate::Outcome;
use crate::args::BenchArgs;
use crate::output::{print, print_line};
use crate::progress::Steps;

/// Measures all loaders and prints the report, or runs one of the jobs.
pub(crate) fn run(paths: &CoordinatorPaths, args: &BenchArgs) -> Outcome {
    if args.consumer {
        let never = coprep_bench::run_job(paths, BufReader::new(stdin()), &mut stdout())?;
        match never {}
    }
    interrupt::catch_signals()?;
    let options = options(args)?;
    let mut steps = Steps::new();
    let report = coprep_bench::bench(&options, &mut steps);
    steps.finish();
    let report = report.map_err(interrupt::reason)?;
    if args.json {
        print_line(serde_json::to_string_pretty(&report)?)?;
    } else {
        print(coprep_bench::render(&report, is_coloured()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn options(args: &BenchArgs) -> Outcome<BenchOptions> {
    Ok(BenchOptions {
        program: std::env::current_exe()?,
        // The folder is not optional, and its name may begin with a dash.
        job_arguments: vec![
            "bench".into(),
            "--consumer".into(),
            "--".into(),
            args.folder.clone().into(),
        ],
        folder: args.folder.clone(),
        operators: args.images.operators(),
        batch_size: args.images.batch_size,
        cpus: args.images.cpus.map(u32::from),
        jobs: args.jobs,
        seconds: args.seconds,
        python: args.python.clone(),
    })
}
