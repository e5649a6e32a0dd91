//! Orders of epochs, which the members of a cohort tell.
//!
//! Each member iterates its own sampler when it begins an epoch, and proposes the resulting order. The first proposal
//! is *settled*: it becomes the order of the epoch, and all members are handed it. Each of them keeps it as long as it
//! is in that epoch, so that any of them can tell it again if this process dies.
//!
//! **Invariant.** A client gives its user no sample of an epoch before it was handed the order. So if a user was given
//! any sample, that client knows the order, and says so when it attaches ([`Attach::knows_order_of`]). A proposal is
//! settled only when all members are here, and none of them knows another order of that epoch.
//!
//! [`Attach::knows_order_of`]: coprep_protocol::message::Attach::knows_order_of

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use coprep_protocol::message::{Attach, Reply};
use coprep_protocol::order;
use coprep_scheduler::JobId;

use crate::Result;
use crate::error::{invalid, os};
use crate::stream::consumer::{Consumer, Pending};
use crate::stream::engine::Engine;
use crate::stream::{Numbers, RankId};

/// The samples of an epoch, in their order.
#[derive(Clone)]
pub(crate) struct EpochOrder {
    ids: Arc<[u32]>,
    /// File with the same ids, which is handed to members.
    file: Arc<OwnedFd>,
}

/// The orders of a stream, by epoch.
#[derive(Default)]
pub(in crate::stream) struct CohortOrders {
    settled: BTreeMap<u64, EpochOrder>,
    /// The first proposal for each epoch that has no order.
    proposed: BTreeMap<u64, EpochOrder>,
    /// Epoch and number of the last batch that ended the largest allowed number of readers. `None` if a batch was made
    /// since.
    ended_readers: Option<(u64, u32)>,
}

impl EpochOrder {
    /// Reads an order that a client has written, for a dataset of `dataset_samples` samples.
    ///
    /// # Errors
    /// When it is malformed, names a sample that does not exist, or memory is short.
    pub(crate) fn read(file: OwnedFd, samples: u32, dataset_samples: u32) -> Result<Self> {
        let ids = order::read(file, samples).map_err(|e| os("the order of an epoch", e))?;
        if let Some(id) = ids.iter().find(|&&id| id >= dataset_samples) {
            return Err(invalid(format!(
                "the sampler gives the id {id}, and the dataset has {dataset_samples} samples"
            )));
        }
        // The client could change its own file, so members are handed a copy.
        let file = order::write(&ids).map_err(|e| os("the order of an epoch", e))?;
        Ok(EpochOrder {
            ids: ids.into(),
            file: Arc::new(file),
        })
    }
}

/// Checks the request of a job that tells its orders, or iterates its dataset.
///
/// # Errors
/// When the job is not a member of a cohort of single processes, or has a subset or draws.
pub(in crate::stream) fn check(request: &Attach) -> Result<()> {
    let is_valid = request.cohort.is_some()
        && request.world_size == 1
        && request.subset.is_none()
        && request.draws.is_none();
    if is_valid || !request.is_of_cohort() {
        return Ok(());
    }
    let what = if request.is_iterated() {
        "an iterable dataset"
    } else {
        "a sampler of its own"
    };
    Err(invalid(format!(
        "{what} is shared by the members of a cohort, each of one process"
    ))
    .with_remedy("attach without subset and without ranks"))
}

/// Returns the identity of a cohort whose epochs are its own, or 0 for other jobs.
pub(crate) fn cohort_key(request: &Attach) -> u128 {
    match &request.cohort {
        Some(cohort) if request.is_of_cohort() => {
            // 0 stands for jobs without such a cohort.
            xxhash_rust::xxh3::xxh3_128(cohort.name.as_bytes()).max(1)
        }
        _ => 0,
    }
}

impl Engine {
    /// Records an order that a member proposes, or was handed before.
    pub(in crate::stream) fn tell_order(
        &mut self,
        rank_id: RankId,
        epoch: u64,
        order: EpochOrder,
        is_settled: bool,
    ) {
        if let Some(job) = self.jobs.get_mut(&rank_id.job) {
            job.knows_order_of = None;
        }
        // The member is not in this epoch, or the epoch has its order already.
        if self.scheduler.untold(JobId(rank_id.job)) != Some(epoch) {
            return;
        }
        if is_settled {
            self.settle(epoch, order);
        } else {
            self.orders.proposed.entry(epoch).or_insert(order);
        }
    }

