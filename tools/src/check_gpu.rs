//! Asks the NVIDIA driver for a GPU in a process of its own.
//!
//! A process that has initialised CUDA cannot fork children that use it. So a job that is only making its loader lets
//! this command ask.

use std::process::ExitCode;

use coprep_device::{Driver, Gpu};
use serde_json::json;

use crate::Outcome;
use crate::output::print_line;

/// Prints `{"cuda": "13.0"}`, the newest version of CUDA that the driver supports, or `{"error": "..."}`.
pub(crate) fn run(number: u32) -> Outcome {
    let answer = match ask(number) {
        Ok(version) => json!({ "cuda": version }),
        Err(error) => json!({ "error": error.to_string() }),
    };
    print_line(answer)?;
    Ok(ExitCode::SUCCESS)
}

fn ask(number: u32) -> coprep_device::Result<String> {
    let driver = Driver::load()?;
    Gpu::at(driver, number)?;
    Ok(driver.version()?.to_string())
}
