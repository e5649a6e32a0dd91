//! The socket, signals and the idle exit.
//!
//! There is one coordinator per socket. It holds a lock file (`flock`) as long as it lives, and the kernel frees the
//! lock however the process dies. Socket and lock file are removed whenever the coordinator ends normally.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coprep_protocol::frame;
use coprep_protocol::paths::{CoordinatorPaths, open_private};
use coprep_protocol::poll_interval::poll_every;
use coprep_shared_memory::lock::lock;
use fail::fail_point;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::connection::reply_queue::ReplyWriter;
use crate::error::{ErrorKind, defect, from_lower, invalid, os};
use crate::registry::Registry;
use crate::{Error, Monitor, Result, Settings};

mod session;

/// Largest number of connections at a time.
const MAX_CONNECTIONS: usize = 4096;
/// Interval at which the pool's balance is checked while a client is connected.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(250);
/// Longest sleep of the thread when nothing wakes it. Nothing depends on it: see [`poll_every`].
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time that sessions get to end when the coordinator stops.
const GRACE: Duration = Duration::from_secs(5);

/// A coordinator that listens. Dropping it removes its socket and lock file.
pub struct Server {
    /// Socket and lock file, which are removed at the end.
    files: [OwnFile; 2],
    listener: UnixListener,
    _lock: Flock<File>,
    signals: SignalFd,
    registry: Arc<Registry>,
    shutdown: Arc<Shutdown>,
    connections: Arc<Connections>,
    replies: Arc<ReplyWriter>,
}

/// Reason why a coordinator ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A client asked for it.
    Asked,
    /// SIGINT or SIGTERM.
    Signal,
    /// No client was connected for too long.
    Idle,
}

/// Lets a session end the server.
pub(crate) struct Shutdown {
    requested: AtomicBool,
    event: EventFd,
}

impl Shutdown {
    pub(crate) fn request(&self) {
        // Release pairs with the Acquire in `turn`. The flag comes first, because the event only wakes the thread.
        self.requested.store(true, Ordering::Release);
        let _ = self.event.write(1);
    }
}

struct Connections {
    count: AtomicUsize,
    /// Time when the last connection ended.
    emptied: Mutex<Instant>,
    /// Tells the server that a connection has ended.
    ended: EventFd,
    sockets: Mutex<Vec<(u64, UnixStream)>>,
    next: std::sync::atomic::AtomicU64,
}

impl Server {
    /// Takes the lock, and listens.
    ///
    /// # Errors
    /// When another coordinator has the lock, or the socket cannot be made.
    pub fn bind(paths: CoordinatorPaths, settings: Settings) -> Result<Server> {
        // No other process of the same user may read or write this one's memory through /proc.
        nix::sys::prctl::set_dumpable(false)
            .map_err(|e| os("cannot protect the process's memory", e))?;
        // Before the registry starts its threads, because they inherit the mask.
        let signals = block_signals()?;
        paths.prepare().map_err(from_lower)?;
        // Only the holder of the lock may remove a socket that was left behind, so the lock comes first.
        let lock = take_lock(&paths)?;
        // Before clients can connect, because it may fail, or wait for the disk of a coordinator that is ending.
        let registry = Arc::new(Registry::new(settings)?);
        let listener = listen(&paths)?;
        let what = |e| os("cannot look at the socket", e);
        let files = [
            OwnFile::at(&paths.socket).map_err(what)?,
            OwnFile::at(&paths.lock()).map_err(what)?,
        ];
        let shutdown = Arc::new(Shutdown {
            requested: AtomicBool::new(false),
            event: event()?,
        });
        Ok(Server {
            files,
            listener,
            _lock: lock,
            signals,
            registry,
            shutdown,
            connections: Arc::new(Connections::new()?),
            replies: Arc::new(ReplyWriter::start()?),
        })
    }

    /// Serves until asked to stop, by a client, a signal or idleness.
    ///
    /// # Errors
    /// When the socket fails, or a thread panicked that the coordinator cannot do without.
    pub fn run(&self) -> Result<StopReason> {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let reason = served.unwrap_or(Err(defect("the main thread panicked")));
        // Retired before the connections end, so that no buffer is filled again while a job may still read it.
        self.registry
            .streams()
            .iter()
            .for_each(|stream| stream.retire());
        self.connections.hang_up();
        // Threads that wait for storage would otherwise be waited for. A job that is attaching must not hear of it: the
        // next coordinator may serve it.
        self.registry.stores.stop();
        self.connections.wait_until_gone(GRACE);
        reason
    }

