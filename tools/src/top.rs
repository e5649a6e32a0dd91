//! `coprep top`: the live screen, or its content as text.

use std::process::ExitCode;

use coprep_protocol::paths::CoordinatorPaths;
use coprep_top::ScreenExit;
use nix::sys::signal::raise;

use crate::Outcome;
use crate::args::TopArgs;
use crate::output::print_line;

/// Shows the live screen until the user or a signal ends it, or prints its content once.
pub(crate) fn run(paths: &CoordinatorPaths, args: &TopArgs) -> Outcome {
    if args.once {
        print_line(coprep_top::once(paths, args.interval)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(why) = coprep_top::why_no_screen() {
        eprintln!(
            "coprep: {why}: use `coprep top --once` for one look, or `coprep status` for all there is to know"
        );
        return Ok(ExitCode::from(2));
    }
    match coprep_top::show(paths, args.interval)? {
        ScreenExit::Asked => Ok(ExitCode::SUCCESS),
        ScreenExit::Signal(signal) => {
            // End by the signal itself, as its sender expects.
            raise(signal)?;
            Ok(ExitCode::from(1))
        }
    }
}
