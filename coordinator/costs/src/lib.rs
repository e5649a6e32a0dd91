//! What samples cost, and what follows from it.
//!
//! Pure: no clock (durations are arguments, in seconds), no I/O, no thread, no randomness but what the
//! caller brings.
//!
//! | module | question | rule |
//! |---|---|---|
//! | [`table`] | what does this sample cost? | a weighted mean of what was measured, 10 bytes a sample |
//! | [`predict`] | and before it was ever prepared? | a line in its bytes and pixels, fitted as the samples come |
//! | [`quantile`] | from when on is a sample slow? | a fence over the recent costs |
//! | [`forms`] | in which form is it worth its bytes in the cache? | the best at a common price per byte |
//! | [`balance`] | how many threads keep processors and storage busy? | the ratio of waiting to work, while more helps |
//! | [`ledger`] | where is a measurement entered? | in table, model and budget, short ones many at once |
//! | [`lookahead`] | when is it to be started? | before its minibatch is due, by its cost; slow ones when least else is planned |
//!
//! ```
//! use coprep_costs::{Chooser, CostTable, Features, Measured, Offer, Predictor};
//!
//! let (table, mut predictor) = (CostTable::new(1000), Predictor::new());
//! let measured = Measured {
//!     fetch: Some(0.005),
//!     decode: Some(0.002),
//!     ..Measured::default()
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
