//! Folders of classes and lists of files, in torchvision's order.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use coprep_object_server::{Faults, ObjectServer};
use coprep_pipeline::{Dataset, Error, ErrorKind};
use coprep_protocol::dataset_path::text_of;
use coprep_protocol::spec::{FileList, Source};
use coprep_storage::Stores;
use tempfile::TempDir;

/// Creates a folder of files, each of which holds its own path.
fn tree(files: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    root
}

fn open(root: &Path) -> Result<Dataset, Error> {
    Dataset::open(&Source::ImageFolder {
        root: root.to_str().unwrap().into(),
    })
}

fn list(paths: &[&str], labels: &[i64]) -> Result<Dataset, Error> {
    let paths = paths.iter().map(|&p| p.into()).collect();
    Dataset::open(&Source::Files(FileList {
        paths,
        labels: labels.to_vec(),
    }))
}

fn samples(dataset: &Dataset, root: &Path) -> Vec<(String, i64)> {
    let relative = |id| {
        dataset
            .path(id)
            .strip_prefix(root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    (0..dataset.len())
        .map(|id| (relative(id), dataset.label(id)))
        .collect()
}

fn assert_refused(found: Result<Dataset, Error>, kind: ErrorKind, words: &[&str]) {
    let error = found.unwrap_err();
    assert_eq!(*error.kind(), kind, "{error}");
    for word in words {
        assert!(
            error.to_string().contains(word),
            "{word:?} is not in: {error}"
        );
    }
}

#[test]
fn samples_come_in_the_order_of_torchvision() {
    let root = tree(&[
        "b/2.jpg",
        "b/10.JPG",
        "a/z.png",
        "a/sub/a.webp",
        "a/b.jpeg",
        "B/x.jpg",
        "note.jpg",
    ]);
    let dataset = open(root.path()).unwrap();
    assert_eq!(dataset.classes(), ["B", "a", "b"]);
    let expected = [
        ("B/x.jpg", 0),
        ("a/b.jpeg", 1),
        ("a/z.png", 1),
        ("a/sub/a.webp", 1),
        ("b/10.JPG", 2),
        ("b/2.jpg", 2),
    ];
    assert_eq!(
        samples(&dataset, root.path()),
        expected.map(|(path, label)| (path.to_owned(), label))
    );
}

/// There are more names than a file system would return in order by luck.
#[test]
fn files_of_a_class_come_by_name() {
    let mut names: Vec<String> = (0..40).map(|i| format!("a/{}.jpg", i * 7 % 40)).collect();
    let root = tree(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let found = samples(&open(root.path()).unwrap(), root.path());
    names.sort();
    assert!(found.iter().map(|(path, _)| path).eq(&names), "{found:?}");
}

#[test]
fn files_that_torchvision_would_list_and_are_not_decoded_are_counted() {
    let root = tree(&["a/1.jpg", "a/2.bmp", "a/3.TIFF", "a/readme.txt", "a/jpg"]);
    let dataset = open(root.path()).unwrap();
    assert_eq!((dataset.len(), dataset.ignored()), (1, 2));
}

#[test]
fn links_are_followed_and_a_loop_is_refused() {
    let other = tree(&["far/1.jpg"]);
    let root = tree(&["a/0.jpg"]);
    symlink(other.path().join("far"), root.path().join("b")).unwrap();
    let dataset = open(root.path()).unwrap();
    assert_eq!(
        samples(&dataset, root.path()),
        [("a/0.jpg".into(), 0), ("b/1.jpg".into(), 1)]
    );
    symlink(root.path().join("a"), root.path().join("a/loop")).unwrap();
    assert_refused(
        open(root.path()),
        ErrorKind::InvalidSource,
        &["a/loop", "link to a folder above itself"],
    );
}

#[test]
fn a_folder_without_samples_is_refused_with_the_remedy() {
    let root = tree(&[]);
    assert_refused(
        open(root.path()),
        ErrorKind::NotFound,
        &["no class folders", "root/class/image.jpg"],
    );
    fs::write(root.path().join("1.jpg"), "").unwrap();
    assert_refused(
        open(root.path()),
        ErrorKind::NotFound,
        &["no class folders"],
    );
    let missing = root.path().join("missing");
    assert_refused(
        open(&missing),
        ErrorKind::NotFound,
        &[missing.to_str().unwrap()],
    );
}

#[test]
fn classes_without_samples_are_named() {
    let root = tree(&["a/1.jpg", "b/notes.txt", "c/2.gif"]);
    assert_refused(
        open(root.path()),
        ErrorKind::NotFound,
        &["class folders b, c;", ".jpg, .jpeg, .png, .webp"],
    );
}

#[test]
fn a_list_is_taken_as_it_is() {
    let dataset = list(&["/z.jpg", "/a.bin", "/z.jpg"], &[7, -1, 7]).unwrap();
    assert_eq!((dataset.len(), dataset.classes().len()), (3, 0));
    assert_eq!(
        (dataset.path(1), dataset.label(1)),
        (Path::new("/a.bin").into(), -1)
    );
    assert_eq!(list(&["/a"], &[]).unwrap().label(0), 0);
    assert_refused(
        list(&[], &[]),
        ErrorKind::InvalidSource,
        &["at least one path"],
    );
    assert_refused(
        list(&["/a", "/b"], &[1]),
        ErrorKind::InvalidSource,
        &["2 paths and 1 labels"],
    );
}

#[test]
fn a_file_is_fetched_whole_or_by_its_head() {
    let root = tree(&["a/1.jpg"]);
    let long: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(root.path().join("a/2.jpg"), &long).unwrap();
    let dataset = open(root.path()).unwrap();
    let mut bytes = vec![1, 2, 3];
    dataset.fetch(0, &mut bytes).unwrap();
    assert_eq!(bytes, b"a/1.jpg");
    dataset.fetch(1, &mut bytes).unwrap();
    assert!(bytes == long && dataset.file_len(1).unwrap() == long.len() as u64);
    dataset.fetch_head(1, &mut bytes).unwrap();
    assert!(bytes == long[..256 << 10]);
    let mut buffer = vec![0; long.len()];
    dataset.fetch_into(1, &mut buffer).unwrap();
    assert!(buffer == long);
}

#[test]
fn a_file_whose_name_is_no_text_is_read_by_its_path() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(OsStr::from_bytes(b"\xff\xe4.jpg"));
    fs::write(&path, "content").unwrap();
    let dataset = list(&[&text_of(&path)], &[]).unwrap();
    assert_eq!(dataset.path(0), path);
    let mut bytes = Vec::new();
    dataset.fetch(0, &mut bytes).unwrap();
    assert_eq!(bytes, b"content");
}

#[test]
fn a_missing_file_is_named() {
    let root = tree(&["a/1.jpg"]);
    let dataset = open(root.path()).unwrap();
    fs::remove_file(root.path().join("a/1.jpg")).unwrap();
    let fetched = [
        dataset.fetch(0, &mut Vec::new()),
        dataset.fetch_head(0, &mut Vec::new()),
        dataset.fetch_into(0, &mut [0; 7]),
        dataset.file_len(0).map(drop),
    ];
    for error in fetched.map(Result::unwrap_err) {
        assert!(
            error.kind().is_not_found() && error.to_string().contains("a/1.jpg cannot be read"),
            "{error}"
        );
    }
}

#[test]
fn a_link_to_nothing_is_a_sample_that_is_missing() {
    let root = tree(&["a/1.jpg"]);
    symlink("/nowhere/at/all", root.path().join("a/0.jpg")).unwrap();
    let dataset = open(root.path()).unwrap();
    assert_eq!(dataset.len(), 2);
    assert!(
        dataset
            .fetch(0, &mut Vec::new())
            .unwrap_err()
            .kind()
            .is_not_found()
    );
}

#[test]
fn a_file_that_changed_its_length_is_refused() {
    let root = tree(&["a/1.jpg"]);
    let dataset = open(root.path()).unwrap();
    for length in [6, 8] {
        let error = dataset.fetch_into(0, &mut vec![0; length]).unwrap_err();
        assert!(
            error.to_string().contains("a/1.jpg changed its length"),
            "{error}"
        );
    }
}

#[test]
fn the_fingerprint_tells_lists_apart() {
    let of = |paths: &[&str], labels: &[i64]| list(paths, labels).unwrap().fingerprint();
    let all = [
        of(&["/a", "/b"], &[0, 1]),
        of(&["/b", "/a"], &[0, 1]),
        of(&["/a", "/b"], &[1, 0]),
        of(&["/a/", "b"], &[0, 1]),
        of(&["/a"], &[0]),
    ];
    for (i, one) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other != one), "{i}");
    }
    assert_eq!(all[0], of(&["/a", "/b"], &[0, 1]));
}

