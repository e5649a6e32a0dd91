//! The objects of a server, and the count of its requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use crate::answer::Answer;
use crate::credentials::Credentials;
use crate::faults::Faults;
use crate::request::HttpRequest;

/// Most keys of one page of a listing.
const PAGE: usize = 1000;

/// Number of requests that a server got.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestCounts {
    /// Requests for a page of a listing.
    pub lists: u64,
    /// Requests for an object.
    pub gets: u64,
    /// Requests for an object that named the ETag that it must have.
    pub matched: u64,
    /// Requests for the length of an object.
    pub heads: u64,
    /// Bytes of objects in the answers to requests for them, whether their readers took all of them or not.
    pub bytes: u64,
}

/// An object. It is small, because a bucket may have a million of them.
#[derive(Clone)]
struct StoredObject {
    bytes: Arc<[u8]>,
    /// Hash of the content, from which its ETag is made.
    hash: u64,
}

/// The state of a server.
#[derive(Default)]
pub(crate) struct ObjectStoreState {
    /// Objects by bucket and key.
    buckets: BTreeMap<String, BTreeMap<String, StoredObject>>,
    pub(crate) faults: Faults,
    pub(crate) counts: RequestCounts,
    /// Credentials that requests may use, or none if any will do.
    pub(crate) credentials: Vec<Credentials>,
}

impl ObjectStoreState {
    pub(crate) fn put(&mut self, bucket: &str, key: &str, bytes: &[u8]) {
        let object = StoredObject {
            bytes: bytes.into(),
            hash: fnv(bytes),
        };
        let objects = self.buckets.entry(bucket.to_owned()).or_default();
        if !key.is_empty() {
            objects.insert(key.to_owned(), object);
        }
    }

    /// Puts `count` objects that share one content, in as many folders as there are thousands of them. They have
    /// different ETags, as if each had been uploaded by itself.
    pub(crate) fn fill(&mut self, bucket: &str, prefix: &str, count: u64) {
        let bytes: Arc<[u8]> = Arc::from(&b"not an image"[..]);
        let objects = self.buckets.entry(bucket.to_owned()).or_default();
        objects.extend((0..count).map(|number| {
            let key = format!("{prefix}/{:04}/{:08}.jpg", number / PAGE as u64, number);
            let hash = fnv(&number.to_le_bytes());
            let bytes = bytes.clone();
            (key, StoredObject { bytes, hash })
        }));
    }

    pub(crate) fn delete(&mut self, bucket: &str, key: &str) {
        if let Some(objects) = self.buckets.get_mut(bucket) {
            objects.remove(key);
        }
    }

    /// Changes all bits of a byte of an object, whose ETag stays.
    pub(crate) fn flip(&mut self, bucket: &str, key: &str, at: usize) {
        let objects = self.buckets.get_mut(bucket);
        if let Some(object) = objects.and_then(|objects| objects.get_mut(key)) {
            let mut bytes = object.bytes.to_vec();
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 0xff;
            }
            object.bytes = bytes.into();
        }
    }

    /// Puts all files below a folder.
    pub(crate) fn load(&mut self, bucket: &str, prefix: &str, folder: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let key = if prefix.is_empty() {
                name
            } else {
                format!("{prefix}/{name}")
            };
            if path.is_dir() {
                self.load(bucket, &key, &path)?;
            } else {
                self.put(bucket, &key, &std::fs::read(&path)?);
            }
        }
        Ok(())
    }

    /// Answers a request for an object or a listing.
    pub(crate) fn answer(&mut self, request: &HttpRequest) -> Answer {
        let (bucket, key) = request.object();
        if request.query.get("list-type").is_some() {
            self.counts.lists += 1;
        }
        let Some(objects) = self.buckets.get(bucket) else {
            return Answer::error(404, "NoSuchBucket");
        };
        if request.query.get("list-type").is_some() {
            return Answer::new(200, list(objects, request).into_bytes());
        }
        let Some(object) = objects.get(key) else {
            return Answer::error(404, "NoSuchKey");
        };
        let answer = object.answer(request);
        let is_content = matches!(answer.status, 200 | 206);
        if is_content && request.method != "HEAD" {
            self.counts.bytes += (answer.to - answer.from) as u64;
        }
        answer
    }
}

impl StoredObject {
    /// Returns the ETag, which looks like that of an upload in one part.
    fn etag(&self) -> String {
        format!("\"{:016x}{:016x}\"", self.hash, !self.hash)
    }

    fn answer(&self, request: &HttpRequest) -> Answer {
        if request
            .header("if-match")
            .is_some_and(|etag| etag != self.etag())
        {
            return Answer::error(412, "PreconditionFailed");
        }
        let length = self.bytes.len();
        let mut answer = Answer::new(200, self.bytes.clone());
        answer.headers.push(("ETag", self.etag()));
        if let Some((first, last)) = request.range() {
            if first >= length as u64 {
                return Answer::error(416, "InvalidRange");
            }
            let last = last.min(length as u64 - 1);
            (answer.from, answer.to) = (first as usize, last as usize + 1);
            answer.status = 206;
            answer
                .headers
                .push(("Content-Range", format!("bytes {first}-{last}/{length}")));
        }
        answer
    }
}

/// Returns a page of a listing, as XML.
fn list(objects: &BTreeMap<String, StoredObject>, request: &HttpRequest) -> String {
    let query = &request.query;
    let prefix = query.get("prefix").unwrap_or_default();
    // The token is the last key of the page before.
    let after = query
        .get("continuation-token")
        .or(query.get("start-after"))
        .unwrap_or_default();
    let most = query
        .get("max-keys")
        .and_then(|n| n.parse().ok())
        .unwrap_or(PAGE);
    // Keys are in order, so a page of a large bucket is found without a look at the pages before it.
    let from = if after < prefix {
        Bound::Included(prefix)
    } else {
        Bound::Excluded(after)
    };
    let mut found = objects
        .range::<str, _>((from, Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(prefix));
    let page: Vec<_> = found.by_ref().take(most).collect();
    let is_truncated = found.next().is_some();
    let mut xml = format!(
        "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>"
    );
    if let Some((last, _)) = page.last().filter(|_| is_truncated) {
        let _ = write!(
            xml,
            "<NextContinuationToken>{}</NextContinuationToken>",
            escaped(last)
        );
    }
    for (key, object) in page {
        let _ = write!(
            xml,
            "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{}</ETag>\
             <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
            escaped(key),
            escaped(&object.etag()),
            object.bytes.len(),
        );
    }
    xml.push_str("</ListBucketResult>");
    xml
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

/// Hash of Fowler, Noll and Vo.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
