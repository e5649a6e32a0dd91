//! One bucket, container, HTTP server, or dataset of the Hugging Face Hub.
//!
//! Two loops try a request again. The library's own is short: it resumes a body that broke off, and repeats a request
//! with the same credentials. Above it, [`RemoteStore::patiently`] repeats the whole request, with new credentials, for
//! as long as the patience lasts.

mod detached;
mod listing;
mod parts;
mod reading;
mod renewal;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_protocol::dataset_url::{DatasetUrl, UrlScheme};
use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{HeaderValue, ObjectStoreExt};

pub use self::detached::{DetachedRead, ReadBytes};
pub use self::listing::ListEvent;
use self::listing::ListingOrder;
use self::reading::{Reading, Unread};
use self::renewal::RenewableClient;

use crate::answer::{AnswerMeaning, FailedAnswer, interpret};
use crate::client::{IN_JOB, endpoint, environment, may_list_in_order, named_credentials};
use crate::error::{Error, ErrorKind, changed, too_long};
use crate::file::MOST_BYTES;
use crate::health::{OutageReport, StoreHealth, Tries};
use crate::io_runtime::{Ended, IoRuntime};
use crate::job_credentials::UsableCredentials;
use crate::target::ReadTarget;
use crate::traffic::{StoreTraffic, TrafficCounters};
use crate::variables::Variables;

/// Time for which a listing is tried again, and the first pause. A person waits for it.
const LISTING_PATIENCE: Duration = Duration::from_secs(5);
const FIRST_LISTING_PAUSE: Duration = Duration::from_millis(500);

/// Bytes that no object of any store has. A store may claim more, and sums of lengths must not overflow.
const MOST_LISTED: u64 = 1 << 48;

/// A bucket, container, HTTP server, or dataset of the Hugging Face Hub.
#[derive(Debug)]
pub struct RemoteStore {
    name: String,
    scheme: UrlScheme,
    client: RenewableClient,
    /// The variable or profile that names the credentials. `None` if a metadata server has to give some, or if none are
    /// needed.
    named_credentials: Option<String>,
    endpoint: String,
    io: Arc<IoRuntime>,
    health: Arc<StoreHealth>,
    traffic: Arc<TrafficCounters>,
    patience: Duration,
    order: ListingOrder,
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Key of the object, as in a URL of the store.
    pub key: String,
    /// Length in bytes.
    pub size: u64,
    /// Identity of the content, as the store gives it.
    pub etag: Option<String>,
}

/// An object to read, and what its listing said of it.
#[derive(Clone, Debug)]
pub(crate) struct ObjectRef {
    pub(crate) key: String,
    pub(crate) size: Option<u64>,
    pub(crate) etag: Option<String>,
}

/// The end of a failed try.
enum FailedTry {
    /// The store has failed, and may answer later.
    Store(FailedAnswer),
    /// The object cannot be read, or the read was given up.
    Final(Error),
}

/// The tries of a request while a dataset is opened, for which a person waits.
struct OpeningTries {
    began: Instant,
    pause: Duration,
}

impl OpeningTries {
    fn begin() -> Self {
        OpeningTries {
            began: Instant::now(),
            pause: FIRST_LISTING_PAUSE,
        }
    }

    /// Returns the time until the next try after this answer, or `None` if it was the last try.
    fn pause_after(
        &mut self,
        store: &RemoteStore,
        given: Option<&Arc<UsableCredentials>>,
        answer: &FailedAnswer,
    ) -> Option<Duration> {
        if self.began.elapsed() + self.pause >= LISTING_PATIENCE {
            return None;
        }
        if store.has_new_credentials(answer, given) {
            return Some(Duration::ZERO);
        }
        let pause = self.pause;
        self.pause *= 2;
        (!answer.meaning.is_lasting()).then_some(pause)
    }
}

