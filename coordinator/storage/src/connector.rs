//! HTTP clients of stores: their requests are counted, their answers bounded, and credentials go to the store alone.
//!
//! Listings, credentials and the bodies of errors are read into memory as a whole, so their lengths are bounded. Signed
//! requests are not redirected to another host: the HTTP client leaves out only the headers that it knows as secret, and
//! would send a session token there.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Limited};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, Result};
use reqwest::redirect::Policy;
use tokio::time::timeout;

use crate::http_options;
use crate::lap::{SAME_TOKEN, TOKENS};
use crate::odd_keys::{self, ListingForm};
use crate::traffic::TrafficCounters;

/// Most bytes of an answer with a listing or credentials. A page of a listing has at most 5,000 objects.
const MOST_BYTES: usize = 64 << 20;
/// Most bytes of the listing of a WebDAV folder, which has no pages.
const MOST_BYTES_OF_FOLDER: usize = 256 << 20;
/// Most bytes of the body of an error that are read, and the longest time for them. What comes after is left out.
const MOST_BYTES_OF_ERROR: usize = 64 << 10;
const ERROR_TIMEOUT: Duration = Duration::from_secs(2);
/// The host of the agent that gives the role of a container of ECS.
const CONTAINER_AGENT: &str = "169.254.170.2";
/// Most redirections of one request.
const MOST_REDIRECTS: usize = 10;
/// Name of the HTTP client, which some stores want to know.
const USER_AGENT: &str = concat!("coprep/", env!("CARGO_PKG_VERSION"));
/// The error of an answer that is longer than it may be.
pub(crate) const TOO_LONG: &str = "what it answers is longer than any listing";

/// Makes the HTTP clients of a store. A request that is sent on to another address counts once.
#[derive(Clone, Debug)]
pub(crate) enum StoreConnector {
    /// Follows to any host.
    Open(Arc<TrafficCounters>),
    /// Stays at the host that is asked, since requests carry credentials.
    Signed(Arc<TrafficCounters>),
}

impl HttpConnector for StoreConnector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let (client, counters) = match self {
            StoreConnector::Open(counters) => {
                (ReqwestConnector::default().connect(options)?, counters)
            }
            StoreConnector::Signed(counters) => {
                let built = http_options::client(options)
                    .user_agent(USER_AGENT)
                    .redirect(Policy::custom(stay))
                    .build();
                let client = built.map_err(|e| object_store::Error::Generic {
                    store: "HTTP client",
                    source: Box::new(e),
                })?;
                (HttpClient::new(client), counters)
            }
        };
        Ok(HttpClient::new(StoreService {
            client,
            is_of_metadata: http_options::is_of_metadata(options),
            counters: counters.clone(),
        }))
    }
}

