//! Shadow samples: when a job joins a stream of Python code, a few samples are made from its memory too, and compared
//! ([`Comparison`]), and again now and then. If one differs, the job gets a stream of its own.
//!
//! The job waits for the result for a moment. If the result comes later, and the job must not share, its connection is
//! ended, and it gets a stream of its own when it connects again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use coprep_protocol::message::Attach;
use coprep_protocol::spec::{IdentityPart, Source};
use coprep_shared_memory::lock::lock;

use super::user_code::{job_ids, runs_code};
use super::{Registry, random_seed};
use crate::connection::peer::Peer;
use crate::produce::processes::{Comparison, GivenServer};
use crate::stream::{Client, Stream};

/// Longest time that a job waits for the result.
const PATIENCE: Duration = Duration::from_millis(300);
/// Number of samples that are compared.
const SAMPLES: u64 = 4;

/// The jobs that must not share although what counts of their datasets is the same.
#[derive(Default)]
pub(super) struct Shadows(Mutex<Vec<Apart>>);

/// A job that must not share.
struct Apart {
    pid: u32,
    process: Arc<Peer>,
    pipeline: u128,
    /// The difference from the datasets of others.
    part: IdentityPart,
}

/// The comparison of a job's samples with those of a stream.
pub(crate) struct Shadow {
    comparison: Comparison,
    ids: Vec<u32>,
    dataset: String,
    pipeline: u128,
}

impl Registry {
    /// Makes a difference between the dataset of a job and those of others, if its samples differ from theirs.
    pub(crate) fn keep_apart(&self, request: &mut Attach, client: &Client) {
        let mut all = lock(&self.shadows.0);
        if all.is_empty() {
            return;
        }
        all.retain(|apart| !apart.process.is_gone());
        let pipeline = request.pipeline.fingerprint();
        let is_of = |apart: &&Apart| (apart.pid, apart.pipeline) == (client.pid, pipeline);
        if let (Some(apart), Source::UserCode(user)) =
            (all.iter().find(is_of), &mut request.pipeline.source)
        {
            user.dataset.push(apart.part.clone());
        }
    }

    /// Returns the comparison that a job has to pass before it joins a stream, if it has to.
    pub(crate) fn shadow_of(
        &self,
        stream: &Stream,
        request: &Attach,
        client: &Client,
    ) -> Option<Shadow> {
        let (user, code) = runs_code(request)?;
        let process_pool = stream.config.producer.process_pool()?;
        if !code.has_shadows {
            return None;
        }
        if !process_pool.has_server_within(PATIENCE) {
            client.is_unproven.store(true, Ordering::Relaxed);
        }
        Some(Shadow {
            comparison: process_pool.comparison(client.pid)?,
            ids: some_ids(request, stream.config.producer.samples()),
            dataset: user.name.clone(),
            pipeline: request.pipeline.fingerprint(),
        })
    }
}

impl Shadow {
    /// Returns `true` if a job may join the stream, as far as that is known within a moment.
    pub(super) fn lets_join(
        self,
        registry: &Arc<Registry>,
        client: &Client,
        given: GivenServer,
    ) -> bool {
        let (tell, told) = mpsc::channel();
        let is_awaited = Arc::new(AtomicBool::new(true));
        let awaited = is_awaited.clone();
        self.start(registry, client, given, move |may_join| {
            let is_awaited = awaited.swap(false, Ordering::SeqCst);
            // The one who waits is there until it is told.
            is_awaited && tell.send(may_join).is_ok()
        });
        told.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            // The result may have come just now. Without a thread there is none, and the job may join.
            is_awaited.swap(false, Ordering::SeqCst) || told.recv().unwrap_or(true)
        })
    }

    /// Compares the samples of a job that is in the stream.
    pub(crate) fn look(self, registry: &Arc<Registry>, client: &Client, given: GivenServer) {
        self.start(registry, client, given, |_| false);
    }

    /// Compares in a thread. `tell` is told whether the job may be in the stream, and returns `false` if the job is there
    /// already.
    fn start(
        self,
        registry: &Arc<Registry>,
        client: &Client,
        given: GivenServer,
        tell: impl FnOnce(bool) -> bool + Send + 'static,
    ) {
        let (registry, client) = (registry.clone(), client.clone());
        let run = move || {
            let may_join = self.run(&registry, &client, given);
            if !tell(may_join) && !may_join {
                // It connects again, and is then kept apart.
                client.reply_queue.part();
            }
        };
        let thread = std::thread::Builder::new().name("shadow".into());
        if let Err(e) = thread.spawn(run) {
            tracing::warn!(error = %e, "samples could not be compared");
        }
    }

    fn run(&self, registry: &Registry, client: &Client, given: GivenServer) -> bool {
        let sample = match self.comparison.run(given, &self.ids) {
            Ok(Some(sample)) => sample,
            Ok(None) => return true,
            Err(e) => {
                tracing::debug!(error = %e, dataset = self.dataset, "samples could not be compared");
                client.is_unproven.store(true, Ordering::Relaxed);
                return true;
            }
        };
        tracing::warn!(
            dataset = self.dataset,
            pid = client.pid,
            sample,
            "a job's samples differ from those of its stream"
        );
        let part = IdentityPart {
            name: format!("sample {sample}"),
            hash: u128::from(random_seed()) << 64 | u128::from(random_seed()),
            value: String::new(),
            why: "made from the memory of both jobs, it is not the same, although all that was found to count is. Say \
                  by __coprep_identity__ in what they differ, and report it: coprep should have found it"
                .into(),
        };
        lock(&registry.shadows.0).push(Apart {
            pid: client.pid,
            process: client.peer.clone(),
            pipeline: self.pipeline,
            part,
        });
        false
    }
}

/// Returns a few of a job's samples, others each time.
fn some_ids(request: &Attach, samples: u32) -> Vec<u32> {
    let set = job_ids(request);
    let len = set.as_ref().map_or(u64::from(samples), |set| set.len());
    let first = random_seed() % len.max(1);
    let positions = (0..SAMPLES.min(len)).map(|n| (first + n * len / SAMPLES) % len.max(1));
    let id_at = |position: u64| match &set {
        Some(set) => set.select(position as u32),
        None => Some(position as u32),
    };
    positions
        .filter_map(id_at)
        .filter(|&id| id < samples)
        .collect()
}
