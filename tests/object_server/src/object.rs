//! Objects, and the answers to requests for one.

use std::sync::Arc;

use crate::answer::Answer;
use crate::request::HttpRequest;

/// An object. It is small, because a bucket may have a million of them.
#[derive(Clone)]
pub(crate) struct StoredObject {
    pub(crate) bytes: Arc<[u8]>,
    /// Hash of the content, from which its ETag is made.
    pub(crate) hash: u64,
}

impl StoredObject {
    /// Returns the ETag, which looks like that of an upload in one part.
    pub(crate) fn etag(&self) -> String {
        format!("\"{:016x}{:016x}\"", self.hash, !self.hash)
    }

    pub(crate) fn answer(&self, request: &HttpRequest) -> Answer {
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

/// Hash of Fowler, Noll and Vo.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
