//! Counts of the requests that are sent to a store.
//!
//! The counts are taken below the client of the store, so that its own retries and the pages of listings count too.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use futures_util::future::{Either, select};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, Result};
use tokio::time::timeout;

use crate::stragglers::Stragglers;

/// Numbers of requests to a store, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTraffic {
    /// Name of the store, such as `s3://bucket`.
    pub store: String,
    /// Requests that were sent, including repeated ones and requests for credentials.
    pub requests: u64,
    /// Requests that were answered, whatever the answer was.
    pub answered: u64,
    /// Requests without an answer, and those whose answer made the client try again or give up: statuses of 5xx, 429,
    /// 408, 401 and 403.
    pub failed: u64,
    /// Requests that were sent a second time, because the first one was not answered in the usual time.
    pub second: u64,
    /// Bytes of objects that were received.
    pub received: u64,
}

impl StoreTraffic {
    /// Adds the requests of other clients of the store.
    pub fn add(&mut self, other: &StoreTraffic) {
        self.requests += other.requests;
        self.answered += other.answered;
        self.failed += other.failed;
        self.second += other.second;
        self.received += other.received;
    }
}

/// The counters of a store.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    requests: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    received: AtomicU64,
    pub(crate) stragglers: Stragglers,
}

impl TrafficCounters {
    pub(crate) fn count_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, store: &str) -> StoreTraffic {
        StoreTraffic {
            store: store.to_owned(),
            requests: self.requests.load(Ordering::Relaxed),
            answered: self.answered.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            second: self.stragglers.second_requests(),
            received: self.received.load(Ordering::Relaxed),
        }
    }
}

/// Makes HTTP clients whose requests are counted. A request that is sent on to another address counts once.
#[derive(Clone, Debug)]
pub(crate) struct CountingConnector(pub(crate) Arc<TrafficCounters>);

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(HttpClient::new(CountingService {
            client: ReqwestConnector::default().connect(options)?,
            counters: self.0.clone(),
        }))
    }
}

struct CountingService {
    client: HttpClient,
    counters: Arc<TrafficCounters>,
}

impl fmt::Debug for CountingService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountingService")
    }
}

impl CountingService {
    /// Sends a request, and once more if it is a straggler. Returns the answer that comes first.
    async fn first_answer(
        &self,
        request: HttpRequest,
    ) -> std::result::Result<HttpResponse, HttpError> {
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

    async fn send(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let answer = self.client.execute(request).await;
        if answer.is_ok() {
            self.counters.stragglers.answered(began.elapsed());
        }
        answer
    }
}

#[async_trait]
impl HttpService for CountingService {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let answer = self.first_answer(request).await;
        let is_answered = u64::from(answer.is_ok());
        self.counters
            .answered
            .fetch_add(is_answered, Ordering::Relaxed);
        let is_failed = answer.as_ref().map_or(true, |answer| {
            let status = answer.status();
            status.is_server_error() || matches!(status.as_u16(), 401 | 403 | 408 | 429)
        });
        if is_failed {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}
