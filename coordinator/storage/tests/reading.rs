//! Reading objects while the server has faults.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use coprep_object_server::{Credentials, Faults, ObjectServer};
use coprep_storage::{ErrorKind, Extent, ListEvent, ObjectTable, Stores};

use common::{BUCKET, HIDDEN, server, store};

mod common;

const PATIENCE: Duration = Duration::from_secs(600);

/// Returns different bytes for each number.
fn bytes(number: u32, length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|at| (at ^ (at >> 8) ^ number.wrapping_mul(77)) as u8)
        .collect()
}

/// Puts objects `p/000`, `p/001`, ... and returns a table of them as they are listed.
fn table(server: &ObjectServer, stores: &Stores, count: u32, length: usize) -> ObjectTable {
    for number in 0..count {
        server.put(BUCKET, &format!("p/{number:03}"), &bytes(number, length));
    }
    let (store, mut table) = (store(stores), ObjectTable::local(std::path::Path::new("")));
    let add = |event| {
        if let ListEvent::Object(object) = event {
            table.push_object(&store, &object.key, Some(&object));
        }
        std::ops::ControlFlow::Continue(())
    };
    store.list("p", None, add).unwrap();
    table
}

/// Reads every object twice, into growing memory and into a buffer, and checks the bytes.
fn check_all(table: &ObjectTable, length: usize) {
    for object in 0..table.len() {
        let (mut grows, mut exact) = (Vec::new(), vec![0; length]);
        table.read(Extent::whole(object), &mut grows).unwrap();
        table.read_into(Extent::whole(object), &mut exact).unwrap();
        assert!(
            grows == bytes(object, length) && exact == grows,
            "object {object}"
        );
    }
}

#[test]
fn an_object_is_read_by_one_request_that_names_its_etag() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 20, 10_000);
    check_all(&table, 10_000);
    let counts = server.counts();
    assert_eq!((counts.gets, counts.matched, counts.heads), (40, 40, 0));
    assert_eq!(counts.bytes, 40 * 10_000);
    assert_eq!(table.length(3).unwrap(), 10_000);
    assert_eq!(server.counts().heads, 0);
}

#[test]
fn a_part_of_an_object_is_read_alone() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 2, 10_000);
    let extent = Extent {
        object: 1,
        at: 500,
        len: Some(250),
    };
    let (mut grows, mut exact) = (Vec::new(), vec![0; 250]);
    table.read(extent, &mut grows).unwrap();
    table.read_into(extent, &mut exact).unwrap();
    assert_eq!(grows, bytes(1, 10_000)[500..750]);
    assert_eq!(exact, grows);
}

#[test]
fn an_empty_object_is_read() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 1, 0);
    check_all(&table, 0);
    assert!(table.read_heads(&[0], 100)[0].as_ref().unwrap().is_empty());
}

#[test]
fn heads_are_read_at_once() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 40, 10_000);
    server.set(Faults {
        latency: Duration::from_millis(100),
        ..Faults::default()
    });
    let began = Instant::now();
    let heads = table.read_heads(&(0..40).collect::<Vec<_>>(), 1000);
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    for (object, head) in heads.iter().enumerate() {
        assert_eq!(
            head.as_ref().unwrap(),
            &bytes(object as u32, 10_000)[..1000]
        );
    }
}

#[test]
fn answers_that_fail_now_and_then_cost_a_request_and_no_object() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 30, 100_000);
    for faults in [
        Faults {
            error_every: 3,
            ..Faults::default()
        },
        Faults {
            reset_every: 3,
            ..Faults::default()
        },
    ] {
        server.set(faults);
        check_all(&table, 100_000);
    }
    assert_eq!(stores.outages(), []);
}

#[test]
fn a_body_that_stalls_is_resumed() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 1, 100_000);
    server.set(Faults {
        stall_every: 2,
        ..Faults::default()
    });
    let began = Instant::now();
    check_all(&table, 100_000);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

/// Reads objects often enough that the usual time of an answer is known. Returns the number of requests for objects.
fn read_often(server: &ObjectServer, table: &ObjectTable) -> u64 {
    for _ in 0..10 {
        check_all(table, 1000);
    }
    server.counts().gets
}

#[test]
fn the_rest_of_a_body_that_stops_coming_is_asked_for_again() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 10, 1000);
    let before = read_often(&server, &table);
    server.set(Faults {
        stall_every: before + 1,
        ..Faults::default()
    });
    let mut read = Vec::new();
    table.read(Extent::whole(3), &mut read).unwrap();
    assert_eq!(read, bytes(3, 1000));
    // A client without second requests waits for its longest silence, and asks as often.
    assert_eq!(stores.traffic()[0].second, 1);
    assert_eq!(server.counts().gets, before + 2);
}

