//! The source of the kernels, compiled for the host. What NVIDIA's compiler makes of it runs on a GPU only.

use std::path::Path;
use std::process::Command;

#[test]
fn the_kernels_look_each_element_up_whatever_the_shape_and_the_alignment() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("kernels");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/kernels_on_host.cpp");
    let compiled = Command::new("c++")
        .args(["-std=c++20", "-O1", "-pthread", "-o"])
        .args([&program, &source])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{errors}");
    let ran = Command::new(program).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}");
    assert_eq!(said, "672 runs, 0 elements are wrong\n");
}
