//! Loading a dataset of user code, and the inspection of its first samples.

use std::sync::Arc;
use std::time::Duration;

use coprep_protocol::code::{self, Channel, Probed, Raised, WorkerReport};
use coprep_protocol::message::UserCode;

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
pub(crate) struct Probing<F> {
    /// Returns the ids of the samples to inspect, given the number of samples.
    pub(crate) ids: F,
    /// `true` if there is a deterministic part to be cached.
    pub(crate) split: bool,
    /// Most room that a slot may have for a blob.
    pub(crate) most_blob: u64,
}

impl Loaded {
    /// Takes over the fork server that a job has given, as long as somebody waits for it, and inspects some of the
    /// dataset's samples.
    pub(crate) fn start(
        given: GivenServer,
        code: &UserCode,
        is_awaited: impl Fn() -> bool,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Loaded> {
        let fork_server = ForkServer::start(given, is_awaited)?;
        Self::inspect(fork_server, code, probing)
    }

    fn inspect(
        fork_server: Arc<ForkServer>,
        code: &UserCode,
        probing: Probing<impl FnOnce(u32) -> Vec<u32>>,
    ) -> Result<Loaded> {
        let Probing {
            ids,
            split,
            most_blob,
        } = probing;
        let samples = fork_server.samples().unwrap_or(0);
        let timeout = Duration::from_millis(code.sample_timeout_ms);
        let inspected = u32::try_from(samples)
            .map_err(|_| invalid(format!("{samples} samples are more than 4,294,967,295")))
            .and_then(|samples| {
                Ok((
                    samples,
                    inspect(&fork_server, &ids(samples), split, timeout)?,
                ))
            })
            .and_then(|(samples, probed)| Ok((samples, shape(probed, most_blob)?)));
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

/// Asks a worker of its own about the fields and sizes of a sample. User code never runs in the fork server.
fn inspect(
    fork_server: &ForkServer,
    ids: &[u32],
    split: bool,
    timeout: Duration,
) -> Result<Probed> {
    let enough = if split { SPLIT_INSPECTED } else { 1 };
    let inspect_first = || inspect_once(fork_server, ids, split, enough, true, timeout);
    let first = match inspect_first() {
        Err(failed) if failed.is_of_sample() => failed,
        other => return other.map_err(|failed| failed.error),
    };
    // A sample that ends its worker, or takes for ever, is reported when it is due. Another sample shows the fields of
    // the others. It is inspected alone, because with several it is unknown which one ended the worker.
    for skipped in 1..MOST_INSPECTORS.min(ids.len()) {
        match inspect_once(fork_server, &ids[skipped..], split, 1, false, timeout) {
            // The first worker's error is the one that is reported.
            Err(failed) if failed.is_of_sample() => {}
            // A fork server that was killed meanwhile is started anew.
            other => return other.map_err(|failed| failed.error),
        }
    }
    // Where there is no other sample, the same one has a second worker, as it has when it is due: the kernel may have
    // killed the first worker for want of memory.
    if ids.len() < 2 && first.has_ended {
        return inspect_first().map_err(|failed| failed.error);
    }
    Err(first.error)
}

/// The failure of an inspection.
struct InspectionError {
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

impl From<Error> for InspectionError {
    fn from(error: Error) -> Self {
        InspectionError {
            error,
            has_ended: false,
        }
    }
}

/// Inspects `enough` of the samples `ids`: the first ones that do not fail. Inspects a few more if that is allowed, the
/// samples have no fixed size, and they are quick.
fn inspect_once(
    fork_server: &ForkServer,
    ids: &[u32],
    split: bool,
    enough: u8,
    may_inspect_more: bool,
    timeout: Duration,
) -> std::result::Result<Probed, InspectionError> {
    let Forked { number, socket, .. } = fork_server.fork(0, 1, None, &[])?;
    let mut channel = Channel::new(socket);
    let gone = |e: std::io::Error| {
        let end = fork_server.wait_for_worker(number, Duration::from_secs(2));
        // Workers end with their fork server. Its end may become known before or after that of its workers.
        if let Some(killed) = fork_server.ended_while("to make the first samples") {
            return InspectionError::from(killed);
        }
        match end {
            Some(WorkerEnd::Alone(how)) => InspectionError {
                error: code_failed(format!("the worker that made the first samples {how}"))
                    .with_remedy("run with num_workers=0 to see what it does"),
                has_ended: true,
            },
            _ => os("the first worker does not answer", e).into(),
        }
    };
    channel
        .send(&code::probe(ids, enough, split, may_inspect_more), &[])
        .map_err(gone)?;
    let limit = timeout.saturating_mul(enough.into());
    let message = channel.receive(limit).map_err(gone)?.ok_or_else(|| {
        fork_server.kill(number);
        // The result of the wait does not matter. The wait keeps two such workers from working at the same time.
        let _ = fork_server.wait_for_worker(number, REQUEST_TIMEOUT);
        let limit = limit.as_secs_f64();
        code_failed(format!("the first samples took longer than {limit} s"))
            .with_remedy("give a longer timeout, or run with num_workers=0 to see why")
    })?;
    match WorkerReport::parse(&message).map_err(code_failed)? {
        WorkerReport::Probed(probed) => Ok(*probed),
        other => Err(code_failed(format!("the first worker said {other:?}")).into()),
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
