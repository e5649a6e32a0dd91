//! Orders of epochs in a cohort: the proposal of this member, and the orders that the coordinator has settled.
//!
//! This module is pure: it does no I/O and reads no clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Result, invalid};

/// The orders that one member knows.
#[derive(Default)]
pub(super) struct SentOrders {
    /// Settled orders by epoch. All members receive the samples of an epoch in its settled order.
    settled: BTreeMap<u64, Arc<[u32]>>,
    /// The order that this member has proposed for the epoch that it has begun, until the settled order comes.
    proposed: Option<(u64, Arc<[u32]>)>,
}

impl SentOrders {
    pub(super) fn settled(&self, epoch: u64) -> Option<&Arc<[u32]>> {
        self.settled.get(&epoch)
    }

    pub(super) fn proposed(&self, epoch: u64) -> Option<&Arc<[u32]>> {
        let own = self.proposed.as_ref().filter(|(of, _)| *of == epoch);
        own.map(|(_, order)| order)
    }

    /// Records that the user begins `epoch`. Orders of earlier epochs are dropped.
    ///
    /// # Errors
    /// When the order of the epoch is not known, and none is proposed.
    pub(super) fn begin(&mut self, epoch: u64, order: Option<Vec<u32>>) -> Result<()> {
        self.settled.retain(|&of, _| of >= epoch);
        if self.settled.contains_key(&epoch) {
            self.proposed = None;
            return Ok(());
        }
        let order = order.ok_or_else(|| {
            invalid(format!("the order of epoch {epoch} is not known")).with_remedy("propose one")
        })?;
        self.proposed = Some((epoch, order.into()));
        Ok(())
    }

    /// Drops all orders except that of `epoch`, which is sent to another coordinator. The user was given no sample of a
    /// later epoch, so a member that is in that epoch sends its order.
    pub(super) fn keep_only(&mut self, epoch: u64) {
        self.settled.retain(|&of, _| of == epoch);
    }

    /// Records a settled order. `has_given` says whether the user was given samples of that
    /// epoch.
    ///
    /// # Errors
    /// When the user was given samples in another order: the samples to come would not be the rest of the epoch that the
    /// user has begun.
    pub(super) fn settle(&mut self, epoch: u64, order: Vec<u32>, has_given: bool) -> Result<()> {
        let order = order.into();
        match self.settled.get(&epoch) {
            Some(known) if has_given && *known != order => Err(invalid(format!(
                "the other members of the cohort have gone on with epoch {epoch} in another order than this one was given \
                 it in, since it came back too late, or resumes another state"
            ))
            .with_remedy("end all members, and resume them together")),
            _ => {
                // The settled order replaces the proposal.
                self.proposed.take_if(|(of, _)| *of == epoch);
                self.settled.insert(epoch, order);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proposal_is_forgotten_when_the_order_is_settled() {
        let mut orders = SentOrders::default();
        orders.begin(3, Some(vec![1, 2])).expect("an order");
        assert_eq!(orders.proposed(3).map(|o| o.to_vec()), Some(vec![1, 2]));
        assert!(orders.proposed(4).is_none() && orders.settled(3).is_none());
        orders
            .settle(3, vec![2, 1], false)
            .expect("it is the first");
        assert!(orders.proposed(3).is_none());
        assert_eq!(orders.settled(3).map(|o| o.to_vec()), Some(vec![2, 1]));
    }

    #[test]
    fn another_order_of_an_epoch_is_refused_if_the_user_was_given_samples_of_it() {
        let mut orders = SentOrders::default();
        orders
            .settle(0, vec![2, 1], false)
            .expect("it is the first");
        assert!(orders.settle(0, vec![2, 1], true).is_ok());
        assert!(orders.settle(0, vec![1, 2], true).is_err());
        assert!(orders.settle(0, vec![1, 2], false).is_ok());
    }

    #[test]
    fn a_member_that_reattaches_knows_the_order_of_its_epoch_alone() {
        let mut orders = SentOrders::default();
        for epoch in 0..3 {
            let settled = orders.settle(epoch, vec![1], false);
            settled.expect("it is the first");
        }
        orders.keep_only(1);
        assert!(orders.settled(1).is_some());
        assert!(orders.settled(0).is_none() && orders.settled(2).is_none());
        assert!(
            orders.begin(2, None).is_err(),
            "nobody may know its order any more"
        );
    }

    #[test]
    fn an_epoch_whose_order_is_known_needs_none() {
        let mut orders = SentOrders::default();
        assert!(orders.begin(0, None).is_err());
        orders.settle(1, vec![5], false).expect("it is the first");
        orders.begin(1, None).expect("it is known");
        orders.begin(2, Some(vec![6])).expect("an order");
        assert!(orders.settled(1).is_none(), "of an earlier epoch");
    }
}
