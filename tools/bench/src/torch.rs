//! A job of PyTorch's DataLoader, if there is a Python that has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use coprep_measurement::group::ProcessGroup;
use coprep_measurement::images::ImageOperators;
use coprep_measurement::python::candidates;
use coprep_measurement::{Result, interrupt};
use serde::{Deserialize, Serialize};

const LOADER: &str = include_str!("torch_loader.py");

/// Prints versions if all packages are installed. It imports none of them, which would take seconds.
const PROBE: &str = r#"
import importlib.metadata as m, importlib.util as u, json
assert all(u.find_spec(name) for name in ("torch", "torchvision", "PIL"))
print(json.dumps({name: m.version(name) for name in ("torch", "torchvision", "pillow")}))
"#;
/// Longest time of the probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two checks whether the probe has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A Python with torch, torchvision and Pillow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Python {
    pub(crate) python: PathBuf,
    #[serde(flatten)]
    pub(crate) versions: Versions,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) torch: String,
    pub(crate) torchvision: String,
    pub(crate) pillow: String,
}

/// Returns the named Python or the first that has the packages; else the reason why there is none.
pub(crate) fn find(named: Option<&Path>) -> Result<std::result::Result<Python, String>> {
    let candidates = named.map_or_else(candidates, |path| vec![path.into()]);
    for python in candidates {
        if let Some(versions) = probe(&python)? {
            return Ok(Ok(Python { python, versions }));
        }
    }
    Ok(Err(match named {
        Some(path) => format!("{} has no torch and torchvision: {REMEDY}", path.display()),
        None => format!("No Python with torch and torchvision was found: {REMEDY}"),
    }))
}

const REMEDY: &str = "PyTorch's DataLoader is not compared. To compare, `pip install torch torchvision`, or name a Python \
                   that has them with --python.";

/// Returns the versions of the packages, or `None` if they are not installed.
fn probe(python: &Path) -> Result<Option<Versions>> {
    let mut command = Command::new(python);
    command
        .args(["-c", PROBE])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let Ok(mut group) = ProcessGroup::spawn(&mut command) else {
        return Ok(None);
    };
    let end = Instant::now() + PROBE_TIMEOUT;
    while group.ended().is_none() {
        interrupt::check()?;
        if Instant::now() > end {
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    // The probe prints so little that it never waits for a reader.
    let stdout = group.child().stdout.take();
    Ok(stdout.and_then(|output| serde_json::from_reader(output).ok()))
}

impl Python {
    /// Returns the command that runs a job of PyTorch.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.args(["-c", LOADER]);
        command
    }
}

/// The order to a job, as `torch_loader.py` reads it.
#[derive(Serialize)]
pub(crate) struct TorchOrder<'a> {
    pub(crate) root: &'a Path,
    pub(crate) paths: Vec<String>,
    #[serde(flatten)]
    pub(crate) operators: ImageOperators,
    pub(crate) batch_size: u32,
    /// Worker processes of the loader.
    pub(crate) workers: u32,
    pub(crate) seconds: f64,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use coprep_protocol::spec::Interpolation;

    use super::*;

    #[test]
    fn a_python_that_is_not_there_is_named() -> Result<()> {
        let why = find(Some(Path::new("/nowhere/python")))?;
        let why = why.map_or_else(|why| why, |_| String::new());
        assert!(why.starts_with("/nowhere/python has no torch"), "{why}");
        Ok(())
    }

    #[test]
    fn an_order_has_every_key_that_the_loader_reads() {
        let order = TorchOrder {
            root: Path::new("/data/photos"),
            paths: vec!["/data/photos/cat/1.jpg".into()],
            operators: ImageOperators {
                resize: Some(256),
                interpolation: Interpolation::Bilinear,
                center_crop: None,
                exif: false,
                image_size: 224,
            },
            batch_size: 64,
            workers: 2,
            seconds: 5.0,
        };
        let json = serde_json::to_value(&order).unwrap();
        let keys: BTreeSet<&str> = LOADER
            .split("order[\"")
            .skip(1)
            .filter_map(|rest| Some(rest.split_once('"')?.0))
            .collect();
        let known: BTreeSet<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(keys, known);
    }
}