    /// Returns a monitor that observes the server while it runs.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::of(&self.registry)
    }

    fn serve(&self) -> Result<StopReason> {
        loop {
            if self.idle_end().is_some_and(|end| end <= Instant::now()) {
                return Ok(StopReason::Idle);
            }
            if let Some(reason) = self.turn()? {
                return Ok(reason);
            }
        }
    }

    fn idle_limit(&self) -> Option<Duration> {
        let settings = &self.registry.settings;
        if self.registry.is_warmed() {
            longer(settings.idle_warm, settings.idle)
        } else {
            settings.idle
        }
    }

    /// Returns the time when the coordinator ends if no client comes, or `None` while one is here or it stays for good.
    fn idle_end(&self) -> Option<Instant> {
        let since = self.connections.idle_since()?;
        since.checked_add(self.idle_limit()?)
    }

    /// Returns the time until something is due.
    fn pause(&self) -> Duration {
        let now = Instant::now();
        let until_end = self
            .idle_end()
            .map(|end| end.saturating_duration_since(now));
        let is_connected = self.connections.count() > 0;
        let until_maintenance = is_connected.then_some(MAINTENANCE_INTERVAL);
        let due = [until_end, until_maintenance].into_iter().flatten();
        due.fold(poll_every(POLL_INTERVAL), Duration::min)
    }

    /// Waits a bounded time for an event, and handles it.
    fn turn(&self) -> Result<Option<StopReason>> {
        fail_point!("main-turn");
        self.registry.maintain()?;
        let mut fds = [
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.shutdown.event.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.connections.ended.as_fd(), PollFlags::POLLIN),
        ];
        // Round up: a remainder of less than a millisecond must not make the loop spin.
        let pause = self.pause() + Duration::from_millis(1);
        match poll(
            &mut fds,
            PollTimeout::try_from(pause).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(os("cannot wait for connections", e)),
        }
        let [connection, signal, _, ended] = fds.map(|fd| fd.any().unwrap_or(false));
        if ended {
            // The number of ended connections does not matter, because each turn reads the count anew.
            let _ = self.connections.ended.read();
        }
        // The event only ended the sleep. This flag says whether somebody asked.
        if self.shutdown.requested.load(Ordering::Acquire) {
            return Ok(Some(StopReason::Asked));
        }
        if signal {
            return Ok(Some(StopReason::Signal));
        }
        if connection {
            self.accept();
        }
        Ok(None)
    }

    fn accept(&self) {
        match self.listener.accept() {
            Ok((socket, _)) => {
                let admitted = catch_unwind(AssertUnwindSafe(|| self.admit(socket)));
                if admitted.is_err() {
                    tracing::error!(
                        "the main thread panicked over a new connection: a defect of coprep, please report it"
                    );
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                tracing::warn!(error = %e, "cannot accept a connection");
                // If descriptors have run out, the connection stays pending, and the loop would spin without a pause.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Starts a session, unless the peer is another user or there are too many connections.
    fn admit(&self, socket: UnixStream) {
        fail_point!("main-accept");
        let me = nix::unistd::getuid().as_raw();
        match frame::peer_uid(&socket) {
            Ok(uid) if uid == me => {}
            Ok(uid) => return tracing::warn!(uid, "a connection of another user is refused"),
            Err(e) => {
                return tracing::warn!(error = %e, "a connection of an unknown user is refused");
            }
        }
        // Only this thread admits, so the count cannot rise between this check and `start_session`.
        if self.connections.count() >= MAX_CONNECTIONS {
            let most = MAX_CONNECTIONS;
            return tracing::warn!(most, "too many connections: one more is refused");
        }
        if let Err(e) = self.start_session(socket) {
            tracing::warn!(error = %e, "cannot serve a connection");
        }
    }

    fn start_session(&self, socket: UnixStream) -> io::Result<()> {
        socket.set_nonblocking(false)?;
        let number = self.connections.add(&socket)?;
        let connected = Connected {
            connections: self.connections.clone(),
            number,
        };
        let (registry, shutdown, replies) = (
            self.registry.clone(),
            self.shutdown.clone(),
            self.replies.clone(),
        );
        let started = std::thread::Builder::new()
            .name(format!("session-{number}"))
            .spawn(move || {
                // Dropped at the end, also if the session panics or its thread cannot be started.
                let _connected = connected;
                session::serve(&registry, &shutdown, &replies, &socket);
            });
        started.map(|_| ())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The files go before the lock is released. A coordinator that opened the lock file meanwhile sees that it is
        // gone, and makes a new one.
        self.files.iter().for_each(OwnFile::remove);
    }
}

/// A file that is removed only if its path still leads to it. If the folder is removed and made again while a
/// coordinator lives (as at logout and login), the path leads to the file of another coordinator.
pub struct OwnFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl OwnFile {
    /// Identifies the file that the path leads to now.
    ///
    /// # Errors
    /// When the path leads to no file.
    pub fn at(path: &Path) -> io::Result<OwnFile> {
        let meta = std::fs::symlink_metadata(path)?;
        Ok(OwnFile {
            path: path.to_owned(),
            id: (meta.dev(), meta.ino()),
        })
    }

    /// Removes the file, unless the path now leads to something else.
    pub fn remove(&self) {
        if OwnFile::at(&self.path).is_ok_and(|now| now.id == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Counts a connection for as long as it lives.
struct Connected {
    connections: Arc<Connections>,
    number: u64,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.connections.remove(self.number);
    }
}

impl Connections {
    fn new() -> Result<Self> {
        Ok(Connections {
            count: AtomicUsize::new(0),
            emptied: Mutex::new(Instant::now()),
            ended: event()?,
            sockets: Mutex::default(),
            next: std::sync::atomic::AtomicU64::new(0),
        })
    }

    /// Returns the time since when no client is connected.
    fn idle_since(&self) -> Option<Instant> {
        let is_empty = self.count() == 0;
        is_empty.then(|| *lock(&self.emptied))
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn sockets(&self) -> std::sync::MutexGuard<'_, Vec<(u64, UnixStream)>> {
        lock(&self.sockets)
    }

    fn add(&self, socket: &UnixStream) -> io::Result<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.sockets().push((number, socket.try_clone()?));
        self.count.fetch_add(1, Ordering::AcqRel);
        Ok(number)
    }

    fn remove(&self, number: u64) {
        self.sockets().retain(|(n, _)| *n != number);
        // Set before the count falls, so that no thread sees a count of 0 with the time of an earlier end.
        *lock(&self.emptied) = Instant::now();
        self.count.fetch_sub(1, Ordering::AcqRel);
        let _ = self.ended.write(1);
    }

    fn hang_up(&self) {
        for (_, socket) in self.sockets().iter() {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }

    fn wait_until_gone(&self, limit: Duration) {
        let start = Instant::now();
        while self.count() > 0 && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn event() -> Result<EventFd> {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    event.map_err(|e| os("cannot make an eventfd", e))
}

/// Blocks SIGINT and SIGTERM, and returns a descriptor that receives them. Threads started later inherit the mask.
fn block_signals() -> Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    set.thread_block()
        .map_err(|e| os("cannot block signals", e))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    SignalFd::with_flags(&set, flags).map_err(|e| os("cannot make a signalfd", e))
}

fn take_lock(paths: &CoordinatorPaths) -> Result<Flock<File>> {
    let path = paths.lock();
    loop {
        let file = open_private(&path).map_err(from_lower)?;
        let opened = file.metadata();
        let opened = opened.map_err(|e| os(format!("cannot lock {}", path.display()), e))?;
        let opened = (opened.dev(), opened.ino());
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, _)| {
            invalid(format!(
                "another coordinator serves {}",
                paths.socket.display()
            ))
            .with_remedy("use it, `coprep stop` it, or name another socket in COPREP_SOCKET")
        })?;
        // A coordinator that just ended may have removed the file between the opening and the locking.
        if std::fs::symlink_metadata(&path).is_ok_and(|now| (now.dev(), now.ino()) == opened) {
            return Ok(lock);
        }
    }
}

/// Removes a socket that a killed coordinator left behind, and nothing else. `what` names the purpose in the error.
fn remove_old_socket(path: &Path, what: &str) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => {
            std::fs::remove_file(path).map_err(|e| os(what, e))
        }
        Ok(_) => Err(Error::new(ErrorKind::Os, what)
            .because("something that is no socket is there")
            .with_remedy("remove it, or name another socket in COPREP_SOCKET")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(os(what, e)),
    }
}

fn listen(paths: &CoordinatorPaths) -> Result<UnixListener> {
    let what = format!("cannot listen on {}", paths.socket.display());
    remove_old_socket(&paths.socket, &what)?;
    // The umask makes the socket 0600 from its first moment.
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(&paths.socket);
    nix::sys::stat::umask(before);
    let listener = listener.map_err(|e| os(&what, e))?;
    listener.set_nonblocking(true).map_err(|e| os(&what, e))?;
    Ok(listener)
}
/// Returns the longer of two limits. `None` is no limit, which an `Option` takes for the least.
fn longer(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    Some(one?.max(other?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_longer_than_any() {
        let [short, long] = [1, 3600].map(|s| Some(Duration::from_secs(s)));
        assert_eq!(longer(short, long), long);
        assert_eq!(
            [longer(None, long), longer(short, None), longer(None, None)],
            [None; 3]
        );
    }
}
