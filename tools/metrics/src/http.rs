//! HTTP with one request per connection, bounded in size, number and time.
//!
//! The server waits for nobody. A connection must end within [`LIMIT`], and when [`MOST`] are open, a new one closes
//! the oldest. A normal scrape is over at once, so the oldest is a slow or a silent one.

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

use crate::families::families;
use crate::text::{self, ExpositionFormat};

/// Most open connections.
const MOST: usize = 32;
/// Longest time of a connection, from its acceptance until the answer is sent. It includes the time before the request
/// comes, so it also ends a connection that stays silent.
const LIMIT: Duration = Duration::from_secs(5);
/// Most bytes in a request's head.
const HEAD: usize = 16 << 10;
/// Most headers in a request.
const HEADERS: usize = 64;
/// Pause after an error of the listener, such as a lack of file descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Accepts connections for ever.
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

/// Answers the one request of a connection within [`LIMIT`].
async fn converse(socket: TcpStream, monitor: Monitor) {
    let service = service_fn(move |request| {
        let response = answer(&request, &monitor);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        // LIMIT bounds the whole connection.
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

/// Routes a request.
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

/// Returns the coordinator's present metrics.
fn metrics(monitor: &Monitor, format: ExpositionFormat) -> Response<String> {
    let Some(status) = monitor.status() else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "the coordinator has ended");
    };
    match text::write(families(&status), format) {
        Ok(text) => respond(StatusCode::OK, format.content_type(), text),
        Err(e) => plain(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()),
    }
}

/// Returns the format that the client asks for.
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
