//! The Python interpreters of the user's environment.

use std::path::{Path, PathBuf};

/// Returns the Pythons to try, in this order: the virtual environment's, the one beside this program, `python3`. They
/// may not exist.
pub fn candidates() -> Vec<PathBuf> {
    let environment = std::env::var_os("VIRTUAL_ENV").map(|v| Path::new(&v).join("bin/python"));
    let ours = std::env::current_exe().ok();
    let beside = ours.map(|program| program.with_file_name("python"));
    let python3 = Some(PathBuf::from("python3"));
    [environment, beside, python3]
        .into_iter()
        .flatten()
        .collect()
}
