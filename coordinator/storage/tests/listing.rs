//! Listing stores.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use coprep_object_server::{Faults, ObjectServer};
use coprep_storage::{ErrorKind, ListEvent, ListedObject, Stores};

use common::{BUCKET, HIDDEN, server, store, url};

mod common;

const PATIENCE: Duration = Duration::from_secs(600);

fn keys(stores: &Stores, prefix: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let add = |event| {
        match event {
            ListEvent::Object(object) => keys.push(object.key),
            ListEvent::Unreadable(_) => {}
            ListEvent::Restarted => keys.clear(),
        }
        ControlFlow::Continue(())
    };
    store(stores).list(prefix, None, add).unwrap();
    keys
}

/// Puts objects `p/00000`, `p/00001`, ... and returns their keys.
fn put_many(server: &ObjectServer, count: usize) -> Vec<String> {
    let all: Vec<String> = (0..count).map(|number| format!("p/{number:05}")).collect();
    all.iter().for_each(|key| server.put(BUCKET, key, b"x"));
    all
}

/// Looks objects up, and returns those that are not found.
fn not_found<'a>(stores: &Stores, wanted: &[&'a str]) -> Vec<&'a str> {
    let mut sorted = wanted.to_vec();
    sorted.sort_unstable();
    let found = store(stores).look_up(&sorted).unwrap();
    let found = sorted.into_iter().zip(found);
    let check = |(key, object): (&'a str, Option<ListedObject>)| match object {
        Some(object) => {
            assert_eq!(object.key, key);
            None
        }
        None => Some(key),
    };
    found.filter_map(check).collect()
}

#[test]
fn a_listing_takes_one_request_for_a_thousand_objects() {
    let (server, stores) = server(PATIENCE);
    for number in 0..2500 {
        server.put(BUCKET, &format!("p/{number:05}"), b"x");
    }
    server.put(BUCKET, "pq/other", b"x");
    let listed = keys(&stores, "p");
    assert_eq!(listed.len(), 2500);
    assert_eq!(listed[1234], "p/01234");
    let counts = server.counts();
    assert_eq!((counts.lists, counts.heads, counts.gets), (3, 0, 0));
}

#[test]
fn objects_tell_their_size_and_etag() {
    let (server, stores) = server(PATIENCE);
    server.put(BUCKET, "p/a", b"four");
    let found = store(&stores).look_up(&["p/a", "p/b"]).unwrap();
    let found: Vec<_> = found
        .into_iter()
        .map(|o| o.map(|o| (o.size, o.etag.is_some())))
        .collect();
    assert_eq!(found, [Some((4, true)), None]);
}