/// Such a file is neither waited for nor read without end.
#[test]
fn a_sample_that_is_no_regular_file_is_refused_at_once() {
    let root = tree(&["a/0.jpg"]);
    let path = |name: &str| root.path().join("a").join(name);
    nix::unistd::mkfifo(&path("pipe.jpg"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket.jpg")).unwrap();
    symlink("/dev/zero", path("zero.jpg")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    symlink(path("folder"), path("link.jpg")).unwrap();
    let long = fs::File::create(path("long.jpg")).unwrap();
    long.set_len(coprep_pipeline::MOST_BYTES + 1).unwrap();

    let is_not = |what: &str| format!("cannot be read: it is {what}, and a sample must be a");
    let cases = [
        ("pipe.jpg", is_not("a named pipe")),
        ("socket.jpg", is_not("a socket")),
        ("zero.jpg", is_not("a character device")),
        ("link.jpg", is_not("a folder")),
        (
            "long.jpg",
            "cannot be read: it has more than 1073741824 bytes".into(),
        ),
    ];
    for (name, expected) in cases {
        let path = path(name);
        let dataset = list(&[path.to_str().unwrap()], &[]).unwrap();
        let mut bytes = Vec::new();
        let errors = [
            dataset.fetch(0, &mut bytes).unwrap_err(),
            dataset.fetch_head(0, &mut Vec::new()).unwrap_err(),
            dataset.fetch_into(0, &mut [0; 7]).unwrap_err(),
            dataset.file_len(0).unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            assert_eq!(*error.kind(), ErrorKind::Read, "{text}");
            assert!(text.contains(name) && text.contains(&expected), "{text}");
        }
        assert_eq!(bytes.capacity(), 0, "memory was taken for {name}");
    }
}

#[test]
fn a_file_whose_length_is_not_told_beforehand_is_read_whole() {
    // The length is 0 although there are bytes, as for a file that grows while it is read, or on some network file
    // systems.
    let dataset = list(&["/proc/self/status"], &[]).unwrap();
    assert_eq!(dataset.file_len(0).unwrap(), 0);
    let mut bytes = Vec::new();
    dataset.fetch(0, &mut bytes).unwrap();
    assert!(bytes.starts_with(b"Name:"));
}

/// Starts a server with two classes, each of one sample, in a folder of a bucket.
fn server_with(folder: &str) -> ObjectServer {
    let server = ObjectServer::start().unwrap();
    for key in ["a/1.jpg", "b/ü 2.jpg"] {
        server.put("nas", &format!("{folder}/{key}"), key.as_bytes());
    }
    server
}

#[test]
fn a_folder_of_a_webdav_server_has_its_classes_however_its_url_is_written() {
    for (folder, spellings) in [
        ("my data/train", &["my data/train", "my%20data/train"][..]),
        ("~me/x", &["~me/x", "%7Eme/x", "%7eme/x"]),
        ("(1)/x", &["(1)/x", "%281%29/x"]),
        ("für/x", &["für/x", "f%C3%BCr/x", "f%c3%bcr/x"]),
        ("plain", &["plain", "p%6Cain"]),
    ] {
        let server = server_with(folder);
        for spelling in spellings {
            let root = format!("http://127.0.0.1:{}/nas/{spelling}", server.port());
            let dataset = Dataset::open(&Source::ImageFolder { root }).unwrap();
            assert_eq!(dataset.classes(), ["a", "b"], "{spelling}");
            let labels: Vec<_> = (0..dataset.len()).map(|id| dataset.label(id)).collect();
            assert_eq!(labels, [0, 1], "{spelling}");
            let mut bytes = Vec::new();
            dataset.fetch(1, &mut bytes).unwrap();
            assert_eq!(bytes, "b/ü 2.jpg".as_bytes(), "{spelling}");
        }
    }
}

#[test]
fn a_listing_that_leaves_its_folder_is_an_error() {
    let server = server_with("x/train");
    server.set(Faults {
        listed_elsewhere: true,
        ..Faults::default()
    });
    let root = format!("http://127.0.0.1:{}/nas/x/train", server.port());
    assert_refused(
        Dataset::open(&Source::ImageFolder { root }),
        ErrorKind::InvalidSource,
        &[
            "has http://",
            "/elsewhere/nas/x/train/a/1.jpg, which is not in this folder",
        ],
    );
}

/// Opens a folder of a bucket that has two ordinary samples and these objects. `by` is the scheme.
fn open_with(objects: &[&str], by: &str) -> Result<Dataset, Error> {
    let server = server_with("train");
    for key in objects {
        server.put("nas", key, b"x");
    }
    let address = format!("http://127.0.0.1:{}", server.port());
    let stores = Stores::default()
        .with_variable("AWS_ENDPOINT_URL", &address)
        .with_variable("AWS_SKIP_SIGNATURE", "true");
    let root = match by {
        "s3" => "s3://nas/train".into(),
        _ => format!("{address}/nas/train"),
    };
    Dataset::open_in(&Source::ImageFolder { root }, &stores, &mut |_| true)
}

#[test]
fn a_key_that_cannot_be_read_is_left_out_and_told_and_hides_no_other_sample() {
    for (keys, left_out) in [
        (&["train/a//2.jpg"][..], 1),
        (&["train//z.jpg"], 1),
        (&["train/a/./2.jpg", "train/../a/3.png"], 2),
        (&["train/a/\u{1b}[31m2.jpg", "train/b/\n.webp"], 2),
        // No samples, wherever they lie.
        (
            &[
                "train/a//",
                "train/_logs//part-0",
                "train//x.txt",
                "train/\u{7}",
            ],
            0,
        ),
    ] {
        // A link of WebDAV has no such parts: it is resolved.
        let is_resolved = keys.iter().any(|key| key.contains("/."));
        for by in if is_resolved {
            &["s3"][..]
        } else {
            &["s3", "http"]
        } {
            let dataset = open_with(keys, by).unwrap();
            assert_eq!(
                (dataset.len(), dataset.classes()),
                (2, &["a".into(), "b".into()][..])
            );
            assert_eq!(dataset.left_out().count(), left_out, "{by} {keys:?}");
            let note = dataset.left_out().note("the folder");
            assert_eq!(note.is_some(), left_out > 0);
            let note = note.unwrap_or_default();
            assert!(!note.contains(char::is_control), "{note}");
        }
    }
    let first = open_with(&["train/a//2.jpg", "train/a//3.jpg"], "s3").unwrap();
    let note = first.left_out().note("the folder").unwrap();
    assert!(
        note.starts_with("2 samples of the folder") && note.contains("s3://nas/train/a//2.jpg"),
        "{note}"
    );
}

#[test]
fn a_class_all_of_whose_keys_cannot_be_read_is_no_class_less() {
    assert_refused(
        open_with(&["train/aa//1.jpg"], "s3"),
        ErrorKind::NotFound,
        &[
            "no image in the class folder aa",
            "1 sample of s3://nas/train is left out",
            "aa//1.jpg",
        ],
    );
}

#[test]
fn odd_names_of_local_files_are_read() {
    let names = ["a/\u{1b}[31m.jpg", "a/\n.jpg", "a/ä .png", "b/#?%2F.jpg"];
    let root = tree(&names);
    let dataset = open(root.path()).unwrap();
    let mut bytes = Vec::new();
    for (id, (name, _)) in (0..).zip(samples(&dataset, root.path())) {
        dataset.fetch(id, &mut bytes).unwrap();
        assert_eq!(bytes, name.as_bytes());
    }
    assert_eq!(dataset.len(), 4);
    fs::remove_file(root.path().join(names[0])).unwrap();
    let missing = (0..4).filter_map(|id| dataset.fetch(id, &mut bytes).err());
    let missing: Vec<String> = missing.map(|e| e.to_string()).collect();
    assert!(
        missing.len() == 1 && missing[0].contains("/a/\u{fffd}[31m.jpg"),
        "{missing:?}"
    );
}
