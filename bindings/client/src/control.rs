//! Requests that commands make of the coordinator.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use coprep_device::ErrorKind as DeviceErrorKind;
use coprep_protocol::message::{Describe, Reply, Request, Status, Warm, WarmProgress};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::spec::{Field, PipelineSpec};

use crate::connection::{ConnectOptions, Connection};
use crate::credentials::OwnedLink;
use crate::error::{Error, ErrorKind, Result, refused, violation};
use crate::launch::ask_program;
use crate::notice::no_notice;
use crate::timeout::{InterruptCheck, Timeout, no_interrupt};

/// Longest wait for an answer that needs no work.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for an answer that needs a dataset to be listed or memory to be reserved.
const WORK_TIMEOUT: Duration = Duration::from_secs(600);
/// Number of coordinators that are asked for a description before the last one's end is an error. A listing that ends
/// each coordinator must not start new ones for ever.
const ATTEMPTS: u32 = 5;
/// Longest time that a driver may take to answer. It takes some seconds where no other process uses a GPU.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that a coordinator may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

fn unexpected<T>(reply: &Reply) -> Result<T> {
    Err(violation(format!("unexpected answer {reply:?}")))
}

/// Returns the state of a running coordinator, with the `slow` most expensive samples of each stream.
///
/// # Errors
/// [`crate::ErrorKind::Absent`] when none runs.
pub fn status(paths: &CoordinatorPaths, slow: u32) -> Result<Status> {
    let connection = Connection::open(paths, &ConnectOptions::find("coprep status"))?;
    let request = Request::Status { slow };
    match connection.ask(&request, "the status", ANSWER_TIMEOUT, &no_interrupt())? {
        Reply::Status(status) => Ok(*status),
        other => unexpected(&other),
    }
}

/// Asks the NVIDIA driver, in a process of its own, whether a GPU can be used. Returns the newest version of CUDA that
/// the driver supports, such as `13.0`.
///
/// The process of the caller does not begin to use CUDA by that, and may still fork children that do. `program` is the
/// path of the `coprep` program, unless `COPREP_BIN` names another.
///
/// # Errors
/// [`crate::ErrorKind::Device`] in the driver's words; or the program cannot be run.
pub fn check_gpu(
    program: Option<&Path>,
    number: u32,
    interrupt_check: &InterruptCheck,
) -> Result<String> {
    let unusable = |why: String| Error::new(ErrorKind::Device(DeviceErrorKind::Refused), why);
    let timeout = Timeout::new(DRIVER_TIMEOUT, interrupt_check);
    let number = number.to_string();
    let answer = match ask_program(program, &["check-gpu", &number], &timeout) {
        Err(e) if *e.kind() == ErrorKind::Timeout => {
            let seconds = DRIVER_TIMEOUT.as_secs();
            let error = unusable(format!("the NVIDIA driver does not answer for {seconds} s"));
            return Err(error.with_remedy(
                "check that nvidia-smi works, and look for messages of the driver in dmesg",
            ));
        }
        answer => answer?,
    };
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
    match (answer["cuda"].as_str(), answer["error"].as_str()) {
        (Some(version), _) => Ok(version.to_owned()),
        (None, Some(error)) => Err(unusable(error.to_owned())),
        (None, None) => Err(
            unusable("the NVIDIA driver ended the process that asked it".into())
                .with_remedy("run `coprep doctor`, and look for messages of the driver in dmesg"),
        ),
    }
}

/// Ends a running coordinator and waits until it has released its socket. Returns its process id.
///
/// # Errors
/// [`crate::ErrorKind::Absent`] when none runs.
pub fn stop(paths: &CoordinatorPaths) -> Result<u32> {
    let connection = Connection::open(paths, &ConnectOptions::find("coprep stop"))?;
    // The file is noted before the request: afterwards it may be gone, or belong to the next coordinator.
    let lock = inode(paths);
    match connection.ask(
        &Request::Stop,
        "the coordinator to end",
        ANSWER_TIMEOUT,
        &no_interrupt(),
    ) {
        // The coordinator may hang up before its answer is read.
        Ok(Reply::Stopping) => {}
        Ok(other) => return unexpected(&other),
        Err(e) if e.kind().is_lost() => {}
        Err(e) => return Err(e),
    }
    let interrupt_check = no_interrupt();
    let timeout = Timeout::new(STOP_TIMEOUT, &interrupt_check);
    // A coordinator removes the lock file when it has ended its sessions. A killed one leaves it behind, so its process
    // is looked for too.
    while lock.is_some() && inode(paths) == lock && is_running(connection.pid) {
        if timeout.is_over() {
            return Err(connection.timeout_error("the coordinator to end", STOP_TIMEOUT));
        }
        timeout.sleep(Duration::from_millis(5))?;
    }
    Ok(connection.pid)
}

