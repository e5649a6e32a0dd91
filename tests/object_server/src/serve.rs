//! The server: connections, and the requests that control it.
//!
//! One thread serves all connections. In a benchmark, the client shares its processors with the server. A thread for each
//! connection would be woken twice for each answer, and the switches would cost the client processor time.

use std::io;
use std::net;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::answer::Answer;
use crate::credentials::Credentials;
use crate::faults::{Fault, Faults};
use crate::request::HttpRequest;
use crate::store::{ObjectStoreState, RequestCounts};

/// Time until the next attempt, after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A server on a port of this machine. It ends when it is dropped.
pub struct ObjectServer {
    port: u16,
    shared: Arc<Shared>,
    /// Ends the thread when it is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A folder whose files a server has from its start.
#[derive(Clone, Copy, Debug)]
pub struct LoadedFolder<'a> {
    /// Bucket that the files are put into.
    pub bucket: &'a str,
    /// Prefix of their keys, before the path within the folder.
    pub prefix: &'a str,
    /// The folder.
    pub folder: &'a Path,
}

#[derive(Default)]
struct Shared {
    state: Mutex<ObjectStoreState>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, ObjectStoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectServer {
    /// Starts a server without objects on a free port.
    ///
    /// # Errors
    /// If there is no free port, or no thread.
    pub fn start() -> io::Result<ObjectServer> {
        ObjectServer::start_at(0, &[])
    }

    /// Starts a server with the files of folders on a port, or on a free one for 0.
    ///
    /// # Errors
    /// If a file cannot be read, if the port is in use, or if there is no thread.
    pub fn start_at(port: u16, folders: &[LoadedFolder<'_>]) -> io::Result<ObjectServer> {
        let shared = Arc::new(Shared::default());
        // Before it listens, so that a server that is started again never misses the objects of the one before.
        for one in folders {
            shared.state().load(one.bucket, one.prefix, one.folder)?;
        }
        let listener = net::TcpListener::bind(("127.0.0.1", port))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("object-server".into());
        let thread = thread.spawn(move || run(&runtime, listener, of_thread, stopped))?;
        Ok(ObjectServer {
            port,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Puts an object. Without a key the bucket is made.
    pub fn put(&self, bucket: &str, key: &str, bytes: &[u8]) {
        self.shared.state().put(bucket, key, bytes);
    }

    /// Puts `count` objects below a prefix, a thousand in each folder, without their content being held for each.
    pub fn fill(&self, bucket: &str, prefix: &str, count: u64) {
        self.shared.state().fill(bucket, prefix, count);
    }

    /// Changes a byte of an object behind its back: its ETag and its length stay.
    pub fn flip(&self, bucket: &str, key: &str, at: usize) {
        self.shared.state().flip(bucket, key, at);
    }

    /// Sets the credentials that requests must use from now on. Its metadata service, at the address of the server, gives
    /// them to whoever asks.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.shared.state().credentials = vec![credentials];
    }

    /// Deletes an object.
    pub fn delete(&self, bucket: &str, key: &str) {
        self.shared.state().delete(bucket, key);
    }

    /// Sets the faults from now on.
    pub fn set(&self, faults: Faults) {
        self.shared.state().faults = faults;
    }

    /// Returns the number of requests so far.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        self.shared.state().counts
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves until the server is dropped. All connections end with the runtime.
fn run(
    runtime: &Runtime,
    listener: net::TcpListener,
    shared: Arc<Shared>,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async {
        let Ok(listener) = TcpListener::from_std(listener) else {
            return;
        };
        tokio::spawn(accept(listener, shared));
        // It ends with an error when the sender is dropped.
        let _ = stopped.await;
    });
}

/// Serves each connection in a task of its own.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                let shared = shared.clone();
                tokio::spawn(async move { serve(connection, &shared).await });
            }
            // There may be no descriptor for it now. It waits until there is one.
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Answers the requests of a connection until it ends.
async fn serve(connection: TcpStream, shared: &Shared) {
    // An answer may take several writes. Otherwise each would wait until the client acknowledges the one before.
    let _ = connection.set_nodelay(true);
    let mut connection = BufReader::new(connection);
    while let Ok(Some(request)) = HttpRequest::read(&mut connection).await {
        let to = connection.get_mut();
        let done = if request.path.starts_with("-/") {
            control(&request, shared).send(to, false).await
        } else if let Some(of_metadata) = metadata(&request, shared) {
            of_metadata.send(to, false).await
        } else {
            answer(&request, shared, to).await
        };
        if done.is_err() {
            return;
        }
    }
}

/// Answers a request for credentials, as the metadata service of a machine does. Returns `None` for any other request.
fn metadata(request: &HttpRequest, shared: &Shared) -> Option<Answer> {
    let state = shared.state();
    let credentials = state.credentials.first()?;
    // A server that is down answers nobody. Closing the connection is left to `read`.
    if state.faults.down {
        return None;
    }
    credentials.answer(request)
}

/// Answers a request of a client, with the faults that are set.
async fn answer(
    request: &HttpRequest,
    shared: &Shared,
    connection: &mut TcpStream,
) -> io::Result<()> {
    let (bucket, key) = request.object();
    match request.method.as_str() {
        "PUT" => shared.state().put(bucket, key, &request.body),
        "DELETE" => shared.state().delete(bucket, key),
        _ => return read(request, shared, connection).await,
    }
    Answer::new(200, Vec::new()).send(connection, false).await
}

/// Answers a request that reads.
async fn read(
    request: &HttpRequest,
    shared: &Shared,
    connection: &mut TcpStream,
) -> io::Result<()> {
    let is_head = request.method == "HEAD";
    let Planned {
        answer,
        fault,
        faults,
        is_accepted,
    } = plan(request, &mut shared.state());
    if !faults.latency.is_zero() {
        sleep(faults.latency).await;
    }
    if faults.down {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    if let Some((status, code)) = &faults.refuse {
        return Answer::error(*status, code).send(connection, is_head).await;
    }
    if !is_accepted {
        return Credentials::refuse(request).send(connection, is_head).await;
    }
    match fault {
        Some(Fault::Error) => {
            let busy = Answer::error(503, "SlowDown");
            busy.send(connection, is_head).await
        }
        Some(Fault::Reset) => answer.break_off(connection).await,
        Some(Fault::Stall) => answer.stall(connection, faults.stall).await,
        Some(Fault::Pause) => answer.pause(connection, faults.stall).await,
        Some(Fault::WrongRange) => shifted(answer).send(connection, is_head).await,
        None => answer.send(connection, is_head).await,
    }
}

/// The answer to a request that reads, and what goes wrong with it.
struct Planned {
    answer: Answer,
    fault: Option<Fault>,
    faults: Faults,
    /// `true` if the request has used credentials that are accepted.
    is_accepted: bool,
}

/// Counts a request that reads, and decides how to answer it.
fn plan(request: &HttpRequest, state: &mut ObjectStoreState) -> Planned {
    let (_, key) = request.object();
    let mut fault = None;
    if request.query.get("list-type").is_none() && request.method != "PROPFIND" {
        if request.method == "HEAD" {
            state.counts.heads += 1;
        } else {
            state.counts.gets += 1;
            state.counts.matched += u64::from(request.header("if-match").is_some());
            fault = state.faults.of(state.counts.gets, key);
        }
    }
    let mut accepted = state.credentials.iter();
    Planned {
        fault,
        faults: state.faults.clone(),
        is_accepted: state.credentials.is_empty() || accepted.any(|one| one.are_used_by(request)),
        answer: state.answer(request),
    }
}

/// Returns an answer with the range after the one that was asked for.
fn shifted(mut answer: Answer) -> Answer {
    let length = answer.body.len();
    answer.headers.retain(|(name, _)| *name != "Content-Range");
    let range = format!("bytes {}-{}/{length}", answer.from + 1, answer.to);
    // The range is as long as the right one, so that the header alone tells.
    answer.headers.push(("Content-Range", range));
    answer.status = 206;
    answer
}

/// Answers a request that controls the server.
fn control(request: &HttpRequest, shared: &Shared) -> Answer {
    let argument = |name: &str| request.query.get(name).unwrap_or_default();
    let mut state = shared.state();
    match request.path.as_str() {
        "-/faults" => state.faults = Faults::from_query(&request.query),
        "-/load" => {
            let folder = Path::new(argument("folder"));
            if let Err(e) = state.load(argument("bucket"), argument("prefix"), folder) {
                return Answer::new(400, e.to_string().into_bytes());
            }
        }
        "-/flip" => {
            let at = argument("at").parse().unwrap_or(0);
            state.flip(argument("bucket"), argument("key"), at);
        }
        "-/credentials" => state.credentials = Credentials::from_query(&request.query),
        "-/counts" => {
            let RequestCounts {
                lists,
                gets,
                matched,
                heads,
                bytes,
            } = state.counts;
            let json = format!(
                "{{\"lists\": {lists}, \"gets\": {gets}, \"matched\": {matched}, \"heads\": {heads}, \"bytes\": {bytes}}}"
            );
            return Answer::new(200, json.into_bytes());
        }
        other => return Answer::new(404, format!("{other} controls nothing").into_bytes()),
    }
    Answer::new(200, Vec::new())
}
