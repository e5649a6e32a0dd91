//! HTTP: one request per connection, bounded in size, number and time.
//!
//! Nobody is waited for. A connection has [`LIMIT`] for all of it, and when there are [`MOST`], the oldest makes room:
//! who asks for metrics is done at once, so that it is a slow or a silent one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use coprep_coordinator::Monitor;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::families::families;
use super::text::{self, ExpositionFormat};

/// Most connections at a time.
const MOST: usize = 32;
/// Longest time for a connection, from the first byte of the request to the last of the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of a request's head.
const HEAD: usize = 16 << 10;
/// Most headers of a request.
const HEADERS: usize = 64;
/// After an error of the listener, such as no descriptors being left.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers whoever comes.
pub(super) async fn listen(listener: TcpListener, monitor: Monitor) {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= MOST
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(tokio::spawn(converse(socket, monitor.clone())));
            }
            Err(e) => {
                tracing::warn!(error = %e, "cannot accept a connection for metrics");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(socket: TcpStream, monitor: Monitor) {
    let service = service_fn(move |request| {
        let response = answer(&request, &monitor);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        // Bounded by LIMIT.
        .header_read_timeout(None)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(socket), service);
    match tokio::time::timeout(LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::debug!(error = %e, "a request for metrics failed"),
        Err(_) => tracing::debug!(limit = ?LIMIT, "a request for metrics took too long"),
    }
}

fn answer(request: &Request<Incoming>, monitor: &Monitor) -> Response<String> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/" | "/metrics" if !is_read => {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(ALLOW, allowed);
            refused
        }
        "/" => plain(StatusCode::OK, "coprep: metrics are at /metrics"),
        "/metrics" => metrics(monitor, wanted(request.headers())),
        _ => plain(
            StatusCode::NOT_FOUND,
            "nothing is here: metrics are at /metrics",
        ),
    }
}

fn metrics(monitor: &Monitor, format: ExpositionFormat) -> Response<String> {
    let Some(status) = monitor.status() else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "the coordinator has ended");
    };
    match text::write(families(&status), format) {
        Ok(text) => respond(StatusCode::OK, format.content_type(), text),
        Err(e) => plain(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()),
    }
}

/// The format that the caller knows.
fn wanted(headers: &HeaderMap) -> ExpositionFormat {
    let knows_open_metrics = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains(ExpositionFormat::OpenMetrics.media_type()));
    if knows_open_metrics {
        ExpositionFormat::OpenMetrics
    } else {
        ExpositionFormat::Prometheus
    }
}

fn plain(status: StatusCode, line: &str) -> Response<String> {
    respond(status, "text/plain; charset=utf-8", format!("{line}\n"))
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let value = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
