//! The checks of a remote store: whether it is reached, by which credentials, and how fast it is.

use std::ops::ControlFlow;
use std::time::Duration;

use coprep_protocol::dataset_url::DatasetUrl;
use coprep_protocol::size::human;
use coprep_storage::{Error, ListEvent, ListedObject, RemoteStore, Stores};

use super::{Finding, failure, ok, warning};

/// Longest wait for a store. A person waits for it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Latency from which one read is slower than preparing a hundred images.
const SLOW: Duration = Duration::from_millis(200);

/// Checks the store of a URL, with the credentials of this process's environment.
pub(super) fn check(url: &DatasetUrl) -> Vec<Finding> {
    let name = url.store();
    let store = match Stores::new(PATIENCE).of(url) {
        Ok(store) => store,
        Err(e) => return vec![failed(&name, &e)],
    };
    let credentials = format!("{name} credentials");
    let found = store.credentials().map_or_else(
        || ok(&credentials, "none are needed"),
        |source| ok(&credentials, format!("by {source}")),
    );
    let object = first_object(&store, url);
    let reached = reached(&store, &object);
    let mut findings = vec![reached, found];
    findings.extend(match object {
        Ok(Some(object)) => vec![listed(&store, url, &object), read(&store, &object)],
        Ok(None) => vec![failure(
            format!("{name} listing"),
            format!("there is nothing in {url}"),
            "check the bucket and the folder in the URL",
        )],
        Err(e) => vec![failed(&format!("{name} listing"), &e)],
    });
    findings
}

/// Returns the first object below a URL that has any bytes. A web server is not listed: its URL is that of an object.
fn first_object(store: &RemoteStore, url: &DatasetUrl) -> Result<Option<ListedObject>, Error> {
    if !store.is_listable() {
        return store.find(&url.key).map(Some);
    }
    let mut first = None;
    store.list(&url.key, None, |event| match event {
        ListEvent::Object(object) if object.size > 0 => {
            first = Some(object);
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })?;
    Ok(first)
}

/// Tells whether anything answers at the address of the store, whatever the answer is.
fn reached<T>(store: &RemoteStore, asked: &Result<T, Error>) -> Finding {
    let endpoint = store.endpoint();
    match asked {
        Err(e) if store.traffic().answered == 0 => failure(
            store.name(),
            format!("{endpoint} does not answer: {e}"),
            "check the network, the address and the proxy of this shell",
        ),
        _ => ok(store.name(), format!("{endpoint} answers")),
    }
}

fn listed(store: &RemoteStore, url: &DatasetUrl, object: &ListedObject) -> Finding {
    let what = if store.is_listable() {
        format!("works; the first object of {url} is {}", object.key)
    } else {
        "a web server is not listed: give coprep.Files its URLs".into()
    };
    ok(format!("{} listing", store.name()), what)
}

fn read(store: &RemoteStore, object: &ListedObject) -> Finding {
    let check = format!("{} reading", store.name());
    match store.time_reads(object) {
        Ok(time) => {
            let bytes = human(time.bytes);
            let rate = human(time.bytes_per_s() as u64);
            let latency = time.latency.as_secs_f64() * 1e3;
            let found =
                format!("a GET takes {latency:.1} ms; {bytes} of one object come at {rate}/s");
            if time.latency >= SLOW {
                let remedy = "many reads at a time make up for it; coprep warm and a cache spare them in later epochs";
                return warning(check, found, remedy);
            }
            ok(check, found)
        }
        Err(e) => failed(&check, &e),
    }
}

/// Returns the finding of a check that ended by an error, which names its remedy.
fn failed(check: &str, error: &Error) -> Finding {
    failure(
        check,
        error.to_string(),
        "jobs that read from this store would get this error",
    )
}