fn inode(paths: &CoordinatorPaths) -> Option<u64> {
    std::fs::symlink_metadata(paths.lock())
        .ok()
        .map(|file| file.ino())
}

fn is_running(pid: u32) -> bool {
    let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
    nix::sys::signal::kill(pid, None) != Err(nix::errno::Errno::ESRCH)
}

/// Length, classes and output of a source with its operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Number of samples.
    pub samples: u32,
    /// Class names, by label.
    pub classes: Vec<String>,
    /// Tensors of a batch. Empty without operators.
    pub fields: Vec<Field>,
}

/// Returns the length and classes of a source, and the output of its operators, if there are any. `credentials` gives those
/// of its stores, if the environment does not name them.
///
/// # Errors
/// [`crate::ErrorKind::Refused`] when the source cannot be read, and the errors of connecting.
pub fn describe(
    paths: &CoordinatorPaths,
    options: &ConnectOptions,
    request: Describe,
    credentials: Option<&OwnedLink>,
) -> Result<Description> {
    let mut attempts = 1;
    loop {
        match try_describe(paths, options, request.clone(), credentials) {
            // It was killed, or it ended because nobody needed it any more. Connecting again may start another one.
            Err(e) if e.kind().is_lost() && attempts < ATTEMPTS => attempts += 1,
            described => return described,
        }
    }
}

fn try_describe(
    paths: &CoordinatorPaths,
    options: &ConnectOptions,
    mut request: Describe,
    credentials: Option<&OwnedLink>,
) -> Result<Description> {
    let connection = Connection::open(paths, options)?;
    request.provider = provider(&connection, options, credentials)?;
    let request = &Request::Describe(Box::new(request));
    let what = "the dataset's length and classes";
    match connection.ask(request, what, WORK_TIMEOUT, &options.interrupt_check)? {
        Reply::Described {
            samples,
            classes,
            fields,
        } => Ok(Description {
            samples,
            classes,
            fields,
        }),
        other => unexpected(&other),
    }
}

/// Returns the number of the credentials for requests over a connection, or `None` if none are to be given.
fn provider(
    connection: &Connection,
    options: &ConnectOptions,
    credentials: Option<&OwnedLink>,
) -> Result<Option<u128>> {
    let of_connection =
        |link: &OwnedLink| link.provider(connection, WORK_TIMEOUT, &options.interrupt_check);
    credentials.map(of_connection).transpose()
}

/// Frees the caches that no job uses, or only that of one dataset. Returns the number of freed bytes.
///
/// # Errors
/// [`crate::ErrorKind::Absent`] when no coordinator runs.
pub fn drop_caches(paths: &CoordinatorPaths, dataset: Option<String>) -> Result<u64> {
    let connection = Connection::open(paths, &ConnectOptions::find("coprep drop"))?;
    match connection.ask(
        &Request::Drop { name: dataset },
        "caches to be freed",
        ANSWER_TIMEOUT,
        &no_interrupt(),
    )? {
        Reply::Dropped { bytes } => Ok(bytes),
        other => unexpected(&other),
    }
}

/// Tells the coordinator that the cache of a stream was filled on purpose. The cache then stays for as long as a warmed
/// one, and with `keep` it never gives way to another. Returns the counts of its samples and bytes.
///
/// # Errors
/// [`crate::ErrorKind::Refused`] when there is no such stream, or it has no cache; [`crate::ErrorKind::Absent`] when no coordinator runs.
pub fn keep_warm(paths: &CoordinatorPaths, stream: u64, keep: bool) -> Result<WarmProgress> {
    let connection = Connection::open(paths, &ConnectOptions::find("coprep warm"))?;
    let request = Request::KeepWarm { stream, keep };
    match connection.ask(
        &request,
        "a cache to be kept",
        ANSWER_TIMEOUT,
        &no_interrupt(),
    )? {
        Reply::Warmed(done) => Ok(done),
        other => unexpected(&other),
    }
}

/// Returns the pipeline of a stream, or `None` if the jobs' own code makes its samples.
///
/// # Errors
/// [`crate::ErrorKind::Refused`] when there is no such stream, [`crate::ErrorKind::Absent`] when there is no coordinator.
pub fn pipeline(paths: &CoordinatorPaths, stream: u64) -> Result<Option<PipelineSpec>> {
    let connection = Connection::open(paths, &ConnectOptions::find("coprep analyze"))?;
    let request = Request::Pipeline { stream };
    match connection.ask(
        &request,
        "a stream's operators",
        ANSWER_TIMEOUT,
        &no_interrupt(),
    )? {
        Reply::Pipeline(spec) => Ok(spec.map(|spec| *spec)),
        other => unexpected(&other),
    }
}

