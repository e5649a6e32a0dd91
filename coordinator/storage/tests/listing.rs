//! Listing stores.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use coprep_object_server::Faults;
use coprep_storage::{ErrorKind, Stores};

use common::{BUCKET, HIDDEN, server, store, url};

mod common;

const PATIENCE: Duration = Duration::from_secs(600);

fn keys(stores: &Stores, prefix: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let add = |object: coprep_storage::ListedObject| {
        keys.push(object.key);
        ControlFlow::Continue(())
    };
    store(stores).list(prefix, None, add).unwrap();
    keys
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
