//! One read of an object, or of a range of it, from its request to the last byte of its body.
//!
//! A read owns everything that it uses, so that it can run on an I/O thread from beginning to end. The thread that wants
//! the bytes sleeps meanwhile and is woken once. If it took part in the request, it would be woken for the head of the
//! answer and for each piece of the body, and each time another thread would lose its processor.

use std::ops::Range;
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};
use tokio::time::timeout;

use super::{ObjectRef, may_be_asked_for};
use crate::file::MOST_BYTES;
use crate::traffic::TrafficCounters;

/// A read that was not begun yet; see the module.
pub(super) struct Reading {
    pub(super) client: Arc<dyn ObjectStore>,
    pub(super) traffic: Arc<TrafficCounters>,
    pub(super) path: Path,
    pub(super) object: ObjectRef,
    pub(super) range: Option<Range<u64>>,
    /// The length that the bytes must have, or `None` if the answer tells it.
    pub(super) length: Option<u64>,
    /// Memory for the bytes, which grows if it is too small.
    pub(super) memory: Vec<u8>,
}

/// The reason why a read has brought nothing.
pub(super) enum Unread {
    /// The client of the store has failed.
    Failed(object_store::Error),
    /// The object is not the one that was listed. The text says how it differs.
    Changed(&'static str),
    /// The object is longer than [`MOST_BYTES`].
    TooLong,
    /// The body ended before its length.
    EndedEarly,
}

const OTHER_LENGTH: Unread = Unread::Changed("has another length than in its listing");

impl Reading {
    /// Reads, and returns the bytes.
    pub(super) async fn run(mut self) -> Result<Vec<u8>, Unread> {
        let got = self.ask(self.range.clone()).await?;
        let length = got.range.end - got.range.start;
        if length > MOST_BYTES {
            return Err(Unread::TooLong);
        }
        if self.length.is_some_and(|wanted| wanted != length) {
            return Err(OTHER_LENGTH);
        }
        let (range, etag) = (got.range.clone(), got.meta.e_tag.clone());
        let mut body = got.into_stream();
        let mut bytes = std::mem::take(&mut self.memory);
        bytes.clear();
        bytes.reserve(length as usize);
        let mut pause = self.traffic.stragglers.wait();
        loop {
            let next = match pause {
                Some(pause) => timeout(pause, body.try_next()).await,
                None => Ok(body.try_next().await),
            };
            let Ok(next) = next else {
                // Only once, because a body may be slow for good reasons.
                pause = None;
                let rest = range.start + bytes.len() as u64..range.end;
                if rest.is_empty() {
                    break;
                }
                if let Some(got) = self.rest(rest, etag.as_deref()).await {
                    body = got.into_stream();
                }
                continue;
            };
            let Some(piece) = next.map_err(Unread::Failed)? else {
                break;
            };
            self.traffic.count_received(piece.len() as u64);
            // The length is checked at each piece, because a body without an end must not fill the memory.
            if (bytes.len() + piece.len()) as u64 > length {
                return Err(OTHER_LENGTH);
            }
            bytes.extend_from_slice(&piece);
        }
        if bytes.len() as u64 == length {
            Ok(bytes)
        } else {
            Err(Unread::EndedEarly)
        }
    }

    /// Asks for a range, or for the whole object, and checks that the object is the one that was listed.
    async fn ask(&self, range: Option<Range<u64>>) -> Result<GetResult, Unread> {
        let options = GetOptions {
            if_match: self
                .object
                .etag
                .clone()
                .filter(|etag| may_be_asked_for(etag)),
            range: range.map(GetRange::Bounded),
            ..GetOptions::default()
        };
        let got = self.client.get_opts(&self.path, options).await;
        let got = got.map_err(Unread::Failed)?;
        self.check(&got.meta)?;
        Ok(got)
    }

    /// Asks for a range of an object whose other bytes were read already, from an object with this ETag. Returns `None` if
    /// that brings nothing: the first answer may still go on.
    async fn rest(&self, range: Range<u64>, etag: Option<&str>) -> Option<GetResult> {
        // Without an ETag nobody could tell whether the object was replaced meanwhile.
        if etag.is_none() || !self.traffic.stragglers.may_send_second() {
            return None;
        }
        let got = self.ask(Some(range.clone())).await.ok()?;
        (got.range == range && got.meta.e_tag.as_deref() == etag).then_some(got)
    }

    /// Checks that an object is the one that was listed.
    fn check(&self, found: &ObjectMeta) -> Result<(), Unread> {
        if self.object.size.is_some_and(|size| size != found.size) {
            return Err(OTHER_LENGTH);
        }
        let is_other = |etag: &String| found.e_tag.as_ref().is_some_and(|now| now != etag);
        if self.object.etag.as_ref().is_some_and(is_other) {
            return Err(Unread::Changed("was replaced since it was listed"));
        }
        Ok(())
    }
}