/// Follows a redirection within a host. Another one is an answer, which is no object.
fn stay(attempt: reqwest::redirect::Attempt<'_>) -> reqwest::redirect::Action {
    let place = |url: &reqwest::Url| {
        let host = url.host_str().map(str::to_owned);
        (url.scheme().to_owned(), host, url.port_or_known_default())
    };
    let asked = attempt.previous().first().map(place);
    if attempt.previous().len() > MOST_REDIRECTS {
        attempt.error("too many redirections")
    } else if asked == Some(place(attempt.url())) {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

/// The answer that a request asks for.
enum AnswerKind {
    Object,
    Listing {
        form: ListingForm,
        /// The continuation token that names the page, or `None` for the first one.
        token: Option<String>,
    },
    /// Credentials, or what the store says of a change.
    Other,
}

impl AnswerKind {
    fn of(request: &HttpRequest) -> Self {
        let query = request.uri().query().unwrap_or_default();
        // A session of a directory bucket has credentials, too.
        let has_credentials = request.uri().host() == Some(CONTAINER_AGENT) || query == "session";
        let listing = query.split('&').find_map(|part| match part {
            "list-type=2" => Some(ListingForm::S3),
            "comp=list" => Some(ListingForm::Azure),
            _ => None,
        });
        let token = query.split('&').find_map(|part| {
            let (name, token) = part.split_once('=')?;
            matches!(name, "continuation-token" | "marker").then(|| token.to_owned())
        });
        match (request.method().as_str(), listing) {
            ("PROPFIND", _) => AnswerKind::Listing {
                form: ListingForm::WebDav,
                token: None,
            },
            ("GET", Some(form)) => AnswerKind::Listing { form, token },
            ("GET", None) if !has_credentials => AnswerKind::Object,
            _ => AnswerKind::Other,
        }
    }

    /// Returns the answer as the library may take it: within bounds, and with keys that it can take.
    async fn checked(self, answer: HttpResponse) -> Result<HttpResponse, HttpError> {
        match self {
            AnswerKind::Object => Ok(answer),
            AnswerKind::Other => Ok(bounded(answer, MOST_BYTES)),
            AnswerKind::Listing { form, token } => {
                let most = if form == ListingForm::WebDav {
                    MOST_BYTES_OF_FOLDER
                } else {
                    MOST_BYTES
                };
                let (head, body) = bounded(answer, most).into_parts();
                let page = body.bytes().await?;
                // The library does not ask for a page again that it was given, so only the store repeats a token.
                if token.is_some_and(|token| comes_round(&token)) {
                    let error = io::Error::other(SAME_TOKEN);
                    return Err(HttpError::new(HttpErrorKind::Decode, error));
                }
                let replaced = odd_keys::replaced(&page, form).map(HttpResponseBody::from);
                let body = replaced.unwrap_or_else(|| page.into());
                Ok(HttpResponse::from_parts(head, body))
            }
        }
    }
}

/// Adds a continuation token to those of the listing. Returns `true` if they come round.
fn comes_round(token: &str) -> bool {
    let is_closed = TOKENS.try_with(|tokens| tokens.borrow_mut().is_closed_by(token));
    // Outside of a listing of ours nobody has counted.
    is_closed.unwrap_or(false)
}

/// Returns an answer whose body fails when it is longer than `most` bytes.
fn bounded(answer: HttpResponse, most: usize) -> HttpResponse {
    answer.map(|body| {
        HttpResponseBody::new(Limited::new(body, most).map_err(|e| {
            let too_long = |_| HttpError::new(HttpErrorKind::Decode, io::Error::other(TOO_LONG));
            e.downcast::<HttpError>().map_or_else(too_long, |e| *e)
        }))
    })
}

/// Returns an error with the beginning of its body.
async fn shortened(answer: HttpResponse) -> HttpResponse {
    let (head, mut body) = answer.into_parts();
    let mut read = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            if read.len() >= MOST_BYTES_OF_ERROR {
                break;
            }
        }
    };
    let _ = timeout(ERROR_TIMEOUT, reading).await;
    read.truncate(MOST_BYTES_OF_ERROR);
    HttpResponse::from_parts(head, read.into())
}

/// Reads the body of an answer that is no object.
pub(crate) async fn read_all(answer: HttpResponse) -> Result<Vec<u8>, HttpError> {
    let bytes = bounded(answer, MOST_BYTES).into_body().bytes().await?;
    Ok(bytes.to_vec())
}

struct StoreService {
    client: HttpClient,
    /// `true` if the server gives credentials, and has no objects.
    is_of_metadata: bool,
    counters: Arc<TrafficCounters>,
}

impl fmt::Debug for StoreService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreService")
    }
}

impl StoreService {
    /// Sends a request, and once more if it is a straggler. Returns the answer that comes first.
    async fn first_answer(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let stragglers = &self.counters.stragglers;
        stragglers.count();
        // A request that changes something must not be made twice.
        let wait = stragglers
            .wait()
            .filter(|_| request.method().as_str() == "GET");
        let Some(wait) = wait else {
            return self.send(request).await;
        };
        let again = request.clone();
        let mut first = pin!(self.send(request));
        if let Ok(answer) = timeout(wait, &mut first).await {
            return answer;
        }
        if !stragglers.may_send_second() {
            return first.await;
        }
        match select(first, pin!(self.send(again))).await {
            Either::Left((Ok(answer), _)) | Either::Right((Ok(answer), _)) => Ok(answer),
            // One of them has failed, so the other one decides.
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.counters.count_request();
        let began = Instant::now();
        let answer = self.client.execute(request).await;
        if answer.is_ok() {
            self.counters.stragglers.answered(began.elapsed());
        }
        answer
    }
}

#[async_trait]
impl HttpService for StoreService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let kind = if self.is_of_metadata {
            AnswerKind::Other
        } else {
            AnswerKind::of(&request)
        };
        let answer = self.first_answer(request).await;
        let is_failed = answer.as_ref().map_or(true, |answer| {
            let status = answer.status();
            status.is_server_error() || matches!(status.as_u16(), 401 | 403 | 408 | 429)
        });
        self.counters.count_end(answer.is_ok(), is_failed);
        let answer = answer?;
        if answer.status().is_success() {
            kind.checked(answer).await
        } else {
            Ok(shortened(answer).await)
        }
    }
}