#[test]
fn the_rest_of_a_body_is_not_taken_from_an_object_that_replaced_it() {
    let (server, stores) = server(PATIENCE);
    let listed = table(&server, &stores, 10, 1000);
    let before = read_often(&server, &listed);
    // On a web server, no listing has told the ETag.
    let (store, mut unlisted) = (store(&stores), ObjectTable::local(std::path::Path::new("")));
    unlisted.push_object(&store, "p/003", None);
    for (at, table, object) in [(before, &listed, 3), (before + 2, &unlisted, 0)] {
        server.put(BUCKET, "p/003", &bytes(3, 1000));
        server.set(Faults {
            pause_every: at + 1,
            stall: Duration::from_millis(2500),
            ..Faults::default()
        });
        let mut read = Vec::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| table.read(Extent::whole(object), &mut read));
            while server.counts().gets == at {
                std::thread::sleep(Duration::from_millis(5));
            }
            server.put(BUCKET, "p/003", &bytes(4, 1000));
            reader.join().unwrap().unwrap();
        });
        // The first answer goes on after its pause.
        assert_eq!(read, bytes(3, 1000));
        assert_eq!(server.counts().gets, at + 2, "the rest was asked for");
        assert_eq!(stores.outages(), []);
    }
}

#[test]
fn few_requests_that_are_answered_late_are_sent_again() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 10, 1000);
    let before = read_often(&server, &table);
    server.set(Faults {
        latency: Duration::from_millis(1500),
        ..Faults::default()
    });
    for object in 0..2 {
        table.read(Extent::whole(object), &mut Vec::new()).unwrap();
    }
    let second = stores.traffic()[0].second;
    assert!((1..=before / 50 + 1).contains(&second), "{second}");
}

#[test]
fn another_range_than_was_asked_for_is_never_taken_for_the_bytes() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 1, 10_000);
    server.set(Faults {
        wrong_range_every: 2,
        ..Faults::default()
    });
    let mut part = Vec::new();
    for at in [0, 100, 200, 300] {
        let extent = Extent {
            object: 0,
            at,
            len: Some(50),
        };
        table.read(extent, &mut part).unwrap();
        assert_eq!(part, bytes(0, 10_000)[at as usize..at as usize + 50]);
    }
}

#[test]
fn an_object_that_was_replaced_is_named() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 3, 1000);
    server.put(BUCKET, "p/001", &bytes(9, 1000));
    server.put(BUCKET, "p/002", &bytes(2, 999));
    for object in [1, 2] {
        let error = table
            .read(Extent::whole(object), &mut Vec::new())
            .unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Changed);
        let text = error.to_string();
        assert!(
            text.contains(&format!("s3://bucket/p/00{object}")),
            "{text}"
        );
        assert!(text.contains("a dataset in use must not change"), "{text}");
    }
    table.read(Extent::whole(0), &mut Vec::new()).unwrap();
}

#[test]
fn a_listed_object_that_was_deleted_is_named_as_changed() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 2, 1000);
    server.delete(BUCKET, "p/001");
    let read = |object| table.read(Extent::whole(object), &mut Vec::new());
    let error = read(1).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Changed);
    let text = error.to_string();
    assert!(
        text.contains("s3://bucket/p/001 was deleted since it was listed"),
        "{text}"
    );
    assert!(text.contains("a dataset in use must not change"), "{text}");
    read(0).unwrap();
}

#[test]
fn an_opening_outlasts_a_moment_without_the_store() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 3, 1000);
    server.set(Faults {
        refuse: Some((503, "SlowDown".into())),
        ..Faults::default()
    });
    std::thread::scope(|scope| {
        let heads = scope.spawn(|| table.read_heads(&[0, 1, 2], 100));
        let parts = [0, 1, 2].map(Extent::whole);
        let parts = scope.spawn({
            let table = &table;
            move || table.read_part_heads(&parts, 100)
        });
        // Longer than the client of the store tries by itself.
        std::thread::sleep(Duration::from_millis(2500));
        server.set(Faults::default());
        let all = [heads.join().unwrap(), parts.join().unwrap()].concat();
        assert_eq!(all.len(), 6);
        assert!(all.iter().all(Result::is_ok), "{all:?}");
    });
}