impl RemoteStore {
    /// Opens the store of a URL, as the variables describe it. No request is made.
    pub(crate) fn open(
        url: &DatasetUrl,
        variables: &Variables,
        io: Arc<IoRuntime>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let traffic = Arc::new(TrafficCounters::default());
        let client = RenewableClient::new(url, variables, &traffic).map_err(|e| {
            let what = format!("{} cannot be opened", url.store());
            Error::new(ErrorKind::Unavailable, what)
                .because(interpret(&e).text)
                .with_remedy(environment(url.scheme))
        })?;
        Ok(RemoteStore {
            name: url.store(),
            scheme: url.scheme,
            client,
            named_credentials: named_credentials(url.scheme, variables),
            endpoint: endpoint(url, variables),
            io,
            health: Arc::default(),
            traffic,
            patience,
            order: ListingOrder::new(!may_list_in_order(url, variables)),
        })
    }

    /// Returns the name of the store, such as `s3://bucket`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL of a key.
    #[must_use]
    pub fn url(&self, key: &str) -> String {
        format!("{}/{key}", self.name)
    }

    /// Returns the source of the credentials, in words, or `None` if none are needed. Never the credentials themselves.
    #[must_use]
    pub fn credentials(&self) -> Option<&str> {
        let unnamed = match self.scheme {
            UrlScheme::Http | UrlScheme::Https => return None,
            UrlScheme::Hf => "no token, which public datasets do not need",
            _ => "the role of this machine, as no variable names any",
        };
        Some(self.named_credentials.as_deref().unwrap_or(unnamed))
    }

