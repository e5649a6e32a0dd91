//! Stores, and agents with credentials, that answer without an end, or in a form that the library cannot take.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::store_variables::StoreVariables;
use coprep_storage::{ListEvent, RemoteStore, Stores, while_wanted};

const HEAD: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
const KEYS: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", "key"),
    ("AWS_SECRET_ACCESS_KEY", "SECRET"),
];

/// Serves requests by a function of their heads. Returns the address.
fn serve(
    answer: impl Fn(&str, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let (mut connection, answer) = (connection.unwrap(), answer.clone());
            std::thread::spawn(move || {
                let lines = BufReader::new(connection.try_clone().unwrap()).lines();
                let head = lines
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty());
                let head: Vec<String> = head.collect();
                // A client may hang up.
                let _ = answer(&head.join("\n"), &mut connection);
            });
        }
    });
    address
}

/// Serves requests by whole bodies.
fn serve_bodies(body: impl Fn(&str) -> String + Send + Sync + 'static) -> String {
    serve(move |head, to| {
        let body = body(head);
        write!(to, "{HEAD}Content-Length: {}\r\n\r\n{body}", body.len())
    })
}

fn store(url: &str, variables: &[(&str, &str)]) -> Result<Arc<RemoteStore>, String> {
    let owned = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let stores = Stores::default().of_job(&StoreVariables::from_iter(owned));
    let url = DatasetUrl::parse(url).unwrap().unwrap();
    stores.of(&url).map_err(|e| e.to_string())
}

fn list(store: &RemoteStore) -> Result<(), String> {
    let listed = store.list("p", None, |_| ControlFlow::Continue(()));
    listed.map_err(|e| e.to_string())
}

#[test]
fn a_listing_whose_tokens_come_round_without_a_key_ends_with_an_error() {
    for length in [1, 3] {
        let address = serve_bodies(move |head| {
            let token = head
                .split_once("continuation-token=t")
                .map_or(0, |(_, rest)| {
                    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
                    digits.unwrap().parse::<u64>().unwrap()
                });
            let next = (token + 1) % length;
            format!(
                "<ListBucketResult><IsTruncated>true</IsTruncated>\
                 <NextContinuationToken>t{next}</NextContinuationToken></ListBucketResult>"
            )
        });
        let at = [("AWS_ENDPOINT_URL", &*address)];
        let store = store("s3://bucket", &[&KEYS[..], &at].concat()).unwrap();
        let error = list(&store).unwrap_err();
        assert!(
            error.contains("the same continuation token comes again"),
            "{error}"
        );
        assert!(error.contains("ask whoever runs the store"), "{error}");
    }
}

/// Serves a dataset of the Hub, each page of which has a file if `has_files`. The pages after the first `pages` are
/// those before. Returns the address and the number of pages that were asked for.
fn hub(pages: u64, has_files: bool) -> (String, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let address = serve(move |head, to| {
        if !head.contains("/tree/") {
            return write!(to, "{HEAD}Content-Length: 14\r\n\r\n{{\"sha\":\"abc1\"}}");
        }
        let page = counted.fetch_add(1, Ordering::SeqCst);
        let file = format!("{{\"type\":\"file\",\"path\":\"p/{page}\",\"size\":1}}");
        let body = format!("[{}]", if has_files { file } else { String::new() });
        let (next, length) = ((page + 1) % pages, body.len());
        let link = format!("Link: <?cursor={next}>; rel=\"next\"\r\n");
        write!(to, "{HEAD}{link}Content-Length: {length}\r\n\r\n{body}")
    });
    (address, asked)
}

#[test]
fn a_listing_of_the_hub_whose_pages_come_round_ends_with_an_error() {
    for pages in [1, 3] {
        let (address, _) = hub(pages, false);
        let store = store("hf://datasets/owner/name", &[("HF_ENDPOINT", &address)]).unwrap();
        let error = list(&store).unwrap_err();
        assert!(error.contains("the same next page comes again"), "{error}");
        assert!(error.contains("ask whoever runs the store"), "{error}");
    }
}

