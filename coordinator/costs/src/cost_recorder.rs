//! Records measurements in the table, the model and the budget.
//!
//! A sample that comes decoded from the cache takes some hundred microseconds, in which it reads and writes a megabyte
//! and more. Recording its measurement takes some dozen nanoseconds of arithmetic. But it also needs about as many
//! cache lines of code and data, which the sample has evicted, and that costs microseconds. So measurements of less
//! than a millisecond wait, and many are recorded at once. Callers that ask for every sample see only the measurements
//! recorded so far. Other callers have the waiting ones [settled](CostRecorder::settle) first.

use crate::predict::{Features, Predictor};
use crate::quantile::Budget;
use crate::table::{CostTable, ExpectedCost, MeasuredTimes};

/// Largest number of measurements that wait.
const MOST_WAITING: usize = 32;
/// Seconds below which a measurement waits. For a longer sample, the cost of recording is negligible. Recording it also
/// settles the few that wait, so that they are not late for long.
const SHORT: f32 = 1e-3;
/// Measurements before the model is used.
const ENOUGH: u32 = 32;

/// All records of measurements except the [table](CostTable), which is written without a lock.
#[derive(Debug, Default)]
pub struct CostRecorder {
    predictor: Predictor,
    /// Number of samples that the predictor has seen.
    seen: u32,
    budget: Budget,
    waiting: Vec<(u32, MeasuredTimes)>,
}

impl CostRecorder {
    /// Creates a recorder without measurements.
    pub fn new() -> Self {
        CostRecorder {
            waiting: Vec::with_capacity(MOST_WAITING),
            ..CostRecorder::default()
        }
    }

    /// Records a measurement of sample `id`, at once or, if it was short, together with later ones. Returns true if
    /// anything was recorded now.
    ///
    /// `features` are those of the sample's file, if the measurement is useful to predict other samples. Such a
    /// measurement is recorded at once.
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

    /// Records all waiting measurements.
    pub fn settle(&mut self, table: &CostTable) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for (id, measured) in waiting.drain(..) {
            self.take_in(table, id, &measured);
        }
        // Keep the vector, so that its memory is used again.
        self.waiting = waiting;
    }

    fn take_in(&mut self, table: &CostTable, id: u32, measured: &MeasuredTimes) {
        table.record(id, measured);
        self.budget.observe(measured.total());
    }

    /// Predicts the cost of a sample from the features of its file. Returns `None` if too few samples were measured.
    pub fn predict(&self, features: Features) -> Option<ExpectedCost> {
        (self.seen >= ENOUGH).then(|| self.predictor.predict(features))
    }

    /// Returns the budget, which covers the seconds of all recently recorded preparations, cached or not.
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
        let (table, mut recorder) = (CostTable::new(100), CostRecorder::new());
        (0..31).for_each(|id| assert!(!recorder.enter(&table, id, measured(1e-4), None)));
        assert_eq!((table.measured(), recorder.budget().summary()), (0, None));
        recorder.settle(&table);
        assert_eq!((table.measured(), recorder.budget().seconds()), (31, None));
        assert!(recorder.budget().summary().is_some());
        (31..62).for_each(|id| assert!(!recorder.enter(&table, id, measured(1e-4), None)));
        assert!(recorder.enter(&table, 62, measured(1e-4), None));
        assert_eq!(
            (table.measured(), recorder.budget().seconds()),
            (63, Some(1e-3))
        );
        recorder.settle(&table);
        assert_eq!(table.measured(), 63);
    }

    #[test]
    fn what_took_long_is_entered_at_once_with_all_that_waits() {
        let (table, mut recorder) = (CostTable::new(100), CostRecorder::new());
        (0..5).for_each(|id| assert!(!recorder.enter(&table, id, measured(1e-4), None)));
        assert!(recorder.enter(&table, 5, measured(0.5), None));
        assert_eq!(table.measured(), 6);
        let longest = recorder.budget().summary().unwrap().longest;
        assert_eq!(longest, 0.5);
    }

    #[test]
    fn what_was_read_from_a_file_is_entered_at_once_and_learned() {
        let (table, mut recorder) = (CostTable::new(100), CostRecorder::new());
        let features = Features {
            bytes: 100,
            pixels: 1000,
        };
        for id in 0..ENOUGH {
            assert_eq!(recorder.predict(features), None);
            assert!(recorder.enter(&table, id, measured(1.0), Some(features)));
            assert_eq!(table.measured(), id + 1);
        }
        let expected = recorder.predict(features).unwrap().total();
        assert!((expected - 1.0).abs() < 1e-3, "{expected}");
        assert_eq!(recorder.budget().seconds(), Some(2.0));
    }
}
