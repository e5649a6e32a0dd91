//! Starting the coordinator on demand, like the daemon of a compiler cache ([`Connection::open`]).
//!
//! One client at a time starts it (`flock` on [`CoordinatorPaths::start_lock`]). The others wait and find it running.
//! The new process reports on a pipe that it listens, or why it does not. All its other output goes to
//! [`CoordinatorPaths::log`]; an error quotes the end of that file.

use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use coprep_protocol::paths::{self, CoordinatorPaths, open_private};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use crate::connection::{ConnectOptions, Connection};
use crate::error::{ErrorKind, Result, absent, no_place, not_started, timed_out};
use crate::raw;
use crate::timeout::Timeout;

/// Longest time until a coordinator listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of attempts to start a coordinator that is killed as it starts. One kill may be chance, as when memory was
/// short for a moment.
const ATTEMPTS: u32 = 3;
/// Pause between two checks whether another client has started it.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of the log that an error quotes.
const QUOTED_BYTES: u64 = 2000;

impl Connection {
    /// Connects to the coordinator at `paths`, and starts one if there is none and `options` allow it.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`], [`ErrorKind::Start`], [`ErrorKind::UntrustedPeer`].
    pub fn open(paths: &CoordinatorPaths, options: &ConnectOptions) -> Result<Self> {
        match Connection::find(paths, options)? {
            Some(connection) => Ok(connection),
            None if options.start => start(paths, options),
            None => Err(absent(&paths.socket)),
        }
    }
}

/// Connects, and starts a coordinator if there is none.
fn start(paths: &CoordinatorPaths, options: &ConnectOptions) -> Result<Connection> {
    paths.prepare().map_err(no_place)?;
    let timeout = Timeout::new(START_TIMEOUT, &options.interrupt_check);
    let mut attempts = 0;
    loop {
        if let Some(_lock) = StartLock::try_take(paths)? {
            attempts += 1;
            match start_alone(paths, options, &timeout)? {
                StartAttempt::Found(connection) => return Ok(connection),
                StartAttempt::Retry => {}
                StartAttempt::Killed(log) if attempts >= ATTEMPTS => {
                    return Err(not_started(format!(
                        "it ended while it started, in each of {ATTEMPTS} attempts; if its log gives no reason, something \
                         kills it (is memory short?); {log}"
                    )));
                }
                StartAttempt::Killed(_) => {}
            }
        } else if let Some(connection) = Connection::find(paths, options)? {
            return Ok(connection);
        }
        if timeout.is_over() {
            let what = if is_locked(paths) {
                "the one that runs has refused all connections, since it has no file descriptor left or is ending,"
            } else {
                "somebody else has been starting one"
            };
            return Err(not_started(format!(
                "{what} at {} for {START_TIMEOUT:?}; its log: {}",
                paths.socket.display(),
                paths.log().display()
            )));
        }
        timeout.sleep(RETRY_PAUSE)?;
    }
}

/// The result of an attempt to start a coordinator.
enum StartAttempt {
    Found(Connection),
    /// No attempt was possible or needed: a coordinator that is ending still holds the lock, or the started one has
    /// just ended.
    Retry,
    /// The coordinator ended before it could report a reason. Contains the end of its log.
    Killed(String),
}

/// Starts a coordinator while holding the lock, unless another client was faster.
fn start_alone(
    paths: &CoordinatorPaths,
    options: &ConnectOptions,
    timeout: &Timeout<'_>,
) -> Result<StartAttempt> {
    let find = || Connection::find(paths, options).map(|found| found.map(StartAttempt::Found));
    if let Some(found) = find()? {
        return Ok(found);
    }
    // A coordinator holds the lock, but it has no descriptor left for a connection, or is ending. A second one could not
    // take the lock, and would leave its log behind.
    if is_locked(paths) {
        return Ok(StartAttempt::Retry);
    }
    match spawn(paths, options, timeout) {
        Ok(None) => Ok(find()?.unwrap_or(StartAttempt::Retry)),
        Ok(Some(log)) => Ok(StartAttempt::Killed(log)),
        Err(e) if *e.kind() == ErrorKind::Start && is_locked(paths) => Ok(StartAttempt::Retry),
        Err(e) => Err(e),
    }
}

/// Returns `true` if a coordinator holds the lock, listening or not.
fn is_locked(paths: &CoordinatorPaths) -> bool {
    let Ok(file) = open_private(&paths.lock()) else {
        return false;
    };
    Flock::lock(file, FlockArg::LockSharedNonblock).is_err()
}