#[test]
fn files_of_the_hub_are_given_on_page_by_page() {
    let (address, asked) = hub(u64::MAX, true);
    let store = store("hf://datasets/owner/name", &[("HF_ENDPOINT", &address)]).unwrap();
    let mut keys = Vec::new();
    let visit = |event| {
        if let ListEvent::Object(object) = event {
            keys.push(object.key);
        }
        if keys.len() == 3 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    store.list("p", None, visit).unwrap();
    assert_eq!(keys, ["p/0", "p/1", "p/2"]);
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[test]
fn a_page_that_drips_ends_with_the_last_job_that_waits_for_it() {
    let address = serve(|_, to| {
        write!(to, "{HEAD}\r\n<ListBucketResult>")?;
        // Without an end of the wait, the listing fails only after the last byte.
        for _ in 0..60 {
            std::thread::sleep(Duration::from_millis(500));
            write!(to, " ")?;
        }
        Ok(())
    });
    let at = [("AWS_ENDPOINT_URL", &*address)];
    let store = store("s3://bucket", &[&KEYS[..], &at].concat()).unwrap();
    let began = Instant::now();
    let is_wanted = move || began.elapsed() < Duration::from_secs(2);
    let listed = while_wanted(is_wanted, || list(&store)).unwrap_err();
    assert!(listed.contains("no job waits for it any more"), "{listed}");
    assert!(!is_wanted());
    let found = while_wanted(|| false, || store.look_up(&["p/a", "p/b"]));
    let error = found.unwrap_err().to_string();
    assert!(error.contains("no job waits for it any more"), "{error}");
}

#[test]
fn an_endless_answer_with_credentials_is_cut_off() {
    let agent = serve(|head, to| {
        if head.starts_with("PUT") {
            return write!(to, "{HEAD}Content-Length: 5\r\n\r\ntoken");
        }
        write!(to, "{HEAD}\r\n")?;
        (0..128).try_for_each(|_| to.write_all(&[b'x'; 1 << 20]))
    });
    let variables = [
        ("AWS_METADATA_ENDPOINT", &*agent),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("HOME", "/nowhere"),
    ];
    let error = list(&store("s3://bucket", &variables).unwrap()).unwrap_err();
    assert!(error.contains("what it answers is longer than"), "{error}");
}

#[test]
fn the_token_of_a_container_that_ends_with_a_line_feed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let name = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9"),
        (name, file.to_str().unwrap()),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
    ];
    std::fs::write(&file, "TOKEN\n").unwrap();
    let error = store("s3://bucket", &variables).err().unwrap();
    let expected = format!("{name} ends with a line feed");
    assert!(
        error.contains(&expected) && !error.contains("TOKEN\n"),
        "{error}"
    );
    std::fs::write(&file, "TOKEN").unwrap();
    store("s3://bucket", &variables).unwrap();
}

#[test]
fn an_address_without_a_scheme_is_refused_with_the_name_of_its_variable() {
    for (url, name) in [
        ("s3://bucket", "AWS_ENDPOINT_URL"),
        ("s3://bucket", "AWS_ENDPOINT_URL_S3"),
        ("s3://bucket", "AWS_ENDPOINT_URL_STS"),
        ("s3://bucket", "AWS_METADATA_ENDPOINT"),
        ("s3://bucket", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        ("gs://bucket", "GOOGLE_BASE_URL"),
        ("az://container", "AZURE_AUTHORITY_HOST"),
    ] {
        let variables = [(name, "127.0.0.1:9000"), ("HOME", "/nowhere")];
        let error = store(url, &variables).err().unwrap();
        let expected = format!("{name} is no address such as http://");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_setting_of_a_profile_that_cannot_be_used_is_told_with_the_name_of_the_profile() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    let config = file.to_str().unwrap();
    for (setting, why) in [
        (
            "endpoint_url = 127.0.0.1:9000",
            "endpoint_url is no address",
        ),
        ("region = a\u{7f}b", "region has characters"),
    ] {
        std::fs::write(&file, format!("[profile minio]\n{setting}\n")).unwrap();
        let variables = [
            ("AWS_PROFILE", "minio"),
            ("AWS_CONFIG_FILE", config),
            ("HOME", "/nowhere"),
        ];
        let error = store("s3://bucket", &variables).err().unwrap();
        assert!(
            error.contains(&format!("the profile minio: {why}")),
            "{error}"
        );
    }
}
