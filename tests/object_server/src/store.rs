//! The objects of a server, and the count of its requests.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::answer::Answer;
use crate::credentials::Credentials;
use crate::faults::Faults;
use crate::listing::{list, web_folder};
use crate::object::{StoredObject, fnv};
use crate::request::HttpRequest;

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
            let key = format!("{prefix}/{:04}/{:08}.jpg", number / 1000, number);
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
            if self.counts.lists == self.faults.failing_list {
                return Answer::error(400, "FailingList");
            }
            return Answer::new(200, list(objects, request, &self.faults).into_bytes());
        }
        if request.method == "PROPFIND" {
            return web_folder(objects, bucket, key, &self.faults);
        }
        let Some(object) = objects.get(key) else {
            return Answer::error(404, "NoSuchKey");
        };
        if self.faults.unreadable {
            return Answer::error(403, "AccessDenied");
        }
        let answer = object.answer(request);
        let is_content = matches!(answer.status, 200 | 206);
        if is_content && request.method != "HEAD" {
            self.counts.bytes += (answer.to - answer.from) as u64;
        }
        answer
    }
}
