//! A job of PyTorch's DataLoader, if there is a Python that has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::measure::Result;
use crate::measure::group::Group;
use crate::{args, interrupt};

const LOADER: &str = include_str!("torch_loader.py");

/// Prints versions if all packages are installed. It imports none of them, which would take seconds.
const PROBE: &str = r#"
import importlib.metadata as m, importlib.util as u, json
assert all(u.find_spec(name) for name in ("torch", "torchvision", "PIL"))
print(json.dumps({name: m.version(name) for name in ("torch", "torchvision", "pillow")}))
"#;
/// Longest time of the probe.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two checks whether the probe has ended.
const NAP: Duration = Duration::from_millis(10);

/// A Python with torch, torchvision and Pillow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Python {
    pub(super) python: PathBuf,
    #[serde(flatten)]
    pub(super) versions: Versions,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Versions {
    pub(super) torch: String,
    pub(super) torchvision: String,
    pub(super) pillow: String,
}

/// Returns the named Python or the first that has the packages; else the reason why there is none.
pub(super) fn find(named: Option<&Path>) -> Result<std::result::Result<Python, String>> {
    let candidates = named.map_or_else(candidates, |path| vec![path.into()]);
    for python in candidates {
        if let Some(versions) = probe(&python)? {
            return Ok(Ok(Python { python, versions }));
        }
    }
    Ok(Err(match named {
        Some(path) => format!("{} has no torch and torchvision: {HOW}", path.display()),
        None => format!("No Python with torch and torchvision was found: {HOW}"),
    }))
}

const HOW: &str = "PyTorch's DataLoader is not compared. To compare, `pip install torch torchvision`, or name a Python \
                   that has them with --python.";

/// Returns the Pythons to try, in this order.
pub(crate) fn candidates() -> Vec<PathBuf> {
    let environment = std::env::var_os("VIRTUAL_ENV").map(|v| Path::new(&v).join("bin/python"));
    let ours = std::env::current_exe().ok();
    let beside = ours.map(|program| program.with_file_name("python"));
    let python3 = Some(PathBuf::from("python3"));
    [environment, beside, python3]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the versions of the packages, or `None` if they are not installed.
fn probe(python: &Path) -> Result<Option<Versions>> {
    let mut command = Command::new(python);
    command
        .args(["-c", PROBE])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let Ok(mut group) = Group::spawn(&mut command) else {
        return Ok(None);
    };
    let end = Instant::now() + PATIENCE;
    while group.ended().is_none() {
        interrupt::check()?;
        if Instant::now() > end {
            return Ok(None);
        }
        std::thread::sleep(NAP);
    }
    // The probe prints so little that it never waits for a reader.
    let stdout = group.child().stdout.take();
    Ok(stdout.and_then(|said| serde_json::from_reader(said).ok()))
}

impl Python {
    /// Returns the command that runs a job of PyTorch.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.args(["-c", LOADER]);
        command
    }
}

/// Returns the order to a job, as `torch_loader.py` reads it.
pub(super) fn order(
    args: &args::BenchArgs,
    root: &Path,
    paths: Vec<String>,
    workers: u32,
) -> serde_json::Value {
    let (images, fixed) = (&args.images, &args.images.fixed);
    serde_json::json!({
        "root": root,
        "paths": paths,
        "resize": fixed.resize,
        "interpolation": fixed.interpolation.name(),
        "center_crop": fixed.center_crop,
        "exif": fixed.exif,
        "image_size": images.image_size,
        "batch_size": images.batch_size,
        "workers": workers,
        "seconds": args.seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_that_is_not_there_is_named() -> Result<()> {
        let why = find(Some(Path::new("/nowhere/python")))?;
        let why = why.map_or_else(|why| why, |_| String::new());
        assert!(why.starts_with("/nowhere/python has no torch"), "{why}");
        Ok(())
    }
}
