//! Loading a dataset of user code, and the inspection of its first samples.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_protocol::code::{self, Channel, Probed, Raised, WorkerReport};
use coprep_protocol::message::UserCode;
use coprep_protocol::polling::poll;
use nix::poll::{PollFd, PollFlags};

use crate::error::{ErrorKind, code_failed, invalid, os, sample_failed};
use crate::produce::failure::Failure;
use crate::produce::processes::fork_server::{
    ForkServer, Forked, GivenServer, REQUEST_TIMEOUT, WorkerEnd,
};
use crate::produce::processes::sample_shape::SampleShape;
use crate::{Error, Result};

/// A fork server of user code whose samples are known, and which makes nothing yet.
pub(crate) struct Loaded {
    pub(super) fork_server: Arc<ForkServer>,
    pub(crate) samples: u32,
    /// Fields and sizes of its samples.
    pub(crate) shape: SampleShape,
}

/// Largest packed exception that is passed on. Longer ones are passed on as text.
const MOST_EXCEPTION: usize = 1 << 20;

/// The samples of a dataset that are inspected when it is loaded, and the purpose.
pub(crate) struct Probing<F, B> {
    /// Returns the ids of the samples to inspect, given the number of samples.
    pub(crate) ids: F,
    /// `true` if there is a deterministic part to be cached.
    pub(crate) split: bool,
    /// Returns the most room that a slot may have for a blob, given the number of samples.
    pub(crate) most_blob: B,
    /// Number of workers that the stream will have.
    pub(crate) workers: u32,
}

impl Loaded {
    /// Takes over the fork server that a job has given, as long as somebody waits for it, and inspects some of the
    /// dataset's samples.
    pub(crate) fn start(
        given: GivenServer,
        code: &UserCode,
        is_awaited: impl Fn() -> bool,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>, impl FnOnce(u32) -> u64>,
    ) -> Result<Loaded> {
        let fork_server = ForkServer::start(given, is_awaited)?;
        Self::inspect(fork_server, code, probing)
    }

    fn inspect(
        fork_server: Arc<ForkServer>,
        code: &UserCode,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>, impl FnOnce(u32) -> u64>,
    ) -> Result<Loaded> {
        let Probing {
            ids,
            split,
            most_blob,
            workers,
        } = probing;
        let samples = fork_server.samples().unwrap_or(0);
        let inspection = Inspection {
            fork_server: &fork_server,
            workers,
            split,
            timeout: Duration::from_millis(code.sample_timeout_ms),
        };
        let inspected = u32::try_from(samples)
            .map_err(|_| invalid(format!("{samples} samples are more than 4,294,967,295")))
            .and_then(|samples| Ok((samples, inspection.run(&ids(samples))?)))
            .and_then(|(samples, probed)| Ok((samples, shape(probed, most_blob(samples))?)));
        match inspected {
            Ok((samples, shape)) => Ok(Loaded {
                fork_server,
                samples,
                shape,
            }),
            Err(e) => {
                fork_server.close();
                Err(e)
            }
        }
    }

    /// Ends the fork server of a dataset that nobody uses.
    pub(crate) fn discard(self) {
        self.fork_server.close();
    }
}

/// Number of samples that are inspected where there is a deterministic part to be cached. Its size is estimated from
/// them.
const SPLIT_INSPECTED: u8 = 4;
/// Number of workers that may end on the first samples.
const MOST_INSPECTORS: usize = 4;

/// Time that a worker has the first samples alone. After that all workers are started, as PyTorch's are: the dataset may
/// wait until each of them has a sample, or a sample may be slow.
const ALONE: Duration = Duration::from_millis(300);

/// The inspection of a dataset's first samples, by workers of its own. User code never runs in the fork server.
struct Inspection<'a> {
    fork_server: &'a ForkServer,
    /// Number of workers that the stream will have.
    workers: u32,
    /// `true` if there is a deterministic part to be cached.
    split: bool,
    /// Longest time of a sample.
    timeout: Duration,
}