    /// Returns the address of the store, for people.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn outage(&self) -> Option<OutageReport> {
        self.health.report(&self.name)
    }

    /// Returns the numbers of requests so far.
    #[must_use]
    pub fn traffic(&self) -> StoreTraffic {
        self.traffic.of(&self.name)
    }

    pub(crate) fn stop(&self) {
        self.health.stop();
    }

    /// Returns the CPU time that the I/O threads spend on `bytes` bytes.
    pub(crate) fn io_cpu_for(&self, bytes: u64) -> Duration {
        self.io.cpu_for(bytes)
    }

    /// Returns `true` if a listing tells the lengths of single objects. Plain HTTP servers cannot be listed.
    #[must_use]
    pub fn is_listable(&self) -> bool {
        !self.scheme.is_http()
    }

    /// Reads a range of an object, or all of it, into memory. Waits while the store does not answer.
    pub(crate) fn read(
        &self,
        object: &ObjectRef,
        range: Option<Range<u64>>,
        target: &mut ReadTarget<'_>,
    ) -> Result<(), Error> {
        let path = self.path(&object.key)?;
        self.patiently(object, || {
            let reading = self.lent(&path, object, range.clone(), target);
            let read = self.io.run(reading.run());
            let read = read.map_err(|ended| FailedTry::Final(self.ended(ended)))?;
            self.take(object, read, target)
        })
    }

    /// Asks for the length and the ETag of one object. Does not wait for a store that does not answer.
    ///
    /// # Errors
    /// If there is no such object, or the store does not answer.
    pub fn find(&self, key: &str) -> Result<ListedObject, Error> {
        let path = self.path(key)?;
        let object = ObjectRef {
            key: key.to_owned(),
            size: None,
            etag: None,
        };
        let head = self.io.block_on(self.client.get().head(&path));
        let meta = head.map_err(|ended| self.ended(ended))?.map_err(|e| {
            let failed = self.failed(&object, interpret(&e));
            self.given_up(&object, failed)
        })?;
        Ok(ListedObject {
            key: object.key,
            size: meta.size.min(MOST_LISTED),
            etag: meta.e_tag.and_then(quoted),
        })
    }

    /// Returns the length of an object, by a request.
    pub(crate) fn measure(&self, object: &ObjectRef) -> Result<u64, Error> {
        let path = self.path(&object.key)?;
        self.patiently(object, || {
            let head = self.io.block_on(self.client.get().head(&path));
            let head = head.map_err(|ended| FailedTry::Final(self.ended(ended)))?;
            head.map(|meta| meta.size.min(MOST_LISTED))
                .map_err(|e| self.failed(object, interpret(&e)))
        })
    }

    /// Reads the first bytes of several objects at once, `most` of each. Gives up after a few seconds without an answer.
    pub(crate) fn heads(&self, objects: &[ObjectRef], most: u64) -> Vec<Result<Vec<u8>, Error>> {
        let heads = objects.iter().map(|object| self.head(object, most));
        let all = self.io.block_on(join_all(heads));
        all.unwrap_or_else(|ended| objects.iter().map(|_| Err(self.ended(ended))).collect())
    }

    async fn head(&self, object: &ObjectRef, most: u64) -> Result<Vec<u8>, Error> {
        let path = self.path(&object.key)?;
        let end = object.size.map_or(most, |size| size.min(most));
        let mut bytes = Vec::new();
        // An empty range is not a range in HTTP.
        if end == 0 {
            return Ok(bytes);
        }
        let mut target = ReadTarget::growing(&mut bytes);
        let range = Some(0..end);
        let mut read = self.read_for_seconds(object, range, &mut target).await;
        if let Err(FailedTry::Store(answer)) = &read
            && answer.meaning == AnswerMeaning::NoRanges
        {
            read = self.read_once(&path, object, None, &mut target).await;
        }
        match read {
            Ok(()) => {
                bytes.truncate(end as usize);
                Ok(bytes)
            }
            Err(failed) => Err(self.given_up(object, failed)),
        }
    }

    /// Tries until the store answers or the patience is over.
    fn patiently<T>(
        &self,
        object: &ObjectRef,
        mut attempt: impl FnMut() -> Result<T, FailedTry>,
    ) -> Result<T, Error> {
        let mut tries = Tries::default();
        loop {
            let given = self.client.given_credentials();
            let answer = match attempt() {
                Ok(done) => {
                    self.health.answered();
                    return Ok(done);
                }
                Err(FailedTry::Final(error)) => {
                    self.health.answered();
                    return Err(error);
                }
                Err(FailedTry::Store(answer)) => answer,
            };
            if let Err(lasted) = self.health.wait(&mut tries, &answer.text, self.patience) {
                let what = format!(
                    "{} has not answered for {} s, and {} cannot be read",
                    self.name,
                    lasted.as_secs(),
                    self.url(&object.key),
                );
                return Err(self.unavailable(what, &answer));
            }
            // After the pause, so that the credentials are as new as they can be.
            self.has_new_credentials(&answer, given.as_ref());
        }
    }

    /// Takes new credentials if the answer refuses the present ones. `given` are those that jobs had given before the
    /// request. Returns `false` if they stay the same.
    fn has_new_credentials(
        &self,
        answer: &FailedAnswer,
        given: Option<&Arc<UsableCredentials>>,
    ) -> bool {
        // The Hub does not tell a private dataset from one that does not exist.
        let may_be_refused = answer.meaning == AnswerMeaning::NoBucket
            && self.scheme == UrlScheme::Hf
            && self.client.is_given_credentials();
        let is_refused = answer.meaning == AnswerMeaning::Refused || may_be_refused;
        is_refused && self.client.renew(given)
    }

    async fn read_once(
        &self,
        path: &Path,
        object: &ObjectRef,
        range: Option<Range<u64>>,
        target: &mut ReadTarget<'_>,
    ) -> Result<(), FailedTry> {
        let reading = self.lent(path, object, range, target);
        self.take(object, reading.run().await, target)
    }

    /// Returns a read that may run on an I/O thread, with the memory of `target`.
    fn lent(
        &self,
        path: &Path,
        object: &ObjectRef,
        range: Option<Range<u64>>,
        target: &mut ReadTarget<'_>,
    ) -> Reading {
        Reading {
            memory: target.lend(),
            ..self.reading(path, object.clone(), range, target.length())
        }
    }

    /// Returns a read that may run on an I/O thread. `length` is the length that the bytes must have, or `None` if the
    /// answer tells it.
    fn reading(
        &self,
        path: &Path,
        object: ObjectRef,
        range: Option<Range<u64>>,
        length: Option<u64>,
    ) -> Reading {
        Reading {
            client: self.client.get(),
            traffic: self.traffic.clone(),
            path: path.clone(),
            object,
            range,
            length,
            memory: Vec::new(),
        }
    }

    /// Takes the result of a read.
    fn take(
        &self,
        object: &ObjectRef,
        read: Result<Vec<u8>, Unread>,
        target: &mut ReadTarget<'_>,
    ) -> Result<(), FailedTry> {
        let bytes = read.map_err(|unread| self.unread(object, unread))?;
        self.io.received().count(bytes.len() as u64);
        target.fill(bytes);
        Ok(())
    }

    fn unread(&self, object: &ObjectRef, unread: Unread) -> FailedTry {
        match unread {
            Unread::Failed(e) => self.failed(object, interpret(&e)),
            Unread::Changed(how) => FailedTry::Final(self.changed(object, how)),
            Unread::TooLong => FailedTry::Final(too_long(self.url(&object.key), MOST_BYTES)),
            Unread::EndedEarly => FailedTry::Store(FailedAnswer {
                meaning: AnswerMeaning::Passing,
                text: "the body of an answer ended early".into(),
            }),
        }
    }

    fn failed(&self, object: &ObjectRef, answer: FailedAnswer) -> FailedTry {
        let url = || self.url(&object.key);
        match answer.meaning {
            // A listing has told its size, so it was there.
            AnswerMeaning::NoObject if object.size.is_some() => {
                FailedTry::Final(self.changed(object, "was deleted since it was listed"))
            }
            AnswerMeaning::NoObject => FailedTry::Final(
                Error::new(ErrorKind::NotFound, format!("{} does not exist", url()))
                    .because(answer.text),
            ),
            AnswerMeaning::OtherObject => {
                FailedTry::Final(self.changed(object, "was replaced since it was listed"))
            }
            AnswerMeaning::BadKey => FailedTry::Final(
                Error::new(ErrorKind::Invalid, format!("{} cannot be asked for", url()))
                    .because(answer.text),
            ),
            _ => FailedTry::Store(answer),
        }
    }

    /// Returns the error of a try after which there is no other one.
    fn given_up(&self, object: &ObjectRef, failed: FailedTry) -> Error {
        match failed {
            FailedTry::Final(error) => error,
            FailedTry::Store(answer) => {
                self.unavailable(format!("cannot read {}", self.url(&object.key)), &answer)
            }
        }
    }

    fn changed(&self, object: &ObjectRef, how: &str) -> Error {
        changed(self.url(&object.key), how)
    }

    /// Returns the error of a read that has no result. A panic says nothing about the object.
    fn ended(&self, ended: Ended) -> Error {
        let name = &self.name;
        match ended {
            Ended::Stopped => Error::new(
                ErrorKind::Unavailable,
                format!("a read from {name} was given up, because the process ends"),
            ),
            Ended::Unwanted => Error::new(
                ErrorKind::Unavailable,
                format!("a read from {name} was given up, because no job waits for it any more"),
            ),
            Ended::Panicked => Error::new(
                ErrorKind::Unavailable,
                format!("a read from {name} panicked, a defect of coprep"),
            )
            .with_remedy("report it with the coordinator's log"),
        }
    }

    /// Returns the error of a store that has failed. `what` is the operation that failed.
    fn unavailable(&self, what: String, answer: &FailedAnswer) -> Error {
        let store = &self.name;
        let remedy = match answer.meaning {
            AnswerMeaning::NoBucket if self.scheme == UrlScheme::Hf => format!(
                "check the name of the dataset and the revision; if it is private, {}",
                environment(self.scheme)
            ),
            AnswerMeaning::NoBucket => format!("check the name of the bucket {store}"),
            AnswerMeaning::OtherRegion => {
                format!("{store} lies in another region: name it in AWS_REGION {IN_JOB}")
            }
            AnswerMeaning::SentOn => format!(
                "{store} sends on to another address, where credentials must not go: check the address: {}",
                environment(self.scheme)
            ),
            AnswerMeaning::Refused | AnswerMeaning::NoneGiven
                if self.client.is_given_credentials() =>
            {
                "check what the job's credential_provider returns, and whether it may read the dataset".to_owned()
            }
            AnswerMeaning::Refused => {
                format!("check the credentials: {}", environment(self.scheme))
            }
            AnswerMeaning::Unusable => {
                "ask whoever runs the store: its listings are not those of such a store".to_owned()
            }
            _ if self.scheme == UrlScheme::S3 && self.named_credentials.is_none() => {
                format!("no credentials are found: {}", environment(self.scheme))
            }
            AnswerMeaning::NoConnection => {
                format!(
                    "check the network and the address: {}",
                    environment(self.scheme)
                )
            }
            _ => "see whether the store works, and try again".to_owned(),
        };
        Error::new(ErrorKind::Unavailable, what)
            .because(answer.text.clone())
            .with_remedy(remedy)
    }

    /// Returns a key as listings write it. On web servers, a URL may write it in several ways.
    ///
    /// # Errors
    /// If it is not a key that can be read.
    pub fn canonical_key(&self, key: &str) -> Result<String, Error> {
        Ok(self.key(&self.path(key)?))
    }

    fn path(&self, key: &str) -> Result<Path, Error> {
        let parsed = if self.scheme.is_http() {
            Path::from_url_path(key)
        } else {
            Path::parse(key)
        };
        parsed.map_err(|_| {
            let what = format!("{} is not a key that can be read", self.url(key));
            Error::new(ErrorKind::Invalid, what).with_remedy(
                "leave it out, or rename it: a key is made of parts between single slashes",
            )
        })
    }

    /// Returns a key as it is written in URLs.
    fn key(&self, path: &Path) -> String {
        if !self.scheme.is_http() {
            return path.as_ref().to_owned();
        }
        let parts = path.as_ref().split('/').map(percent_encoded);
        parts.collect::<Vec<_>>().join("/")
    }
}