#[test]
fn requests_are_counted_those_of_listings_and_those_that_fail_too() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 12, 1000);
    let before = stores.traffic().remove(0);
    assert_eq!(
        (before.store.as_str(), before.requests, before.failed),
        ("s3://bucket", 1, 0)
    );
    server.set(Faults {
        error_every: 4,
        ..Faults::default()
    });
    (0..12).for_each(|object| table.read(Extent::whole(object), &mut Vec::new()).unwrap());
    let after = stores.traffic().remove(0);
    let sent = server.counts();
    assert_eq!(after.requests, sent.gets + sent.lists);
    assert_eq!(after.failed, sent.gets / 4);
    assert_eq!(after.received, 12_000);
}

#[test]
fn a_missing_object_is_no_failure_of_the_store() {
    let (server, stores) = server(PATIENCE);
    let mut table = table(&server, &stores, 1, 10);
    table.push_object(&store(&stores), "p/missing", None);
    let error = table.read(Extent::whole(1), &mut Vec::new()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotFound);
    assert_eq!(stores.outages(), []);
}

#[test]
fn reads_wait_for_a_store_that_is_away_and_go_on_when_it_is_back() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 8, 1000);
    server.set(Faults {
        refuse: Some((403, "ExpiredToken".into())),
        ..Faults::default()
    });
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| check_all(&table, 1000));
        while stores.outages().iter().all(|outage| outage.waiting == 0) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let outage = &stores.outages()[0];
        assert_eq!(outage.store, "s3://bucket");
        assert_eq!(outage.last_answer, "403 Forbidden (ExpiredToken)");
        assert!(!reads.is_finished());
        server.set(Faults::default());
        reads.join().unwrap();
    });
    assert_eq!(stores.outages(), []);
}

#[test]
fn credentials_that_are_refused_before_they_expire_are_asked_for_anew() {
    let server = ObjectServer::start().unwrap();
    let address = format!("http://127.0.0.1:{}", server.port());
    let stores = Stores::new(PATIENCE)
        .with_variable("AWS_ENDPOINT_URL", &address)
        .with_variable("AWS_METADATA_ENDPOINT", &address)
        .with_variable("AWS_CONFIG_FILE", "/absent")
        .with_variable("AWS_SHARED_CREDENTIALS_FILE", "/absent");
    let demand = |name: &str| {
        server.set_credentials(Credentials {
            key: format!("key-{name}"),
            secret: HIDDEN.into(),
            token: format!("token-{name}"),
            bucket: String::new(),
        });
    };
    demand("one");
    let table = table(&server, &stores, 2, 1000);
    check_all(&table, 1000);
    demand("two");
    check_all(&table, 1000);
    // A client that was made a moment ago is not made anew.
    std::thread::sleep(Duration::from_secs(2));
    demand("three");
    let mut listed = 0;
    let count = |_| {
        listed += 1;
        std::ops::ControlFlow::Continue(())
    };
    store(&stores).list("p", None, count).unwrap();
    assert_eq!(listed, 2);
}

/// A profile whose credentials a program prints, and how often it has run.
struct Profile {
    folder: tempfile::TempDir,
    address: String,
}

impl Profile {
    fn new(server: &ObjectServer) -> Profile {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let config = format!(
            "[default]\nregion = here\ncredential_process = echo x >> {path}/runs; cat {path}/printed\n"
        );
        fs::write(folder.path().join("config"), config).unwrap();
        Profile {
            folder,
            address: format!("http://127.0.0.1:{}", server.port()),
        }
    }

    fn stores(&self, patience: Duration) -> Stores {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        Stores::new(patience)
            .with_variable("AWS_ENDPOINT_URL", &self.address)
            .with_variable("AWS_CONFIG_FILE", &path("config"))
            .with_variable("AWS_SHARED_CREDENTIALS_FILE", &path("absent"))
    }

    /// Lets the server accept credentials of this name alone, which the program prints from now on.
    fn demand(&self, server: &ObjectServer, name: &str, expiration: &str) {
        let credentials = Credentials {
            key: format!("key-{name}"),
            secret: HIDDEN.into(),
            token: format!("token-{name}"),
            bucket: String::new(),
        };
        let printed = format!(
            "{{\"Version\": 1, \"AccessKeyId\": \"{}\", \"SecretAccessKey\": \"{HIDDEN}\", \"SessionToken\": \"{}\", \
             \"Expiration\": \"{expiration}\"}}",
            credentials.key, credentials.token
        );
        fs::write(self.folder.path().join("printed"), printed).unwrap();
        server.set_credentials(credentials);
    }

    fn runs(&self) -> usize {
        let runs = fs::read_to_string(self.folder.path().join("runs"));
        runs.map_or(0, |runs| runs.lines().count())
    }
}

