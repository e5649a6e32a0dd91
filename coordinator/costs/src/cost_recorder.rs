//! Where measurements are entered: in the table, the model and the budget.
//!
//! A sample that comes decoded from the cache takes some hundred microseconds, in which it reads and writes a megabyte and
//! more. To enter what it took is some dozen nanoseconds of arithmetic, and as many cache lines of code and data that have
//! been driven out meanwhile: microseconds. So what took less than a millisecond waits, and many are entered one after the
//! other. Who asks for every sample is answered by what was entered; others have it [settled](CostRecorder::settle) first.

use crate::predict::{Features, Predictor};
use crate::quantile::Budget;
use crate::table::{CostTable, ExpectedCost, MeasuredTimes};

/// Measurements that wait, at most.
const MOST_WAITING: usize = 32;
/// Seconds. Beside a sample that took longer, entering it is next to nothing; and so few as wait must not be long behind.
const SHORT: f32 = 1e-3;
/// Measurements before the model is asked.
const ENOUGH: u32 = 32;

/// What was measured of all samples but for the [table](CostTable), which is written without a lock.
#[derive(Debug, Default)]
pub struct CostRecorder {
    predictor: Predictor,
    /// Samples that the predictor has seen.
    seen: u32,
    budget: Budget,
    waiting: Vec<(u32, MeasuredTimes)>,
}

impl CostRecorder {
    /// Nothing yet.
    pub fn new() -> Self {
        CostRecorder {
            waiting: Vec::with_capacity(MOST_WAITING),
            ..CostRecorder::default()
        }
    }

    /// Enters a measurement of sample `id`, at once or, if it was short, with later ones. `features`: of its file, if the
    /// measurement says what is to be expected of others; then it is entered at once. True: something was entered.
    pub fn enter(
        &mut self,
        table: &CostTable,
        id: u32,
        measured: MeasuredTimes,
        features: Option<Features>,
    ) -> bool {
        if let Some(features) = features {
            self.take_in(table, id, &measured);
            self.predictor.observe(features, &measured);
            self.seen = self.seen.saturating_add(1);
            return true;
        }
        let is_short = measured.total() < SHORT;
        self.waiting.push((id, measured));
        let is_time = !is_short || self.waiting.len() >= MOST_WAITING;
        if is_time {
            self.settle(table);
        }
        is_time
    }

    /// Enters what waits.
    pub fn settle(&mut self, table: &CostTable) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for (id, measured) in waiting.drain(..) {
            self.take_in(table, id, &measured);
        }
        // Its memory is used again.
        self.waiting = waiting;
    }

    fn take_in(&mut self, table: &CostTable, id: u32, measured: &MeasuredTimes) {
        table.record(id, measured);
        self.budget.observe(measured.total());
    }

    /// What a sample will cost, by the features of its file. None: too little is known.
    pub fn predict(&self, features: Features) -> Option<ExpectedCost> {
        (self.seen >= ENOUGH).then(|| self.predictor.predict(features))
    }

    /// Of the seconds of the last preparations that were entered, whatever was cached.
    pub fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(seconds: f32) -> MeasuredTimes {
        MeasuredTimes {
            random: Some(seconds),
            ..MeasuredTimes::default()
        }
    }

    #[test]
    fn what_was_short_is_entered_when_somebody_asks_or_many_wait() {
        let (table, mut ledger) = (CostTable::new(100), CostRecorder::new());
        (0..31).for_each(|id| assert!(!ledger.enter(&table, id, measured(1e-4), None)));
        assert_eq!((table.measured(), ledger.budget().summary()), (0, None));
        ledger.settle(&table);
        assert_eq!((table.measured(), ledger.budget().seconds()), (31, None));
        assert!(ledger.budget().summary().is_some());
        (31..62).for_each(|id| assert!(!ledger.enter(&table, id, measured(1e-4), None)));
        assert!(ledger.enter(&table, 62, measured(1e-4), None));
        assert_eq!(
            (table.measured(), ledger.budget().seconds()),
            (63, Some(1e-3))
        );
        ledger.settle(&table);
        assert_eq!(table.measured(), 63);
    }

    #[test]
    fn what_took_long_is_entered_at_once_with_all_that_waits() {
        let (table, mut ledger) = (CostTable::new(100), CostRecorder::new());
        (0..5).for_each(|id| assert!(!ledger.enter(&table, id, measured(1e-4), None)));
        assert!(ledger.enter(&table, 5, measured(0.5), None));
        assert_eq!(table.measured(), 6);
        let longest = ledger.budget().summary().unwrap().longest;
        assert_eq!(longest, 0.5);
    }

    #[test]
    fn what_was_read_from_a_file_is_entered_at_once_and_learned() {
        let (table, mut ledger) = (CostTable::new(100), CostRecorder::new());
        let features = Features {
            bytes: 100,
            pixels: 1000,
        };
        for id in 0..ENOUGH {
            assert_eq!(ledger.predict(features), None);
            assert!(ledger.enter(&table, id, measured(1.0), Some(features)));
            assert_eq!(table.measured(), id + 1);
        }
        let expected = ledger.predict(features).unwrap().total();
        assert!((expected - 1.0).abs() < 1e-3, "{expected}");
        assert_eq!(ledger.budget().seconds(), Some(2.0));
    }
}
