//! The program that measures a GPU, beside the fake driver of `tests/fake_cuda`.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Two images in a minibatch, and two of everything else.
const SMALL: [&str; 10] = [
    "--repeat",
    "2",
    "--copies",
    "2",
    "--launches",
    "5",
    "--images",
    "2",
    "--staging",
    "16",
];

fn folder_with_driver() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    coprep_fake_cuda::install::install(folder.path()).unwrap();
    folder
}

fn run(folder: &TempDir, settings: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_measure_gpu"))
        .args(SMALL)
        .args(more)
        .env("LD_LIBRARY_PATH", folder.path())
        .env("FAKE_CUDA", settings)
        .output()
        .unwrap()
}

fn measured(settings: &str, more: &[&str]) -> Value {
    let output = run(&folder_with_driver(), settings, more);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns a member of each object of a list.
fn each<'a>(list: &'a Value, member: &str) -> Vec<&'a Value> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|o| &o[member])
        .collect()
}

/// Asserts that a list has a positive number for each of the two repetitions.
fn assert_figures(list: &Value) {
    let numbers: Vec<f64> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_f64().unwrap())
        .collect();
    assert!(
        numbers.len() == 2 && numbers.iter().all(|&n| n > 0.0),
        "{numbers:?}"
    );
}

#[test]
fn everything_is_measured_as_often_as_asked_and_no_bit_differs_from_the_cpu() {
    let all = measured("delay_us=100", &[]);
    assert_eq!(all["gpu"]["is_fake"], true);
    assert_eq!(all["gpu"]["pins_read_only"], true);
    for figures in ["map_s_per_gib", "pin_s_per_gib", "unpin_s_per_gib"] {
        assert_figures(&all["pinning"][figures]);
    }
    let sources = [
        "cuMemHostAlloc",
        "staging, pinned",
        "staging, through buffers",
    ];
    assert_eq!(each(&all["uploads"], "from"), [sources, sources].concat());
    let images = 2 * 3 * 224 * 224;
    let sizes = [[images; 3], [4 * images; 3]].concat();
    assert_eq!(each(&all["uploads"], "bytes"), sizes);
    for upload in all["uploads"].as_array().unwrap() {
        assert_figures(&upload["gb_per_s"]);
        assert_eq!(upload["why_bounced"], Value::Null);
    }
    let elements = [
        "float32", "float32", "float16", "float16", "bfloat16", "bfloat16",
    ];
    assert_eq!(each(&all["kernels"], "element"), elements);
    assert_eq!(each(&all["kernels"], "order"), ["NCHW", "NHWC"].repeat(3));
    assert_eq!(each(&all["kernels"], "different_bits"), [0; 6]);
    for kernel in all["kernels"].as_array().unwrap() {
        assert_figures(&kernel["us"]);
    }
    assert_eq!(
        all["kernels"][0]["bytes_moved"],
        all["plain_copy"]["bytes_moved"]
    );
    assert_figures(&all["plain_copy"]["us"]);
}

#[test]
fn where_the_staging_area_cannot_be_pinned_the_results_say_so() {
    let all = measured("readonly=0", &[]);
    assert_eq!(all["gpu"]["pins_read_only"], false);
    let why = all["pinning"]["why_bounced"].as_str().unwrap();
    assert!(why.contains("pinned for reading only"), "{why}");
    let of_uploads = each(&all["uploads"], "why_bounced");
    assert_eq!(of_uploads[1], why);
    assert_eq!((of_uploads[0], of_uploads[2]), (&Value::Null, &Value::Null));
}

#[test]
fn single_uploads_are_measured_one_by_one() {
    let one = measured("delay_us=2000", &["latency", "--seconds", "0.2"]);
    assert_eq!(one["gpu"]["is_fake"], true);
    let us = one["latency"]["us"].as_array().unwrap();
    assert!(!us.is_empty());
    // The fake GPU takes 2,000 us for each copy.
    assert!(us.iter().all(|us| us.as_f64().unwrap() >= 2000.0), "{us:?}");
}

#[test]
fn without_a_driver_there_is_a_sentence_and_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.path().join(name), "no library").unwrap();
    }
    let output = run(&folder, "", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.starts_with("measure_gpu: cannot load the NVIDIA driver"),
        "{error}"
    );
}
