//! A server with objects, and stores that read from it.

use std::time::Duration;

use coprep_object_server::ObjectServer;
use coprep_protocol::dataset_url::DatasetUrl;
use coprep_storage::{RemoteStore, Stores};

/// The secret key, which no text may contain.
pub(crate) const HIDDEN: &str = "hidden-value";
pub(crate) const BUCKET: &str = "bucket";

/// Returns a server with an empty bucket, and stores whose endpoint it is.
pub(crate) fn server(patience: Duration) -> (ObjectServer, Stores) {
    let server = ObjectServer::start().unwrap();
    server.put(BUCKET, "", b"");
    let endpoint = format!("http://127.0.0.1:{}", server.port());
    let stores = Stores::new(patience)
        .with_variable("AWS_ENDPOINT_URL", &endpoint)
        .with_variable("AWS_ACCESS_KEY_ID", "key")
        .with_variable("AWS_SECRET_ACCESS_KEY", HIDDEN);
    (server, stores)
}

pub(crate) fn url(text: &str) -> DatasetUrl {
    DatasetUrl::parse(text).unwrap().unwrap()
}

pub(crate) fn store(stores: &Stores) -> std::sync::Arc<RemoteStore> {
    stores.of(&url(&format!("s3://{BUCKET}"))).unwrap()
}
