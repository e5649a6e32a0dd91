//! Puts the library where programs look for the NVIDIA driver.
//!
//! A test starts its program with the folder in `LD_LIBRARY_PATH`, and with `FAKE_CUDA` for settings. The dynamic
//! loader reads the variable once, when a process starts, so the program is always a child process.

use std::io;
use std::path::{Path, PathBuf};

/// The names by which programs look for the driver, in the order of cudarc.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// Links the driver into a folder.
///
/// # Errors
/// If the library was not built, or the folder cannot be written.
pub fn install(folder: &Path) -> io::Result<()> {
    let library = library()?;
    NAMES
        .iter()
        .try_for_each(|name| std::os::unix::fs::symlink(&library, folder.join(name)))
}

/// Puts a copy of the driver into a folder that lacks a function.
///
/// # Errors
/// As for [`install`], and if the library has no such function.
pub fn install_without(folder: &Path, function: &str) -> io::Result<()> {
    let mut bytes = std::fs::read(library()?)?;
    // The dynamic loader finds a function by its name in the table of names. Under another name it is not found.
    let name = format!("\0{function}\0").into_bytes();
    let offsets: Vec<usize> = (0..bytes.len() - name.len())
        .filter(|&at| bytes[at..].starts_with(&name))
        .collect();
    if offsets.is_empty() {
        let why = format!("the fake driver has no {function}");
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    for at in offsets {
        bytes[at + 1] = b'x';
    }
    NAMES
        .iter()
        .try_for_each(|name| std::fs::write(folder.join(name), &bytes))
}

/// Returns the path of the library. Cargo builds it into the folder of the test that depends on it.
fn library() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let file = "libcoprep_fake_cuda.so";
    let folders = program.ancestors().skip(1).take(2);
    let mut paths = folders.flat_map(|folder| [folder.join(file), folder.join("deps").join(file)]);
    paths.find(|path| path.exists()).ok_or_else(|| {
        let why = format!("{file} is not beside {}", program.display());
        io::Error::new(io::ErrorKind::NotFound, why)
    })
}