/// Returns a part of a path with all bytes encoded that may have a meaning in a URL.
fn percent_encoded(part: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@".contains(&byte);
    let encode = |byte: u8| {
        if is_plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    part.bytes().map(encode).collect()
}

/// Returns an ETag as it is in the headers of HTTP, or `None` if it is empty. Azure leaves its quotes out in listings.
fn quoted(etag: String) -> Option<String> {
    if etag.is_empty() {
        None
    } else if etag.starts_with('"') || etag.starts_with("W/") {
        Some(etag)
    } else {
        Some(format!("\"{etag}\""))
    }
}

/// Returns `true` if `If-Match` can be asked for this ETag (RFC 9110, 13.1.1). A weak one never matches, and a listing may
/// have one that no header can have.
fn may_be_asked_for(etag: &str) -> bool {
    !etag.starts_with("W/") && HeaderValue::from_str(etag).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_of_listings_are_those_of_headers() {
        let all = ["0x8DC", "\"0x8DC\"", "W/\"0x8DC\""].map(|etag| quoted(etag.into()).unwrap());
        assert_eq!(quoted(String::new()), None);
        assert_eq!(all, ["\"0x8DC\"", "\"0x8DC\"", "W/\"0x8DC\""]);
    }

    #[test]
    fn keys_of_http_servers_are_written_as_in_urls() {
        assert_eq!(percent_encoded("a b%ü"), "a%20b%25%C3%BC");
    }
}
