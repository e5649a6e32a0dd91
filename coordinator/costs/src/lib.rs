//! The costs of samples, and the decisions that follow from them.
//!
//! This crate is pure. It has no clock (durations are arguments, in seconds), no I/O and no threads, and the caller
//! brings all randomness.
//!
//! | module | question | rule |
//! |---|---|---|
//! | [`table`] | how much does this sample cost? | a weighted mean of its measurements, 10 bytes a sample |
//! | [`predict`] | how much does a sample cost that was never prepared? | a line in its bytes and pixels, fitted as samples are measured |
//! | [`quantile`] | at which cost does a sample count as slow? | a fence over the recent costs |
//! | [`forms`] | which form of a sample is worth its bytes in the cache? | the best at a common price per byte |
//! | [`balance`] | how many threads keep processors and storage busy? | the ratio of waiting to work, as long as more threads help |
//! | [`cost_recorder`] | where is a measurement recorded? | in table, model and budget, short ones many at once |
//! | [`lookahead`] | when should a sample be started? | its cost before its minibatch is due; a slow one in the period with the least planned work |
//!
//! ```
//! use coprep_costs::{Chooser, CostTable, Features, MeasuredTimes, Offer, Predictor};
//!
//! let (table, mut predictor) = (CostTable::new(1000), Predictor::new());
//! let measured = MeasuredTimes {
//!     fetch: Some(0.005),
//!     decode: Some(0.002),
//!     ..MeasuredTimes::default()
//! };
//! let photograph = Features {
//!     bytes: 93_000,
//!     pixels: 190_000,
//! };
//! table.record(7, &measured);
//! predictor.observe(photograph, &measured);
//! let cost = table.get(7).unwrap_or(predictor.predict(photograph));
//!
//! let mut chooser = Chooser::new(1 << 30, 1000, 93_000_000);
//! let encoded = Offer {
//!     bytes: 93_000,
//!     saves: cost.fetch.into(),
//! };
//! let decoded = Offer {
//!     bytes: 570_000,
//!     saves: cost.total().into(),
//! };
//! assert_eq!(chooser.decide(photograph.bytes, &[encoded, decoded]), Some(1));
//! ```
#![forbid(unsafe_code)]

pub mod balance;
pub mod cost_recorder;
pub mod forms;
pub mod lookahead;
pub mod predict;
pub mod quantile;
pub mod table;

pub use balance::{Balance, Interval};
pub use cost_recorder::CostRecorder;
pub use forms::{Chooser, Offer};
pub use predict::{Features, Predictor};
pub use quantile::{Budget, Recent, Summary};
pub use table::{CostTable, ExpectedCost, MeasuredTimes};

#[cfg(test)]
#[path = "../tests/random/mod.rs"]
mod random;
