//! Samples that are made only to be compared: from the memory of a job that joins, and from that of the stream's.
//!
//! Two jobs share if what counts of their datasets is the same. What counts is found by an analysis of their code, which
//! may miss something. So a few samples are made from both memories by the same random numbers, each in workers of its
//! own. Only if all makes of each side agree, and the two sides do not, the memories differ. An error, a sample that is
//! late, and one that is another each time it is made prove nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coprep_protocol::code::{self, Remade, WorkerReport};

use crate::Result;
use crate::error::code_failed;
use crate::produce::processes::ProcessPool;
use crate::produce::processes::fork_server::{ForkServer, GivenServer};
use crate::produce::processes::loading::Inspector;

/// Number of a sample's makes in one worker, when the first ones of both sides differ.
const AGAIN: u8 = 2;

/// A comparison that can be made.
pub(crate) struct Comparison {
    stream: Arc<ForkServer>,
    workers: u32,
    seed: u64,
    timeout: Duration,
}

impl ProcessPool {
    /// Returns `true` if the pool has a fork server. It is waited for: between epochs the next one is only just coming.
    pub(crate) fn has_server_within(&self, patience: Duration) -> bool {
        if self.server().is_none() {
            self.wait_for_server(patience);
        }
        self.server().is_some()
    }

    /// Returns a comparison with the memory of the pool's fork server. `None` if it has none, or if that was forked from
    /// process `pid` itself.
    pub(crate) fn comparison(&self, pid: u32) -> Option<Comparison> {
        let stream = self.server()?;
        (stream.giver.pid != pid).then(|| Comparison {
            stream,
            workers: self.workers(),
            seed: self.staging.seed,
            timeout: self.timeout,
        })
    }
}

impl Comparison {
    /// Returns a sample that is another in the memory of the fork server `given`. Ends that fork server.
    ///
    /// # Errors
    /// When a process ends or is late.
    pub(crate) fn run(&self, given: GivenServer, ids: &[u32]) -> Result<Option<u32>> {
        let giver = given.giver.clone();
        let joining = ForkServer::start(given, || !giver.is_gone())?;
        let found = self.find(&joining, ids);
        joining.close();
        found
    }

    fn find(&self, joining: &ForkServer, ids: &[u32]) -> Result<Option<u32>> {
        let differs =
            |(stream, joining): &Both| stream.is_some() && joining.is_some() && stream != joining;
        let first = self.make(joining, ids, 1)?;
        if !first.iter().any(differs) {
            return Ok(None);
        }
        let again = self.make(joining, ids, AGAIN)?;
        let mut makes = ids.iter().zip(first.iter().zip(&again));
        let found = makes.find(|(_, (first, again))| differs(first) && first == again);
        Ok(found.map(|(&id, _)| id))
    }

    /// Makes samples on both sides, by a new worker each.
    fn make(&self, joining: &ForkServer, ids: &[u32], times: u8) -> Result<Vec<Both>> {
        let end = Instant::now() + self.timeout;
        let request = code::remake(ids, times);
        let start = |server| Inspector::start(server, (0, self.workers), Some(self.seed), &request);
        let (mut stream, mut joining) = (start(&self.stream)?, start(joining)?);
        let digests = |worker: &mut Inspector<'_>| {
            let message = worker.receive(end.saturating_duration_since(Instant::now()))?;
            let message = message.ok_or_else(|| code_failed("a sample to compare is late"))?;
            match WorkerReport::parse(&message).map_err(code_failed)? {
                WorkerReport::Remade(Remade { digests }) if digests.len() == ids.len() => {
                    Ok(digests)
                }
                other => Err(code_failed(format!("a worker said {other:?}"))),
            }
        };
        let (stream, joining) = (digests(&mut stream)?, digests(&mut joining)?);
        Ok(stream.into_iter().zip(joining).collect())
    }
}

/// Digests of a sample, as the stream and the joining job make it.
type Both = (Option<String>, Option<String>);
