//! The properties of a stream, and the identities of its clients and consumers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use coprep_protocol::message::{Attached, CacheForm};
use coprep_protocol::spec::{PipelineSpec, UserDataset};
use coprep_scheduler::{DrawOrder, Windows};

use crate::connection::peer::Peer;
use crate::connection::reply_queue::ReplyQueue;
use crate::produce::producer::Producer;
use crate::stream::Numbers;

/// The properties in which jobs must agree to share a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamKey {
    pub(crate) pipeline: u128,
    /// Number that stands for the variables by which the jobs' stores are described. It is 0 for jobs without any.
    pub(crate) stores: u64,
    pub(crate) shuffle: bool,
    /// Number of samples that a random order is drawn from at a time, or 0 for all.
    pub(crate) shuffle_window: u32,
    pub(crate) cache: CacheForm,
    pub(crate) lru: bool,
    pub(crate) reuse: u32,
    pub(crate) relaxed: bool,
    /// Identity of the draws of its epochs, or 0 if each sample is drawn once.
    pub(crate) draws: u128,
    /// Identity of a cohort whose epochs are its own, because it tells the order of each or iterates its dataset. It is
    /// 0 for all other jobs.
    pub(crate) told: u128,
}

impl StreamKey {
    /// Returns the order of samples that the stream's jobs are promised.
    pub(super) fn draw_order(&self) -> DrawOrder {
        // The sample for one number is as random as for another, so the order of numbers does not matter, and jobs
        // share most in this one.
        if self.draws != 0 {
            return DrawOrder::AscendingInCommon;
        }
        match (self.shuffle && self.told == 0, self.relaxed) {
            (true, _) => DrawOrder::Random,
            (false, false) => DrawOrder::Ascending,
            // A job that asked for relaxed order cares for the set of samples, and shares more of them.
            (false, true) => DrawOrder::AscendingInCommon,
        }
    }
}

/// The parts and properties of a new stream.
pub(crate) struct StreamConfig {
    pub(crate) id: u64,
    pub(crate) key: StreamKey,
    /// `true` if its first job named no form of the cache. Such a stream serves all jobs that name none.
    pub(crate) takes_any_form: bool,
    pub(crate) seed: u64,
    /// Maps the numbers of its epochs to samples.
    pub(crate) numbers: Numbers,
    pub(crate) producer: Producer,
    /// Identity of the user's dataset, by which datasets of user code are told apart.
    pub(crate) identity: Option<UserDataset>,
    pub(crate) dataset_name: String,
    pub(crate) pipeline_text: String,
    /// The pipeline, for streams that the coordinator's own pipelines make.
    pub(crate) spec: Option<PipelineSpec>,
    /// `true` if minibatches are handed over again without being prepared.
    pub(crate) is_replayed: bool,
    /// Set if samples are drawn from windows.
    pub(crate) windows: Option<Windows>,
}

/// The client process that attaches a consumer.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) reply_queue: Arc<ReplyQueue>,
    pub(crate) peer: Arc<Peer>,
    /// `true` if its samples should have been compared with those of its stream, and could not be.
    pub(crate) is_unproven: Arc<AtomicBool>,
}

impl Client {
    /// Returns `true` if the client has hung up, or its process has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.reply_queue.is_gone() || self.peer.is_gone()
    }
}

/// Identity of a consumer in its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RankId {
    pub(crate) job: u64,
    pub(crate) rank: u32,
}

/// The answer to a new consumer: its identity, its stream's properties and the descriptors that it maps.
pub(crate) struct Registration {
    pub(crate) rank_id: RankId,
    pub(crate) attached: Attached,
    pub(crate) descriptors: [std::os::fd::OwnedFd; 4],
}