#[test]
fn a_program_of_a_profile_gives_credentials_for_all_requests_and_anew_when_they_are_refused() {
    let server = ObjectServer::start().unwrap();
    let profile = Profile::new(&server);
    let stores = profile.stores(PATIENCE);
    profile.demand(&server, "one", "2100-01-01T00:00:00Z");
    let table = table(&server, &stores, 8, 1000);
    assert_eq!(
        store(&stores).credentials(),
        Some("the profile default, by its credential_process")
    );
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check_all(&table, 1000));
        }
    });
    assert_eq!(profile.runs(), 1);
    std::thread::sleep(Duration::from_secs(2));
    profile.demand(&server, "two", "2100-01-01T00:00:00Z");
    check_all(&table, 1000);
    assert_eq!(profile.runs(), 2);
}

#[test]
fn credentials_of_a_program_are_renewed_before_they_expire() {
    let server = ObjectServer::start().unwrap();
    let profile = Profile::new(&server);
    let stores = profile.stores(PATIENCE);
    let expiration =
        chrono::DateTime::<chrono::Utc>::from(SystemTime::now() + Duration::from_secs(6));
    profile.demand(&server, "one", &expiration.to_rfc3339());
    let table = table(&server, &stores, 2, 1000);
    check_all(&table, 1000);
    assert_eq!(profile.runs(), 1);
    std::thread::sleep(Duration::from_millis(4200));
    // The server still accepts the old ones, so that no refusal asks for new ones, and nobody waits for the program.
    while profile.runs() == 1 {
        check_all(&table, 1000);
    }
}

#[test]
fn a_program_that_fails_is_an_error_that_names_the_profile() {
    let server = ObjectServer::start().unwrap();
    let profile = Profile::new(&server);
    let stores = profile.stores(Duration::from_secs(1));
    profile.demand(&server, "one", HIDDEN);
    server.put(BUCKET, "", b"");
    let count = |_| std::ops::ControlFlow::Continue(());
    let error = store(&stores)
        .list("p", None, count)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the credential_process of the profile default has printed an Expiration")
            && !error.contains(HIDDEN),
        "{error}"
    );
}

#[test]
fn a_store_that_stays_away_is_one_error_after_the_patience() {
    let (server, stores) = server(Duration::from_secs(1));
    let table = table(&server, &stores, 2, 1000);
    server.set(Faults {
        refuse: Some((403, "AccessDenied".into())),
        ..Faults::default()
    });
    let error = table.read(Extent::whole(0), &mut Vec::new()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unavailable);
    assert!(
        error
            .to_string()
            .contains("s3://bucket has not answered for 1 s"),
        "{error}"
    );
    // The patience is over for the others as well.
    let began = Instant::now();
    table.read(Extent::whole(1), &mut Vec::new()).unwrap_err();
    assert!(began.elapsed() < Duration::from_millis(500));
}

#[test]
fn waits_end_with_the_process() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 1, 1000);
    server.set(Faults {
        latency: Duration::from_secs(3),
        down: true,
        ..Faults::default()
    });
    std::thread::scope(|scope| {
        let read = scope.spawn(|| table.read(Extent::whole(0), &mut Vec::new()).unwrap_err());
        std::thread::sleep(Duration::from_millis(200));
        let began = Instant::now();
        stores.stop();
        let error = read.join().unwrap();
        assert!(error.to_string().contains("given up"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn what_io_threads_do_is_counted() {
    let (server, stores) = server(PATIENCE);
    let table = table(&server, &stores, 4, 4 << 20);
    check_all(&table, 4 << 20);
    let each = stores.io_cpu_for(1 << 20);
    assert!(
        each > Duration::from_micros(20) && each < Duration::from_millis(50),
        "{each:?}"
    );
}

#[test]
fn an_object_of_a_web_server_is_read_without_a_listing() {
    let (server, stores) = server(PATIENCE);
    server.put(BUCKET, "a b.jpg", &bytes(5, 1000));
    let url = common::url(&format!(
        "http://127.0.0.1:{}/{BUCKET}/a%20b.jpg",
        server.port()
    ));
    let mut table = ObjectTable::local(std::path::Path::new(""));
    table.push_object(&stores.of(&url).unwrap(), &url.key, None);
    let mut read = Vec::new();
    table.read(Extent::whole(0), &mut read).unwrap();
    assert_eq!(read, bytes(5, 1000));
    assert_eq!(table.length(0).unwrap(), 1000);
    assert_eq!(table.path(0).to_str().unwrap(), url.to_string());
}
