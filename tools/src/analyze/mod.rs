//! `coprep analyze`: where the data stalls are, and what would help.

mod axis;
mod chart;
mod page;
mod report;
mod text;
mod words;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use report::Report;

use crate::Outcome;
use crate::args;

pub(crate) fn run(args: &args::Analyze) -> Outcome {
    let Some(saved) = &args.render else {
        return Err(
            "this version does not measure yet; --render FILE shows a report that was saved".into(),
        );
    };
    let report = read(saved)?;
    if let Some(file) = &args.html {
        std::fs::write(file, page::render(&report)?)
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text::render(&report, is_coloured()));
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<Report, String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string());
    text.and_then(|text| Report::read(&text))
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// As <https://no-color.org> has it.
fn is_coloured() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    !refused && std::io::stdout().is_terminal()
}

#[cfg(test)]
mod tests;
