//! The server: connections, and the requests that control it.

use std::io::{self, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::answer::Answer;
use crate::credentials::Credentials;
use crate::faults::{Fault, Faults};
use crate::request::HttpRequest;
use crate::store::{ObjectStoreState, RequestCounts};

/// A server on a port of this machine. It ends when it is dropped.
pub struct ObjectServer {
    port: u16,
    shared: Arc<Shared>,
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
    is_stopped: AtomicBool,
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
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let accepting = shared.clone();
        let accept = move || {
            for connection in listener.incoming().flatten() {
                if accepting.is_stopped.load(Ordering::Relaxed) {
                    return;
                }
                let shared = accepting.clone();
                let serve = move || serve(connection, &shared);
                // Without a thread the connection is closed, as by a server that is overloaded.
                let _ = std::thread::Builder::new()
                    .stack_size(256 << 10)
                    .spawn(serve);
            }
        };
        Ok(ObjectServer {
            port,
            shared,
            thread: Some(
                std::thread::Builder::new()
                    .name("accept".into())
                    .spawn(accept)?,
            ),
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
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        // The connection ends the wait for one.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers the requests of a connection until it ends.
fn serve(mut connection: TcpStream, shared: &Shared) {
    let Ok(reading) = connection.try_clone() else {
        return;
    };
    // An answer may take several writes. Otherwise each would wait until the client acknowledges the one before.
    let _ = connection.set_nodelay(true);
    let mut requests = BufReader::new(reading);
    while let Ok(Some(request)) = HttpRequest::read(&mut requests) {
        let done = if request.path.starts_with("-/") {
            control(&request, shared).send(&mut connection, false)
        } else if let Some(of_metadata) = metadata(&request, shared) {
            of_metadata.send(&mut connection, false)
        } else {
            answer(&request, shared, &mut connection)
        };
        if done.is_err() || shared.is_stopped.load(Ordering::Relaxed) {
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
fn answer(request: &HttpRequest, shared: &Shared, connection: &mut TcpStream) -> io::Result<()> {
    let (bucket, key) = request.object();
    let mut state = shared.state();
    match request.method.as_str() {
        "PUT" => state.put(bucket, key, &request.body),
        "DELETE" => state.delete(bucket, key),
        _ => {
            // `read` takes the lock itself.
            drop(state);
            return read(request, shared, connection);
        }
    }
    drop(state);
    Answer::new(200, Vec::new()).send(connection, false)
}

/// Answers a request that reads.
fn read(request: &HttpRequest, shared: &Shared, connection: &mut TcpStream) -> io::Result<()> {
    let (_, key) = request.object();
    let is_head = request.method == "HEAD";
    let mut state = shared.state();
    let credentials = state.credentials.clone();
    let (faults, mut fault) = (state.faults.clone(), None);
    if request.query.get("list-type").is_none() && request.method != "PROPFIND" {
        if is_head {
            state.counts.heads += 1;
        } else {
            state.counts.gets += 1;
            state.counts.matched += u64::from(request.header("if-match").is_some());
            fault = faults.of(state.counts.gets, key);
        }
    }
    let answer = state.answer(request);
    // The lock is not held during the latency, so that other requests are answered meanwhile.
    drop(state);
    std::thread::sleep(faults.latency);
    if faults.down {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    if let Some((status, code)) = &faults.refuse {
        return Answer::error(*status, code).send(connection, is_head);
    }
    let is_accepted = |credentials: &Credentials| credentials.are_used_by(request);
    if !credentials.is_empty() && !credentials.iter().any(is_accepted) {
        return Credentials::refuse(request).send(connection, is_head);
    }
    match fault {
        Some(Fault::Error) => Answer::error(503, "SlowDown").send(connection, is_head),
        Some(Fault::Reset) => answer.break_off(connection),
        Some(Fault::Stall) => answer.stall(connection, faults.stall),
        Some(Fault::Pause) => answer.pause(connection, faults.stall),
        Some(Fault::WrongRange) => shifted(answer).send(connection, is_head),
        None => answer.send(connection, is_head),
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