impl Inspection<'_> {
    /// Returns the fields and sizes of samples.
    fn run(&self, ids: &[u32]) -> Result<Probed> {
        let enough = if self.split { SPLIT_INSPECTED } else { 1 };
        let inspect_first = || self.inspect(ids, enough, true);
        let first = match inspect_first() {
            Err(failed) if failed.is_of_sample() => failed,
            other => return other.map_err(|failed| failed.error),
        };
        // A sample that ends its worker, or takes for ever, is reported when it is due. Another sample shows the fields
        // of the others. It is inspected alone, because with several it is unknown which one ended the worker.
        for skipped in 1..MOST_INSPECTORS.min(ids.len()) {
            match self.inspect(&ids[skipped..], 1, false) {
                // The first worker's error is the one that is reported.
                Err(failed) if failed.is_of_sample() => {}
                // A fork server that was killed meanwhile is started anew.
                other => return other.map_err(|failed| failed.error),
            }
        }
        // Where there is no other sample, the same one has a second worker, as it has when it is due: the kernel may
        // have killed the first worker for want of memory.
        if ids.len() < 2 && first.has_ended {
            return inspect_first().map_err(|failed| failed.error);
        }
        Err(first.error)
    }

    /// Inspects `enough` of the samples `ids`: the first ones that do not fail. Inspects a few more if that is allowed,
    /// the samples have no fixed size, and they are quick.
    fn inspect(
        &self,
        ids: &[u32],
        enough: u8,
        may_inspect_more: bool,
    ) -> std::result::Result<Probed, InspectionError> {
        let limit = self.timeout.saturating_mul(enough.into());
        let end = Instant::now() + limit;
        let probe = code::probe(ids, enough, self.split, may_inspect_more);
        let mut first = self.start_worker(0, &probe)?;
        let mut answer = first.answer(limit.min(ALONE))?;
        let mut others = match answer {
            Some(_) => Vec::new(),
            None => self.start_others(ids),
        };
        while answer.is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(first.too_slow(limit).into());
            }
            wait_for_any(&first, &others, left)?;
            answer = first.answer(Duration::ZERO)?;
            others.retain_mut(|other| match other.answer(Duration::ZERO) {
                Ok(Some(probed)) if probed.raised.is_none() && !self.split => {
                    answer.get_or_insert(probed);
                    false
                }
                // The first worker's error is the one that is reported.
                answered => matches!(answered, Ok(None)),
            });
        }
        answer.ok_or_else(|| code_failed("the first samples have no answer").into())
    }

    fn start_worker(
        &self,
        id: u32,
        probe: &[u8],
    ) -> std::result::Result<Inspector<'_>, InspectionError> {
        Inspector::start(self.fork_server, (id, self.workers), None, probe)
    }

    /// Starts the workers but the first, with a sample each. Those that cannot be started are left out: the first one may
    /// answer without them.
    fn start_others(&self, ids: &[u32]) -> Vec<Inspector<'_>> {
        let others = (1..self.workers).zip(ids.iter().skip(1));
        let start = |(id, sample): (u32, &u32)| {
            let probe = code::probe(&[*sample], 1, self.split, false);
            self.start_worker(id, &probe).ok()
        };
        others.filter_map(start).collect()
    }
}

/// A worker that inspects samples, or makes samples only to be compared.
pub(super) struct Inspector<'a> {
    fork_server: &'a ForkServer,
    number: u32,
    channel: Channel,
}

impl<'a> Inspector<'a> {
    /// Starts worker `id` of `workers`, and sends it a request.
    pub(super) fn start(
        fork_server: &'a ForkServer,
        (id, workers): (u32, u32),
        seed: Option<u64>,
        request: &[u8],
    ) -> std::result::Result<Self, InspectionError> {
        let Forked { number, socket, .. } = fork_server.fork((id, workers), seed, None, &[])?;
        let inspector = Inspector {
            fork_server,
            number,
            channel: Channel::new(socket),
        };
        match inspector.channel.send(request, &[]) {
            Ok(()) => Ok(inspector),
            Err(e) => Err(inspector.gone(e)),
        }
    }

    /// Returns the worker's answer, or `None` if it does not answer within `limit`.
    pub(super) fn receive(
        &mut self,
        limit: Duration,
    ) -> std::result::Result<Option<Vec<u8>>, InspectionError> {
        self.channel.receive(limit).map_err(|e| self.gone(e))
    }