/// Slows storage down for all later reads. Without a rate and a latency, storage is as fast as it is.
///
/// # Errors
/// [`crate::ErrorKind::Absent`] when there is no coordinator.
pub fn throttle(
    paths: &CoordinatorPaths,
    bytes_per_s: Option<u64>,
    latency: Duration,
) -> Result<()> {
    let connection = Connection::open(paths, &ConnectOptions::find("coprep throttle"))?;
    let request = Request::Throttle {
        bytes_per_s,
        latency_ns: u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX),
    };
    match connection.ask(
        &request,
        "storage to be throttled",
        ANSWER_TIMEOUT,
        &no_interrupt(),
    )? {
        Reply::Throttled => Ok(()),
        other => unexpected(&other),
    }
}

/// Fills a cache, and starts a coordinator for it if there is none. `progress` is called several times a second. Ending
/// the calling process (Ctrl-C) ends the warm-up, and the samples cached so far stay.
///
/// # Errors
/// [`crate::ErrorKind::Refused`], [`crate::ErrorKind::Disconnected`] when the coordinator ends meanwhile.
pub fn warm(
    paths: &CoordinatorPaths,
    request: Warm,
    progress: impl FnMut(&WarmProgress),
) -> Result<WarmProgress> {
    warm_with(
        paths,
        &ConnectOptions::start("coprep warm"),
        request,
        None,
        progress,
    )
}

/// Fills a cache as [`warm`] does, over a connection with these options. `credentials` gives those of the source's stores,
/// if the environment does not name them.
///
/// # Errors
/// As [`warm`].
pub fn warm_with(
    paths: &CoordinatorPaths,
    options: &ConnectOptions,
    mut request: Warm,
    credentials: Option<&OwnedLink>,
    mut progress: impl FnMut(&WarmProgress),
) -> Result<WarmProgress> {
    let connection = Connection::open(paths, options)?;
    request.provider = provider(&connection, options, credentials)?;
    connection.send(&Request::Warm(Box::new(request)))?;
    loop {
        match next_progress(&connection, &options.interrupt_check)? {
            Reply::Progress(so_far) => progress(&so_far),
            Reply::Warmed(done) => return Ok(done),
            Reply::Refused(refusal) => return Err(refused(refusal)),
            other => return unexpected(&other),
        }
    }
}

fn next_progress(connection: &Connection, interrupt_check: &InterruptCheck) -> Result<Reply> {
    // Each report gets the whole limit, because filling a cache may take hours.
    let timeout = Timeout::new(WORK_TIMEOUT, interrupt_check);
    let answer = connection.answer("news of the warm-up", &timeout, &no_notice())?;
    Ok(answer.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coprep_protocol::frame;
    use coprep_protocol::spec::{FileList, Source};
    use coprep_protocol::store_variables::StoreVariables;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// Answers `clients` clients one after the other. The first ones are hung up on when they have asked, as by a
    /// coordinator that is killed.
    fn serve(listener: &UnixListener, clients: u32, killed: u32) {
        for client in 0..clients {
            let (socket, _) = listener.accept().unwrap();
            let (hello, _) = frame::receive::<Request>(&socket).unwrap();
            assert!(matches!(hello, Request::Hello { .. }));
            let version = env!("CARGO_PKG_VERSION").into();
            frame::send(&socket, &Reply::Welcome { pid: 1, version }, &[]).unwrap();
            let (asked, _) = frame::receive::<Request>(&socket).unwrap();
            assert!(matches!(asked, Request::Describe(_)));
            if client < killed {
                continue;
            }
            let described = Reply::Described {
                samples: 7,
                classes: Vec::new(),
                fields: Vec::new(),
            };
            frame::send(&socket, &described, &[]).unwrap();
        }
    }

    fn describe_with(clients: u32, killed: u32) -> Result<Description> {
        let folder = tempfile::tempdir().unwrap();
        let paths = CoordinatorPaths::at(folder.path().join("socket"));
        let listener = UnixListener::bind(&paths.socket).unwrap();
        let request = Describe {
            pipeline: PipelineSpec {
                source: Source::Files(FileList {
                    paths: vec!["/data/a.jpg".into()],
                    labels: vec![0],
                }),
                ops: Vec::new(),
            },
            store_variables: StoreVariables::default(),
            provider: None,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&listener, clients, killed));
            let described = describe(&paths, &ConnectOptions::find("test"), request, None);
            // If clients are missing, this ends the wait for them, and the test fails.
            drop(UnixStream::connect(&paths.socket));
            described
        })
    }

    #[test]
    fn another_coordinator_is_asked_for_a_description_when_one_ends_before_it_answers() {
        assert_eq!(describe_with(3, 2).unwrap().samples, 7);
    }

    #[test]
    fn a_description_that_ends_every_coordinator_is_an_error_in_the_end() {
        let error = describe_with(ATTEMPTS, ATTEMPTS).unwrap_err();
        assert!(error.kind().is_lost(), "{error}");
    }
}
