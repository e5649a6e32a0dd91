//! The socket, signals, idle exit.
//!
//! One coordinator per socket: it holds a lock file (`flock`) as long as it lives, which no death can
//! leave held. Socket and lock file are removed when it ends in any way that lets it run to the end.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use coprep_protocol::frame;
use coprep_protocol::place::Place;
use fail::fail_point;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::outbox::ReplyWriter;
use crate::registry::Registry;
use crate::{Error, Monitor, Result, Settings, session};

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 4096;
/// How long sessions may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// A coordinator that listens. Dropped, it gives up its place.
pub struct Server {
    place: Place,
    listener: UnixListener,
    _lock: Flock<File>,
    signals: SignalFd,
    registry: Arc<Registry>,
    shutdown: Arc<Shutdown>,
    connections: Arc<Connections>,
    replies: Arc<ReplyWriter>,
}

/// Why a coordinator ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A client asked for it.
    Asked,
    /// SIGINT or SIGTERM.
    Signal,
    /// Nobody was there for too long.
    Idle,
}

/// Lets a session end the server.
pub(crate) struct Shutdown {
    requested: AtomicBool,
    event: EventFd,
}

impl Shutdown {
    pub(crate) fn request(&self) {
        self.requested.store(true, Ordering::Release);
        let _ = self.event.write(1);
    }
}

#[derive(Default)]
struct Connections {
    count: AtomicUsize,
    sockets: Mutex<Vec<(u64, UnixStream)>>,
    next: std::sync::atomic::AtomicU64,
}

impl Server {
    /// Takes the place, and listens.
    ///
    /// # Errors
    /// When another coordinator has the place, or the socket cannot be made.
    pub fn bind(place: Place, settings: Settings) -> Result<Server> {
        // No other process of the same user may read this one's memory, or write it, through /proc.
        nix::sys::prctl::set_dumpable(false)
            .map_err(|e| Error::io("cannot protect the process's memory", e))?;
        let signals = block_signals()?;
        place
            .prepare()
            .map_err(|e| Error::io("cannot use the socket's folder", e))?;
        let lock = take_lock(&place)?;
        let listener = listen(&place)?;
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let event = event.map_err(|e| Error::io("cannot make an eventfd", e))?;
        let shutdown = Arc::new(Shutdown {
            requested: AtomicBool::new(false),
            event,
        });
        let registry = Arc::new(Registry::new(settings)?);
        Ok(Server {
            place,
            listener,
            _lock: lock,
            signals,
            registry,
            shutdown,
            connections: Arc::default(),
            replies: Arc::new(ReplyWriter::start()?),
        })
    }

    /// Serves until asked to stop, by a client, a signal or idleness.
    ///
    /// # Errors
    /// When the socket fails, or a thread panicked that the coordinator cannot do without.
    pub fn run(&self) -> Result<StopReason> {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let reason = served.unwrap_or(Err(Error::Defect("the main thread panicked")));
        self.connections.hang_up();
        self.connections.wait_until_gone(GRACE);
        reason
    }

    /// For whoever is to look at it while it runs.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::of(&self.registry)
    }

    fn serve(&self) -> Result<StopReason> {
        let mut busy = Instant::now();
        loop {
            if self.connections.count() > 0 {
                busy = Instant::now();
            }
            if self
                .idle_limit()
                .is_some_and(|limit| busy.elapsed() >= limit)
            {
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
            settings.idle_warm.max(settings.idle)
        } else {
            settings.idle
        }
    }

    /// Waits for something to happen, a bounded time, and deals with it.
    fn turn(&self) -> Result<Option<StopReason>> {
        fail_point!("main-turn");
        self.registry.tidy()?;
        let mut fds = [
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.shutdown.event.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::from(250u8)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(Error::io("cannot wait for connections", e)),
        }
        let [connection, signal, _] = fds.map(|fd| fd.any().unwrap_or(false));
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
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Only the same user, and not too many.
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
                // Dropped in the end, also if the session panics, or if its thread cannot be started.
                let _connected = connected;
                session::serve(&registry, &shutdown, &replies, &socket);
            });
        started.map(|_| ())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.place.socket);
        // Removed while it is held: whoever opened it meanwhile sees that it is gone, and makes a new one.
        let _ = std::fs::remove_file(self.place.lock());
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
    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn sockets(&self) -> std::sync::MutexGuard<'_, Vec<(u64, UnixStream)>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, socket: &UnixStream) -> io::Result<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.sockets().push((number, socket.try_clone()?));
        self.count.fetch_add(1, Ordering::AcqRel);
        Ok(number)
    }

    fn remove(&self, number: u64) {
        self.sockets().retain(|(n, _)| *n != number);
        self.count.fetch_sub(1, Ordering::AcqRel);
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

/// SIGINT and SIGTERM come through a descriptor; threads started later inherit the mask.
fn block_signals() -> Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    set.thread_block()
        .map_err(|e| Error::io("cannot block signals", e))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    SignalFd::with_flags(&set, flags).map_err(|e| Error::io("cannot make a signalfd", e))
}

fn take_lock(place: &Place) -> Result<Flock<File>> {
    let path = place.lock();
    let what = || format!("cannot lock {}", path.display());
    loop {
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .clone();
        let file = options.open(&path).map_err(|e| Error::io(what(), e))?;
        let opened = file.metadata().map_err(|e| Error::io(what(), e))?.ino();
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, _)| {
            Error::Invalid(format!(
                "another coordinator serves {}: use it, `coprep stop` it, or name another socket in COPREP_SOCKET",
                place.socket.display()
            ))
        })?;
        // A coordinator that just ended may have removed the file between the opening and the locking.
        if std::fs::metadata(&path).is_ok_and(|now| now.ino() == opened) {
            return Ok(lock);
        }
    }
}

fn listen(place: &Place) -> Result<UnixListener> {
    let what = || format!("cannot listen on {}", place.socket.display());
    match std::fs::remove_file(&place.socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io(what(), e)),
        _ => {}
    }
    // The socket is made 0600 from its first moment on.
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(&place.socket);
    nix::sys::stat::umask(before);
    let listener = listener.map_err(|e| Error::io(what(), e))?;
    listener
        .set_nonblocking(true)
        .map_err(|e| Error::io(what(), e))?;
    Ok(listener)
}
