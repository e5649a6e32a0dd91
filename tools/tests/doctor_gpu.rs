//! The GPUs that `coprep doctor` finds, beside the fake driver of `tests/fake_cuda`.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use coprep_fake_cuda::install::install;
use serde_json::Value;
use tempfile::TempDir;

/// Returns a folder with the fake driver.
fn driver() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path()).unwrap();
    folder
}

/// Returns a folder with a driver that cannot be loaded, so that none is found, whatever this machine has.
fn no_driver() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.path().join(name), "no library").unwrap();
    }
    folder
}

fn doctor(folder: &TempDir, settings: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coprep"));
    command
        .arg("doctor")
        .env("LD_LIBRARY_PATH", folder.path())
        .env("FAKE_CUDA", settings)
        .env("COPREP_SOCKET", folder.path().join("socket"));
    command
}

/// Returns the findings about GPUs. Without a GPU, doctor must not fail.
fn findings(folder: &TempDir, settings: &str) -> Vec<Value> {
    let done = doctor(folder, settings).arg("--json").output().unwrap();
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{why}");
    let all: Vec<Value> = serde_json::from_slice(&done.stdout).unwrap();
    let is_of_gpu = |finding: &Value| finding["check"].as_str().unwrap().starts_with("GPU");
    all.into_iter().filter(is_of_gpu).collect()
}

/// Returns the only finding about GPUs: its level, what was found, and the remedy.
fn finding(folder: &TempDir, settings: &str) -> [String; 3] {
    match findings(folder, settings).as_slice() {
        [one] => ["level", "found", "remedy"].map(|part| one[part].as_str().unwrap().to_owned()),
        several => panic!("{several:?}"),
    }
}

#[test]
fn each_gpu_is_shown_with_its_identity_memory_and_driver() {
    let done = doctor(&driver(), "devices=2;mem=8589934592")
        .output()
        .unwrap();
    let shown = String::from_utf8(done.stdout).unwrap();
    for number in 0..2 {
        let line = format!(
            "ok       GPU {number}: Fake GPU (GPU-fafafafa-fafa-fafa-fafa-fafafafafa0{number}), 8.0 GiB, compute capability 9.0, driver for CUDA 13.0\n"
        );
        assert!(shown.contains(&line), "{shown}");
    }
    assert_eq!(findings(&driver(), "devices=3").len(), 3);
}

#[test]
fn a_gpu_is_shown_with_its_numa_node() {
    let folder = driver();
    let write = |path: &str, file: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(file), text).unwrap();
    };
    write("bus/pci/devices/00fa:40:00.0", "numa_node", "1\n");
    write("devices/system/node/node1", "cpulist", "0-3\n");
    let mut command = doctor(&folder, "devices=2");
    let done = command.env("COPREP_TEST_SYSFS", folder.path()).output();
    let shown = String::from_utf8(done.unwrap().stdout).unwrap();
    let nodes: Vec<bool> = shown
        .lines()
        .filter(|line| line.contains("Fake GPU"))
        .map(|line| line.contains("capability 9.0, NUMA node 1, driver"))
        .collect();
    assert_eq!(nodes, [true, false], "{shown}");
}

#[test]
fn a_machine_without_a_gpu_is_fit() {
    let [level, found, remedy] = finding(&no_driver(), "");
    let expected = "none: libcuda.so.1 is not found (if there should be one: install the driver, or start the container with --gpus all)";
    assert_eq!([level.as_str(), &found, &remedy], ["ok", expected, ""]);
    let [level, found, _] = finding(&driver(), "devices=0");
    assert_eq!(level, "ok");
    assert!(
        found.starts_with("none: no CUDA-capable device is detected"),
        "{found}"
    );
}

#[test]
fn a_driver_that_cannot_work_is_a_warning_with_a_remedy() {
    for (settings, words, advice) in [
        ("fail=cuInit:34", "stub library", "LD_LIBRARY_PATH"),
        (
            "fail=cuInit:803",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "restart the machine",
        ),
        (
            "fail=cuDeviceGetUuid_v2:999",
            "cannot get the UUID of GPU 0",
            "dmesg",
        ),
        ("mode=2", "no process may use it", "nvidia-smi -c DEFAULT"),
        ("mode=3", "only one process", "nvidia-smi -c DEFAULT"),
    ] {
        let [level, found, remedy] = finding(&driver(), settings);
        assert_eq!(level, "warning", "{settings}: {found}");
        assert!(found.contains(words), "{settings}: {found}");
        assert!(remedy.contains(advice), "{settings}: {remedy}");
    }
}

#[test]
fn a_driver_that_hangs_does_not_hang_the_command() {
    let [level, found, _] = finding(&driver(), "hang=cuInit");
    assert_eq!(level, "warning");
    assert_eq!(found, "the NVIDIA driver does not answer for 20 s");
}

#[test]
fn looking_at_a_gpu_takes_nothing_of_it() {
    let folder = driver();
    let trace = folder.path().join("trace");
    finding(&folder, &format!("trace={}", trace.display()));
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(trace.contains("cuDeviceGet "), "{trace}");
    assert!(!trace.contains("cuDevicePrimaryCtxRetain"), "{trace}");
}
