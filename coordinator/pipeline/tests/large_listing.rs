//! Opening a bucket of a million objects: few requests, and little memory for each sample.

use std::time::Duration;

use coprep_object_server::ObjectServer;
use coprep_pipeline::Dataset;
use coprep_protocol::spec::Source;
use coprep_storage::Stores;

const OBJECTS: u64 = 1_000_000;
/// Length of the objects' names within their folders, such as `00000042.jpg`.
const NAME: usize = 12;

#[test]
fn a_million_objects_take_a_thousand_requests_and_forty_bytes_each() {
    let server = ObjectServer::start().unwrap();
    server.fill("bucket", "many/train", OBJECTS);
    let stores = Stores::new(Duration::from_secs(600))
        .with_variable(
            "AWS_ENDPOINT_URL",
            &format!("http://127.0.0.1:{}", server.port()),
        )
        .with_variable("AWS_ACCESS_KEY_ID", "key")
        .with_variable("AWS_SECRET_ACCESS_KEY", "secret");
    let source = Source::ImageFolder {
        root: "s3://bucket/many/train".into(),
    };
    let dataset = Dataset::open_in(&source, &stores, &mut |_| true).unwrap();

    assert_eq!(u64::from(dataset.len()), OBJECTS);
    assert_eq!(dataset.classes().len(), 1000);
    let last = dataset.len() - 1;
    assert_eq!(dataset.label(last), 999);
    let path = dataset.path(last);
    assert!(path.ends_with("many/train/0999/00999999.jpg"), "{path:?}");
    assert_eq!(dataset.listed_len(last), Some(12));
    let counts = server.counts();
    assert!(counts.lists <= 1010, "{counts:?}");
    assert_eq!((counts.gets, counts.heads), (0, 0));
    let each = dataset.memory_bytes() as f64 / OBJECTS as f64;
    println!("{} listings, {each:.2} bytes for each sample", counts.lists);
    // Label, end of the name, size and ETag take 26 bytes.
    assert!(
        each > NAME as f64 && each <= 40.0,
        "{each} bytes for each sample"
    );
}