#[test]
fn sparse_keys_are_found_without_listing_what_lies_between() {
    let (server, stores) = server(PATIENCE);
    for number in 0..20_000 {
        server.put(BUCKET, &format!("p/{number:05}"), b"x");
    }
    let wanted = ["p/00007", "p/00008", "p/09000", "p/missing", "p/19999"];
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    let found = store(&stores).look_up(&wanted).unwrap();
    for (key, object) in wanted.iter().zip(&found) {
        assert_eq!(object.is_some(), *key != "p/missing", "{key}");
    }
    assert!(server.counts().lists <= 10, "{:?}", server.counts());
    // Dense keys take as many requests as their pages.
    let all: Vec<String> = (0..20_000).map(|number| format!("p/{number:05}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let before = server.counts().lists;
    assert!(
        store(&stores)
            .look_up(&all)
            .unwrap()
            .iter()
            .all(Option::is_some)
    );
    assert!(server.counts().lists - before <= 21);
}

#[test]
fn a_store_that_cannot_be_listed_is_an_error_with_a_remedy_within_seconds() {
    let (server, stores) = server(PATIENCE);
    let fails = |bucket: &str| {
        let store = stores.of(&url(&format!("s3://{bucket}"))).unwrap();
        let began = Instant::now();
        let error = store
            .list("p", None, |_| ControlFlow::Continue(()))
            .unwrap_err();
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(*error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(!text.contains(HIDDEN), "{text}");
        text
    };
    let missing = fails("missing");
    assert!(
        missing.contains("s3://missing") && missing.contains("NoSuchBucket"),
        "{missing}"
    );
    let refuse = |status, code: &str| {
        server.set(Faults {
            refuse: Some((status, code.into())),
            ..Faults::default()
        });
    };
    refuse(403, "AccessDenied");
    let refused = fails(BUCKET);
    assert!(
        refused.contains("403 Forbidden (AccessDenied)"),
        "{refused}"
    );
    assert!(refused.contains("AWS_ACCESS_KEY_ID"), "{refused}");
    refuse(400, "ExpiredToken");
    assert!(fails(BUCKET).contains("check the credentials"));
    refuse(503, "SlowDown");
    assert!(fails(BUCKET).contains("503 Service Unavailable (SlowDown)"));
}

#[test]
fn no_server_is_an_error_within_seconds() {
    let stores = Stores::new(PATIENCE)
        // Nobody listens on this port.
        .with_variable("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        .with_variable("AWS_SKIP_SIGNATURE", "true");
    let began = Instant::now();
    let list = store(&stores).list("p", None, |_| ControlFlow::Continue(()));
    let text = list.unwrap_err().to_string();
    assert!(text.contains("no connection: Connection refused"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn objects_are_found_in_a_store_that_lists_in_no_order() {
    let (server, stores) = server(PATIENCE);
    let all = put_many(&server, 3000);
    server.set(Faults {
        unordered: true,
        ..Faults::default()
    });
    // A few among many, and the last of few: an early listing has nothing after it.
    let wanted = ["p/00003", "p/00004", "p/01500", "p/02999", "p/missing"];
    assert_eq!(not_found(&stores, &wanted), ["p/missing"]);
    let every: Vec<&str> = all.iter().map(String::as_str).collect();
    assert!(not_found(&stores, &every).is_empty());
    let mut listed = keys(&stores, "p");
    listed.sort_unstable();
    assert_eq!(listed, all);
}

#[test]
fn objects_are_found_in_a_small_store_that_lists_in_no_order() {
    // In some of these, the first object that is listed comes after all that are looked for.
    for count in 2..40 {
        let (server, stores) = server(PATIENCE);
        let all = put_many(&server, count);
        server.set(Faults {
            unordered: true,
            ..Faults::default()
        });
        for key in &all {
            assert!(not_found(&stores, &[key]).is_empty(), "{key} of {count}");
        }
    }
}

#[test]
fn directory_buckets_are_listed_from_their_beginning() {
    const DIRECTORY: &str = "photos--euw1-az1--x-s3";
    let (server, stores) = server(PATIENCE);
    for number in 0..10 {
        server.put(DIRECTORY, &format!("p/{number}"), b"x");
    }
    server.set(Faults {
        unordered: true,
        ..Faults::default()
    });
    let store = stores.of(&url(&format!("s3://{DIRECTORY}"))).unwrap();
    let found = store.look_up(&["p/3", "p/7", "p/8"]).unwrap();
    assert!(found.iter().all(Option::is_some));
    // One that failed on its way would have been tried with an offset first.
    assert_eq!(server.counts().lists, 1);
}

#[test]
fn a_listing_that_fails_on_its_way_has_each_object_once() {
    let faults = |unordered, offsets_ignored| Faults {
        unordered,
        offsets_ignored,
        failing_list: 3,
        ..Faults::default()
    };
    for (unordered, offsets_ignored, lists) in [
        (false, false, 4), // It goes on after 2,000 objects.
        (false, true, 7),  // It cannot go on there, and begins anew.
        (true, false, 6),  // It begins anew.
    ] {
        let (server, stores) = server(PATIENCE);
        let all = put_many(&server, 2500);
        server.set(faults(unordered, offsets_ignored));
        let mut listed = keys(&stores, "p");
        listed.sort_unstable();
        assert_eq!(listed, all);
        assert_eq!(server.counts().lists, lists);
    }
}

#[test]
fn a_short_listing_that_fails_on_its_way_begins_anew() {
    // Two keys in ascending order prove nothing. The pages are short, as those of a directory bucket may be.
    let (server, stores) = server(PATIENCE);
    let all = put_many(&server, 12);
    server.set(Faults {
        unordered: true,
        page: 2,
        failing_list: 2,
        ..Faults::default()
    });
    let mut listed = keys(&stores, "p");
    listed.sort_unstable();
    assert_eq!(listed, all);
}

#[test]
fn objects_are_found_where_listings_begin_with_their_first_object() {
    let (server, stores) = server(PATIENCE);
    let all = put_many(&server, 9000);
    server.set(Faults {
        offsets_ignored: true,
        ..Faults::default()
    });
    let wanted = ["p/00007", "p/04000", "p/08999", "p/missing"];
    assert_eq!(not_found(&stores, &wanted), ["p/missing"]);
    // Nothing is jumped over, because each jump would list all that lies before it once more.
    assert!(server.counts().lists <= 10, "{:?}", server.counts());
    assert!(not_found(&stores, &[&*all[5]]).is_empty());
}

#[test]
fn markers_of_folders_do_not_disturb_the_order() {
    let (server, stores) = server(PATIENCE);
    put_many(&server, 5000);
    // Without its slash, the key of the marker comes before that of the archive.
    for key in ["p/", "p/00000.tar", "p/00000/", "p/00000/x", "p/04000/"] {
        server.put(BUCKET, key, if key.ends_with('/') { b"" } else { b"x" });
    }
    let store = store(&stores);
    let found = store
        .look_up(&["p/00000", "p/00000.tar", "p/04999"])
        .unwrap();
    // Beside a marker of the same name, an object is itself.
    assert!(found.iter().flatten().all(|object| object.size == 1));
    assert_eq!(found.iter().flatten().count(), 3);
    // The objects between were jumped over.
    assert!(server.counts().lists <= 3, "{:?}", server.counts());
}

/// Returns the keys of a listing that can be read, and those that cannot.
fn both_kinds(stores: &Stores) -> (Vec<String>, Vec<String>) {
    let (mut readable, mut odd) = (Vec::new(), Vec::new());
    let add = |event| {
        match event {
            ListEvent::Object(object) => readable.push(object.key),
            ListEvent::Unreadable(key) => odd.push(key),
            ListEvent::Restarted => (readable, odd) = Default::default(),
        }
        ControlFlow::Continue(())
    };
    store(stores).list("p", None, add).unwrap();
    (readable, odd)
}

#[test]
fn a_key_that_cannot_be_read_hides_no_other_key() {
    for odd in [
        "p//a",
        "p/a//b",
        "p/a/./b",
        "p/../b",
        "p/a/..",
        "p/a/\u{1b}[31mb",
        "p/a/\nb",
        "p/a/\u{7f}",
        "p/ä//&<\"",
    ] {
        let (server, stores) = server(PATIENCE);
        let all = put_many(&server, 5);
        server.put(BUCKET, odd, b"x");
        assert_eq!(both_kinds(&stores), (all.clone(), vec![odd.to_owned()]));
        assert_eq!(not_found(&stores, &["p/00003", "p/x"]), ["p/x"], "{odd:?}");
    }
}

#[test]
fn keys_that_cannot_be_read_come_once_where_a_listing_fails_on_its_way() {
    for (unordered, offsets_ignored) in [(false, false), (false, true), (true, false)] {
        let (server, stores) = server(PATIENCE);
        let mut all = put_many(&server, 2500);
        let mut odd: Vec<String> = (0..2500)
            .step_by(7)
            .map(|n| format!("p/{n:05}//x"))
            .collect();
        odd.iter().for_each(|key| server.put(BUCKET, key, b"x"));
        server.set(Faults {
            unordered,
            offsets_ignored,
            failing_list: 3,
            ..Faults::default()
        });
        let (mut found, mut unreadable) = both_kinds(&stores);
        for keys in [&mut all, &mut odd, &mut found, &mut unreadable] {
            keys.sort_unstable();
        }
        assert_eq!((found, unreadable), (all, odd));
    }
}
