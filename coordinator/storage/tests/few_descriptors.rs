//! Reading in a process without a free descriptor. This is the only test of its file, because it takes all descriptors
//! that its process has.

use std::fs::File;
use std::time::Duration;

use coprep_storage::{descriptor_shortage, open_regular};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
fn a_sample_is_not_bad_because_no_descriptor_is_left() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, most).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample");
    std::fs::write(&path, "bytes").unwrap();
    let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let (full, (opened, shortage)) = (File::open(&path), {
        let others = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let shortage = descriptor_shortage();
            drop(all);
            shortage
        });
        let opened = open_regular(&path);
        (opened, others.join().unwrap())
    });
    assert!(full.is_err(), "no descriptor was left");
    assert_eq!(opened.unwrap().1, 5);
    assert!(shortage.is_some_and(|why| why.contains("ulimit -n")));
    assert_eq!(descriptor_shortage(), None);
}
