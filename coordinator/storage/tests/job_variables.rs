//! Stores that the variables of a job describe, in a process whose environment describes others.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use coprep_object_server::{Credentials, ObjectServer};
use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::store_variables::StoreVariables;
use coprep_storage::{RemoteStore, Stores};

/// Variable with the port of the server, in the process that has another environment.
const PORT: &str = "TEST_SERVER_PORT";
const OF_PROCESS: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "key-of-process"),
    ("AWS_SECRET_ACCESS_KEY", "SECRET-of-process"),
    ("AWS_SESSION_TOKEN", "token-of-process"),
    ("AWS_REGION", "region-of-process"),
];
const OF_JOB: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", "key-of-job"),
    ("AWS_SECRET_ACCESS_KEY", "SECRET-of-job"),
    ("AWS_SESSION_TOKEN", "token-of-job"),
];

fn store(stores: &Stores) -> Arc<RemoteStore> {
    let url = DatasetUrl::parse("s3://bucket").unwrap().unwrap();
    stores.of(&url).unwrap()
}

fn list(stores: &Stores) -> Result<(), String> {
    let listed = store(stores).list("p", None, |_| ControlFlow::Continue(()));
    listed.map_err(|e| e.to_string())
}

fn variables(all: &[(&str, &str)]) -> StoreVariables {
    let owned = all
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    owned.collect()
}

#[test]
fn the_environment_of_the_process_counts_for_nothing() {
    let server = ObjectServer::start().unwrap();
    server.put("bucket", "p/a", b"content");
    server.set_credentials(Credentials {
        key: "key-of-job".into(),
        secret: "SECRET-of-job".into(),
        token: "token-of-job".into(),
        bucket: String::new(),
    });
    // A test cannot change its own environment, since other threads may be reading it.
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "in_a_process_with_another_environment"])
        .args(["--ignored", "--nocapture"])
        .envs(OF_PROCESS)
        .env(PORT, server.port().to_string())
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "the test above runs it, with another environment"]
fn in_a_process_with_another_environment() {
    let endpoint = format!("http://127.0.0.1:{}", std::env::var(PORT).unwrap());
    let at_server = ("AWS_ENDPOINT_URL", &*endpoint);
    let process = Stores::default().with_variable("AWS_ENDPOINT_URL", &endpoint);
    assert!(list(&process).unwrap_err().contains("403 Forbidden"));

    let job = process.of_job(&variables(&[&OF_JOB[..], &[at_server]].concat()));
    list(&job).unwrap();
    // Both have a store of this name, each with requests of its own.
    let failed = |stores: &Stores| stores.traffic().iter().map(|t| t.failed).sum::<u64>();
    assert!(failed(&process) > 0 && failed(&job) == 0);
    assert_eq!(process.traffic()[0].store, job.traffic()[0].store);

    // Not even the address of the process is used, or its region.
    let job = process.of_job(&variables(&OF_JOB));
    assert_eq!(store(&job).endpoint(), "Amazon S3 in us-east-1");
    let without_keys = process.of_job(&variables(&[("HOME", "/nowhere"), at_server]));
    assert_eq!(
        store(&without_keys).credentials(),
        Some("the role of this machine, as no variable names any")
    );
    let shown = format!("{:?}", store(&job));
    assert!(
        shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("SECRET-of"),
        "{shown}"
    );
}

#[test]
fn a_file_with_credentials_that_is_a_pipe_or_a_device_is_an_error_that_names_the_variable() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let absent = folder.path().join("absent").display().to_string();
    let process = Stores::default();
    for (url, name) in [
        ("s3://bucket", "AWS_CONFIG_FILE"),
        ("s3://bucket", "AWS_SHARED_CREDENTIALS_FILE"),
        ("s3://bucket", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ("gs://bucket", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://bucket", "AZURE_FEDERATED_TOKEN_FILE"),
        ("hf://datasets/owner/name", "HF_TOKEN_PATH"),
    ] {
        let url = DatasetUrl::parse(url).unwrap().unwrap();
        for (path, kind) in [
            (pipe.to_str().unwrap(), "it is a named pipe"),
            ("/dev/zero", "it is a character device"),
        ] {
            let job = process.of_job(&variables(&[("HOME", &absent), (name, path)]));
            let error = job.of(&url).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(path), "{error}");
            assert!(error.contains(kind), "{error}");
        }
    }
}
