//! The check that a job's credentials may read a dataset.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::time::Duration;

use coprep_object_server::{Faults, ObjectServer};
use coprep_storage::{ErrorKind, Stores};

use common::{BUCKET, server, store};

mod common;

const PATIENCE: Duration = Duration::from_secs(600);

/// Returns a server with these objects. Those whose keys end with a slash are empty.
fn server_with(keys: &[&str]) -> (ObjectServer, Stores) {
    let (server, stores) = server(PATIENCE);
    for key in keys {
        let bytes: &[u8] = if key.ends_with('/') { b"" } else { b"content" };
        server.put(BUCKET, key, bytes);
    }
    (server, stores)
}

fn refuse_reading(server: &ObjectServer) {
    server.set(Faults {
        unreadable: true,
        ..Faults::default()
    });
}

#[test]
fn a_job_that_may_list_but_not_read_is_refused_also_if_markers_of_folders_come_first() {
    let (server, stores) = server_with(&["photos/", "photos/a/", "photos/a/1.jpg"]);
    assert!(store(&stores).check_access("photos", true).unwrap());
    assert!(
        !store(&stores)
            .check_access("photos/absent.jpg", false)
            .unwrap()
    );
    refuse_reading(&server);
    for (key, is_folder) in [("photos", true), ("", true), ("photos/a/1.jpg", false)] {
        let error = store(&stores).check_access(key, is_folder).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("403 Forbidden"), "{error}");
    }
}

#[test]
fn a_folder_without_anything_to_read_proves_nothing() {
    let (_server, stores) = server_with(&["photos/", "photos/a/"]);
    let refused = |folder: &str| {
        let error = store(&stores).check_access(folder, true).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    };
    let of_markers = refused("photos");
    assert!(
        of_markers.contains("there are only empty objects in s3://bucket/photos"),
        "{of_markers}"
    );
    let empty = refused("nowhere");
    assert!(
        empty.contains("there is nothing in s3://bucket/nowhere"),
        "{empty}"
    );
}

#[test]
fn objects_that_cannot_be_asked_for_are_passed_over() {
    // Some tools write markers with content. Their keys end with a slash all the same, which the library leaves out.
    let (server, stores) = server_with(&["photos/1.jpg"]);
    server.put(BUCKET, "photos/", b"marker");
    assert!(store(&stores).check_access("photos", true).unwrap());
    server.delete(BUCKET, "photos/1.jpg");
    let error = store(&stores).check_access("photos", true).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Changed, "{error}");
}