    /// Returns what the worker found, or `None` if it does not answer within `limit`.
    fn answer(&mut self, limit: Duration) -> std::result::Result<Option<Probed>, InspectionError> {
        let Some(message) = self.receive(limit)? else {
            return Ok(None);
        };
        match WorkerReport::parse(&message).map_err(code_failed)? {
            WorkerReport::Probed(probed) => Ok(Some(*probed)),
            other => Err(code_failed(format!("the first worker said {other:?}")).into()),
        }
    }

    /// Returns the error of a worker that has hung up.
    fn gone(&self, error: std::io::Error) -> InspectionError {
        let end = self
            .fork_server
            .wait_for_worker(self.number, Duration::from_secs(2));
        // Workers end with their fork server. Its end may become known before or after that of its workers.
        if let Some(killed) = self.fork_server.ended_while("to make the first samples") {
            return InspectionError::from(killed);
        }
        match end {
            Some(WorkerEnd::Alone(how)) => InspectionError {
                error: code_failed(format!("the worker that made the first samples {how}"))
                    .with_remedy("run with num_workers=0 to see what it does"),
                has_ended: true,
            },
            _ => os("the first worker does not answer", error).into(),
        }
    }

    /// Ends a worker that has not answered within `limit`, and returns its error.
    fn too_slow(&self, limit: Duration) -> Error {
        self.fork_server.kill(self.number);
        // The result of the wait does not matter. The wait keeps two such workers from working at the same time.
        let _ = self
            .fork_server
            .wait_for_worker(self.number, REQUEST_TIMEOUT);
        let limit = limit.as_secs_f64();
        code_failed(format!("the first samples took longer than {limit} s"))
            .with_remedy("give a longer timeout, or run with num_workers=0 to see why")
    }
}

impl Drop for Inspector<'_> {
    /// Ends the worker, also one that is still busy, as soon as it looks at its socket. The fork server's state has a copy
    /// of that, so it does not close by itself.
    fn drop(&mut self) {
        self.channel.hang_up();
    }
}

/// Waits until one of the workers has sent something or hung up, for `limit` at most.
fn wait_for_any(first: &Inspector<'_>, others: &[Inspector<'_>], limit: Duration) -> Result<()> {
    let all = std::iter::once(first).chain(others);
    let mut fds: Vec<_> = all
        .map(|inspector| PollFd::new(inspector.channel.as_fd(), PollFlags::POLLIN))
        .collect();
    poll(&mut fds, Some(limit)).map_err(|e| os("cannot wait for the first samples", e))?;
    Ok(())
}

/// The failure of an inspection.
pub(super) struct InspectionError {
    error: Error,
    /// `true` if the worker ended before it answered.
    has_ended: bool,
}

impl InspectionError {
    /// Returns `true` if another sample may not fail in this way.
    fn is_of_sample(&self) -> bool {
        matches!(self.error.kind(), ErrorKind::Code)
    }
}

impl From<InspectionError> for Error {
    fn from(failed: InspectionError) -> Self {
        failed.error
    }
}

impl From<Error> for InspectionError {
    fn from(error: Error) -> Self {
        InspectionError {
            error,
            has_ended: false,
        }
    }
}

fn shape(mut probed: Probed, most_blob: u64) -> Result<SampleShape> {
    if let Some(raised) = probed.raised.take() {
        let id = raised.id;
        let failure = failure(raised, "0".into()).map_err(code_failed)?;
        return Err(sample_failed(failure.of_sample(0, id, String::new())));
    }
    SampleShape::of(probed, most_blob)
}

/// Converts the exception of a sample.
///
/// # Errors
/// If its hexadecimal text is malformed.
pub(super) fn failure(raised: Raised, worker: String) -> std::result::Result<Failure, String> {
    let mut exception = code::unhex(&raised.exception)?;
    if exception.len() > MOST_EXCEPTION {
        exception.clear();
    }
    let stage = match raised.stage.as_str() {
        "transform" => "transform",
        Raised::END => Raised::END,
        _ => "dataset",
    };
    Ok(Failure {
        worker,
        exception,
        ..Failure::new(stage, raised.message)
    })
}
