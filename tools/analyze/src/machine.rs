//! Describes the machine for the report.

use std::path::Path;

use coprep_measurement::usable_cpus;

use crate::report::Machine;

/// Describes this machine. `folder` tells the storage of the dataset.
pub(crate) fn machine(folder: &Path) -> Machine {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    let kernel = nix::sys::utsname::uname().ok();
    Machine {
        cpus: online.ok().flatten().map_or_else(usable_cpus, |n| n as u32),
        cpus_usable: usable_cpus().into(),
        memory_bytes: coprep_shared_memory::memory::available().unwrap_or(0),
        kernel: kernel.map(|k| k.release().to_string_lossy().into_owned()),
        cpu_model: cpu_model(),
        storage: storage(folder),
    }
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).into())
}

/// Returns the file system and device of the mount that holds a folder, or nothing if the folder does not exist.
fn storage(folder: &Path) -> String {
    let Ok(folder) = folder.canonicalize() else {
        return String::new();
    };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let mut words = line.split(' ');
        let (device, point, kind) = (words.next()?, words.next()?, words.next()?);
        let is_there = folder.starts_with(point);
        is_there.then(|| (point.len(), format!("{kind} on {device}")))
    };
    // Several mount points may contain the folder: it lies on the innermost one.
    let found = mounts.lines().filter_map(mount).max_by_key(|(len, _)| *len);
    found.map_or_else(String::new, |(_, text)| text)
}