    /// Opens an epoch that a member begins, if its dataset can only be iterated.
    pub(in crate::stream) fn open_epoch(&mut self, rank_id: RankId, epoch: u64) {
        let is_untold = self.scheduler.untold(JobId(rank_id.job)) == Some(epoch);
        if is_untold && matches!(self.numbers, Numbers::Batches) {
            self.scheduler.open_epoch(epoch);
        }
    }

    /// Records that the dataset gave `batches` batches in an epoch.
    pub(in crate::stream) fn end_epoch(&mut self, epoch: u64, batches: u32) {
        self.scheduler.tell_epoch(epoch, batches);
    }

    /// Records that a batch has ended its readers. Returns another batch of its epoch that did, if none was made since.
    pub(in crate::stream) fn ended_readers(&mut self, epoch: u64, number: u32) -> Option<u32> {
        let other = self.orders.ended_readers.replace((epoch, number));
        other.filter(|&(of, _)| of == epoch).map(|(_, other)| other)
    }

    /// Records that a batch was made, so that readers get past the batches that ended some.
    pub(in crate::stream) fn forget_ended_readers(&mut self) {
        self.orders.ended_readers = None;
    }

    /// Returns how many batches the dataset gave in an epoch, if that is known.
    pub(in crate::stream) fn end_of(&self, epoch: u64) -> Option<u32> {
        self.scheduler.told_length(epoch)
    }

    /// Settles the proposals for which no member that may still come could know another order. Returns `true` if it
    /// did.
    pub(in crate::stream) fn settle_orders(&mut self) -> bool {
        let is_waiting =
            self.orders.proposed.is_empty() || self.scheduler.incomplete_cohorts().next().is_some();
        if is_waiting {
            return false;
        }
        let is_known = |epoch| {
            let mut jobs = self.jobs.values();
            jobs.any(|job| job.knows_order_of == Some(epoch))
        };
        let epochs = self.orders.proposed.keys().copied();
        let due: Vec<u64> = epochs.filter(|&epoch| !is_known(epoch)).collect();
        for epoch in &due {
            if let Some(order) = self.orders.proposed.remove(epoch) {
                self.settle(*epoch, order);
            }
        }
        !due.is_empty()
    }

    fn settle(&mut self, epoch: u64, order: EpochOrder) {
        self.orders.proposed.remove(&epoch);
        let oldest = self.scheduler.oldest_epoch().min(epoch);
        self.orders.settled.retain(|&other, _| other >= oldest);
        if let Numbers::Told(ids) = &mut self.numbers {
            ids.retain(|&other, _| other >= oldest);
            ids.insert(epoch, order.ids.clone());
        }
        self.scheduler.tell_epoch(epoch, order.ids.len() as u32);
        for consumer in self.consumers() {
            consumer.hand_order(epoch, &order);
        }
        self.orders.settled.insert(epoch, order);
    }

    /// Hands the orders that it needs to a job that has just come.
    pub(in crate::stream) fn hand_orders(&mut self, id: u64) {
        let epoch = self.scheduler.job(JobId(id)).map_or(0, |view| view.epoch);
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        for consumer in job.ranks.iter_mut().flatten() {
            for (&epoch, order) in self.orders.settled.range(epoch..) {
                consumer.hand_order(epoch, order);
            }
        }
    }

    /// Forgets all orders because all members have left. Another cohort of this name tells its own orders.
    pub(in crate::stream) fn forget_orders(&mut self) {
        self.orders = CohortOrders::default();
        if let Numbers::Told(orders) = &mut self.numbers {
            orders.clear();
        }
    }

    /// Tells jobs about epochs that have ended without a delivery to them.
    pub(in crate::stream) fn end_epochs_without_delivery(&mut self) {
        for (id, epoch) in self.scheduler.take_ended() {
            let Some(job) = self.jobs.get_mut(&id.0) else {
                continue;
            };
            for consumer in job.ranks.iter_mut().flatten() {
                consumer.pending.push_back(Pending::EpochEnd { epoch });
            }
        }
    }
}

impl Consumer {
    fn hand_order(&self, epoch: u64, order: &EpochOrder) {
        let samples = order.ids.len() as u32;
        let handed = order.file.as_fd().try_clone_to_owned().is_ok_and(|file| {
            let reply = Reply::Order { epoch, samples };
            self.reply_queue.post_with(&reply, vec![file]).is_ok()
        });
        if !handed {
            // The client reconnects, and is handed the order then.
            self.reply_queue.hang_up();
        }
    }
}
