//! Orders of epochs, proposed by a member of a cohort or handed to it.
//!
//! This module is pure: it does no I/O and reads no clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The orders that one member knows.
#[derive(Default)]
pub(super) struct SentOrders {
    /// Settled orders by epoch. All members receive the samples of an epoch in its settled order.
    handed: BTreeMap<u64, Arc<[u32]>>,
    /// The order that this member has proposed for the epoch that it has begun, until the settled order is handed to
    /// it.
    proposed: Option<(u64, Arc<[u32]>)>,
}

impl SentOrders {
    pub(super) fn handed(&self, epoch: u64) -> Option<&Arc<[u32]>> {
        self.handed.get(&epoch)
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
        self.handed.retain(|&of, _| of >= epoch);
        if self.handed.contains_key(&epoch) {
            self.proposed = None;
            return Ok(());
        }
        let order = order.ok_or_else(|| {
            Error::Invalid(format!("the order of epoch {epoch} is not known: tell one"))
        })?;
        self.proposed = Some((epoch, order.into()));
        Ok(())
    }

    /// Drops all orders except that of `epoch`, which another coordinator is told. The user was given no sample of a
    /// later epoch, so a member that is in that epoch tells its order.
    pub(super) fn come_again(&mut self, epoch: u64) {
        self.handed.retain(|&of, _| of == epoch);
    }

    /// Records an order that was handed to this member. `has_given` says whether the user was given samples of that
    /// epoch.
    ///
    /// # Errors
    /// When the user was given samples in another order: the samples to come would not be the rest of the epoch that the
    /// user has begun.
    pub(super) fn take_up(&mut self, epoch: u64, order: Vec<u32>, has_given: bool) -> Result<()> {
        let order = order.into();
        match self.handed.get(&epoch) {
            Some(known) if has_given && *known != order => Err(Error::Invalid(format!(
                "the other members of the cohort have gone on with epoch {epoch} in another order than this one was given \
                 it in, since it came back too late, or resumes another state: end all members, and resume them together"
            ))),
            _ => {
                // The settled order replaces the proposal.
                self.proposed.take_if(|(of, _)| *of == epoch);
                self.handed.insert(epoch, order);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_proposed_is_forgotten_when_the_order_is_handed() {
        let mut orders = SentOrders::default();
        orders.begin(3, Some(vec![1, 2])).expect("an order");
        assert_eq!(orders.proposed(3).map(|o| o.to_vec()), Some(vec![1, 2]));
        assert!(orders.proposed(4).is_none() && orders.handed(3).is_none());
        orders
            .take_up(3, vec![2, 1], false)
            .expect("it is the first");
        assert!(orders.proposed(3).is_none());
        assert_eq!(orders.handed(3).map(|o| o.to_vec()), Some(vec![2, 1]));
    }

    #[test]
    fn another_order_of_an_epoch_is_refused_if_the_user_was_given_something_of_it() {
        let mut orders = SentOrders::default();
        orders
            .take_up(0, vec![2, 1], false)
            .expect("it is the first");
        assert!(orders.take_up(0, vec![2, 1], true).is_ok());
        assert!(orders.take_up(0, vec![1, 2], true).is_err());
        assert!(orders.take_up(0, vec![1, 2], false).is_ok());
    }

    #[test]
    fn who_comes_again_knows_the_order_of_its_epoch_alone() {
        let mut orders = SentOrders::default();
        for epoch in 0..3 {
            let taken_up = orders.take_up(epoch, vec![1], false);
            taken_up.expect("it is the first");
        }
        orders.come_again(1);
        assert!(orders.handed(1).is_some());
        assert!(orders.handed(0).is_none() && orders.handed(2).is_none());
        assert!(
            orders.begin(2, None).is_err(),
            "nobody may know its order any more"
        );
    }

    #[test]
    fn an_epoch_whose_order_is_known_needs_none() {
        let mut orders = SentOrders::default();
        assert!(orders.begin(0, None).is_err());
        orders.take_up(1, vec![5], false).expect("it is the first");
        orders.begin(1, None).expect("it is known");
        orders.begin(2, Some(vec![6])).expect("an order");
        assert!(orders.handed(1).is_none(), "of an earlier epoch");
    }
}