/// The lock of the client that starts a coordinator. Dropping it removes the file.
struct StartLock {
    path: PathBuf,
    id: (u64, u64),
    _lock: Flock<File>,
}

impl StartLock {
    fn try_take(paths: &CoordinatorPaths) -> Result<Option<Self>> {
        let path = paths.start_lock();
        let what = |e: std::io::Error| not_started(format!("cannot lock {}: {e}", path.display()));
        let file = open_private(&path).map_err(no_place)?;
        let opened = id(&file.metadata().map_err(what)?);
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            return Ok(None);
        };
        // An earlier holder may have removed the file between the opening and the locking.
        let is_current = std::fs::symlink_metadata(&path).is_ok_and(|now| id(&now) == opened);
        Ok(is_current.then_some(StartLock {
            path,
            id: opened,
            _lock: lock,
        }))
    }
}

impl Drop for StartLock {
    fn drop(&mut self) {
        // The file is removed while it is locked. A client that has opened it meanwhile sees that it is gone, and makes
        // a new one. If the folder was made again, the file belongs to another client and stays.
        if std::fs::metadata(&self.path).is_ok_and(|now| id(&now) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the device and inode of a file.
fn id(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// Starts a coordinator. Returns the end of its log if it ended without a report, which happens only to one that is
/// killed.
fn spawn(
    paths: &CoordinatorPaths,
    options: &ConnectOptions,
    timeout: &Timeout<'_>,
) -> Result<Option<String>> {
    let program = find_program(options.program.as_deref())?;
    let log = Log::open(&paths.log())?;
    let (ready, theirs) = nix::unistd::pipe2(OFlag::O_CLOEXEC)
        .map_err(|e| not_started(format!("cannot make a pipe: {e}")))?;
    run(&program, paths, &log, theirs)?;
    match wait_for_reply(ready, timeout)? {
        StartupReply::Ready => Ok(None),
        StartupReply::Failed(why) => Err(not_started(why)),
        StartupReply::Closed => Ok(Some(log.quote())),
        StartupReply::TimedOut => Err(not_started(format!(
            "it does not listen after {START_TIMEOUT:?}; {}",
            log.quote()
        ))),
    }
}

fn run(program: &Path, paths: &CoordinatorPaths, log: &Log, ready: OwnedFd) -> Result<()> {
    let what = |e: std::io::Error| not_started(format!("{}: {e}", program.display()));
    // The coordinator runs in `/`, so the path must be absolute.
    let socket = std::path::absolute(&paths.socket).map_err(what)?;
    let mut command = Command::new(program);
    command
        .args(["serve", "--auto", "--ready-fd"])
        .arg(ready.as_raw_fd().to_string());
    command
        .arg("--socket")
        .arg(socket)
        .current_dir("/")
        .stdin(Stdio::null());
    command.stdout(log.writer()).stderr(log.writer());
    raw::detach(&mut command, ready.as_raw_fd());
    // The process in between ends at once, so this wait is short.
    command
        .spawn()
        .and_then(|mut child| wait(&mut child))
        .map_err(what)
}

/// Waits for the end of a child. A program that ignores SIGCHLD has no children to wait for: they are gone when they end.
fn wait(child: &mut Child) -> std::io::Result<()> {
    match child.wait() {
        Err(e) if e.raw_os_error() == Some(Errno::ECHILD as i32) => Ok(()),
        ended => ended.map(drop),
    }
}

/// Finds the `coprep` program: `COPREP_BIN`, the path that the caller named, this very program, or `PATH`.
fn find_program(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("COPREP_BIN")
        .filter(|p| !p.is_empty())
        .map(PathBuf::from)
    {
        // A wrong setting is an error, because no other program than the one that the user named may start.
        return if program.is_file() {
            std::path::absolute(&program).map_err(|e| not_started(e.to_string()))
        } else {
            Err(not_started(format!(
                "COPREP_BIN names {}, which is no file",
                program.display()
            )))
        };
    }
    let named = named.filter(|p| p.is_file()).map(Path::to_owned);
    let itself = || {
        std::env::current_exe()
            .ok()
            // In a Python extension, the running program is the interpreter, which cannot serve.
            .filter(|p| p.file_name().is_some_and(|n| n == "coprep"))
    };
    named.or_else(itself).or_else(on_path).ok_or_else(|| {
        not_started("the program `coprep` is not found beside Python nor in PATH")
            .with_remedy("install coprep into this environment, or name the program in COPREP_BIN")
    })
}

/// Runs the `coprep` program and returns its output. Its errors are lost.
///
/// # Errors
/// [`ErrorKind::Start`] if it cannot be run; [`ErrorKind::Timeout`].
pub(crate) fn ask_program(
    named: Option<&Path>,
    arguments: &[&str],
    timeout: &Timeout<'_>,
) -> Result<String> {
    let program = find_program(named)?;
    let what = |e: std::io::Error| not_started(format!("{}: {e}", program.display()));
    let mut child = Command::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(what)?;
    let answered = read_all(&mut child, timeout);
    if answered.is_err() {
        let _ = child.kill();
    }
    wait(&mut child).map_err(what)?;
    answered
}

fn read_all(child: &mut Child, timeout: &Timeout<'_>) -> Result<String> {
    let mut output = Vec::new();
    let Some(mut pipe) = child.stdout.take() else {
        return Ok(String::new());
    };
    loop {
        if !timeout.until_readable(pipe.as_fd())? {
            let silent = "the program that was started says nothing".to_owned();
            return Err(timed_out("its answer", timeout.waited(), silent));
        }
        let mut part = [0; 512];
        match pipe.read(&mut part) {
            Ok(0) | Err(_) => return Ok(String::from_utf8_lossy(&output).into_owned()),
            Ok(n) => output.extend_from_slice(&part[..n]),
        }
    }
}

fn on_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&path).map(|folder| folder.join("coprep"));
    // A relative entry of PATH would name a different program in each working directory.
    candidates.filter(|p| p.is_absolute()).find(|p| p.is_file())
}

/// Report of a new coordinator on its pipe.
enum StartupReply {
    Ready,
    Failed(String),
    /// The pipe was closed without a report.
    Closed,
    TimedOut,
}

fn wait_for_reply(pipe: OwnedFd, timeout: &Timeout<'_>) -> Result<StartupReply> {
    let mut pipe = File::from(pipe);
    let mut line = Vec::new();
    while !line.contains(&b'\n') {
        if !timeout.until_readable(pipe.as_fd())? {
            return Ok(StartupReply::TimedOut);
        }
        let mut part = [0; 512];
        match pipe.read(&mut part) {
            Ok(0) => break,
            Ok(n) => line.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    Ok(parse(&line))
}

fn parse(line: &[u8]) -> StartupReply {
    let Ok(said) = serde_json::from_slice::<serde_json::Value>(line) else {
        return StartupReply::Closed;
    };
    match said.get("error").and_then(|e| e.as_str()) {
        Some(error) => StartupReply::Failed(error.to_owned()),
        None if said.get("ready").and_then(serde_json::Value::as_bool) == Some(true) => {
            StartupReply::Ready
        }
        None => StartupReply::Closed,
    }
}

/// Log of a coordinator.
struct Log {
    path: PathBuf,
    /// The file, or the reason why there is none: a full disk costs the log, not the job.
    file: paths::Result<File>,
    /// Length of the file before the coordinator started.
    start: u64,
}

impl Log {
    fn open(path: &Path) -> Result<Self> {
        let file = match open_private(path) {
            // The path may be a trap that another user has set, which is not a shortage that the job may ignore.
            Err(e) if *e.kind() == paths::ErrorKind::NotPrivate => return Err(no_place(e)),
            file => file,
        };
        let length = |file: &File| file.metadata().map_or(0, |metadata| metadata.len());
        Ok(Log {
            path: path.to_owned(),
            start: file.as_ref().map_or(0, length),
            file,
        })
    }

    fn writer(&self) -> Stdio {
        let copy = self
            .file
            .as_ref()
            .ok()
            .and_then(|file| file.try_clone().ok());
        copy.map_or_else(Stdio::null, Stdio::from)
    }

    /// Returns the end of the text written since the start.
    fn quote(&self) -> String {
        let file = match &self.file {
            Ok(file) => file,
            Err(e) => return format!("it has no log: {e}"),
        };
        let text = self.read(file).unwrap_or_default();
        match text.trim() {
            "" => format!("its log {} says nothing", self.path.display()),
            text => format!("the end of its log {}:\n{text}", self.path.display()),
        }
    }

    fn read(&self, file: &File) -> std::io::Result<String> {
        let mut file = file.try_clone()?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(
            self.start.max(end.saturating_sub(QUOTED_BYTES)),
        ))?;
        let mut bytes = Vec::new();
        file.take(QUOTED_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
